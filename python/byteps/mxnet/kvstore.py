"""The kvstore "byteps": for gluon.Trainer(kvstore=...) and Module.fit(kvstore=...).

    kv = mx.kv.create("byteps")

pushpull() sums over the devices of a worker and over all workers, as MXNet's own distributed stores do, and does not
average. The store holds no optimizer: weights are updated by the workers, all in the same way.

MXNet 1.9.1 has two habits that would turn training with one device per worker into training alone, without a word; they
are changed for this store, and only for it, when byteps.mxnet is imported:

- it drops a store that is given by name when the name has no "dist" in it;
- Module tells a store that has no optimizer about the first parameters, but not the executors what it made of them.

Module divides gradients by the batch of all workers if the type of the store contains "dist" and "_sync", and by that
of one worker otherwise. So it gets the one of type "dist_sync_byteps", which can also be created by the name
"dist_byteps".
"""

from __future__ import annotations

import functools
import warnings
from typing import Any, Dict, List, NoReturn, Optional, Sequence, Tuple, Union

import mxnet as mx
from mxnet.kvstore import KVStoreBase
from mxnet.ndarray import NDArray

from byteps._core import abi, session
from byteps._core.exchange import Exchange
from byteps.mxnet import engine
from byteps.mxnet.broadcast import start_broadcast

__all__ = ["BytePS", "DistBytePS", "register"]

Key = Union[str, int]
Arrays = Union[NDArray, Sequence[NDArray]]


