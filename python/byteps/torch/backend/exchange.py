"""One exchange of one tensor among the members of a group: what a collective is made of.

Ranks here are those of the group, 0 to size - 1; Members knows the ranks of the job that they stand for.
"""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Sequence, Tuple

import torch

from byteps._core import abi
from byteps._core.client import EndQueue, Job
from byteps._core.exchange import Exchange
from byteps._core.reduction import Reduction
from byteps.torch import devices, tensors
from byteps.torch.exchange import note_written
from byteps.torch.residuals import NOTHING, Kept


class Members:
    """The group's members by group rank, as ranks of the job."""

    def __init__(self, job: Job, job_ranks: Sequence[int], rank: int) -> None:
        self.job = job
        self.job_ranks: Tuple[int, ...] = tuple(job_ranks)
        self.rank = rank
        self.size = len(self.job_ranks)
        self.all = self.among(range(self.size))

    @property
    def left(self) -> int:
        """How many are not lost, as this rank has heard. Of some of the job's ranks: all, for it hears not who is."""
        if self.all or not self.job.is_live:
            return self.size
        return self.size - self.job.metrics().lost_workers

    def among(self, ranks: Sequence[int]) -> Tuple[int, ...]:
        """Ascending ranks of the job; () for all of its ranks."""
        chosen = tuple(sorted(self.job_ranks[rank] for rank in ranks))
        return () if len(chosen) == self.job.size else chosen


class Piece(NamedTuple):
    """`source` and `target` are contiguous, alike in dtype, element count and device, and may be one tensor; either may
    be None on a member that gives or gets nothing."""

    source: Optional[torch.Tensor]
    target: Optional[torch.Tensor]
    shape: Tuple[int, ...]
    dtype: torch.dtype
    what: Exchange
    label: str = ""  # tells it from the others of its collective; empty: its place among them does
    kept: Kept = NOTHING  # what a compressor keeps of it; whoever starts it has it


def reduction(
    members: Members, tensor: torch.Tensor, meaning: Reduction, priority: int = 0, once: bool = True
) -> Piece:
    """`tensor`, which is contiguous, reduced over all members, into itself."""
    what = Exchange(*meaning, members=members.all, priority=priority, once=once)
    return Piece(tensor, tensor, tuple(tensor.shape), tensor.dtype, what)


def reduction_to(
    members: Members, root: int, tensor: torch.Tensor, target: torch.Tensor, meaning: Reduction
) -> Piece:
    """`tensor` reduced over all members for `root` alone, into `target` there."""
    what = Exchange(*meaning, root=members.job_ranks[root], root_only=True, members=members.all, once=True)
    return Piece(tensor, target if members.rank == root else None, tuple(tensor.shape), tensor.dtype, what)


def broadcast(members: Members, root: int, source: Optional[torch.Tensor], target: torch.Tensor) -> Piece:
    """`root`'s `source` into everyone's `target`, which on root may be `source` itself. `target` has the shape."""
    what = Exchange(abi.BROADCAST, root=members.job_ranks[root], members=members.all, once=True)
    return Piece(source if members.rank == root else None, target, tuple(target.shape), target.dtype, what)


def transfer(
    members: Members, source: int, target: int, tensor: Optional[torch.Tensor], memory: Optional[torch.Tensor]
) -> Piece:
    """From one member to another: a broadcast among the two. The sender gives `tensor`, the receiver `memory`."""
    mine = tensor if memory is None else memory
    assert mine is not None
    pair = members.among((source, target))
    what = Exchange(abi.BROADCAST, root=members.job_ranks[source], members=pair, once=True)
    return Piece(tensor, mine, (mine.numel(),), mine.dtype, what, label=f"{source}.{target}")


def submit(job: Job, piece: Piece, name: str, queue: Optional[EndQueue] = None, tag: int = 0) -> int:
    """Starts it. Its end is reported to `queue` with `tag`, or to who waits for the handle that this returns."""
    kind, width = tensors.elements_of(piece.dtype, piece.what.operation)
    shape = piece.shape if width == 1 else (*piece.shape, width or _element_bytes(piece.dtype))
    source = 0 if piece.source is None else piece.source.data_ptr()
    target = 0 if piece.target is None else piece.target.data_ptr()
    some = piece.target if piece.source is None else piece.source
    assert some is not None
    call = piece.what.tensor(name, kind, shape, source, target, place=devices.place_of(some))
    piece.kept.give_to(call)
    return job.submit(call, queue, tag)


def _element_bytes(dtype: torch.dtype) -> int:
    return torch.empty((), dtype=dtype, device="cpu").element_size()


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`, or a contiguous copy of its values."""
    tensors.check_dense(tensor)
    return tensors.plain(tensor)


class Landings:
    """Where results arrive: the tensors themselves where they are contiguous, else memory beside them."""

    def __init__(self) -> None:
        self._outputs: List[torch.Tensor] = []
        self._copies: List[Tuple[torch.Tensor, torch.Tensor]] = []  # (from, to)

    def place(self, tensor: torch.Tensor, with_values: bool = False) -> torch.Tensor:
        """Contiguous memory for `tensor`; `with_values`: it has the tensor's values now."""
        tensors.check_dense(tensor)
        if tensors.is_plain(tensor):
            self._outputs.append(tensor)
            return tensor
        tensors.check_no_overlap(tensor)
        beside = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        if with_values:
            beside.copy_(tensor.detach())
        self._copies.append((beside, tensor))
        return beside

    def later(self, beside: torch.Tensor, tensor: torch.Tensor) -> None:
        """`beside` will be copied to `tensor` at the end."""
        self._copies.append((beside, tensor))

    def check_one_device(self, what: str, pieces: Sequence[Piece]) -> None:
        """ValueError, before any of the collective's pieces is submitted, for which others would wait: its tensors, and
        what will be copied, are on several devices."""
        if len(pieces) == 1 and pieces[0].source is pieces[0].target and not self._copies:
            return
        first: Optional[torch.Tensor] = None
        for pair in (*[(piece.source, piece.target) for piece in pieces], *self._copies):
            for tensor in pair:
                if tensor is None or tensor is first:
                    continue
                first = tensor if first is None else first
                if tensor.device != first.device:
                    names = " and ".join(sorted(f"'{each.device}'" for each in (first, tensor)))
                    text = f"{what}: the tensors are on the devices {names}; those of a collective are on one"
                    raise ValueError(text)

    def finish(self) -> None:
        """After all exchanges have ended well. Harmless when repeated."""
        with torch.no_grad():
            for beside, tensor in self._copies:
                devices.used_here(beside, tensor)
                tensor.copy_(beside)
        for tensor in self._outputs:
            note_written(tensor)
