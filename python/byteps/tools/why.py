"""bps why: names the first cause of a job that failed, from what its flight recorders left.

A job that fails, fails everywhere: one process is the cause, all others say what they suffered. So the cause is found
by what follows from what, in this order:

1. suspects   what each recording says of its own end, whom it accuses, who vanished: each with a time
2. an accusation falls when the accused says itself what happened to it: a scheduler is unreachable because its port was
   taken, a worker is missing because its settings were wrong
3. what stood in the way of the start falls when the job was complete later
4. the earliest of the others is the cause. Processes of one machine share a clock; between machines the time of day
   decides, and only where two suspects have nothing to do with each other

explain(folder) -> Verdict is for programs, main() for people. docs/flight.md is the manual.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from byteps.tools import flight
from byteps.tools.flight import Event, Recording, host_in, title

TIMELINE_EVENTS = 20
QUIET = ("submit", "done", "barrier", "wanted", "declare", "start")  # not news in a timeline

SEEN = "bpslaunch saw"

MEMBER = r"(?P<role>worker|server|scheduler)(?: (?P<rank>\d+))? \((?P<host>[^() ]*)(?: at [^()]*)?\)"
DURATION = r"(?P<number>[\d.]+) (?P<unit>ms|s|min)"
UNIT_S = {"ms": 1e-3, "s": 1.0, "min": 60.0}

SILENT = re.compile(rf"{MEMBER} has said nothing for {DURATION}")
GONE = re.compile(rf"{MEMBER} has been gone for {DURATION}(?: \((?P<why>.*?)\) and the job)?")
SAID = re.compile(rf"{MEMBER}: (?P<what>.*)", re.DOTALL)
CUT_OFF = re.compile(rf"{MEMBER} at (?P<address>\S+?),? shard \d+ cannot be reached for {DURATION}(?:: (?P<why>.*))?")
ANEW = re.compile(rf"{MEMBER} was started anew while the job ran")
STOPPED = re.compile(rf"{MEMBER} was stopped while the job ran")
NO_SCHEDULER = re.compile(
    r"scheduler at (?P<address>\S+) (?:has been unreachable for|has said nothing for|unreachable since) "
    + DURATION
    + r"(?P<why>.*)"
)
REFUSED = re.compile(
    r"scheduler at (?P<address>\S+): every attempt to join was refused for " + DURATION + r"(?P<why>.*)", re.DOTALL
)
LEFT = re.compile(r"tensor (?P<tensor>.*) waits for worker (?P<rank>\d+), which has left")
STALLED = re.compile(r"all workers wait, and none can go on: ")
TOLD = re.compile(r"(a server|the scheduler) was told to stop")
MISSING = re.compile(r"gave up .*?waiting for (?P<who>.*?); here: ", re.DOTALL)
DESCRIPTORS = re.compile(r"too many open files|no file descriptors? left", re.IGNORECASE)
MEMORY = re.compile(r"out of memory|no memory|cannot allocate memory", re.IGNORECASE)
CORRUPT = re.compile(r"\bCRC|checksum|corrupt", re.IGNORECASE)


@dataclass
class Verdict:
    """What is thought to have happened first."""

    cause: str  # a sentence
    role: Optional[str] = None  # of whose fault or fate it was
    rank: Optional[int] = None
    host: str = ""  # "host:pid"
    when: Optional[float] = None  # seconds since 1970
    evidence: List[str] = field(default_factory=list)  # "file: what it says"
    remedy: str = ""
    timeline: List[str] = field(default_factory=list)
    is_found: bool = True

    @property
    def is_known_to_launcher(self) -> bool:
        """It says no more than what bpslaunch saw itself."""
        return bool(self.evidence) and SEEN in self.evidence[0]


@dataclass
class Suspect:
    when: float
    cause: str
    role: Optional[str] = None
    rank: Optional[int] = None
    host: str = ""
    evidence: List[str] = field(default_factory=list)
    remedy: str = ""
    is_own_word: bool = False  # the process says it of itself, or the launcher saw it
    is_of_start: bool = False  # it kept the job from beginning, so it is nothing once the job has begun
    is_of_old_age: bool = False  # like being told to stop: what others do to those that live on
    missing: Tuple[Tuple[str, int], ...] = ()  # those that never came, for an accusation of several

    def names(self, role: Optional[str], rank: Optional[int], host: str) -> bool:
        if self.missing:
            return any(role == r and rank in (None, n) for r, n in self.missing)
        if host and self.host:
            return host == self.host
        return role is not None and role == self.role and (rank == self.rank or None in (rank, self.rank))


def explain(*places: Any) -> Verdict:
    """The first cause of the newest job in these folders (or files)."""
    return analyse(flight.newest_job(flight.read(places)))


def analyse(recordings: List[Recording], timeline_events: int = TIMELINE_EVENTS) -> Verdict:
    """The same for what one job left. Pure."""
    if not recordings:
        return Verdict("there is no recording here: no process has left its last events", is_found=False)
    suspects = list(find_suspects(recordings))
    suspect = choose(suspects, began_at(recordings))
    if suspect is None:
        names = ", ".join(each.title for each in recordings)
        verdict = Verdict(f"nothing in the recordings of {names} says how it began", is_found=False)
        verdict.evidence = [said(each) for each in recordings if each.text]
        return verdict
    verdict = Verdict(suspect.cause, suspect.role, suspect.rank, suspect.host, suspect.when)
    verdict.evidence = with_others(suspect, suspects)
    verdict.remedy = suspect.remedy
    verdict.timeline = timeline(recordings, suspect.when, timeline_events)
    return verdict


def began_at(recordings: List[Recording]) -> Optional[float]:
    """When the job was last complete; None when it never was."""
    rosters = [event.when for each in recordings for event in each.find("received", "Roster")]
    rosters += [event.when for each in recordings for event in each.find("sent", "Roster")]
    return max(rosters, default=None)


def choose(suspects: List[Suspect], began: Optional[float]) -> Optional[Suspect]:
    standing = [each for each in suspects if not (each.is_of_start and began is not None and each.when < began)]
    own = [each for each in standing if each.is_own_word]

    def falls(accusation: Suspect) -> bool:
        return not accusation.is_own_word and any(
            accusation.names(each.role, each.rank, each.host) and not each.is_of_old_age for each in own
        )

    left = [each for each in standing if not falls(each)]
    return min(left, key=lambda each: (each.when, each.is_of_old_age, not each.is_own_word), default=None)


# ---------------------------------------------------------------------------- suspects


def find_suspects(recordings: List[Recording]) -> Iterator[Suspect]:
    for recording in recordings:
        if recording.role == "launcher":
            yield from seen_by_launcher(recording, recordings)
            continue
        for rule in RULES:
            suspect = rule(recording, recordings)
            if suspect is not None:
                yield suspect
        if recording.role == "scheduler":
            yield from vanished(recording, recordings)


def own(recording: Recording, when: float, cause: str, remedy: str, saying: str = "", **more: Any) -> Suspect:
    return Suspect(
        when,
        cause,
        recording.role,
        recording.rank,
        recording.host,
        [f"{name_of(recording)}: {saying}" if saying else said(recording)],
        remedy,
        is_own_word=True,
        **more,
    )


def bad_settings(recording: Recording, _: List[Recording]) -> Optional[Suspect]:
    if recording.how != "settings" or DESCRIPTORS.search(recording.text):
        return None
    cause = f"{recording.title} could not start, its settings are wrong: {recording.text}"
    return own(recording, recording.ended, cause, "Correct the variable that the message names.", is_of_start=True)


def port_in_use(recording: Recording, _: List[Recording]) -> Optional[Suspect]:
    if recording.how not in ("port", "network") or DESCRIPTORS.search(recording.text):
        return None
    cause = f"{recording.title} could not start: {recording.text}"
    remedy = "Choose another port, or end the process that has it (ss -ltnp shows it)."
    if recording.how == "network":
        remedy = "The operating system refused it, see its words."
    return own(recording, recording.ended, cause, remedy, is_of_start=True)


def raised(recording: Recording, _: List[Recording]) -> Optional[Suspect]:
    """The program on this rank ended with an exception that was not ours."""
    for event in recording.find("raised"):
        if event.text.startswith("KeyboardInterrupt"):
            return own(
                recording, event.when, f"{recording.title} was interrupted (Ctrl-C, SIGINT)", "Nothing is wrong."
            )
        cause = f"the program on {recording.title} raised {event.text}"
        return own(recording, event.when, cause, f"Look at the traceback of {title(recording.role, recording.rank)}.")
    return None


def signalled(recording: Recording, _: List[Recording]) -> Optional[Suspect]:
    for event in recording.find("signal"):
        cause = f"{recording.title} was told to stop by {event.name or 'a signal'}"
        remedy = "Find who sent it: a person, the batch system, the launcher after another process had failed."
        return own(recording, event.when, cause, remedy, is_of_old_age=True)
    return None


def mismatch(recording: Recording, _: List[Recording]) -> Optional[Suspect]:
    """Ranks disagree about a tensor, or a server has no memory for one: its operations ended with that."""
    if recording.how != "operation" or recording.code not in ("Mismatch", "System"):
        return None
    when = recording.when_first("mismatch", "failed")
    who = re.search(r"(?P<role>server) (?P<rank>\d+)", recording.text) if recording.code == "System" else None
    remedy = "Make all ranks give this tensor the same shape, dtype and operation."
    if recording.code == "System":
        remedy = "Give the servers more memory, or the job more servers."
    return Suspect(
        when,
        recording.text,
        who["role"] if who else "server" if recording.code == "System" else "worker",
        int(who["rank"]) if who else None,
        evidence=[said(recording)],
        remedy=remedy,
        is_own_word=True,
    )


def stalled(recording: Recording, _: List[Recording]) -> Optional[Suspect]:
    """All wait for each other: the ranks submit different tensors."""
    if not STALLED.search(recording.text):
        return None
    remedy = "Make all ranks submit the same tensors and reach the same barriers, in any order."
    return Suspect(fail_time(recording), recording.text, "worker", None, "", [said(recording)], remedy)


def left_early(recording: Recording, recordings: List[Recording]) -> Optional[Suspect]:
    texts = [recording.text] + [event.text for event in recording.find("failed")]
    texts += [event.text for event in recording.find("done")]
    for text in texts:
        found = LEFT.match(text) or re.match(r"worker (?P<rank>\d+) has left the job: a barrier", text)
        if not found:
            continue
        rank = int(found["rank"])
        leaves = [event.when for event in recording.find("received", "Leave") if f"worker {rank}," in event.text]
        waited = (
            f"still waited for it in tensor {found['tensor']}"
            if "tensor" in found.groupdict()
            else "still met at barriers"
        )
        return Suspect(
            leaves[0] if leaves else recording.when_first("failed"),
            f"{known(recordings, 'worker', rank)} left the job while {title(recording.role, recording.rank)} {waited}",
            "worker",
            rank,
            host_of(recordings, "worker", rank),
            [said(recording)],
            f"Look at the output of worker {rank}: it ended early, or had fewer steps than the others.",
        )
    return None


def refused(recording: Recording, _: List[Recording]) -> Optional[Suspect]:
    found = REFUSED.search(recording.text)
    if not found:
        return None
    if DESCRIPTORS.search(found["why"]) and "refused by it" in found["why"]:
        cause = f"the scheduler at {found['address']} has no file descriptors left: it refused {recording.title}"
        remedy = "Raise the scheduler's limit: ulimit -n."
        return Suspect(recording.ended, cause, "scheduler", None, "", [said(recording)], remedy, is_of_start=True)
    when = next((e.when for e in recording.find("down") if e.role == "scheduler"), recording.ended)
    cause = f"{recording.title} was refused by the scheduler at {found['address']}{found['why']}"
    remedy = "Give all processes of the job the same job key and the same version of byteps."
    return own(recording, when, cause, remedy, is_of_start=True)


def refused_at_joining(recording: Recording, recordings: List[Recording]) -> Optional[Suspect]:
    """A rank claimed twice, an impossible rank, sizes that differ: the scheduler's answer to a Join. What it tells all
    members is its own finding, whosever recording ended first."""
    told_by_scheduler = any(each.role == "scheduler" and each.text == recording.text for each in recordings)
    if recording.role != "scheduler" and told_by_scheduler:
        return None
    wrong = ("two processes claim", "two servers claim", "cannot be part of a job", "disagree about the size")
    if not any(each in recording.text for each in wrong):
        return None
    cause = recording.text
    remedy = "Give each process its own DMLC_WORKER_ID, and all the same DMLC_NUM_WORKER and DMLC_NUM_SERVER."
    return own(recording, recording.when_first("end"), cause, remedy, is_of_start=True)


def misses_scheduler(recording: Recording) -> bool:
    return recording.role in ("worker", "server") and NO_SCHEDULER.search(recording.text) is not None


def all_miss_scheduler(recordings: List[Recording]) -> bool:
    """Several members, and each of them says so: then it is the scheduler that nobody hears."""
    members = [each for each in recordings if each.role in ("worker", "server")]
    return len(members) > 1 and all(misses_scheduler(each) for each in members)


def without_descriptors(recording: Recording, _: List[Recording]) -> Optional[Suspect]:
    """A worker that can make no connection tells of the server that it wanted to reach; it may not even have a
    descriptor for a recording, so that what others heard counts too."""
    said_it = SAID.match(recording.text)
    found = CUT_OFF.search(recording.text)
    why = (found["why"] or "") if found else ""
    if found is None or not DESCRIPTORS.search(why) or "refused by" in why:
        return None
    remedy = "Raise the limit: ulimit -n."
    if recording.role == "worker" and not said_it:
        return own(recording, recording.ended, f"{recording.title} has no file descriptors left: {why}", remedy)
    if said_it:
        what = f"has no file descriptors left: {why}"
        return accuse(recording, said_it, fail_time(recording) - seconds(found), what, remedy)
    return None


def accused_member(recording: Recording, recordings: List[Recording]) -> Optional[Suspect]:
    """Somebody is silent, gone, or cannot be reached, in the words of who noticed."""
    text = recording.text
    if recording.role == "scheduler" and all_miss_scheduler(recordings):
        return None
    if without_descriptors(recording, recordings):
        return None
    for pattern, judge in ((CUT_OFF, cut_off), (SILENT, silent), (GONE, gone)):
        found = pattern.search(text)
        if found:
            return judge(recording, recordings, found)
    for pattern, what in ((ANEW, "was started anew while the job ran"), (STOPPED, "ended while the job ran")):
        found = pattern.search(text)
        if found:
            return accuse(recording, found, fail_time(recording), what, "Look at its output.")
    return None


def accuse(recording: Recording, found: "re.Match[str]", when: float, what: str, remedy: str) -> Suspect:
    rank = None if found["rank"] is None else int(found["rank"])
    cause = f"{title(found['role'], rank, found['host'])} {what}"
    return Suspect(when, cause, found["role"], rank, found["host"], [said(recording)], remedy)


def silent(recording: Recording, recordings: List[Recording], found: "re.Match[str]") -> Suspect:
    lasted_s = seconds(found)
    accused = recording_of(recordings, found["host"])
    late = longest_pause(accused)
    if late is not None and late[1] >= lasted_s / 2:
        what = f"stood still for {late[1]:.1f} s: it was stopped (SIGSTOP, a debugger) or got no CPU"
        suspect = accuse(recording, found, late[0], what, "See who stops it, and whether its machine is overloaded.")
        suspect.evidence.append(f"{name_of(accused)}: nothing happened there for {late[1]:.1f} s")
        return suspect
    what = f"went silent {lasted_s:.1f} s before it was given up, its connection still open"
    remedy = "It was stopped, it hangs, or its machine or the network to it is gone."
    if accused is not None and accused.how != "settings":
        remedy = "It lived on, so the network between it and the scheduler was interrupted."
    return accuse(recording, found, heard(recording, found, fail_time(recording) - lasted_s), what, remedy)


def gone(recording: Recording, recordings: List[Recording], found: "re.Match[str]") -> Suspect:
    why = found["why"] or ""
    when = heard(recording, found, fail_time(recording) - seconds(found))
    return accuse(recording, found, when, *disappeared(recordings, found["host"], why))


def cut_off(recording: Recording, recordings: List[Recording], found: "re.Match[str]") -> Suspect:
    why = found["why"] or ""
    when = fail_time(recording) - seconds(found)
    accused = recording_of(recordings, found["host"])
    if accused is None and not lost_by_scheduler(recordings, found["role"], found["rank"]):
        what = f"could not be reached at {found['address']} by {title(recording.role, recording.rank)}: {why}"
        return accuse(
            recording, found, when, what, "Look at the network between the two: routes, firewalls, addresses."
        )
    return accuse(recording, found, when, *disappeared(recordings, found["host"], why))


def disappeared(recordings: List[Recording], host: str, why: str) -> Tuple[str, str]:
    """What became of a process whose connection ended, and what to do."""
    if CORRUPT.search(why):
        return f"lost its connection because bytes arrived damaged: {why}", "Look at the network cards and cables."
    accused = recording_of(recordings, host)
    if accused is None:
        what = f"disappeared: it was killed, it crashed or it exited without leaving, and left no recording ({why})"
        return what, "Look at its output and at the kernel's log of its machine (dmesg: out of memory?)."
    late = longest_pause(accused)
    if late is not None and late[1] >= 1.0:
        return f"stood still for {late[1]:.1f} s and lost its connection ({why})", "See who stops it."
    return f"lost its connection and did not come back ({why})", "Look at the network between it and the scheduler."


def no_scheduler(recording: Recording, recordings: List[Recording]) -> Optional[Suspect]:
    found = NO_SCHEDULER.search(recording.text)
    if not found or recording.role == "scheduler":
        return None
    when = fail_time(recording) - seconds(found)
    scheduler = next((each for each in recordings if each.role == "scheduler"), None)
    late = longest_pause(scheduler)
    why = found["why"].split("; ")[0].replace(": the job cannot go on without it", "").strip(" :()")
    remedy = "Look at the scheduler's output, and whether its machine is up."
    if late is not None and late[1] >= 1.0:
        cause = f"the scheduler at {found['address']} stood still for {late[1]:.1f} s: it was stopped or got no CPU"
        when, remedy = late[0], "See who stops it, and whether its machine is overloaded."
    elif recording.epoch == 0 and not recording.find("received"):
        cause = f"the scheduler at {found['address']} never answered {recording.title}: {why}"
        remedy = "Start it, and check DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT."
    elif scheduler is None:
        cause = f"the scheduler at {found['address']} disappeared: it was killed, or its machine is gone ({why})"
    else:
        remedy = "It lived on, so look at the network between the two."
        if not all_miss_scheduler(recordings):  # the others were not cut off: it is this one
            cause = f"{recording.title} was cut off from the scheduler at {found['address']} ({why})"
            return own(recording, when, cause, remedy)
        cause = f"the scheduler at {found['address']} was cut off from all others, {recording.title} first ({why})"
    host = "" if scheduler is None else scheduler.host
    return Suspect(when, cause, "scheduler", None, host, [said(recording)], remedy)


def incomplete(recording: Recording, recordings: List[Recording]) -> Optional[Suspect]:
    found = MISSING.search(recording.text)
    if not found:
        return None
    missing = tuple(
        (role, rank)
        for role, ranks in re.findall(r"(worker|server)s? ([\d, and-]+?) of", found["who"])
        for rank in ranks_of(ranks)
    )
    first = missing[0] if missing else (None, None)
    cause = f"the job never became complete: {found['who']} did not come"
    remedy = "Start what is missing, or look at its output; bps doctor checks the hosts of a job."
    return Suspect(
        fail_time(recording),
        cause,
        first[0],
        first[1],
        "",
        [said(recording)],
        remedy,
        missing=missing,
        is_of_start=True,
    )


def said_by_member(recording: Recording, recordings: List[Recording]) -> Optional[Suspect]:
    """A member said Fail, for a reason that no other rule knows."""
    found = SAID.match(recording.text)
    if recording.role != "scheduler" or not found or TOLD.search(found["what"]):
        return None
    if CUT_OFF.search(found["what"]) or SILENT.match(recording.text) or GONE.match(recording.text):
        return None
    cause = f"{title(found['role'], rank_in(found), found['host'])} could not go on: {found['what']}"
    return Suspect(
        fail_time(recording),
        cause,
        found["role"],
        rank_in(found),
        found["host"],
        [said(recording)],
        "Look at its output.",
    )


def out_of_something(recording: Recording, _: List[Recording]) -> Optional[Suspect]:
    """A process that could not go on because its machine refused it something."""
    for pattern, what, remedy in (
        (DESCRIPTORS, "has no file descriptors left", "Raise the limit: ulimit -n."),
        (MEMORY, "has no memory left", "Give its machine more memory."),
    ):
        hows = ("job",) if pattern is MEMORY else ("job", "port", "network", "settings")
        if recording.how not in hows or SAID.match(recording.text) or "refused by it" in recording.text:
            continue
        if pattern.search(recording.text):
            first = next((event for event in recording.events if pattern.search(event.text)), None)
            when = first.when if first else recording.ended
            return own(recording, when, f"{recording.title} {what}: {recording.text}", remedy)
    return None


def gave_up(recording: Recording, recordings: List[Recording]) -> Optional[Suspect]:
    """The scheduler's own words when nothing above fits, so that there is always one suspect."""
    if recording.role != "scheduler" or recording.how != "job" or TOLD.search(recording.text):
        return None
    if any(rule(recording, recordings) for rule in RULES if rule is not gave_up):
        return None
    return Suspect(fail_time(recording), recording.text, evidence=[said(recording)], remedy="")


