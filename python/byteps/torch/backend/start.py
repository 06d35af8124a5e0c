"""init_process_group() without a word about where the others are."""

from __future__ import annotations

import os
import socket
from typing import Any, Optional

import torch.distributed as dist

from byteps._core import session
from byteps.torch.broadcast import broadcast_object

# What torch's own rendezvous env:// reads; torchrun, Slurm scripts and bpslaunch --local set it.
_ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def init_process_group(backend: str = "byteps", init_method: Optional[str] = None, **options: Any) -> None:
    """torch.distributed.init_process_group("byteps"), and under any launcher: where the environment does not have what
    torch's rendezvous needs, the byteps job is joined first, and its ranks meet through it. Call it before libraries
    that only know their own list of backends (Accelerate) look for a process group. Does nothing when there is one."""
    if dist.is_initialized():
        return
    if init_method is None and "store" not in options and not all(os.environ.get(name) for name in _ENVIRONMENT):
        options.update(_meet_through_the_job(options.get("timeout")))
    dist.init_process_group(backend, init_method=init_method, **options)


def _meet_through_the_job(timeout: Any) -> Any:
    session.init()
    job = session.job()
    arguments = {} if timeout is None else {"timeout": timeout}
    if job.size == 1:
        return {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    store, address = None, None
    if job.rank == 0:
        address = _own_address()
        store = dist.TCPStore(address, 0, job.size, True, wait_for_workers=False, **arguments)
    place = broadcast_object((address, store.port if store is not None else 0), 0, "torch.distributed store")
    if store is None:
        store = dist.TCPStore(place[0], place[1], job.size, False, wait_for_workers=False, **arguments)
    return {"store": store, "rank": job.rank, "world_size": job.size}


def _own_address() -> str:
    """This machine's address as the scheduler sees it, which the other members can reach as well."""
    if os.environ.get("DMLC_NODE_HOST"):
        return os.environ["DMLC_NODE_HOST"]
    scheduler = os.environ.get("DMLC_PS_ROOT_URI", "127.0.0.1")
    family, kind, _, _, target = socket.getaddrinfo(scheduler, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)  # sends nothing
        return str(probe.getsockname()[0])
