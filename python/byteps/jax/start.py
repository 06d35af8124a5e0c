"""Joining a job, and what JAX is told about it. jax.distributed is not used."""

from __future__ import annotations

from typing import Any, Iterable, Union

import jax

from byteps._core import horovod, session
from byteps._core.process_sets import ProcessSet
from byteps.jax import exchange

__all__ = ["init", "join", "resume"]


def init(comm: Any = None, process_sets: Union[Iterable[ProcessSet], str, None] = None, lazy: bool = True) -> None:
    """Joins the job that the environment describes and waits until all members are there; without DMLC_* variables it
    is a job of one. Does nothing when already joined. Call it before anything else is asked of JAX.

    `process_sets` get their numbers. `lazy` and "dynamic" for process_sets are accepted for compatibility and make no
    difference. ValueError: `comm` was given; another launcher (torchrun, mpirun, srun, ...) has started several
    processes, and there are no DMLC_* variables."""
    horovod.init(comm, process_sets, lazy)
    _prepare()


def resume(num_workers: int, num_servers: int, global_rank: int, context: object = None) -> None:
    """Joins a job of another size, after suspend(). Functions that were compiled before are compiled again; parameters
    are not synchronized: broadcast them."""
    session.resume(num_workers, num_servers, global_rank, context)
    _prepare()


def join(device: int = -1) -> int:
    """This rank has no more inputs: until all ranks have called it, it contributes nothing to the sums and averages of
    the others. Returns the rank that called it last, on all ranks; that one has seen the most, so broadcast its
    parameters. Blocks, also until compiled functions have ended. ValueError inside jit. `device` is for
    compatibility."""
    if exchange.is_staged(None):
        raise ValueError("join() inside jit: call it outside, when this rank has no more batches")
    jax.effects_barrier()
    return horovod.join(device)


def _prepare() -> None:
    # A compiled function ends before the next one begins, as they do on an accelerator. Otherwise two that use the same
    # names could overlap, and start their exchanges in another order on each rank. JAX heeds it when its CPU client is
    # made, at the first computation.
    is_early = session.job().size > 1 and not _has_backend()
    if is_early:
        jax.config.update("jax_cpu_enable_async_dispatch", False)
    exchange.load(one_at_a_time=is_early)


def _has_backend() -> bool:
    """JAX does not tell in public; when it cannot be asked, it counts as yes."""
    try:
        from jax._src import xla_bridge

        return bool(xla_bridge.backends_are_initialized())
    except (ImportError, AttributeError):
        return True
