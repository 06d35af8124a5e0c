"""Which processes are started again, and how often: a server or the scheduler that was killed, where the job survives
that."""

from __future__ import annotations

import signal
from typing import Dict, List, Mapping, Optional, Tuple

from byteps.launcher.environment import read_switch

RESTARTS_MAX = 10  # of one process ...
WITHIN_S = 600.0  # ... in this time
EARLY_DEATHS_MAX = 3  # one after the other ...
EARLY_S = 1.0  # ... that soon after their starts: it cannot live

# By these a service ends with an exit code of its own, 128 + n, after it has told all that the job is over.
END_OF_JOB = {"server": (signal.SIGINT,), "scheduler": (signal.SIGINT, signal.SIGTERM)}

Name = Tuple[str, Optional[int]]  # role and rank


def signal_in(role: str, exit_code: int) -> int:
    """The signal that has ended a service, by its exit code 128 + n: a server that was told to stop once more before
    another had its place, or what a script around it says. 0: none, or it has ended the job with it."""
    number = exit_code - 128
    if role not in END_OF_JOB or not 0 < number < signal.NSIG or number in END_OF_JOB[role]:
        return 0
    return number


class Restarts:
    def __init__(self) -> None:
        self._times: Dict[Name, List[float]] = {}
        self._early: Dict[Name, int] = {}

    @staticmethod
    def are_wanted(role: str, environ: Mapping[str, str]) -> bool:
        """Whether a process of this role is started again when a signal has ended it."""
        return role in ("server", "scheduler") and read_switch(environ, "BYTEPS_RECOVERY", default=True)

    def attempt(self, name: Name, started_s: float, ended_s: float) -> int:
        """The number of the next start, from 2; 0: no more (see why_not)."""
        self._early[name] = self._early.get(name, 0) + 1 if ended_s < started_s + EARLY_S else 0
        times = self._times.setdefault(name, [])
        recent = [when for when in times if when > ended_s - WITHIN_S]
        if self._early[name] >= EARLY_DEATHS_MAX or len(recent) >= RESTARTS_MAX:
            return 0
        times.append(ended_s)
        return len(times) + 1

    def why_not(self, name: Name) -> str:
        """After attempt() was 0."""
        if self._early[name] >= EARLY_DEATHS_MAX:
            return f"it died {EARLY_DEATHS_MAX} times in a row within {EARLY_S:.0f} s of its start"
        return f"it was started again {RESTARTS_MAX} times within {WITHIN_S / 60:.0f} minutes"
