"""allreduce: push_pull under Horovod's name and with its arguments.

    op: Average (also when none is given), Sum, Min, Max or Product. `average` is the older way to say the first two.
    prescale_factor, postscale_factor: the result is multiplied by both. Integers are multiplied by the first on each
        rank, before they are added, and rounded towards zero there.
    process_set: the ranks that take part, each of which makes the call; all ranks when none is given.

The functions that end in `_` work in place. Sums and averages are differentiable. Grouped calls take a list of tensors
and return one; all of them travel at once. Sparse COO tensors are summed or averaged too, into a new coalesced one.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple, Type, Union

import torch

from byteps._core import abi, reduction, session
from byteps._core.compression import NoneCompressor, checked_stateless, packed
from byteps._core.exchange import Exchange, encoded_name
from byteps._core.process_sets import ProcessSet, global_process_set, members_of, scoped
from byteps._core.reduction import ReduceOp
from byteps.torch import exchange, pending, sparse
from byteps.torch.compression import Compression, Compressor, float32_count
from byteps.torch.tensors import check_all, check_dense, check_no_overlap, check_reduced, prepare

__all__ = [
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "sparse_allreduce_async",
]

Op = Union[ReduceOp, str, None]


def allreduce_async(
    tensor: torch.Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Op = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts it; a handle for poll() and synchronize(), which returns the result in a new tensor."""
    tensor, meaning = prepare(tensor, op, average, prescale_factor, postscale_factor)
    if isinstance(tensor, torch.Tensor) and tensor.layout == torch.sparse_coo:
        return sparse.start(tensor, meaning, name, members_of(process_set), is_driven=True)
    check_dense(tensor)
    output = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return _start(tensor, output, meaning, name, members_of(process_set))


