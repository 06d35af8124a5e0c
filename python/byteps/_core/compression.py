"""What the compressors of all framework layers share. There are two kinds.

Casts compress before the push and decompress after the pull: classes with two methods that need no instance,
compress(tensor) -> (tensor, context) and decompress(tensor, context) -> tensor. Sums of 16-bit elements are made in
32 bits at the servers and rounded once.

Coded formats (Coded) leave the tensor as it is: the core codes what travels, where that is a sum or an average of
float32 of at least BYTEPS_MIN_COMPRESS_BYTES. Other tensors travel as they are.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Tuple

from byteps._core import abi

__all__ = [
    "CastCompressor",
    "Coded",
    "Compressor",
    "INT4",
    "INT8",
    "NoneCompressor",
    "checked_cast",
    "checked_compression",
    "checked_stateless",
    "format_of",
]

def checked_compression(compression: Any) -> Any:
    """`compression`, a compressor. ValueError for what is none, as its name is."""
    if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        raise ValueError(f"compression is {compression!r}: use one of Compression, as Compression.none or .fp16")
    return compression


def checked_cast(compression: Any, where: str) -> Any:
    """The same where nothing is coded."""
    if isinstance(checked_compression(compression), Coded):
        raise ValueError(f"compression is {compression!r}: {where} codes nothing; use Compression.none, .fp16 or .bf16")
    return compression


def checked_stateless(compression: Any) -> Any:
    """The same where nothing is kept from one call to the next."""
    if isinstance(checked_compression(compression), Coded) and compression.error_feedback:
        raise ValueError(
            f"compression is {compression!r}: error feedback is kept by an optimizer; give it to DistributedOptimizer, "
            f"or use Compression.{compression.title} here"
        )
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


class Coded(NamedTuple):
    """Compression.int8 and .int4, and with error feedback Compression.int8(error_feedback=True): what the codes of one
    round leave of the elements is added to those of the next."""

    title: str
    format: int  # abi.FORMAT_INT8, ...
    error_feedback: bool = False

    def __call__(self, error_feedback: bool = True) -> "Coded":
        return self._replace(error_feedback=bool(error_feedback))

    def __repr__(self) -> str:
        return f"Compression.{self.title}" + ("(error_feedback=True)" if self.error_feedback else "")

    # Where a layer asks no more of a compressor.
    @staticmethod
    def compress(tensor: Any) -> Tuple[Any, None]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: None) -> Any:
        return tensor


INT8 = Coded("int8", abi.FORMAT_INT8)
INT4 = Coded("int4", abi.FORMAT_INT4)


def format_of(compression: Any) -> int:
    """The format of an Exchange with any compressor."""
    return compression.format if isinstance(compression, Coded) else abi.FORMAT_PLAIN
