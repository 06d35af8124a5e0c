"""What dtypes travel as: of the layers whose arrays numpy knows, and by name of all.

A kind is a byteps_dtype, with a byteps_logical_type above it where elements travel as others: ranks that differ in that
are refused, and the error names both.
"""

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
# byteps_logical_type
_LOGICAL = {
    "complex32": 1,
    "complex64": 2,
    "complex128": 3,
    "float8_e4m3fn": 4,
    "float8_e5m2": 5,
    "float8_e4m3fnuz": 6,
    "float8_e5m2fnuz": 7,
    "float8_e8m0fnu": 8,
    "float8_e4m3": 9,
    "float8_e3m4": 10,
    "float8_e4m3b11fnuz": 11,
    "float4_e2m1fn_x2": 12,
}
_LOGICAL_NAMES = {number: name for name, number in _LOGICAL.items()}
_COMPLEX = {"complex32": abi.FLOAT16, "complex64": abi.FLOAT32, "complex128": abi.FLOAT64}


def standing_for(name: str, dtype: int) -> int:
    """The kind of elements of the dtype `name` that travel as `dtype`."""
    return dtype | _LOGICAL.get(name, 0) << 8


def dtype_of(kind: int) -> int:
    """The byteps_dtype of a kind."""
    return kind & 0xFF


def name_of(kind: int) -> str:
    return _LOGICAL_NAMES.get(kind >> 8) or NAMES[dtype_of(kind)]


def row_shape(shape: Sequence[int], width: int) -> Tuple[int, ...]:
    """`row_shape` of Rows for an array whose elements are each `width` of the core's (kind())."""
    return (*shape[1:], width) if width > 1 else tuple(shape[1:])


def check_operation(kind: int, operation: int, noun: str) -> None:
    """ValueError when the operation is not defined for elements of this kind. `noun`: what a framework calls that which
    has them."""
    if kind == abi.BOOL and operation == abi.AVERAGE:
        raise ValueError(f"the average of a bool {noun} is not defined; its sum is the logical or")


def of_name(name: str, operation: int, noun: str = "array", prefix: str = "") -> Tuple[int, int]:
    """(the kind of a dtype's elements, how many such elements make one of them; 0: as many as it has bytes). What is
    only moved, by a BROADCAST, may be anything of whole bytes. ValueError when the operation is not defined for it.
    `prefix`: before the name where the framework's users see it."""
    known = _KINDS.get(name)
    if known is not None:
        check_operation(known, operation, noun)
        return known, 1
    if operation == abi.BROADCAST:
        return standing_for(name, abi.UINT8), 0
    if name not in _COMPLEX:
        supported = ", ".join((*_KINDS, *_COMPLEX))
        raise ValueError(f"Tensor type {prefix}{name} is not supported. These are: {supported}.")
    if operation not in (abi.SUM, abi.AVERAGE):
        raise ValueError(
            f"Tensor type {prefix}{name} is not supported here: complex numbers have op=Sum and op=Average, but no "
            "minimum, maximum or product"
        )
    return standing_for(name, _COMPLEX[name]), 2


def kind(dtype: Any, operation: int) -> Tuple[int, int]:
    """of_name() of a dtype of numpy, the number never 0."""
    if dtype.name in ("int2", "uint2", "int4", "uint4"):
        raise ValueError(f"dtype {dtype.name} is not supported: elements of less than a byte; use int8")
    known, width = of_name(dtype.name, operation)
    return known, width or dtype.itemsize
