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

from byteps._core import api as _api
from byteps._core.api import *
from byteps._core.process_sets import process_set_by_id
from byteps.jax.compression import Compression
from byteps.jax.diloco import DiLoCoState, diloco
from byteps.jax.gather import allgather, alltoall, broadcast, reducescatter
from byteps.jax.ops import Handle, poll, push_pull, push_pull_async, push_pull_tree, synchronize
from byteps.jax.optimizer import DistributedOptimizer, distributed
from byteps.jax.parameters import allgather_object, broadcast_object, broadcast_parameters, broadcast_tree
from byteps.jax.start import init, join, resume

__all__ = [
    "Compression",
    "DiLoCoState",
    "DistributedOptimizer",
    "Handle",
    "allgather",
    "allgather_object",
    "alltoall",
    "broadcast",
    "broadcast_object",
    "broadcast_parameters",
    "broadcast_tree",
    "diloco",
    "distributed",
    "init",
    "join",
    "poll",
    "process_set_by_id",
    "push_pull",
    "push_pull_async",
    "push_pull_tree",
    "reducescatter",
    "resume",
    "synchronize",
]
__all__ += _api.__all__
