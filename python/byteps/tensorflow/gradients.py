"""Gradients of one step: reduced over all workers, named after their variables.

What DistributedGradientTape and every DistributedOptimizer have in common.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Optional, Sequence, Type

import tensorflow as tf

from byteps._core import session
from byteps._core.choices import gradient_compression
from byteps._core.compression import momentum_of
from byteps._core.process_sets import ProcessSet, is_member
from byteps._core.reduction import Average, ReduceOp
from byteps.tensorflow import names, sparse, xla
from byteps.tensorflow.compression import Compression, Compressor
from byteps.tensorflow.reduction import Op, Reduce


def reduce_gradients(
    gradients: Sequence[Any],
    variables: Sequence[Any],
    *,
    op: Op = Average,
    compression: Type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    process_set: Optional[ProcessSet] = None,
    prefix: str = "Gradient",
    local: Iterable[Any] = (),
    scale_local_gradients: bool = True,
    compression_params: Optional[Dict[str, Any]] = None,
) -> List[Any]:
    """The gradients (tensors, tf.IndexedSlices or None) reduced over all workers, in the same order. The first
    variables, which the next forward pass needs first, go first. Eager, in a graph and under XLA.

    variables: what the gradients are of, for their names; the same list on all ranks. A gradient that is None here must
        be None on all ranks.
    compression, compression_params: what travels, by one of Compression or as the original says it.
    sparse_as_dense: IndexedSlices are made dense first; otherwise their rows are gathered. Under XLA always.
    gradient_predivide_factor: as in Horovod, for Average only. It splits the division to keep sums of small floats in
        range; servers sum 16 bits in 32, so the result is the average, whatever it is.
    process_set: the ranks that train together. On the others the gradients stay as they are.
    local: variables that belong to this rank alone. Their gradients do not travel; scale_local_gradients divides them
        by the number of ranks, so that they weigh as they would in the average."""
    if gradient_predivide_factor != 1.0 and ReduceOp(op) is not Average:
        raise ValueError("gradient_predivide_factor is supported for op=Average only")
    check_reduction(op, process_set)
    results = list(gradients)
    compression = gradient_compression(compression, Compression, compression_params, process_set=process_set)
    if not is_member(process_set) or (session.job().is_alone and momentum_of(compression) is None):
        return results
    reduction = Reduce.of(op, process_set=process_set, compression=compression)
    owned = {_key(variable) for variable in local}
    all_names = names.of_variables(prefix, variables, reduction.what.members)
    dense: List[int] = []
    for index, (gradient, variable) in enumerate(zip(gradients, variables)):
        if gradient is None:
            continue
        if _key(variable) in owned:
            if scale_local_gradients:
                results[index] = _scaled(gradient, 1.0 / reduction.member_count)
        elif not isinstance(gradient, tf.IndexedSlices):
            dense.append(index)
        elif sparse_as_dense or xla.is_compiling() or not reduction.is_linear:
            results[index] = tf.convert_to_tensor(gradient)
            dense.append(index)
        else:
            results[index] = sparse.push_pull(gradient, reduction, all_names[index])
    reduced = reduction.dense(
        [tf.convert_to_tensor(results[index]) for index in dense],
        [all_names[index] for index in dense],
        False,
        [-index for index in dense],
    )
    for index, result in zip(dense, reduced):
        results[index] = result
    return results


def check_reduction(op: Op, process_set: Optional[ProcessSet]) -> None:
    """ValueError: a wrong argument. A rank that is not in the process set may ask too."""
    Reduce.of(op, process_set=process_set if is_member(process_set) else None)


def _key(variable: Any) -> Any:
    inner = getattr(variable, "value", None)  # a Keras 3 variable holds one of TensorFlow's
    return id(inner) if isinstance(inner, tf.Variable) else id(variable)


def _scaled(gradient: Any, factor: float) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_scaled(gradient.values, factor), gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)
