"""Losses that a job has survived (docs/recovery.md), as the processes tell of them that went on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from byteps.recordings.causes import Participant
from byteps.recordings.fields import number_of
from byteps.recordings.flight import Event, Recording


@dataclass(frozen=True)
class Loss:
    when: float  # it had a successor
    who: Participant  # of the scheduler nobody knows the process
    text: str

    def excuses(self, role: Optional[str], host: str, when: float) -> bool:
        """Whether what was found of a process is this loss: the job went on after it."""
        if role != self.who.role:
            return False
        return host == self.who.host if self.who.host else when <= self.when


# Workers have seen connections end, and when; the scheduler knows why; other servers only that it was so.
TELLERS = ("worker", "scheduler", "server")


def find_losses(recordings: List[Recording]) -> List[Loss]:
    """In order of time. What several tell of is one, in the words of the one that knows most."""
    events = [e for each in recordings if each.role in TELLERS for e in each.find("replaced") if e.role]
    told: Dict[Tuple[Any, ...], Event] = {}
    for event in sorted(events, key=lambda each: (TELLERS.index(each.recording.role), not each.cause, each.when)):
        which = event.host or (number_of(event.fields, "epoch"), event.number)  # a process is lost once
        told.setdefault((event.role, event.rank, which), event)
    losses = [
        Loss(event.when, Participant(event.role, event.rank, event.host), event.text + _why(event, recordings))
        for event in told.values()
    ]
    return sorted(losses, key=lambda each: each.when)


def _why(event: Event, recordings: List[Recording]) -> str:
    """Of a process whose connections had not ended: what the scheduler knew of it."""
    if event.cause or not event.host or event.recording.role == "scheduler":
        return ""
    for recording in recordings:
        for each in recording.events if recording.role == "scheduler" else ():
            if each.host == event.host and each.kind == "left":
                return ": it was told to stop"
            if each.host == event.host and each.kind == "lost" and each.text:
                return f": {each.text}"
    return ""
