"""Joining a job, and what JAX is told about it. jax.distributed is not used."""

from __future__ import annotations

import jax

from byteps._core import session
from byteps.jax import exchange

__all__ = ["init", "resume"]


def init(lazy: bool = True) -> None:
    """Joins the job that the environment describes and waits until all members are there; without DMLC_* variables it
    is a job of one. Does nothing when already joined. Call it before anything else is asked of JAX.

    `lazy` is accepted for compatibility and makes no difference."""
    session.init(lazy)
    _prepare()


def resume(num_workers: int, num_servers: int, global_rank: int, context: object = None) -> None:
    """Joins a job of another size, after suspend(). Functions that were compiled before are compiled again; parameters
    are not synchronized: broadcast them."""
    session.resume(num_workers, num_servers, global_rank, context)
    jax.clear_caches()  # compiled functions know the rank and the size they were made for
    _prepare()


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
