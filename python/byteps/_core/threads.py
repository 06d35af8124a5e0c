"""What the threads of this process do: whether one of them might submit something.

Only a thread that runs Python can call byteps, and Python knows them all. (Threads of a framework's own that call back
into Python, as autograd's do, run Python while they do; what makes them is the call of another thread, which is seen.)
Native code that submits by itself is not seen here: Job.has_native_work.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from types import FrameType
from typing import Callable, Iterator, List, Mapping, Optional

# Threads that run nothing but code of these modules serve others, and submit nothing by themselves.
SERVANTS = (
    "byteps._core.threads",
    "concurrent.futures.thread",  # of a pool, without work
    "logging.handlers",
    "multiprocessing.queues",
    "multiprocessing.resource_sharer",
    "tensorboard",
    "torch.utils.data._utils.pin_memory",
    "tqdm",
)
_BENEATH = ("threading", "queue", "multiprocessing.connection", "multiprocessing.synchronize", "selectors", "weakref")


def count_inside(waiting: Mapping[int, Optional[Callable[[], bool]]]) -> Optional[int]:
    """How many threads wait in the C library, when all others of this process but the calling one wait, too. None: one
    might submit something. `waiting`: threads that wait: None in the library, else a function: is it over?"""
    own = threading.get_ident()
    inside = 0
    for thread, frame in sys._current_frames().items():
        if thread == own:
            continue
        if thread not in waiting:
            if not _is_servant(frame):
                return None
            continue
        is_over = waiting[thread]
        if is_over is None:
            inside += 1
        elif is_over():
            return None
    return inside


def _is_servant(frame: Optional[FrameType]) -> bool:
    modules: List[str] = []
    while frame is not None:
        modules.append(frame.f_globals.get("__name__", ""))
        frame = frame.f_back
    own = [module for module in modules if not _is_of(module, _BENEATH)]
    return bool(own) and all(_is_of(module, SERVANTS) for module in own)


def _is_of(module: str, packages: "tuple[str, ...]") -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


class Watch:
    """A thread that looks while others are in waits that come back to Python only at their end."""

    def __init__(self, look: Callable[[float], None], interval_s: float) -> None:
        self._look = look
        self._interval_s = interval_s
        self._begins_s: List[float] = []  # of the waits under way
        self._ends = threading.Event()
        threading.Thread(target=self._run, name="byteps watch", daemon=True).start()

    @contextmanager
    def entered(self) -> Iterator[None]:
        begin_s = time.monotonic()
        self._begins_s.append(begin_s)
        try:
            yield
        finally:
            self._begins_s.remove(begin_s)

    def end(self) -> None:
        self._ends.set()

    def _run(self) -> None:
        while not self._ends.wait(self._interval_s):
            begins_s = list(self._begins_s)
            if begins_s:
                self._look(min(begins_s))
