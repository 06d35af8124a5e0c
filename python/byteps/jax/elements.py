"""What of JAX's dtypes travels, and as what."""

from __future__ import annotations

from typing import Any, Tuple

import jax.numpy as jnp
import numpy as np

from byteps._core import abi

_KINDS = {
    np.dtype(dtype): kind
    for dtype, kind in (
        (np.float32, abi.FLOAT32),
        (np.float64, abi.FLOAT64),
        (np.float16, abi.FLOAT16),
        (jnp.bfloat16, abi.BFLOAT16),
        (np.uint8, abi.UINT8),
        (np.uint16, abi.UINT16),
        (np.uint32, abi.UINT32),
        (np.uint64, abi.UINT64),
        (np.int8, abi.INT8),
        (np.int16, abi.INT16),
        (np.int32, abi.INT32),
        (np.int64, abi.INT64),
        (np.bool_, abi.BOOL),
    )
}
_COMPLEX = {np.dtype(np.complex64): abi.FLOAT32, np.dtype(np.complex128): abi.FLOAT64}


def kind(dtype: Any, operation: int) -> Tuple[int, int]:
    """(byteps_dtype, how many such elements make one of `dtype`). ValueError when the operation is not defined."""
    dtype = np.dtype(dtype)
    if dtype in _KINDS:
        if dtype == np.bool_ and operation == abi.AVERAGE:
            raise ValueError("the average of a bool array is not defined; op=Sum gives the logical or")
        return _KINDS[dtype], 1
    if dtype in _COMPLEX and operation in (abi.SUM, abi.AVERAGE):
        return _COMPLEX[dtype], 2
    if dtype.name in ("int2", "uint2", "int4", "uint4"):
        raise ValueError(f"dtype {dtype.name} is not supported: elements of less than a byte; use int8")
    if operation == abi.BROADCAST:
        return abi.UINT8, dtype.itemsize
    supported = ", ".join(known.name for known in _KINDS)
    hint = "; complex arrays have op=Sum and op=Average" if dtype in _COMPLEX else ""
    raise ValueError(f"dtype {dtype.name} is not supported here. These are: {supported}{hint}.")

