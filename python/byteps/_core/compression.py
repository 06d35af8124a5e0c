"""What the compressors of all framework layers share. There are two kinds.

Casts compress before the push and decompress after the pull: classes with two methods that need no instance,
compress(tensor) -> (tensor, context) and decompress(tensor, context) -> tensor. Sums of 16-bit elements are made in
32 bits at the servers and rounded once.

Formats of the core (Coded) leave the tensor as it is: the core codes what travels, where that is a sum or an average of
float32 of at least BYTEPS_MIN_COMPRESS_BYTES. Other tensors travel as they are. So do the layers with a cast to 16 bits
that has a format, for what the core codes (packed()): nothing is copied.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Optional, Tuple

from byteps._core import abi
from byteps._core.auto import AUTO, Auto, choice
from byteps._core.exchange import RESIDUAL_BY_NAME, Exchange
from byteps._core.process_sets import ProcessSet, is_member, members_of
from byteps._core.residuals import Residuals

__all__ = [
    "AUTO",
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
    "gradient_compression",
    "is_coded",
    "packed",
    "with_residual",
]

VARIABLE = "BYTEPS_COMPRESSION"


def gradient_compression(
    compression: Any,
    choices: Any,
    params: Optional[Dict[str, Any]] = None,
    process_set: Optional[ProcessSet] = None,
) -> Any:
    """How gradients travel: as a script says, by a compressor or in the original's way by `params`; where it chooses
    nothing, as BYTEPS_COMPRESSION says. `choices`: the layer's Compression. `process_set`: whose gradients; where
    a trial chooses, all of them call this. ValueError for what is none."""
    chosen = _chosen(compression, choices, params)
    if not isinstance(chosen, Auto):
        return chosen
    return choice(choices, members_of(process_set)) if is_member(process_set) else choices.none


def _chosen(compression: Any, choices: Any, params: Optional[Dict[str, Any]]) -> Any:
    if params:
        compression = _of_params(params, compression, choices)
    if checked_compression(compression) is not choices.none:
        return compression
    chosen = os.environ.get(VARIABLE) or "none"
    title, _, more = chosen.partition(":")
    found = getattr(choices, title, None) if title in ("none", "fp16", "bf16", "int8", "int4", "auto") else None
    if found is not None and not more:
        return found
    if isinstance(found, Coded) and more == "error_feedback":
        return found(error_feedback=True)
    raise ValueError(
        f"{VARIABLE} is '{chosen}': it must be none, fp16, bf16, int8, int4, int8:error_feedback, "
        "int4:error_feedback or auto, and one that this framework has"
    )


def _of_params(params: Dict[str, Any], compression: Any, choices: Any) -> Any:
    """compression_params as the original understands them, of which this version has fp16."""
    params = dict(params)
    fp16 = params.pop("fp16", False)
    unknown = {key: value for key, value in params.items() if value}
    if unknown:
        raise ValueError(
            f"compression_params {unknown} are not supported in this version; it has {{'fp16': True}}, which sends "
            "gradients in 16 bits, and compression=Compression.int8 and .int4, which send fewer"
        )
    return choices.fp16 if fp16 else compression


def checked_compression(compression: Any) -> Any:
    """`compression`, a compressor. ValueError for what is none, as its name is."""
    if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        raise ValueError(f"compression is {compression!r}: use one of Compression, as Compression.none or .fp16")
    return compression


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
    if isinstance(compression, Coded) and compression.error_feedback:
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


class Coded:
    """Compression.int8 and .int4, and with error feedback Compression.int8(error_feedback=True): what the codes of one
    round leave of the elements is added to those of the next.

    In torch an optimizer keeps that, and its state_dict() has it. In the other layers the compressor does, for all the
    tensors that it is given for: save state() on each rank beside the optimizer, and give it to load_state()."""

    def __init__(self, title: str, format: int, error_feedback: bool = False) -> None:
        self.title = title
        self.format = format  # abi.FORMAT_INT8, ...
        self.residuals = Residuals() if error_feedback else None

    @property
    def error_feedback(self) -> bool:
        return self.residuals is not None

    def __call__(self, error_feedback: bool = True) -> "Coded":
        return Coded(self.title, self.format, error_feedback)

    def state(self) -> Dict[str, Any]:
        """Between two steps: this rank's residuals, arrays of numpy by name, and where the rank is."""
        return self._feeding_back().state()

    def load_state(self, saved: Optional[Dict[str, Any]]) -> None:
        """What state() gave on the same rank of a job with the same machines; else all begin with zeros, with a
        warning."""
        self._feeding_back().load(saved)

    def residual_norm(self) -> float:
        """Between two steps: the Euclidean norm of all that this rank carries to the next step, as in
        docs/compression.md. 0 where nothing was coded yet."""
        return self._feeding_back().norm()

    def _feeding_back(self) -> Residuals:
        if self.residuals is None:
            raise ValueError(f"{self!r} has no residuals: Compression.{self.title}(error_feedback=True) has")
        return self.residuals

    def __eq__(self, other: Any) -> bool:
        """They mean the same."""
        return isinstance(other, Coded) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> Tuple[int, bool]:
        return self.format, self.error_feedback

    def __repr__(self) -> str:
        return f"Compression.{self.title}" + ("(error_feedback=True)" if self.error_feedback else "")

    # Where a layer asks no more of a compressor.
    compress = staticmethod(NoneCompressor.compress)
    decompress = staticmethod(NoneCompressor.decompress)


INT8 = Coded("int8", abi.FORMAT_INT8)
INT4 = Coded("int4", abi.FORMAT_INT4)


def with_residual(what: Exchange, name: str, compression: Any, bridge: Callable[[], Any]) -> Exchange:
    """`what` for a tensor of this name, scoped: with its residual, if the compressor feeds back. `bridge`: gives the
    library of the bridge that the tensor is submitted to."""
    if not (isinstance(compression, Coded) and compression.residuals is not None):
        return what
    if what.once:
        raise ValueError(
            f"compression is {compression!r}: error feedback is for tensors that travel again and again, so give the "
            "tensor a name"
        )
    compression.residuals.note(name, bridge())
    return what._replace(residual=RESIDUAL_BY_NAME)


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
