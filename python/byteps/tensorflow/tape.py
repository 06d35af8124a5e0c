"""DistributedGradientTape: a tf.GradientTape whose gradients are averaged over all workers."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Optional, Type

import tensorflow as tf

from byteps._core.choices import gradient_compression
from byteps._core.mixed import Wrapped
from byteps._core.process_sets import ProcessSet
from byteps._core.reduction import Average
from byteps.tensorflow.compression import Compression, Compressor
from byteps.tensorflow.gradients import check_reduction, reduce_gradients
from byteps.tensorflow.reduction import Op

__all__ = ["DistributedGradientTape", "PartialDistributedGradientTape"]


def DistributedGradientTape(  # the name users know
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: Op = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Optional[ProcessSet] = None,
    scale_local_gradients: bool = True,
    compression_params: Optional[Dict[str, Any]] = None,
) -> tf.GradientTape:
    """A tape of the same class that shares what `gradtape` has recorded; its gradient() averages over all workers.

        with tf.GradientTape() as tape:
            loss = ...
        tape = bps.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)

    compression: one of Compression, or compression_params as in the original: what travels (docs/compression.md).
    sparse_as_dense: IndexedSlices are made dense first.
    op: Average, Sum, Min, Max or Product. device_dense, device_sparse, num_groups and groups are accepted for
    compatibility: gradients leave one by one as they get ready, which needs no groups.
    The other arguments are those of reduce_gradients()."""
    del device_dense, device_sparse, num_groups, groups
    if not isinstance(gradtape, tf.GradientTape):
        raise ValueError(f"expected a tf.GradientTape, got {type(gradtape).__name__}")
    if isinstance(gradtape, _DistributedGradientTape):
        raise ValueError("the tape is a DistributedGradientTape already; wrap it once")
    check_reduction(op, process_set)
    kind: Any = type(type(gradtape).__name__, (_DistributedGradientTape, type(gradtape)), {})
    tape = kind.__new__(kind)
    tape.__dict__.update(vars(gradtape))
    tape._byteps_local = []
    tape._byteps_options = dict(
        op=op,
        compression=gradient_compression(compression, Compression, compression_params, process_set=process_set),
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    return tape


def PartialDistributedGradientTape(  # the name users know
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: Op = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Optional[ProcessSet] = None,
    local_layers: Optional[Iterable[Any]] = None,
    scale_local_gradients: bool = True,
    compression_params: Optional[Dict[str, Any]] = None,
) -> tf.GradientTape:
    """DistributedGradientTape(gradtape, ...), but for `local_layers`, a layer or several, which belong to this rank
    alone: gradients of their weights do not travel (register_local_source())."""
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
        compression_params,
    )
    if hasattr(local_layers, "trainable_weights"):
        local_layers = [local_layers]
    for layer in local_layers or ():
        for weight in layer.trainable_weights:
            tape.register_local_source(weight)
    return tape


class _DistributedGradientTape(Wrapped):
    """Mixed in before the wrapped tape's class."""

    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, **kwargs: Any) -> Any:
        """As tf.GradientTape.gradient(), reduced over all workers, which must all call it."""
        gradients = super().gradient(target, sources, output_gradients, **kwargs)
        reduced = reduce_gradients(
            tf.nest.flatten(gradients, expand_composites=False),
            tf.nest.flatten(sources),
            local=self._byteps_local,
            **self._byteps_options,
        )
        return tf.nest.pack_sequence_as(sources, reduced)

    def register_local_source(self, source: Any) -> None:
        """The variable belongs to this rank alone: its gradient does not travel."""
        self._byteps_local.append(source)