RULES: Tuple[Callable[[Recording, List[Recording]], Optional[Suspect]], ...] = (
    bad_settings,
    port_in_use,
    raised,
    signalled,
    mismatch,
    stalled,
    left_early,
    refused,
    refused_at_joining,
    without_descriptors,
    accused_member,
    no_scheduler,
    incomplete,
    said_by_member,
    out_of_something,
    gave_up,
)


def vanished(scheduler: Recording, recordings: List[Recording]) -> Iterator[Suspect]:
    """Members that lost the scheduler without a word, before the job failed, and did not come back."""
    failed = fail_time(scheduler)
    lost: Dict[str, Tuple[Event, "re.Match[str]", str]] = {}
    for event in scheduler.find("log"):
        if event.when > failed:
            break
        found = re.match(
            rf"{MEMBER} (?P<what>lost its connection: (?P<why>.*)|is back|has left|left before)", event.text
        )
        if not found:
            continue
        if found["why"] is not None:
            lost[found["host"]] = (event, found, found["why"])
        else:
            lost.pop(found["host"], None)
    told = {host_in(e) for each in recordings for e in each.find("ended") if e.fields.get("told")}
    for host, (event, found, why) in lost.items():
        if host in told:
            continue
        suspect = accuse(scheduler, found, event.when, *disappeared(recordings, host, why))
        suspect.evidence = [f"{name_of(scheduler)}: {event.text}"]
        yield suspect


