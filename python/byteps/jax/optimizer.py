"""distributed: any optimizer of optax, with its gradients averaged over all workers first."""

from __future__ import annotations

import math
from typing import Any, Dict, Optional, Type

import jax
import jax.numpy as jnp

from byteps._core import session
from byteps._core.choices import gradient_compression
from byteps._core.process_sets import ProcessSet, is_member, members_of, scoped
from byteps._core.recipes import check_recipe
from byteps.jax.compression import Compression, Compressor
from byteps.jax.ops import Op, push_pull_tree

__all__ = ["DistributedOptimizer", "distributed"]


def distributed(
    optimizer: Any,
    name: str = "Gradient",
    compression: Type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: Op = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Optional[ProcessSet] = None,
    compression_params: Optional[Dict[str, Any]] = None,
) -> Any:
    """The optax.GradientTransformation that averages updates over all workers, and then does what `optimizer` does. Its
    state is that of `optimizer`. Use it inside jit, in the function that computes the gradients: then each one leaves
    as soon as it is computed. Outside of jit it works as well, all at once.

    Gradients are named by `name`, their tree and their path. backward_passes_per_step: so many updates are collected
    locally, by optax.MultiSteps, which takes their mean, before they travel; the state is then that of MultiSteps.
    process_set: the ranks that train together; on the others it does what `optimizer` does. compression_params: instead
    of `compression`, as in the original: {"compressor": "topk", "k": 0.01}. The other arguments: see push_pull()."""
    import optax

    inner = optax.with_extra_args_support(optimizer)
    compression = gradient_compression(compression, Compression, compression_params, process_set=process_set)

    def init(params: Any) -> Any:
        state = inner.init(params)
        _check_recipe(compression, state)
        return state

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        if not is_member(process_set):
            return inner.update(updates, state, params, **extra)
        averaged = push_pull_tree(
            updates,
            None,
            _lasting_name(scoped(name, members_of(process_set)), updates, compression),
            0,
            compression,
            op,
            prescale_factor,
            postscale_factor,
            process_set,
        )
        return inner.update(averaged, state, params, **extra)

    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step is {backward_passes_per_step}: it must be at least 1")
    transformation = optax.GradientTransformationExtraArgs(init, update)
    if backward_passes_per_step == 1:
        return transformation
    return optax.MultiSteps(transformation, backward_passes_per_step).gradient_transformation()


DistributedOptimizer = distributed  # the name that users of the other frameworks know


def _check_recipe(compression: Any, state: Any) -> None:
    """By what it keeps: an optimizer of optax tells no options."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    has_momentum = any(getattr(key, "name", "") == "trace" for path, _ in leaves for key in path)  # of TraceState
    keeps_nothing = all(jnp.ndim(leaf) == 0 for _, leaf in leaves)
    check_recipe(compression, "the optimizer", math.nan if has_momentum else 0.0, keeps_nothing)


def _lasting_name(name: str, tree: Any, compression: Any) -> str:
    """`name`, and a number when there is another model, whose tree or compression differs. Two equal models in one
    program are kept apart by the order of their use."""
    leaves, structure = jax.tree_util.tree_flatten(tree)
    meaning = (structure, tuple((str(leaf.dtype), leaf.shape) for leaf in leaves), compression)
    return session.current().lasting_name(name, meaning)
