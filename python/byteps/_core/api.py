"""What every framework's layer offers under the same names, and which is the same object in all of them.

A layer has `from byteps._core.api import *` and adds these names to its __all__. What a layer makes itself is not here,
nor what only some have: init(), join() and resume() of some layers do more.
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
from byteps._core.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from byteps._core.reduction import Adasum, Average, Max, Min, Product, Sum
from byteps._core.session import (
    get_pushpull_speed,
    leader,
    local_rank,
    local_size,
    metrics,
    rank,
    shutdown,
    size,
    suspend,
)

__all__ = [
    "Adasum",
    "Average",
    "BytePSError",
    "DisconnectedError",
    "Max",
    "Min",
    "MismatchError",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "barrier",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "get_pushpull_speed",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "is_homogeneous",
    "is_initialized",
    "leader",
    "local_rank",
    "local_size",
    "metrics",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "suspend",
]
