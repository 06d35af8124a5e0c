"""Collectives whose results have other shapes than their inputs: allgather, alltoall, reducescatter.

They are rare in training, so they run in Python, over byteps/_core/collectives.py: in a graph within tf.numpy_function,
one after another, each in the place that it has in the program. In a function that XLA compiles they are refused.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from byteps._core import abi, collectives, session
from byteps._core.errors import UnsupportedError
from byteps._core.process_sets import ProcessSet, members_of, scoped
from byteps.tensorflow import names, xla
from byteps.tensorflow.ops import Op, Reduce

_KINDS = {
    "float32": abi.FLOAT32,
    "float64": abi.FLOAT64,
    "float16": abi.FLOAT16,
    "bfloat16": abi.BFLOAT16,
    "int8": abi.INT8,
    "int16": abi.INT16,
    "int32": abi.INT32,
    "int64": abi.INT64,
    "uint8": abi.UINT8,
    "uint16": abi.UINT16,
    "uint32": abi.UINT32,
    "uint64": abi.UINT64,
    "bool": abi.BOOL,
}
_LAST = "byteps_last_blocking_op"


def allgather(
    tensor: Any,
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: Optional[ProcessSet] = None,
) -> tf.Tensor:
    """The tensors of all ranks, one after another along the first dimension, in the order of ranks. They may differ
    in the first dimension. A scalar counts as one row. Differentiable."""
    del ignore_name_scope
    tensor = _with_rows(tensor)
    members = members_of(process_set)
    base = _base(name, "allgather", members)
    ranks = members or tuple(range(session.size()))

    @tf.custom_gradient
    def call(value: tf.Tensor) -> Any:
        gathered, counts = _run(
            lambda array, unique: _allgather(array, unique, members), [value], base, [value.dtype, tf.int64]
        )
        gathered.set_shape([None, *value.shape[1:]])
        counts.set_shape([len(ranks)])

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            """Every rank's rows have been used by all ranks: each gets the sum of what they say of its rows."""
            total = Reduce.of("Sum", process_set=process_set).dense([upstream], [base + ".backward"], True)[0]
            return tf.split(total, counts)[ranks.index(session.rank())]

        return gathered, gradient

    return call(tensor)


