"""bps trace: what the timelines of a job's processes (BYTEPS_TRACE_ON=1) say together.

    bps trace merge DIR... -o trace.json     one file for Perfetto or chrome://tracing, on the scheduler's clock
    bps trace top DIR...                     where the time goes, in words: the slowest stage and the slowest peer

read(places) -> [Process] and summarize(processes) -> Summary are for programs. docs/timeline.md is the manual, and says
what the stages mean.
"""

from __future__ import annotations

import argparse
import heapq
import json
import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, TextIO, Tuple

PREFIX = "Comm."
ROLES = ("worker", "relay", "server")
SAME_CLOCK_NS = 1_000_000  # processes of one host whose clocks' zeros are so near have the same clock
SAME_JOB_S = 60.0
STANDS_OUT = 1.5  # a peer is named when its time is so many times the mean of the others'


Place = Tuple[str, int, int]  # of a part: tensor, part, round


# ---- reading


@dataclass
class Copies:
    """What a part of a tensor on a GPU waited for there, at its worker."""

    entered: float  # its round begins
    ready: float  # the GPU has done what was before it
    lent: float  # it has memory of the pinned pool
    first_out: float  # its first chunk is in host memory, as far as it has to be
    last_out: float
    first_in: float  # the copy of its answer begins
    last_in: float


class Busy(NamedTuple):
    """A stretch of time of which so much was used."""

    begin: float
    end: float
    busy: float


@dataclass
class Coding:
    """What coding a part of a tensor took, which travels coded: in `encode` what is pushed, in `decode` the answers.
    None: there was nothing of it."""

    tensor: str
    part: int
    round: int
    encode: Optional[Busy]
    decode: Optional[Busy]


@dataclass
class Part:
    """A part of a tensor in one round at one worker, or at the relay that takes it to a server; times in microseconds
    of the scheduler's clock."""

    rank: int
    tensor: str
    part: int
    round: int
    server: Optional[int]
    relay: Optional[int]  # of this rank, to whom a worker sends it instead of to a server
    queued: float
    first_sent: float
    last_sent: float
    first_answer: float
    last_answer: float
    copies: Optional[Copies] = None

    @property
    def place(self) -> Place:
        return (self.tensor, self.part, self.round)

    @property
    def peer(self) -> str:
        return f"server {self.server}" if self.relay is None else f"relay {self.relay}"


@dataclass
class Operation:
    tensor: str
    round: int
    submitted: float
    started: float
    done: float
    bytes: int


@dataclass
class Sum:
    """The same part at its server, or at its relay."""

    tensor: str
    part: int
    round: int
    first_came: float
    last_came: float
    first_worker: int
    last_worker: int
    late: float  # how long after the last but one the last worker's contribution came
    first_frame: float
    done: float
    busy: float
    bytes: int


@dataclass
class Spread:
    """The servers' answer to a part, at the relay that gives it to the workers of its machine."""

    tensor: str
    part: int
    round: int
    began: float
    ended: float


@dataclass
class Backlog:
    worker: int
    began: float
    ended: float


@dataclass
class Mark:
    """Something that happened to the job then: a loss that it has survived."""

    at: float
    name: str
    number: int  # of those of this name, which one: the same in all processes
    text: str


@dataclass
class Process:
    path: str
    role: str
    rank: int
    host: str
    pid: int
    scheduler: str
    wall_zero_ns: int
    dropped: int
    offset_ns: Optional[int]  # to the scheduler's clock, as it measured it
    error_ns: int
    shift_us: float = 0.0  # what is added to its times
    parts: List[Part] = field(default_factory=list)
    operations: List[Operation] = field(default_factory=list)
    sums: List[Sum] = field(default_factory=list)
    spreads: List[Spread] = field(default_factory=list)
    backlogs: List[Backlog] = field(default_factory=list)
    marks: List[Mark] = field(default_factory=list)  # in order of time
    codings: List[Coding] = field(default_factory=list)
    _events: List[Dict[str, Any]] = field(default_factory=list)

    @property
    def title(self) -> str:
        return f"{self.role} {self.rank}"

    def span_s(self) -> Tuple[float, float]:
        """First and last event, as time of day."""
        times = [event["ts"] for event in self._events] or [0.0]
        return (self.wall_zero_ns / 1e9 + min(times) / 1e6, self.wall_zero_ns / 1e9 + max(times) / 1e6)


class Unreadable(Exception):
    pass


def read(places: Iterable[str]) -> List[Process]:
    """All processes of the newest job in these folders (or files), workers first, then the relays in their processes;
    their times are aligned."""
    found: Dict[Tuple[str, int, str, int], Process] = {}
    for place in map(Path, places):
        if not place.exists():
            raise Unreadable(f"{place} does not exist")
        paths = sorted(place.rglob("comm*.json")) if place.is_dir() else [place]
        for path in paths:
            process = _read_file(path)
            if process is not None:  # a worker may have written two files, of the same content
                found[(process.role, process.rank, process.host, process.pid)] = process
    processes = _newest_job(list(found.values()))
    _align(processes)
    for process in processes:
        _take_events(process)
    return sorted(processes, key=lambda each: (ROLES.index(each.role), each.rank))


