"""One exchange of one tensor among the members of a group: what a collective is made of.

Ranks here are those of the group, 0 to size - 1; Members knows the ranks of the job that they stand for.
"""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Sequence, Tuple

import torch

from byteps._core import abi
from byteps._core.client import EndQueue, Job
from byteps.torch import tensors
from byteps.torch.exchange import note_written


class Members:
    """The group's members by group rank, as ranks of the job."""

    def __init__(self, job: Job, job_ranks: Sequence[int], rank: int) -> None:
        self.job = job
        self.job_ranks: Tuple[int, ...] = tuple(job_ranks)
        self.rank = rank
        self.size = len(self.job_ranks)
        self.all = self.among(range(self.size))

    def among(self, ranks: Sequence[int]) -> Tuple[int, ...]:
        """Ascending ranks of the job; () for all of its ranks."""
        chosen = tuple(sorted(self.job_ranks[rank] for rank in ranks))
        return () if len(chosen) == self.job.size else chosen


class Piece(NamedTuple):
    """`source` and `target` are contiguous, alike in dtype and element count, and may be one tensor; either may be
    None on a member that gives or gets nothing."""

    source: Optional[torch.Tensor]
    target: Optional[torch.Tensor]
    shape: Tuple[int, ...]
    dtype: torch.dtype
    operation: int  # abi.SUM ...
    root: int = 0  # who gives (broadcast) or who alone gets (root_only)
    root_only: bool = False
    scale: float = 0.0  # 0: not
    among: Optional[Tuple[int, ...]] = None  # group ranks; None: all members
    label: str = ""  # tells it from the others of its collective; empty: its place among them does


def reduction(tensor: torch.Tensor, operation: int, scale: float, target: Optional[torch.Tensor] = None) -> Piece:
    """`tensor` reduced over all members, into itself or into `target`. Both are contiguous."""
    into = tensor if target is None else target
    return Piece(tensor, into, tuple(tensor.shape), tensor.dtype, operation, scale=scale)


def reduction_to(
    root: int, rank: int, tensor: torch.Tensor, target: Optional[torch.Tensor], operation: int, scale: float
) -> Piece:
    """`tensor` reduced over all members for `root` alone, into `target` there."""
    into = target if rank == root else None
    return Piece(tensor, into, tuple(tensor.shape), tensor.dtype, operation, root, True, scale)


def broadcast(root: int, rank: int, source: Optional[torch.Tensor], target: torch.Tensor) -> Piece:
    """`root`'s `source` into everyone's `target`, which on root may be `source` itself. `target` has the shape."""
    given = source if rank == root else None
    return Piece(given, target, tuple(target.shape), target.dtype, abi.BROADCAST, root)


def transfer(
    source: int, target: int, tensor: Optional[torch.Tensor], memory: Optional[torch.Tensor]
) -> Piece:
    """From one member to another: a broadcast among the two. The sender gives `tensor`, the receiver `memory`."""
    mine = tensor if memory is None else memory
    assert mine is not None
    pair = tuple(sorted((source, target)))
    into = tensor if memory is None else memory
    return Piece(
        tensor, into, (mine.numel(),), mine.dtype, abi.BROADCAST, source, among=pair, label=f"{source}.{target}"
    )


def submit(
    exchange: Piece,
    members: Members,
    name: str,
    queue: Optional[EndQueue] = None,
    tag: int = 0,
    priority: int = 0,
    once: bool = True,
) -> int:
    """Starts it. Its end is reported to `queue` with `tag`, or to who waits for the handle that this returns."""
    kind = tensors.ELEMENT_KINDS.get(exchange.dtype)
    shape = exchange.shape
    if kind is None:  # bytes are copied
        if exchange.operation != abi.BROADCAST:
            raise ValueError(f"{exchange.dtype} has no reductions in the backend 'byteps'")
        kind, shape = tensors.standing_for(exchange.dtype, abi.UINT8), (*shape, _element_bytes(exchange.dtype))
    count = 1
    for extent in shape:
        count *= extent
    among = members.all if exchange.among is None else members.among(exchange.among)
    return members.job.push_pull(
        name,
        kind,
        0 if exchange.source is None else exchange.source.data_ptr(),
        0 if exchange.target is None else exchange.target.data_ptr(),
        count,
        exchange.operation,
        members.job_ranks[exchange.root],
        priority,
        once,
        shape,
        scale=exchange.scale,
        members=among,
        root_only=exchange.root_only,
        queue=queue,
        tag=tag,
    )


def _element_bytes(dtype: torch.dtype) -> int:
    return torch.empty((), dtype=dtype).element_size()


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`, or a contiguous copy of its values."""
    tensors.check_dense_on_cpu(tensor)
    return tensors.plain(tensor)


class Landings:
    """Where results arrive: the tensors themselves where they are contiguous, else memory beside them."""

    def __init__(self) -> None:
        self._outputs: List[torch.Tensor] = []
        self._copies: List[Tuple[torch.Tensor, torch.Tensor]] = []  # (from, to)

    def place(self, tensor: torch.Tensor, with_values: bool = False) -> torch.Tensor:
        """Contiguous memory for `tensor`; `with_values`: it has the tensor's values now."""
        tensors.check_dense_on_cpu(tensor)
        tensors.check_no_overlap(tensor)
        if tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj():
            self._outputs.append(tensor)
            return tensor
        beside = torch.empty(tensor.shape, dtype=tensor.dtype)
        if with_values:
            beside.copy_(tensor.detach())
        self._copies.append((beside, tensor))
        return beside

    def later(self, beside: torch.Tensor, tensor: torch.Tensor) -> None:
        """`beside` will be copied to `tensor` at the end."""
        self._copies.append((beside, tensor))

    def finish(self) -> None:
        """After all exchanges have ended well. Harmless when repeated."""
        with torch.no_grad():
            for beside, tensor in self._copies:
                tensor.copy_(beside)
        for tensor in self._outputs:
            note_written(tensor)
