"""Collectives whose results have other shapes than their inputs: allgather, alltoall, reducescatter.

They are rare in training, so they run in Python, over byteps/_core/collectives.py: in a graph within tf.numpy_function,
one call after another, each in the place that it has in the program; what is grouped in one call, at once. In a
function that XLA compiles they are refused.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from byteps._core import abi, collectives, elements, session
from byteps._core.compression import checked_cast
from byteps._core.errors import UnsupportedError
from byteps._core.process_sets import ProcessSet, members_of, scoped
from byteps.tensorflow import names, xla
from byteps.tensorflow.compression import Compression
from byteps.tensorflow.exchange import check_device
from byteps.tensorflow.reduction import Op, Reduce

_LAST = "byteps_last_blocking_op"


def allgather(
    tensor: Any,
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: Optional[ProcessSet] = None,
) -> tf.Tensor:
    """The tensors of all ranks, one after another along the first dimension, in the order of ranks. They may differ
    in the first dimension. A scalar counts as one row. Differentiable."""
    return grouped_allgather([tensor], name, ignore_name_scope, process_set)[0]


def grouped_allgather(
    tensors: Sequence[Any],
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: Optional[ProcessSet] = None,
) -> List[tf.Tensor]:
    """allgather() of each, all at once."""
    del ignore_name_scope
    return _gather(tensors, name, process_set)[0] if tensors else []


def gather_to_sum(
    tensors: Sequence[Any], name: Optional[str] = None, process_set: Optional[ProcessSet] = None
) -> Tuple[List[tf.Tensor], tf.Tensor]:
    """grouped_allgather() of tensors that have as many rows each, and by how many a sum of these is divided for an
    average. Of a rank that is lost amid it there are the rows of all tensors, or of none."""
    outputs, _, there = _gather(tensors, name, process_set, True)
    return outputs, there


def _gather(
    tensors: Sequence[Any], name: Optional[str], process_set: Optional[ProcessSet], as_one: bool = False
) -> Tuple[List[tf.Tensor], List[tf.Tensor], tf.Tensor]:
    """The rows of each, how many of them are each rank's, and by how many an average is divided."""
    members = members_of(process_set)
    base = _base(name, "allgather", members)
    ranks = members or tuple(range(session.size()))

    @tf.custom_gradient
    def call(*values: tf.Tensor) -> Any:
        results = _run(
            lambda *given: _allgather(given[:-1], given[-1], members, as_one),
            values,
            base,
            [*(value.dtype for value in values), *[tf.int64] * len(values), tf.int64],
        )
        outputs, counts, there = results[: len(values)], results[len(values) : -1], results[-1]
        there.set_shape([])
        for value, gathered, rows in zip(values, outputs, counts):
            gathered.set_shape([None, *value.shape[1:]])
            rows.set_shape([len(ranks)])

        def gradient(*upstream: Optional[tf.Tensor]) -> List[Any]:
            """Every rank's rows have been used by all ranks: each gets the sum of what they say of its rows."""
            upstream = upstream[: len(values)]
            used = [index for index, each in enumerate(upstream) if each is not None]  # integers have none
            sums = Reduce.of("Sum", process_set=process_set).dense(
                [upstream[index] for index in used], _numbered(base + ".backward", len(used)), True
            )
            results: List[Any] = [None] * len(upstream)
            for index, total in zip(used, sums):
                results[index] = tf.split(total, counts[index])[ranks.index(session.rank())]
            return results

        return [*outputs, *counts, there], gradient

    results = call(*[_with_rows(tensor) for tensor in tensors])
    return list(results[: len(tensors)]), list(results[len(tensors) : -1]), results[-1]


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
            back, counts = alltoall(upstream, received, base + ".backward", process_set=process_set)
            return _in_place(back, counts, tf.cast(wanted, counts.dtype), count), None

        return (output, received), gradient

    output, received = call(tensor, wanted)
    return output if splits is None else (output, received)


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = None,
    op: Op = None,
    name: Optional[str] = None,
    process_set: Optional[ProcessSet] = None,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """The average (or what `op` says) over all ranks, of whose rows each rank gets its share: as even as can be, the
    first ranks one more. The average of integers is a float, as in push_pull(). Differentiable for Average and Sum."""
    return grouped_reducescatter(
        [tensor],
        device_dense,
        compression,
        op,
        process_set,
        prescale_factor,
        postscale_factor,
        name=name,
        ignore_name_scope=ignore_name_scope,
    )[0]


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = None,
    op: Op = None,
    process_set: Optional[ProcessSet] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
) -> List[tf.Tensor]:
    """reducescatter() of each, all at once."""
    del device_dense, ignore_name_scope
    compression = checked_cast(compression or Compression.none, "reducescatter()")
    reduction = Reduce.of(op, None, prescale_factor, postscale_factor, process_set, compression)
    packed = [reduction.compression.compress(_with_rows(tensor)) for tensor in tensors]
    if not packed:
        return []
    prepared = [reduction.of_integers(tensor) for tensor, _ in packed]
    parts = [part for _, part in prepared]
    for (tensor, _), part in zip(prepared, parts):
        elements.kind(np.dtype(tensor.dtype.as_numpy_dtype), part.what.operation)
    base = _base(name, "reducescatter", reduction.what.members)

    @tf.custom_gradient
    def call(*values: tf.Tensor) -> Any:
        outputs = _run(
            lambda *given: _reducescatter(given[:-1], given[-1], parts), values, base, [v.dtype for v in values]
        )
        for value, output in zip(values, outputs):
            output.set_shape([None, *value.shape[1:]])

        def gradient(*upstream: Optional[tf.Tensor]) -> List[Any]:
            if not reduction.is_linear:
                raise LookupError("byteps: minimum, maximum and product have no gradient")
            present = [each for each in upstream if each is not None]
            gathered = iter(grouped_allgather(present, base + ".backward", process_set=process_set))
            factor = reduction.factor(reduction.member_count)
            return [None if each is None else next(gathered) * tf.cast(factor, each.dtype) for each in upstream]

        return list(outputs), gradient

    results = call(*[tensor for tensor, _ in prepared])
    return [reduction.compression.decompress(result, context) for result, (_, context) in zip(results, packed)]