def _read_file(path: Path) -> Optional[Process]:
    try:
        content = json.loads(path.read_bytes().decode("utf-8", "replace"))
    except (OSError, ValueError) as error:
        raise Unreadable(f"{path} is no timeline: {error}") from error
    about = content.get("otherData", {}) if isinstance(content, dict) else {}
    if about.get("byteps_timeline") != 1 or about.get("role") not in ROLES:
        return None
    return Process(
        path=str(path),
        role=about["role"],
        rank=int(about.get("rank", 0)),
        host=about.get("host", ""),
        pid=int(about["pid"]),
        scheduler=about.get("scheduler", ""),
        wall_zero_ns=int(about["wall_zero_ns"]),
        dropped=int(about.get("dropped", 0)),
        offset_ns=about.get("clock_offset_ns"),
        error_ns=int(about.get("clock_error_ns", 0)),
        _events=content["traceEvents"],
    )


def _newest_job(processes: List[Process]) -> List[Process]:
    """A folder may have files of an earlier job of another size."""
    if not processes:
        return []
    newest = max(processes, key=lambda each: each.span_s()[1])
    began, ended = newest.span_s()
    return [
        each
        for each in processes
        if each.scheduler == newest.scheduler
        and each.span_s()[0] <= ended + SAME_JOB_S
        and each.span_s()[1] >= began - SAME_JOB_S
    ]


def _align(processes: List[Process]) -> None:
    """Shifts everything to the scheduler's clock. Who shares a clock takes the best of their estimates; who has none
    takes the time of day."""
    zeros = []  # the time of day at the zero of the scheduler's clock
    for process in processes:
        known = [
            (each.error_ns, each.offset_ns)
            for each in processes
            if each.offset_ns is not None
            and each.host == process.host
            and abs(each.wall_zero_ns - process.wall_zero_ns) <= SAME_CLOCK_NS
        ]
        if known:
            _, offset_ns = min(known, key=lambda estimate: estimate[0])
            process.shift_us = offset_ns / 1e3
            zeros.append(process.wall_zero_ns - offset_ns)
    zero = statistics.median(zeros) if zeros else min((each.wall_zero_ns for each in processes), default=0)
    for process in processes:
        if process.shift_us == 0.0 and process.offset_ns is None:
            process.shift_us = (process.wall_zero_ns - zero) / 1e3


def _take_events(process: Process) -> None:
    shift = process.shift_us
    stages: Dict[Tuple[str, int, int], Dict[str, Tuple[float, float, Dict[str, Any]]]] = defaultdict(dict)
    for event in process._events:
        args = event.get("args", {})
        begin = event["ts"] + shift
        if event["name"] == PREFIX + "MARK" and event["ph"] == "i":
            process.marks.append(Mark(begin, args["name"], args["number"], args["text"]))
            continue
        end = begin + event["dur"]
        if event["name"] == PREFIX + "BACKLOG" and event["pid"] == "Comm":
            process.backlogs.append(Backlog(args["worker"], begin, end))
            continue
        tensor = event["pid"][len(PREFIX) :]
        if event["tid"] == "total":
            process.operations.append(
                Operation(tensor, args["round"], begin, args["started"] + shift, end, args["bytes"])
            )
        else:
            stage = event["name"].rpartition(".")[2]
            stages[(tensor, int(event["tid"]), args["round"])][stage] = (begin, end, args)
    process._events = []
    for (tensor, part, number), seen in stages.items():
        if "PUSH" in seen and "PULL" in seen and "QUEUED" in seen:
            first_sent, last_sent, args = seen["PUSH"]
            first_answer = args["first_answer"] + shift
            process.parts.append(
                Part(process.rank, tensor, part, number, args.get("server"), args.get("relay"), seen["QUEUED"][0],
                     first_sent, last_sent, first_answer, seen["PULL"][1], _copies(seen, shift))
            )  # fmt: skip
        if "ENCODE" in seen or "DECODE" in seen:
            encode, decode = (_busy(seen.get(stage)) for stage in ("ENCODE", "DECODE"))
            process.codings.append(Coding(tensor, part, number, encode, decode))
        if "REDUCE" in seen:
            first_came, done, args = seen["REDUCE"]
            process.sums.append(
                Sum(tensor, part, number, first_came, args["last_came"] + shift, args["first_worker"],
                    args["last_worker"], args.get("late", 0.0), args["first_frame"] + shift, done, args["busy"],
                    args["bytes"])
            )  # fmt: skip
        if "SPREAD" in seen:
            process.spreads.append(Spread(tensor, part, number, *seen["SPREAD"][:2]))
        if "GATHER" in seen and "SUM" in seen:
            first_came, last_came, who = seen["GATHER"]
            _, done, how = seen["SUM"]
            process.sums.append(
                Sum(tensor, part, number, first_came, last_came, who["first_worker"], who["last_worker"],
                    who.get("late", 0.0), how["first_frame"] + shift, done, how["busy"], how["bytes"])
            )  # fmt: skip


def _busy(stage: Optional[Tuple[float, float, Dict[str, Any]]]) -> Optional[Busy]:
    return Busy(stage[0], stage[1], stage[2]["busy"]) if stage else None


