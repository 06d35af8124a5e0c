"""A process group of torch.distributed over the backend "byteps", of all ranks of the job that a worker is in."""

import torch.distributed as dist

_job = None  # whose group it is


def ensure_group(path):
    """Of the job as it is now. path: of a file that is not there yet, the same on all ranks."""
    global _job
    import byteps.torch as bps
    from byteps._core import session

    if _job is not session.job() or not dist.is_initialized():
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.distributed_c10d._world.group_count = 0  # which names it; a group that could not be made has counted too
        store = dist.FileStore(path, bps.size())
        dist.init_process_group("byteps", store=store, rank=bps.rank(), world_size=bps.size())
        _job = session.job()
