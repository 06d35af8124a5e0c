"""What the compressors of all framework layers share: compress before the push, decompress after the pull.

A compressor is a class with two methods that need no instance, compress(tensor) -> (tensor, context) and
decompress(tensor, context) -> tensor. Sums of 16-bit elements are made in 32 bits at the servers and rounded once.
"""

from __future__ import annotations

from typing import Any, Tuple

__all__ = ["CastCompressor", "Compressor", "NoneCompressor", "checked_compression"]


def checked_compression(compression: Any) -> Any:
    """`compression`, a compressor. ValueError for what is none, as its name is."""
    if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        raise ValueError(f"compression is {compression!r}: use one of Compression, as Compression.none or .fp16")
    return compression


class Compressor:
    """The interface."""

    @staticmethod
    def compress(tensor: Any) -> Tuple[Any, Any]:
        """What to push, and a context for decompress()."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        raise NotImplementedError


class NoneCompressor(Compressor):
    """The tensor as it is."""

    @staticmethod
    def compress(tensor: Any) -> Tuple[Any, None]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: None) -> Any:
        return tensor


class CastCompressor(Compressor):
    """Tensors of the dtypes `wide` as `wire_dtype`; others, and those of 16 bits already, as they are."""

    wide: Tuple[Any, ...] = ()
    wire_dtype: Any = None

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """`tensor` in another dtype, by the means of its framework."""
        raise NotImplementedError

    @classmethod
    def compress(cls, tensor: Any) -> Tuple[Any, Any]:
        if tensor.dtype in cls.wide:
            return cls.cast(tensor, cls.wire_dtype), tensor.dtype
        return tensor, None

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else cls.cast(tensor, ctx)