def _copies(seen: Dict[str, Tuple[float, float, Dict[str, Any]]], shift: float) -> Optional[Copies]:
    if "STREAM" not in seen or "SLAB" not in seen:
        return None
    entered, ready, _ = seen["STREAM"]
    lent = seen["SLAB"][1]
    first_out = last_out = lent
    if "COPY_OUT" in seen:
        _, last_out, args = seen["COPY_OUT"]
        first_out = args["first_chunk"] + shift
    answered = seen["PULL"][1]
    first_in, last_in, _ = seen.get("COPY_IN", (answered, answered, {}))
    return Copies(entered, ready, lent, first_out, last_out, first_in, last_in)


# ---- merging


class Slice(NamedTuple):
    begin: float
    end: float
    name: str
    args: Dict[str, Any]


class _Output:
    """Events of one process, on tracks that hold slices which do not overlap."""

    def __init__(self, pid: int, process: Process):
        self.pid = pid
        self._next_tid = 1
        self.events: List[Dict[str, Any]] = []
        self._about("process_name", 0, {"name": f"{process.title} ({process.host}:{process.pid})"})
        self._about("process_sort_index", 0, {"sort_index": pid})

    def _about(self, name: str, tid: int, args: Dict[str, Any]) -> None:
        self.events.append({"ph": "M", "name": name, "pid": self.pid, "tid": tid, "args": args})

    def _track(self, title: str) -> int:
        tid = self._next_tid
        self._next_tid += 1
        self._about("thread_name", tid, {"name": title})
        self._about("thread_sort_index", tid, {"sort_index": tid})
        return tid

    def add(self, title: str, groups: Iterable[Sequence[Slice]]) -> None:
        """Each group stays on one track: its slices follow each other. As many tracks as groups overlap."""
        groups = sorted((each for each in groups if each), key=lambda each: each[0].begin)
        busy: List[Tuple[float, int]] = []  # end of the last slice, track
        free: List[int] = []
        tracks: List[List[Slice]] = []
        for group in groups:
            while busy and busy[0][0] <= group[0].begin:
                heapq.heappush(free, heapq.heappop(busy)[1])
            if free:
                track = heapq.heappop(free)
            else:
                track = len(tracks)
                tracks.append([])
            tracks[track] += group
            heapq.heappush(busy, (group[-1].end, track))
        for slices in tracks:
            tid = self._track(title)
            for each in slices:
                self.events.append(
                    {
                        "ph": "X", "cat": "Comm", "name": each.name, "pid": self.pid, "tid": tid,
                        "ts": round(each.begin, 3), "dur": round(max(0.0, each.end - each.begin), 3), "args": each.args,
                    }
                )  # fmt: skip


    def add_marks(self, title: str, marks: Sequence[Slice]) -> None:
        """Instants, on a track of their own."""
        if not marks:
            return
        tid = self._track(title)
        self.events += [
            {"ph": "i", "s": "p", "cat": "Comm", "name": each.name, "pid": self.pid, "tid": tid,
             "ts": round(each.begin, 3), "args": each.args}
            for each in marks
        ]  # fmt: skip


def merge(processes: Sequence[Process]) -> Dict[str, Any]:
    """One trace of all, in Chrome's format: a process row for each worker, relay and server; time begins at the first
    event."""
    starts = [part.copies.entered if part.copies else part.queued for each in processes for part in each.parts]
    starts += [op.submitted for each in processes for op in each.operations]
    starts += [one.first_came for each in processes for one in each.sums]
    starts += [one.encode.begin for each in processes for one in each.codings if one.encode]
    ends = [end for each in processes for end in _ends(each)]
    zero, last = min(starts, default=0.0), max(ends, default=0.0)
    events: List[Dict[str, Any]] = []
    for pid, process in enumerate(processes, start=1):
        output = _Output(pid, process)
        marks = [each for each in process.marks if zero <= each.at <= last]  # others would stretch the picture
        output.add_marks("job", [Slice(m.at - zero, m.at - zero, m.name, {"text": m.text}) for m in marks])
        if process.role == "worker":
            _merge_operations(output, process, zero)
        else:
            _merge_sums(output, process, zero)
        _merge_copies(output, process, zero)
        _merge_codings(output, process, zero)
        _merge_ways(output, process, zero)
        output.add(
            "spread",
            [[Slice(each.began - zero, each.ended - zero, f"spread {each.tensor}",
                    {"tensor": each.tensor, "part": each.part, "round": each.round})] for each in process.spreads],
        )  # fmt: skip
        events += output.events
    clocks = {
        each.title: {"shift_us": round(each.shift_us, 3), "offset_ns": each.offset_ns, "error_ns": each.error_ns}
        for each in processes
    }
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"clocks": clocks}}


def _ends(process: Process) -> List[float]:
    sums = [one.done for one in process.sums]
    return [part.last_answer for part in process.parts] + [op.done for op in process.operations] + sums


def _merge_operations(output: _Output, process: Process, zero: float) -> None:
    output.add(
        "tensors",
        [
            [Slice(op.submitted - zero, op.done - zero, op.tensor, {"round": op.round, "bytes": op.bytes})]
            for op in process.operations
        ],
    )


