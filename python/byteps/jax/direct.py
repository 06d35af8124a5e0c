"""Exchanges of concrete arrays, outside of compiled programs.

Memory: the core reads a JAX array in place, and writes into memory of ours that then becomes the resulting array.
"""

from __future__ import annotations

import math
from typing import Any, Iterable, List, Optional, Sequence, Set, Tuple

import numpy as np

from byteps._core import abi, bridge, elements, errors, session
from byteps._core.exchange import BY_NAME, PREFIX, Exchange
from byteps._core.residuals import address_of, address_of_momentum

_ALIGNMENT = 64  # so that JAX takes the memory over instead of copying it
Named = Tuple[str, Exchange]  # an exchange and its name


def result_shape(shape: Sequence[int], what: Exchange) -> Tuple[int, ...]:
    """Who gets no result gets an array whose first dimension is 0."""
    if not what.root_only or what.root == session.job().rank:
        return tuple(shape)
    return (0, *shape[1:])


class Running:
    """One exchange under way. It keeps the memory alive until the core has given it back, also when dropped."""

    def __init__(self, source: np.ndarray, result: np.ndarray) -> None:
        self.job = session.job()
        self.core_handle = 0
        self.source = source
        self.result = result

    def poll(self) -> bool:
        """True when wait() would not block."""
        return self.job.poll(self.core_handle)

    def wait(self) -> np.ndarray:
        """Waits, with Python's lock free, and returns the result, which nobody else has. An exception from a signal
        handler leaves it under way; any other ends it."""
        try:
            self.job.wait(self.core_handle)
        except errors.BytePSError:
            _running.discard(self)
            raise
        _running.discard(self)
        return self.result


_running: Set[Running] = set()
session.on_leave(_running.clear)


def check_device(x: Any) -> None:
    """ValueError: an array of JAX that is not in the CPU's memory."""
    if not callable(getattr(x, "devices", None)):  # numpy's
        return
    elsewhere = [device for device in x.devices() if device.platform != "cpu"]
    if elsewhere:
        raise ValueError(NOT_ON_CPU.format(subject="the array", device=elsewhere[0]))


NOT_ON_CPU = (
    "{subject} is on device '{device}', but in this version exchanges of JAX are made from the CPU's memory: set "
    "JAX_PLATFORMS=cpu before JAX is imported"
)


def library() -> Any:
    """The bridge's, for calls of its functions. It keeps residuals, also of what is submitted here."""
    return bridge.load("jax").library


def start(x: Any, name: str, what: Exchange) -> Running:
    """Submits x, an array of JAX or numpy, once it is computed."""
    check_device(x)
    kind, width = elements.kind(np.dtype(x.dtype), what.operation)
    if BY_NAME in (what.residual, what.momentum):
        what = _with_addresses(what, name, math.prod(x.shape) * width if kind == abi.FLOAT32 else 0)
    running = Running(np.ascontiguousarray(x), aligned(result_shape(x.shape, what), x.dtype))
    # Noted before it is submitted: an exception from a signal handler in between must not free the memory.
    _running.add(running)
    try:
        shape = (*x.shape, width) if width > 1 else x.shape
        addresses = (running.source.ctypes.data, running.result.ctypes.data)
        running.core_handle = running.job.submit(what.tensor(name, kind, shape, *addresses, PREFIX))
    except errors.BytePSError:
        _running.discard(running)
        raise
    return running


def _with_addresses(what: Exchange, name: str, float32_count: int) -> Exchange:
    """In place of BY_NAME. What has no elements of float32 is not coded."""
    if not float32_count:
        return what.without_memory()
    if what.residual == BY_NAME:
        what = what._replace(residual=address_of(library(), name, float32_count))
    if what.momentum == BY_NAME:
        what = what._replace(momentum=address_of_momentum(library(), name, float32_count))
    return what


def run_all(pairs: Iterable[Tuple[Any, Named]]) -> List[np.ndarray]:
    """All at once. Every one is waited for, also when one has failed; then the first failure is raised."""
    results: List[np.ndarray] = []
    running: List[Running] = []
    failure: Optional[Exception] = None
    pairs = list(pairs)
    for array, _ in pairs:
        check_device(array)
    try:
        for array, (name, what) in pairs:
            running.append(start(array, name, what))
    except (errors.BytePSError, ValueError) as error:
        failure = error
    for one in running:
        try:
            results.append(one.wait())
        except errors.BytePSError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return results


def aligned(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Memory that JAX takes over as an array without copying it."""
    size_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size_bytes + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    return memory[begin : begin + size_bytes].view(dtype).reshape(shape)
