"""DistributedOptimizer: an MXNet optimizer whose gradients are averaged over all workers."""

from __future__ import annotations

import math
import numbers
from typing import Any, Dict, List, Optional, Sequence, Tuple, Type, Union

import mxnet as mx
from mxnet.ndarray import NDArray

from byteps._core import abi, session
from byteps._core.choices import gradient_compression
from byteps._core.compression import Coded, check_element, feeds_back, momentum_of, packed, with_memory
from byteps._core.exchange import Exchange
from byteps._core.process_sets import ProcessSet, global_process_set, is_member, members_of, scoped
from byteps._core.recipes import check_recipe, number_of
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
    compression: one of Compression, or compression_params as in the original: what travels (docs/compression.md).
    """

    def __new__(
        cls,
        optimizer: mx.optimizer.Optimizer,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
        compression: Compressor = Compression.none,
        compression_params: Optional[Dict[str, Any]] = None,
    ) -> Any:
        if isinstance(optimizer, DistributedOptimizer):
            raise ValueError("the optimizer is a DistributedOptimizer already; wrap it once")
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise ValueError(
                f"expected an mx.optimizer.Optimizer, got {type(optimizer).__name__}; "
                "mx.optimizer.create('sgd', learning_rate=0.1) makes one"
            )
        compression = gradient_compression(compression, Compression, compression_params, process_set=process_set)
        exchange = Gradients(compression, gradient_predivide_factor, num_groups, process_set)
        check_optimizer(optimizer, exchange.compression)
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
        """`compression`: as gradient_compression() has chosen it."""
        factor: Any = gradient_predivide_factor
        if not isinstance(factor, numbers.Real) or not 0 < float(factor) < math.inf:
            raise ValueError(f"gradient_predivide_factor is {factor!r}: it must be a number larger than 0")
        if isinstance(num_groups, bool) or not isinstance(num_groups, int) or num_groups < 0:
            raise ValueError(f"num_groups is {num_groups!r}: it must be a number of groups, 0 or more")
        if prefix is not None and not isinstance(prefix, str):
            raise ValueError(f"prefix is {prefix!r}: it must be a str")
        self.is_member = is_member(process_set)
        self.members = members_of(process_set) if self.is_member else ()
        self.compression: Any = compression
        self._title = "" if prefix is None else f"{prefix}."
        self._owner: object = object() if prefix is None else prefix
        self._session: Optional[session.Session] = None  # whose names these are, by index
        self._names: Dict[Union[int, str], str] = {}

    @property
    def travel(self) -> bool:
        """False in a job of one, but for the momentum of a compressor, and on a rank that is not in the process set."""
        return self.is_member and not (session.job().is_alone and momentum_of(self.compression) is None)

    @property
    def heed_rates(self) -> bool:
        """Whether push() is to be told the learning rate."""
        return feeds_back(self.compression) and self.compression.is_of_parts

    def push(
        self, index: Union[int, str], gradients: Sequence[NDArray], learning_rate: Optional[float] = None
    ) -> None:
        """Averages the gradient with this index: the sum of these, one per device, into all of them. Does not wait.
        `learning_rate`: of the update with it."""
        first = gradients[0]
        for other in gradients[1:]:
            first += other.as_in_context(first.context)
        averaged = self._average(index, first, learning_rate) if self.travel else first
        for gradient in gradients:
            if gradient is not averaged:
                averaged.copyto(gradient)

    def _average(self, index: Union[int, str], gradient: NDArray, learning_rate: Optional[float]) -> NDArray:
        current = session.current()
        if self._session is not current:
            self._session, self._names = current, {}
        name = self._names.get(index)
        if name is None:
            what = self.compression if isinstance(self.compression, Coded) else type(self.compression)
            meaning = (self._owner, gradient.shape, str(gradient.dtype), what)
            name = current.lasting_name(scoped(f"gradient_{self._title}{index}", self.members), meaning)
            self._names[index] = name
        tensor, context = packed(self.compression, gradient, abi.AVERAGE, float32_count(gradient))
        priority = -index if isinstance(index, int) else 0
        check_element(self.compression, name, gradient.dtype)
        exchange = Exchange(abi.AVERAGE, members=self.members, priority=priority)
        exchange = with_memory(exchange, name, self.compression, engine.library)
        if self.heed_rates:
            ratio = self.compression.residuals.rates.ratio(name, learning_rate)
            exchange = exchange._replace(residual_ratio=ratio)
        engine.push(tensor, exchange, name)
        return self.compression.decompress(tensor, context)

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_session": None, "_names": {}}


def check_optimizer(optimizer: mx.optimizer.Optimizer, compression: Any) -> None:
    """ValueError, or a warning: it does not go with the compressor."""
    is_sgd = isinstance(optimizer, (mx.optimizer.SGD, mx.optimizer.NAG))
    check_recipe(compression, type(optimizer).__name__, number_of(getattr(optimizer, "momentum", 0.0)), is_sgd)


def _exchange(optimizer: Any, index: Index, grad: Union[NDArray, Sequence[NDArray]]) -> None:
    if optimizer._byteps_exchanged or not optimizer._byteps_gradients.travel:
        return
    indices = index if isinstance(index, (tuple, list)) else [index]
    gradients: List[NDArray] = list(grad) if isinstance(grad, (tuple, list)) else [grad]
    exchange = optimizer._byteps_gradients
    for one, gradient in zip(indices, gradients):
        exchange.push(one, [gradient], optimizer.learning_rate if exchange.heed_rates else None)