def _merge_ways(output: _Output, process: Process, zero: float) -> None:
    by_peer: Dict[str, List[Part]] = defaultdict(list)
    for part in process.parts:
        by_peer[part.peer].append(part)
    for peer in sorted(by_peer, key=_name_order):
        sent, queued = [], []
        for part in by_peer[peer]:
            args = {"tensor": part.tensor, "part": part.part, "round": part.round}
            answers = max(part.last_sent, part.first_answer)
            marks = [
                ("push", part.first_sent, part.last_sent),
                ("wait", part.last_sent, answers),
                ("pull", answers, part.last_answer),
            ]
            sent.append(
                [
                    Slice(b - zero, e - zero, f"{stage} {part.tensor}", args)
                    for stage, b, e in marks
                    if e > b or stage == "push"
                ]
            )
            queued.append([Slice(part.queued - zero, part.first_sent - zero, f"queued {part.tensor}", args)])
        output.add(f"{peer}: on the way", sent)
        output.add(f"{peer}: at the gate", queued)


def _merge_copies(output: _Output, process: Process, zero: float) -> None:
    outs, ins = [], []
    for part in process.parts:
        if part.copies is None:
            continue
        args = {"tensor": part.tensor, "part": part.part, "round": part.round}
        at = part.copies
        marks = [("stream", at.entered, at.ready), ("slab", at.ready, at.lent), ("copy out", at.lent, at.last_out)]
        outs.append([Slice(b - zero, e - zero, f"{stage} {part.tensor}", args) for stage, b, e in marks])
        ins.append([Slice(at.first_in - zero, at.last_in - zero, f"copy in {part.tensor}", args)])
    output.add("GPU: to the host", outs)
    output.add("GPU: back", ins)


def _merge_codings(output: _Output, process: Process, zero: float) -> None:
    for stage in ("encode", "decode"):
        groups = []
        for each in process.codings:
            took: Optional[Busy] = getattr(each, stage)
            if took is not None:
                args = {"tensor": each.tensor, "part": each.part, "round": each.round, "busy_us": took.busy}
                groups.append([Slice(took.begin - zero, took.end - zero, f"{stage} {each.tensor}", args)])
        output.add(stage, groups)


def _name_order(name: str) -> Tuple[str, int]:
    role, _, rank = name.partition(" ")
    return (role, int(rank) if rank.isdigit() else -1)


def _merge_sums(output: _Output, process: Process, zero: float) -> None:
    groups = []
    for one in process.sums:
        args = {
            "tensor": one.tensor, "part": one.part, "round": one.round, "bytes": one.bytes, "busy_us": one.busy,
            "first_worker": one.first_worker, "last_worker": one.last_worker, "late_us": one.late,
        }  # fmt: skip
        # A relay hands on frames that are summed; so its time has no border between the two.
        cuts = [("reduce", one.done)] if process.role == "relay" else [("gather", one.last_came), ("sum", one.done)]
        begins = [one.first_came, *(end for _, end in cuts)]
        groups.append([Slice(b - zero, e - zero, f"{stage} {one.tensor}", args) for (stage, e), b in zip(cuts, begins)])
    output.add("reduce" if process.role == "relay" else "sums", groups)
    for worker in sorted({each.worker for each in process.backlogs}):
        output.add(
            f"answers wait for worker {worker}",
            [[Slice(b.began - zero, b.ended - zero, "backlog", {})] for b in process.backlogs if b.worker == worker],
        )


# ---- where the time goes

STAGES = {
    "queued": "queued at the gate",
    "others": "waiting for other workers",
    "server": "on the way to a server and back",
    "transfer": "transferring",
}
# Where the workers of a machine sum first, at relays. Where these sum alone there are none of SERVED.
RELAYED = {
    "queued": "queued at the gate",
    "reduce": "reduce (others of the machine)",
    "push": "push (to the servers)",
    "server": "server (other machines, its sum)",
    "pull": "pull (from the servers)",
    "spread": "spread (to those of the machine)",
}
SERVED = ("push", "server", "pull")
# What those of tensors on GPUs have before and behind them.
BEFORE = {
    "stream": "stream (the GPU's work before it)",
    "slab": "slab (pinned memory)",
    "copy_out": "copy out (from the GPU)",
}
BEHIND = {"copy_in": "copy in (to the GPU)"}
# Who may have much more of a stage than others, if nobody was waited for.
NAMED = {
    "queued": ("relay", "worker"),
    "push": ("server", "relay"),
    "server": ("server",),
    "pull": ("server", "relay"),
    "spread": ("relay", "worker"),
    **dict.fromkeys([*BEFORE, *BEHIND], ("worker",)),
}
LAST_SHARE = 0.25  # who was last is named when that was so much of a tensor's time
TENSORS_MAX = 10  # lines of tensors in text


class Piece(NamedTuple):
    """A stretch of time in which a worker waited for one of its servers or relays."""

    stage: str
    begin: float
    end: float
    part: Part
    late_worker: Optional[int] = None
    server: Optional[int] = None


@dataclass
class StageTotal:
    stage: str
    total_us: float
    share: float
    tensor: str  # the one with the most of it
    peer: str  # "worker 1", "server 0", "relay 2"; empty when none stands out
    pieces: int


@dataclass
class TensorTotal:
    tensor: str
    total_us: float
    shares: Dict[str, float]  # by stage
    last: str  # "worker 1", "server 0": for whom it waited most; empty when that was not long


@dataclass
class CodingTotal:
    """What coding has taken of a process's time, within its stages."""

    process: str  # "worker 1", "relay 0"
    encode_us: float
    decode_us: float
    share: float  # of the time from its first part to its last answer