def seen_by_launcher(recording: Recording, recordings: List[Recording]) -> Iterator[Suspect]:
    """What bpslaunch saw end by itself, and what it was told. A process that left a recording says more itself, unless
    it was killed."""
    for event in recording.find("signal"):
        cause = f"bpslaunch was told to stop by {event.name}"
        if event.name == "SIGINT":
            cause = "the job was interrupted (Ctrl-C): bpslaunch got SIGINT"
        yield own(recording, event.when, cause, "Nothing is wrong with the job.", saying=f"bpslaunch got {event.name}")
    for event in recording.find("ended"):
        host = host_in(event)
        was_killed = bool(event.fields.get("signal"))
        if event.fields.get("told") or not event.fields.get("code"):
            continue
        if not was_killed and (event.role != "worker" or recording_of(recordings, host) is not None):
            continue
        remedy = f"Look at the output of {title(event.role, event.rank)}."
        cause = f"{title(event.role, event.rank, host)} ended with {event.text}"
        evidence = [f"{name_of(recording)}: {SEEN} {title(event.role, event.rank)} end with {event.text}"]
        yield Suspect(event.when, cause, event.role, event.rank, host, evidence, remedy, is_own_word=True)


# ---------------------------------------------------------------------------- small questions


def said(recording: Recording) -> str:
    return f"{name_of(recording)}: {recording.text}"


