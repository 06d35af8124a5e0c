"""Waiting for a collective.

A collective that its caller will wait for at once (torch says so) waits in the core for its handles: nothing else
wakes up. Any other names the job's completion queue, which one thread drains: it finishes the work and wakes who
waits. It completes no future, because that runs the future's callbacks (futures.py), which may wait for another
collective. It also looks for futures that are late.

On a GPU, results are there when the exchanges have ended, for any stream. What is done with them then (copies to where
they belong) goes along the work's Line (devices.py): wait() lets the caller's stream wait for it, as futures do.

The thread is started by the first such collective and ends with the job. A forked child has no thread and no job: what
it asks for raises.
"""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import nullcontext
from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import torch
from torch._C._distributed_c10d import Work as _TorchWork
from torch.futures import Future

from byteps._core import errors, session
from byteps._core.client import EndQueue, Job
from byteps.torch import devices
from byteps.torch.backend.exchange import Piece, submit
from byteps.torch.backend.futures import CallbackThreads, Lineage, WorkFuture

_DEFAULT_TIMEOUT_S = 1800.0
_LOOK_S = 0.2  # how often the queue's thread looks for late futures


class Work(_TorchWork):
    """One collective under way. torch's C++ side calls wait() and get_future(), Python callers the others too."""

    def __init__(
        self, job: Job, owner: object, lineage: Lineage, timeout_s: float, finish: Callable[[], None], result: Any
    ) -> None:
        super().__init__()
        self.owner = owner  # the group
        self._job = job
        self._lineage = lineage
        self._title = lineage.title
        self._timeout_s = timeout_s
        self._finish = finish  # copies results to where they belong; may be repeated
        self._result = result
        self._devices: List[torch.device] = []  # the GPUs of its tensors
        self._line: Optional[devices.Line] = None  # None: on the host, or its caller waits at once
        self._handles: List[int] = []  # to wait for in the core; empty when the queue reports the ends
        self._keep: Any = None  # memory that the core reads and writes
        self._turn = threading.RLock()  # held while waiting for the handles
        self._lock = threading.RLock()  # guards what follows
        self._pending = 0  # ends that the queue will report
        self._error: Optional[BaseException] = None
        self._given_up = False  # its caller does not wait any more, though the core may still use the memory
        self._ended = False
        self._wake: Optional[threading.Event] = None
        self._future: Optional[WorkFuture] = None
        self._deadline_s = time.monotonic() + timeout_s  # of the future

    # ---- what torch and its users call

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        """Returns when the results are there; True. Raises why they will not be, or TimedOutError after `timeout` (that
        of the call or the group when it is None or 0), and may then be called again."""
        self._check_not_forked()
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        self._await(time.monotonic() + (seconds if seconds > 0 else self._timeout_s))
        if self._error is not None:
            raise self._error
        if self._line is not None:
            self._line.join()
        return True

    def get_future(self) -> Future:
        """A future whose value is the list of result tensors. It fails with TimedOutError when the timeout, counted
        from the start of the collective, is over."""
        self._check_not_forked()
        if self._handles:
            self._await_handles(self._deadline_s)
        with self._lock:
            if self._future is None:
                self._future = WorkFuture(self._lineage, self._devices)
                if self._ended or self._given_up:
                    self._complete(self._future, self._error)
            return self._future

    def is_completed(self) -> bool:
        """True when wait() would not block."""
        self._check_not_forked()
        if self._ended or self._given_up:
            return True
        if not self._turn.acquire(blocking=False):
            return False  # another thread waits for the handles
        try:
            return self._ended or bool(self._handles) and all(self._job.poll(handle) for handle in self._handles)
        finally:
            self._turn.release()

    def is_success(self) -> bool:
        return self._ended and self._error is None

    def exception(self) -> Optional[BaseException]:
        return self._error

    def result(self) -> Any:
        self.wait()
        return self._result

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        raise RuntimeError(f"{self._title}: the backend 'byteps' does not know a source rank")

    def _check_not_forked(self) -> None:
        """In a forked child nothing drains the queue, and somebody may have held the lock."""
        try:
            self._job.check_not_forked()
        except errors.InvalidArgumentError as error:
            raise _described(error, self._title) from None

    # ---- its end

    def give_up(self, reason: errors.BytePSError) -> None:
        """Ends it for those who wait, with `reason`. The core goes on: its memory is kept until that has ended."""
        with self._lock:
            if self._ended or self._given_up:
                return
            self._note(reason)
            self._given_up = True
            if self._wake is not None:
                self._wake.set()
            future = self._future
        if future is not None:
            callback_threads.run(lambda: self._complete(future, self._error))

    def _complete(self, future: WorkFuture, error: Optional[BaseException]) -> None:
        with self._line.here() if self._line is not None else nullcontext():
            future.complete(self._result, error)

    def go_along(self, pieces: Sequence[Tuple[Piece, str]], direct: bool) -> None:
        """It begins: what comes later on a GPU comes after what the caller has put there by now. `direct`: the caller
        itself will do it."""
        self._keep = pieces
        if pieces:  # all are on one device
            some = pieces[0][0].target if pieces[0][0].source is None else pieces[0][0].source
            self._devices = devices.cuda_devices(some)
        else:
            self._devices = devices.cuda_devices(self._result)
        if self._devices and not direct:
            self._line = devices.Line(self._devices)

    def _await(self, deadline_s: float) -> None:
        if self._handles:
            self._await_handles(deadline_s)
            return
        with self._lock:
            if self._ended or self._given_up:
                return
            wake = self._wake = self._wake or threading.Event()
        if not self._job.wait_elsewhere(wake.wait, wake.is_set, max(0.0, deadline_s - time.monotonic())):
            raise self._timed_out()

    def _await_handles(self, deadline_s: float) -> None:
        with self._turn:
            while self._handles and not self._given_up:
                left_s = max(0.0, deadline_s - time.monotonic())
                try:
                    is_used_up = self._job.wait(self._handles[-1], left_s, lambda: self._given_up)
                except errors.BytePSError as error:
                    is_used_up = True  # well or not
                    with self._lock:
                        self._note(error)
                if is_used_up:
                    self._handles.pop()
                elif not self._given_up:
                    raise self._timed_out()
            with self._lock:
                if not self._handles and not self._ended:
                    self._end()

    def _timed_out(self) -> errors.TimedOutError:
        return errors.TimedOutError(
            f"{self._title}: not finished in time; a member of the group has not called it, or is late. The timeout "
            "is that of the call, of init_process_group(timeout=), or of new_group(timeout=)"
        )

    def _note(self, error: BaseException) -> None:
        """The first failure counts."""
        if self._error is None:
            self._error = _described(error, self._title)

    def _one_ended(self, error: Optional[errors.BytePSError]) -> None:
        """From the thread of the queue."""
        with self._lock:
            if error is not None:
                self._note(error)
            self._pending -= 1
            if self._pending == 0 and not self._ended:
                self._end()

    def _end(self) -> None:
        if self._error is None:
            try:
                with self._line.here() if self._line is not None else nullcontext():
                    self._finish()
            except BaseException as error:
                self._note(error)
        self._keep = None
        self._ended = True
        _under_way.discard(self)
        if self._wake is not None:
            self._wake.set()
        future = self._future
        if future is not None:
            callback_threads.run(lambda: self._complete(future, self._error))

    def _fail_future_when_late(self, now_s: float) -> None:
        """From the thread of the queue. The work itself may still be waited for."""
        future = self._future
        if future is not None and now_s > self._deadline_s and not future.is_complete:
            callback_threads.run(lambda: self._complete(future, self._timed_out()))


