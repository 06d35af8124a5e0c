"""BytePS for PyTorch. The whole of it is in docs/torch.md; in short:

    import torch
    import byteps.torch as bps

    bps.init()
    torch.manual_seed(42)
    model = ...
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * bps.size())
    optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)

Each rank then trains on its own part of the data. Without any environment the job has one member.
"""

from __future__ import annotations

from byteps import _torch_autoload
from byteps._core.errors import BytePSError, DisconnectedError, MismatchError
from byteps.torch.backend.start import init_process_group
from byteps.torch.broadcast import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from byteps.torch.compression import Compression
from byteps.torch.ops import (
    barrier,
    declare,
    get_pushpull_speed,
    init,
    local_rank,
    local_size,
    metrics,
    poll,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_inplace,
    rank,
    resume,
    shutdown,
    size,
    suspend,
    synchronize,
)
from byteps.torch.optimizer import DistributedOptimizer, _DistributedOptimizer
from byteps.torch.sync_batch_norm import SyncBatchNorm

byteps_push_pull = push_pull_async_inplace
_torch_autoload.load()  # torch.distributed's backend "byteps"

__all__ = [
    "BytePSError",
    "Compression",
    "DisconnectedError",
    "DistributedOptimizer",
    "MismatchError",
    "SyncBatchNorm",
    "barrier",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "byteps_push_pull",
    "declare",
    "get_pushpull_speed",
    "init",
    "init_process_group",
    "local_rank",
    "local_size",
    "metrics",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
    "synchronize",
]
