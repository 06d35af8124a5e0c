"""What the compressors of all framework layers share. There are two kinds.

Casts compress before the push and decompress after the pull: classes with two methods that need no instance,
compress(tensor) -> (tensor, context) and decompress(tensor, context) -> tensor. Sums of 16-bit elements are made in
32 bits at the servers and rounded once.

Formats of the core (Coded) leave the tensor as it is: the core codes what travels, where that is a sum or an average of
float32 of at least BYTEPS_MIN_COMPRESS_BYTES. Other tensors travel as they are; smaller ones of float32 have their
momentum all the same. So do the layers with a cast to 16 bits that has a format, for what the core codes (packed()):
nothing is copied.
"""

from __future__ import annotations

import os
from types import FunctionType
from typing import Any, Callable, Dict, Optional, Tuple

from byteps._core import abi
from byteps._core.exchange import BY_NAME, NO_CODEC, Codec, Exchange
from byteps._core.residuals import Residuals

__all__ = [
    "CastCompressor",
    "Coded",
    "Compressor",
    "INT4",
    "INT8",
    "NoneCompressor",
    "check_element",
    "checked_cast",
    "checked_compression",
    "checked_stateless",
    "coded",
    "feeds_back",
    "format_of",
    "is_coded",
    "momentum_of",
    "packed",
    "with_memory",
]


def checked_compression(compression: Any) -> Any:
    """`compression`, a compressor. ValueError for what is none, as its name is."""
    if hasattr(compression, "compress") and hasattr(compression, "decompress"):
        return compression
    if isinstance(compression, FunctionType):
        raise ValueError(f"compression is the function {compression.__name__}: call it, as Compression.topk(k=0.01)")
    raise ValueError(f"compression is {compression!r}: use one of Compression, as Compression.none or .fp16")


def checked_cast(compression: Any, where: str) -> Any:
    """The same where nothing is coded."""
    checked_stateless(compression)
    if isinstance(compression, Coded):
        raise ValueError(f"compression is {compression!r}: {where} codes nothing; use Compression.none, .fp16 or .bf16")
    return compression


