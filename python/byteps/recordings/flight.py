"""The files that flight recorders leave: read here, and tolerant of what is cut off or was never ours.

src/app/flight_file.h says how they are written, docs/flight.md what is in them. A file is one process (one job of it):
a line about the process, then its last events. Nothing in a file is trusted: lines that are no JSON objects are counted
and skipped, texts are made harmless for terminals, numbers that are none are left out.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional

from byteps.recordings import causes, form_1
from byteps.recordings.causes import Cause
from byteps.recordings.fields import dict_of, number_of, text_of

FORM = 2
PREFIX = "byteps-flight-"
FILE_BYTES_MAX = 256 << 20
LINE_BYTES_MAX = 64 << 10
SLACK_S = 30.0  # processes of one job may begin and end so far apart


def default_folder() -> Path:
    """Where processes leave their files when BYTEPS_FLIGHT_DIR is not set."""
    return Path(os.environ.get("TMPDIR") or "/tmp") / f"byteps-{os.geteuid()}" / "flight"


@dataclass
class Event:
    recording: "Recording"
    t: int  # nanoseconds of its machine's monotonic clock
    kind: str
    name: str = ""
    role: str = ""  # of the process that it is about
    rank: Optional[int] = None
    host: str = ""
    cause: str = ""  # its kind, where something ended
    detail: str = ""  # of the cause
    text: str = ""
    number: Optional[int] = None
    fields: Dict[str, Any] = field(default_factory=dict)

    @property
    def when(self) -> float:
        """Seconds since 1970."""
        return self.recording.wall(self.t)


@dataclass
class Peer:
    role: str
    rank: Optional[int]
    host: str  # "host:pid"
    state: str
    heard_ns: Optional[int]


@dataclass
class Recording:
    """What one process left."""

    path: str
    header: Dict[str, Any]
    events: List[Event] = field(default_factory=list)
    damaged_lines: int = 0

    @property
    def role(self) -> str:
        return text_of(self.header, "role") or "process"

    @property
    def rank(self) -> Optional[int]:
        return number_of(self.header, "rank")

    @property
    def host(self) -> str:
        """As others know it: "host:pid"."""
        return f"{text_of(self.header, 'host') or 'unknown'}:{number_of(self.header, 'pid') or 0}"

    @property
    def title(self) -> str:
        """ "worker 1 (host:pid)"."""
        return title(self.role, self.rank, self.host)

    @property
    def how(self) -> str:
        return text_of(self.header, "how")

    @property
    def text(self) -> str:
        """Why it ended badly, in its own words."""
        return text_of(self.header, "text")

    @property
    def cause(self) -> Cause:
        return causes.read(dict_of(self.header, "cause"))

    @property
    def scheduler(self) -> str:
        return text_of(self.header, "scheduler")

    @property
    def job(self) -> str:
        """The same for the processes of one job: its scheduler's address; without one, as in a job of one, the key that
        bpslaunch made, or else this process."""
        key_file = text_of(dict_of(self.header, "settings"), "BYTEPS_JOB_KEY_FILE")
        return self.scheduler or (key_file if key_file.startswith("/proc/") else self.host)

    @property
    def is_lost(self) -> bool:
        """Its settings are wrong, and may be so about the scheduler: it may have been meant for any job."""
        is_about_it = self.cause.detail in ("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT")
        return self.how == "settings" and (not self.scheduler or is_about_it)

    @property
    def epoch(self) -> int:
        return number_of(self.header, "epoch") or 0

    @property
    def peers(self) -> List[Peer]:
        listed = self.header.get("peers")
        peers = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
        return [
            Peer(
                text_of(each, "role"),
                number_of(each, "rank"),
                text_of(each, "host"),
                text_of(each, "state"),
                number_of(each, "heard_ns"),
            )
            for each in peers
        ]

    @property
    def began(self) -> float:
        return self.wall(number_of(self.header, "started_ns") or 0)

    @property
    def ended(self) -> float:
        return self.wall(number_of(self.header, "written_ns") or 0)

    def wall(self, t: int) -> float:
        return (t + (number_of(self.header, "wall_zero_ns") or 0)) / 1e9

    def find(self, kind: str, name: Optional[str] = None) -> List[Event]:
        return [each for each in self.events if each.kind == kind and name in (None, each.name)]

    def when_first(self, *kinds: str) -> float:
        """The first event of these kinds; the end when there is none."""
        return next((each.when for each in self.events if each.kind in kinds), self.ended)


def title(role: str, rank: Optional[int], host: str = "") -> str:
    text = role if rank is None else f"{role} {rank}"
    return f"{text} ({host})" if host else text


def parse(path: str, content: bytes) -> Optional[Recording]:
    """None: not a flight recorder's file."""
    recording: Optional[Recording] = None
    is_form_1 = False
    damaged = 0
    for line in content.split(b"\n"):
        if not line.strip():
            continue
        fields = None
        if len(line) <= LINE_BYTES_MAX:
            try:
                fields = json.loads(line.decode(errors="replace"))
            except (ValueError, RecursionError):
                pass
        if recording is None:
            if not isinstance(fields, dict) or "byteps_flight" not in fields:
                return None
            is_form_1 = number_of(fields, "byteps_flight") == form_1.FORM
            recording = Recording(path, form_1.head(fields) if is_form_1 else fields)
        elif isinstance(fields, dict) and number_of(fields, "t") is not None:
            lines = form_1.events(fields, recording.role) if is_form_1 else [fields]
            recording.events += [_event(recording, each) for each in lines]
        else:
            damaged += 1
    if recording is not None:
        recording.damaged_lines = damaged
        recording.events.sort(key=lambda each: each.t)  # threads record side by side
    return recording


