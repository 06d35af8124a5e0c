"""Plans that go on by themselves.

A plan (collectives.py) of several steps must go on when a step has ended, also while its rank waits for something else:
other ranks wait for its next step. One thread per job sees to that. It drains the queue to which the exchanges of all
plans report, and is started with the first plan.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any, Callable, Dict, Generic, Optional, TypeVar

from byteps._core import abi, errors, session
from byteps._core.client import Job
from byteps._core.collectives import Plan

__all__ = ["Driven", "start"]

T = TypeVar("T")


class Driven(Generic[T]):
    """A plan under way. Stands for the job where the plan asks for exchanges. Every end is awaited, also after a
    failure, so that memory is free when wait() has returned or raised."""

    def __init__(self, driver: "_Driver", make_plan: "Callable[[Any], Plan[T]]") -> None:
        self.rank = driver.job.rank
        self.size = driver.job.size
        self._driver = driver
        self._lock = threading.RLock()  # held while the plan's own code runs
        self._pending = 1  # exchanges that have not ended, and one more while the first step is being started
        self._failure: Optional[BaseException] = None
        self._result: Optional[T] = None
        self._ended = threading.Event()
        self._plan: "Optional[Plan[T]]" = None
        with self._lock:
            try:
                self._plan = make_plan(self)
                self._advance()
            finally:
                self.one_ended(None)

    def submit(self, tensor: abi.Tensor) -> int:
        """Job.submit()."""
        tag = self._driver.expect(self)
        self._pending += 1
        try:
            return self._driver.job.submit(tensor, self._driver.queue, tag)
        except BaseException:
            self._driver.forget(tag)
            self._pending -= 1
            raise

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def poll(self) -> bool:
        """True when wait() would not block. InvalidArgumentError in a forked child."""
        self._driver.job.check_not_forked()
        return self.ended

    def wait(self) -> T:
        """The plan's result; raises why there is none. May be repeated, also after an exception from a signal.
        InvalidArgumentError in a forked child, where nothing drains the queue."""
        self._driver.job.check_not_forked()
        self._driver.job.wait_elsewhere(self._ended.wait, self._ended.is_set)
        if self._failure is not None:
            raise self._failure
        return self._result  # type: ignore[return-value]

    def one_ended(self, failure: Optional[BaseException]) -> None:
        with self._lock:
            self._failure = self._failure or failure
            self._pending -= 1
            while self._pending == 0 and not self._ended.is_set():
                if self._plan is None:
                    self._ended.set()
                else:
                    self._advance()

    def _advance(self) -> None:
        """After a failure the plan may know how to go on."""
        plan = self._plan
        assert plan is not None
        failure, self._failure = self._failure, None
        try:
            if failure is None:
                next(plan)
            else:
                plan.throw(failure)
            return
        except StopIteration as end:
            self._result = end.value
        except Exception as error:
            self._failure = self._failure or error
        except BaseException as interruption:  # from a signal, in the thread that starts the plan
            self._failure = self._failure or interruption
            self._plan = None
            raise
        self._plan = None


class _Driver:
    """The queue of a job, and the thread that drains it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.queue = job.make_queue()
        self._plans: Dict[int, Driven] = {}  # by tag
        self._tags = itertools.count(1)
        threading.Thread(target=self._drain, name="byteps plans", daemon=True).start()

    def expect(self, driven: Driven) -> int:
        tag = next(self._tags)
        self._plans[tag] = driven
        return tag

    def forget(self, tag: int) -> None:
        del self._plans[tag]

    def _drain(self) -> None:
        reason: errors.BytePSError = errors.CancelledError("this process has left the job")
        try:
            ended = self.queue.take()
            while ended is not None:
                for tag, failure in ended:
                    self._plans.pop(tag).one_ended(failure)
                ended = self.queue.take()
        except errors.BytePSError as error:
            reason = error
        for tag in list(self._plans):  # none, unless the queue itself has failed
            self._plans.pop(tag).one_ended(reason)


_driver: Optional[_Driver] = None
_lock = threading.Lock()


def start(make_plan: "Callable[[Any], Plan[T]]") -> "Driven[T]":
    """Starts make_plan(job) in the job of this process."""
    global _driver
    job = session.job()
    job.check_not_forked()  # there somebody may have held the lock
    with _lock:
        if _driver is None or _driver.job is not job:
            _driver = _Driver(job)
        driver = _driver
    return Driven(driver, make_plan)