def _in_place(rows: tf.Tensor, counts: tf.Tensor, wanted: tf.Tensor, parts: int) -> tf.Tensor:
    """`rows`, of which counts[i] came from the i-th rank, with zeros where it gave none, because it is lost."""
    missing, tail = wanted - counts, tf.cast(tf.shape(rows)[1:], counts.dtype)
    pieces = []
    for index, part in enumerate(tf.split(rows, counts, num=parts)):
        pieces += [part, tf.zeros(tf.concat([missing[index : index + 1], tail], 0), rows.dtype)]
    return tf.concat(pieces, 0)


# ---- in Python


def _allgather(arrays: Sequence[np.ndarray], unique: str, members: Sequence[int], as_one: bool) -> List[np.ndarray]:
    """What _gather() says."""
    outputs = [_Output(array) for array in arrays]
    job = session.job()
    said = collectives.run_all(
        job,
        [
            collectives.allgather_for_average(job, name, _rows(array), output.allocate, members, once=True)
            for array, output, name in zip(arrays, outputs, _numbered(unique, len(arrays)))
        ],
        arrays,
        outputs,
    )
    rows, there = [output.array for output in outputs], said[0][1]
    counts = np.array([each for each, _ in said], np.int64)
    if as_one and (counts != counts[0]).any():
        is_whole = (counts == counts[0]).all(0)
        there -= int(((counts[0] > 0) & ~is_whole).sum())
        rows = [array[np.repeat(is_whole, count)] for array, count in zip(rows, counts)]
        counts = counts * is_whole
    return [*rows, *counts, np.array(there, np.int64)]


def _alltoall(array: np.ndarray, splits: np.ndarray, unique: str, members: Sequence[int]) -> List[np.ndarray]:
    output = _Output(array)
    job = session.job()
    plan = collectives.alltoall(job, unique, _rows(array), splits.tolist(), output.allocate, members, once=True)
    received = collectives.run(job, plan, array)
    return [output.array, np.array(received, np.int64)]


def _reducescatter(arrays: Sequence[np.ndarray], unique: str, parts: Sequence[Reduce]) -> List[np.ndarray]:
    job = session.job()
    outputs, plans = [], []
    for array, name, part in zip(arrays, _numbered(unique, len(arrays)), parts):
        ranks = part.what.members or tuple(range(job.size))
        share = collectives.scattered_counts(len(array), len(ranks))[ranks.index(job.rank)]
        output = np.empty((share, *array.shape[1:]), array.dtype)
        rows = _rows(array, part.what.operation)
        what = part.what._replace(once=True)
        plans.append(collectives.reducescatter(job, name, rows, output.ctypes.data, what))
        outputs.append(output)
    collectives.run_all(job, plans, arrays, outputs)
    return outputs


class _Output:
    """Memory for rows like those of `like`, when their number is known."""

    def __init__(self, like: np.ndarray) -> None:
        self._like = like
        self.array = np.empty((0, *like.shape[1:]), like.dtype)

    def allocate(self, count: int) -> int:
        self.array = np.empty((count, *self._like.shape[1:]), self._like.dtype)
        return int(self.array.ctypes.data)


def _rows(array: np.ndarray, operation: int = abi.BROADCAST) -> collectives.Rows:
    kind, width = elements.kind(array.dtype, operation)
    return collectives.Rows(kind, array.ctypes.data, len(array), elements.row_shape(array.shape, width))


def _numbered(name: str, count: int) -> List[str]:
    """A name for each of a group."""
    return [name] if count == 1 else [f"{name}[{index}]" for index in range(count)]


# ---- in a graph


def _run(
    function: Callable[..., List[np.ndarray]], tensors: Sequence[tf.Tensor], base: str, dtypes: Sequence[tf.DType]
) -> Sequence[tf.Tensor]:
    """function(*arrays, unique name) now, or as an op. Its name has a number for each run."""

    def call(*arrays: np.ndarray) -> List[np.ndarray]:
        contiguous = [np.ascontiguousarray(array).reshape(array.shape) for array in arrays]
        return function(*contiguous, "byteps." + session.current().unique_name(base))

    if tf.executing_eagerly():
        for tensor in tensors:
            check_device(tensor)
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
