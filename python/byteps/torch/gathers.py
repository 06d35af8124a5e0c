"""Collectives that move rows: allgather, reducescatter, alltoall. Rows are elements of the first dimension.

Ranks may have different numbers of rows; the other dimensions and the dtype are the same on all. Without a name a call
is numbered, with one it is numbered among those of its name: all members make the same calls in the same order. The
results are new tensors. What an _async function starts goes on by itself, whatever its rank waits for meanwhile.

    process_set: the ranks that take part, each of which makes the call; all ranks when none is given.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple, Type, Union

import torch

from byteps._core import collectives, driver, reduction, session
from byteps._core.collectives import Rows
from byteps._core.process_sets import ProcessSet, global_process_set, members_of, scoped
from byteps._core.reduction import Average, ReduceOp
from byteps.torch import pending, tensors
from byteps.torch.compression import Compression, Compressor

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
Members = Tuple[int, ...]


class _Moving(pending.Pending):
    """A plan under way, its memory, and what makes the result of the plan's."""

    def __init__(self, keep: Any, finish: Callable[[Any], Any]) -> None:
        self._keep = keep
        self._finish = finish
        self._running: Union[driver.Driven, collectives.Running, None] = None

    def start(self, make_plan: Callable[[Any], Any], is_driven: bool) -> int:
        """`is_driven`: it goes on by itself. Otherwise while its caller waits for it, which costs no other thread, and
        the core knows for what this one waits."""
        handle = pending.note(self)
        try:
            if is_driven:
                self._running = driver.start(make_plan)
            else:
                job = session.job()
                self._running = collectives.Running(job, make_plan(job))
        except Exception:
            pending.forget(handle)
            raise
        return handle

    @property
    def ended(self) -> bool:
        return self._running is not None and self._running.ended

    def poll(self) -> bool:
        return self._running is not None and self._running.poll()

    def wait(self) -> Any:
        assert self._running is not None
        return self._finish(self._running.wait())


class _Landing:
    """Memory for rows like those of `model`, made when their number is known."""

    def __init__(self, model: torch.Tensor) -> None:
        self._model = model
        self.tensor = model

    def allocate(self, row_count: int) -> int:
        self.tensor = torch.empty((row_count, *self._model.shape[1:]), dtype=self._model.dtype)
        return self.tensor.data_ptr()


# ---- allgather


