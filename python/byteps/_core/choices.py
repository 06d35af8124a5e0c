"""What scripts choose from to have gradients coded: Codes, with which each layer's Compression begins; the dictionary
of the original BytePS, compression_params; and BYTEPS_COMPRESSION.

    compression=Compression.topk(k=0.01, error_feedback=True, momentum=0.9)
    compression_params={"compressor": "topk", "k": 0.01, "ef": "vanilla", "momentum": "nesterov", "momentum_mu": 0.9}
"""

from __future__ import annotations

import numbers
import os
import warnings
from typing import Any, Dict, Optional, Sequence

from byteps._core import abi
from byteps._core.auto import AUTO, Auto, choice
from byteps._core.compression import INT4, INT8, Coded, checked_compression
from byteps._core.exchange import Codec
from byteps._core.process_sets import ProcessSet, is_member, members_of

__all__ = ["Codes", "gradient_compression", "of_declaration", "of_params", "wants_momentum"]

VARIABLE = "BYTEPS_COMPRESSION"
SEED_MAX = 2**64 - 1
LEVELS_MAX = {"linear": 2**23, "natural": 24}


# ---- the original's four


def onebit(scaling: bool = True, error_feedback: bool = False, momentum: Optional[float] = None) -> Coded:
    """The sign of each element: with `scaling` all are decoded to plus and minus the mean magnitude of their part, and
    without it to plus and minus one."""
    flags = abi.CODEC_SCALING if _switch("scaling", scaling) else 0
    options = f"scaling={scaling}"
    return _coded("onebit", abi.FORMAT_ONEBIT, Codec(flags=flags), options, error_feedback, momentum)


def topk(k: float, error_feedback: bool = False, momentum: Optional[float] = None) -> Coded:
    """The elements of the largest magnitude; the others are zeros. `k`: below 1 their share, 0.5 at most, else how many
    of each part (BYTEPS_PARTITION_BYTES)."""
    _check_share("topk", k, 0.5)
    return _coded("topk", abi.FORMAT_TOPK, Codec(float(k)), f"k={k}", error_feedback, momentum)


def randomk(
    k: float, seed: Optional[int] = None, error_feedback: bool = False, momentum: Optional[float] = None
) -> Coded:
    """Elements at places that are drawn anew in each step, the same on all ranks; the others are zeros. `k`: as of
    topk. `seed`: with which each part begins to draw; None: they follow from names and steps."""
    _check_share("randomk", k, 1.0)
    codec, options = _seeded(Codec(float(k)), seed, f"k={k}")
    return _coded("randomk", abi.FORMAT_RANDOMK, codec, options, error_feedback, momentum)


def dithering(
    k: int,
    partition: str = "linear",
    normalize: str = "max",
    seed: Optional[int] = None,
    error_feedback: bool = False,
    momentum: Optional[float] = None,
) -> Coded:
    """One of k levels for each element, rounded up or down by chance, so that the mean is right. `partition`: "linear",
    levels evenly spaced, or "natural", powers of two. `normalize`: the highest level is the largest magnitude, "max",
    or the norm, "l2". `seed`: as of randomk."""
    _check_one_of("partition", partition, ("linear", "natural"))
    _check_one_of("normalize", normalize, ("max", "l2"))
    most = LEVELS_MAX[partition]
    if not _is_whole(k) or not 1 <= k <= most:
        raise ValueError(f"k is {k!r}: for dithering with partition='{partition}' it is 1 to {most} levels")
    flags = (abi.CODEC_NATURAL if partition == "natural" else 0) | (abi.CODEC_L2 if normalize == "l2" else 0)
    options = f"k={k}, partition='{partition}', normalize='{normalize}'"
    codec, options = _seeded(Codec(float(k), flags=flags), seed, options)
    return _coded("dithering", abi.FORMAT_DITHERING, codec, options, error_feedback, momentum)


