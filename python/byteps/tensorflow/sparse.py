"""tf.IndexedSlices: gradients of embeddings, as rows and where they belong.

The rows of all workers are gathered: the result has as many as all of them together, and where two workers speak of one
row it occurs twice, which optimizers add up. Cheaper than a dense tensor when the rows are few.
"""

from __future__ import annotations

from typing import Optional

import tensorflow as tf

from byteps._core.compression import check_element
from byteps._core.process_sets import ProcessSet
from byteps.tensorflow import names, xla
from byteps.tensorflow.gather import gather_to_sum
from byteps.tensorflow.reduction import Reduce


def push_pull(
    slices: tf.IndexedSlices,
    reduction: Reduce,
    name: Optional[str] = None,
    scope: str = "",
) -> tf.IndexedSlices:
    """Sum or Average; ValueError for others. Under XLA, whose shapes are fixed, a dense tensor."""
    if not reduction.is_linear:
        raise ValueError("tf.IndexedSlices can be summed and averaged only; pass tf.convert_to_tensor(slices)")
    check_element(reduction.compression, name or "push_pull", slices.dtype.name, is_dense=xla.is_compiling())
    base = names.automatic("push_pull.sparse", scope) if name is None else names.given(name, scope)
    if xla.is_compiling():
        return reduction.dense([tf.convert_to_tensor(slices)], [base], name is None)[0]
    process_set = ProcessSet(reduction.what.members) if reduction.what.members else None
    values, context = reduction.compression.compress(slices.values)
    (values, indices), there = gather_to_sum([values, slices.indices], base, process_set)
    values = reduction.compression.decompress(values, context)
    if reduction.is_average or reduction.what.scale:
        values = values * tf.cast(reduction.factor(there), values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)
