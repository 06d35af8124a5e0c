"""push_pull: the sum or average of a tensor over all workers.

A tensor is its name: what belongs together has the same name on all ranks, and the same shape and dtype. Unnamed
operations are numbered in the order of the calls, which must then be the same on all ranks. Any number of operations
may be under way at once, started in any order on each rank.

From *_async until synchronize() the tensor belongs to BytePS: do not write to it, nor read it when it is in place.
`version` is accepted for compatibility and has no effect. Larger `priority` goes first.
"""

from __future__ import annotations

import threading
from typing import Any, Optional, Tuple, Type

import torch

from byteps._core import abi, session
from byteps._core.compression import checked_stateless, packed
from byteps._core.exchange import Exchange, encoded_name
from byteps._core.session import (
    barrier,
    get_pushpull_speed,
    init,
    leader,
    local_rank,
    local_size,
    metrics,
    rank,
    resume,
    shutdown,
    size,
    suspend,
)
from byteps.torch.compression import Compression, Compressor, float32_count
from byteps.torch.exchange import start
from byteps.torch.pending import poll, synchronize
from byteps.torch.tensors import check_dense

__all__ = [
    "barrier",
    "byteps_torch_set_num_grads",
    "declare",
    "get_pushpull_speed",
    "init",
    "leader",
    "local_rank",
    "local_size",
    "metrics",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_group_sync_inplace",
    "push_pull_inplace",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
    "synchronize",
]

def push_pull_async(
    tensor: torch.Tensor, average: bool = True, name: Optional[str] = None, version: int = 0, priority: int = 0
) -> int:
    """Starts the sum (or average) of `tensor` over all workers; a handle for poll() and synchronize(), which returns
    the result in a new tensor."""
    check_dense(tensor)
    output = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return start(tensor, output, _what(average, priority), name)


def push_pull_async_inplace(
    tensor: torch.Tensor, average: bool = True, name: Optional[str] = None, version: int = 0, priority: int = 0
) -> int:
    """push_pull_async whose result lands in `tensor`, which synchronize() returns."""
    return start(tensor, tensor, _what(average, priority), name)


def push_pull_inplace(
    tensor: torch.Tensor, average: bool = True, name: Optional[str] = None, version: int = 0, priority: int = 0
) -> torch.Tensor:
    """Sums (or averages) `tensor` over all workers in place; returns it."""
    return synchronize(push_pull_async_inplace(tensor, average, name, version, priority))


def push_pull(
    tensor: torch.Tensor,
    average: bool = True,
    name: Optional[str] = None,
    version: int = 0,
    priority: int = 0,
    compression: Type[Compressor] = Compression.none,
) -> torch.Tensor:
    """The sum (or average) of `tensor` over all workers, in a new tensor. Differentiable: the gradient of a sum is the
    sum of the gradients, so all ranks must run backward through it."""
    compressed, context = packed(checked_stateless(compression), tensor, abi.SUM, float32_count(tensor))
    summed = _PushPull.apply(compressed, average, name, version, priority, compression)
    return compression.decompress(summed, context)


class _PushPull(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        average: bool,
        name: Optional[str],
        version: int,
        priority: int,
        compression: Any,
    ) -> torch.Tensor:
        check_dense(tensor)
        ctx.compression = compression
        ctx.average = average
        ctx.version = version
        ctx.priority = priority
        # Backward runs in an order of autograd's choice, so its name is fixed here.
        ctx.name = session.current().unique_name("push_pull.noname") if name is None else name
        ctx.backward_count = 0 if name is None else None
        output = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        return synchronize(start(tensor, output, _what(average, priority), name, compression))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Tuple[Optional[torch.Tensor], ...]:
        name = f"{ctx.name}.backward"
        once = ctx.backward_count is not None
        if once:
            name = f"{name}.{ctx.backward_count}"
            ctx.backward_count += 1
        output = torch.empty(gradient.shape, dtype=gradient.dtype, device=gradient.device)
        what = _what(ctx.average, ctx.priority, once)
        return synchronize(start(gradient, output, what, name, ctx.compression)), None, None, None, None, None


_group_lock = threading.Lock()
_group_size = 0
_group_count = 0


def byteps_torch_set_num_grads(num_grads: int) -> int:
    """How many push_pull_group_sync_inplace make one step."""
    global _group_size, _group_count
    if num_grads < 1:
        raise ValueError(f"num_grads is {num_grads}: it must be at least 1")
    with _group_lock:
        _group_size, _group_count = num_grads, 0
    return 0


def push_pull_group_sync_inplace(
    tensor: torch.Tensor, average: bool = True, name: Optional[str] = None, version: int = 0, priority: int = 0
) -> Tuple[int, int]:
    """push_pull_async_inplace that counts: (handle, number of this tensor within the step). The number is num_grads
    (byteps_torch_set_num_grads) for the last one of a step; then it begins at 1 again."""
    global _group_count
    handle = push_pull_async_inplace(tensor, average, name, version, priority)
    with _group_lock:
        _group_count += 1
        count = _group_count
        if count == _group_size:
            _group_count = 0
    return handle, count


def declare(name: str) -> int:
    """Accepted for compatibility: names need no declaration, nor any order of it. Returns 0."""
    session.current()
    encoded_name(name)
    return 0


def _what(average: bool, priority: int, once: bool = False) -> Exchange:
    return Exchange(abi.AVERAGE if average else abi.SUM, priority=priority, once=once)
