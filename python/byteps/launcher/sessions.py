"""Every process that bpslaunch starts leads a session of its own, so that all it starts in turn can be found and ended.

A session is wider than a process group: a shell or a debugger that makes groups of its own does not leave it. Only a
process that calls setsid does, which is how one says that it means to stay. The kernel does not give a session's number
to another process while it has members, so a number that once was found empty must not be asked again.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from typing import IO, Dict, Iterable, List, Tuple

PR_SET_PDEATHSIG = 1  # linux/prctl.h

_libc = ctypes.CDLL(None, use_errno=True)


def members(sessions: Iterable[int]) -> Dict[int, List[int]]:
    """Live processes by session; a session without any is absent."""
    wanted = set(sessions)
    found: Dict[int, List[int]] = {}
    if not wanted:
        return found
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()  # the name before ')' may hold anything
        except OSError:
            continue
        state, session = fields[0], int(fields[3])
        if session in wanted and state not in (b"Z", b"X"):
            found.setdefault(session, []).append(int(entry))
    return found


def send(signal_number: int, sessions: Iterable[int]) -> None:
    for pids in members(sessions).values():
        for pid in pids:
            try:
                os.kill(pid, signal_number)
            except (ProcessLookupError, PermissionError):
                pass


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def outputs(child: "subprocess.Popen[bytes]") -> Tuple[IO[bytes], IO[bytes]]:
    """Standard output and standard error of a child that was started with a pipe for each."""
    assert child.stdout is not None and child.stderr is not None
    return child.stdout, child.stderr


def die_with_parent(parent: int) -> None:
    """In a child between fork and exec: the kernel sends it SIGTERM when the thread that started it is gone."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it went before we asked
        os._exit(128 + signal.SIGTERM)
