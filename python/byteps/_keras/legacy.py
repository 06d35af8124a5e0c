"""A Keras 2 optimizer (tf_keras, or tf.keras of TensorFlow 2.15 and older) of the user's own class that averages
gradients over all workers.

Gradients are averaged where Keras 2 sums those of the replicas of tf.distribute: before clipping and weight decay. As
in optimizer.py, the class has the name and module of the wrapped one, so that a saved model loads where there is no
byteps.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Optional, Tuple

import tensorflow as tf

from byteps._core.mixed import Wrapped
from byteps._keras import tensorflow_backend
from byteps._keras.exchange import GradientExchange, check_optimizer
from byteps.tensorflow.aggregation import Aggregator

_classes: Dict[type, type] = {}


def is_legacy(optimizer: Any) -> bool:
    """An optimizer of Keras 2; those of Keras 3 have stateless_apply()."""
    methods = ("apply_gradients", "get_config", "from_config")
    return all(hasattr(optimizer, name) for name in methods) and not hasattr(optimizer, "stateless_apply")


def wrap(optimizer: Any, exchange: GradientExchange) -> Any:
    """A distributed optimizer with the settings, and if it was used already, the state of `optimizer`."""
    _check(optimizer)
    check_optimizer(optimizer, exchange.compression)
    distributed = class_for(type(optimizer)).from_config(optimizer.get_config())
    distributed._attach(exchange)
    _copy_state(optimizer, distributed)
    return distributed


def convert(optimizer: Any, exchange: GradientExchange) -> None:
    """Makes `optimizer` itself a distributed one: for that of a loaded model."""
    _check(optimizer)
    check_optimizer(optimizer, exchange.compression)
    optimizer.__class__ = class_for(type(optimizer))
    optimizer._attach(exchange)


def class_for(base: type) -> Any:
    """The subclass of `base` that averages gradients."""
    kind = _classes.get(base)
    if kind is None:
        attributes = {"__module__": base.__module__, "__doc__": base.__doc__}
        kind = _classes[base] = type(base.__name__, (Distributed, base), attributes)
    return kind


def _check(optimizer: Any) -> None:
    if isinstance(optimizer, Distributed):
        raise ValueError("the optimizer is a DistributedOptimizer already; wrap it once")
    if hasattr(optimizer, "inner_optimizer"):
        raise ValueError(
            f"put {type(optimizer).__name__} around the DistributedOptimizer, not into it: "
            f"{type(optimizer).__name__}(DistributedOptimizer(optimizer)); compile() does so for mixed_float16"
        )


def _copy_state(source: Any, target: Any) -> None:
    variables = getattr(source, "_trainable_variables", None)  # as Keras 2.11 and newer have them
    if getattr(source, "_built", False) and variables:
        target.build(variables)
    own = source.variables
    values = own() if callable(own) else own
    if not values:
        return
    new = target.variables
    new = new() if callable(new) else new
    if len(new) == len(values):
        for old, variable in zip(values, new):
            variable.assign(old)
    elif type(source).__module__.split(".")[-2:-1] == ["legacy"]:
        raise ValueError("wrap the optimizer before its first step: a legacy optimizer's state cannot be taken over")


class Distributed(Wrapped):
    """Mixed in before the wrapped optimizer's class."""

    _byteps: Optional[GradientExchange] = None
    _byteps_sums: Optional[Aggregator] = None

    def _attach(self, exchange: GradientExchange) -> None:
        self._byteps = exchange
        if exchange.passes > 1:
            self._byteps_sums = Aggregator(exchange.passes, exchange.factor == 1.0)
            exchange.factor = 1.0  # the aggregator has done it

    def _keep_local(self, layers: Any, scaled: bool) -> None:
        assert self._byteps is not None
        self._byteps.keep_local(layers, scaled)

    def aggregate_gradients(self, grads_and_vars: Iterable[Tuple[Any, Any]]) -> List[Tuple[Any, Any]]:
        """Combines the gradients over all workers; apply_gradients() calls it, and a LossScaleOptimizer around this one
        before it looks for overflows, so that all ranks see the same."""
        return self._combined_pairs(super().aggregate_gradients(grads_and_vars))

    def _aggregate_gradients(self, grads_and_vars: Iterable[Tuple[Any, Any]]) -> List[Tuple[Any, Any]]:
        """The same of the classes in `optimizers.legacy`."""
        return self._combined_pairs(super()._aggregate_gradients(grads_and_vars))

    def apply_gradients(self, grads_and_vars: Iterable[Tuple[Any, Any]], *args: Any, **kwargs: Any) -> Any:
        """Combines the gradients over all workers, then updates the variables. All ranks must call it for the same
        variables."""
        update = super().apply_gradients
        pairs = list(grads_and_vars)
        if self._byteps_sums is None or not pairs:
            return update(pairs, *args, **kwargs)
        variables = [variable for _, variable in pairs]
        with tf.init_scope():  # not within the branch of a condition
            if hasattr(self, "build"):
                self.build(variables)
            else:
                self._create_all_weights(variables)
        gradients = [gradient for gradient, _ in pairs]
        summed = self._byteps_sums.aggregate(gradients, variables, lambda sums: self._combine(sums, variables))
        kwargs["experimental_aggregate_gradients"] = False  # done
        self._byteps_sums.apply(lambda: update(list(zip(summed, variables)), *args, **kwargs))
        return self.iterations

    def _combined_pairs(self, grads_and_vars: Iterable[Tuple[Any, Any]]) -> List[Tuple[Any, Any]]:
        pairs = list(grads_and_vars)
        if not pairs or self._byteps is None:
            return pairs
        if self._byteps_sums is not None:
            raise ValueError(
                f"backward_passes_per_step is {self._byteps.passes} within a LossScaleOptimizer, which needs the "
                "gradients of all workers at each pass: use backward_passes_per_step=1, or Keras 3"
            )
        variables = [variable for _, variable in pairs]
        return list(zip(self._combine([gradient for gradient, _ in pairs], variables), variables))

    def _combine(self, gradients: List[Any], variables: List[Any]) -> List[Any]:
        exchange = self._byteps
        assert exchange is not None
        slots = [exchange.slot(i, v, g) for i, (g, v) in enumerate(zip(gradients, variables))]
        return exchange.combine(slots, tensorflow_backend)
