"""Which sums a lost worker is not in, where a job goes on without it (docs/recovery.md): the files of absences of
servers, or of workers whose relays sum alone.

    absences = read([folder])
    absences.absent("fc1.weight", 131)    # [(0, 4096, {2}), ...]: elements from, to, and who is not in their round 131

A round is the number of a use of the tensor's name, from 0. Elements that are not listed have all ranks in them.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Iterable, List, Set, Tuple

from byteps.recordings.fields import number_of, text_of

PREFIX = "byteps-absences-"
FILE_BYTES_MAX = 65 << 20  # a process writes 64 MiB and a line


@dataclass
class Absences:
    """Of one epoch of a job: the last that the files tell of."""

    scheduler: str = ""
    epoch: int = 0
    is_whole: bool = True  # no file was full
    # (tensor, first element, number of elements, worker): the first round without it
    since: Dict[Tuple[str, int, int, int], int] = field(default_factory=dict)

    def absent(self, tensor: str, round: int) -> List[Tuple[int, int, Set[int]]]:
        found: Dict[Tuple[int, int], Set[int]] = {}
        for (name, first, count, worker), since in self.since.items():
            if name == tensor and since <= round:
                found.setdefault((first, first + count), set()).add(worker)
        return sorted((first, last, workers) for (first, last), workers in found.items())

    def workers(self) -> List[int]:
        return sorted({worker for _, _, _, worker in self.since})

    def summary(self) -> List[str]:
        """A line for each lost worker."""
        lines = []
        for worker in self.workers():
            its = {key: since for key, since in self.since.items() if key[3] == worker}
            tensors = len({key[0] for key in its})
            rounds = sorted(set(its.values()))
            begin = f"round {rounds[0]}" if len(rounds) == 1 else f"rounds {rounds[0]} to {rounds[-1]}"
            lines.append(
                f"sums without worker {worker}: {len(its)} pieces of {tensors} tensor{'s' * (tensors != 1)}, "
                f"from {begin} on"
            )
        if not self.is_whole:
            lines.append("a list of such sums was full, and says no more")
        return lines


def read(places: Iterable[os.PathLike], scheduler: str = "") -> Absences:
    """What these folders and files say of the job with this scheduler's address; without one, of the newest."""
    jobs: Dict[str, List[Dict[str, Any]]] = {}
    newest, its = 0, scheduler
    for header, lines in map(_parse, _files(places)):
        address, written = text_of(header, "scheduler"), number_of(header, "wall_ns") or 0
        jobs.setdefault(address, []).extend(lines)
        if not scheduler and written >= newest:
            newest, its = written, address
    return _of(its, jobs.get(its, []))


def are_in(folder: Path) -> bool:
    """Whether a process has left any there."""
    return any(folder.glob(f"{PREFIX}*.jsonl"))


def _of(scheduler: str, lines: List[Dict[str, Any]]) -> Absences:
    absences = Absences(scheduler, max([0, *(number_of(each, "epoch") or 0 for each in lines)]))
    for each in lines:
        if "full" in each:
            absences.is_whole = False
        numbers = [number_of(each, name) for name in ("first", "count", "worker", "round")]
        if number_of(each, "epoch") != absences.epoch or None in numbers:
            continue
        first, count, worker, since = (number or 0 for number in numbers)
        key = (text_of(each, "tensor"), first, count, worker)
        absences.since[key] = min(since, absences.since.get(key, since))
    return absences


def _files(places: Iterable[os.PathLike]) -> List[Path]:
    found: List[Path] = []
    for place in map(Path, places):
        found += sorted(place.glob(f"{PREFIX}*.jsonl")) if place.is_dir() else [place]
    return [path for path in found if path.name.startswith(PREFIX)]


def _parse(path: Path) -> Tuple[Dict[str, Any], List[Dict[str, Any]]]:
    """The header and the lines; what is no JSON object (a line that was cut off by the end of its process) is not."""
    try:
        with open(path, "rb") as file:
            content = file.read(FILE_BYTES_MAX)
    except OSError:
        return {}, []
    objects = []
    for line in content.splitlines():
        try:
            each = json.loads(line)
        except ValueError:
            continue
        if isinstance(each, dict):
            objects.append(each)
    headers = [each for each in objects if "byteps_absences" in each]
    return (headers[0] if headers else {}), [each for each in objects if "byteps_absences" not in each]
