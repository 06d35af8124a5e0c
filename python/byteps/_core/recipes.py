"""Which optimizers go with which compressors (docs/compression.md, Recipes).

Error feedback of onebit, topk and randomk gives an element its due late and at once. Momentum of the optimizer, outside
of it, adds that up once more: training diverges or learns little. Momentum before the code, the compressor's own, does
not, nor do optimizers without any."""

from __future__ import annotations

import math
import os
import warnings
from typing import Any

from byteps._core import abi
from byteps._core.compression import Coded

__all__ = ["check_recipe", "number_of"]

VARIABLE = "BYTEPS_ALLOW_MOMENTUM_WITH_ERROR_FEEDBACK"
_DELAYING = (abi.FORMAT_ONEBIT, abi.FORMAT_TOPK, abi.FORMAT_RANDOMK)


def check_recipe(compression: Any, optimizer: str, momentum: float, is_sgd: bool) -> None:
    """ValueError: an optimizer with this momentum does not go with the compressor. A warning: it keeps something else
    of gradients (is_sgd is False), and nobody knows. `optimizer`: the name of its class. `momentum`: NaN is some."""
    if not isinstance(compression, Coded):
        return
    is_delaying = compression.error_feedback and compression.format in _DELAYING
    if not is_delaying and compression.momentum is None:
        return
    some = "momentum" if math.isnan(momentum) else f"momentum={momentum}"
    what = f"compression is {compression!r} and {optimizer} has {some}"
    if momentum and not _is_allowed():
        if compression.momentum is not None:
            raise ValueError(
                f"{what}: gradients would have momentum twice. Give the optimizer momentum=0, or the compressor "
                f"momentum=None; {VARIABLE}=1 permits it"
            )
        raise ValueError(
            f"{what}: momentum adds up what error feedback sends late, and training diverges. Give the optimizer "
            f"momentum=0 and the compressor {some}, which is Nesterov's before the code, or use "
            f"Compression.int8 or .int4, which go with any optimizer; {VARIABLE}=1 permits it (docs/compression.md)"
        )
    if not momentum and not is_sgd:
        warnings.warn(
            f"compression is {compression!r}, which goes with SGD without momentum: {optimizer} keeps something of "
            "gradients itself, and may learn less from those that come so. Compression.int8 and .int4 go with any "
            "optimizer (docs/compression.md)",
            stacklevel=4,
        )


def number_of(momentum: Any) -> float:
    """Of an optimizer's attribute: NaN where it is something that says later what it is."""
    try:
        return float(momentum or 0)
    except (TypeError, ValueError):  # a function, a tensor of a graph
        return math.nan


def _is_allowed() -> bool:
    value = os.environ.get(VARIABLE) or "0"
    if value not in ("0", "1"):
        raise ValueError(f"{VARIABLE}={value!r} is not valid: it takes 0 or 1")
    return value == "1"
