"""DistributedOptimizer: an MXNet optimizer whose gradients are averaged over all workers."""

from __future__ import annotations

from typing import Any, Dict, Sequence, Tuple, Type, Union

import mxnet as mx
from mxnet.ndarray import NDArray

from byteps._core import abi, session
from byteps.mxnet import engine
from byteps.mxnet.compression import Compression, Compressor

__all__ = ["DistributedOptimizer"]

Index = Union[int, str, Sequence[Union[int, str]]]


class DistributedOptimizer(mx.optimizer.Optimizer):
    """DistributedOptimizer(optimizer): an optimizer of the same class that averages each gradient over all workers
    before it updates the weight. It shares everything with `optimizer`: a learning rate set on one holds for both.

    For Module.fit(optimizer=...) and gluon.Trainer(..., kvstore=None). All ranks must use the same indices. Gradients
    are named gradient_<index>, and smaller indices go first. An update of several weights averages all their gradients
    before the first is updated. Nothing waits: the engine orders all.
    """

    def __new__(cls, optimizer: mx.optimizer.Optimizer, compression: Compressor = Compression.none) -> Any:
        if isinstance(optimizer, DistributedOptimizer):
            raise ValueError("the optimizer is a DistributedOptimizer already; wrap it once")
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise ValueError(
                f"expected an mx.optimizer.Optimizer, got {type(optimizer).__name__}; "
                "mx.optimizer.create('sgd', learning_rate=0.1) makes one"
            )
        distributed = object.__new__(_class_over(type(optimizer)))
        distributed.__dict__ = optimizer.__dict__
        distributed._byteps_compression = compression
        return distributed

    def __init__(self, optimizer: mx.optimizer.Optimizer, compression: Compressor = Compression.none) -> None:
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


def _exchange(optimizer: Any, index: Index, grad: Union[NDArray, Sequence[NDArray]]) -> None:
    if optimizer._byteps_exchanged or session.job().server_count == 0:
        return
    indices = index if isinstance(index, (tuple, list)) else [index]
    gradients = grad if isinstance(grad, (tuple, list)) else [grad]
    current = session.current()
    for one, gradient in zip(indices, gradients):
        meaning = (gradient.shape, str(gradient.dtype), type(optimizer._byteps_compression))
        name = current.lasting_name(f"gradient_{one}", meaning)
        tensor, context = optimizer._byteps_compression.compress(gradient)
        engine.push(tensor, abi.AVERAGE, name, priority=-one if isinstance(one, int) else 0)
        averaged = optimizer._byteps_compression.decompress(tensor, context)
        if averaged is not gradient:
            averaged.copyto(gradient)