def _event(recording: Recording, fields: Dict[str, Any]) -> Event:
    return Event(
        recording,
        number_of(fields, "t") or 0,
        text_of(fields, "kind"),
        text_of(fields, "name"),
        text_of(fields, "role"),
        number_of(fields, "rank"),
        text_of(fields, "host"),
        text_of(fields, "cause"),
        text_of(fields, "detail"),
        text_of(fields, "text"),
        number_of(fields, "number"),
        fields,
    )


def read(places: Iterable[os.PathLike]) -> List[Recording]:
    """All files in these folders, and those named themselves."""
    recordings = []
    for place in map(Path, places):
        paths = sorted(place.glob(f"{PREFIX}*.jsonl")) if place.is_dir() else [place]
        for path in paths:
            try:
                with open(path, "rb") as file:
                    content = file.read(FILE_BYTES_MAX)
            except OSError:
                continue
            recording = parse(str(path), content)
            if recording is not None:
                recordings.append(recording)
    return recordings


def newest_job(recordings: List[Recording]) -> List[Recording]:
    """Those of the job that ended last."""
    return job_of(max(recordings, key=lambda each: each.ended), recordings) if recordings else []


def job_of(known: Recording, recordings: List[Recording]) -> List[Recording]:
    """This one, and those of its job: what has the same scheduler, and lived at the same time. What bpslaunch leaves
    says when its job began and whom it started: a job that was at the same port before is another."""
    is_launched = known.role == "launcher"
    if is_launched:
        started = {host_in(event) for event in known.find("ended")}
        recordings = [each for each in recordings if each.ended >= known.began or each.host in started]
    job, rest = [known], [each for each in recordings if each is not known]
    grown = True
    while grown:
        jobs = {each.job for each in job if is_launched or not each.is_lost}
        began, ended = min(each.began for each in job), max(each.ended for each in job)
        joined = [
            each
            for each in rest
            if (not jobs or each.job in jobs or (each.is_lost and not is_launched))
            and each.began <= ended + SLACK_S
            and each.ended >= began - SLACK_S
        ]
        job += joined
        rest = [each for each in rest if each not in joined]
        grown = bool(joined)
    return sorted(job, key=lambda each: (each.began, each.path))


def host_in(event: Event) -> str:
    """The process ("host:pid") that the launcher speaks of."""
    return f"{text_of(event.fields, 'host') or text_of(event.recording.header, 'host')}:{event.number or 0}"
