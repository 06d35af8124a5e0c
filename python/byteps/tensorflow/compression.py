"""Fewer bytes on the wire: compress before the push, decompress after the pull.

A compressor is a class with two static methods, compress(tensor) -> (tensor, context) and
decompress(tensor, context) -> tensor. Sums of 16-bit elements are made in 32 bits at the servers and rounded once.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

import tensorflow as tf

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class Compressor:
    """The interface."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> Tuple[tf.Tensor, Any]:
        """What to push, and a context for decompress()."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        raise NotImplementedError


class NoneCompressor(Compressor):
    """The tensor as it is."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> Tuple[tf.Tensor, None]:
        return tensor, None

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: None) -> tf.Tensor:
        return tensor


class _CastCompressor(Compressor):
    """Floating-point tensors in 16 bits; others, and those of 16 bits already, as they are."""

    wire_dtype: tf.DType

    @classmethod
    def compress(cls, tensor: tf.Tensor) -> Tuple[tf.Tensor, Optional[tf.DType]]:  # type: ignore[override]
        if tensor.dtype in (tf.float32, tf.float64):
            return tf.cast(tensor, cls.wire_dtype), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Optional[tf.DType]) -> tf.Tensor:
        return tensor if ctx is None else tf.cast(tensor, ctx)


class FP16Compressor(_CastCompressor):
    """11 bits of precision, up to 65504: for gradients that are scaled so that they do not overflow."""

    wire_dtype = tf.float16


class BF16Compressor(_CastCompressor):
    """8 bits of precision, the range of float32: nothing overflows."""

    wire_dtype = tf.bfloat16


class Compression:
    """The compressors to choose from."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
