"""BytePS for Keras 3, on its torch, tensorflow and jax backends. The whole of it is in docs/keras.md; in short:

    import keras
    import byteps.keras as bps

    bps.init()
    model = ...
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(0.01 * bps.size(), momentum=0.9))
    model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    callbacks = [bps.callbacks.BroadcastGlobalVariablesCallback(0), bps.callbacks.MetricAverageCallback()]
    model.fit(my_share_of_x, my_share_of_y, callbacks=callbacks, verbose=1 if bps.rank() == 0 else 0)

Without any environment the job has one member.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence

import keras

from byteps._core import api as _api
from byteps._core.api import *
from byteps._core.choices import gradient_compression as _gradient_compression
from byteps._core.horovod import init, join
from byteps._core.reduction import Average, Sum
from byteps._core.session import resume
from byteps._keras import optimizer as _optimizer
from byteps._keras import saving as _saving
from byteps._keras import values as _values
from byteps._keras.callbacks import state_of as _state_of
from byteps._keras.exchange import GradientExchange as _GradientExchange
from byteps._keras.values import allgather_object, broadcast_object
from byteps.keras import callbacks

Compression = _optimizer.backend_module().Compression

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "init",
    "join",
    "load_model",
    "push_pull",
    "reducescatter",
    "resume",
]
__all__ += _api.__all__


def DistributedOptimizer(  # the name users know
    optimizer: keras.optimizers.Optimizer,
    name: Optional[str] = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = Average,
    num_groups: int = 0,
    groups: Any = None,
    *,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: Any = None,
    scale_local_gradients: bool = True,
    compression_params: Optional[Dict[str, Any]] = None,
) -> keras.optimizers.Optimizer:
    """An optimizer of the same class, with the same settings, that averages gradients over all workers before it uses
    them. An optimizer that was used already keeps its state. All ranks must use it for the same variables.

    name: what its gradients are called on the wire. None: optimizers are numbered in the order of their first use,
        which must be the same on all ranks. With a name of your own, a later optimizer for the same variables may have
        it again, so that servers need no new memory.
    compression: one of Compression, or compression_params as in the original: what travels (docs/compression.md).
    sparse_as_dense: gradients of embeddings are made dense before they travel; else their rows are gathered. (Only
        the tensorflow backend has such.)
    gradient_predivide_factor: with op=Average, gradients are divided by it before the sum, and the rest after it.
    op: Average or Sum.
    backward_passes_per_step: so many gradients are accumulated locally before they travel and are used: their sum, or
        their mean with average_aggregated_gradients. It becomes the optimizer's gradient_accumulation_steps.
    process_set: the ranks that train together, None: all. On a rank that is not in it, the optimizer works alone.
    device_dense, device_sparse, num_groups, groups: accepted for compatibility: every gradient leaves as soon as it is
        ready. So is scale_local_gradients, which is for the local layers of PartialDistributedOptimizer.
    """
    del device_dense, device_sparse, num_groups, groups, scale_local_gradients
    exchange = _GradientExchange(
        op,
        _gradient_compression(compression, Compression, compression_params, process_set=process_set),
        gradient_predivide_factor,
        sparse_as_dense,
        process_set,
        name,
        backward_passes_per_step,
        average_aggregated_gradients or backward_passes_per_step == 1,
    )
    return _optimizer.wrap(optimizer, exchange)


def PartialDistributedOptimizer(  # the name users know
    optimizer: keras.optimizers.Optimizer,
    name: Optional[str] = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = Average,
    groups: Any = None,
    process_set: Any = None,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
    *,
    num_groups: int = 0,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    compression_params: Optional[Dict[str, Any]] = None,
) -> keras.optimizers.Optimizer:
    """DistributedOptimizer(optimizer, ...), but for `local_layers`, a layer or several, which belong to this rank
    alone: gradients of their weights do not travel. scale_local_gradients divides them by the number of ranks, so that
    they weigh as they would in the average."""
    distributed = DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        num_groups=num_groups,
        groups=groups,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        process_set=process_set,
        compression_params=compression_params,
    )
    distributed._keep_local(local_layers, scale_local_gradients)
    return distributed


def push_pull(value: Any, name: Optional[str] = None, average: bool = True) -> Any:
    """The average (or sum) of `value` over all workers: a number for a number, an array for an array, a tensor for a
    tensor. Blocks; not for use within compiled functions."""
    return allreduce(value, name, op=Average if average else Sum)


def allreduce(
    value: Any,
    name: Optional[str] = None,
    average: Optional[bool] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: Any = None,
    compression: Any = Compression.none,
) -> Any:
    """push_pull() as Horovod calls it. op: Average, Sum, Min, Max or Product. The result is multiplied by both factors.
    compression: what travels."""
    reduced = _values.allreduce(value, name, average, prescale_factor, postscale_factor, op, compression)
    return _values.as_given(value, reduced, keras.ops.convert_to_tensor)


def allgather(value: Any, name: Optional[str] = None) -> Any:
    """All ranks' values, one after the other along the first dimension, which may differ between ranks."""
    return _values.as_given(value, _values.allgather(value, name), keras.ops.convert_to_tensor)


def reducescatter(value: Any, name: Optional[str] = None, op: Any = Average) -> Any:
    """allreduce(), of whose rows each rank gets its share: as even as can be, the first ranks one more."""
    return _values.as_given(value, _values.reducescatter(value, name, op), keras.ops.convert_to_tensor)


def broadcast(value: Any, root_rank: int, name: Optional[str] = None) -> Any:
    """The root's `value`, on all ranks, each of which gives a value of the same shape and dtype."""
    return _values.as_given(value, _values.broadcast(value, root_rank, name), keras.ops.convert_to_tensor)


def broadcast_variables(variables: Sequence[Any], root_rank: int) -> None:
    """All ranks' variables (of a model, of an optimizer) get the root's values."""
    _values.broadcast_variables(variables, root_rank)


def broadcast_global_variables(root_rank: int, model: Optional[keras.Model] = None) -> None:
    """All ranks' weights and optimizer variables of `model` get the root's values. Keras 3 has no list of all variables
    of a process, hence the model."""
    if model is None:
        raise RuntimeError(
            "Keras 3 has no global variables: give the model, broadcast_global_variables(root_rank, model), or use "
            "callbacks.BroadcastGlobalVariablesCallback(root_rank) in fit(), or broadcast_variables()"
        )
    _values.broadcast_variables(_state_of(model), root_rank)


def load_model(
    filepath: Any,
    custom_optimizers: Optional[Sequence[type]] = None,
    custom_objects: Optional[dict] = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
    compression_params: Optional[Dict[str, Any]] = None,
    **options: Any,
) -> keras.Model:
    """keras.models.load_model(), and the model's optimizer becomes a DistributedOptimizer that keeps its state. A model
    that was trained with a DistributedOptimizer is saved with the plain one, so Keras alone loads it as well.

    custom_optimizers: optimizer classes of your own that the file may name.
    legacy_opts: accepted for compatibility: the file says of which kind its optimizer is.
    options: those of DistributedOptimizer (op, sparse_as_dense, ...); `compile` and `safe_mode` go to Keras.
    """
    del legacy_opts
    process_set = options.get("process_set")
    chosen = _gradient_compression(compression, Compression, compression_params, process_set=process_set)
    return _saving.load_model(keras, _optimizer.convert, filepath, custom_optimizers, custom_objects, chosen, options)
