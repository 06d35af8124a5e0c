"""Waiting for a collective.

A collective that its caller will wait for at once (torch says so) waits in the core for its handles: nothing else
wakes up. Any other names the job's completion queue, which one thread drains: it finishes the work, which completes
its future and wakes who waits.

The thread is started by the first such collective and ends with the job. A forked child has no thread and no job: what
it asks for raises.
"""

from __future__ import annotations

import itertools
import threading
import time
from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from torch._C._distributed_c10d import Work as _TorchWork
from torch.futures import Future

from byteps._core import errors, session
from byteps._core.client import EndQueue, Job
from byteps.torch.backend.exchange import Exchange, Members, submit

_DEFAULT_TIMEOUT_S = 1800.0


class Work(_TorchWork):
    """One collective under way. torch's C++ side calls wait() and get_future(), Python callers the others too."""

    def __init__(self, job: Job, title: str, timeout_s: float, finish: Callable[[], None], result: Any) -> None:
        super().__init__()
        self._job = job
        self._title = title  # for people: "all_reduce 17 of group '0'"
        self._timeout_s = timeout_s
        self._finish = finish  # copies results to where they belong; may be repeated
        self._result = result
        self._handles: List[int] = []  # to wait for in the core; empty when the queue reports the ends
        self._keep: Any = None  # memory that the core reads and writes
        self._lock = threading.RLock()
        self._pending = 0  # ends that the queue will report
        self._error: Optional[BaseException] = None
        self._ended = False
        self._wake: Optional[threading.Event] = None
        self._future: Optional[Future] = None

    # ---- what torch and its users call

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        """Returns when the results are there; True. Raises why they will not be, or TimedOutError after `timeout` (that
        of the group when it is None or 0), and may then be called again."""
        self._check_not_forked()
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        self._await(time.monotonic() + (seconds if seconds > 0 else self._timeout_s))
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> Future:
        """A future whose value is the list of result tensors."""
        self._check_not_forked()
        with self._lock:
            if self._future is None:
                self._future = Future()
                if self._handles:
                    self._await(time.monotonic() + self._timeout_s)
                if self._ended:
                    self._resolve()
            return self._future

    def is_completed(self) -> bool:
        """True when wait() would not block."""
        self._check_not_forked()
        with self._lock:
            return self._ended or (bool(self._handles) and all(self._job.poll(handle) for handle in self._handles))

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

    def _await(self, deadline_s: float) -> None:
        if self._handles:
            self._await_handles(deadline_s)
            return
        with self._lock:
            if self._ended:
                return
            wake = self._wake = self._wake or threading.Event()
        if not wake.wait(max(0.0, deadline_s - time.monotonic())):
            raise self._timed_out()

    def _await_handles(self, deadline_s: float) -> None:
        with self._lock:
            while self._handles:
                in_time = True
                try:
                    in_time = self._job.wait(self._handles[-1], max(0.0, deadline_s - time.monotonic()))
                except errors.BytePSError as error:
                    self._note(error)
                if not in_time:
                    raise self._timed_out()
                self._handles.pop()  # used up, well or not
            if not self._ended:
                self._end()

    def _timed_out(self) -> errors.TimedOutError:
        return errors.TimedOutError(
            f"{self._title}: not finished in time; a member of the group has not called it, or is late. The timeout "
            "is that of init_process_group(timeout=), new_group(timeout=) or wait(timeout)"
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
            if self._pending == 0:
                self._end()

    def _end(self) -> None:
        if self._error is None:
            try:
                self._finish()
            except BaseException as error:
                self._note(error)
        self._keep = None
        self._ended = True
        _direct.discard(self)
        if self._future is not None:
            self._resolve()
        if self._wake is not None:
            self._wake.set()

    def _resolve(self) -> None:
        assert self._future is not None
        if self._error is None:
            self._future.set_result(self._result)
        else:
            self._future.set_exception(self._error)


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
                self._thread = threading.Thread(target=self._drain, name="byteps futures", daemon=True)
                self._thread.start()

    def _drain(self) -> None:
        try:
            while True:
                ended = self.queue.take()
                if ended is None:
                    break
                for tag, error in ended:
                    self._works.pop(tag)._one_ended(error)
            failure: errors.BytePSError = errors.CancelledError("this process has left the job")
        except errors.BytePSError as error:
            failure = error
        for work in list(self._works.values()):  # none, unless the queue itself has failed
            work._one_ended(failure)
        self._works.clear()


# Works whose callers wait in the core: kept here until they have ended, because a caller may give up before (Ctrl-C, a
# timeout) while the core still writes to the memory.
_direct: Set[Work] = set()
session.on_leave(_direct.clear)

_completions: Optional[Completions] = None


def completions(job: Job) -> Completions:
    """Those of `job`: made once for it."""
    global _completions
    if _completions is None or _completions._job is not job:
        _completions = Completions(job)
    return _completions


def start(
    work: Work,
    exchanges: Sequence[Tuple[Exchange, str]],
    members: Members,
    direct: bool = False,
    priority: int = 0,
    once: bool = True,
) -> None:
    """Submits exchanges under their names. `direct`: the caller will wait at once, so nothing else is told of the ends.
    When one cannot be submitted, this raises after those before it have ended."""
    work._keep = exchanges
    ends = None if direct else completions(members.job)
    if direct:
        _direct.add(work)
    with work._lock:  # the first exchange may end before the last is submitted
        for exchange, name in exchanges:
            tag = ends.expect(work) if ends is not None else 0
            try:
                handle = submit(exchange, members, name, ends and ends.queue, tag, priority, once)
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
    seconds = timeout.total_seconds() if timeout is not None else 0.0
    return seconds if seconds > 0 else _DEFAULT_TIMEOUT_S
