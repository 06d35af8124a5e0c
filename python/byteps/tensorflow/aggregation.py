"""backward_passes_per_step: gradients of several passes are summed here, and travel after the last of them."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Set

import tensorflow as tf


class Aggregator:
    """Sums gradients in variables of its own. Works in eager code, in a tf.function and in a v1 graph, where its
    variables are made with the first call and are global ones.

    passes: so many calls of aggregate() make one step. average: the sum is divided by that number."""

    def __init__(self, passes: int, average: bool = False) -> None:
        self._passes = passes
        self._average = average
        self._counter: Optional[tf.Variable] = None
        self._sums: List[tf.Variable] = []
        self._seen: Set[int] = set()  # which gradients have been there
        self._is_last: Any = None

    def aggregate(
        self, gradients: Sequence[Any], variables: Sequence[Any], reduce: Callable[[List[Any]], List[Any]]
    ) -> List[Any]:
        """Adds the gradients. At the last pass of a step: reduce(sums), and the sums begin at zero again; before: the
        sums, which apply() ignores. A gradient that is None stays None until it is there once; from then on it counts
        as zeros. tf.IndexedSlices are made dense."""
        self._make_variables(gradients, variables)
        assert self._counter is not None
        self._seen |= {index for index, gradient in enumerate(gradients) if gradient is not None}
        present = sorted(self._seen)
        sums = [self._sums[index] for index in present]
        added = [
            total.assign_add(tf.convert_to_tensor(gradients[index]))
            for total, index in zip(sums, present)
            if gradients[index] is not None
        ]
        with tf.control_dependencies(_operations([*added, self._counter.assign_add(1)])):
            self._is_last = tf.equal(self._counter.read_value() % self._passes, 0)
            here = [tf.identity(total.read_value()) for total in sums]

        def last() -> List[tf.Tensor]:
            scaled = [total / tf.cast(self._passes, total.dtype) for total in here] if self._average else here
            reduced = reduce(_spread(scaled, present, len(gradients)))
            reduced = [tf.convert_to_tensor(reduced[index]) for index in present]
            with tf.control_dependencies(_operations(reduced)):
                cleared = [total.assign(tf.zeros_like(total)) for total in sums]
            with tf.control_dependencies(_operations(cleared)):
                return [tf.identity(value) for value in reduced]

        results = tf.cond(self._is_last, last, lambda: [tf.identity(total) for total in here]) if present else []
        if not isinstance(results, (list, tuple)):
            results = [results]
        return _spread(list(results), present, len(gradients))

    def apply(self, update: Callable[[], Any]) -> Any:
        """update() if the last aggregate() ended a step."""

        def updated() -> tf.Tensor:
            done = update()
            with tf.control_dependencies(_operations([done])):
                return tf.constant(True)

        result = tf.cond(self._is_last, updated, lambda: tf.constant(False))
        return result if tf.executing_eagerly() else result.op

    def _make_variables(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """All at the first call, the only one in which a tf.function may make any: also for gradients that may come."""
        if self._counter is not None:
            return
        with tf.init_scope():
            self._counter = tf.Variable(0, trainable=False, dtype=tf.int64, name="byteps_passes")
            for gradient, variable in zip(gradients, variables):
                dtype = tf.as_dtype(variable.dtype if gradient is None else gradient.dtype)
                self._sums.append(tf.Variable(tf.zeros(variable.shape, dtype), trainable=False))


def _spread(values: List[Any], places: List[int], count: int) -> List[Any]:
    result: List[Any] = [None] * count
    for place, value in zip(places, values):
        result[place] = value
    return result


def _operations(values: Sequence[Any]) -> List[Any]:
    return [] if tf.executing_eagerly() else [value for value in values if value is not None]
