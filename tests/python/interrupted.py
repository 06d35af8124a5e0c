"""Ctrl-C while a rank waits within a collective: what the core still writes to is not given to anybody else.

    interrupted.check(cluster, call)     # in a job of two; call() reduces or broadcasts, in one exchange, from rank 1

Rank 0 calls and is interrupted while it waits for rank 1. It then takes all memory of such a size that is free. When
rank 1 has called too, the exchange ends, and none of that memory may have changed.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
from typing import Any, Callable, List

import numpy as np

ELEMENTS = 1 << 19  # float32: so large that freed memory goes back, and comes again
_taken: List[np.ndarray] = []


def check(cluster: Any, call: Callable[[], Any]) -> None:
    cluster.run_each([(interrupt, (call,), {}), (_nothing, (), {})])
    cluster.run_each([(look, (), {}), (complete, (call,), {})])


def interrupt(call: Callable[[], Any]) -> None:
    from byteps._core import session

    job = session.job()
    wait = job.wait

    def interrupted_wait(*arguments: Any) -> bool:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        return wait(*arguments)

    job.wait = interrupted_wait
    try:
        call()
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError("it did not wait")
    finally:
        del job.wait
    gc.collect()
    for size in (ELEMENTS, ELEMENTS // 2):
        _taken.extend(np.full(size, 7.0, np.float32) for _ in range(8))


def look() -> None:
    from byteps._core import session

    session.barrier()
    assert all((array == 7.0).all() for array in _taken), "the core wrote to memory that had been freed"
    _taken.clear()


def complete(call: Callable[[], Any]) -> None:
    from byteps._core import session

    call()
    session.barrier()


def _nothing() -> None:
    pass
