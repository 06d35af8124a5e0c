"""push_pull and broadcast: eager, in a tf.function, in a v1 graph, and in what XLA compiles.

A tensor is its name: what belongs together has the same name on all ranks, and the same shape and dtype each time.
Without a name an operation is numbered (names.py), and may have another shape each time.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Type

import tensorflow as tf

from byteps._core import abi, errors
from byteps._core.exchange import Exchange
from byteps._core.process_sets import ProcessSet, check_root, members_of
from byteps.tensorflow import names, sparse
from byteps.tensorflow.compression import Compression, Compressor
from byteps.tensorflow.exchange import exchange
from byteps.tensorflow.reduction import Op, Reduce


def push_pull(
    tensor: Any,
    scope: str = "",
    average: Optional[bool] = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Type[Compressor] = Compression.none,
    op: Op = None,
    enable_async: bool = False,
    *,
    name: Optional[str] = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Optional[ProcessSet] = None,
) -> Any:
    """The average (or what `op` says: Sum, Min, Max, Product) of `tensor` over all workers, in a new tensor of its
    shape.
    Differentiable: all ranks must then compute the gradient.

    The average of integers is a float, as TensorFlow divides. The sum of bools is the logical or. tf.IndexedSlices: the
    slices of all workers, gathered (sparse.py), for Average and Sum.

    name: the same on all ranks for what belongs together; with it, shape and dtype stay the same each time. scope:
    stands
        before it. Without a name: see names.py.
    priority: larger goes earlier.
    prescale_factor, postscale_factor: the result is multiplied by both. Integers are multiplied by the first on each
        rank, before they are added, and rounded towards zero there.
    process_set: the ranks that take part; only they may call.
    device_dense, device_sparse: accepted for compatibility; the exchange itself is made by the CPU.

    ValueError: a wrong argument. tf.errors.InvalidArgumentError: ranks disagree about the tensor, on all of them.
    tf.errors.AbortedError: a member of the job is gone."""
    del device_dense, device_sparse
    if enable_async:
        raise errors.UnsupportedError("enable_async: asynchronous training is not supported in this version")
    reduction = Reduce.of(op, average, prescale_factor, postscale_factor, process_set, compression)
    if isinstance(tensor, tf.IndexedSlices):
        return sparse.push_pull(tensor, reduction, name, scope)
    return reduction.dense([tf.convert_to_tensor(tensor)], *_named(name, "push_pull", scope), [priority])[0]


def _named(name: Optional[str], kind: str, scope: str) -> "tuple[List[str], bool]":
    """The name, and whether it is numbered by run."""
    if name is None:
        return [names.automatic(kind, scope)], True
    return [names.lasting(names.given(name, scope))], False


def broadcast(
    tensor: Any,
    root_rank: int,
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: Optional[ProcessSet] = None,
    *,
    scope: str = "",
    is_variable: bool = True,
) -> tf.Tensor:
    """The root's values, in a new tensor on all ranks; the others' values do not matter, only shape and dtype do.
    `ignore_name_scope` and `is_variable` are accepted for compatibility. Differentiable: the root gets the sum of the
    gradients, others zeros. TypeError: the arguments stand in the order of the original BytePS, (tensor, root_rank,
    scope, name, is_variable)."""
    del is_variable
    if isinstance(ignore_name_scope, str):
        raise TypeError(
            "broadcast: the arguments after root_rank stand in Horovod's order, (name, ignore_name_scope, "
            f"process_set); write scope={name!r}, name={ignore_name_scope!r} for those of the original BytePS"
        )
    return broadcast_all([tf.convert_to_tensor(tensor)], root_rank, *_named(name, "broadcast", scope), process_set)[0]


def broadcast_all(
    tensors: Sequence[tf.Tensor],
    root_rank: int,
    names_: Sequence[str],
    once: bool,
    process_set: Optional[ProcessSet] = None,
) -> List[tf.Tensor]:
    """broadcast() of many tensors at once."""
    members = members_of(process_set)
    what = Exchange(abi.BROADCAST, root=check_root(root_rank, members), members=members, once=once)
    return exchange(tensors, names_, what)