def allgather_async(
    tensor: torch.Tensor, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts it; a handle for poll() and synchronize(), which returns the rows of all ranks in the order of ranks."""
    return start_allgather(tensor, _title("allgather", name), members_of(process_set), is_driven=True)


def allgather(
    tensor: torch.Tensor, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """The rows of all ranks, in the order of ranks. A tensor without dimensions is one row. Differentiable."""
    return _Allgather.apply(tensor, name, members_of(process_set))


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> int:
    """One handle for all; synchronize() returns the list of results."""
    return pending.group([allgather_async(tensor, name, process_set) for tensor in tensors])


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> List[torch.Tensor]:
    return pending.synchronize(grouped_allgather_async(tensors, name, process_set))


def start_allgather(
    tensor: torch.Tensor,
    title: str,
    members: Members,
    finish: Callable[[torch.Tensor, List[int]], Any] = lambda gathered, counts: gathered,
    is_driven: bool = False,
) -> int:
    """finish(all rows, how many are each member's) makes the result."""
    rows, source = _rows(tensor)
    landing = _Landing(source)
    moving = _Moving((source, landing), lambda counts: finish(landing.tensor, counts))
    name = _wire_name(title, members)
    make_plan = lambda job: collectives.allgather(job, name, rows, landing.allocate, members, once=True)  # noqa: E731
    return moving.start(make_plan, is_driven)


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: Optional[str], members: Members) -> torch.Tensor:
        ctx.shape, ctx.members, ctx.title = tensor.shape, members, _title("allgather", name)
        title = ctx.title
        finish = lambda gathered, counts: (gathered, counts)  # noqa: E731
        gathered, ctx.counts = pending.synchronize(start_allgather(tensor, title, members, finish))
        return gathered

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Tuple[torch.Tensor, None, None]:  # type: ignore[override]
        """This rank's rows are on all ranks: the sum of the gradients that they have there."""
        own = ctx.counts[_place(ctx.members)]
        received, _ = pending.synchronize(
            _start_alltoall(gradient, ctx.counts, f"{ctx.title}.backward", ctx.members)
        )
        return received.view(len(ctx.counts), own, *gradient.shape[1:]).sum(0).view(ctx.shape), None, None


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
    meaning = reduction.resolve(op, None, prescale_factor, postscale_factor)
    return _start_reducescatter(tensor, meaning, _title("reducescatter", name), members_of(process_set), True)


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
    more. All ranks have the same shape. Sums and averages are differentiable."""
    meaning = reduction.resolve(op, None, prescale_factor, postscale_factor)
    compressed, context = compression.compress(tensor)
    reduced = _Reducescatter.apply(compressed, meaning, name, members_of(process_set))
    return compression.decompress(reduced, context)


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
    return pending.group([reducescatter_async(tensor, name, *options) for tensor in tensors])


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: Optional[str] = None,
    compression: Type[Compressor] = Compression.none,
    op: Union[ReduceOp, str] = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> List[torch.Tensor]:
    compressed = [compression.compress(tensor) for tensor in tensors]
    handle = grouped_reducescatter_async(
        [tensor for tensor, _ in compressed], name, op, process_set, prescale_factor, postscale_factor
    )
    results = pending.synchronize(handle)
    return [compression.decompress(result, context) for result, (_, context) in zip(results, compressed)]


def _start_reducescatter(
    tensor: torch.Tensor, meaning: reduction.Reduction, title: str, members: Members, is_driven: bool = False
) -> int:
    if tensor.dim() == 0:
        raise ValueError("reducescatter: the tensor has no dimensions, so there are no rows to share; use allreduce")
    kind, shape = tensors.reduced_as(tensor, meaning.operation)
    source = tensors.plain(tensor)
    rows = Rows(kind, source.data_ptr(), shape[0], shape[1:].numel())
    share = collectives.scattered_counts(shape[0], len(members) or session.size())[_place(members)]
    output = torch.empty((share, *tensor.shape[1:]), dtype=tensor.dtype)
    moving = _Moving((source, output), lambda count: output)
    name, (operation, scale) = _wire_name(title, members), meaning
    return moving.start(
        lambda job: collectives.reducescatter(
            job, name, rows, output.data_ptr(), operation, scale, members, once=True
        ),
        is_driven,
    )


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, meaning: reduction.Reduction, name: Optional[str], members: Members
    ) -> torch.Tensor:
        ctx.meaning, ctx.members, ctx.title = meaning, members, _title("reducescatter", name)
        return pending.synchronize(_start_reducescatter(tensor, meaning, ctx.title, members))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Tuple[torch.Tensor, None, None, None]:  # type: ignore[override]
        """Every rank gave to the rows of each: it gets their gradients."""
        operation, scale = ctx.meaning
        if operation not in (reduction.abi.SUM, reduction.abi.AVERAGE):
            raise ValueError(f"{ctx.title}: only a sum and an average have a gradient; use op=Sum or op=Average")
        gathered = pending.synchronize(start_allgather(gradient, f"{ctx.title}.backward", ctx.members))
        if operation == reduction.abi.AVERAGE:
            gathered = gathered / (len(ctx.members) or session.size())
        return gathered * scale if scale else gathered, None, None, None


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
    return _start_alltoall(tensor, checked, _title("alltoall", name), members, is_driven=True)


def alltoall(
    tensor: torch.Tensor,
    splits: Splits = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
    """Sends splits[i] rows of `tensor`, which lie in that order, to the i-th rank; the result is the rows that came, in
    the order of ranks. With splits given it is (the rows, how many came from each rank: a tensor of the same dtype
    as splits); without, every rank gets as many. Differentiable."""
    members = members_of(process_set)
    output, received = _Alltoall.apply(tensor, _checked_splits(tensor, splits, members), name, members)
    if splits is None:
        return output
    return output, received.to(splits.dtype if isinstance(splits, torch.Tensor) else torch.int32)


def _start_alltoall(
    tensor: torch.Tensor, splits: Sequence[int], title: str, members: Members, is_driven: bool = False
) -> int:
    rows, source = _rows(tensor)
    landing = _Landing(source)
    moving = _Moving(
        (source, landing), lambda received: (landing.tensor, torch.tensor(received, dtype=torch.int32))
    )
    name = _wire_name(title, members)
    return moving.start(
        lambda job: collectives.alltoall(job, name, rows, splits, landing.allocate, members, once=True), is_driven
    )


def _checked_splits(tensor: torch.Tensor, splits: Splits, members: Members) -> List[int]:
    tensors.check_dense_on_cpu(tensor)
    size = len(members) or session.size()
    if tensor.dim() == 0:
        raise ValueError("alltoall: the tensor has no dimensions, so there are no rows to send")
    if splits is None:
        if tensor.shape[0] % size:
            raise ValueError(f"alltoall: {tensor.shape[0]} rows are not as many for each of {size} ranks: give splits")
        return [tensor.shape[0] // size] * size
    checked = [int(split) for split in splits]
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
        ctx.members, ctx.title = members, _title("alltoall", name)
        output, received = pending.synchronize(_start_alltoall(tensor, splits, ctx.title, members))
        ctx.received = received.tolist()
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> Tuple[torch.Tensor, None, None, None]:  # type: ignore
        title = f"{ctx.title}.backward"
        back, _ = pending.synchronize(_start_alltoall(gradient, ctx.received, title, ctx.members))
        return back, None, None, None


# ---- inside


def _rows(tensor: torch.Tensor) -> Tuple[Rows, torch.Tensor]:
    """The tensor's rows, and the tensor with them, which must live as long as they are used."""
    source = tensors.plain(tensor)
    kind, shape = tensors.moved_as(source)
    if tensor.dim() == 0:
        source, shape = source.reshape(1), torch.Size((1, *shape))
    return Rows(kind, source.data_ptr(), shape[0], shape[1:].numel()), source


def _title(kind: str, name: Optional[str]) -> str:
    return f"{kind}.{'noname' if name is None else name}"


def _wire_name(title: str, members: Members) -> str:
    return "byteps." + session.current().unique_name(scoped(title, members))


def _place(members: Members) -> int:
    """This rank's number among the members."""
    rank = session.rank()
    return members.index(rank) if members else rank
