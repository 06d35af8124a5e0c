"""push_pull, inside and outside of jit.

An array is its name: what belongs together has the same name on all ranks, and the same shape and dtype each time.
Inside jit every one is asynchronous, in any number, and starts as soon as its input is computed. There the name is
fixed when the function is traced; without one it is numbered in the order of tracing, which must then be the same on
all ranks. Outside of jit unnamed operations are numbered in the order of the calls. Larger `priority` goes first.

Arguments that all have: `op` is Average (the default), Sum, Min, Max or Product, and `average` its older form;
prescale_factor and postscale_factor multiply before and after, with Average and Sum; `process_set`: the ranks that take
part, and only they may call; `compression`: what travels.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, List, Optional, Tuple, Type, Union

import jax
import jax.numpy as jnp

from byteps._core import errors, session
from byteps._core.compression import check_element, checked_compression, packed, with_memory
from byteps._core.exchange import Exchange
from byteps._core.process_sets import ProcessSet, members_of, named
from byteps._core.reduction import ReduceOp, resolve
from byteps.jax import direct
from byteps.jax.compression import Compression, Compressor
from byteps.jax.direct import Named
from byteps.jax.exchange import exchange, is_staged

__all__ = ["Handle", "poll", "push_pull", "push_pull_async", "push_pull_tree", "synchronize"]

Op = Union[ReduceOp, str, None]


def push_pull(
    array: Any,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    priority: int = 0,
    compression: Type[Compressor] = Compression.none,
    op: Op = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Optional[ProcessSet] = None,
) -> jax.Array:
    """The average (or what op says) of `array` over all workers: a new array of its shape and dtype. Average and Sum
    are differentiable; the gradient is reduced alike, so all ranks must compute it."""
    name, what = reduction(op, average, prescale_factor, postscale_factor, process_set, name, priority, compression)
    wire, context = _packed(array, what, compression)
    return compression.decompress(exchange(wire, name, what), context)


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
            result = jnp.asarray(running.wait())
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
    op: Op = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Optional[ProcessSet] = None,
) -> Handle:
    """Starts push_pull and returns a handle for poll() and synchronize(). Only outside of jit, and not differentiable:
    inside, push_pull is asynchronous itself."""
    if is_staged(array):
        raise ValueError("push_pull_async() inside jit: use push_pull(), which is asynchronous there")
    name, what = reduction(op, average, prescale_factor, postscale_factor, process_set, name, priority, compression)
    wire, context = _packed(array, what, compression)
    return Handle(direct.start(wire, name, what), lambda result: compression.decompress(result, context))


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
    op: Op = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Optional[ProcessSet] = None,
) -> Any:
    """push_pull of every array of a tree (nested dicts, lists, ...), all at once. Each is named by `name` and its path;
    those that come first in the tree, which are often the first layers, go first."""
    paths, arrays, structure = flattened(tree)
    exchanges = [
        reduction(
            op, average, prescale_factor, postscale_factor, process_set, name + path, priority - index, compression
        )
        for index, path in enumerate(paths)
    ]
    compressed = [_packed(array, what, compression) for array, (_, what) in zip(arrays, exchanges)]
    results = exchange_all((wire, one) for (wire, _), one in zip(compressed, exchanges))
    return structure.unflatten(
        compression.decompress(result, context) for result, (_, context) in zip(results, compressed)
    )


# For the other modules of this package.


def reduction(
    op: Op,
    average: Optional[bool],
    prescale_factor: float,
    postscale_factor: float,
    process_set: Optional[ProcessSet],
    name: Optional[str],
    priority: int,
    compression: Any = Compression.none,
) -> Named:
    meaning = resolve(op, average, prescale_factor, postscale_factor)
    members = members_of(process_set)
    name, once = named(name, "push_pull", members)
    what = Exchange(*meaning, members=members, priority=priority, once=once)
    return name, with_memory(what, name, checked_compression(compression), direct.library)


def _packed(array: Any, what: Exchange, compression: Any) -> Tuple[jax.Array, Any]:
    array = jnp.asarray(array)
    check_element(compression, "push_pull", array.dtype)
    return packed(compression, array, what.operation, array.size if array.dtype == jnp.float32 else 0)


def flattened(tree: Any) -> Tuple[List[str], List[jax.Array], Any]:
    """The paths of the leaves as text, the leaves, the structure."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    paths = [jax.tree_util.keystr(path) for path, _ in leaves]
    return paths, [jnp.asarray(leaf) for _, leaf in leaves], structure


def exchange_all(pairs: Iterable[Tuple[Any, Named]]) -> List[jax.Array]:
    """All at once. Outside of jit every one is waited for, also when one has failed."""
    pairs = list(pairs)
    if not pairs:
        return []
    if is_staged(pairs[0][0]) or any(isinstance(array, jax.core.Tracer) for array, _ in pairs):
        return [exchange(array, *one) for array, one in pairs]
    return [jnp.asarray(result) for result in direct.run_all(pairs)]


def _checked(handle: Any) -> Handle:
    if not isinstance(handle, Handle):
        raise ValueError(f"expected a handle of push_pull_async(), got {type(handle).__name__}")
    return handle