def name_of(recording: Optional[Recording]) -> str:
    return "" if recording is None else recording.path.rsplit("/", 1)[-1]


def seconds(found: "re.Match[str]") -> float:
    return float(found["number"]) * UNIT_S[found["unit"]]


def rank_in(found: "re.Match[str]") -> Optional[int]:
    return None if found["rank"] is None else int(found["rank"])


def ranks_of(text: str) -> List[int]:
    """'0-2, 5 and 7' as numbers; at most a thousand."""
    ranks: List[int] = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        ranks += range(int(first), min(int(last or first), int(first) + 1000) + 1)
    return ranks[:1000]


def fail_time(recording: Recording) -> float:
    """When the job ended for this process."""
    return recording.when_first("end")


def heard(recording: Recording, found: "re.Match[str]", otherwise: float) -> float:
    """When this member was last heard of, as the scheduler knows it."""
    for peer in recording.peers:
        if peer.host == found["host"] and peer.role == found["role"] and peer.heard_ns is not None:
            return recording.wall(peer.heard_ns)
    return otherwise


def recording_of(recordings: List[Recording], host: str) -> Optional[Recording]:
    return next((each for each in recordings if each.host == host), None)


def longest_pause(recording: Optional[Recording]) -> Optional[Tuple[float, float]]:
    """(when it began, seconds) of the longest time in which the process did not run."""
    if recording is None:
        return None
    pauses = [(e.when - (e.number or 0) / 1e9, (e.number or 0) / 1e9) for e in recording.find("late")]
    return max(pauses, key=lambda pause: pause[1], default=None)


