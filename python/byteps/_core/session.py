"""The one job of this process, shared by all framework layers.

init() joins, shutdown() leaves, and init() may be called again. There is at most one job at a time; layers of two
frameworks in one process use the same one.
"""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import threading
import time
from types import TracebackType
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Protocol, Tuple, Type

from byteps._core import abi, errors
from byteps._core.client import Job, Metrics

# What resume() says to the core.
RESUMED = ("DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "DMLC_WORKER_ID", "BYTEPS_GLOBAL_RANK", "BYTEPS_GLOBAL_SIZE")
SPEED_INTERVAL_S = 10.0
NUMBERS_PER_INPUTS = 1 << 40  # more calls than anybody makes before join()
NO_SPEED = (0, -5.0)


class Session:
    """A joined job and what is counted per job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.first_number = 0  # of unique_name()
        self._numbers: Dict[str, Iterator[int]] = {}  # per prefix
        self._owners: Dict[str, object] = {}  # what a name of lasting_name() stands for
        self.decided: Dict[object, Any] = {}  # by all ranks together, once in this job
        self._kept: List[object] = []
        self._speed_time_s = time.monotonic()
        self._speed_bytes = 0

    def unique_name(self, prefix: str) -> str:
        """`prefix` with a number that grows with each call: the same on all ranks that make the same calls in the
        same order since they joined."""
        numbers = self._numbers.get(prefix) or self._numbers.setdefault(prefix, itertools.count(self.first_number))
        return f"{prefix}.{next(numbers)}"

    def lasting_name(self, name: str, meaning: object) -> str:
        """`name`, or when that stands for something else already (another shape, another owner: a second model), `name`
        with a number. The same on all ranks that make the same calls in the same order. `meaning` is kept."""
        candidate, number = name, 1
        while self._owners.setdefault(candidate, meaning) != meaning:
            number += 1
            candidate = f"{name}.{number}"
        return candidate

    def finish_inputs(self) -> int:
        """Job.finish_inputs(). Ranks that have made different numbers of calls before then agree about the numbers of
        unique_name() again: they begin at one that none has had."""
        last_rank = self.job.finish_inputs()
        self.first_number += NUMBERS_PER_INPUTS
        self._numbers.clear()
        for hook in _inputs_hooks:
            hook(self.first_number)
        return last_rank

    def keep(self, memory: object) -> None:
        """Keeps `memory` alive until the job is left: an exception from a signal handler has ended a wait for an
        exchange that still works on it."""
        self._kept.append(memory)

    def take_speed(self) -> Tuple[int, float]:
        now_s = time.monotonic()
        duration_s = now_s - self._speed_time_s
        if duration_s < SPEED_INTERVAL_S or os.environ.get("BYTEPS_TELEMETRY_ON", "1") == "0":
            return NO_SPEED
        finished_bytes = self.job.metrics().finished_bytes
        speed = (finished_bytes - self._speed_bytes) / duration_s / 1e6
        self._speed_time_s, self._speed_bytes = now_s, finished_bytes
        return int(time.time() * 1000), speed


_session: Optional[Session] = None
_lock = threading.RLock()  # serializes init and shutdown
_leave_hooks: List[Callable[[], None]] = []
_end_hooks: List[Callable[[], None]] = []
_inputs_hooks: List[Callable[[int], None]] = []
_attachments: List["Attachment"] = []
_is_replaced = False  # the last job that was left goes on without this process
_former_hook: Optional[Callable[..., Any]] = None  # sys.excepthook, before ours


def current() -> Session:
    session = _session
    if session is None:
        raise errors.NotInitializedError()
    return session


def job() -> Job:
    return current().job


def check_not_forked() -> None:
    """InvalidArgumentError in a child that was forked from a member of a job."""
    if _session is not None:
        _session.job.check_not_forked()


def on_leave(hook: Callable[[], None]) -> None:
    """`hook` runs each time after the job has been left: the memory of pending operations is free then."""
    _leave_hooks.append(hook)


def on_end(hook: Callable[[], None]) -> None:
    """`hook` runs when this process ends, after the job has been left: for who waits until threads of its own are out
    of native code. The end of the interpreter unwinds a thread that it finds there, which ends the process by
    std::terminate."""
    _end_hooks.append(hook)


def on_new_inputs(hook: Callable[[int], None]) -> None:
    """hook(first number) runs each time after all ranks have had no more inputs: whatever numbers its calls by itself
    begins with that. So it does at once when that has been before."""
    with _lock:
        _inputs_hooks.append(hook)
        if _session is not None:
            hook(_session.first_number)


class Attachment(Protocol):
    """Native code that uses the job without going through Python."""

    def attach(self, job: Job) -> None:
        """The job was joined; raises when it cannot be served."""

    def detach(self) -> None:
        """The job is about to be left: it is not used any more when this returns."""

    def finish(self) -> None:
        """The job has been left: returns when nothing of it is under way."""


def attach(attachment: Attachment) -> None:
    """From now on it serves each job of this process, the present one too."""
    with _lock:
        if _session is not None:
            attachment.attach(_session.job)
        _attachments.append(attachment)


def init(lazy: bool = True) -> None:
    """Joins the job that the environment describes and waits until all members are there; without DMLC_* variables it
    is a job of one. Does nothing when already joined; InvalidArgumentError when another launcher (torchrun, mpirun,
    srun, ...) has started several processes, which would each be alone, and in a child that was forked since, which is
    no member, though it may ask for rank() and size(). `lazy` is accepted for compatibility and makes no difference:
    joining is cheap, and an error in the settings shows here."""
    del lazy
    _join()


def is_joined() -> bool:
    """True between init() and shutdown()."""
    return _session is not None


def join(settings: Mapping[str, str]) -> None:
    """init() for a job that `settings` describe rather than the environment, which they override."""
    _join(settings)


def leave_for_good() -> None:
    """Leaves the job, which may then end: this process will not come back. Harmless when repeated."""
    _leave(final=True)


def shutdown() -> None:
    """Leaves the job; init() may be called again within twice BYTEPS_FAILURE_TIMEOUT_MS, for so long servers and
    scheduler stay. A process that just ends has no need to call this."""
    _leave(final=False)


def suspend() -> None:
    """Leaves the job in order to resume() in one of another size."""
    _leave(final=False)


def resume(num_workers: int, num_servers: int, global_rank: int, context: object = None) -> None:
    """Joins a job with `num_workers` worker machines and `num_servers` servers as rank `global_rank`. A job whose
    workers are all on one machine may have 0 servers. Names keep their meaning; parameters are not synchronized:
    broadcast them. When it raises, the environment is as before. `context` is accepted for compatibility."""
    del context
    with _lock:
        if _session is not None:
            raise errors.InvalidArgumentError("resume() in a running job: call suspend() first")
        local_size = int(os.environ.get("BYTEPS_LOCAL_SIZE") or 1)
        former = {name: os.environ.get(name) for name in RESUMED}
        machine = global_rank // local_size
        try:
            _set_environment(dict(zip(RESUMED, map(str, (num_workers, num_servers, machine, global_rank)))))
            if str(num_workers) != former["DMLC_NUM_WORKER"]:
                os.environ.pop("BYTEPS_GLOBAL_SIZE", None)  # of the former machines; bpslaunch --hosts had set it
            if num_servers == 0 and num_workers * local_size == 1:
                del os.environ["DMLC_NUM_SERVER"]  # alone, without a scheduler
            _join()
        except BaseException:
            _set_environment(former)
            raise


def size() -> int:
    """The number of workers in the job."""
    return job().size


def rank() -> int:
    """This worker's number, from 0 to size() - 1."""
    return job().rank


def leader() -> int:
    """The lowest rank whose worker was not lost: 0, unless the job goes on without that one
    (BYTEPS_ON_WORKER_LOSS=continue, docs/recovery.md). To be asked for what one worker does for all, as to save a
    checkpoint: `if bps.rank() == bps.leader()`. Ranks hear of a loss at slightly different times."""
    return job().leader()


def local_size() -> int:
    """The number of workers on this machine: as the launcher counts machines, or where it says no local ranks, as the
    kernel does."""
    return job().local_size


def local_rank() -> int:
    """This worker's number on this machine."""
    return job().local_rank


def barrier() -> None:
    """Returns when all workers have called it."""
    job().barrier()


def metrics() -> Metrics:
    """Bytes and operations counted since init()."""
    return job().metrics()


def get_pushpull_speed() -> Tuple[int, float]:
    """(milliseconds since 1970, MB/s): the bytes of finished push_pulls since the last point, whoever summed them, at
    most one point every 10 s; (0, -5.0) when there is none yet, and with BYTEPS_TELEMETRY_ON=0."""
    return current().take_speed()


def _set_environment(values: Mapping[str, Optional[str]]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _join(settings: Optional[Mapping[str, str]] = None) -> None:
    global _session
    with _lock:
        if _session is not None:
            _session.job.check_not_forked()
            return
        job = Job.join(settings)
        attached: List[Attachment] = []
        try:
            for attachment in _attachments:
                attachment.attach(job)
                attached.append(attachment)
        except BaseException:
            _leave_job(job, True, attached)
            raise
        _session = Session(job)
        if os.environ.get("BYTEPS_ON_WORKER_LOSS") == "continue":
            _hook_exceptions()


def _hook_exceptions() -> None:
    global _former_hook
    if _former_hook is None:
        _former_hook, sys.excepthook = sys.excepthook, _on_uncaught


def _on_uncaught(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
    """Where a job goes on without a worker that is lost, and this one was: an exception ends the process with the exit
    code that says so to bpslaunch, which then does not take it for a failure. It is shown as any other."""
    assert _former_hook is not None
    _former_hook(kind, error, trace)
    session = _session
    if _is_replaced if session is None else session.job.is_replaced:
        raise SystemExit(abi.EXIT_REPLACED)  # the interpreter ends as it does, with this code



def _leave(final: bool) -> None:
    global _session, _is_replaced
    with _lock:
        session = _session
        if session is None:
            return
        try:
            _leave_job(session.job, final, _attachments)
        finally:
            _is_replaced = session.job.is_replaced
            if not session.job.is_live:  # or an exception from a signal handler came first: it can be left again
                _session = None
                for hook in _leave_hooks:
                    hook()


def _leave_job(job: Job, final: bool, attached: List[Attachment]) -> None:
    for attachment in attached:
        attachment.detach()
    try:
        job.leave(final)
    finally:
        if not job.is_live:  # or they would wait for the end of a job that goes on
            for attachment in attached:
                attachment.finish()


def _end() -> None:
    try:
        _leave(final=True)
    finally:
        for hook in _end_hooks:
            hook()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_end)
