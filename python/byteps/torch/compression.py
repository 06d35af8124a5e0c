"""Fewer bytes on the wire: 16 bits instead of 32 or 64, or coded by the core (byteps/_core/compression.py)."""

from __future__ import annotations

from typing import Any

import torch

from byteps._core import abi
from byteps._core.choices import Codes
from byteps._core.compression import CastCompressor, Compressor, NoneCompressor
from byteps.torch.powersgd import powersgd

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


def float32_count(tensor: Any) -> int:
    """Of its elements, where these are of float32 and in the host's memory; else 0."""
    if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float32 and tensor.device.type == "cpu":
        return tensor.numel()
    return 0


class _CastCompressor(CastCompressor):
    wide = (torch.float32, torch.float64)

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        return tensor.to(dtype)


class FP16Compressor(_CastCompressor):
    """11 bits of precision, up to 65504: for gradients that are scaled so that they do not overflow."""

    wire_dtype = torch.float16
    format = abi.FORMAT_FLOAT16


class BF16Compressor(_CastCompressor):
    """8 bits of precision, the range of float32: nothing overflows."""

    wire_dtype = torch.bfloat16
    format = abi.FORMAT_BFLOAT16


class Compression(Codes):
    """The compressors to choose from."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    powersgd = staticmethod(powersgd)