def grouped_allgather(
    tensors: Sequence[Any],
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: Optional[ProcessSet] = None,
) -> List[tf.Tensor]:
    """allgather() of each."""
    return [
        allgather(tensor, name and f"{name}.{i}", ignore_name_scope, process_set) for i, tensor in enumerate(tensors)
    ]


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: Optional[ProcessSet] = None,
) -> Any:
    """Rank i gets splits[i] rows of this rank's tensor; what comes stands in the order of ranks. Without splits the
    rows are divided evenly, and the result is the tensor alone; with them it is (tensor, rows received from each rank).
    Differentiable."""
    del ignore_name_scope
    tensor = _with_rows(tensor)
    members = members_of(process_set)
    base = _base(name, "alltoall", members)
    count = len(members) or session.size()
    if splits is None:
        rows = tf.shape(tensor)[0]
        tf.debugging.assert_equal(rows % count, 0, f"alltoall without splits: {count} ranks must divide the rows")
        wanted = tf.fill([count], rows // count)
    else:
        wanted = tf.convert_to_tensor(splits)

    @tf.custom_gradient
    def call(value: tf.Tensor, wanted: tf.Tensor) -> Any:
        output, received = _run(
            lambda array, sizes, unique: _alltoall(array, sizes, unique, members),
            [value, tf.cast(wanted, tf.int64)],
            base,
            [value.dtype, tf.int64],
        )
        output.set_shape([None, *value.shape[1:]])
        received.set_shape([count])
        received = tf.cast(received, wanted.dtype)

        def gradient(upstream: tf.Tensor, _: tf.Tensor) -> Any:
            back, _ = alltoall(upstream, received, base + ".backward", process_set=process_set)
            return back, None

        return (output, received), gradient

    output, received = call(tensor, wanted)
    return output if splits is None else (output, received)


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = None,
    op: Op = None,
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: Optional[ProcessSet] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """The average (or what `op` says) over all ranks, of whose rows each rank gets its share: as even as can be, the
    first ranks one more. Not for averages of integers. Differentiable for Average and Sum."""
    del device_dense, ignore_name_scope
    from byteps.tensorflow.compression import Compression

    reduction = Reduce.of(op, None, prescale_factor, postscale_factor, process_set, compression or Compression.none)
    tensor = _with_rows(tensor)
    if reduction.operation == abi.AVERAGE and (tensor.dtype.is_integer or tensor.dtype.is_bool):
        raise ValueError(f"reducescatter: the average of {tensor.dtype.name} is not supported; use op=Sum")
    base = _base(name, "reducescatter", reduction.members)

    @tf.custom_gradient
    def call(value: tf.Tensor) -> Any:
        (output,) = _run(
            lambda array, unique: _reducescatter(array, unique, reduction), [value], base, [value.dtype]
        )
        output.set_shape([None, *value.shape[1:]])

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            if not reduction.is_linear:
                raise LookupError("byteps: minimum, maximum and product have no gradient")
            factor = reduction.scale or 1.0
            if reduction.operation == abi.AVERAGE:
                factor /= reduction.member_count
            gathered = allgather(upstream, base + ".backward", process_set=process_set)
            return gathered * tf.cast(factor, upstream.dtype)

        return output, gradient

    packed, context = reduction.compression.compress(tensor)
    return reduction.compression.decompress(call(packed), context)


def grouped_reducescatter(tensors: Sequence[Any], *args: Any, name: Optional[str] = None, **kwargs: Any) -> List[Any]:
    """reducescatter() of each."""
    return [
        reducescatter(tensor, *args, name=name and f"{name}.{i}", **kwargs) for i, tensor in enumerate(tensors)
    ]


# ---- in Python


def _allgather(array: np.ndarray, unique: str, members: Sequence[int]) -> List[np.ndarray]:
    output = _Output(array)
    plan = collectives.allgather(session.job(), unique, _rows(array), output.allocate, members, once=True)
    counts = collectives.run(session.job(), plan, array)
    return [output.array, np.array(counts, np.int64)]


def _alltoall(array: np.ndarray, splits: np.ndarray, unique: str, members: Sequence[int]) -> List[np.ndarray]:
    output = _Output(array)
    job = session.job()
    plan = collectives.alltoall(job, unique, _rows(array), splits.tolist(), output.allocate, members, once=True)
    received = collectives.run(job, plan, array)
    return [output.array, np.array(received, np.int64)]


def _reducescatter(array: np.ndarray, unique: str, reduction: Reduce) -> List[np.ndarray]:
    job = session.job()
    ranks = reduction.members or tuple(range(job.size))
    share = collectives.scattered_counts(len(array), len(ranks))[ranks.index(job.rank)]
    output = np.empty((share, *array.shape[1:]), array.dtype)
    rows = _rows(array)
    plan = collectives.reducescatter(
        *(job, unique, rows, output.ctypes.data, reduction.operation, reduction.scale, reduction.members), once=True
    )
    collectives.run(job, plan, array, output)
    return [output]


class _Output:
    """Memory for rows like those of `like`, when their number is known."""

    def __init__(self, like: np.ndarray) -> None:
        self._like = like
        self.array = np.empty((0, *like.shape[1:]), like.dtype)

    def allocate(self, count: int) -> int:
        self.array = np.empty((count, *self._like.shape[1:]), self._like.dtype)
        return int(self.array.ctypes.data)


def _rows(array: np.ndarray) -> collectives.Rows:
    elements = int(np.prod(array.shape[1:], dtype=np.int64))
    kind = _KINDS.get(array.dtype.name)
    if kind is None:
        kind, elements = abi.UINT8, elements * array.dtype.itemsize
    return collectives.Rows(kind, array.ctypes.data, len(array), elements)


# ---- in a graph


def _run(
    function: Callable[..., List[np.ndarray]], tensors: Sequence[tf.Tensor], base: str, dtypes: Sequence[tf.DType]
) -> Sequence[tf.Tensor]:
    """function(*arrays, unique name) now, or as an op. Its name has a number for each run."""

    def call(*arrays: np.ndarray) -> List[np.ndarray]:
        contiguous = [np.ascontiguousarray(array).reshape(array.shape) for array in arrays]
        return function(*contiguous, "byteps." + session.current().unique_name(base))

    if tf.executing_eagerly():
        return [tf.constant(array, dtype) for array, dtype in zip(call(*[t.numpy() for t in tensors]), dtypes)]
    if xla.is_compiling():
        raise UnsupportedError(
            f"{base}: within jit_compile=True only push_pull and broadcast are supported; use jit_compile=False"
        )
    with tf.control_dependencies(_blocking_ops_before()):
        results = tf.numpy_function(call, tensors, list(dtypes))
    _note_blocking_op(results[0].op)
    return results


def _blocking_ops_before() -> List[tf.Operation]:
    """Those that wait must wait in the same order on all ranks. A tf.function sees to that by itself, a v1 graph
    not."""
    graph = tf.compat.v1.get_default_graph()
    return [] if graph.building_function else graph.get_collection(_LAST)


def _note_blocking_op(op: tf.Operation) -> None:
    graph = tf.compat.v1.get_default_graph()
    if not graph.building_function:
        graph.get_collection_ref(_LAST)[:] = [op]


def _with_rows(tensor: Any) -> tf.Tensor:
    tensor = tf.convert_to_tensor(tensor)
    if tensor.dtype in (tf.string, tf.resource, tf.variant):
        raise ValueError(f"Tensor type {tensor.dtype.name} is not supported.")
    return tf.reshape(tensor, [1]) if tensor.shape.rank == 0 else tensor


def _base(name: Optional[str], kind: str, members: Tuple[int, ...]) -> str:
    return scoped(names.automatic(kind) if name is None else names.lasting(names.given(name)), members)
