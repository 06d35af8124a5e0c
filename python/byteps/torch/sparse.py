"""Sparse sums: every rank's indices and values go to all ranks, which add up what has the same index."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import torch

from byteps._core import abi, collectives, errors
from byteps._core.reduction import Reduction
from byteps.torch import devices, gathers, pending
from byteps.torch.tensors import check_meaning

__all__: List[str] = []


def check(tensor: torch.Tensor, meaning: Reduction) -> None:
    """ValueError when the tensor cannot be reduced so."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.sparse_coo:
        raise ValueError("expected a sparse COO tensor; use allreduce for others")
    if meaning.operation not in (abi.SUM, abi.AVERAGE):
        raise ValueError("a sparse tensor has a sum and an average, but no minimum, maximum or product")
    check_meaning(tensor.dtype, meaning)


def start(
    tensor: torch.Tensor,
    meaning: Reduction,
    name: Optional[str],
    members: Tuple[int, ...] = (),
    is_driven: bool = False,
) -> int:
    """Starts it for a sparse COO tensor; synchronize() returns a new coalesced tensor, equal on all ranks: the values
    of one index are added in the order of ranks. `is_driven`: it goes on by itself, else while somebody waits. What is
    in it of a rank that is lost amid it are indices and values, or neither."""
    check(tensor, meaning)
    devices.check_device(tensor.device)
    # A rank's own duplicates are added up before anything travels.
    coalesced = tensor.detach().coalesce()
    title = f"sparse.{'noname' if name is None else name}"
    shape = tensor.shape
    # What an index may be, and then the indices.
    sizes = torch.tensor([shape[: coalesced.sparse_dim()]], dtype=torch.int64, device=tensor.device)
    rows = torch.cat([sizes, coalesced.indices().t()])
    how = collectives.allgather_for_average
    indices = gathers.start_allgather(rows, f"{title}.indices", members, _indices_of, is_driven, how)
    values = gathers.start_allgather(coalesced.values(), f"{title}.values", members, _values_of, is_driven)
    scale = meaning.scale or 1.0
    is_average = meaning.operation == abi.AVERAGE
    is_whole = not (tensor.is_floating_point() or tensor.is_complex())

    def finish(parts: List[Any]) -> torch.Tensor:
        (by_rank, there), values_by_rank = parts
        ranks = members or range(len(by_rank))
        gave = [index for index, rows in enumerate(by_rank) if len(rows)]
        _check_sizes(title, [(ranks[index], by_rank[index][0].tolist()) for index in gave])
        whole = [index for index in gave if len(by_rank[index]) - 1 == len(values_by_rank[index])]
        divisor = there - (len(gave) - len(whole)) if is_average else 1
        all_indices = torch.cat([by_rank[index][1:] for index in whole])
        all_values = torch.cat([values_by_rank[index] for index in whole])
        scaled = all_values if is_whole else all_values * (scale / divisor)
        # Said, because torch would take its default device otherwise.
        where = {"device": scaled.device, "check_invariants": False}
        total = torch.sparse_coo_tensor(all_indices.t(), scaled, shape, **where).coalesce()
        if not is_whole or (scale == 1.0 and divisor == 1):
            return total
        rounded = _scaled_towards_zero(total.values(), scale, divisor)
        return torch.sparse_coo_tensor(total.indices(), rounded, shape, is_coalesced=True, **where)

    return pending.group([indices, values], finish)


def _scaled_towards_zero(values: torch.Tensor, scale: float, divisor: int) -> torch.Tensor:
    """As the servers do it with dense integers."""
    if scale == 1.0:
        return torch.div(values, divisor, rounding_mode="trunc")
    return (values.double() * scale / divisor).trunc().to(values.dtype)


def _check_sizes(title: str, sizes: List[Tuple[int, List[int]]]) -> None:
    """MismatchError unless all ranks have the same."""
    if any(each != sizes[0][1] for _, each in sizes):
        text = ", ".join(f"worker {rank} {tuple(each)}" for rank, each in sizes)
        raise errors.MismatchError(f'sparse tensor "{title}" differs between ranks; its indexed sizes are: {text}')


def _indices_of(rows: torch.Tensor, said: Tuple[List[int], int]) -> Tuple[List[torch.Tensor], int]:
    """By member: its sizes, then its indices, and no row of one that gave nothing; and by how many an average is
    divided."""
    counts, there = said
    return list(rows.split(counts)), there


def _values_of(rows: torch.Tensor, counts: List[int]) -> List[torch.Tensor]:
    """By member."""
    return list(rows.split(counts))
