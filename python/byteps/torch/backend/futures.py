"""Futures of collectives: which threads complete them, and what their callbacks may do.

Completing a future runs its callbacks. One may start another collective and wait for its future (torch's PowerSGD and
quantization hooks do), so a future is never completed by a thread that others need: CallbackThreads has one to spare
for each that waits.

Which of two callbacks runs first is a matter of time, and differs from rank to rank, also whether one runs at once
because its future was complete. So a collective that a callback starts is not numbered with the others of its group:
its name is that of the collective whose future it was, with a number of its own (Lineage).
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
from collections import defaultdict
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

import torch
from torch.futures import Future

__all__: List[str] = []


class Lineage:
    """Whence a collective comes: `name`, unique in its job, and `title`, for people ("all_reduce 17 of group '0'")."""

    def __init__(self, name: str, title: str) -> None:
        self.name = name
        self.title = title
        self._numbers: Dict[str, Iterator[int]] = defaultdict(itertools.count)

    def next_number(self, token: str) -> int:
        """For a collective that a callback starts in the group of this token."""
        return next(self._numbers[token])

    def call(self, callback: Callable[[Any], Any], argument: Any) -> Any:
        """callback(argument), whose collectives descend from this."""
        former = getattr(_running, "lineage", None)
        _running.lineage = self
        try:
            return callback(argument)
        finally:
            _running.lineage = former


_running = threading.local()


def running() -> Optional[Lineage]:
    """That of the callback which this thread runs now."""
    return getattr(_running, "lineage", None)


class _Failure:
    """The value of a future that has failed. What is C++ in torch knows no exceptions of Python. DDP looks for tensors
    in the value by pickling it; it converts what a hook returns, and asks for its text when it cannot. Both raise. The
    future itself looks first, where it has `devices`."""

    def __init__(self, error: BaseException, devices: Sequence[torch.device]) -> None:
        self.error = error
        self._is_known = not devices

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._is_known:
            raise self.error
        self._is_known = True
        return str, ()

    def __str__(self) -> str:
        raise self.error


def _raise(value: Any) -> None:
    if isinstance(value, _Failure):
        raise value.error


class WorkFuture(Future):
    """torch's, with then() such that also callbacks of what it returns know where they come from. `devices`: the GPUs
    on which its value may have tensors. Callbacks run on streams of their own there, which wait for those that are the
    current ones when the future is completed, as does the stream of who waits."""

    def __init__(self, lineage: Lineage, devices: Sequence[torch.device] = ()) -> None:
        super().__init__(devices=list(devices))
        self._lineage = lineage
        self._devices = devices
        self._lock = threading.Lock()
        self.is_complete = False
        super()._set_unwrap_func(_raise)

    def complete(self, value: Any, error: Optional[BaseException] = None) -> None:
        """Runs the callbacks. The first call counts: one that is late may end after all."""
        with self._lock:
            if self.is_complete:
                return
            self.is_complete = True
        if error is None:
            try:
                return super().set_result(value)
            except Exception as failure:  # the value has tensors on other devices
                error = failure
        super().set_result(_Failure(error, self._devices))

    def then(self, callback: Callable[[Any], Any]) -> "WorkFuture":
        child = WorkFuture(self._lineage, self._devices)

        def run(_: Any) -> None:
            value, error = None, None
            try:
                value = self._lineage.call(callback, self)
            except Exception as failure:
                error = failure
            child.complete(value, error)

        super().add_done_callback(run)
        return child

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        super().add_done_callback(lambda _: self._lineage.call(callback, self))

    def set_result(self, result: Any) -> None:
        self.complete(result)

    def set_exception(self, result: Any) -> None:
        self.complete(None, result)


class CallbackThreads:
    """As many threads as callbacks are running, and up to KEPT that wait for more."""

    KEPT = 2
    SETTLE_S = 5.0

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._settled = threading.Condition(self._lock)
        self._running = 0  # tasks that have not ended
        self._process = os.getpid()
        self._idle = 0
        self._tasks: "queue.SimpleQueue[Callable[[], None]]" = queue.SimpleQueue()

    def run(self, task: Callable[[], None]) -> None:
        """Runs it at once, in a thread that nobody waits for. Never blocks."""
        with self._lock:
            if self._process != os.getpid():  # a forked child: its parent's tasks do not run here
                self._process, self._running, self._idle = os.getpid(), 0, 0
            self._running += 1
            self._tasks.put(task)
            if self._idle:
                self._idle -= 1  # one of them gets it
                return
        threading.Thread(target=self._serve, name="byteps futures", daemon=True).start()

    def settle(self) -> None:
        """Waits until no task runs, SETTLE_S at most."""
        with self._lock:
            self._settled.wait_for(lambda: self._running == 0 or self._process != os.getpid(), self.SETTLE_S)

    def _serve(self) -> None:
        while True:
            task = self._tasks.get()
            try:
                task()
            finally:
                del task  # what it holds may have destructors in C++
                with self._lock:
                    self._running -= 1
                    self._settled.notify_all()
            with self._lock:
                if self._idle >= self.KEPT:
                    return
                self._idle += 1