def lost_by_scheduler(recordings: List[Recording], role: str, rank: Optional[str]) -> bool:
    """Whether the scheduler lost this member too, or is itself not here to say."""
    schedulers = [each for each in recordings if each.role == "scheduler"]
    for scheduler in schedulers:
        for peer in scheduler.peers:
            if peer.role == role and str(peer.rank) == str(rank):
                return peer.state == "lost"
    return not schedulers


def host_of(recordings: List[Recording], role: str, rank: Optional[int]) -> str:
    for recording in recordings:
        if (recording.role, recording.rank) == (role, rank):
            return recording.host
    for recording in recordings:
        for peer in recording.peers:
            if (peer.role, peer.rank) == (role, rank) and peer.host:
                return peer.host
    return ""


def known(recordings: List[Recording], role: str, rank: Optional[int]) -> str:
    return title(role, rank, host_of(recordings, role, rank))


# ---------------------------------------------------------------------------- saying it


def with_others(suspect: Suspect, suspects: List[Suspect]) -> List[str]:
    """Its evidence, and what others say of the same process; what several say alike is one line."""
    lines = list(suspect.evidence)
    for other in suspects:
        is_about_it = suspect.host or suspect.rank is not None or suspect.role == "scheduler"
        same = is_about_it and other.names(suspect.role, suspect.rank, suspect.host)
        if other is not suspect and (same or other.cause == suspect.cause):
            lines += other.evidence
    by_text: Dict[str, List[str]] = {}
    for each in dict.fromkeys(lines):
        file, _, text = each.partition(": ")
        by_text.setdefault(text, []).append(file)
    return [
        f"{files[0]}{f' and {len(files) - 1} more' if files[1:] else ''}: {text}" for text, files in by_text.items()
    ][:8]