def allreduce_async_(
    tensor: torch.Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Op = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts it; the result lands in `tensor`, which synchronize() returns."""
    scaled, meaning = prepare(tensor, op, average, prescale_factor, postscale_factor)
    if scaled is not tensor:
        check_no_overlap(tensor)
        tensor.copy_(scaled)
    return _start(tensor, tensor, meaning, name, members_of(process_set))


def allreduce_(
    tensor: torch.Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Op = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduces `tensor` in place; returns it."""
    return pending.synchronize(
        allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    )


def allreduce(
    tensor: torch.Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: Type[Compressor] = Compression.none,
    op: Op = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """The tensors of all ranks as one, in a new tensor. Differentiable: all ranks must run backward through it."""
    tensor, meaning = prepare(tensor, op, average, prescale_factor, postscale_factor)
    if isinstance(tensor, torch.Tensor) and tensor.layout == torch.sparse_coo:
        return pending.synchronize(sparse.start(tensor, meaning, name, members_of(process_set)))
    compressed, context = packed(checked_stateless(compression), tensor, meaning.operation, float32_count(tensor))
    (reduced,) = _Allreduce.apply([meaning], members_of(process_set), [name], compression, compressed)
    return compression.decompress(reduced, context)


def sparse_allreduce_async(
    tensor: torch.Tensor, name: Optional[str] = None, op: Op = None, process_set: ProcessSet = global_process_set
) -> pending.CallableHandle:
    """Starts the sum or average of a sparse COO tensor; a handle that is called for the result, a new coalesced tensor.
    It is one for synchronize() and poll() too."""
    handle = sparse.start(tensor, reduction.resolve(op), name, members_of(process_set), is_driven=True)
    return pending.CallableHandle(handle)


# ---- several at once


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Op = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """One handle for all; synchronize() returns the list of results."""
    options = (average, op, prescale_factor, postscale_factor, process_set)
    start = lambda tensor, its_name: allreduce_async(tensor, options[0], its_name, *options[1:])
    several = check_all(tensors, _check_of(op, average, prescale_factor, postscale_factor))
    return _start_group(several, _names(name, len(several)), start)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Op = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """The same in place."""
    options = (average, op, prescale_factor, postscale_factor, process_set)
    start = lambda tensor, its_name: allreduce_async_(tensor, options[0], its_name, *options[1:])
    several = check_all(tensors, _check_of(op, average, prescale_factor, postscale_factor, in_place=True))
    return _start_group(several, _names(name, len(several)), start)


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Op = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> List[torch.Tensor]:
    return pending.synchronize(
        grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set)
    )


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: Type[Compressor] = Compression.none,
    op: Op = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> List[torch.Tensor]:
    """Differentiable, as allreduce()."""
    checked_stateless(compression)
    several = check_all(tensors, _check_of(op, average, prescale_factor, postscale_factor))
    prepared = [prepare(tensor, op, average, prescale_factor, postscale_factor) for tensor in several]
    compressed = [packed(compression, tensor, meaning.operation, float32_count(tensor)) for tensor, meaning in prepared]
    names = _names(name, len(compressed))
    meanings = [meaning for _, meaning in prepared]
    members = members_of(process_set)
    reduced = _Allreduce.apply(meanings, members, names, compression, *[tensor for tensor, _ in compressed])
    return [compression.decompress(tensor, context) for tensor, (_, context) in zip(reduced, compressed)]


# ---- inside


def _check_of(
    op: Op, average: Optional[bool], prescale_factor: float, postscale_factor: float, in_place: bool = False
) -> Callable[[torch.Tensor], None]:
    meaning = reduction.resolve(op, average, prescale_factor, postscale_factor)

    def check(tensor: torch.Tensor) -> None:
        if isinstance(tensor, torch.Tensor) and tensor.layout == torch.sparse_coo and not in_place:
            return sparse.check(tensor, meaning)
        check_reduced(tensor, meaning)
        if in_place:
            check_no_overlap(tensor)

    return check


def _start(
    tensor: torch.Tensor,
    output: torch.Tensor,
    meaning: reduction.Reduction,
    name: Optional[str],
    members: Tuple[int, ...],
    once: bool = False,
    compression: Any = NoneCompressor,
) -> int:
    if name is not None:
        name = scoped(encoded_name(name).decode(), members)
    return exchange.start(tensor, output, Exchange(*meaning, members=members, once=once), name, compression)


def _start_group(
    tensors: Sequence[torch.Tensor], names: Sequence[Any], start: Callable[[Any, Any], int]
) -> int:
    return pending.group([start(tensor, name) for tensor, name in zip(tensors, names)])


def _names(name: Optional[str], count: int) -> List[Optional[str]]:
    return [None if name is None else f"{name}.{index}" for index in range(count)]


class _Allreduce(torch.autograd.Function):
    """Several tensors, a name for each."""

    @staticmethod
    def forward(
        ctx: Any,
        meanings: Sequence[reduction.Reduction],
        members: Tuple[int, ...],
        names: Sequence[Optional[str]],
        compression: Any,
        *tensors: torch.Tensor,
    ) -> Tuple[torch.Tensor, ...]:
        for tensor in tensors:
            check_dense(tensor)
        ctx.compression = compression
        ctx.meanings, ctx.members, ctx.is_named = meanings, members, None not in names
        # Backward runs in an order of autograd's choice, so its names are fixed here.
        current, noname = session.current(), scoped("allreduce.noname", members)
        ctx.names = [current.unique_name(noname) if name is None else name for name in names]
        ctx.backward_count = 0
        return _Allreduce._exchange(ctx, tensors, ctx.names)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Tuple[Optional[torch.Tensor], ...]:
        if ctx.meanings[0].operation not in (abi.SUM, abi.AVERAGE):
            raise ValueError(f"{ctx.names[0]}: only a sum and an average have a gradient; use op=Sum or op=Average")
        suffix = ".backward"
        if not ctx.is_named:
            suffix += f".{ctx.backward_count}"
            ctx.backward_count += 1
        return (None, None, None, None, *_Allreduce._exchange(ctx, gradients, [name + suffix for name in ctx.names]))

    @staticmethod
    def _exchange(ctx: Any, tensors: Sequence[torch.Tensor], names: Sequence[str]) -> Tuple[torch.Tensor, ...]:
        def start(tensor: torch.Tensor, named: Tuple[str, reduction.Reduction]) -> int:
            output = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
            name, meaning = named
            return _start(tensor, output, meaning, name, ctx.members, not ctx.is_named, ctx.compression)

        return tuple(pending.synchronize(_start_group(tensors, list(zip(names, ctx.meanings)), start)))
