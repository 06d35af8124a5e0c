"""Broadcasts of variables and objects: one rank's values to all."""

from __future__ import annotations

import functools
from typing import Any, Callable, List, Optional, Sequence

import tensorflow as tf

from byteps._core import agreement, objects, session
from byteps._core.process_sets import ProcessSet, check_root, members_of
from byteps.tensorflow import names
from byteps.tensorflow.exchange import check_device
from byteps.tensorflow.ops import broadcast_all

__all__ = [
    "BroadcastGlobalVariablesHook",
    "allgather_object",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: Optional[ProcessSet] = None,
    inplace: bool = False,
    *,
    scope: str = "",
) -> Any:
    """Gives all ranks the root's values, in place. All of them travel at once. Variables of TensorFlow, Keras 3 and
    tf_keras, of any dtype but string. All ranks pass the same list; in eager code ValueError on all of them when they
    do not. `inplace` is accepted for compatibility. TypeError: a scope where the process set belongs, as in the
    original BytePS.

    Returns nothing, but in a v1 graph the operation that does it."""
    del inplace
    if isinstance(process_set, str):
        raise TypeError(
            "broadcast_variables: the argument after root_rank is process_set, as in Horovod; write "
            f"scope={process_set!r} for that of the original BytePS"
        )
    members = members_of(process_set)
    root_rank = check_root(root_rank, members)
    variables = list(variables)
    is_eager = tf.executing_eagerly()
    is_v1 = not is_eager and not tf.compat.v1.get_default_graph().building_function
    if session.job().is_alone or not variables:
        return tf.group() if is_v1 else None
    values = [tf.convert_to_tensor(variable) for variable in variables]
    if is_eager:
        for value in values:
            check_device(value)
        specs = [f"{_title(each)}: {tf.as_dtype(each.dtype).name}{list(each.shape)}" for each in variables]
        agreement.require_agreement(specs, root_rank, "broadcast_variables: variables differ", members)
    base = names.automatic("broadcast_variables", scope)
    received = broadcast_all(values, root_rank, [f"{base}.{i}" for i in range(len(values))], True, process_set)
    assigned = [variable.assign(value) for variable, value in zip(variables, received)]
    return tf.group(*[value for value in assigned if value is not None]) if is_v1 else None


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: Optional[str] = None,
    process_set: Optional[ProcessSet] = None,
) -> List[Any]:
    """broadcast_variables() under Horovod's name; the variables."""
    broadcast_variables(variables, root_rank, process_set, scope=name or "")
    return list(variables)


def broadcast_global_variables(root_rank: int) -> Any:
    """The operation that gives all ranks the root's values of all global variables of the v1 graph. RuntimeError in
    eager code, which has no such collection."""
    if tf.executing_eagerly():
        raise RuntimeError(
            "bps.broadcast_global_variables() does not support eager execution. Please use "
            "bps.broadcast_variables(<model/optimizer variables>) instead."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """For tf.compat.v1.train.MonitoredTrainingSession: gives all ranks the root's values of all global variables when
    the session is there, whether they were initialized or read from a checkpoint."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None

    def begin(self) -> None:
        graph = tf.compat.v1.get_default_graph()
        if self.bcast_op is None or self.bcast_op.graph is not graph:
            with tf.device(self.device or None):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        del coord
        session.run(self.bcast_op)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: Optional[str] = None,
    process_set: Optional[ProcessSet] = None,
) -> Any:
    """The root's object on all ranks (on the root `obj` itself), pickled. `session` is accepted for compatibility."""
    del session
    members = members_of(process_set)
    root_rank = check_root(root_rank, members)
    return objects.broadcast_object(obj, root_rank, name, members)


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: Optional[str] = None, process_set: Optional[ProcessSet] = None
) -> Callable[[Any], Any]:
    """broadcast_object() as a function of the object alone."""
    return functools.partial(
        broadcast_object, root_rank=root_rank, session=session, name=name, process_set=process_set
    )


def allgather_object(
    obj: Any, session: Any = None, name: Optional[str] = None, process_set: Optional[ProcessSet] = None
) -> List[Any]:
    """The objects of all ranks, in the order of ranks, pickled. `session` is accepted for compatibility."""
    del session
    return objects.allgather_object(obj, name, members_of(process_set))


def _title(variable: Any) -> str:
    return str(getattr(variable, "path", None) or getattr(variable, "name", "variable"))