def without_recording(recordings: List[Recording]) -> List[str]:
    """Processes that others knew and that left nothing."""
    here = {each.host for each in recordings}
    peers = {(peer.role, peer.rank, peer.host) for each in recordings for peer in each.peers if peer.host}
    return sorted(title(*peer) for peer in peers if peer[2] not in here)


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


def line(event: Event) -> str:
    clock = time.strftime("%H:%M:%S", time.localtime(event.when)) + f".{int(event.when % 1 * 1000):03d}"
    who = title(event.recording.role, event.recording.rank)
    what = event.kind if event.kind not in ("log",) else ""
    parts = [what, event.name if event.kind != "log" else "", title(event.role, event.rank) if event.role else ""]
    told = " ".join(part for part in parts if part)
    text = event.text if len(event.text) <= 160 else event.text[:157] + "..."
    return f"{clock}  {who:12} {told}{': ' if told and text else ''}{text}"


def summary(verdict: Verdict) -> List[str]:
    """In one to three lines."""
    lines = [f"First cause: {verdict.cause}" if verdict.is_found else verdict.cause]
    if verdict.when is not None:
        lines[0] += f" (at {time.strftime('%H:%M:%S', time.localtime(verdict.when))})"
    if verdict.remedy:
        lines.append(f"What to do: {verdict.remedy} docs/failures.md says more.")
    return lines


