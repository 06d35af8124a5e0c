"""A Keras 3 optimizer of the user's own class that averages gradients over all workers.

Gradients are averaged as they come into apply(): before clipping, weight decay and the finite check of a
LossScaleOptimizer, so that every rank decides the same. With gradient accumulation only the accumulated ones travel:
Keras hands those to _clip_gradients(). Before Keras 3.5 it gets what each pass brings, so there each pass's travel.

The class looks like the wrapped one from outside (name and module), so that a saved model names that one and loads
where there is no byteps.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any, Dict, List, Optional, Sequence

import keras

from byteps._core.mixed import Wrapped
from byteps._keras.exchange import GradientExchange, check_optimizer

_BACKENDS = ("torch", "tensorflow", "jax")
_classes: Dict[type, type] = {}


@functools.cache
def backend_module() -> Any:
    """How gradients are averaged on the backend that Keras runs on."""
    backend = keras.backend.backend()
    if backend not in _BACKENDS:
        raise ValueError(f"Keras runs on backend '{backend}'; byteps.keras works on {', '.join(_BACKENDS)}")
    return importlib.import_module(f"byteps._keras.{backend}_backend")


def wrap(optimizer: keras.optimizers.Optimizer, exchange: GradientExchange) -> keras.optimizers.Optimizer:
    """A distributed optimizer with the settings, and if it was used already, the state of `optimizer`."""
    if isinstance(optimizer, Distributed):
        raise ValueError("the optimizer is a DistributedOptimizer already; wrap it once")
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(f"expected a keras.optimizers.Optimizer, got {type(optimizer).__name__}")
    check_optimizer(optimizer, exchange.compression)
    scaling = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if not scaling and keras.config.dtype_policy().name == "mixed_float16":
        # compile() would put this around ours, where each rank decides on its own gradients whether to step.
        optimizer, scaling = keras.optimizers.LossScaleOptimizer(optimizer), True
    config = optimizer.get_config()
    if exchange.passes > 1:
        if scaling:
            raise ValueError(
                f"backward_passes_per_step is {exchange.passes} with a LossScaleOptimizer: give the inner optimizer "
                f"gradient_accumulation_steps={exchange.passes} instead"
            )
        if optimizer.gradient_accumulation_steps not in (None, exchange.passes):
            raise ValueError(
                f"backward_passes_per_step is {exchange.passes}, but the optimizer has gradient_accumulation_steps="
                f"{optimizer.gradient_accumulation_steps}: give one of them"
            )
        config["gradient_accumulation_steps"] = exchange.passes
    distributed = class_for(type(optimizer)).from_config(config)
    distributed._attach(exchange)
    if optimizer.built:
        _copy_state(optimizer, distributed, config)
    return distributed


def convert(optimizer: keras.optimizers.Optimizer, exchange: GradientExchange) -> None:
    """Makes `optimizer` itself a distributed one: for that of a loaded model."""
    check_optimizer(optimizer, exchange.compression)
    factor = optimizer.__dict__.pop("loss_scale_factor", None)  # becomes a property
    optimizer.__class__ = class_for(type(optimizer))
    optimizer._own_loss_scale_factor = factor
    optimizer._attach(exchange)


def class_for(base: type) -> Any:
    """The subclass of `base` that averages gradients."""
    kind = _classes.get(base)
    if kind is None:
        public = getattr(keras.optimizers, base.__name__, None)
        is_public = isinstance(public, type) and issubclass(base, public)
        module = "keras.optimizers" if is_public else base.__module__
        kind = type(base.__name__, (Distributed, base), {"__module__": module, "__doc__": base.__doc__})
        _classes[base] = kind
        _register(base, kind)
    return kind


def _register(base: type, kind: type) -> None:
    """An optimizer of the user's own that is registered for saving is saved under its name when distributed too."""
    registered = keras.saving.get_registered_name(base)
    if ">" in registered and keras.saving.get_registered_object(registered) is base:
        package, name = registered.split(">", 1)
        keras.saving.register_keras_serializable(package, name)(kind)
        keras.saving.get_custom_objects()[registered] = base  # what is loaded is the plain one


def _copy_state(source: Any, target: Any, config: Dict[str, Any]) -> None:
    if len(source.variables) == 0:
        return
    target.build(_keeper_of_variables(source)._trainable_variables)
    if len(source.variables) != len(target.variables):
        raise ValueError(
            "the optimizer has made steps without gradient accumulation: give backward_passes_per_step before its "
            "first step"
        )
    for old, new in zip(source.variables, target.variables):
        new.assign(old)


