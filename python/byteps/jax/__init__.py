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
from byteps._core.session import (
    barrier,
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
from byteps.jax.ops import Handle, poll, push_pull, push_pull_async, push_pull_tree, synchronize
from byteps.jax.start import init, resume

__all__ = [
    "BytePSError",
    "Compression",
    "DisconnectedError",
    "Handle",
    "MismatchError",
    "barrier",
    "get_pushpull_speed",
    "init",
    "local_rank",
    "local_size",
    "metrics",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_tree",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
    "synchronize",
]
