"""The keeper: a small process that ends the crew when bpslaunch could not, because it was killed.

It reads from a pipe which sessions live ("+123", "-123"). The pipe ends when bpslaunch does, however it ends; sessions
that still live then get SIGTERM, and SIGKILL two seconds later. It leads a session of its own, so that a signal to
bpslaunch's group or terminal does not reach it.

It may be killed itself. Then another one is forked, which is told of all sessions that live; the job does not notice.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Optional, Set

from byteps.launcher import sessions

GRACE_S = 2.0
STARTS_MAX = 10  # a machine that kills one after the other will kill the next one, too


class Keeper:
    def __init__(self) -> None:
        """Forks; call it before there are threads. OSError: there is none."""
        self._watched: Set[int] = set()
        self._pid: Optional[int] = None  # None: there is none
        self._write_end = -1
        self._starts = 0
        self._start()

    def watch(self, session: int) -> None:
        self._watched.add(session)
        self._write(b"+%d\n" % session)

    def watch_self(self) -> None:
        """In a child that leads a session, between fork and exec: it may have children before bpslaunch comes to
        watch(), and bpslaunch may be killed before that."""
        held = signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # the keeper may be gone, which is not the child's affair
        self._write(b"+%d\n" % os.getpid())
        signal.signal(signal.SIGPIPE, held)

    def forget(self, session: int) -> None:
        self._watched.discard(session)
        self._write(b"-%d\n" % session)

    def tend(self) -> str:
        """Call it when a child has ended. If it was the keeper, starts another one, and returns what to say of that."""
        if self._pid is None:
            return ""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid == 0:
            return ""
        os.close(self._write_end)
        self._pid = None
        how = f"exit code {os.WEXITSTATUS(status)}"
        if os.WIFSIGNALED(status):
            how = f"signal {sessions.signal_name(os.WTERMSIG(status))}"
        text = f"the keeper (pid {pid}), which ends the job if bpslaunch is killed, has ended with {how}"
        if self._starts == STARTS_MAX:
            return f"{text}, as {STARTS_MAX - 1} before it: the job goes on without one"
        try:
            self._start()
        except OSError as error:
            return f"{text}, and no other can be started: {error.strerror}; the job goes on without one"
        return f"{text}: another one is started"

    def dismiss(self) -> None:
        """After this the keeper is gone; what it still watched is ended."""
        is_done = False
        if self._pid is not None:
            os.close(self._write_end)
            is_done = os.waitpid(self._pid, 0)[1] == 0
        if not is_done:
            _end(self._watched)

    def _start(self) -> None:
        read_end, self._write_end = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(read_end)
            os.close(self._write_end)
            raise
        if pid == 0:
            code = 1
            try:
                _keep(read_end, set(self._watched))
                code = 0
            finally:
                os._exit(code)
        os.close(read_end)
        self._pid = pid
        self._starts += 1

    def _write(self, line: bytes) -> None:
        if self._pid is None:
            return
        try:
            os.write(self._write_end, line)
        except BrokenPipeError:  # tend() sees to it: the next one begins with all that are watched
            pass


def _keep(read_end: int, watched: Set[int]) -> None:
    signal.set_wakeup_fd(-1)
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _let_go(read_end)
    _follow(read_end, watched)
    _end(watched)


def _let_go(kept: int) -> None:
    """Of all descriptors but one: a pipe or a port that we held would seem to be in use when bpslaunch is gone, and the
    reader of its output would wait for us."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor != kept:
            try:
                os.close(descriptor)
            except OSError:
                pass  # that of the folder


def _end(watched: Set[int]) -> None:
    sessions.send(signal.SIGTERM, watched)
    deadline = time.monotonic() + GRACE_S
    while watched and time.monotonic() < deadline:
        watched &= set(sessions.members(watched))
        time.sleep(0.02)
    while watched:  # again and again: a fork may slip through one look
        sessions.send(signal.SIGKILL, watched)
        time.sleep(0.02)
        watched &= set(sessions.members(watched))


def _follow(read_end: int, watched: Set[int]) -> None:
    """Keeps the sessions that are watched, until the pipe ends."""
    with os.fdopen(read_end, "rb") as lines:
        for line in lines:
            session = int(line[1:])
            if line.startswith(b"+"):
                watched.add(session)
            else:
                watched.discard(session)
