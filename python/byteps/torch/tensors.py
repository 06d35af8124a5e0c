"""Tensors as the core sees them: an address, an element kind and a shape. Where they are: devices.py.

A complex tensor is one of real numbers with a last dimension of two. Where bytes are only moved, every dtype will do:
those that the core does not know are uint8 with a last dimension of their size. The kind says what they stand for.
"""

from __future__ import annotations

import functools
import math
from typing import Callable, Iterable, List, Optional, Tuple, Union

import torch

from byteps._core import elements, reduction
from byteps.torch import devices

__all__: List[str] = []

_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)


@functools.cache
def elements_of(dtype: torch.dtype, operation: int) -> Tuple[int, int]:
    """elements.of_name() of a dtype of torch."""
    return elements.of_name(str(dtype).replace("torch.", ""), operation, "tensor", "torch.")


def travels_as(tensor: torch.Tensor, operation: int) -> Tuple[int, Tuple[int, ...]]:
    """Element kind and shape. ValueError when `operation` is not defined for the tensor; BROADCAST is for all."""
    check_dense(tensor)
    kind, width = elements_of(tensor.dtype, operation)
    return kind, tensor.shape if width == 1 else (*tensor.shape, width or tensor.element_size())


def check_meaning(dtype: torch.dtype, meaning: reduction.Reduction) -> None:
    """ValueError when tensors of the dtype cannot be reduced so; what the core would refuse is among it."""
    elements_of(dtype, meaning.operation)
    if meaning.scale and dtype == torch.bool:
        raise ValueError("a bool tensor has no prescale_factor and no postscale_factor")


def check_reduced(tensor: torch.Tensor, meaning: reduction.Reduction) -> None:
    """check_meaning() and check_dense()."""
    check_dense(tensor)
    check_meaning(tensor.dtype, meaning)


def check_all(tensors: Iterable[torch.Tensor], check: Callable[[torch.Tensor], None]) -> List[torch.Tensor]:
    """The tensors of a group as a list: each is checked before the first is submitted."""
    several = list(tensors)
    for index, tensor in enumerate(several):
        try:
            check(tensor)
        except ValueError as error:
            raise ValueError(f"tensor {index} of the group: {error}") from None
    return several


def prepare(
    tensor: torch.Tensor,
    op: Union[reduction.ReduceOp, str, None],
    average: Optional[bool],
    prescale_factor: float,
    postscale_factor: float,
) -> Tuple[torch.Tensor, reduction.Reduction]:
    """What is reduced, and how. Integers are multiplied by the first factor here, on each rank, in float64 and towards
    zero, as Horovod does; what is beyond the dtype becomes its limit."""
    meaning = reduction.resolve(op, average, prescale_factor, postscale_factor)
    if prescale_factor == 1.0 or not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
        return tensor, meaning
    if tensor.dtype == torch.bool or tensor.is_floating_point() or tensor.is_complex():
        return tensor, meaning
    limits = torch.iinfo(tensor.dtype)
    beyond = 2.0 * (limits.max // 2 + 1)  # exact, as limits.max is not for 64 bits
    product = tensor.detach().to(torch.float64).mul_(prescale_factor)
    product.clamp_(float(limits.min), min(float(limits.max), math.nextafter(beyond, 0.0)))
    return product.to(tensor.dtype), reduction.resolve(op, average, 1.0, postscale_factor)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether its elements lie in memory one after another as they are."""
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`, or a copy whose elements lie in memory one after another as they are."""
    return tensor if is_plain(tensor) else tensor.detach().resolve_neg().resolve_conj().contiguous()


def plain_to_land(tensor: torch.Tensor) -> torch.Tensor:
    """plain() of a tensor in which a result lands. ValueError: check_no_overlap()."""
    if is_plain(tensor):
        return tensor
    check_no_overlap(tensor)
    return plain(tensor)


def check_dense(tensor: torch.Tensor) -> None:
    """ValueError: it is none, or has no memory that the core can read."""
    # By far the most are these, and each question costs.
    if type(tensor) in _PLAIN_TYPES and tensor.layout is torch.strided and tensor.is_cpu:
        return
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"expected a torch.Tensor, got {type(tensor).__name__}")
    if hasattr(tensor, "to_local"):
        raise ValueError("the tensor is a DTensor, whose parts are on several ranks: use tensor.to_local()")
    if tensor.layout != torch.strided:
        raise ValueError(f"Tensor is required to be dense, not {tensor.layout}; use tensor.to_dense()")
    devices.check_device(tensor.device)


def check_no_overlap(tensor: torch.Tensor) -> None:
    """A result cannot land in a tensor whose elements share memory; torch would say so only after the exchange."""
    if not tensor.is_contiguous() and _has_overlap(tensor):
        raise ValueError(
            "several elements of the tensor share one place in memory (expand() and unfold() make such tensors), so no "
            "result can land in it: use tensor.clone()"
        )


def _has_overlap(tensor: torch.Tensor) -> bool:
    dimensions = sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size > 1)
    beyond = 1  # no element of the dimensions so far is at so large an offset
    for stride, size in dimensions:
        if stride < beyond:
            break
        beyond = stride * (size - 1) + beyond
    else:
        return False
    if any(stride == 0 for stride, _ in dimensions):
        return True
    # Rows may lie within each other's gaps, as as_strided() can make them.
    offsets = torch.zeros(1, dtype=torch.int64, device="cpu")
    for stride, size in dimensions:
        offsets = (offsets.unsqueeze(1) + torch.arange(size, device="cpu") * stride).flatten()
    return offsets.unique().numel() < offsets.numel()
