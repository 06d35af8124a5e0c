"""push_pull under Horovod's names, and what is asked when a graph runs."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Type

import numpy as np
import tensorflow as tf

from byteps._core import horovod, session
from byteps._core.errors import UnsupportedError
from byteps._core.process_sets import ProcessSet, process_set_by_id
from byteps.tensorflow import names, native, xla
from byteps.tensorflow.compression import Compression, Compressor
from byteps.tensorflow.ops import push_pull
from byteps.tensorflow.reduction import Op, Reduce

__all__ = [
    "allreduce",
    "grouped_allreduce",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "size_op",
]


def allreduce(
    tensor: Any,
    average: Optional[bool] = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Type[Compressor] = Compression.none,
    op: Op = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: Optional[str] = None,
    process_set: Optional[ProcessSet] = None,
    ignore_name_scope: bool = False,
) -> Any:
    """push_pull() with Horovod's order of arguments. `ignore_name_scope` is accepted for compatibility."""
    del ignore_name_scope
    return push_pull(
        tensor,
        average=average,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        op=op,
        name=name,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
    )


def grouped_allreduce(
    tensors: Sequence[Any],
    average: Optional[bool] = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Type[Compressor] = Compression.none,
    op: Op = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Optional[ProcessSet] = None,
    ignore_name_scope: bool = False,
    name: Optional[str] = None,
) -> List[tf.Tensor]:
    """allreduce() of many tensors at once, in eager code with one op."""
    del device_dense, device_sparse, ignore_name_scope
    reduction = Reduce.of(op, average, prescale_factor, postscale_factor, process_set, compression)
    base = names.automatic("grouped_allreduce") if name is None else names.lasting(names.given(name))
    converted = [tf.convert_to_tensor(tensor) for tensor in tensors]
    return reduction.dense(converted, [f"{base}.{i}" for i in range(len(converted))], name is None)


def join(name: Optional[str] = None) -> tf.Tensor:
    """This rank has no more inputs: until all ranks have called it, it contributes nothing to the sums and averages of
    the others. The rank that called it last, as an int32 tensor. In a tf.function it comes after the exchanges that
    stand before it, and should be the last; in a v1 graph the session runs it by itself."""
    if tf.executing_eagerly():
        return tf.constant(horovod.join(), tf.int32)
    if xla.is_compiling():
        raise UnsupportedError("join within jit_compile=True is not supported: call it outside of the function")
    graph = tf.compat.v1.get_default_graph()
    before = [op for op in graph.get_operations() if op.type == native.OP_NAME] if graph.building_function else []
    with tf.control_dependencies(before):
        return _asked(horovod.join, name)


# ---- asked when a graph runs, not when it is built


def size_op(process_set_id: int = 0, name: Optional[str] = None) -> tf.Tensor:
    """The number of ranks in the process set, as an int32 tensor."""
    return _asked(lambda: process_set_by_id(process_set_id).size(), name)


def rank_op(name: Optional[str] = None) -> tf.Tensor:
    """rank() as an int32 tensor."""
    return _asked(session.rank, name)


def local_size_op(name: Optional[str] = None) -> tf.Tensor:
    """local_size() as an int32 tensor."""
    return _asked(session.local_size, name)


def local_rank_op(name: Optional[str] = None) -> tf.Tensor:
    """local_rank() as an int32 tensor."""
    return _asked(session.local_rank, name)


def process_set_included_op(process_set_id: int = 0, name: Optional[str] = None) -> tf.Tensor:
    """1 when this rank is in the process set, else 0, as an int32 tensor."""
    return _asked(lambda: int(process_set_by_id(process_set_id).included()), name)


def _asked(question: Callable[[], int], name: Optional[str]) -> tf.Tensor:
    answer = tf.numpy_function(lambda: np.int32(question()), [], tf.int32, name=name)
    answer.set_shape([])
    return answer
