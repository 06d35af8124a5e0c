"""BytePS for MXNet 1.9. The whole of it is in docs/mxnet.md; in short:

    import mxnet as mx
    import byteps.mxnet as bps

    bps.init()
    net = ...
    net.initialize()
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})

Each rank then trains on its own part of the data. Without any environment the job has one member.
"""

from __future__ import annotations

from byteps._core.errors import BytePSError, DisconnectedError, MismatchError
from byteps._core.horovod import (
    barrier,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
    start_timeline,
    stop_timeline,
)
from byteps._core.process_sets import (
    ProcessSet,
    add_process_set,
    get_process_set_ids_and_ranks,
    global_process_set,
    process_set_by_id,
    remove_process_set,
)
from byteps._core.reduction import Adasum, Average, Max, Min, Product, Sum
from byteps._core.session import (
    get_pushpull_speed,
    local_rank,
    local_size,
    metrics,
    rank,
    resume,
    shutdown,
    size,
    suspend,
)
from byteps.mxnet import kvstore
from byteps.mxnet.broadcast import broadcast_parameters
from byteps.mxnet.compression import Compression
from byteps.mxnet.gather import (
    allgather,
    allgather_object,
    alltoall,
    broadcast_object,
    grouped_allgather,
    grouped_reducescatter,
    reducescatter,
)
from byteps.mxnet.ops import (
    allreduce,
    allreduce_,
    broadcast,
    broadcast_,
    byteps_declare_tensor,
    byteps_push_pull,
    grouped_allreduce,
    grouped_allreduce_,
    join,
    push_pull,
)
from byteps.mxnet.optimizer import DistributedOptimizer
from byteps.mxnet.trainer import DistributedTrainer

__all__ = [
    "Adasum",
    "Average",
    "BytePSError",
    "Compression",
    "DisconnectedError",
    "DistributedOptimizer",
    "DistributedTrainer",
    "Max",
    "Min",
    "MismatchError",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_parameters",
    "byteps_declare_tensor",
    "byteps_push_pull",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "get_process_set_ids_and_ranks",
    "get_pushpull_speed",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "metrics",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_by_id",
    "push_pull",
    "rank",
    "reducescatter",
    "remove_process_set",
    "resume",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "suspend",
]

kvstore.register()
