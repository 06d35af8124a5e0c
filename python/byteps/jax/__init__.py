"""BytePS for JAX. The whole of it is in docs/jax.md; in short:

    import jax
    import optax
    import byteps.jax as bps

    bps.init()
    optimizer = bps.distributed(optax.adam(1e-3 * bps.size()))
    params = bps.broadcast_parameters(params, root_rank=0)

    @jax.jit
    def step(params, state, batch):
        gradients = jax.grad(loss)(params, batch)
        updates, state = optimizer.update(gradients, state, params)     # averages over all workers
        return optax.apply_updates(params, updates), state

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
    shutdown,
    size,
    suspend,
)
from byteps.jax.compression import Compression
from byteps.jax.gather import allgather, alltoall, broadcast, reducescatter
from byteps.jax.ops import Handle, poll, push_pull, push_pull_async, push_pull_tree, synchronize
from byteps.jax.optimizer import DistributedOptimizer, distributed
from byteps.jax.parameters import allgather_object, broadcast_object, broadcast_parameters, broadcast_tree
from byteps.jax.start import init, join, resume

__all__ = [
    "Adasum",
    "Average",
    "BytePSError",
    "Compression",
    "DisconnectedError",
    "DistributedOptimizer",
    "Handle",
    "Max",
    "Min",
    "MismatchError",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_parameters",
    "broadcast_tree",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "distributed",
    "get_pushpull_speed",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
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
    "poll",
    "process_set_by_id",
    "push_pull",
    "push_pull_async",
    "push_pull_tree",
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
    "synchronize",
]
