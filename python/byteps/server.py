"""`import byteps.server` (or `python -m byteps.server`) runs this machine's server or scheduler, by DMLC_ROLE, and
returns when the job has ended; when it ended badly, SystemExit carries the exit code.

The work is done by the executables byteps_server and byteps_scheduler, which need no Python and may as well be started
directly.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from typing import Any, List

from byteps.launcher.environment import BadEnvironment
from byteps.launcher.plan import CannotStart, find_executable

ROLES = ("server", "scheduler")
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run() -> int:
    """Runs the executable of DMLC_ROLE with this process's environment; its exit code, or 128 + the signal that ended
    it. Signals that should end this process go to the executable."""
    role = os.environ.get("DMLC_ROLE", "")
    if role not in ROLES:
        raise BadEnvironment(f"DMLC_ROLE='{role}': byteps.server needs one of {', '.join(ROLES)}")
    command = [find_executable(role, os.environ)]
    if threading.current_thread() is not threading.main_thread():  # where no handler can be set
        return _exit_code(subprocess.call(command))
    return _run_with_signals(command)


def _run_with_signals(command: List[str]) -> int:
    received: List[int] = []
    children: List["subprocess.Popen[bytes]"] = []

    def forward(number: int, _: Any) -> None:
        received.append(number)
        for child in children:
            child.send_signal(number)

    former = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        # In a session of its own, so that a Ctrl-C reaches it once, through us: a second one would end it abruptly.
        child = subprocess.Popen(command, start_new_session=True, preexec_fn=_end_with_parent)
        children.append(child)
        for number in received:  # those from before it was in the list
            child.send_signal(number)
        return _exit_code(child.wait())
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _end_with_parent() -> None:
    """In the child: SIGTERM when the parent is killed, so that it leaves no orphan. Linux only."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # 1: PR_SET_PDEATHSIG


def _exit_code(returned: int) -> int:
    return 128 - returned if returned < 0 else returned


def _main() -> None:
    try:
        code = run()
    except (BadEnvironment, CannotStart) as error:
        print(f"byteps.server: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    if code != 0 or __name__ == "__main__":
        raise SystemExit(code)


_main()
