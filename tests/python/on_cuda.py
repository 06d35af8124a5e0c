"""Tests of byteps.torch once more, with all their tensors on a GPU that is played (tests/gpu):

    BYTEPS_TEST_DEVICE=cuda .venv/bin/python -m pytest tests/python/test_push_pull.py

or on a real one, with BYTEPS_TEST_DEVICE=real (`make test-gpu`). conftest.py calls prepare() then. Jobs whose layer is
byteps.torch have workers on such a GPU, and what runs there has "cuda" as torch's default device: what a test makes is
on the GPU, in all threads, and what it returns comes back to the host. Other tests are left out, as are those marked
`host`, which say why.

In a worker this module is the layer: init() is called before its first function runs.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import cluster

DEVICE = os.environ.get("BYTEPS_TEST_DEVICE", "cpu")
CHOSEN = DEVICE in ("cuda", "real")
IS_REAL = DEVICE == "real"
GPU = Path(__file__).resolve().parents[1] / "gpu"


def _fake_gpu() -> Any:
    sys.path.append(str(GPU))
    import fake_gpu

    return fake_gpu


def missing() -> Optional[str]:
    """Why there is no played GPU here: torch has no CUDA, or nothing compiles it."""
    if IS_REAL:
        import torch

        return None if torch.cuda.is_available() else "there is none here, or this torch has no CUDA"
    return _fake_gpu().missing() if CHOSEN else None


def environment() -> Dict[str, str]:
    """What makes a process see the played GPU."""
    if IS_REAL:
        return {"BYTEPS_TEST_DEVICE": DEVICE}
    return {name: value for name, value in _fake_gpu().variables().items() if name != "PYTHONPATH"}


class CudaCluster(cluster.Cluster):
    """A Cluster whose workers, if they have torch, are on the played GPU."""

    def __init__(self, *args: Any, layer: str = "byteps.torch", **options: Any) -> None:
        self._on_gpu: Dict[str, str] = {}
        if layer == "byteps.torch":
            layer, self._on_gpu = "on_cuda", environment()
        super().__init__(*args, layer=layer, **options)

    def worker_environ(self, rank: int) -> Dict[str, str]:
        return {**self._on_gpu, **super().worker_environ(rank)}

    def outcomes(self, calls: Any, timeout_s: float = cluster.RUN_TIMEOUT_S) -> List[tuple]:
        if self._on_gpu:
            calls = [(run_on_gpu, call, {}) for call in calls]
        return super().outcomes(calls, timeout_s)


def prepare() -> None:
    """In the process of the tests, before any of their modules is imported."""
    cluster.Cluster = CudaCluster
    cluster.IMPORTED["on_cuda"] = cluster.IMPORTED["byteps.torch"]


def is_left_out(item: Any) -> bool:
    """Of the tests: those that run on the GPU only, or never."""
    if item.path.name == "test_cuda.py":
        return not CHOSEN
    is_on_gpu = "clusters" in item.fixturenames and item.get_closest_marker("host") is None
    return CHOSEN and not is_on_gpu


# ---- in a worker


def init() -> None:
    sys.path.append(str(GPU))
    import byteps.torch

    run = threading.Thread.run

    @functools.wraps(run)
    def run_there(thread: threading.Thread) -> None:
        with _Gpu():
            run(thread)

    threading.Thread.run = run_there
    byteps.torch.init()


class _Gpu:
    """Within it this thread's tensors are made on the GPU, whose kernels the CPU computes."""

    def __enter__(self) -> None:
        import torch

        self._entered: List[Any] = [torch.device("cuda")]
        if not IS_REAL:
            import on_fake_gpu

            self._entered.insert(0, on_fake_gpu.OnFakeGpu())
        for each in self._entered:
            each.__enter__()

    def __exit__(self, *error: Any) -> None:
        for each in reversed(self._entered):
            each.__exit__(*error)


def run_on_gpu(function: Callable, args: tuple, kwargs: dict) -> Any:
    with _Gpu():
        return _on_host(function(*args, **kwargs))


def _on_host(value: Any) -> Any:
    """The process of the tests has no GPU."""
    import torch
    from torch.utils._pytree import tree_map

    return tree_map(lambda each: each.cpu() if isinstance(each, torch.Tensor) else each, value)
