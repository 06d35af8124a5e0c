"""push_pull and broadcast: eager, in a tf.function, in a v1 graph, and in what XLA compiles.

A tensor is its name: what belongs together has the same name on all ranks, and the same shape and dtype each time.
Without a name an operation is numbered (names.py), and may have another shape each time.
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence, Type, Union

import tensorflow as tf

from byteps._core import abi, errors, session
from byteps._core.compression import checked_compression
from byteps._core.process_sets import ProcessSet, check_root, members_of, scoped
from byteps._core.reduction import ReduceOp, resolve
from byteps.tensorflow import names, native, xla
from byteps.tensorflow.compression import Compression, Compressor
from byteps.tensorflow.native import Exchange

DTYPES = (
    *(tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int8, tf.int16, tf.int32, tf.int64),
    *(tf.uint8, tf.uint16, tf.uint32, tf.uint64, tf.bool, tf.complex64, tf.complex128),
)


Op = Union[ReduceOp, str, None]


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
        from byteps.tensorflow import sparse

        return sparse.push_pull(tensor, reduction, name, scope)
    return reduction.dense([tf.convert_to_tensor(tensor)], *_named(name, "push_pull", scope), [priority])[0]


class Reduce(NamedTuple):
    """A reduction whose arguments have been checked."""

    operation: int
    scale: float
    members: "tuple[int, ...]"
    member_count: int
    compression: Type[Compressor]
    factors: "tuple[float, float]" = (1.0, 1.0)  # before and after the reduction; `scale` is both

    @classmethod
    def of(
        cls,
        op: Op = None,
        average: Optional[bool] = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: Optional[ProcessSet] = None,
        compression: Type[Compressor] = Compression.none,
    ) -> "Reduce":
        resolved = resolve(op, average, prescale_factor, postscale_factor)
        checked_compression(compression)
        members = members_of(process_set)
        member_count, factors = len(members) or session.size(), (prescale_factor, postscale_factor)
        return cls(resolved.operation, resolved.scale, members, member_count, compression, factors)

    @property
    def is_linear(self) -> bool:
        """Average or Sum."""
        return self.operation in (abi.AVERAGE, abi.SUM)

    def sum(self) -> "Reduce":
        """For averages of integers: the sum as it is, of which mean() makes the average."""
        return self._replace(operation=abi.SUM, scale=0.0, factors=(1.0, 1.0))

    def of_integers(self, tensor: tf.Tensor) -> "tuple[tf.Tensor, Reduce]":
        """What is reduced, and how: integers are multiplied by the first factor here, on each rank, towards zero, as
        Horovod does. Other tensors as they are."""
        before, after = self.factors
        if not tensor.dtype.is_integer or before == 1.0:
            return tensor, self
        scaled = tf.cast(tf.cast(tensor, tf.float64) * before, tensor.dtype)
        return scaled, self._replace(scale=0.0 if after == 1.0 else after, factors=(1.0, after))

    def mean(self, total: tf.Tensor) -> tf.Tensor:
        """The average of integers whose sum this is, as a float."""
        result = tf.math.truediv(total, tf.cast(self.member_count, total.dtype))
        return result * tf.cast(self.scale, result.dtype) if self.scale else result

    def dense(
        self, tensors: Sequence[tf.Tensor], names_: Sequence[str], once: bool, priorities: Sequence[int] = ()
    ) -> List[tf.Tensor]:
        """All of them at once."""
        what = Exchange(self.operation, 0, self.scale, self.members, once)
        if self.operation == abi.AVERAGE:
            for tensor in tensors:
                if tensor.dtype == tf.bool:
                    raise ValueError("the average of a bool tensor is not defined; op=Sum gives the logical or")
        if self.operation == abi.AVERAGE or self.factors[0] != 1.0:
            if any(tensor.dtype.is_integer for tensor in tensors):
                return self._of_integers_too(tensors, names_, once, priorities)
        packed = [self.compression.compress(tensor) for tensor in tensors]
        results = exchange([tensor for tensor, _ in packed], names_, what, priorities)
        return [self.compression.decompress(result, context) for result, (_, context) in zip(results, packed)]

    def _of_integers_too(
        self, tensors: Sequence[tf.Tensor], names_: Sequence[str], once: bool, priorities: Sequence[int]
    ) -> List[tf.Tensor]:
        results: List[Optional[tf.Tensor]] = [None] * len(tensors)
        for is_integer in (False, True):
            chosen = [i for i, tensor in enumerate(tensors) if tensor.dtype.is_integer == is_integer]
            if not chosen:
                continue
            prepared = [self.of_integers(tensors[i]) for i in chosen]
            part = prepared[0][1]
            is_average = is_integer and self.operation == abi.AVERAGE
            order = [priorities[i] for i in chosen] if priorities else []
            found = (part.sum() if is_average else part).dense(
                [tensor for tensor, _ in prepared], [names_[i] for i in chosen], once, order
            )
            for i, result in zip(chosen, found):
                results[i] = part.mean(result) if is_average else result
        return [result for result in results if result is not None]


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
    return exchange(tensors, names_, Exchange(abi.BROADCAST, check_root(root_rank, members), 0.0, members, once))


def exchange(
    tensors: Sequence[tf.Tensor], names_: Sequence[str], what: Exchange, priorities: Sequence[int] = ()
) -> List[tf.Tensor]:
    """All of them at once. Eager: in one op, because TensorFlow waits for each eager op; in a graph: an op for each,
    which starts as soon as its tensor is there."""
    session.job()
    for name in names_:
        names.given(name)
    for tensor in tensors:
        _check_dtype(tensor)
    if not tensors:
        return []
    names_ = [scoped(name, what.members) for name in names_]
    if tf.executing_eagerly():
        return native.push_pull(tensors, names_, what, priorities)
    order = priorities or [0] * len(tensors)
    if xla.is_compiling():
        return [_compiled(*item, what) for item in zip(tensors, names_, order)]
    return [native.push_pull([tensor], [name], what, [rank])[0] for tensor, name, rank in zip(tensors, names_, order)]


def _compiled(tensor: tf.Tensor, name: str, priority: int, what: Exchange) -> tf.Tensor:
    backward_name = names.lasting(name + ".backward")

    @tf.custom_gradient
    def call(value: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            return _gradients([upstream], [backward_name], what)[0]

        return xla.push_pull(value, name, what, priority), gradient

    return call(tensor)


@tf.RegisterGradient(native.OP_NAME)
def _gradient_of_op(op: tf.Operation, *upstream: Optional[tf.Tensor]) -> List[tf.Tensor]:
    filled = [tf.zeros_like(out) if grad is None else grad for grad, out in zip(upstream, op.outputs)]
    backward_names = [names.lasting(name + ".backward") for name in native.names_of(op)]
    return _gradients(filled, backward_names, native.exchange_of(op))


def _gradients(upstream: Sequence[tf.Tensor], names_: Sequence[str], what: Exchange) -> List[tf.Tensor]:
    """The gradient of a sum is the sum of the gradients, so all ranks must compute it."""
    if what.operation in (abi.SUM, abi.AVERAGE):
        return exchange(upstream, names_, what)
    if what.operation != abi.BROADCAST:
        raise LookupError("byteps: only sums, averages and broadcasts have a gradient; Min, Max and Product have none")
    sums = exchange(upstream, names_, what._replace(operation=abi.SUM))
    if session.job().rank == what.root:
        return sums
    return [tf.zeros_like(value) for value in sums]


def _check_dtype(tensor: tf.Tensor) -> None:
    if tensor.dtype.base_dtype not in DTYPES:
        supported = ", ".join(dtype.name for dtype in DTYPES)
        raise ValueError(f"Tensor type {tensor.dtype.name} is not supported. These are: {supported}.")
