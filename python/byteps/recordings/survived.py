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


def find_losses(recordings: List[Recording]) -> List[Loss]:
    """In order of time. What several tell of is one, in the words of the first that knew why."""
    events = [event for each in recordings for event in each.find("replaced") if event.role]
    told: Dict[Tuple[Any, ...], Event] = {}
    for event in sorted(events, key=lambda each: (not each.cause, each.when)):
        told.setdefault((event.role, event.rank, number_of(event.fields, "epoch"), event.number), event)
    losses = [
        Loss(event.when, Participant(event.role, event.rank, event.host), event.text + _why(event, recordings))
        for event in told.values()
    ]
    return sorted(losses, key=lambda each: each.when)


def _why(event: Event, recordings: List[Recording]) -> str:
    """Of a process whose connections had not ended: what the scheduler knew of it."""
    if event.cause or not event.host:
        return ""
    for recording in recordings:
        for each in recording.events if recording.role == "scheduler" else ():
            if each.host == event.host and each.kind == "left":
                return ": it was told to stop"
            if each.host == event.host and each.kind == "lost" and each.text:
                return f": {each.text}"
    return ""
