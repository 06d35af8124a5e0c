"""Job: one membership in a job, over the C interface.

Waiting is done in slices of SLICE_NS, so that Ctrl-C and other Python signal handlers run soon; within a slice nothing
polls and Python's lock is free.

Whoever waits without limit also looks, between two slices, whether all threads of this process do (threads.py), and
tells the core: that is this rank's part of the proof that a job stalls (docs/protocol.md, Stalls).

Threads: everything may be called from any thread, leave() too: it ends the waits of the others with CancelledError.
Fork: in a child every call raises InvalidArgumentError, except leave(), which does nothing.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
import weakref
from contextlib import contextmanager
from ctypes import byref
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from byteps._core import abi, errors, threads
from byteps._core.exchange import Exchange, encoded_name
from byteps._core.library import Library, load

SLICE_NS = 200_000_000
# Of threads that drain queues. In step with SLICE_NS such a thread would be between two waits whenever another looks
# whether all threads wait, and no stall would ever be proven.
QUEUE_SLICE_NS = 330_000_000
# Who waits for at most so long, or longer, has no plan for what to do when that time is over.
PATIENCE_S = 300.0
# How often somebody looks whether all threads wait; not in step with the slices.
LOOK_INTERVAL_S = 0.47
NEVER_SEEN = 2**64 - 1
NOT_COUNTED = 2**32 - 1

_library: Optional[Library] = None  # loaded at the first join: importing byteps needs no library
_jobs: "weakref.WeakSet[Job]" = weakref.WeakSet()


def _how_it_failed(error: BaseException) -> int:
    """For byteps_record: by an interrupt (Ctrl-C), or by an exception of the program."""
    return abi.INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def library() -> Library:
    global _library
    if _library is None:
        _library = load()
    return _library


class Metrics(NamedTuple):
    """Counted since the job was joined. Bytes are those of tensors, without headers.

    pushed_bytes and pulled_bytes were exchanged with servers, by this worker or, where the workers of a machine sum
    first, by its relay. Of both, shared_bytes went through memory shared with servers of this host, rdma_bytes by RDMA,
    and the rest over TCP. local_pushed_bytes and local_pulled_bytes were exchanged with the relays of this machine; of
    both, local_shared_bytes went through shared memory. device_out_bytes were copied from GPUs to the host, and
    device_in_bytes to them. pushed_frames counts the frames, pieces of tensors, that were sent to servers and relays,
    and wanted_messages how often these asked for frames that others were waiting for. pushed_wire_bytes and
    pulled_wire_bytes are pushed_bytes and pulled_bytes as they travelled: fewer where tensors are coded (compression);
    encode_ns and decode_ns are the nanoseconds that this worker took for it.

    Losses that the job has survived: lost_servers and lost_schedulers have successors, of which this worker has heard
    (of a server that was told to stop as well), and lost_workers is how many ranks are vacant now."""

    pushed_bytes: int
    pulled_bytes: int
    finished_operations: int
    finished_bytes: int
    failed_operations: int
    reconnects: int
    shared_bytes: int
    rdma_bytes: int
    local_pushed_bytes: int
    local_pulled_bytes: int
    local_shared_bytes: int
    device_out_bytes: int
    device_in_bytes: int
    pushed_frames: int
    wanted_messages: int
    lost_servers: int
    lost_schedulers: int
    lost_workers: int
    pushed_wire_bytes: int
    pulled_wire_bytes: int
    encode_ns: int
    decode_ns: int


def _is_over() -> bool:
    """Of a wait that ends by itself."""
    return True


def _is_not_over() -> bool:
    """Of a wait of which nobody knows more."""
    return False


class Job:
    """Made by join(). `rank`, `size`, `local_rank`, `local_size`, `server_count` and `machines` (on which machine each
    worker is, by rank) stay the same while it lives. Whether others take part is is_alone, whatever the servers."""

    def __init__(self, pointer: int, lib: Library) -> None:
        self._library = lib
        self._pointer: Optional[int] = pointer  # None: left, or a forked child's copy
        self._ended_as: Optional[Callable[[], errors.BytePSError]] = None
        self._is_forked = False
        self._was_replaced = False  # when it was left
        # Guards the two above against leave(). Reentrant: a signal handler may call us amid one of our calls.
        self._lock = threading.RLock()
        self._quiet = threading.Condition(self._lock)
        self._blocked: Dict[int, int] = {}  # calls in the C library without the lock, per thread
        # Threads in a wait that only the end of an exchange ends: None in the C library, else: is it over?
        self._waiting: Dict[int, Optional[Callable[[], bool]]] = {}
        self.has_native_work = False  # native code of a framework submits when it likes
        self._progress_seen = NEVER_SEEN  # in the last look
        self._asleep: Optional[Dict[int, str]] = None
        self._submit = lib.nonblocking.byteps_push_pull
        self._poll = lib.nonblocking.byteps_poll
        self._wait = lib.blocking.byteps_wait
        self.rank: int = lib.nonblocking.byteps_rank(pointer)
        self.size: int = lib.nonblocking.byteps_size(pointer)
        self.local_rank: int = lib.nonblocking.byteps_local_rank(pointer)
        self.local_size: int = lib.nonblocking.byteps_local_size(pointer)
        self.server_count: int = lib.nonblocking.byteps_server_count(pointer)
        machines = (ctypes.c_uint32 * self.size)()
        lib.nonblocking.byteps_machines(pointer, machines, self.size)
        self.machines: Tuple[int, ...] = tuple(machines)
        self._watch = threads.Watch(self._look, LOOK_INTERVAL_S) if self.size > 1 else None
        _jobs.add(self)

    @classmethod
    def join(cls, settings: Optional[Mapping[str, str]] = None) -> "Job":
        """Joins the job that the environment, overridden by `settings`, describes. Blocks until all are there."""
        lib = library()
        error = abi.Error()
        pointer = ctypes.c_void_p()
        lines = "\n".join(f"{name}={value}" for name, value in (settings or {}).items())
        code = lib.blocking.byteps_join_start(lines.encode(), byref(pointer), byref(error))
        try:
            while code in (abi.OK, abi.AGAIN):
                code = lib.blocking.byteps_join_finish(byref(pointer), SLICE_NS, byref(error))
                if code == abi.OK:
                    return cls(pointer.value or 0, lib)
        except BaseException as interruption:  # a signal between two slices
            if pointer.value:
                text = f"{type(interruption).__name__}: {interruption}, while it joined"
                lib.blocking.byteps_record(pointer, text.encode(errors="replace"), _how_it_failed(interruption), None)
                lib.blocking.byteps_leave(pointer, 1, None)
            raise
        raise errors.from_code(code, error.text())

    def leave(self, final: bool = True) -> None:
        """Leaves the job; what is under way ends with CancelledError. Harmless when repeated.

        final: this process will not join again, so servers and scheduler may end when all workers have left."""
        is_leaving = False
        with self._lock:
            pointer = self._pointer
            if pointer is None:
                return
            try:
                self._pointer = None
                if final:
                    self._record_exception(pointer)
                self._was_replaced = bool(self._library.nonblocking.byteps_is_replaced(pointer))
                self._ended_as = lambda: errors.CancelledError("this process has left the job")
                # This thread itself is here, so not in the C library, even when a signal handler called amid a wait.
                while any(thread != threading.get_ident() for thread in self._blocked):
                    self._quiet.wait()
                is_leaving = True
                if self._watch is not None:
                    self._watch.end()
            finally:
                if not is_leaving:  # an exception from a signal handler: nothing has happened yet
                    self._pointer, self._ended_as = pointer, None
        error = abi.Error()
        code = self._library.blocking.byteps_leave(pointer, int(final), byref(error))
        if code != abi.OK:
            raise errors.from_code(code, error.text())

    def _record_exception(self, pointer: int) -> None:
        """When an exception that nobody caught ends the interpreter, it is what `bps why` should name. One of ours is a
        consequence, and its cause is recorded already."""
        error = getattr(sys, "last_value", None)
        if error is None or hasattr(sys, "ps1"):  # none, or a person tries things out
            return
        seen = []
        link = error
        while link is not None and link not in seen:
            if isinstance(link, errors.BytePSError):
                return
            seen.append(link)
            link = link.__cause__ or link.__context__
        text = f"{type(error).__name__}: {error}".split("\n", 1)[0][:300]
        self._library.blocking.byteps_record(pointer, text.encode(errors="replace"), _how_it_failed(error), None)

    @property
    def is_alone(self) -> bool:
        """Nobody else takes part: nothing has to be exchanged. A single worker may have servers
        (BYTEPS_FORCE_DISTRIBUTED=1), and uses them; several may have none, and are not alone."""
        return self.size == 1 and self.server_count == 0

    @property
    def is_live(self) -> bool:
        """False after leave(), and in a forked child."""
        return self._pointer is not None

    @property
    def is_replaced(self) -> bool:
        """The job goes on without this process: what fails here fails because of that. Also after leave()."""
        with self._lock:
            if self._pointer is None:
                return self._was_replaced
            return bool(self._library.nonblocking.byteps_is_replaced(self._pointer))

    def check_not_forked(self) -> None:
        """InvalidArgumentError in a forked child. For waits that the core does not know of: nothing would end them."""
        if self._is_forked:
            self._live_pointer()

    def use_device(self, memory: int, device: int) -> None:
        """Makes a device ready, as its first tensor does too: who calls it hears early that there is none.
        UnsupportedError: no driver, or no such device; the message says what was looked for."""
        error = abi.Error()
        with self._lock:
            code = self._library.blocking.byteps_use_device(self._live_pointer(), memory, device, byref(error))
        if code != abi.OK:
            raise errors.from_code(code, error.text())

    def submit(self, tensor: abi.Tensor, queue: "Optional[EndQueue]" = None, tag: int = 0) -> int:
        """Starts an exchange, made by Exchange.tensor(), and returns its handle; never blocks. The tensor's memory must
        stay valid until wait() has returned or raised for the handle, or the job has been left. `queue`: its take()
        reports the end with `tag`, and nobody may wait() for the handle."""
        if queue is not None:
            tensor.queue, tensor.tag = queue.pointer, tag
        handle = ctypes.c_int64()
        error = abi.Error()
        with self._lock:
            code = self._submit(self._live_pointer(), byref(tensor), byref(handle), byref(error))
        if code != abi.OK:
            raise errors.from_code(code, error.text())
        return handle.value

    def push_pull(
        self,
        name: str,
        dtype: int,
        input: int,
        output: int,
        element_count: int,
        operation: int,
        root: int = 0,
        *,
        shape: Sequence[int] = (),
        queue: "Optional[EndQueue]" = None,
        tag: int = 0,
        **what: Any,
    ) -> int:
        """submit() in one call, for programs without a framework. `shape`: the dimensions, whose product is
        element_count; () is one. `what`: the other fields of Exchange."""
        exchange = Exchange(operation, root=root, **what)
        tensor = exchange.tensor(name, dtype, shape or (element_count,), input, output)
        tensor.element_count = element_count
        return self.submit(tensor, queue, tag)

    def poll(self, handle: int) -> bool:
        """True when wait() would not block. InvalidArgumentError: no such handle, or used up."""
        with self._lock:
            state = self._poll(self._live_pointer(), handle)
        if state < 0:
            raise errors.InvalidArgumentError(f"handle {handle} is not known, or has been waited for already")
        return bool(state)

    def wait(
        self, handle: int, timeout_s: Optional[float] = None, is_given_up: Callable[[], bool] = _is_not_over
    ) -> bool:
        """Blocks until the exchange has ended, and raises if it failed; either uses the handle up. An exception from a
        signal handler (KeyboardInterrupt) does not: wait again. False: `timeout_s` is over, or `is_given_up`, which is
        asked between two slices, says so; the handle stays valid. A caller that would wait in pieces gives that
        instead: in pieces it counts as one that goes on by itself."""
        error = abi.Error()
        with self._lock:  # most have ended when somebody asks, and what follows costs more than this
            code = self._wait(self._live_pointer(), handle, 0, byref(error))
        if code == abi.OK:
            return True
        if code != abi.AGAIN:
            raise errors.from_code(code, error.text())
        return self._in_slices(
            lambda pointer, slice_ns, error: self._wait(pointer, handle, slice_ns, error), timeout_s, is_given_up
        )

    def barrier(self) -> None:
        """All workers meet here."""
        call = self._library.blocking.byteps_barrier
        self._in_slices(lambda pointer, slice_ns, error: call(pointer, slice_ns, error))

    def finish_inputs(self) -> int:
        """This worker has no more inputs: others' exchanges do not wait for it. Returns when all have said so: the rank
        that did last. Nothing may be submitted meanwhile."""
        call = self._library.blocking.byteps_finish_inputs
        last = ctypes.c_uint32()
        self._in_slices(lambda pointer, slice_ns, error: call(pointer, slice_ns, byref(last), error))
        return last.value

    def seal(self, name: str, payload: int, payload_bytes: int, seal: int) -> None:
        """Writes to address `seal` the SEAL_BYTES by which check_seal() of others knows that the payload is this rank's
        under that name. A name is used once."""
        error = abi.Error()
        with self._lock:
            pointer = self._live_pointer()
            code = self._library.blocking.byteps_seal(
                pointer, encoded_name(name), payload, payload_bytes, seal, byref(error)
            )
        if code != abi.OK:
            raise errors.from_code(code, error.text())

    def check_seal(self, rank: int, name: str, payload: int, payload_bytes: int, seal: int) -> None:
        """MismatchError unless that rank of this job has sealed this payload under this name."""
        error = abi.Error()
        with self._lock:
            pointer = self._live_pointer()
            code = self._library.blocking.byteps_check_seal(
                pointer, rank, encoded_name(name), payload, payload_bytes, seal, byref(error)
            )
        if code != abi.OK:
            raise errors.from_code(code, error.text())

    def make_queue(self) -> "EndQueue":
        """A queue that reports the ends of exchanges that name it."""
        pointer = ctypes.c_void_p()
        error = abi.Error()
        with self._lock:
            code = self._library.nonblocking.byteps_queue_create(self._live_pointer(), byref(pointer), byref(error))
        if code != abi.OK:
            raise errors.from_code(code, error.text())
        return EndQueue(pointer.value or 0, self._library, self)

    def call_with_pointer(self, call: Callable[[int], None]) -> None:
        """call(the byteps_job*), which lives until it returns. For native shims that are handed the job."""
        with self._lock:
            call(self._live_pointer())

    def leader(self) -> int:
        """The lowest rank whose worker was not lost."""
        with self._lock:
            return int(self._library.nonblocking.byteps_leader(self._live_pointer()))

    def metrics(self) -> Metrics:
        raw = abi.Metrics(abi.METRICS_BYTES)
        with self._lock:
            code = self._library.nonblocking.byteps_get_metrics(self._live_pointer(), byref(raw))
        if code != abi.OK:
            raise errors.from_code(code, "the counters cannot be read")
        return Metrics(*(int(getattr(raw, field)) for field in Metrics._fields))

    def _live_pointer(self) -> int:
        pointer = self._pointer
        if pointer is None:
            raise self._ended_as() if self._ended_as else errors.NotInitializedError()
        return pointer

    def _in_slices(
        self,
        call: Callable[[int, int, "ctypes._CArgObject"], int],
        timeout_s: Optional[float] = None,
        is_given_up: Callable[[], bool] = _is_not_over,
    ) -> bool:
        """False at the timeout, and when it is given up."""
        error = abi.Error()
        deadline_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        is_patient = timeout_s is None or timeout_s >= PATIENCE_S
        while True:
            left_ns = (deadline_s - time.monotonic()) * 1e9
            code = self._one_slice(call, int(max(0.0, min(left_ns, SLICE_NS))), error, is_patient)
            if code == abi.AGAIN and left_ns > 0 and not is_given_up():
                continue
            if code not in (abi.OK, abi.AGAIN):
                raise errors.from_code(code, error.text())
            if code == abi.AGAIN and is_patient:
                self._take_back()
            return code == abi.OK

    def _one_slice(
        self, call: Callable[[int, int, "ctypes._CArgObject"], int], slice_ns: int, error: abi.Error, is_patient: bool
    ) -> int:
        # Whatever a signal handler raises and wherever: what is noted of this thread is as before.
        thread = threading.get_ident()
        before = self._blocked.get(thread, 0)
        try:
            with self._lock:
                pointer = self._live_pointer()
                self._blocked[thread] = before + 1
            with self._noted(None if is_patient else _is_over):
                return call(pointer, slice_ns, byref(error))
        finally:
            with self._lock:
                if before:
                    self._blocked[thread] = before
                else:
                    self._blocked.pop(thread, None)
                    self._quiet.notify_all()

    @contextmanager
    def _noted(self, is_over: Optional[Callable[[], bool]]) -> Iterator[None]:
        thread = threading.get_ident()
        is_within, before = thread in self._waiting, self._waiting.get(thread)
        try:
            self._waiting[thread] = is_over
            yield
        finally:
            if is_within:
                self._waiting[thread] = before
            else:
                self._waiting.pop(thread, None)

    def wait_elsewhere(
        self, wait: Callable[[float], bool], is_over: Callable[[], bool], timeout_s: Optional[float] = None
    ) -> bool:
        """Calls wait(seconds) until it returns True, which nothing brings about but the end of exchanges of this job;
        `is_over` tells other threads that it will. For waits that the core does not know of. False at the timeout."""
        deadline_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        is_patient = timeout_s is None or timeout_s >= PATIENCE_S
        while True:
            left_s = deadline_s - time.monotonic()
            with self._noted(is_over if is_patient else _is_over):
                if wait(max(0.0, min(left_s, SLICE_NS * 1e-9))):
                    return True
            if left_s <= 0:
                if is_patient:
                    self._take_back()
                return False

    @contextmanager
    def native_wait(self) -> Iterator[None]:
        """Around a call of a framework that returns when its exchanges have ended."""
        try:
            with self._noted(_is_not_over):
                yield
        finally:
            self._take_back()

    def _look(self) -> None:
        """By a thread of our own: tells the core when nobody in this process can submit anything before an exchange
        ends, and when that holds no more."""
        with self._lock:
            if self._pointer is None:
                return
            seen = self._library.nonblocking.byteps_progress(self._pointer)
            inside = None if self.has_native_work else threads.count_inside(self._waiting)
            if inside is not None:
                self._library.nonblocking.byteps_all_wait(self._pointer, seen, inside)
                return
        # Without the lock, for which others might wait meanwhile.
        before, self._asleep = self._asleep, None
        if seen == self._progress_seen:
            self._asleep = threads.asleep(self._waiting)
        self._progress_seen = seen
        if self._asleep is not None and self._asleep == before:
            with self._lock:
                if self._pointer is not None:
                    self._library.nonblocking.byteps_all_wait(self._pointer, seen, NOT_COUNTED)
        else:
            self._take_back()

    def _take_back(self) -> None:
        """What was said by _look() does not hold: a thread has waited and goes on, though nothing has ended."""
        with self._lock:
            if self._pointer is not None:
                self._library.nonblocking.byteps_all_wait(self._pointer, NEVER_SEEN, 0)

    def _become_inert(self) -> None:
        """In a forked child. The parent's memory is not freed: its threads are not here to give it back."""
        self._lock = threading.RLock()  # the parent may have held it
        self._quiet = threading.Condition(self._lock)
        self._blocked = {}
        self._waiting = {}
        self._watch = None
        self._pointer = None
        self._is_forked = True
        self._ended_as = lambda: errors.InvalidArgumentError(
            "this process was forked from a member of a job and is none itself: use byteps in the parent only"
        )


