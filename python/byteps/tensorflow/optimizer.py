"""DistributedOptimizer: any optimizer, with gradients averaged over all workers."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple, Type

import tensorflow as tf

from byteps._core.choices import gradient_compression
from byteps._core.process_sets import ProcessSet
from byteps._core.recipes import check_recipe, number_of
from byteps._core.reduction import Average
from byteps.tensorflow.aggregation import Aggregator
from byteps.tensorflow.compression import Compression, Compressor
from byteps.tensorflow.gradients import check_reduction, reduce_gradients
from byteps.tensorflow.reduction import Op

__all__ = ["DistributedOptimizer"]


def DistributedOptimizer(  # the name users know
    optimizer: Any,
    name: Optional[str] = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: Op = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Optional[ProcessSet] = None,
    scale_local_gradients: bool = True,
    compression_params: Optional[Dict[str, Any]] = None,
) -> Any:
    """An optimizer that averages gradients over all workers before it applies them.

    optimizer: one of tf.compat.v1.train; those of Keras 3 are passed on to byteps.keras.DistributedOptimizer, those of
        tf_keras to byteps.tensorflow.keras.DistributedOptimizer.
    name: of the new optimizer. compression: one of Compression, or compression_params as in the original: what travels
        (docs/compression.md). sparse_as_dense: tf.IndexedSlices are made dense first.
    backward_passes_per_step: so many calls of compute_gradients() (minimize()) are summed locally before gradients
        travel and apply_gradients() has an effect; average_aggregated_gradients divides the sum by their number.
    op: Average, Sum, Min, Max or Product.
    device_dense, device_sparse, num_groups and groups are accepted for compatibility. The other arguments are those of
    reduce_gradients().

    ValueError: a wrong argument, or something that is no optimizer."""
    del num_groups, groups
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step is {backward_passes_per_step}: it must be at least 1")
    options: Dict[str, Any] = dict(
        op=op,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    if isinstance(optimizer, _DistributedOptimizer):
        raise ValueError("the optimizer is a DistributedOptimizer already; wrap it once")
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        check_reduction(op, process_set)
        options["compression"] = gradient_compression(
            compression, Compression, compression_params, process_set=process_set
        )
        _check_recipe(options["compression"], optimizer)
        aggregator = None
        if backward_passes_per_step > 1:
            aggregator = Aggregator(backward_passes_per_step, average_aggregated_gradients)
        return _DistributedOptimizer(optimizer, name, use_locking, aggregator, options)
    delegate = _keras_delegate(optimizer)
    del options["scale_local_gradients"]  # those of Keras have no local variables
    return delegate(
        optimizer,
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        compression=compression,
        compression_params=compression_params,
        **options,
    )


def _check_recipe(compression: Any, optimizer: Any) -> None:
    momentum = number_of(getattr(optimizer, "_momentum", 0.0))
    is_sgd = isinstance(optimizer, (tf.compat.v1.train.GradientDescentOptimizer, tf.compat.v1.train.MomentumOptimizer))
    check_recipe(compression, type(optimizer).__name__, momentum, is_sgd)


def _keras_delegate(optimizer: Any) -> Any:
    """The DistributedOptimizer of the Keras that the optimizer belongs to."""
    modules = [kind.__module__.split(".") for kind in type(optimizer).__mro__]
    if any(module[0] == "tf_keras" or module[:3] == ["tensorflow", "python", "keras"] for module in modules):
        from byteps.tensorflow.keras import DistributedOptimizer as tf_keras_optimizer

        return tf_keras_optimizer
    if any(module[0] == "keras" for module in modules):
        from byteps.keras import DistributedOptimizer as keras_optimizer

        return keras_optimizer
    raise ValueError(
        f"expected an optimizer of tf.compat.v1.train, Keras or tf_keras, got {type(optimizer).__name__}; with an "
        "optimizer of your own use DistributedGradientTape"
    )


class _DistributedOptimizer(tf.compat.v1.train.Optimizer):
    """Wraps an optimizer of tf.compat.v1.train."""

    def __init__(
        self, optimizer: Any, name: Optional[str], use_locking: bool, aggregator: Optional[Aggregator], options: dict
    ) -> None:
        super().__init__(name=name or f"Distributed{type(optimizer).__name__}", use_locking=use_locking)
        self._optimizer = optimizer
        self._aggregator = aggregator
        self._options = options
        self._local: List[Any] = []

    def compute_gradients(self, *args: Any, **kwargs: Any) -> List[Tuple[Any, Any]]:
        """The wrapped optimizer's gradients, reduced over all workers, which must all call it."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        gradients = [gradient for gradient, _ in pairs]
        variables = [variable for _, variable in pairs]
        if self._aggregator is None:
            reduced = self._reduce(gradients, variables)
        else:
            reduced = self._aggregator.aggregate(gradients, variables, lambda sums: self._reduce(sums, variables))
        return list(zip(reduced, variables))

    def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's; with backward_passes_per_step it acts at the last pass of a step."""
        if self._aggregator is None:
            return self._optimizer.apply_gradients(*args, **kwargs)
        return self._aggregator.apply(lambda: self._optimizer.apply_gradients(*args, **kwargs))

    def register_local_var(self, variable: Any) -> None:
        """The variable belongs to this rank alone: its gradient does not travel."""
        self._local.append(variable)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.variables(*args, **kwargs)

    def _reduce(self, gradients: List[Any], variables: List[Any]) -> List[Any]:
        return reduce_gradients(gradients, variables, local=self._local, **self._options)
