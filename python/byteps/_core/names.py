"""The part of a gradient's name that comes from its variable, for layers whose variables are named by Keras."""

from __future__ import annotations

import re
from typing import Any


def plain_path(variable: Any) -> str:
    """The last layer's and the variable's own name, without the numbers that Keras gives to names: "dense/kernel". What
    stands before depends on how a rank has come by its model."""
    path = str(getattr(variable, "path", None) or getattr(variable, "name", "variable")).split(":")[0]
    return re.sub(r"_\d+(?=[_/]|$)", "", "/".join(path.split("/")[-2:]))