class EndQueue:
    """Made by Job.make_queue(). Reports the ends of many exchanges at once to one thread. It may outlive its job."""

    CAPACITY = 64

    def __init__(self, pointer: int, lib: Library, job: Job) -> None:
        self.pointer = pointer
        self._library = lib
        self._job = job
        self._ended = (abi.Ended * self.CAPACITY)()
        self._lock = threading.Lock()  # one thread at a time takes

    def take(self) -> Optional[List[Tuple[int, Optional[errors.BytePSError]]]]:
        """Waits until something has ended: [(tag, None or why it failed), ...]. Empty after QUEUE_SLICE_NS without any
        (call again). None: the job has been left, and all ends are reported."""
        count = ctypes.c_uint32()
        error = abi.Error()
        with self._lock:
            with self._job._noted(None):
                code = self._library.blocking.byteps_queue_wait(
                    self.pointer, self._ended, self.CAPACITY, byref(count), QUEUE_SLICE_NS, byref(error)
                )
            if code == abi.CANCELLED:
                return None
            if code not in (abi.OK, abi.AGAIN):
                raise errors.from_code(code, error.text())
            ended = [(entry.tag, entry.code) for entry in self._ended[: count.value]]
        return [(tag, None if code == abi.OK else errors.from_code(code, error.text())) for tag, code in ended]

    def __del__(self) -> None:
        self._library.nonblocking.byteps_queue_destroy(self.pointer)


def _after_fork_in_child() -> None:
    for job in list(_jobs):
        job._become_inert()


os.register_at_fork(after_in_child=_after_fork_in_child)
