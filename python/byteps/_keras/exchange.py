"""What one DistributedOptimizer was told, and how its gradients are called.

A gradient is its name, so the name of a variable's gradient must be the same on all ranks, and no two optimizers may
share one. Keras numbers layers as a process makes them ("dense_3"), which ranks that made different models before do
not agree about. Hence the name: Gradient.<optimizer>.<index of the variable>.<layer>/<variable>, without such numbers.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Iterable, List, NamedTuple, Optional, Sequence

from byteps._core import session
from byteps._core.compression import checked_compression
from byteps._core.names import plain_path
from byteps._core.process_sets import is_member
from byteps._core.recipes import check_recipe, number_of
from byteps._core.reduction import Average, ReduceOp, Sum, resolve


class Slot(NamedTuple):
    """One variable's gradient."""

    gradient: Any  # a tensor of the framework, dense or sparse, or None
    variable: Any  # a Keras or framework variable
    name: str
    priority: int  # larger goes first


class GradientExchange:
    """Constant once the optimizer has been used.

    op                    Average or Sum
    compression           an object with compress(tensor) -> (tensor, context) and decompress(tensor, context)
    predivide             gradients are divided by it before the sum and multiplied after it
    sparse_as_dense       sparse gradients are made dense before they travel
    process_set           None: all ranks; on the others gradients stay as they are
    """

    def __init__(
        self,
        op: Any,
        compression: Any,
        predivide: float,
        sparse_as_dense: bool,
        process_set: Any,
        name: Optional[str],
        passes: int,
        average_passes: bool,
    ) -> None:
        self.op = checked_operation(op)
        if predivide != 1.0 and self.op != Average:
            raise ValueError("gradient_predivide_factor is for op=Average; with op=Sum scale the loss")
        if not predivide > 0:
            raise ValueError(f"gradient_predivide_factor is {predivide}: it must be larger than 0")
        if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
            raise ValueError(f"backward_passes_per_step is {passes!r}: it must be at least 1")
        if getattr(checked_compression(compression), "for_optimizers", False):
            raise ValueError(f"compression is {compression!r}: it is for optimizers of torch, not for those of Keras")
        self.compression = compression
        self.predivide = float(predivide)
        self.sparse_as_dense = bool(sparse_as_dense)
        self.process_set = process_set
        self.passes = passes
        # Keras averages what it accumulates; Horovod and BytePS add it up.
        self.factor = 1.0 if average_passes else float(passes)
        self._title = name
        self._number = ""  # in place of a title
        self._job: Callable[[], Any] = lambda: None  # in which the number holds; a weak reference, which can be copied
        self._local_layers: List[Any] = []
        self._is_scaled_locally = False
        self.accumulated_for: List[Any] = []  # the variables of the gradients that Keras clips next
        self.of_backend: Any = None  # what the backend's module keeps for this optimizer

    @property
    def title(self) -> str:
        """The optimizer in the names. Numbered at its first use in a job, not when it is made: a rank may make
        optimizers that it never uses, and may have used some before, in another job."""
        if self._title is not None:
            return self._title
        current = session.current()
        if self._job() is not current.job:
            self._number = current.unique_name("Keras optimizer").rsplit(".", 1)[1]
            self._job = weakref.ref(current.job)
        return self._number

    def keep_local(self, layers: Optional[Iterable[Any]], scaled: bool) -> None:
        """Gradients of these layers' weights do not travel. `scaled`: they are divided by the number of ranks, so that
        they weigh as they would in the average. The layers need not be built yet."""
        self._local_layers = [layers] if hasattr(layers, "trainable_weights") else list(layers or ())
        for layer in self._local_layers:
            if not hasattr(layer, "trainable_weights"):
                raise ValueError(f"local_layers has {layer!r}: they must be layers")
        self._is_scaled_locally = scaled

    def combine(self, slots: Sequence[Slot], backend: Any) -> List[Any]:
        """The combined gradients, in the order of `slots`. `backend` is the module that exchanges."""
        if not is_member(self.process_set):
            return backend.scaled([slot.gradient for slot in slots], self.factor)
        local = {id(weight) for layer in self._local_layers for weight in layer.trainable_weights}
        combined = iter(backend.push_pull([slot for slot in slots if id(slot.variable) not in local], self))
        ranks = self.process_set.size() if self.process_set is not None else session.size()
        factor = self.factor / (ranks if self._is_scaled_locally else 1)
        return [
            backend.scaled([slot.gradient], factor)[0] if id(slot.variable) in local else next(combined)
            for slot in slots
        ]

    def slot(self, index: int, variable: Any, gradient: Any) -> Slot:
        return Slot(gradient, variable, f"Gradient.{self.title}.{index}.{plain_path(variable)}", -index)


def check_optimizer(optimizer: Any, compression: Any) -> None:
    """ValueError, or a warning: an optimizer of Keras that does not go with the compressor."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    momentum = number_of(getattr(inner, "momentum", 0.0))
    is_sgd = any(kind.__name__ == "SGD" for kind in type(inner).__mro__)
    check_recipe(compression, type(inner).__name__, momentum, is_sgd)


def checked_operation(op: Any) -> ReduceOp:
    """Average or Sum; ValueError for others."""
    resolve(op)  # says what is wrong with it
    if ReduceOp(op) not in (Average, Sum):
        raise ValueError(f"op is {op}: gradients are combined by Average or Sum")
    return ReduceOp(op)


def scaled(tensors: List[Any], factor: float) -> List[Any]:
    """Each tensor times `factor`; None stays."""
    return tensors if factor == 1.0 else [None if tensor is None else tensor * factor for tensor in tensors]
