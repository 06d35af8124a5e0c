"""What a reduction of tensors is: its arguments checked, and many tensors reduced at once."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence, Type, Union

import tensorflow as tf

from byteps._core import abi, session
from byteps._core.compression import check_element, checked_compression, coded, packed, with_memory
from byteps._core.exchange import Exchange
from byteps._core.process_sets import ProcessSet, members_of, scoped
from byteps._core.reduction import ReduceOp, resolve
from byteps.tensorflow import native
from byteps.tensorflow.compression import Compression, Compressor
from byteps.tensorflow.exchange import exchange

Op = Union[ReduceOp, str, None]


class Reduce(NamedTuple):
    """A reduction whose arguments have been checked."""

    what: Exchange  # without what one tensor has
    member_count: int
    compression: Type[Compressor]
    factors: "tuple[float, float]" = (1.0, 1.0)  # before and after the reduction; `what.scale` is both

    @classmethod
    def of(
        cls,
        op: Op = None,
        average: Optional[bool] = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: Optional[ProcessSet] = None,
        compression: Type[Compressor] = Compression.none,
    ) -> "Reduce":
        meaning = resolve(op, average, prescale_factor, postscale_factor)
        what = coded(Exchange(*meaning, members=members_of(process_set)), checked_compression(compression))
        member_count, factors = len(what.members) or session.size(), (prescale_factor, postscale_factor)
        return cls(what, member_count, compression, factors)

    @property
    def is_average(self) -> bool:
        return self.what.operation == abi.AVERAGE

    @property
    def is_linear(self) -> bool:
        """Average or Sum."""
        return self.what.operation in (abi.AVERAGE, abi.SUM)

    def factor(self, there: Any) -> Any:
        """What a sum of so many ranks is multiplied by. An average is of those that are in it, which may be fewer than
        all: one may be lost."""
        scale = self.what.scale or 1.0
        return scale / tf.cast(there, tf.float64) if self.is_average else scale

    def of_integers(self, tensor: tf.Tensor) -> "tuple[tf.Tensor, Reduce]":
        """What is reduced, and how: integers are multiplied by the first factor here, on each rank, towards zero, as
        Horovod does. Averages of them are those of floats, as TensorFlow divides. Other tensors as they are."""
        if not tensor.dtype.is_integer:
            return tensor, self
        reduction, (before, after) = self, self.factors
        if before != 1.0:
            tensor = tf.cast(tf.cast(tensor, tf.float64) * before, tensor.dtype)
            what = self.what._replace(scale=0.0 if after == 1.0 else after)
            reduction = self._replace(what=what, factors=(1.0, after))
        if self.is_average:
            # What truediv makes of these, and exact to 24 and 53 bits.
            tensor = tf.cast(tensor, tf.float32 if tensor.dtype.size <= 2 else tf.float64)
            reduction = reduction._replace(compression=Compression.none)
        return tensor, reduction

    def dense(
        self, tensors: Sequence[tf.Tensor], names_: Sequence[str], once: bool, priorities: Sequence[int] = ()
    ) -> List[tf.Tensor]:
        """All of them at once."""
        if self.is_average or self.factors[0] != 1.0:
            if any(tensor.dtype.is_integer for tensor in tensors):
                return self._of_integers_too(tensors, names_, once, priorities)
        operation = self.what.operation
        sent = [packed(self.compression, tensor, operation, _float32_count(tensor)) for tensor in tensors]
        what = self.what._replace(once=once)
        for name, tensor in zip(names_, tensors):
            check_element(self.compression, name, tensor.dtype.name)
            what = with_memory(what, scoped(name, what.members), self.compression, native.library)
        results = exchange([tensor for tensor, _ in sent], names_, what, priorities)
        return [self.compression.decompress(result, context) for result, (_, context) in zip(results, sent)]

    def _of_integers_too(
        self, tensors: Sequence[tf.Tensor], names_: Sequence[str], once: bool, priorities: Sequence[int]
    ) -> List[tf.Tensor]:
        results: List[Optional[tf.Tensor]] = [None] * len(tensors)
        for is_integer in (False, True):
            chosen = [i for i, tensor in enumerate(tensors) if tensor.dtype.is_integer == is_integer]
            if not chosen:
                continue
            prepared = [self.of_integers(tensors[i]) for i in chosen]
            part = prepared[0][1] if is_integer else self._replace(factors=(1.0, 1.0))  # `what.scale` has both
            order = [priorities[i] for i in chosen] if priorities else []
            found = part.dense([tensor for tensor, _ in prepared], [names_[i] for i in chosen], once, order)
            for i, result in zip(chosen, found):
                results[i] = result
        return [result for result in results if result is not None]


def _float32_count(tensor: tf.Tensor) -> int:
    """Of its elements; 0: another dtype, or a shape that is known later."""
    return (tensor.shape.num_elements() or 0) if tensor.dtype == tf.float32 else 0
