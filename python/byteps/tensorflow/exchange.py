"""Exchanges of tensors: eager, in a tf.function, in a v1 graph, and in what XLA compiles; and their gradients."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

import tensorflow as tf

from byteps._core import abi, elements, session
from byteps._core.exchange import Exchange
from byteps._core.process_sets import scoped
from byteps.tensorflow import names, native, xla


def exchange(
    tensors: Sequence[tf.Tensor], names_: Sequence[str], what: Exchange, priorities: Sequence[int] = ()
) -> List[tf.Tensor]:
    """All of them at once. Eager: in one op, because TensorFlow waits for each eager op; in a graph: an op for each,
    which starts as soon as its tensor is there."""
    session.job()
    for name in names_:
        names.given(name)
    for tensor in tensors:
        check_device(tensor)
        # What cannot be summed is not broadcast either: strings, resources, ...
        operation = abi.SUM if what.operation == abi.BROADCAST else what.operation
        elements.of_name(tensor.dtype.base_dtype.name, operation, "tensor")
    if not tensors:
        return []
    names_ = [scoped(name, what.members) for name in names_]
    if tf.executing_eagerly():
        return native.push_pull(tensors, names_, what, priorities)
    order = priorities or [0] * len(tensors)
    if xla.is_compiling():
        return [_compiled(*item, what) for item in zip(tensors, names_, order)]
    return [native.push_pull([tensor], [name], what, [rank])[0] for tensor, name, rank in zip(tensors, names_, order)]


def check_device(tensor: tf.Tensor) -> None:
    """ValueError: it is known to be on a GPU. Where TensorFlow itself says later which device computes something, it
    puts exchanges on the CPU."""
    device = str(tensor.device or "")
    if "GPU:" not in device.upper():
        return
    if not tf.executing_eagerly() and not tf.config.list_logical_devices("GPU"):
        return  # there is none, and TensorFlow takes the CPU
    raise ValueError(
        f"the tensor is on device '{device}', but in this version exchanges of TensorFlow are made from the CPU's "
        "memory: make it within tf.device('/CPU:0'), or set CUDA_VISIBLE_DEVICES='' before TensorFlow is imported"
    )


def _compiled(tensor: tf.Tensor, name: str, priority: int, what: Exchange) -> tf.Tensor:
    backward_name, back = names.lasting(name + ".backward"), what.without_memory()

    @tf.custom_gradient
    def call(value: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            return _gradients([upstream], [backward_name], back)[0]

        return xla.push_pull(value, name, what._replace(priority=priority)), gradient

    return call(tensor)


@tf.RegisterGradient(native.OP_NAME)
def _gradient_of_op(op: tf.Operation, *upstream: Optional[tf.Tensor]) -> List[tf.Tensor]:
    filled = [tf.zeros_like(out) if grad is None else grad for grad, out in zip(upstream, op.outputs)]
    backward_names = [names.lasting(name + ".backward") for name in native.names_of(op)]
    return _gradients(filled, backward_names, native.exchange_of(op))


def _gradients(upstream: Sequence[tf.Tensor], names_: Sequence[str], what: Exchange) -> List[tf.Tensor]:
    """The gradient of a sum is the sum of the gradients, so all ranks must compute it."""
    if what.operation in (abi.SUM, abi.AVERAGE):
        return exchange(upstream, names_, what)
    if what.operation != abi.BROADCAST:
        raise LookupError("byteps: only sums, averages and broadcasts have a gradient; Min, Max and Product have none")
    sums = exchange(upstream, names_, what._replace(operation=abi.SUM))
    if session.job().rank == what.root:
        return sums
    return [tf.zeros_like(value) for value in sums]
