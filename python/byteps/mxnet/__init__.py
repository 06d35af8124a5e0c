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

from byteps._core import api as _api
from byteps._core.api import *
from byteps._core.horovod import init
from byteps._core.process_sets import get_process_set_ids_and_ranks, process_set_by_id
from byteps._core.session import resume
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
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_parameters",
    "byteps_declare_tensor",
    "byteps_push_pull",
    "get_process_set_ids_and_ranks",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "init",
    "join",
    "process_set_by_id",
    "push_pull",
    "reducescatter",
    "resume",
]
__all__ += _api.__all__

kvstore.register()