def _coded(
    title: str, format: int, codec: Codec, options: str, error_feedback: bool, momentum: Optional[float]
) -> Coded:
    if _switch("error_feedback", error_feedback):
        codec = codec._replace(flags=codec.flags | abi.CODEC_ERROR_FEEDBACK)
    if momentum is not None:
        if not _is_number(momentum) or not 0 <= momentum < 1:
            raise ValueError(f"momentum is {momentum!r}: it must be None, or a number of at least 0 and below 1")
        momentum = float(momentum)
    return Coded(title, format, error_feedback, codec, momentum, options)


def _seeded(codec: Codec, seed: Optional[int], options: str) -> "tuple[Codec, str]":
    if seed is None:
        return codec, options
    if not _is_whole(seed) or not 1 <= seed <= SEED_MAX:
        raise ValueError(f"seed is {seed!r}: it must be None, or a whole number from 1 to 2^64 - 1")
    return codec._replace(seed=int(seed), flags=codec.flags | abi.CODEC_SEEDED), f"{options}, seed={seed}"


def _check_share(title: str, k: Any, most: float) -> None:
    if not _is_number(k) or not (0 < k < 1 and k <= most or k >= 1 and k == k // 1 and k < 2**32):
        share = "0.5 at most" if most < 1 else "below 1"
        raise ValueError(
            f"k is {k!r}: for {title} it is above 0, either the share of the elements that travels, {share}, or a "
            "whole number of elements of each part"
        )


def _check_one_of(name: str, value: Any, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}: it must be {' or '.join(repr(each) for each in allowed)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _switch(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}: it must be True or False")
    return value


class Codes:
    """What the core codes, whichever the framework (docs/compression.md)."""

    int8 = INT8
    int4 = INT4
    onebit = staticmethod(onebit)
    topk = staticmethod(topk)
    randomk = staticmethod(randomk)
    dithering = staticmethod(dithering)
    auto = AUTO

    @classmethod
    def of_params(cls, params: Dict[str, Any]) -> Any:
        """What compression_params=params chooses: for who wants its state()."""
        return gradient_compression(cls.none, cls, params)

    none: Any  # each layer's own


# ---- the dictionary of the original

OF_PARAMS = ("compressor", "ef", "momentum", "momentum_mu", "scaling", "k", "seed", "partition", "normalize", "fp16")
COMPRESSORS = ("onebit", "topk", "randomk", "dithering")


def of_params(params: Dict[str, Any], momentum_mu: Optional[float] = None) -> Optional[Coded]:
    """The compressor that a dictionary of the original asks for; None: it asks for none. ValueError: what is wrong with
    it. `momentum_mu`: of the script's optimizer, where the original takes it from there.

    What is empty (None, "", False) counts as not there, and what does not belong to the compressor is ignored, as
    scripts of the original give all that their command lines have."""
    if not isinstance(params, dict):
        raise ValueError(f"compression_params is {params!r}: it must be a dict")
    unknown = sorted(str(key) for key in params if key not in OF_PARAMS)
    if unknown:
        raise ValueError(f"compression_params has {', '.join(unknown)}: its keys are {', '.join(OF_PARAMS)}")
    given = {key: value for key, value in params.items() if value is not None and value is not False and value != ""}
    if "compressor" not in given:
        if given.keys() - {"fp16"}:
            warnings.warn("compression_params has no 'compressor': nothing is coded", stacklevel=4)
        return None
    _check_one_of("compression_params: compressor", given["compressor"], COMPRESSORS)
    if "ef" in given:
        _check_one_of("compression_params: ef", given["ef"], ("vanilla",))
    chosen: Dict[str, Any] = {"error_feedback": "ef" in given}
    if wants_momentum(params):
        chosen["momentum"] = given.get("momentum_mu", momentum_mu)
        if chosen["momentum"] is None:
            raise ValueError("compression_params has 'momentum' and no 'momentum_mu': give the momentum, as 0.9; "
                "MXNet's trainer takes it from optimizer_params")
    compressor = given["compressor"]
    if compressor != "onebit" and "k" not in given:
        raise ValueError(f"compression_params has no 'k', which {compressor} needs")
    if compressor == "onebit":
        return onebit(bool(given.get("scaling", False)), **chosen)
    if compressor == "topk":
        return topk(given["k"], **chosen)
    seed = given.get("seed")
    if compressor == "randomk":
        return randomk(given["k"], seed, **chosen)
    normalize = given.get("normalize", "max")
    return dithering(given["k"], given.get("partition", "linear"), normalize, seed, **chosen)


def wants_momentum(params: Optional[Dict[str, Any]]) -> bool:
    """Whether a dictionary of the original asks for a compressor with momentum."""
    if not isinstance(params, dict) or not params.get("compressor") or not params.get("momentum"):
        return False
    _check_one_of("compression_params: momentum", params["momentum"], ("nesterov",))
    return True


DECLARED = {
    "compressor_type": "compressor",
    "ef_type": "ef",
    "momentum_type": "momentum",
    "momentum_mu": "momentum_mu",
    "compressor_onebit_scaling": "scaling",
    "compressor_k": "k",
    "seed": "seed",
    "dithering_partition": "partition",
    "dithering_normalize": "normalize",
}


def of_declaration(name: str, kwargs: Dict[str, Any]) -> Optional[Coded]:
    """The compressor that byteps_declare_tensor(name, **kwargs) asks for in the original: of_params() under other names
    with "byteps_" before them, whose values may be texts."""
    params: Dict[str, Any] = {}
    for key, value in kwargs.items():
        known = DECLARED.get(key[len("byteps_") :] if key.startswith("byteps_") else "")
        if known is None:
            allowed = ", ".join(f"byteps_{each}" for each in DECLARED)
            raise ValueError(f"byteps_declare_tensor('{name}') has {key}: it takes {allowed}")
        params[known] = _of_text(known, value.lower() if isinstance(value, str) else value)
    return of_params(params) if params else None


def _of_text(key: str, value: Any) -> Any:
    if key == "scaling" and isinstance(value, str):
        return {"true": True, "1": True, "false": False, "0": False, "": False}.get(value, value)
    if key in ("partition", "normalize"):
        names = ("linear", "natural") if key == "partition" else ("max", "l2")
        return {"0": names[0], "1": names[1]}.get(str(value), value)
    if key in ("k", "seed", "momentum_mu") and isinstance(value, str) and value:
        try:
            number = float(value)
        except ValueError:
            raise ValueError(f"byteps_declare_tensor(): {key} is {value!r}: it must be a number") from None
        return int(value) if value.isdigit() else number
    return value


# ---- what an optimizer takes


def gradient_compression(
    compression: Any,
    choices: Any,
    params: Optional[Dict[str, Any]] = None,
    momentum_mu: Optional[float] = None,
    process_set: Optional[ProcessSet] = None,
) -> Any:
    """How gradients travel: as a script says, by a compressor or in the original's way by `params`; where it chooses
    nothing, as BYTEPS_COMPRESSION says. `choices`: the layer's Compression. `process_set`: whose gradients; where a
    trial chooses, all of them call this. ValueError for what is none."""
    chosen = _chosen(compression, choices, params, momentum_mu)
    if not isinstance(chosen, Auto):
        return chosen
    return choice(choices, members_of(process_set)) if is_member(process_set) else choices.none


def _chosen(compression: Any, choices: Any, params: Optional[Dict[str, Any]], momentum_mu: Optional[float]) -> Any:
    if params:
        chosen = of_params(params, momentum_mu)
        if chosen is None and params.get("fp16"):
            chosen = choices.fp16
        if chosen is not None and checked_compression(compression) is not choices.none:
            raise ValueError("compression and compression_params were both given: give one of them")
        compression = compression if chosen is None else chosen
    if checked_compression(compression) is not choices.none:
        return compression
    chosen_title = os.environ.get(VARIABLE) or "none"
    title, _, more = chosen_title.partition(":")
    found = getattr(choices, title, None) if title in ("none", "fp16", "bf16", "int8", "int4", "auto") else None
    if found is not None and not more:
        return found
    if isinstance(found, Coded) and more == "error_feedback":
        return found(error_feedback=True)
    raise ValueError(
        f"{VARIABLE} is '{chosen_title}': it must be none, fp16, bf16, int8, int4, int8:error_feedback, "
        "int4:error_feedback or auto, and one that this framework has"
    )
