"""Sparse sums: every rank's indices and values go to all ranks, which add up what has the same index."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import torch

from byteps._core import abi, errors, session
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
    of one index are added in the order of ranks. `is_driven`: it goes on by itself, else while somebody waits."""
    check(tensor, meaning)
    devices.check_device(tensor.device)
    # A rank's own duplicates are added up before anything travels.
    coalesced = tensor.detach().coalesce()
    title = f"sparse.{'noname' if name is None else name}"
    shape = tensor.shape
    # What an index may be, and then the indices.
    sizes = torch.tensor([shape[: coalesced.sparse_dim()]], dtype=torch.int64, device=tensor.device)
    rows = torch.cat([sizes, coalesced.indices().t()])
    indices = gathers.start_allgather(rows, f"{title}.indices", members, _split, is_driven)
    values = gathers.start_allgather(coalesced.values(), f"{title}.values", members, is_driven=is_driven)
    scale = meaning.scale or 1.0
    divisor = (len(members) or session.size()) if meaning.operation == abi.AVERAGE else 1
    is_whole = not (tensor.is_floating_point() or tensor.is_complex())

    def finish(parts: List[Any]) -> torch.Tensor:
        (all_sizes, all_indices), all_values = parts
        if any(other != all_sizes[0] for other in all_sizes):
            ranks = members or range(len(all_sizes))
            each = ", ".join(f"worker {rank} {tuple(other)}" for rank, other in zip(ranks, all_sizes))
            raise errors.MismatchError(f'sparse tensor "{title}" differs between ranks; its indexed sizes are: {each}')
        scaled = all_values if is_whole else all_values * (scale / divisor)
        # Said, because torch would take its default device otherwise.
        where = {"device": scaled.device, "check_invariants": False}
        total = torch.sparse_coo_tensor(all_indices.t(), scaled, shape, **where).coalesce()
        if not is_whole or (scale == 1.0 and divisor == 1):
            return total
        whole = _scaled_towards_zero(total.values(), scale, divisor)
        return torch.sparse_coo_tensor(total.indices(), whole, shape, is_coalesced=True, **where)

    return pending.group([indices, values], finish)


def _scaled_towards_zero(values: torch.Tensor, scale: float, divisor: int) -> torch.Tensor:
    """As the servers do it with dense integers."""
    if scale == 1.0:
        return torch.div(values, divisor, rounding_mode="trunc")
    return (values.double() * scale / divisor).trunc().to(values.dtype)


def _split(rows: torch.Tensor, counts: List[int]) -> Tuple[List[List[int]], torch.Tensor]:
    """By member: the sizes that begin its rows; and the indices of all."""
    parts = rows.split(counts)
    return [part[0].tolist() for part in parts], torch.cat([part[1:] for part in parts])
