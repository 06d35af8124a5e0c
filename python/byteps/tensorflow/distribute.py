"""tf.distribute over several workers: MirroredStrategy keeps the replicas of one process alike, this one those of all.

    from byteps.tensorflow.distribute import MirroredStrategy

    strategy = MirroredStrategy()
    with strategy.scope(): ...

It stands to tf.distribute.MirroredStrategy as tf.distribute.MultiWorkerMirroredStrategy does, with the job that
bps.init() joins in place of TF_CONFIG: num_replicas_in_sync counts the replicas of all workers, a SUM or MEAN is over
all of them, variables begin with the values of rank 0, and distributed datasets are sharded by rank.

The base classes of strategies are not public in TensorFlow; what is used of them is in 2.16 to 2.21.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

import tensorflow as tf
from tensorflow.python.distribute import input_util, mirrored_strategy

from byteps._core import session
from byteps._core.reduction import Average, Sum
from byteps.tensorflow import names
from byteps.tensorflow.ops import broadcast
from byteps.tensorflow.reduction import Reduce

__all__ = ["BytepsAllReduce", "BytepsCrossDeviceOps", "MirroredStrategy"]


class BytepsCrossDeviceOps(tf.distribute.CrossDeviceOps):
    """Reduces over the devices of this process with `local` (default: tf.distribute.ReductionToOneDevice()), then
    over all workers. For a strategy whose num_replicas_in_sync counts all workers: SUM is the sum over all replicas."""

    def __init__(self, local: Optional[tf.distribute.CrossDeviceOps] = None) -> None:
        super().__init__()
        self._local = local or tf.distribute.ReductionToOneDevice()

    @property
    def _num_between_graph_workers(self) -> int:
        """More than 1 keeps TensorFlow from thinking that one value needs no reduction."""
        return session.size()

    def reduce_implementation(self, reduce_op: Any, per_replica_value: Any, destinations: Any, options: Any) -> Any:
        return self.batch_reduce_implementation(reduce_op, [(per_replica_value, destinations)], options)[0]

    def batch_reduce_implementation(self, reduce_op: Any, value_destination_pairs: Sequence[Any], options: Any) -> List:
        here = [
            _first(self._local.reduce_implementation(reduce_op, value, destinations, options))
            for value, destinations in value_destination_pairs
        ]
        reduced = _reduce_over_workers(here, reduce_op)
        return [
            self._local.broadcast_implementation(value, destinations)
            for value, (_, destinations) in zip(reduced, value_destination_pairs)
        ]

    def broadcast_implementation(self, tensor: Any, destinations: Any) -> Any:
        return self._local.broadcast_implementation(tensor, destinations)

    def _gather_implementation(self, per_replica_value: Any, destinations: Any, axis: int, options: Any) -> Any:
        from byteps.tensorflow.gather import allgather

        here = _first(self._local._gather_implementation(per_replica_value, destinations, axis, options))
        order = [axis, *[i for i in range(here.shape.rank) if i != axis]]
        gathered = tf.transpose(allgather(tf.transpose(here, order)), tf.argsort(order))
        return self._local.broadcast_implementation(gathered, destinations)


def _reduce_over_workers(values: List[Any], reduce_op: Any) -> List[Any]:
    """All at once. tf.IndexedSlices are gathered."""
    from byteps.tensorflow import sparse

    reduction = Reduce.of(Average if reduce_op == tf.distribute.ReduceOp.MEAN else Sum)
    if session.job().is_alone:
        return values
    results = list(values)
    dense = [index for index, value in enumerate(values) if not isinstance(value, tf.IndexedSlices)]
    for index, value in enumerate(values):
        if index not in dense:
            results[index] = sparse.push_pull(value, reduction)
    base = names.automatic("distribute")
    tensors = [tf.convert_to_tensor(values[index]) for index in dense]
    for index, result in zip(dense, reduction.dense(tensors, [f"{base}.{i}" for i in dense], True)):
        results[index] = tf.cast(result, values[index].dtype)  # the mean of integers has their dtype in tf.distribute
    return results


def _first(value: Any) -> Any:
    """The values on all devices are equal."""
    return value.values[0] if isinstance(value, tf.distribute.DistributedValues) else value


BytepsAllReduce = BytepsCrossDeviceOps  # its name in the original, without num_packs: tensors are not packed


class _Extended(mirrored_strategy.MirroredExtended):
    """tf.distribute's own, with the replicas of all workers."""

    @property
    def _num_replicas_in_sync(self) -> int:
        return len(self._devices) * session.size()

    def _get_replica_id_in_sync_group(self, replica_id: int) -> int:
        return session.rank() * len(self._devices) + replica_id

    def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
        return replica_id_in_sync_group - session.rank() * len(self._devices)

    def _use_merge_call(self) -> bool:
        """All reductions go through our CrossDeviceOps."""
        return True

    def _get_cross_device_ops(self, value: Any) -> Any:
        """Also for int32, which TensorFlow would reduce within the process."""
        return self._cross_device_ops

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        if reduce_op == tf.distribute.ReduceOp.MEAN and _is_mirrored(value):
            return value
        return tf.nest.map_structure(
            lambda each: self._cross_device_ops.reduce(reduce_op, each, destinations, options), value
        )

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        initial = kwargs.get("initial_value")
        if initial is not None and not session.job().is_alone:
            kwargs["initial_value"] = lambda *args, **given: _from_root(
                initial(*args, **given) if callable(initial) else initial, kwargs.get("dtype")
            )
        return super()._create_variable(next_creator, **kwargs)

    def _make_input_context(self) -> tf.distribute.InputContext:
        return tf.distribute.InputContext(session.size(), session.rank(), self._num_replicas_in_sync)

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        return input_util.get_distributed_dataset(
            dataset,
            self._input_workers_with_options(options),
            self._container_strategy(),
            num_replicas_in_sync=self._num_replicas_in_sync,
            input_context=self._make_input_context(),
            options=options,
        )

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        return input_util.get_distributed_datasets_from_function(
            dataset_fn,
            self._input_workers_with_options(options),
            [self._make_input_context()],
            self._container_strategy(),
            options,
        )


class MirroredStrategy(tf.distribute.Strategy):
    """tf.distribute.MirroredStrategy over all workers of the job. bps.init() comes first.

    devices: of this process; default: its GPUs, or its CPU. cross_device_ops: reduces over them before BytePS reduces
    over the workers."""

    _collective_key_base = 0  # read by tf.distribute's own

    def __init__(
        self, devices: Optional[Sequence[str]] = None, cross_device_ops: Optional[tf.distribute.CrossDeviceOps] = None
    ) -> None:
        session.job()
        if not isinstance(cross_device_ops, BytepsCrossDeviceOps):
            cross_device_ops = BytepsCrossDeviceOps(cross_device_ops)
        super().__init__(_Extended(self, devices=devices, cross_device_ops=cross_device_ops))


def _is_mirrored(value: Any) -> bool:
    from tensorflow.python.distribute import distribute_utils

    return bool(distribute_utils.is_mirrored(value))


def _from_root(value: Any, dtype: Any) -> tf.Tensor:
    wrapped = getattr(value, "wrapped_value", None)  # of a checkpoint
    return broadcast(tf.convert_to_tensor(value if wrapped is None else wrapped, dtype), 0)
