"""DistributedOptimizer: an MXNet optimizer whose gradients are averaged over all workers."""

from __future__ import annotations

import math
import numbers
from typing import Any, Dict, List, Optional, Sequence, Tuple, Type, Union

import mxnet as mx
from mxnet.ndarray import NDArray

from byteps._core import abi, session
from byteps._core.compression import Coded, format_of, gradient_compression, packed, with_residual
from byteps._core.exchange import Exchange
from byteps._core.process_sets import ProcessSet, global_process_set, is_member, members_of, scoped
from byteps.mxnet import engine
from byteps.mxnet.compression import Compression, Compressor, float32_count

__all__ = ["DistributedOptimizer"]

Index = Union[int, str, Sequence[Union[int, str]]]


class DistributedOptimizer(mx.optimizer.Optimizer):
    """DistributedOptimizer(optimizer): an optimizer of the same class that averages each gradient over all workers
    before it updates the weight. It shares everything with `optimizer`: a learning rate set on one holds for both.

    For Module.fit(optimizer=...) and gluon.Trainer(..., kvstore=None). All ranks must use the same indices. Gradients
    are named gradient_<index>, and smaller indices go first; those of another optimizer have a number after it, in the
    order of their first use. An update of several weights averages all their gradients before the first is updated.
    Nothing waits: the engine orders all.

    gradient_predivide_factor, num_groups: for compatibility. Sums of 16 bits are made in 32, so that no gradient needs
        to be divided before, and the average is the same; every gradient leaves as soon as it is ready.
    process_set: the ranks that average together. On a rank that is not in it, the optimizer works alone.
    compression: Compression.none, .fp16, .int8 or .int4: what travels.
    """

    def __new__(
        cls,
        optimizer: mx.optimizer.Optimizer,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
        compression: Compressor = Compression.none,
    ) -> Any:
        if isinstance(optimizer, DistributedOptimizer):
            raise ValueError("the optimizer is a DistributedOptimizer already; wrap it once")
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise ValueError(
                f"expected an mx.optimizer.Optimizer, got {type(optimizer).__name__}; "
                "mx.optimizer.create('sgd', learning_rate=0.1) makes one"
            )
        exchange = Gradients(compression, gradient_predivide_factor, num_groups, process_set)
        distributed: Any = object.__new__(_class_over(type(optimizer)))
        distributed.__dict__ = optimizer.__dict__
        distributed._byteps_gradients = exchange
        return distributed

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """The optimizer has its attributes already."""

    def update(self, index: Index, weight: Any, grad: Any, state: Any) -> None:
        _exchange(self, index, grad)
        super().update(index, weight, grad, state)

    def update_multi_precision(self, index: Index, weight: Any, grad: Any, state: Any) -> None:
        _exchange(self, index, grad)
        self._byteps_exchanged = True  # the wrapped class may call update() with what is averaged already
        try:
            super().update_multi_precision(index, weight, grad, state)
        finally:
            self._byteps_exchanged = False

    _byteps_exchanged = False

    def __reduce__(self) -> Tuple[Any, ...]:
        return _bare, (type(self).__mro__[2],), self.__getstate__()


_classes: Dict[type, type] = {}


def _class_over(base: Type[mx.optimizer.Optimizer]) -> type:
    """A class with our methods before those of `base`."""
    if base not in _classes:
        _classes[base] = type(base.__name__, (DistributedOptimizer, base), {})
    return _classes[base]


def _bare(base: Type[mx.optimizer.Optimizer]) -> Any:
    """For pickle."""
    return object.__new__(_class_over(base))


class Gradients:
    """The gradients of one optimizer or trainer: their names, and who averages them. It is pickled with an
    optimizer; the copy has names of its own.

    prefix: stands in the names. With one, they may be those of an earlier owner with that prefix, which is not used any
    more; without, every owner has names of its own. ValueError: a wrong argument."""

    def __init__(
        self,
        compression: Compressor,
        gradient_predivide_factor: float,
        num_groups: int,
        process_set: ProcessSet,
        prefix: Optional[str] = None,
    ) -> None:
        compression = gradient_compression(compression, Compression, process_set=process_set)
        factor: Any = gradient_predivide_factor
        if not isinstance(factor, numbers.Real) or not 0 < float(factor) < math.inf:
            raise ValueError(f"gradient_predivide_factor is {factor!r}: it must be a number larger than 0")
        if isinstance(num_groups, bool) or not isinstance(num_groups, int) or num_groups < 0:
            raise ValueError(f"num_groups is {num_groups!r}: it must be a number of groups, 0 or more")
        if prefix is not None and not isinstance(prefix, str):
            raise ValueError(f"prefix is {prefix!r}: it must be a str")
        self.is_member = is_member(process_set)
        self.members = members_of(process_set) if self.is_member else ()
        self._compression = compression
        self._title = "" if prefix is None else f"{prefix}."
        self._owner: object = object() if prefix is None else prefix
        self._session: Optional[session.Session] = None  # whose names these are, by index
        self._names: Dict[Union[int, str], str] = {}

    @property
    def travel(self) -> bool:
        """False in a job of one, and on a rank that is not in the process set."""
        return self.is_member and not session.job().is_alone

    def push(self, index: Union[int, str], gradients: Sequence[NDArray]) -> None:
        """Averages the gradient with this index: the sum of these, one per device, into all of them. Does not wait."""
        first = gradients[0]
        for other in gradients[1:]:
            first += other.as_in_context(first.context)
        averaged = self._average(index, first) if self.travel else first
        for gradient in gradients:
            if gradient is not averaged:
                averaged.copyto(gradient)

    def _average(self, index: Union[int, str], gradient: NDArray) -> NDArray:
        current = session.current()
        if self._session is not current:
            self._session, self._names = current, {}
        name = self._names.get(index)
        if name is None:
            what = self._compression if isinstance(self._compression, Coded) else type(self._compression)
            meaning = (self._owner, gradient.shape, str(gradient.dtype), what)
            name = current.lasting_name(scoped(f"gradient_{self._title}{index}", self.members), meaning)
            self._names[index] = name
        tensor, context = packed(self._compression, gradient, abi.AVERAGE, float32_count(gradient))
        priority = -index if isinstance(index, int) else 0
        format = format_of(self._compression)
        exchange = Exchange(abi.AVERAGE, members=self.members, priority=priority, format=format)
        engine.push(tensor, with_residual(exchange, name, self._compression, engine.library), name)
        return self._compression.decompress(tensor, context)

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_session": None, "_names": {}}


def _exchange(optimizer: Any, index: Index, grad: Union[NDArray, Sequence[NDArray]]) -> None:
    if optimizer._byteps_exchanged or not optimizer._byteps_gradients.travel:
        return
    indices = index if isinstance(index, (tuple, list)) else [index]
    gradients: List[NDArray] = list(grad) if isinstance(grad, (tuple, list)) else [grad]
    for one, gradient in zip(indices, gradients):
        optimizer._byteps_gradients.push(one, [gradient])
