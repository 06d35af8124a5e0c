"""Job: one membership in a job, over the C interface.

Waiting is done in slices of SLICE_NS, so that Ctrl-C and other Python signal handlers run soon; within a slice nothing
polls and Python's lock is free.

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
from ctypes import byref
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from byteps._core import abi, errors
from byteps._core.library import Library, load

SLICE_NS = 200_000_000

_library: Optional[Library] = None  # loaded at the first join: importing byteps needs no library
_jobs: "weakref.WeakSet[Job]" = weakref.WeakSet()


def library() -> Library:
    global _library
    if _library is None:
        _library = load()
    return _library


def encoded_name(name: str) -> bytes:
    """The bytes by which a tensor is known. InvalidArgumentError when it is no text that can travel: C ends a name at
    NUL, and a lone surrogate has no UTF-8."""
    if not isinstance(name, str):
        raise errors.InvalidArgumentError(f"name is {name!r}: the name of a tensor is a str, not {type(name).__name__}")
    if "\0" in name:
        raise errors.InvalidArgumentError(f"name is {name!r}: it contains a NUL character, which names may not")
    try:
        return name.encode()
    except UnicodeEncodeError:
        raise errors.InvalidArgumentError(f"name is {name!r}: it contains a lone surrogate, so it is no text") from None


class Metrics(NamedTuple):
    """Counted since the job was joined. Bytes are those of tensors, without headers. Of those pushed and pulled,
    shared_bytes went through memory shared with servers of this host, rdma_bytes by RDMA, and the rest over TCP."""

    pushed_bytes: int
    pulled_bytes: int
    finished_operations: int
    finished_bytes: int
    failed_operations: int
    reconnects: int
    shared_bytes: int
    rdma_bytes: int


class Job:
    """Made by join(). `rank`, `size`, `local_rank`, `local_size` and `server_count` stay the same while it lives;
    a job of one has no servers."""

    def __init__(self, pointer: int, lib: Library) -> None:
        self._library = lib
        self._pointer: Optional[int] = pointer  # None: left, or a forked child's copy
        self._ended_as: Optional[Callable[[], errors.BytePSError]] = None
        self._is_forked = False
        # Guards the two above against leave(). Reentrant: a signal handler may call us amid one of our calls.
        self._lock = threading.RLock()
        self._quiet = threading.Condition(self._lock)
        self._blocked: Dict[int, int] = {}  # calls in the C library without the lock, per thread
        self._submit = lib.nonblocking.byteps_push_pull
        self._poll = lib.nonblocking.byteps_poll
        self._wait = lib.blocking.byteps_wait
        self.rank: int = lib.nonblocking.byteps_rank(pointer)
        self.size: int = lib.nonblocking.byteps_size(pointer)
        self.local_rank: int = lib.nonblocking.byteps_local_rank(pointer)
        self.local_size: int = lib.nonblocking.byteps_local_size(pointer)
        self.server_count: int = lib.nonblocking.byteps_server_count(pointer)
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
                lib.blocking.byteps_record(pointer, text.encode(errors="replace"), 1, None)
                lib.blocking.byteps_leave(pointer, 1, None)
            raise
        raise errors.from_code(code, error.text())

    def leave(self, final: bool = True) -> None:
        """Leaves the job; what is under way ends with CancelledError. Harmless when repeated.

        final: this process will not join again, so servers and scheduler may end when all workers have left."""
        with self._lock:
            pointer, self._pointer = self._pointer, None
            if pointer is None:
                return
            if final:
                self._record_exception(pointer)
            self._ended_as = lambda: errors.CancelledError("this process has left the job")
            # This thread itself is here, so not in the C library, even when a signal handler called from amid a wait.
            while any(thread != threading.get_ident() for thread in self._blocked):
                self._quiet.wait()
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
        self._library.blocking.byteps_record(pointer, text.encode(errors="replace"), 1, None)

    @property
    def is_live(self) -> bool:
        """False after leave(), and in a forked child."""
        return self._pointer is not None

    def check_not_forked(self) -> None:
        """InvalidArgumentError in a forked child. For waits that the core does not know of: nothing would end them."""
        if self._is_forked:
            self._live_pointer()

    def push_pull(
        self,
        name: str,
        dtype: int,
        input: int,
        output: int,
        element_count: int,
        operation: int,
        root: int = 0,
        priority: int = 0,
        once: bool = False,
        shape: Sequence[int] = (),
        scale: float = 0.0,
        members: Sequence[int] = (),
        root_only: bool = False,
        queue: "Optional[EndQueue]" = None,
        tag: int = 0,
    ) -> int:
        """Starts one exchange and returns its handle; never blocks. `input` and `output` are addresses (0: none) of
        memory that must stay valid until wait() has returned or raised for the handle, or the job has been left.
        `shape`: the dimensions, whose product is element_count; () is one dimension. `scale`: multiplies the result;
        0.0: not. `members`: ascending ranks that take part; () is all. `root_only`: only `root` gets the result.
        `queue`: its take() reports the end with `tag`, and nobody may wait() for the handle."""
        tensor = abi.Tensor(
            abi.TENSOR_BYTES,
            dtype,
            encoded_name(name),
            input,
            output,
            element_count,
            operation,
            root,
            priority,
            (abi.ONCE if once else 0) | (abi.ROOT_ONLY if root_only else 0),
            (ctypes.c_uint64 * len(shape))(*shape) if shape else None,
            len(shape),
            0,
            scale,
            (ctypes.c_uint32 * len(members))(*members) if members else None,
            len(members),
            0,
            queue.pointer if queue is not None else None,
            tag,
        )
        handle = ctypes.c_int64()
        error = abi.Error()
        with self._lock:
            code = self._submit(self._live_pointer(), byref(tensor), byref(handle), byref(error))
        if code != abi.OK:
            raise errors.from_code(code, error.text())
        return handle.value

    def poll(self, handle: int) -> bool:
        """True when wait() would not block. InvalidArgumentError: no such handle, or used up."""
        with self._lock:
            state = self._poll(self._live_pointer(), handle)
        if state < 0:
            raise errors.InvalidArgumentError(f"handle {handle} is not known, or has been waited for already")
        return bool(state)

    def wait(self, handle: int, timeout_s: Optional[float] = None) -> bool:
        """Blocks until the exchange has ended, and raises if it failed; either uses the handle up. An exception from a
        signal handler (KeyboardInterrupt) does not: wait again. False: `timeout_s` is over, the handle stays valid."""
        return self._in_slices(
            lambda pointer, slice_ns, error: self._wait(pointer, handle, slice_ns, error), timeout_s
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

    def make_queue(self) -> "EndQueue":
        """A queue that reports the ends of exchanges that name it."""
        pointer = ctypes.c_void_p()
        error = abi.Error()
        with self._lock:
            code = self._library.nonblocking.byteps_queue_create(self._live_pointer(), byref(pointer), byref(error))
        if code != abi.OK:
            raise errors.from_code(code, error.text())
        return EndQueue(pointer.value or 0, self._library)

    def call_with_pointer(self, call: Callable[[int], None]) -> None:
        """call(the byteps_job*), which lives until it returns. For native shims that are handed the job."""
        with self._lock:
            call(self._live_pointer())

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
        self, call: Callable[[int, int, "ctypes._CArgObject"], int], timeout_s: Optional[float] = None
    ) -> bool:
        """False at the timeout."""
        error = abi.Error()
        thread = threading.get_ident()
        deadline_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_ns = (deadline_s - time.monotonic()) * 1e9
            with self._lock:
                pointer = self._live_pointer()
                self._blocked[thread] = self._blocked.get(thread, 0) + 1
            try:
                code = call(pointer, int(max(0.0, min(left_ns, SLICE_NS))), byref(error))
            finally:
                with self._lock:
                    self._blocked[thread] -= 1
                    if self._blocked[thread] == 0:
                        del self._blocked[thread]
                        self._quiet.notify_all()
            if code == abi.AGAIN and left_ns > 0:
                continue
            if code not in (abi.OK, abi.AGAIN):
                raise errors.from_code(code, error.text())
            return code == abi.OK

    def _become_inert(self) -> None:
        """In a forked child. The parent's memory is not freed: its threads are not here to give it back."""
        self._lock = threading.RLock()  # the parent may have held it
        self._quiet = threading.Condition(self._lock)
        self._blocked = {}
        self._pointer = None
        self._is_forked = True
        self._ended_as = lambda: errors.InvalidArgumentError(
            "this process was forked from a member of a job and is none itself: use byteps in the parent only"
        )


class EndQueue:
    """Made by Job.make_queue(). Reports the ends of many exchanges at once to one thread. It may outlive its job."""

    CAPACITY = 64

    def __init__(self, pointer: int, lib: Library) -> None:
        self.pointer = pointer
        self._library = lib
        self._ended = (abi.Ended * self.CAPACITY)()
        self._lock = threading.Lock()  # one thread at a time takes

    def take(self) -> Optional[List[Tuple[int, Optional[errors.BytePSError]]]]:
        """Waits until something has ended: [(tag, None or why it failed), ...]. Empty after SLICE_NS without any (call
        again). None: the job has been left, and all ends are reported."""
        count = ctypes.c_uint32()
        error = abi.Error()
        with self._lock:
            code = self._library.blocking.byteps_queue_wait(
                self.pointer, self._ended, self.CAPACITY, byref(count), SLICE_NS, byref(error)
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
