"""The first cause of a job that failed, from what its flight recorders left.

A job that fails, fails everywhere: one process is the cause, all others say what they suffered. So the cause is found
by what follows from what, in this order:

1. suspects   what each recording says of its own end, whom it accuses, who vanished (suspects.py)
2. an accusation falls when the accused says itself what happened to it: a scheduler is unreachable because its port was
   taken, a worker is missing because its settings were wrong
3. what stood in the way of the start falls when the job was complete later
4. what the job has survived is no cause (survived.py)
5. the earliest of the others is the cause. Processes of one machine share a clock; between machines the time of day
   decides, and only where two suspects have nothing to do with each other

explain(folder) -> Verdict is for programs. docs/flight.md is the manual.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

from byteps.recordings import flight
from byteps.recordings.causes import OTHER
from byteps.recordings.flight import Event, Recording, title
from byteps.recordings.survived import Loss, find_losses
from byteps.recordings.suspects import Evidence, Suspect, find_suspects, said

TIMELINE_EVENTS = 20
ENDED_WELL = "well"  # how: the recording was asked for (BYTEPS_FLIGHT_ALWAYS)
# Not news in a timeline; of members the log and the messages say it too.
QUIET = ("submit", "done", "barrier", "wanted", "missing", "declare", "start",
         "here", "lost", "back", "left", "replaced")  # fmt: skip


@dataclass
class Verdict:
    """What is thought to have happened first."""

    cause: str  # a sentence
    kind: str = OTHER  # of causes.KINDS, or how bpslaunch saw a process end (docs/flight.md)
    role: Optional[str] = None  # of whose fault or fate it was
    rank: Optional[int] = None
    host: str = ""  # "host:pid"
    when: Optional[float] = None  # seconds since 1970
    evidence: List[str] = field(default_factory=list)  # "file: what it says"
    remedy: str = ""
    timeline: List[str] = field(default_factory=list)
    survived: List[str] = field(default_factory=list)  # losses after which the job went on, oldest first
    is_found: bool = True
    is_known_to_launcher: bool = False  # it says no more than what bpslaunch saw itself


def explain(*places: Any) -> Verdict:
    """The first cause of the newest job in these folders (or files)."""
    return analyse(flight.newest_job(flight.read(places)))


def analyse(recordings: List[Recording], timeline_events: int = TIMELINE_EVENTS) -> Verdict:
    """The same for what one job left. Pure."""
    if not recordings:
        return Verdict("there is no recording here: no process has left its last events", is_found=False)
    losses = find_losses(recordings)
    survived = [f"{clock(each.when)}  {each.text}" for each in losses]
    suspects = [each for each in find_suspects(recordings) if not is_survived(each, losses)]
    suspect = choose(suspects, began_at(recordings))
    if suspect is None and all(each.how == ENDED_WELL for each in recordings):
        return Verdict("the job ended well, as far as its recordings say", survived=survived, is_found=False)
    if suspect is None:
        names = ", ".join(each.title for each in recordings)
        verdict = Verdict(f"nothing in the recordings of {names} says how it began", survived=survived, is_found=False)
        verdict.evidence = [shown([said(each)]) for each in recordings if each.text]
        return verdict
    return Verdict(
        suspect.cause,
        suspect.kind,
        suspect.role,
        suspect.rank,
        suspect.host,
        suspect.when,
        with_others(suspect, suspects),
        suspect.remedy,
        timeline(recordings, suspect.when, timeline_events),
        survived,
        is_known_to_launcher=suspect.is_seen_by_launcher,
    )


def began_at(recordings: List[Recording]) -> Optional[float]:
    """When the job was last complete; None when it never was."""
    rosters = [event.when for each in recordings for event in each.find("received", "Roster")]
    rosters += [event.when for each in recordings for event in each.find("sent", "Roster")]
    return max(rosters, default=None)


def is_survived(suspect: Suspect, losses: List[Loss]) -> bool:
    return any(each.excuses(suspect.role, suspect.host, suspect.when) for each in losses)


def choose(suspects: List[Suspect], began: Optional[float]) -> Optional[Suspect]:
    standing = [each for each in suspects if not (each.is_of_start and began is not None and each.when < began)]
    own = [each for each in standing if each.is_own_word]

    def falls(accusation: Suspect) -> bool:
        return not accusation.is_own_word and any(
            accusation.names(each.role, each.rank, each.host) and not each.is_of_old_age for each in own
        )

    left = [each for each in standing if not falls(each)]
    return min(left, key=lambda each: (each.when, each.is_of_old_age, not each.is_own_word), default=None)


# ---------------------------------------------------------------------------- saying it


def with_others(suspect: Suspect, suspects: List[Suspect]) -> List[str]:
    """Its evidence, and what others say of the same process; what several say alike is one line."""
    evidence = list(suspect.evidence)
    for other in suspects:
        is_about_it = suspect.host or suspect.rank is not None or suspect.role == "scheduler"
        same = is_about_it and other.names(suspect.role, suspect.rank, suspect.host)
        if other is not suspect and (same or other.cause == suspect.cause):
            evidence += other.evidence
    by_text: Dict[str, List[Evidence]] = {}
    for each in dict.fromkeys(evidence):
        by_text.setdefault(each.text, []).append(each)
    return [shown(alike) for alike in by_text.values()][:8]


def shown(alike: List[Evidence]) -> str:
    """What one or several say alike."""
    others = f" and {len(alike) - 1} more" if alike[1:] else ""
    return f"{alike[0].file}{others}: {alike[0].text}"


def timeline(recordings: List[Recording], when: float, count: int) -> List[str]:
    """What happened around `when`, of all processes, oldest first."""
    news = [e for each in recordings for e in each.events if e.kind not in QUIET and not _is_noise(e)]
    news.sort(key=lambda event: event.when)
    said_already = set()  # a process that logs, tells and ends with the same words has one line
    fresh = []
    for event in news:
        words = (event.recording.path, event.text)
        if len(event.text) <= 40 or words not in said_already:
            fresh.append(event)
        said_already.add(words)
    news = fresh
    after = [event for event in news if event.when >= when - 0.001]
    before = [event for event in news if event.when < when - 0.001]
    first = before[-min(5, count // 4) :] if count >= 4 else []
    return [line(event) for event in first + after[: count - len(first)]]


def _is_noise(event: Event) -> bool:
    """What another event says as well."""
    return event.kind == "log" and event.name == "DEBUG"


def clock(when: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(when)) + f".{int(when % 1 * 1000):03d}"


def line(event: Event) -> str:
    who = title(event.recording.role, event.recording.rank)
    what = event.kind if event.kind not in ("log",) else ""
    about = title(event.role, event.rank) if event.role and not event.cause else ""  # of a cause the text says more
    parts = [what, event.name if event.kind != "log" else "", about]
    told = " ".join(part for part in parts if part)
    text = event.text if len(event.text) <= 160 else event.text[:157] + "..."
    return f"{clock(event.when)}  {who:12} {told}{': ' if told and text else ''}{text}"


def summary(verdict: Verdict) -> List[str]:
    """In one to three lines."""
    lines = [f"First cause: {verdict.cause}" if verdict.is_found else verdict.cause]
    if verdict.when is not None:
        lines[0] += f" (at {time.strftime('%H:%M:%S', time.localtime(verdict.when))})"
    if verdict.remedy:
        lines.append(f"What to do: {verdict.remedy} docs/failures.md says more.")
    return lines