@dataclass
class Summary:
    stages: List[StageTotal]
    sentence: str
    tensors: List[TensorTotal]  # the slowest first
    titles: Dict[str, str]  # of all stages, in the order in which a part passes them
    codings: List[CodingTotal] = field(default_factory=list)  # the most first; empty: nothing travelled coded

    @property
    def slowest(self) -> StageTotal:
        return self.stages[0]


class _Records:
    """What all processes know of the parts, to be looked up."""

    def __init__(self, processes: Sequence[Process]):
        self.processes = processes
        self.workers = [each.rank for each in processes if each.role == "worker"]
        self.parts = [part for each in processes if each.role == "worker" for part in each.parts]
        relays = [each for each in processes if each.role == "relay"]
        self.sums = {(one.tensor, one.part, one.round): one
                     for each in processes if each.role == "server" for one in each.sums}  # fmt: skip
        self.reduced = {(each.rank, (one.tensor, one.part, one.round)): one for each in relays for one in each.sums}
        self.carried = {(each.rank, part.place): part for each in relays for part in each.parts}
        self.is_relayed = any(part.relay is not None for part in self.parts)
        self.has_servers = not self.is_relayed or bool(self.sums) or bool(self.carried)
        # When each worker has sent a part to this relay (None: to its server), and each relay to the server.
        self.sent: Dict[Tuple[Optional[int], Place], Dict[int, float]] = defaultdict(dict)
        for part in self.parts:
            self.sent[(part.relay, part.place)][part.rank] = part.first_sent
        self.carried_at: Dict[Place, Dict[int, float]] = defaultdict(dict)
        for (rank, place), part in self.carried.items():
            self.carried_at[place][rank] = part.first_sent

    @property
    def titles(self) -> Dict[str, str]:
        titles = STAGES
        if self.is_relayed:
            titles = {stage: title for stage, title in RELAYED.items() if self.has_servers or stage not in SERVED}
        if any(part.copies for part in self.parts):
            return {**BEFORE, **titles, **BEHIND}
        return titles

    def ways_to_servers(self) -> List[Part]:
        return list(self.carried.values()) if self.is_relayed else self.parts

    def sums_with(self, rank: int) -> List[Sum]:
        """Where this worker was late, if anywhere: those of the relays of its machine, or of the servers."""
        relays = {part.relay for part in self.parts if part.rank == rank}
        here = [one for (relay, _), one in self.reduced.items() if relay in relays]
        both = [list(self.sums.values()), here]
        return max(both, key=lambda sums: sum(one.late for one in sums if one.last_worker == rank))


def _pieces(parts: List[Part], records: _Records) -> List[Piece]:
    """What one worker waited for at one server or relay, without overlap: the oldest part on the way counts, because
    those behind it wait for its credit. While nothing is on the way, what is answered and not on its GPU yet counts,
    for it keeps memory that others wait for; then what the next part waits for before it is sent."""
    pieces: List[Piece] = []
    covered = float("-inf")
    copied: Optional[Part] = None  # the last one to be on its GPU again

    def cover(stages: Iterable[Piece]) -> None:
        nonlocal covered
        for piece in stages:
            if piece.end > max(piece.begin, covered):
                pieces.append(piece._replace(begin=max(piece.begin, covered)))
                covered = piece.end

    for part in sorted(parts, key=lambda each: each.first_sent):
        cover(_behind(copied, until=part.first_sent))
        cover(_before(part))
        covered = max(covered, part.first_sent)
        cover(_marks(part, records))
        covered = max(covered, part.last_answer)
        if part.copies and (copied is None or part.copies.last_in > _last_in(copied)):
            copied = part
    cover(_behind(copied))
    return pieces


def _before(part: Part) -> List[Piece]:
    """The stages of a part that is not sent yet, one after the other."""
    at, pieces = part.queued, []
    if part.copies is not None:
        copies = part.copies
        cuts = [("stream", copies.ready), ("slab", copies.lent), ("copy_out", copies.first_out)]
        at = copies.entered
        for stage, until in cuts:
            pieces.append(Piece(stage, at, until, part))
            at = until
    return [*pieces, Piece("queued", at, part.first_sent, part, server=part.server)]


def _behind(part: Optional[Part], until: float = float("inf")) -> List[Piece]:
    return [Piece("copy_in", part.last_answer, min(until, _last_in(part)), part)] if part else []


def _last_in(part: Part) -> float:
    return part.copies.last_in if part.copies else part.last_answer


def _marks(part: Part, records: _Records) -> List[Piece]:
    """The stages of a part on the way, one after the other: each from the end of the one before."""
    cuts = _cuts(part, records) if part.relay is None else _cuts_by_relay(part, records)
    carried = part if part.relay is None else records.carried.get((part.relay, part.place))
    pieces, at = [], part.first_sent
    for stage, until, late_worker in cuts:
        end = min(max(at, until), part.last_answer)
        if end > at:
            pieces.append(Piece(stage, at, end, part, late_worker, carried.server if carried else None))
        at = end
    return pieces


Cut = Tuple[str, float, Optional[int]]  # a stage, until when it lasts, and the worker for whom it waits


