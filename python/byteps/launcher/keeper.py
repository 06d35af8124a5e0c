"""The keeper: a small process that ends the crew when bpslaunch could not, because it was killed.

It reads from a pipe which sessions live ("+123", "-123"). The pipe ends when bpslaunch does, however it ends; sessions
that still live then get SIGTERM, and SIGKILL two seconds later. It leads a session of its own, so that a signal to
bpslaunch's group or terminal does not reach it.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Set

from byteps.launcher import sessions

GRACE_S = 2.0


class Keeper:
    def __init__(self) -> None:
        """Forks; call it before there are other children, pipes or threads."""
        read_end, self._write_end = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._write_end)
                _keep(read_end)
            finally:
                os._exit(0)
        os.close(read_end)

    def watch(self, session: int) -> None:
        os.write(self._write_end, b"+%d\n" % session)

    def forget(self, session: int) -> None:
        os.write(self._write_end, b"-%d\n" % session)

    def dismiss(self) -> None:
        """After this the keeper is gone; what it still watched is ended."""
        os.close(self._write_end)
        os.waitpid(self._pid, 0)


def _keep(read_end: int) -> None:
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # or the reader of our output would wait for us
        os.dup2(null, descriptor)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watched = _follow(read_end)
    sessions.send(signal.SIGTERM, watched)
    deadline = time.monotonic() + GRACE_S
    while watched and time.monotonic() < deadline:
        watched &= set(sessions.members(watched))
        time.sleep(0.02)
    while watched:  # again and again: a fork may slip through one look
        sessions.send(signal.SIGKILL, watched)
        time.sleep(0.02)
        watched &= set(sessions.members(watched))


def _follow(read_end: int) -> Set[int]:
    """The sessions still watched when the pipe ends."""
    watched: Set[int] = set()
    with os.fdopen(read_end, "rb") as lines:
        for line in lines:
            session = int(line[1:])
            if line.startswith(b"+"):
                watched.add(session)
            else:
                watched.discard(session)
    return watched
