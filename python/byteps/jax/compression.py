"""Fewer bytes on the wire: 16 bits instead of 32 or 64, or coded by the core (byteps/_core/compression.py). They work
inside jit as well."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from byteps._core import abi
from byteps._core.choices import Codes
from byteps._core.compression import CastCompressor, Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class _CastCompressor(CastCompressor):
    wide = (jnp.float32, jnp.float64)

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        return tensor.astype(dtype)


class FP16Compressor(_CastCompressor):
    """11 bits of precision, up to 65504: for gradients that are scaled so that they do not overflow."""

    wire_dtype = jnp.float16
    format = abi.FORMAT_FLOAT16


class BF16Compressor(_CastCompressor):
    """8 bits of precision, the range of float32: nothing overflows."""

    wire_dtype = jnp.bfloat16
    format = abi.FORMAT_BFLOAT16


class Compression(Codes):
    """The compressors to choose from."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
