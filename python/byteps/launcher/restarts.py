"""Which processes are started again, and how often: a server or the scheduler that was killed, where the job survives
that."""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Tuple

from byteps.launcher.environment import read_switch

RESTARTS_MAX = 10  # of one process ...
WITHIN_S = 600.0  # ... in this time
EARLY_DEATHS_MAX = 3  # one after the other ...
EARLY_S = 1.0  # ... that soon after their starts: it cannot live

Name = Tuple[str, Optional[int]]  # role and rank


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