def report(verdict: Verdict, recordings: List[Recording]) -> str:
    lines = summary(verdict)
    if verdict.evidence:
        lines += ["", "Evidence:"] + [f"  {each}" for each in verdict.evidence]
    if verdict.timeline:
        lines += ["", "What happened then:"] + [f"  {each}" for each in verdict.timeline]
    damaged = sum(each.damaged_lines for each in recordings)
    if recordings:
        lines += ["", f"From {len(recordings)} recordings" + (f"; {damaged} damaged lines" if damaged else "")]
    absent = without_recording(recordings)
    if absent:
        lines.append(f"Without one, so killed or ended well: {', '.join(absent[:16])}")
    return "\n".join(lines)


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bps why",
        description="Names the first cause of a job that failed, from the files of its processes (docs/flight.md).",
        epilog="Exit code: 0 when a cause was found, 1 when not.",
    )
    parser.add_argument(
        "places",
        nargs="*",
        metavar="DIR",
        help="folders (or files) with byteps-flight-*.jsonl, gathered from all hosts; "
        f"default: {flight.default_folder()}",
    )
    parser.add_argument(
        "--events", type=int, default=TIMELINE_EVENTS, metavar="N", help="length of the timeline (default 20)"
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args(arguments)
    recordings = flight.newest_job(flight.read(options.places or [flight.default_folder()]))
    verdict = analyse(recordings, max(0, options.events))
    if options.json:
        print(json.dumps(verdict.__dict__, indent=2))
    else:
        print(report(verdict, recordings))
    return 0 if verdict.is_found else 1


if __name__ == "__main__":
    sys.exit(main())
