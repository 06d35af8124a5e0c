"""What a reduction does: op=, average=, prescale_factor= and postscale_factor= of all framework layers."""

from __future__ import annotations

import enum
import math
from typing import NamedTuple, Optional, Union

from byteps._core import abi

__all__ = ["Adasum", "Average", "Max", "Min", "Product", "ReduceOp", "Reduction", "Sum", "op_of", "resolve"]


class ReduceOp(str, enum.Enum):
    """How the tensors of all ranks become one. Equal to its name: ReduceOp.Sum == "Sum"."""

    Average = "Average"
    Sum = "Sum"
    Adasum = "Adasum"
    Min = "Min"
    Max = "Max"
    Product = "Product"

    def __str__(self) -> str:
        return self.value


Average = ReduceOp.Average
Sum = ReduceOp.Sum
Adasum = ReduceOp.Adasum
Min = ReduceOp.Min
Max = ReduceOp.Max
Product = ReduceOp.Product

_OPERATIONS = {
    Average: abi.AVERAGE,
    Sum: abi.SUM,
    Min: abi.MIN,
    Max: abi.MAX,
    Product: abi.PRODUCT,
}


class Reduction(NamedTuple):
    """With what an Exchange begins: Exchange(*reduction, ...)."""

    operation: int
    scale: float = 0.0


def op_of(average: Optional[bool]) -> ReduceOp:
    """What the older argument means: True and None are Average, what is false is Sum."""
    if isinstance(average, str):  # as a ReduceOp is
        raise ValueError(f"average is {average}: give it by name, op={average}; average is True or False")
    return Average if average is None or average else Sum


def resolve(
    op: Union[ReduceOp, str, None] = None,
    average: Optional[bool] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Reduction:
    """What the arguments of a framework's call mean; without any, the average. ValueError says which one is wrong.

    The factors are applied together, once, to the reduced values: prescale * sum(x) * postscale is what
    sum(x * prescale) * postscale is, without rounding in between. So they go with Sum and Average only."""
    if op is not None and average is not None:
        raise ValueError("op and average were both given: average is the older name of op, give op alone")
    if op is None:
        op = op_of(average)
    try:
        known = ReduceOp(op)
    except ValueError:
        names = ", ".join(each for each in ReduceOp.__members__ if each != "Adasum")
        raise ValueError(f"op is {op!r}: it must be one of {names}") from None
    if known is Adasum:
        raise ValueError("op is Adasum, which is not supported: use Average, with the learning rate scaled by hand")
    for name, factor in (("prescale_factor", prescale_factor), ("postscale_factor", postscale_factor)):
        try:
            is_fit = math.isfinite(factor) and factor != 0
        except TypeError:  # no number
            is_fit = False
        if not is_fit:
            raise ValueError(f"{name} is {factor!r}: it must be a finite number other than 0")
    scale = float(prescale_factor) * float(postscale_factor)
    if scale == 1.0:
        return Reduction(_OPERATIONS[known], 0.0)
    if known not in (Average, Sum):
        raise ValueError(f"op is {known}: prescale_factor and postscale_factor go with Sum and Average only")
    return Reduction(_OPERATIONS[known], scale)