def _cuts(part: Part, records: _Records) -> List[Cut]:
    one = records.sums.get(part.place)
    late_until, late_worker = _late(part, one, records.sent[(None, part.place)])
    return [
        ("others", min(late_until, part.first_answer), late_worker),
        ("server", part.first_answer, None),
        *_still_copied(part),
        ("transfer", part.last_answer, None),
    ]


def _cuts_by_relay(part: Part, records: _Records) -> List[Cut]:
    """Frames follow each other through the stages, so these overlap. Until a first frame is where it has to go somebody
    is waited for; then a stage lasts from the last frame of the one before to its own."""
    assert part.relay is not None
    reduced = records.reduced.get((part.relay, part.place))
    carried = records.carried.get((part.relay, part.place))
    one = records.sums.get(part.place)
    late_until, late_worker = _late(part, reduced, records.sent[(part.relay, part.place)])
    cuts: List[Cut] = [("reduce", min(late_until, part.first_answer), late_worker), *_still_copied(part)]
    if reduced is not None:
        cuts.append(("reduce", reduced.first_frame, None))
    if carried is not None:
        late_until, leader = _late(carried, one, records.carried_at[part.place])
        late_worker = _late_there(carried, leader, records)
        cuts.append(("push", carried.first_sent, None))
        cuts.append(("server", min(late_until, carried.first_answer), late_worker))
    if reduced is not None:
        cuts.append(("reduce", reduced.done, None))
    if carried is not None:
        summed = carried.first_answer if one is None else min(one.done, carried.last_answer)
        cuts += [("push", carried.last_sent, None), ("server", summed, None), ("pull", carried.last_answer, None)]
    elif records.has_servers or reduced is None:  # it is not known when it was sent on, or summed
        cuts.append(("server" if records.has_servers else "reduce", part.first_answer, None))
    return [*cuts, ("spread", part.last_answer, None)]


def _still_copied(part: Part) -> List[Cut]:
    """Its first frames are on the way, and the last are not in host memory yet."""
    return [("copy_out", part.copies.last_out, None)] if part.copies else []


def _late(part: Part, one: Optional[Sum], sent: Dict[int, float]) -> Tuple[float, Optional[int]]:
    """Until when this part waited because another worker (or relay) had not sent its own, and who that was."""
    others = {rank: at for rank, at in sent.items() if rank != part.rank}
    if one is not None and one.last_worker != part.rank:
        return min(one.last_came, others.get(one.last_worker, one.last_came)), one.last_worker
    if one is None and others:
        last = max(others, key=lambda rank: others[rank])
        return others[last], last
    return part.first_sent, None


def _late_there(carried: Part, leader: Optional[int], records: _Records) -> Optional[int]:
    """Whom another machine waited for, whose leader was late: if it had not all of its workers' when others waited for
    it, for the last of these; otherwise its leader is late itself."""
    if leader is None:
        return None
    there = records.reduced.get((leader, carried.place))
    return there.last_worker if there is not None and there.last_came > carried.first_sent else leader


def summarize(processes: Sequence[Process]) -> Summary:
    records = _Records(processes)
    if not records.parts:
        raise Unreadable("no worker has recorded a part: did the job reach BYTEPS_TRACE_START_STEP?")
    links: Dict[Tuple[int, str], List[Part]] = defaultdict(list)
    for part in records.parts:
        links[(part.rank, part.peer)].append(part)
    pieces = [piece for link in links.values() for piece in _pieces(link, records)]
    whole = _total(pieces) or 1.0
    stages = []
    for stage in records.titles:
        mine = [piece for piece in pieces if piece.stage == stage]
        by_tensor = _totals(mine, lambda piece: piece.part.tensor)
        tensor = max(by_tensor, key=lambda name: by_tensor[name]) if by_tensor else ""
        peer = _late_peer(mine, records) or _busy_peer(mine, records)
        stages.append(StageTotal(stage, _total(mine), _total(mine) / whole, tensor, peer, len(mine)))
    stages.sort(key=lambda each: -each.total_us)
    slowest = [piece for piece in pieces if piece.stage == stages[0].stage]
    sentence, tensors = _sentence(stages[0], slowest, records), _tensors(pieces, records)
    return Summary(stages, sentence, tensors, records.titles, _codings(processes))


def _codings(processes: Sequence[Process]) -> List[CodingTotal]:
    totals = []
    for process in processes:
        if not process.codings or not process.parts:
            continue
        whole = max(part.last_answer for part in process.parts) - min(part.queued for part in process.parts)
        encode_us = sum(each.encode.busy for each in process.codings if each.encode)
        decode_us = sum(each.decode.busy for each in process.codings if each.decode)
        share = (encode_us + decode_us) / max(whole, 1e-9)
        totals.append(CodingTotal(process.title, encode_us, decode_us, share))
    return sorted(totals, key=lambda each: -each.share)


def _tensors(pieces: List[Piece], records: _Records) -> List[TensorTotal]:
    by_tensor: Dict[str, List[Piece]] = defaultdict(list)
    for piece in pieces:
        by_tensor[piece.part.tensor].append(piece)
    totals = []
    for tensor, mine in by_tensor.items():
        whole = _total(mine) or 1.0
        by_stage = _totals(mine, lambda piece: piece.stage)
        last = _totals((piece for piece in mine if _last(piece)), _last)
        name = max(last, key=lambda each: last[each]) if last else ""
        shares = {stage: by_stage.get(stage, 0.0) / whole for stage in records.titles}
        totals.append(TensorTotal(tensor, whole, shares, name if last.get(name, 0.0) >= LAST_SHARE * whole else ""))
    return sorted(totals, key=lambda each: -each.total_us)