def _keeper_of_variables(optimizer: Any) -> Any:
    """Who has the trainable variables and their order: the older LossScaleOptimizers have not."""
    scaling = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    return optimizer.inner_optimizer if scaling else optimizer


class Distributed(Wrapped):
    """Mixed in before the wrapped optimizer's class."""

    _exchange: Optional[GradientExchange] = None
    _backend: Any = None  # the backend's module
    _own_loss_scale_factor: Optional[float] = None
    built: bool  # the wrapped class's

    def _attach(self, exchange: GradientExchange) -> None:
        self._backend = backend_module()
        self._exchange = exchange

    def _keep_local(self, layers: Any, scaled: bool) -> None:
        assert self._exchange is not None
        self._exchange.keep_local(layers, scaled)

    def apply(self, grads: Sequence[Any], trainable_variables: Optional[Sequence[Any]] = None) -> None:
        """Combines the gradients over all workers, then updates the variables. All ranks must call it for the same
        variables."""
        grads = list(grads)
        known = self.built or trainable_variables is not None
        if grads and known and not self._sends_accumulated:
            variables = self._variables_for(trainable_variables)
            grads = self._combine(grads, variables)
        super().apply(grads, trainable_variables)

    def scale_loss(self, loss: Any) -> Any:
        """What Keras's trainers call right before the backward pass whose gradients come to apply()."""
        if self._exchange is not None and not self._sends_accumulated:
            self._backend.before_backward(self._exchange)
        return super().scale_loss(loss)

    def stateless_apply(self, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        """apply() for JAX. It calls apply(), but for that of a LossScaleOptimizer."""
        if isinstance(self, keras.optimizers.LossScaleOptimizer) and self.built:
            grads = self._combine(list(grads), _keeper_of_variables(self)._trainable_variables)
        return super().stateless_apply(optimizer_variables, grads, trainable_variables)

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> None:
        if self._sends_accumulated and self._exchange is not None:
            self._exchange.accumulated_for = list(trainable_variables)
        super()._backend_apply_gradients(grads, trainable_variables)

    def _clip_gradients(self, grads: Any) -> Any:
        if self._sends_accumulated and self._exchange is not None:
            # On JAX, Keras comes here at each pass, and throws away what comes of it at all but the last one.
            last = (self._iterations + 1) % self.gradient_accumulation_steps == 0
            variables = self._exchange.accumulated_for
            grads = self._backend.when(last, lambda given: self._combine(given, variables), list(grads))
        return super()._clip_gradients(grads)

    @property
    def _sends_accumulated(self) -> bool:
        """Whether gradients are accumulated and Keras clips what they come to: since 3.5, which counts passes in
        _iterations."""
        return bool(self.gradient_accumulation_steps) and hasattr(self, "_iterations")

    def _combine(self, grads: List[Any], variables: Sequence[Any]) -> List[Any]:
        exchange = self._exchange
        if exchange is None:  # within from_config, or copied
            return grads
        keeper = _keeper_of_variables(self)
        slots = [
            exchange.slot(keeper._get_variable_index(variable), variable, grad)
            for grad, variable in zip(grads, variables)
        ]
        return exchange.combine(slots, self._backend)

    def _variables_for(self, trainable_variables: Optional[Sequence[Any]]) -> List[Any]:
        if trainable_variables is None:
            return list(_keeper_of_variables(self)._trainable_variables)
        variables = list(trainable_variables)
        if not self.built:
            with keras.name_scope(self.name):
                self.build(variables)
            self.built = True
        _keeper_of_variables(self)._check_variables_are_known(variables)
        return variables

    @property
    def loss_scale_factor(self) -> Optional[float]:
        return self._own_loss_scale_factor

    @loss_scale_factor.setter
    def loss_scale_factor(self, value: Optional[float]) -> None:
        # The only one who sets it after the optimizer was made is a LossScaleOptimizer that is put around it.
        if self._exchange is not None:
            raise ValueError(
                "a LossScaleOptimizer around a DistributedOptimizer would decide on each rank's own gradients whether "
                "to make a step, and the ranks would part. Put them together the other way: "
                "DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))"
            )
        self._own_loss_scale_factor = value