def _described(error: BaseException, title: str) -> BaseException:
    """The same error, with the collective in front of its text."""
    if not isinstance(error, errors.BytePSError):
        return error
    described = errors.from_code(error.code, f"{title}: {error}")
    described.__cause__ = error
    return described


class Completions:
    """The completion queue of a job, and the thread that drains it."""

    def __init__(self, job: Job) -> None:
        self.queue: EndQueue = job.make_queue()
        self._job = job
        self._works: Dict[int, Work] = {}  # by tag
        self._tags = itertools.count(1)
        self._thread: Optional[threading.Thread] = None
        self._lock = threading.Lock()

    def expect(self, work: Work) -> int:
        """A tag for one exchange of `work`, whose end will be told to it."""
        self._job.check_not_forked()
        if self._thread is None:
            self._start()
        tag = next(self._tags)
        work._pending += 1
        self._works[tag] = work
        return tag

    def forget(self, tag: int) -> None:
        """The exchange was not started after all."""
        self._works.pop(tag)._pending -= 1

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._drain, name="byteps works", daemon=True)
                self._thread.start()

    def settle(self) -> None:
        """Waits for the thread, whose queue has been closed; for a limited time."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(CallbackThreads.SETTLE_S)

    def _drain(self) -> None:
        try:
            looked_s = time.monotonic()
            while True:
                ended = self.queue.take()
                if ended is None:
                    break
                for tag, error in ended:
                    self._works.pop(tag)._one_ended(error)
                now_s = time.monotonic()
                if now_s - looked_s >= _LOOK_S:
                    looked_s = now_s
                    for work in list(self._works.values()):
                        work._fail_future_when_late(now_s)
            failure: errors.BytePSError = errors.CancelledError("this process has left the job")
        except errors.BytePSError as error:
            failure = error
        for work in list(self._works.values()):  # none, unless the queue itself has failed
            work._one_ended(failure)
        self._works.clear()


# Kept here until they have ended, because a caller may give up before (Ctrl-C, a timeout, abort) while the core still
# writes to the memory.
_under_way: Set[Work] = set()
session.on_leave(_under_way.clear)

callback_threads = CallbackThreads()
_completions: Optional[Completions] = None


def _settle() -> None:
    if _completions is not None:
        _completions.settle()
    callback_threads.settle()


session.on_end(_settle)


def give_up_all(owner: object, why: str) -> None:
    """Ends the owner's works for those who wait for them."""
    for work in list(_under_way):
        if work.owner is owner:
            work.give_up(errors.CancelledError(why))