def checked_stateless(compression: Any) -> Any:
    """The same where nothing is kept from one call to the next."""
    if getattr(checked_compression(compression), "for_optimizers", False):
        raise ValueError(f"compression is {compression!r}: it is for optimizers; give it to DistributedOptimizer")
    if isinstance(compression, Coded) and compression.residuals is not None:
        kept = "error feedback" if compression.error_feedback else "momentum"
        raise ValueError(
            f"compression is {compression!r}: {kept} is kept by an optimizer; give it to DistributedOptimizer, "
            f"or use Compression.{compression.title} without it here"
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


class Coded:
    """Compression.int8, .int4, and with what they are to be .onebit(), .topk(), .randomk() and .dithering(). With error
    feedback, what the codes of one round leave of the elements is added to those of the next; with momentum, which is
    Nesterov's, m = mu * m + x and x = x + mu * m before that.

    In torch an optimizer keeps the residuals and m, and its state_dict() has them. In the other layers the compressor
    does, for all the tensors that it is given for: save state() on each rank beside the optimizer, and give it to
    load_state()."""

    def __init__(
        self,
        title: str,
        format: int,
        error_feedback: bool = False,
        codec: Codec = NO_CODEC,
        momentum: Optional[float] = None,
        options: str = "",
    ) -> None:
        """`options`: those of the codec, as its user has written them."""
        self.title = title
        self.format = format  # abi.FORMAT_INT8, ...
        self.codec = codec
        self.momentum = momentum  # mu
        self.error_feedback = error_feedback
        self._options = options
        is_kept = error_feedback or momentum is not None
        self.residuals = Residuals(error_feedback, momentum is not None) if is_kept else None

    def __call__(self, error_feedback: bool = True) -> "Coded":
        if self.format not in (abi.FORMAT_INT8, abi.FORMAT_INT4):
            raise TypeError(f"{self!r} is one already")
        return Coded(self.title, self.format, error_feedback)

    @property
    def is_of_parts(self) -> bool:
        """One of the original's, which code all elements of a part together."""
        return self.format >= abi.FORMAT_ONEBIT

    def state(self) -> Dict[str, Any]:
        """Between two steps: this rank's residuals and momentum, arrays of numpy by name, and where the rank is."""
        return self._keeping().state()

    def load_state(self, saved: Optional[Dict[str, Any]]) -> None:
        """What state() gave on the same rank of a job with the same machines; else all begin with zeros, with a
        warning."""
        self._keeping().load(saved)

    def residual_norm(self) -> float:
        """Between two steps: the Euclidean norm of all residuals that this rank carries to the next step, as in
        docs/compression.md. 0 where nothing was coded yet."""
        if not self.error_feedback:
            raise ValueError(f"{self!r} has no residuals: Compression.{self.title}(error_feedback=True) has")
        return self._keeping().norm()

    def _keeping(self) -> Residuals:
        if self.residuals is None:
            raise ValueError(f"{self!r} has no residuals: Compression.{self.title}(error_feedback=True) has")
        return self.residuals

    def __eq__(self, other: Any) -> bool:
        """They mean the same."""
        return isinstance(other, Coded) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> Tuple[int, bool, Codec, Optional[float]]:
        return self.format, self.error_feedback, self.codec, self.momentum

    def __repr__(self) -> str:
        options = [self._options] if self._options else []
        options += ["error_feedback=True"] if self.error_feedback else []
        options += [] if self.momentum is None else [f"momentum={self.momentum}"]
        brackets = f"({', '.join(options)})" if options or self.is_of_parts else ""
        return f"Compression.{self.title}{brackets}"

    # Where a layer asks no more of a compressor.
    compress = staticmethod(NoneCompressor.compress)
    decompress = staticmethod(NoneCompressor.decompress)


INT8 = Coded("int8", abi.FORMAT_INT8)
INT4 = Coded("int4", abi.FORMAT_INT4)


def feeds_back(compression: Any) -> bool:
    return isinstance(compression, Coded) and compression.error_feedback


def momentum_of(compression: Any) -> Optional[float]:
    """Its mu; None: it has none."""
    return compression.momentum if isinstance(compression, Coded) else None


def coded(what: Exchange, compression: Any) -> Exchange:
    """`what`, of a tensor that travels as any compressor says."""
    codec = compression.codec if isinstance(compression, Coded) else NO_CODEC
    return what._replace(format=format_of(compression), codec=codec)


def with_memory(what: Exchange, name: str, compression: Any, bridge: Callable[[], Any]) -> Exchange:
    """coded() for a tensor of this name, scoped: with its residual and its momentum, if the compressor has such.
    `bridge`: gives the library of the bridge that the tensor is submitted to."""
    what = coded(what, compression)
    if not (isinstance(compression, Coded) and compression.residuals is not None):
        return what
    if what.once:
        raise ValueError(
            f"compression is {compression!r}: it keeps something of tensors that travel again and again, so give the "
            "tensor a name"
        )
    if compression.momentum is not None and what.operation not in (abi.SUM, abi.AVERAGE):
        raise ValueError(f"compression is {compression!r}: sums and averages have momentum, no others")
    compression.residuals.note(name, bridge())
    if compression.error_feedback:
        what = what._replace(residual=BY_NAME)
    if compression.momentum is not None:
        what = what._replace(momentum=BY_NAME, momentum_mu=compression.momentum)
    return what


def check_element(compression: Any, name: str, dtype: Any, is_dense: bool = True) -> None:
    """ValueError: momentum of a tensor that is not coded would be lost. `dtype`: of any framework."""
    if momentum_of(compression) is None or (is_dense and "float32" in str(dtype)):
        return
    what, remedy = ("sparse", "sparse_as_dense=True") if not is_dense else (f"of {dtype}", "gradients in float32")
    raise ValueError(
        f"{name}: the gradient is {what}, and {compression!r} has momentum for dense ones of float32 only: use "
        f"{remedy}, or momentum=None and an optimizer with momentum"
    )


def format_of(compression: Any) -> int:
    """The format of an Exchange with any compressor. (A class that somebody has derived from a cast makes what it likes
    of a tensor.)"""
    if isinstance(compression, Coded):
        return compression.format
    return vars(compression if isinstance(compression, type) else type(compression)).get("format", abi.FORMAT_PLAIN)


def is_coded(compression: Any, operation: int, float32_count: int) -> bool:
    """Whether the core codes a tensor. `float32_count`: of its elements, if these are of float32 and in the host's
    memory, else 0."""
    if operation not in (abi.SUM, abi.AVERAGE) or not format_of(compression):
        return False
    return 4 * float32_count >= int(os.environ.get("BYTEPS_MIN_COMPRESS_BYTES") or 65536)


def packed(compression: Any, tensor: Any, operation: int, float32_count: int) -> Tuple[Any, Any]:
    """What a layer gives away, and the context for decompress(): a cast where the core does not code it."""
    return (tensor, None) if is_coded(compression, operation, float32_count) else compression.compress(tensor)
