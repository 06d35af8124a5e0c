"""Our own standard output and error, written without ever waiting for who reads them.

A pager that shows its first page, a terminal after Ctrl-S, a log collector that hangs take nothing for as long as they
like. What they do not take waits here; who writes looks at how much that is (crew.py), and stops reading.

The descriptors are shared with other programs (the shell, the pager), which do not expect O_NONBLOCK on them: so pipes
and terminals are opened once more, through /proc/self/fd, for us alone. Files keep nobody waiting.
"""

from __future__ import annotations

import os
import select
import socket
import stat
from typing import Dict, Optional

WRITE_BYTES = 64 << 10
CAUTIOUS_BYTES = 512  # where it cannot be opened once more: after a look whether there is room


class Outlet:
    def __init__(self, fd: int):
        self._fd = fd
        self._waiting = bytearray()
        self._socket: Optional[socket.socket] = None
        self._is_cautious = False
        try:
            mode = os.fstat(fd).st_mode
        except OSError:  # closed: writing tells
            mode = 0
        if stat.S_ISSOCK(mode):
            self._socket = socket.socket(fileno=os.dup(fd))
        elif stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            try:
                self._fd = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
            except OSError:  # another user's terminal, as after su; or a pipe that nobody reads
                self._is_cautious = True

    @property
    def waiting_bytes(self) -> int:
        return len(self._waiting)

    def fileno(self) -> int:
        """To wait for: there may be room when it can be written to."""
        return self._fd

    def write(self, data: bytes) -> None:
        """BrokenPipeError: the reader is gone."""
        self._waiting += data
        self.flush()

    def flush(self) -> None:
        """Writes what is taken now."""
        try:
            while self._waiting:
                del self._waiting[: self._put(self._waiting[:WRITE_BYTES])]
        except BlockingIOError:
            pass
        except OSError:
            self._waiting.clear()
            raise

    def _put(self, data: bytes) -> int:
        if self._socket is not None:
            return self._socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        if self._is_cautious:
            poll = select.poll()
            poll.register(self._fd, select.POLLOUT)
            if not poll.poll(0):
                raise BlockingIOError
            data = data[:CAUTIOUS_BYTES]
        return os.write(self._fd, data)


def standard() -> Dict[int, Outlet]:
    """By descriptor, 1 and 2; one for both where they are the same pipe or terminal, so that lines stay in order."""
    first = Outlet(1)
    try:
        facts = [os.fstat(fd) for fd in (1, 2)]
        is_same = os.path.samestat(*facts) and not stat.S_ISREG(facts[0].st_mode)
    except OSError:
        is_same = False
    return {1: first, 2: first if is_same else Outlet(2)}
