"""Keras on TensorFlow: gradients are averaged by byteps.tensorflow: in a graph each as soon as it is computed, in eager
code all at once, under XLA (jit_compile=True) by custom calls."""

from __future__ import annotations

from typing import Any, Callable, List, Sequence

import tensorflow as tf

from byteps._keras.exchange import GradientExchange, Slot
from byteps.tensorflow import names, sparse, xla
from byteps.tensorflow.compression import Compression
from byteps.tensorflow.reduction import Reduce

__all__ = ["Compression", "before_backward", "push_pull", "scaled", "when"]


def push_pull(slots: Sequence[Slot], exchange: GradientExchange) -> List[Any]:
    """The combined gradients, in the order of `slots`; None stays None. tf.IndexedSlices are gathered, unless
    sparse_as_dense says otherwise, and always made dense under XLA."""
    reduction = Reduce.of(exchange.op, process_set=exchange.process_set, compression=exchange.compression)
    as_dense = exchange.sparse_as_dense or xla.is_compiling()
    factor = exchange.factor * exchange.predivide
    results: List[Any] = [None] * len(slots)
    dense: List[int] = []
    for index, slot in enumerate(slots):
        if slot.gradient is None:
            continue
        if isinstance(slot.gradient, tf.IndexedSlices) and not as_dense:
            summed = sparse.push_pull(slot.gradient, reduction, slot.name)
            results[index] = _scaled(summed, exchange.factor)
        else:
            dense.append(index)
    chosen = [slots[index] for index in dense]
    tensors = [_scaled(tf.convert_to_tensor(slot.gradient), 1.0 / exchange.predivide) for slot in chosen]
    wire_names = [names.without_scope(slot.name) for slot in chosen]
    reduced = reduction.dense(tensors, wire_names, False, [slot.priority for slot in chosen])
    for index, result in zip(dense, reduced):
        results[index] = _scaled(result, factor)
    return results


def before_backward(exchange: GradientExchange) -> None:
    """Nothing to do: push_pull() is part of the compiled step."""
    del exchange


def when(condition: Any, combine: Callable[[List[Any]], List[Any]], gradients: List[Any]) -> List[Any]:
    """combine(gradients) if the condition holds, else `gradients`. Here Keras asks only when it does hold."""
    del condition
    return combine(gradients)


def scaled(gradients: Sequence[Any], factor: float) -> List[Any]:
    """Each times `factor`, tf.IndexedSlices too; None stays."""
    return [None if gradient is None else _scaled(gradient, factor) for gradient in gradients]


def _scaled(gradient: Any, factor: float) -> Any:
    if factor == 1.0:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_scaled(gradient.values, factor), gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)
