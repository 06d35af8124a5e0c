"""What scripts written for Horovod ask of any framework layer, beside its collectives."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any, Iterable, List, Optional, Union

from byteps._core import collectives, errors, session
from byteps._core.process_sets import ProcessSet, add_process_set, members_of, scoped

__all__ = [
    "barrier",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rocm_built",
    "start_timeline",
    "stop_timeline",
]


def init(
    comm: Any = None, process_sets: Union[Iterable[ProcessSet], str, None] = None, lazy: bool = True
) -> None:
    """Joins the job that the environment describes and waits until all members are there; without DMLC_* variables it
    is a job of one. Does nothing when already joined. `process_sets` get their numbers; "dynamic" is for compatibility,
    as is `lazy`, which the original BytePS has first. ValueError: `comm` was given; another launcher (torchrun, mpirun,
    srun, ...) has started several processes, and there are no DMLC_* variables."""
    if comm is not None and not isinstance(comm, bool):
        raise ValueError("init: comm is not supported, there is no MPI here; use ProcessSet for some of the ranks")
    sets = [] if process_sets is None or isinstance(process_sets, str) else list(process_sets)
    if not all(isinstance(each, ProcessSet) for each in sets):
        raise ValueError(f"init: process_sets is {sets!r}: it must be a list of ProcessSet, as [ProcessSet([0, 1])]")
    session.init(lazy)
    for process_set in sets:
        if process_set.process_set_id is None:
            add_process_set(process_set)


def is_initialized() -> bool:
    """Whether this process is a member of a job now."""
    try:
        return session.job().is_live
    except errors.NotInitializedError:
        return False


def cross_size() -> int:
    """The number of machines that have a worker of this local rank: all machines, unless they have different numbers of
    workers."""
    return len(_machines_like_mine())


def cross_rank() -> int:
    """This machine's number among those."""
    job = session.job()
    return _machines_like_mine().index(job.machines[job.rank])


def is_homogeneous() -> bool:
    """Whether all machines have the same number of workers."""
    return len(set(Counter(session.job().machines).values())) == 1


def _machines_like_mine() -> List[int]:
    """Those with a worker of this local rank, in the order of their first ranks."""
    job = session.job()
    return [machine for machine, workers in Counter(job.machines).items() if workers > job.local_rank]


def barrier(process_set: Optional[ProcessSet] = None) -> None:
    """Returns when all workers of the set (of the job, when none is given) have called it."""
    members = members_of(process_set)
    if not members:
        session.barrier()
        return
    current = session.current()
    name = current.unique_name(scoped("byteps.barrier", members))
    collectives.run(current.job, collectives.tables(current.job, name, [0], members, once=True))


def join(device: int = -1) -> int:
    """This rank has no more inputs: until all ranks have called it, it contributes nothing to the sums and averages of
    the others. Returns the rank that called it last, on all ranks; that one has seen the most, so broadcast its
    parameters. Blocks. `device` is for compatibility."""
    del device
    return session.current().finish_inputs()


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Only warns: timelines are recorded from the start of the processes, workers and servers alike."""
    warnings.warn(
        f"start_timeline: no timeline is begun in {file_path}. Set BYTEPS_TRACE_ON=1 before the job starts: then all "
        "its processes write timelines (docs/timeline.md), and 'bps trace merge' joins them",
        stacklevel=2,
    )


def stop_timeline() -> None:
    """Nothing: a timeline ends by itself (BYTEPS_TRACE_END_STEP)."""


def mpi_threads_supported() -> bool:
    return False


def mpi_enabled() -> bool:
    return False


def mpi_built() -> bool:
    """False, as all of these: gradients are summed by servers, and no other library takes part."""
    return False


def gloo_enabled() -> bool:
    return False


def gloo_built() -> bool:
    return False


def nccl_built() -> int:
    return 0


def ddl_built() -> bool:
    return False


def ccl_built() -> bool:
    return False


def cuda_built() -> bool:
    """Whether a layer takes tensors on CUDA devices: byteps.torch, which has one of its own that says so, does."""
    return False


def rocm_built() -> bool:
    return False