class BytePS(KVStoreBase):
    """One entry per key, which lives on the servers only while it is summed. Creating one joins the job."""

    def __init__(self) -> None:
        session.init()
        self._owner = object()  # two stores may have equal keys

    def broadcast(self, key: Key, value: Arrays, out: Arrays, priority: int = 0) -> None:
        """Gives the values of rank 0 to all workers, in all arrays of `out`; returns when they are there."""
        for one, source, targets in _entries(key, value, out):
            name = session.current().unique_name(f"kvstore.broadcast.{one}")
            first = targets[0]
            if first is not source[0]:
                source[0].copyto(first)
            engine.wait(start_broadcast(targets, 0, name, priority))

    def init(self, key: Key, value: Arrays) -> None:
        """broadcast() of `value` in place. MXNet's own stores have this name for it."""
        self.broadcast(key, value, value)

    def pushpull(self, key: Key, value: Arrays, out: Optional[Arrays] = None, priority: int = 0) -> None:
        """Sums `value`, a list with one array per device, over devices and workers, into all arrays of `out` (None: of
        `value`). Returns at once; MXNet's engine orders what uses them. A list of keys takes lists of all."""
        for one, source, targets in _entries(key, value, value if out is None else out):
            total, target = source[0], targets[0]
            if len(source) > 1:
                total = mx.nd.add_n(*(array.as_in_context(total.context) for array in source))
            name = session.current().lasting_name(f"kvstore.{one}", (self._owner, target.shape, str(target.dtype)))
            engine.push(target, Exchange(abi.SUM, priority=priority), name, None if total is target else total)
            for other in targets[1:]:
                target.copyto(other)

    @staticmethod
    def is_capable(capability: str) -> bool:
        """False for "optimizer"."""
        if capability.lower() == KVStoreBase.OPTIMIZER:
            return False
        raise ValueError(f"unknown capability: {capability}")

    @property
    def type(self) -> str:
        return "byteps"

    @property
    def rank(self) -> int:
        return session.rank()

    @property
    def num_workers(self) -> int:
        return session.size()

    @property
    def local_rank(self) -> int:
        return session.local_rank()

    def barrier(self) -> None:
        """Returns when all workers have called it."""
        session.barrier()

    def set_gradient_compression(self, compression_params: Dict[str, Any]) -> None:
        raise ValueError(
            f"the kvstore '{self.type}' has no gradient compression in this version (asked for: {compression_params}); "
            "byteps.mxnet.DistributedTrainer(compression_params={'fp16': True}) sends 16 bits"
        )

    def set_optimizer(self, optimizer: Any) -> None:
        _refuse("set_optimizer")

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        _refuse("save_optimizer_states")

    def load_optimizer_states(self, fname: str) -> None:
        _refuse("load_optimizer_states")

    def push(self, key: Key, value: Arrays, priority: int = 0) -> None:
        raise NotImplementedError("the kvstore 'byteps' has no push(): use pushpull(), which is both in one exchange")

    def pull(self, key: Key, out: Optional[Arrays] = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        raise NotImplementedError("the kvstore 'byteps' has no pull(): use pushpull(), which is both in one exchange")


class DistBytePS(BytePS):
    """The same for those who look at the type: "dist_byteps"."""

    @property
    def type(self) -> str:
        return "dist_sync_byteps"


STORES = {"byteps": BytePS, "dist_byteps": DistBytePS}


def register() -> None:
    """Makes mx.kv.create() know the stores, and MXNet keep them (see above). Harmless when repeated."""
    registry = KVStoreBase.kv_registry
    for name, store in STORES.items():
        former = registry.get(name)
        if former is not None and former is not store:
            warnings.warn(f"byteps.mxnet replaces the kvstore '{name}' of {former.__module__}", stacklevel=3)
        registry[name] = store
    if not hasattr(mx.model._create_kvstore, "byteps_original"):
        keep = _keeping(mx.model._create_kvstore)
        mx.model._create_kvstore = mx.gluon.trainer._create_kvstore = keep
        mx.module.module._create_kvstore = _for_module(keep)
        mx.model._initialize_kvstore = mx.module.module._initialize_kvstore = _initializing(
            mx.model._initialize_kvstore
        )


def _keeping(original: Any) -> Any:
    @functools.wraps(original)
    def create(kvstore: Any, num_device: int, arg_params: Any) -> Tuple[Any, bool]:
        if isinstance(kvstore, str) and kvstore.lower() in STORES:
            kvstore = mx.kv.create(kvstore)
        return original(kvstore, num_device, arg_params)

    create.byteps_original = original  # type: ignore[attr-defined]
    return create


def _for_module(original: Any) -> Any:
    @functools.wraps(original)
    def create(kvstore: Any, num_device: int, arg_params: Any) -> Tuple[Any, bool]:
        made, update_on_kvstore = original(kvstore, num_device, arg_params)
        return (DistBytePS() if type(made) is BytePS else made), update_on_kvstore

    return create


def _initializing(original: Any) -> Any:
    @functools.wraps(original)
    def initialize(
        kvstore: Any, param_arrays: Any, arg_params: Any, param_names: Any, update_on_kvstore: bool
    ) -> None:
        if not isinstance(kvstore, BytePS):
            original(kvstore, param_arrays, arg_params, param_names, update_on_kvstore)
            return
        for name, targets in zip(param_names, param_arrays):
            kvstore.broadcast(name, arg_params[name], [arg_params[name], *targets])

    return initialize


def _entries(key: Any, value: Any, out: Any) -> List[Tuple[Key, List[NDArray], List[NDArray]]]:
    """(key, its arrays to push, its arrays to fill), for one key or a list of keys."""
    if isinstance(key, (list, tuple)):
        if not len(key) == len(value) == len(out):
            raise ValueError(f"{len(key)} keys, {len(value)} values, {len(out)} outputs: they must be as many")
        return [entry for one in zip(key, value, out) for entry in _entries(*one)]
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    outs = list(out) if isinstance(out, (list, tuple)) else [out]
    for array in values + outs:
        engine.element_kind(array)
    return [(key, values, outs)]


def _refuse(what: str) -> NoReturn:
    raise NotImplementedError(
        f"the kvstore 'byteps' has no {what}(): optimizers run on the workers. With gluon.Trainer, leave "
        "update_on_kvstore out or False"
    )
