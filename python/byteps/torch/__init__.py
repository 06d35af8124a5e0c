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
from byteps._core import api as _api
from byteps._core.api import *
from byteps._core.errors import BytePSError
from byteps._core.horovod import init, join
from byteps._core.process_sets import get_process_set_ids_and_ranks
from byteps._core.reduction import ReduceOp
from byteps.torch.allreduce import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    sparse_allreduce_async,
)
from byteps.torch.backend.start import init_process_group
from byteps.torch.broadcast import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from byteps.torch.compression import Compression
from byteps.torch.ddp_hook import DDPHookState, ddp_comm_hook
from byteps.torch.devices import cuda_built
from byteps.torch.diloco import DiLoCo
from byteps.torch.gathers import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    grouped_allgather,
    grouped_allgather_async,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from byteps.torch.ops import (
    declare,
    poll,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_inplace,
    resume,
    synchronize,
)
from byteps.torch.optimizer import DistributedOptimizer
from byteps.torch.optimizer import _DistributedOptimizer as _DistributedOptimizer
from byteps.torch.partial import PartialDistributedOptimizer
from byteps.torch.sync_batch_norm import SyncBatchNorm
from byteps.torch.tensor_broadcast import broadcast, broadcast_, broadcast_async, broadcast_async_

byteps_push_pull = push_pull_async_inplace
HorovodInternalError = BytePSError
_torch_autoload.load()  # torch.distributed's backend "byteps"

__all__ = [
    "Compression",
    "DDPHookState",
    "DiLoCo",
    "DistributedOptimizer",
    "HorovodInternalError",
    "PartialDistributedOptimizer",
    "ReduceOp",
    "SyncBatchNorm",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "byteps_push_pull",
    "cuda_built",  # in place of the other layers'
    "ddp_comm_hook",
    "declare",
    "get_process_set_ids_and_ranks",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "init_process_group",
    "join",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "reducescatter",
    "reducescatter_async",
    "resume",
    "sparse_allreduce_async",
    "synchronize",
]
__all__ += [name for name in _api.__all__ if name not in __all__]
