"""What of numpy's dtypes travels, and as what: for the layers whose arrays numpy knows."""

from __future__ import annotations

from typing import Any, Sequence, Tuple

from byteps._core import abi

# By name, because bfloat16 is known to numpy only where another package has told it.
_KINDS = {
    "float32": abi.FLOAT32,
    "float64": abi.FLOAT64,
    "float16": abi.FLOAT16,
    "bfloat16": abi.BFLOAT16,
    "uint8": abi.UINT8,
    "uint16": abi.UINT16,
    "uint32": abi.UINT32,
    "uint64": abi.UINT64,
    "int8": abi.INT8,
    "int16": abi.INT16,
    "int32": abi.INT32,
    "int64": abi.INT64,
    "bool": abi.BOOL,
}
NAMES = {kind: name for name, kind in _KINDS.items()}
_COMPLEX = {"complex64": abi.FLOAT32, "complex128": abi.FLOAT64}


def row_shape(shape: Sequence[int], width: int) -> Tuple[int, ...]:
    """`row_shape` of Rows for an array whose elements are each `width` of the core's (kind())."""
    return (*shape[1:], width) if width > 1 else tuple(shape[1:])


def kind(dtype: Any, operation: int) -> Tuple[int, int]:
    """(byteps_dtype, how many such elements make one of `dtype`, a dtype of numpy). What is only moved, by a BROADCAST,
    may be anything of whole bytes. ValueError when the operation is not defined for it."""
    name = dtype.name
    if name in _KINDS:
        if name == "bool" and operation == abi.AVERAGE:
            raise ValueError("the average of a bool array is not defined; op=Sum gives the logical or")
        return _KINDS[name], 1
    if name in _COMPLEX and operation in (abi.SUM, abi.AVERAGE):
        return _COMPLEX[name], 2
    if name in ("int2", "uint2", "int4", "uint4"):
        raise ValueError(f"dtype {name} is not supported: elements of less than a byte; use int8")
    if operation == abi.BROADCAST:
        return abi.UINT8, dtype.itemsize
    hint = "; complex arrays have op=Sum and op=Average" if name in _COMPLEX else ""
    raise ValueError(f"dtype {name} is not supported here. These are: {', '.join(_KINDS)}{hint}.")
