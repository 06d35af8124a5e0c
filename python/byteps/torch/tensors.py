"""Tensors as the core sees them: an address, an element kind and a shape.

A complex tensor is one of real numbers with a last dimension of two. Where bytes are only moved, every dtype will do:
those that the core does not know are uint8 with a last dimension of their size. The kind says what they stand for.
"""

from __future__ import annotations

import math
from typing import Callable, Dict, Iterable, List, Optional, Tuple, Union

import torch

from byteps._core import abi, elements, reduction

__all__: List[str] = []

ELEMENT_KINDS: Dict[torch.dtype, int] = {
    torch.float32: abi.FLOAT32,
    torch.float64: abi.FLOAT64,
    torch.float16: abi.FLOAT16,
    torch.bfloat16: abi.BFLOAT16,
    torch.uint8: abi.UINT8,
    torch.int8: abi.INT8,
    torch.int16: abi.INT16,
    torch.int32: abi.INT32,
    torch.int64: abi.INT64,
    torch.bool: abi.BOOL,
}
for _name, _kind in (("uint16", abi.UINT16), ("uint32", abi.UINT32), ("uint64", abi.UINT64)):
    if hasattr(torch, _name):  # since torch 2.3
        ELEMENT_KINDS[getattr(torch, _name)] = _kind
_REAL_KINDS = {torch.complex32: abi.FLOAT16, torch.complex64: abi.FLOAT32, torch.complex128: abi.FLOAT64}


def reduced_as(tensor: torch.Tensor, operation: int) -> Tuple[int, torch.Size]:
    """Element kind and shape for a reduction. ValueError when `operation` is not defined for the tensor."""
    check_dense_on_cpu(tensor)
    kind = ELEMENT_KINDS.get(tensor.dtype)
    if kind is None:
        if tensor.dtype in _REAL_KINDS:
            if operation not in (abi.SUM, abi.AVERAGE):
                raise ValueError(f"{tensor.dtype} tensors have a sum and an average, no minimum, maximum or product")
            return standing_for(tensor.dtype, _REAL_KINDS[tensor.dtype]), torch.Size((*tensor.shape, 2))
        supported = ", ".join(str(dtype).replace("torch.", "") for dtype in (*ELEMENT_KINDS, *_REAL_KINDS))
        raise ValueError(f"Tensor type {tensor.dtype} is not supported. These are: {supported}.")
    if kind == abi.BOOL and operation == abi.AVERAGE:
        raise ValueError("the average of a bool tensor is not defined; average=False gives the logical or")
    return kind, tensor.shape


def check_reduced(tensor: torch.Tensor, meaning: reduction.Reduction) -> None:
    """ValueError when it cannot be reduced so; what Job.push_pull() would refuse is among it."""
    reduced_as(tensor, meaning.operation)
    if meaning.scale and tensor.dtype == torch.bool:
        raise ValueError("a bool tensor has no prescale_factor and no postscale_factor")


def check_all(tensors: Iterable[torch.Tensor], check: Callable[[torch.Tensor], None]) -> List[torch.Tensor]:
    """The tensors of a group as a list: each is checked before the first is submitted."""
    several = list(tensors)
    for index, tensor in enumerate(several):
        try:
            check(tensor)
        except ValueError as error:
            raise ValueError(f"tensor {index} of the group: {error}") from None
    return several


def moved_as(tensor: torch.Tensor) -> Tuple[int, torch.Size]:
    """Element kind and shape where elements are only moved."""
    check_dense_on_cpu(tensor)
    kind = ELEMENT_KINDS.get(tensor.dtype)
    if kind is None:
        return standing_for(tensor.dtype, abi.UINT8), torch.Size((*tensor.shape, tensor.element_size()))
    return kind, tensor.shape


def standing_for(dtype: torch.dtype, kind: int) -> int:
    """`kind`, as which elements of `dtype` travel, so that they are told from others that do."""
    return elements.standing_for(str(dtype).replace("torch.", ""), kind)


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


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`, or a copy whose elements lie in memory one after another as they are."""
    if tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj():
        return tensor
    return tensor.detach().resolve_neg().resolve_conj().contiguous()


def check_dense_on_cpu(tensor: torch.Tensor) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"expected a torch.Tensor, got {type(tensor).__name__}")
    if hasattr(tensor, "to_local"):
        raise ValueError("the tensor is a DTensor, whose parts are on several ranks: use tensor.to_local()")
    if tensor.layout != torch.strided:
        raise ValueError(f"Tensor is required to be dense, not {tensor.layout}; use tensor.to_dense()")
    if tensor.device.type != "cpu":
        raise ValueError(
            f"the tensor is on device '{tensor.device}', but this version of BytePS is CPU-only: "
            "move it with tensor.cpu() first"
        )


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
    offsets = torch.zeros(1, dtype=torch.int64)
    for stride, size in dimensions:
        offsets = (offsets.unsqueeze(1) + torch.arange(size) * stride).flatten()
    return offsets.unique().numel() < offsets.numel()