def _last(piece: Piece) -> str:
    """For whom the part waited then; empty: for nobody."""
    if piece.late_worker is not None:
        return f"worker {piece.late_worker}"
    return f"server {piece.server}" if piece.stage == "server" and piece.server is not None else ""


def _total(pieces: Iterable[Piece]) -> float:
    return sum(piece.end - piece.begin for piece in pieces)


def _totals(pieces: Iterable[Piece], key: Any) -> Dict[Any, float]:
    totals: Dict[Any, float] = defaultdict(float)
    for piece in pieces:
        totals[key(piece)] += piece.end - piece.begin
    return totals


def _late_peer(pieces: List[Piece], records: _Records) -> str:
    """The worker for whom others waited much more than for the rest; only where they waited for workers mostly."""
    by_worker = _totals((piece for piece in pieces if piece.late_worker is not None), lambda piece: piece.late_worker)
    if 2 * sum(by_worker.values()) < _total(pieces):
        return ""
    return _outstanding("worker", by_worker, records.workers)[1]


def _busy_peer(pieces: List[Piece], records: _Records) -> str:
    """Who has much more of a stage than the others, as a server, a relay or a worker."""
    if not pieces or pieces[0].stage in ("others", "reduce"):
        return ""
    stage = pieces[0].stage
    roles = NAMED[stage] if records.is_relayed or stage not in STAGES else ("server", "worker")
    servers = {piece.server for piece in pieces if piece.server is not None}
    servers |= {each.rank for each in records.processes if each.role == "server"}
    relays = {piece.part.relay for piece in pieces if piece.part.relay is not None}
    candidates = {
        "server": _outstanding("server", _totals(pieces, lambda piece: piece.server), sorted(servers)),
        "relay": _outstanding("relay", _totals(pieces, lambda piece: piece.part.relay), sorted(relays)),
        "worker": _outstanding("worker", _totals(pieces, lambda piece: piece.part.rank), records.workers),
    }
    return max(candidates[role] for role in roles)[1]


def _outstanding(role: str, totals: Dict[Any, float], ranks: Sequence[int]) -> Tuple[float, str]:
    """How many times the mean of the others, and who; ("", when that is not much)."""
    if len(ranks) < 2 or not totals:
        return (0.0, "")
    top = max(ranks, key=lambda rank: totals.get(rank, 0.0))
    rest = [totals.get(rank, 0.0) for rank in ranks if rank != top]
    times = totals.get(top, 0.0) / max(statistics.mean(rest), 1e-9)
    return (times, f"{role} {top}") if times >= STANDS_OUT else (times, "")


def _sentence(slowest: StageTotal, pieces: List[Piece], records: _Records) -> str:
    text = f"Slowest: {records.titles[slowest.stage]}, {slowest.share:.0%} of the time"
    role, _, rank = slowest.peer.partition(" ")
    if not slowest.peer:
        return text + "; no peer stands out."
    if slowest.peer == _late_peer(pieces, records):
        return f"{text}; {slowest.peer} {_how_late(int(rank), records)}."
    if slowest.stage == "server" and role == "server":
        ways = [(part.server == int(rank), _way(part, records.sums)) for part in records.ways_to_servers()]
        mine = [way for is_its, way in ways if is_its]
        others = [way for is_its, way in ways if not is_its]
        return (
            f"{text}; {slowest.peer} answers {_ms(statistics.median(mine))} after the last contribution was sent "
            f"(median; longest {_ms(max(mine))}; the others {_ms(statistics.median(others))})."
        )
    return f"{text}; most of it at {slowest.peer}."


def _way(part: Part, sums: Dict[Place, Sum]) -> float:
    """From the first frame's sending to its answer, less the wait for other workers."""
    one = sums.get(part.place)
    waited = max(0.0, one.last_came - max(part.first_sent, one.first_came)) if one else 0.0
    if one is not None and one.last_worker == part.rank:
        waited = 0.0
    return max(0.0, part.first_answer - part.first_sent - waited)


def _how_late(rank: int, records: _Records) -> str:
    sums = records.sums_with(rank)
    late = [one.late for one in sums if one.last_worker == rank]
    if not late:
        return "sends its contributions after the others"
    last_share = len(late) / len(sums)
    text = (
        f"sends its contribution {_ms(statistics.median(late))} after the others (median; it is the last in "
        f"{last_share:.0%} of the parts)"
    )
    submitted: Dict[Tuple[str, int], Dict[int, float]] = defaultdict(dict)
    for process in records.processes:
        for op in process.operations if process.role == "worker" else ():
            submitted[(op.tensor, op.round)][process.rank] = op.submitted
    behind = [
        ranks[rank] - max(at for other, at in ranks.items() if other != rank)
        for ranks in submitted.values()
        if rank in ranks and len(ranks) > 1
    ]
    if not behind:
        return text
    if statistics.median(behind) >= statistics.median(late) / 2:
        return text + ", because it submits its tensors later: look at what it does between steps"
    return text + ", though it submits its tensors in time: look at its network card and its processor"


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1e3:.1f} ms"


