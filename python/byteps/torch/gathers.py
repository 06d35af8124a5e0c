"""Collectives that move rows: allgather, reducescatter, alltoall. Rows are elements of the first dimension.

Ranks may have different numbers of rows; the other dimensions and the dtype are the same on all. Without a name a call
is numbered, with one it is numbered among those of its name: all members make the same calls in the same order. The
results are new tensors. What an _async function starts goes on by itself, whatever its rank waits for meanwhile.

Gradients are those of Horovod. Where the chain rule adds up over the ranks' losses, an allgather's gradient is the
average; and a reducescatter's is what the chain rule says times the number of ranks.

    process_set: the ranks that take part, each of which makes the call; all ranks when none is given.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple, Type, Union

import torch

from byteps._core import abi, collectives, reduction, session
from byteps._core.collectives import Rows
from byteps._core.compression import checked_cast
from byteps._core.exchange import Exchange
from byteps._core.process_sets import ProcessSet, global_process_set, members_of
from byteps._core.reduction import Average, ReduceOp
from byteps.torch import devices, pending, tensors
from byteps.torch.compression import Compression, Compressor
from byteps.torch.moving import Landing, Members, Moving, place_in, rows_of, run_all, title_of, wire_name
from byteps.torch.tensors import check_all, check_dense, prepare

__all__ = [
    "allgather",
    "allgather_async",
    "alltoall",
    "alltoall_async",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "reducescatter",
    "reducescatter_async",
]

Splits = Union[Sequence[int], torch.Tensor, None]


# ---- allgather


def allgather_async(
    tensor: torch.Tensor, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts it; a handle for poll() and synchronize(), which returns the rows of all ranks in the order of ranks."""
    return start_allgather(tensor, title_of("allgather", name), members_of(process_set), is_driven=True)


