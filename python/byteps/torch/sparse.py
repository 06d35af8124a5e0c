"""Sparse sums: every rank's indices and values go to all ranks, which add up what has the same index."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import torch

from byteps._core import abi, errors, session
from byteps._core.reduction import Reduction
from byteps.torch import gathers, pending

__all__: List[str] = []


def start(
    tensor: torch.Tensor,
    meaning: Reduction,
    name: Optional[str],
    members: Tuple[int, ...] = (),
    is_driven: bool = False,
) -> int:
    """Starts it for a sparse COO tensor; synchronize() returns a new coalesced tensor, equal on all ranks: the values
    of one index are added in the order of ranks. `is_driven`: it goes on by itself, else while somebody waits."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.sparse_coo:
        raise ValueError("expected a sparse COO tensor; use allreduce for others")
    if meaning.operation not in (abi.SUM, abi.AVERAGE):
        raise ValueError("a sparse tensor has a sum and an average, but no minimum, maximum or product")
    # A rank's own duplicates are added up before anything travels.
    coalesced = tensor.detach().coalesce()
    title = f"sparse.{'noname' if name is None else name}"
    shape = tensor.shape
    # What an index may be, and then the indices.
    sizes = torch.tensor([shape[: coalesced.sparse_dim()]], dtype=torch.int64)
    rows = torch.cat([sizes, coalesced.indices().t()])
    indices = gathers.start_allgather(rows, f"{title}.indices", members, _split, is_driven)
    values = gathers.start_allgather(coalesced.values(), f"{title}.values", members, is_driven=is_driven)
    scale = meaning.scale or 1.0
    if meaning.operation == abi.AVERAGE:
        scale /= len(members) or session.size()

    def finish(parts: List[Any]) -> torch.Tensor:
        (all_sizes, all_indices), all_values = parts
        if any(other != all_sizes[0] for other in all_sizes):
            ranks = members or range(len(all_sizes))
            each = ", ".join(f"worker {rank} {tuple(other)}" for rank, other in zip(ranks, all_sizes))
            raise errors.MismatchError(f'sparse tensor "{title}" differs between ranks; its indexed sizes are: {each}')
        scaled = all_values * scale
        return torch.sparse_coo_tensor(all_indices.t(), scaled, shape, check_invariants=False).coalesce()

    return pending.group([indices, values], finish)


def _split(rows: torch.Tensor, counts: List[int]) -> Tuple[List[List[int]], torch.Tensor]:
    """By member: the sizes that begin its rows; and the indices of all."""
    parts = rows.split(counts)
    return [part[0].tolist() for part in parts], torch.cat([part[1:] for part in parts])