def completions(job: Job) -> Completions:
    """Those of `job`: made once for it."""
    global _completions
    if _completions is None or _completions._job is not job:
        _completions = Completions(job)
    return _completions


def start(work: Work, pieces: Sequence[Tuple[Piece, str]], direct: bool = False) -> None:
    """Submits pieces under their names. `direct`: the caller will wait at once, so nothing else is told of the ends.
    When one cannot be submitted, this raises after those before it have ended."""
    work.go_along(pieces, direct)
    ends = None if direct else completions(work._job)
    _under_way.add(work)
    with work._lock:  # the first exchange may end before the last is submitted
        for piece, name in pieces:
            tag = ends.expect(work) if ends is not None else 0
            try:
                handle = submit(work._job, piece, name, ends.queue if ends is not None else None, tag)
            except (errors.BytePSError, ValueError) as error:
                if ends is not None:
                    ends.forget(tag)
                work._note(error)
                break
            if ends is None:
                work._handles.append(handle)
        if not work._handles and work._pending == 0:
            work._end()
    if work._error is not None:
        work.wait()


def default_timeout_s(timeout: Optional[timedelta]) -> float:
    return timeout_s_of(timeout, None) or _DEFAULT_TIMEOUT_S


def timeout_s_of(timeout: Optional[timedelta], opts: Any) -> float:
    """That of one call: `timeout`, else the one in torch's options; 0: none is given. torch says "none" by a negative
    one in its options."""
    for given in (timeout, getattr(opts, "timeout", None)):
        if isinstance(given, timedelta) and given.total_seconds() > 0:
            return given.total_seconds()
    return 0.0
