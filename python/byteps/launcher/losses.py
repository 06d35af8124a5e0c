"""What a job does when a worker is lost, and how its scheduler hears of it at once (BYTEPS_ON_WORKER_LOSS).

A worker is lost when a signal has ended its process, when its host is out of sight, and when it ends with
EXIT_REPLACED, by which it says that the job goes on without it (byteps_is_replaced in byteps.h). Any other exit code
but 0 is a failure, whatever the policy.

The scheduler that bpslaunch starts gets a pipe as its standard input, and on it a line for each loss
(src/app/death_reader.h): "worker 3 was ended by signal SIGKILL".
"""

from __future__ import annotations

import os
import subprocess
from typing import Dict, Mapping, Optional

from byteps.launcher.environment import BadEnvironment, read_switch

VARIABLE, RECOVERY = "BYTEPS_ON_WORKER_LOSS", "BYTEPS_RECOVERY"
FAIL, CONTINUE = POLICIES = ("fail", "continue")
OPTION = f"--on-worker-loss {CONTINUE} ({VARIABLE}={CONTINUE})"
TELLING = "--deaths-on-stdin"  # of byteps_scheduler
EXIT_REPLACED = 86  # BYTEPS_EXIT_REPLACED in byteps.h
HOW_BYTES_MAX = 512  # the scheduler takes 1024 a line


def policy(environ: Mapping[str, str]) -> str:
    value = environ.get(VARIABLE, "")
    if value not in ("", *POLICIES):
        raise BadEnvironment(f"{VARIABLE}='{value}' is not valid: it takes {' or '.join(POLICIES)}")
    return value or FAIL


def goes_on(environ: Mapping[str, str]) -> bool:
    """Whether the loss of a worker does not end the job."""
    return policy(environ) == CONTINUE


def settle(environ: Dict[str, str], wanted: Optional[str] = None) -> None:
    """Makes the variables of a job agree. `wanted`: the policy of the command line, which wins."""
    if wanted is not None:
        environ[VARIABLE] = wanted
    if goes_on(environ) and not read_switch(environ, RECOVERY, default=True):
        raise BadEnvironment(
            f"{OPTION} and {RECOVERY}=0 exclude each other: who lost a worker has to recover; unset {RECOVERY}"
        )


def check_servers(environ: Mapping[str, str], worker_count: int, server_count: int) -> None:
    """Refuses what nobody sums for when a worker is lost: a single worker, or several that leave sums to servers."""
    if not goes_on(environ) or server_count > 0:
        return
    if worker_count == 1:
        raise BadEnvironment(f"{OPTION} needs several workers: without the only one nobody is left; leave it out")
    if environ.get("BYTEPS_LOCAL_REDUCE") == "0":
        raise BadEnvironment(
            f"{OPTION} needs at least one server: BYTEPS_LOCAL_REDUCE=0 forbids workers of one machine to sum there "
            "themselves; say --servers 1 with --local, or servers=1 behind a host of the file, or unset it"
        )


def line(rank: int, how: str) -> str:
    """For the scheduler. What other programs have said may be in `how`."""
    plain = "".join(each if each.isprintable() else " " for each in how)
    return f"worker {rank} " + plain.encode(errors="replace")[:HOW_BYTES_MAX].decode(errors="ignore")


def input_for(hears_losses: bool) -> int:
    """For Popen."""
    return subprocess.PIPE if hears_losses else subprocess.DEVNULL


class Ear:
    """The standard input of a scheduler that was started with a pipe there. Never waits: what it does not take yet
    waits here, at most a line for each worker."""

    def __init__(self, child: "subprocess.Popen[bytes]"):
        assert child.stdin is not None
        self._file = child.stdin
        os.set_blocking(self._file.fileno(), False)
        self._waiting = bytearray()

    @property
    def waits(self) -> bool:
        """Call flush() again in a while."""
        return bool(self._waiting)

    def tell(self, line: str) -> None:
        self._waiting += line.encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        while self._waiting:
            try:
                del self._waiting[: os.write(self._file.fileno(), self._waiting[:4096])]
            except BlockingIOError:
                return
            except OSError:  # it has ended; one that is started anew is told all again
                self._waiting.clear()