def allgather(
    tensor: torch.Tensor, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """The rows of all ranks, in the order of ranks. A tensor without dimensions is one row. Differentiable: all ranks
    must run backward through it."""
    return grouped_allgather([tensor], name, process_set)[0]


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> int:
    """One handle for all; synchronize() returns the list of results."""
    several = check_all(tensors, check_dense)
    return pending.group([allgather_async(tensor, name, process_set) for tensor in several])


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> List[torch.Tensor]:
    """allgather() of several, which travel at once. Differentiable."""
    several = check_all(tensors, check_dense)
    return list(_Allgather.apply(name, members_of(process_set), *several)) if several else []


def start_allgather(
    tensor: torch.Tensor,
    title: str,
    members: Members,
    finish: Callable[[torch.Tensor, Any], Any] = lambda gathered, counts: gathered,
    is_driven: bool = False,
    make_plan: Callable[..., Any] = collectives.allgather,
) -> int:
    """finish(all rows, how many are each member's) makes the result; or what else the plan says."""
    rows, source, line = rows_of(tensor)
    landing = Landing(source, line)
    moving = Moving((source, landing), lambda counts: finish(landing.take(), counts))
    name = wire_name(title, members)
    return moving.start(
        lambda job: make_plan(job, name, rows, landing.allocate, members, once=True), is_driven
    )


class _Allgather(torch.autograd.Function):
    """Of several tensors."""

    @staticmethod
    def forward(
        ctx: Any, name: Optional[str], members: Members, *tensors: torch.Tensor
    ) -> Tuple[torch.Tensor, ...]:
        ctx.members, ctx.title = members, title_of("allgather", name)
        finish = lambda gathered, counts: (gathered, counts)
        pairs = run_all(tensors, lambda tensor, driven: start_allgather(tensor, ctx.title, members, finish, driven))
        ctx.shapes = [tensor.shape for tensor in tensors]
        ctx.counts = [counts for _, counts in pairs]
        return tuple(gathered for gathered, _ in pairs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Tuple[Optional[torch.Tensor], ...]:
        """This rank's rows are on all ranks: the average of the gradients that they have there. A lost one has none."""
        title, place = f"{ctx.title}.backward", place_in(ctx.members)
        given = list(zip(gradients, ctx.counts))
        received = run_all(given, lambda pair, driven: _start_alltoall(pair[0], pair[1], title, ctx.members, driven))
        averages = []
        for (rows, senders), (gradient, counts), shape in zip(received, given, ctx.shapes):
            there = int((senders > 0).sum()) or 1
            averages.append(rows.view(there, counts[place], *gradient.shape[1:]).sum(0).div(there).view(shape))
        return (None, None, *averages)


# ---- reducescatter


def reducescatter_async(
    tensor: torch.Tensor,
    name: Optional[str] = None,
    op: Union[ReduceOp, str] = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts it; synchronize() returns this rank's share of the reduced rows."""
    tensor, meaning = prepare(tensor, op, None, prescale_factor, postscale_factor)
    return _start_reducescatter(tensor, meaning, title_of("reducescatter", name), members_of(process_set), True)


def reducescatter(
    tensor: torch.Tensor,
    name: Optional[str] = None,
    compression: Type[Compressor] = Compression.none,
    op: Union[ReduceOp, str] = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """The tensors of all ranks as one, of which each rank gets some rows: as many each as can be, the first ranks one
    more. All ranks have the same shape. Sums and averages are differentiable: all ranks must run backward."""
    factors = (prescale_factor, postscale_factor)
    return grouped_reducescatter([tensor], name, compression, op, process_set, *factors)[0]


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: Optional[str] = None,
    op: Union[ReduceOp, str] = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """One handle for all; synchronize() returns the list of results."""
    options = (op, process_set, prescale_factor, postscale_factor)
    several = check_all(tensors, lambda tensor: _check_reduced(tensor, op, prescale_factor, postscale_factor))
    return pending.group([reducescatter_async(tensor, name, *options) for tensor in several])


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: Optional[str] = None,
    compression: Type[Compressor] = Compression.none,
    op: Union[ReduceOp, str] = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> List[torch.Tensor]:
    """reducescatter() of several, which travel at once. Differentiable."""
    checked_cast(compression, "reducescatter()")
    several = check_all(tensors, lambda tensor: _check_reduced(tensor, op, prescale_factor, postscale_factor))
    prepared = [prepare(tensor, op, None, prescale_factor, postscale_factor) for tensor in several]
    compressed = [compression.compress(tensor) for tensor, _ in prepared]
    if not compressed:
        return []
    meanings = [meaning for _, meaning in prepared]
    reduced = _Reducescatter.apply(meanings, name, members_of(process_set), *[tensor for tensor, _ in compressed])
    return [compression.decompress(result, context) for result, (_, context) in zip(reduced, compressed)]


def _check_reduced(
    tensor: torch.Tensor, op: Union[ReduceOp, str], prescale_factor: float, postscale_factor: float
) -> None:
    tensors.check_reduced(tensor, reduction.resolve(op, None, prescale_factor, postscale_factor))
    if tensor.dim() == 0:
        raise ValueError("reducescatter: the tensor has no dimensions, so there are no rows to share; use allreduce")


def _start_reducescatter(
    tensor: torch.Tensor, meaning: reduction.Reduction, title: str, members: Members, is_driven: bool = False
) -> int:
    if tensor.dim() == 0:
        raise ValueError("reducescatter: the tensor has no dimensions, so there are no rows to share; use allreduce")
    kind, shape = tensors.travels_as(tensor, meaning.operation)
    source = tensors.plain(tensor)
    rows = Rows(kind, source.data_ptr(), shape[0], tuple(shape[1:]), devices.place_of(source))
    share = collectives.scattered_counts(shape[0], len(members) or session.size())[place_in(members)]
    output = torch.empty((share, *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device)

    def finish(_: int) -> torch.Tensor:
        devices.used_here(output)
        return output

    moving = Moving((source, output), finish)
    name, what = wire_name(title, members), Exchange(*meaning, members=members, once=True)
    return moving.start(
        lambda job: collectives.reducescatter(job, name, rows, output.data_ptr(), what), is_driven
    )


class _Reducescatter(torch.autograd.Function):
    """Of several tensors."""

    @staticmethod
    def forward(
        ctx: Any,
        meanings: Sequence[reduction.Reduction],
        name: Optional[str],
        members: Members,
        *tensors: torch.Tensor,
    ) -> Tuple[torch.Tensor, ...]:
        ctx.meanings, ctx.members, ctx.title = meanings, members, title_of("reducescatter", name)
        sums = run_all(
            list(zip(tensors, meanings)),
            lambda pair, driven: _start_reducescatter(pair[0], pair[1], ctx.title, members, driven),
        )
        return tuple(sums)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Tuple[Optional[torch.Tensor], ...]:
        """Every rank gave to the rows of each: it gets their gradients, of a sum times the number of ranks."""
        meaning = ctx.meanings[0]  # those of integers, which may differ, have no gradient
        if meaning.operation not in (abi.SUM, abi.AVERAGE):
            raise ValueError(f"{ctx.title}: only a sum and an average have a gradient; use op=Sum or op=Average")
        title = f"{ctx.title}.backward"
        gathered = run_all(
            gradients,
            lambda gradient, driven: start_allgather(gradient, title, ctx.members, is_driven=driven),
        )
        factor = meaning.scale or 1.0
        if meaning.operation == abi.SUM:
            factor *= len(ctx.members) or session.size()
        return (None, None, None, *[rows if factor == 1.0 else rows * factor for rows in gathered])


# ---- alltoall


def alltoall_async(
    tensor: torch.Tensor,
    splits: Splits = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts it; synchronize() returns (the received rows, how many came from each rank)."""
    members = members_of(process_set)
    checked = _checked_splits(tensor, splits, members)
    return _start_alltoall(tensor, checked, title_of("alltoall", name), members, is_driven=True)


def alltoall(
    tensor: torch.Tensor,
    splits: Splits = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
    """Sends splits[i] rows of `tensor`, which lie in that order, to the i-th rank; the result is the rows that came, in
    the order of ranks. With splits given it is (the rows, how many came from each rank: a tensor of the same dtype and
    device as splits); without, every rank gets as many. Differentiable."""
    members = members_of(process_set)
    output, received = _Alltoall.apply(tensor, _checked_splits(tensor, splits, members), name, members)
    if splits is None:
        return output
    if isinstance(splits, torch.Tensor):
        return output, received.to(splits.device, splits.dtype)
    return output, received


def _start_alltoall(
    tensor: torch.Tensor, splits: Sequence[int], title: str, members: Members, is_driven: bool = False
) -> int:
    rows, source, line = rows_of(tensor)
    landing = Landing(source, line)

    def finish(received: List[int]) -> Tuple[torch.Tensor, torch.Tensor]:
        return landing.take(), torch.tensor(received, dtype=torch.int32, device="cpu")

    moving = Moving((source, landing), finish)
    name = wire_name(title, members)
    return moving.start(
        lambda job: collectives.alltoall(job, name, rows, splits, landing.allocate, members, once=True), is_driven
    )


def _checked_splits(tensor: torch.Tensor, splits: Splits, members: Members) -> List[int]:
    tensors.check_dense(tensor)
    size = len(members) or session.size()
    if tensor.dim() == 0:
        raise ValueError("alltoall: the tensor has no dimensions, so there are no rows to send")
    if splits is None:
        if tensor.shape[0] % size:
            raise ValueError(f"alltoall: {tensor.shape[0]} rows are not as many for each of {size} ranks: give splits")
        return [tensor.shape[0] // size] * size
    checked = [int(split) for split in (splits.tolist() if isinstance(splits, torch.Tensor) else splits)]
    if len(checked) != size or min(checked) < 0 or sum(checked) != tensor.shape[0]:
        raise ValueError(
            f"alltoall: splits {checked} must be {size} numbers of rows, 0 or more, whose sum is {tensor.shape[0]}"
        )
    return checked


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: List[int], name: Optional[str], members: Members
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        ctx.members, ctx.title = members, title_of("alltoall", name)
        output, received = pending.synchronize(_start_alltoall(tensor, splits, ctx.title, members))
        ctx.splits, ctx.received = splits, received.tolist()
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> Tuple[torch.Tensor, None, None, None]:
        title = f"{ctx.title}.backward"
        back, counts = pending.synchronize(_start_alltoall(gradient, ctx.received, title, ctx.members))
        return _in_place(back, counts.tolist(), ctx.splits), None, None, None


def _in_place(rows: torch.Tensor, counts: Sequence[int], wanted: Sequence[int]) -> torch.Tensor:
    """`rows`, of which counts[i] came from the i-th rank, with zeros for those of ranks from which none came."""
    if list(counts) == list(wanted):
        return rows
    parts = [
        part if len(part) == count else rows.new_zeros((count, *rows.shape[1:]))
        for part, count in zip(rows.split(list(counts)), wanted)
    ]
    return torch.cat(parts)