def text_of(summary: Summary, processes: Sequence[Process]) -> str:
    counts = {role: sum(each.role == role for each in processes) for role in ROLES}
    records = _Records(processes)
    rounds = {(op.tensor, op.round) for each in processes if each.role == "worker" for op in each.operations}
    who = [f"{count} {role}s" for role, count in counts.items() if count or role == "worker"]
    lines = [
        f"{', '.join(who[:-1])}{' and ' if len(who) > 1 else ''}{who[-1]}, {len({tensor for tensor, _ in rounds})} "
        f"tensors, {len({number for _, number in rounds})} steps",
        "",
        f"{'stage':34} {'time':>11} {'share':>6}  {'slowest peer':14} slowest tensor",
    ]
    for each in summary.stages:
        lines.append(
            f"{summary.titles[each.stage]:34} {_ms(each.total_us):>11} {each.share:>6.0%}  {each.peer or '-':14} "
            f"{each.tensor or '-'}"
        )
    lines += ["", *_tensor_lines(summary), "", summary.sentence, *_coding_lines(summary), *_mark_lines(processes)]
    if records.has_servers and not counts["server"]:
        lines.append("(No server's timeline is here: copy theirs too, to tell late workers from slow servers better.)")
    if records.is_relayed and not counts["relay"]:
        lines.append("(No relay's timeline is here, without which reduce, push and pull cannot be told: copy "
                     "relay-<rank> of BYTEPS_TRACE_DIR too.)")  # fmt: skip
    dropped = sum(each.dropped for each in processes)
    if dropped:
        lines.append(f"({dropped} records are missing, because a timeline was full: trace fewer steps.)")
    return "\n".join(lines)


def _coding_lines(summary: Summary) -> List[str]:
    if not summary.codings:
        return []
    most = summary.codings[0]
    return [
        f"Coding, most of it at {most.process}: {_ms(most.encode_us)} for what it pushed and {_ms(most.decode_us)} for "
        f"answers, {most.share:.0%} of its time; it is within the stages above."
    ]


def _mark_lines(processes: Sequence[Process]) -> List[str]:
    """What the job survived while it was recorded, each once for all processes that tell of it."""
    operations = [op for each in processes for op in each.operations]
    if not operations:
        return []
    first, last = min(op.submitted for op in operations), max(op.done for op in operations)
    told: Dict[Tuple[str, int], Mark] = {}
    for mark in sorted((mark for each in processes for mark in each.marks), key=lambda mark: mark.at):
        if first <= mark.at <= last:
            told.setdefault((mark.name, mark.number), mark)
    return [f"Meanwhile: {mark.text}." for mark in told.values()]


def _tensor_lines(summary: Summary) -> List[str]:
    shown = summary.tensors[:TENSORS_MAX]
    lines = [f"{'tensor':34} {'time':>11} {' '.join(f'{stage:>8}' for stage in summary.titles)}  last"]
    for each in shown:
        shares = " ".join(f"{each.shares[stage]:>8.0%}" for stage in summary.titles)
        lines.append(f"{each.tensor:34} {_ms(each.total_us):>11} {shares}  {each.last or '-'}")
    if len(summary.tensors) > len(shown):
        lines.append(f"and {len(summary.tensors) - len(shown)} more; --json has all")
    return lines


# ---- the command


def main(arguments: Optional[Sequence[str]] = None, out: TextIO = sys.stdout) -> int:
    parser = argparse.ArgumentParser(
        prog="bps trace",
        description="Reads the timelines that a job's processes wrote with BYTEPS_TRACE_ON=1 (docs/timeline.md).",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    merged = commands.add_parser("merge", help="one trace of all processes, for Perfetto or chrome://tracing")
    merged.add_argument("places", nargs="+", metavar="DIR", help="BYTEPS_TRACE_DIR of each machine, or single files")
    merged.add_argument("-o", "--output", default="trace.json", help="default: trace.json")
    top = commands.add_parser("top", help="where the time goes: the slowest stage and peer")
    top.add_argument("places", nargs="+", metavar="DIR", help="BYTEPS_TRACE_DIR of each machine, or single files")
    top.add_argument("--json", action="store_true", help="for programs")
    chosen = parser.parse_args(arguments)
    try:
        processes = read(chosen.places)
        if not processes:
            raise Unreadable(f"no timeline in {' '.join(chosen.places)}: was BYTEPS_TRACE_ON=1 set for the job?")
        if chosen.command == "merge":
            Path(chosen.output).write_text(json.dumps(merge(processes)), encoding="utf-8")
            titles = ", ".join(each.title for each in processes)
            print(f"{chosen.output}: {titles}. Open it at https://ui.perfetto.dev or chrome://tracing", file=out)
            return 0
        summary = summarize(processes)
    except (Unreadable, OSError) as error:
        print(f"bps trace: {error}", file=sys.stderr)
        return 1
    if chosen.json:
        stages = [vars(each) for each in summary.stages]
        tensors = [vars(each) for each in summary.tensors]
        codings = [vars(each) for each in summary.codings]
        told = {"stages": stages, "tensors": tensors, "codings": codings, "sentence": summary.sentence}
        print(json.dumps(told), file=out)
    else:
        print(text_of(summary, processes), file=out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
