"""Broadcasts of whole trees and of objects: one rank's parameters and states to all."""

from __future__ import annotations

from typing import Any, List, Optional

import jax
import jax.numpy as jnp
import numpy as np

from byteps._core import abi, objects, session
from byteps._core.agreement import require_agreement
from byteps._core.exchange import Exchange
from byteps._core.process_sets import ProcessSet, check_root, members_of, scoped
from byteps.jax import direct
from byteps.jax.exchange import exchange, is_staged

__all__ = ["allgather_object", "broadcast_object", "broadcast_parameters", "broadcast_tree"]


def broadcast_tree(
    tree: Any, root_rank: int = 0, name: str = "tree", priority: int = 0, process_set: Optional[ProcessSet] = None
) -> Any:
    """The root's values of every leaf of the tree, on all ranks, all at once: a new tree. Leaves are arrays, numpy's
    too, numbers of Python and keys of jax.random; each comes back as what it is here. Any dtype. Outside of jit the
    ranks compare their trees first, and all of them raise ValueError when they differ; inside, each leaf is named by
    `name` and its path."""
    members = members_of(process_set)
    root_rank = check_root(root_rank, members)
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    paths = [jax.tree_util.keystr(path) for path, _ in leaves]
    kinds = [type(leaf) for _, leaf in leaves]
    arrays = [_as_array(leaf, path) for path, (_, leaf) in zip(paths, leaves)]
    staged = any(isinstance(array, jax.core.Tracer) for array in arrays) or is_staged(None)
    if not staged:
        specs = [f"{path}: {array.dtype.name}{list(array.shape)}" for path, array in zip(paths, arrays)]
        require_agreement(specs, root_rank, "broadcast: the trees differ", members)
        name = session.current().unique_name(scoped(f"Broadcast.{name}", members))
    base = scoped(name, members) if staged else name
    what = Exchange(abi.BROADCAST, root=root_rank, members=members, once=not staged)
    exchanges = [(base + path, what._replace(priority=priority - index)) for index, path in enumerate(paths)]
    pairs = zip(arrays, exchanges)
    results = [exchange(array, *one) for array, one in pairs] if staged else direct.run_all(pairs)
    return structure.unflatten(
        _like(leaf, kind, result) for (_, leaf), kind, result in zip(leaves, kinds, results)
    )


def broadcast_parameters(params: Any, root_rank: int = 0, process_set: Optional[ProcessSet] = None) -> Any:
    """The root's parameters (or the state of an optimizer, or any tree), on all ranks. Returns them: arrays of JAX do
    not change. Outside of jit; broadcast_tree() is for both."""
    return broadcast_tree(params, root_rank, "Parameter", process_set=process_set)


def broadcast_object(
    obj: Any, root_rank: int = 0, name: Optional[str] = None, process_set: Optional[ProcessSet] = None
) -> Any:
    """The root's object, on all ranks (on the root `obj` itself). It is pickled, with cloudpickle when that is
    installed: members of one job trust each other. The others' `obj` does not matter."""
    members = members_of(process_set)
    root_rank = check_root(root_rank, members)
    return objects.broadcast_object(obj, root_rank, name, members)


def allgather_object(obj: Any, name: Optional[str] = None, process_set: Optional[ProcessSet] = None) -> List[Any]:
    """The objects of all ranks, in their order."""
    return objects.allgather_object(obj, name, members_of(process_set))


# ---- leaves


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _as_array(leaf: Any, path: str) -> Any:
    """Arrays of numpy stay ones: JAX would make float32 of float64."""
    if _is_key(leaf):
        return jax.random.key_data(leaf)
    if isinstance(leaf, jax.Array):
        if not isinstance(leaf, jax.core.Tracer):
            direct.check_device(leaf)
        return leaf
    if isinstance(leaf, (np.ndarray, np.generic, bool, int, float, complex)):
        array = np.asarray(leaf)
        if array.dtype != object:
            return array
    raise ValueError(f"the leaf {path} is a {type(leaf).__name__}, no array: use broadcast_object for other objects")


def _like(leaf: Any, kind: type, result: Any) -> Any:
    if _is_key(leaf):
        return jax.random.wrap_key_data(jnp.asarray(result), impl=jax.random.key_impl(leaf))
    if isinstance(leaf, jax.Array) or isinstance(result, jax.core.Tracer):
        return jnp.asarray(result)
    return result if kind is np.ndarray else result[()] if issubclass(kind, np.generic) else kind(result[()])

