"""broadcast: one rank's tensor to the others, of any dtype.

Without a name a call is numbered, with one it is numbered among those of its name: all members of the process set make
the same calls in the same order.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch

from byteps._core import abi, session
from byteps._core.exchange import Exchange
from byteps._core.process_sets import ProcessSet, check_root, global_process_set, members_of, scoped
from byteps.torch import exchange, pending
from byteps.torch.tensors import check_dense

__all__ = ["broadcast", "broadcast_", "broadcast_async", "broadcast_async_"]


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts it; a handle for poll() and synchronize(), which returns the root's values in a new tensor."""
    check_dense(tensor)
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    if session.rank() == root_rank:
        copy.copy_(tensor.detach())
    return broadcast_async_(copy, root_rank, name, process_set)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts it; the root's values land in `tensor`, which synchronize() returns."""
    members = members_of(process_set)
    root_rank = check_root(root_rank, members)
    return exchange.start_broadcast(tensor, root_rank, _unique(name, members), members=members)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """The root's values, in place; returns `tensor`."""
    return pending.synchronize(broadcast_async_(tensor, root_rank, name, process_set))


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """The root's values, in a new tensor. Differentiable: the root gets the average of all ranks' gradients."""
    return _Broadcast.apply(tensor, root_rank, name, process_set)


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, name: Optional[str], process_set: ProcessSet
    ) -> torch.Tensor:
        ctx.root_rank, ctx.name, ctx.members = root_rank, name, members_of(process_set)
        return pending.synchronize(broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Tuple[torch.Tensor, None, None, None]:
        name = _unique(f"{ctx.name or 'noname'}.backward", ctx.members)
        output = torch.empty(gradient.shape, dtype=gradient.dtype, device=gradient.device)
        handle = exchange.start(gradient, output, Exchange(abi.AVERAGE, members=ctx.members, once=True), name)
        average = pending.synchronize(handle)
        return average if session.rank() == ctx.root_rank else torch.zeros_like(average), None, None, None


def _unique(name: Optional[str], members: Tuple[int, ...]) -> str:
    return session.current().unique_name(scoped(f"broadcast.{'noname' if name is None else name}", members))
