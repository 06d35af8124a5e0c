"""Fewer bytes on the wire: compress before the push, decompress after the pull.

A compressor is an object with compress(array) -> (array, context) and decompress(array, context) -> array. Both only
push operations onto the engine. Sums of 16-bit elements are made in 32 bits at the servers and rounded once.
"""

from __future__ import annotations

from typing import Any, Tuple

import numpy as np
from mxnet.ndarray import NDArray

from byteps._core import abi
from byteps._core.choices import Codes

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


def float32_count(tensor: Any) -> int:
    """Of its elements; 0: those are others."""
    return int(tensor.size) if isinstance(tensor, NDArray) and tensor.dtype == np.float32 else 0


class Compressor:
    """The interface."""

    def compress(self, tensor: NDArray) -> Tuple[NDArray, Any]:
        """What to push, and a context for decompress()."""
        raise NotImplementedError

    def decompress(self, tensor: NDArray, ctx: Any) -> NDArray:
        raise NotImplementedError


class NoneCompressor(Compressor):
    """The array as it is."""

    def compress(self, tensor: NDArray) -> Tuple[NDArray, Any]:
        return tensor, None

    def decompress(self, tensor: NDArray, ctx: Any) -> NDArray:
        return tensor


class FP16Compressor(Compressor):
    """Floating-point arrays in 16 bits; others as they are. Values above 65504 overflow."""

    format = abi.FORMAT_FLOAT16

    def compress(self, tensor: NDArray) -> Tuple[NDArray, Any]:
        if tensor.dtype in (np.float32, np.float64):
            return tensor.astype("float16"), tensor.dtype
        return tensor, None

    def decompress(self, tensor: NDArray, ctx: Any) -> NDArray:
        return tensor if ctx is None else tensor.astype(ctx)


class Compression(Codes):
    """The compressors to choose from."""

    none = NoneCompressor()
    fp16 = FP16Compressor()
