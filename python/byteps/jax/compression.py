"""Fewer bytes on the wire: compress before the push, decompress after the pull.

A compressor is a class with two static methods, compress(array) -> (array, context) and
decompress(array, context) -> array, made of jax.numpy, so that they work inside jit as well. Sums of 16-bit elements
are made in 32 bits at the servers and rounded once.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

import jax
import jax.numpy as jnp

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class Compressor:
    """The interface."""

    @staticmethod
    def compress(array: jax.Array) -> Tuple[jax.Array, Any]:
        """What to push, and a context for decompress()."""
        raise NotImplementedError

    @staticmethod
    def decompress(array: jax.Array, context: Any) -> jax.Array:
        raise NotImplementedError


class NoneCompressor(Compressor):
    """The array as it is."""

    @staticmethod
    def compress(array: jax.Array) -> Tuple[jax.Array, None]:
        return array, None

    @staticmethod
    def decompress(array: jax.Array, context: None) -> jax.Array:
        return array


class _CastCompressor(Compressor):
    """Arrays of 32 and 64-bit floats in 16 bits; others as they are."""

    wire_dtype: Any

    @classmethod
    def compress(cls, array: jax.Array) -> Tuple[jax.Array, Optional[Any]]:  # type: ignore[override]
        if array.dtype in (jnp.float32, jnp.float64):
            return array.astype(cls.wire_dtype), array.dtype
        return array, None

    @staticmethod
    def decompress(array: jax.Array, context: Optional[Any]) -> jax.Array:
        return array if context is None else array.astype(context)


class FP16Compressor(_CastCompressor):
    """11 bits of precision, up to 65504: for gradients that are scaled so that they do not overflow."""

    wire_dtype = jnp.float16


class BF16Compressor(_CastCompressor):
    """8 bits of precision, the range of float32: nothing overflows."""

    wire_dtype = jnp.bfloat16


class Compression:
    """The compressors to choose from."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
