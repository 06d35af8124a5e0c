"""BytePS for TensorFlow. The whole of it is in docs/tensorflow.md; in short:

    import tensorflow as tf
    import byteps.tensorflow as bps

    bps.init()
    with tf.GradientTape() as tape:
        loss = ...
    tape = bps.DistributedGradientTape(tape)
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    if first_step:
        bps.broadcast_variables(variables, root_rank=0)

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
from byteps.tensorflow.compression import Compression
from byteps.tensorflow.gather import allgather, alltoall, grouped_allgather, grouped_reducescatter, reducescatter
from byteps.tensorflow.gradients import reduce_gradients
from byteps.tensorflow.horovod import (
    allreduce,
    grouped_allreduce,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from byteps.tensorflow.ops import broadcast, push_pull
from byteps.tensorflow.optimizer import DistributedOptimizer
from byteps.tensorflow.optimizer import _DistributedOptimizer as _DistributedOptimizer
from byteps.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from byteps.tensorflow.variables import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "BytePSError",
    "Compression",
    "DisconnectedError",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "MismatchError",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
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
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "metrics",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_by_id",
    "process_set_included_op",
    "push_pull",
    "rank",
    "rank_op",
    "reduce_gradients",
    "reducescatter",
    "remove_process_set",
    "resume",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
    "suspend",
]
