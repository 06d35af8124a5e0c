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

from byteps._core import api as _api
from byteps._core.api import *
from byteps._core.horovod import init
from byteps._core.process_sets import get_process_set_ids_and_ranks, process_set_by_id
from byteps._core.session import resume
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
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "get_process_set_ids_and_ranks",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_by_id",
    "process_set_included_op",
    "push_pull",
    "rank_op",
    "reduce_gradients",
    "reducescatter",
    "resume",
    "size_op",
]
__all__ += _api.__all__
