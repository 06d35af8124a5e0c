"""What the threads of this process do: whether one of them might submit something.

Two proofs that none will before an exchange ends. Python's: only a thread that runs Python can call byteps, Python
knows them all, and each is in a wait of ours. (Threads of a framework's own that call back into Python, as autograd's
do, run Python while they do; what makes them is the call of another thread, which is seen.) It does not hold where
native code submits by itself (Job.has_native_work), or a thread waits by a framework's means. Then there is the
kernel's: no thread of the process, with Python or without, wakes up unless another of them wakes it.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
from types import FrameType
from typing import Callable, Dict, List, Mapping, Optional

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
# Linux's number of the system call in which locks, conditions and semaphores wait, by architecture.
FUTEX = {"x86_64": "202", "aarch64": "98"}.get(platform.machine())
_WAITS = (0, 9)  # FUTEX_WAIT, FUTEX_WAIT_BITSET
_PRIVATE = 128  # FUTEX_PRIVATE_FLAG
# The core's threads (src/loop/process_threads.cc). Whole names: a program called byteps-train has given its own to all
# its threads.
_CORE = (
    *("byteps-worker", "byteps-relay", "byteps-device"),
    *("byteps-timeline", "byteps-log", "byteps-flight", "byteps-names", "byteps-place"),
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


def asleep(waiting: Mapping[int, Optional[Callable[[], bool]]]) -> Optional[Dict[int, str]]:
    """All threads of this process that something else than the kernel's clock or another process has to wake, by their
    kernel ids, with how often they have slept. None: there is one that might go on by itself, or nobody can say. Who is
    the same in two looks, one after the other, slept from the first to the second: all of them at once, and only one of
    ours can wake them. `waiting`: as for count_inside(); those, the calling one, servants and the core's do not count.

    It needs the lock of nobody: a thread that waits for one that we hold would be taken for asleep."""
    if FUTEX is None:
        return None
    if any(is_over is not None and is_over() for is_over in list(waiting.values())):
        return None
    kernel_ids = {thread.ident: thread.native_id for thread in threading.enumerate()}
    harmless = {threading.get_native_id()}
    for thread, frame in sys._current_frames().items():
        if thread in waiting or _is_servant(frame):
            harmless.add(kernel_ids.get(thread) or 0)
    sleepers: Dict[int, str] = {}
    try:
        for kernel_id in map(int, os.listdir("/proc/self/task")):
            if kernel_id in harmless:
                continue
            place = f"/proc/self/task/{kernel_id}/"
            if kernel_id != os.getpid() and _read(place + "comm").strip() in _CORE:
                continue
            if not _is_endless_wait(_read(place + "syscall").split()):
                return None
            status = _read(place + "status").splitlines()
            sleepers[kernel_id] = "".join(line for line in status if "ctxt_switches" in line)
    except (OSError, ValueError, IndexError):
        return None  # one has just ended, or the kernel does not tell
    return sleepers


def _is_endless_wait(call: List[str]) -> bool:
    """Of what the kernel says a thread is in: the system call's number and arguments, or "running". A futex of other
    processes is not private; one with a limit has the address of it in the fourth argument."""
    if call[0] != FUTEX:
        return False
    operation = int(call[2], 16)
    return operation & _PRIVATE != 0 and operation & 0x7F in _WAITS and int(call[4], 16) == 0


def _read(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read()


class Watch:
    """A thread that calls look() again and again until end()."""

    def __init__(self, look: Callable[[], None], interval_s: float) -> None:
        self._look = look
        self._interval_s = interval_s
        self._ends = threading.Event()
        threading.Thread(target=self._run, name="byteps watch", daemon=True).start()

    def end(self) -> None:
        self._ends.set()

    def _run(self) -> None:
        while not self._ends.wait(self._interval_s):
            self._look()
