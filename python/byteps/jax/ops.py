"""push_pull and its kin, inside and outside of jit.

An array is its name: what belongs together has the same name on all ranks, and the same shape and dtype each time.
Inside jit every one of them is asynchronous, in any number, and starts as soon as its input is computed. There the name
is fixed when the function is traced; without one it is numbered in the order of tracing, which must then be the same on
all ranks. Outside of jit unnamed operations are numbered in the order of the calls. Larger `priority` goes first.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Tuple, Type

import jax
import jax.numpy as jnp

from byteps._core import abi, errors, session
from byteps.jax import direct
from byteps.jax.compression import Compression, Compressor
from byteps.jax.exchange import Exchange, exchange, is_staged

__all__ = ["Handle", "poll", "push_pull", "push_pull_async", "push_pull_tree", "synchronize"]


def push_pull(
    array: Any,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    priority: int = 0,
    compression: Type[Compressor] = Compression.none,
) -> jax.Array:
    """The average (or sum, average=False) of `array` over all workers: a new array of its shape and dtype.
    Differentiable; its gradient is averaged alike, so all ranks must compute it."""
    wire, context = compression.compress(jnp.asarray(array))
    return compression.decompress(exchange(wire, _reduction(average, name, priority)), context)


class Handle:
    """A push_pull under way outside of jit: for poll() and synchronize()."""

    def __init__(self, running: direct.Running, finish: Callable[[jax.Array], jax.Array]) -> None:
        self._running: Optional[direct.Running] = running
        self._finish = finish

    def poll(self) -> bool:
        return self._live().poll()

    def wait(self) -> jax.Array:
        running = self._live()
        try:
            result = running.wait()
        except errors.BytePSError:
            self._running = None
            raise
        self._running = None  # any other exception is from a signal handler: it is still under way
        return self._finish(result)

    def _live(self) -> direct.Running:
        session.current()
        if self._running is None:
            raise ValueError("the handle has been synchronized already; each is used once")
        return self._running


def push_pull_async(
    array: Any,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    priority: int = 0,
    compression: Type[Compressor] = Compression.none,
) -> Handle:
    """Starts push_pull and returns a handle for poll() and synchronize(). Only outside of jit, and not differentiable:
    inside, push_pull is asynchronous itself."""
    if is_staged(array):
        raise ValueError("push_pull_async() inside jit: use push_pull(), which is asynchronous there")
    wire, context = compression.compress(jnp.asarray(array))
    running = direct.start(wire, _reduction(average, name, priority))
    return Handle(running, lambda result: compression.decompress(result, context))


def poll(handle: Handle) -> bool:
    """True when synchronize() would not block."""
    return _checked(handle).poll()


def synchronize(handle: Handle) -> jax.Array:
    """Waits and returns the result; the handle is used up. Other Python threads run meanwhile."""
    return _checked(handle).wait()


def push_pull_tree(
    tree: Any,
    average: Optional[bool] = None,
    name: str = "tree",
    priority: int = 0,
    compression: Type[Compressor] = Compression.none,
) -> Any:
    """push_pull of every array of a tree (nested dicts, lists, ...), all at once. Each is named by `name` and its path;
    those that come first in the tree, which are often the first layers, go first."""
    paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    arrays = [jnp.asarray(leaf) for _, leaf in paths]
    whats = [
        _reduction(average, name + jax.tree_util.keystr(path), priority - index)
        for index, (path, _) in enumerate(paths)
    ]
    compressed = [compression.compress(array) for array in arrays]
    results = exchange_all([wire for wire, _ in compressed], whats)
    return structure.unflatten(
        compression.decompress(result, context) for result, (_, context) in zip(results, compressed)
    )


def exchange_all(arrays: List[jax.Array], whats: List[Exchange]) -> List[jax.Array]:
    """All at once. Outside of jit every one is waited for, also when one has failed; then the first failure is
    raised."""
    if not arrays:
        return []
    if is_staged(arrays[0]) or any(isinstance(array, jax.core.Tracer) for array in arrays):
        return [exchange(array, what) for array, what in zip(arrays, whats)]
    results: List[jax.Array] = []
    running: List[direct.Running] = []
    failure: Optional[Exception] = None
    try:
        for array, what in zip(arrays, whats):
            running.append(direct.start(array, what))
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


def _reduction(average: Optional[bool], name: Optional[str], priority: int) -> Exchange:
    operation = abi.SUM if average is False else abi.AVERAGE
    if name is None:
        name = session.current().unique_name("push_pull.noname")
        return Exchange(name, operation, priority=priority, once=True)
    return Exchange(name, operation, priority=priority)


def _checked(handle: Any) -> Handle:
    if not isinstance(handle, Handle):
        raise ValueError(f"expected a handle of push_pull_async(), got {type(handle).__name__}")
    return handle
