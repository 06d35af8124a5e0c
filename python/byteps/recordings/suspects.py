"""Who or what may have been the first cause: what each recording of a job says of its own end, whom it accuses, and who
vanished, each with a time. first_cause.py chooses among them.

All of it is decided by fields (causes.py); texts are only shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from byteps.recordings.causes import OTHER, Participant
from byteps.recordings.fields import number_of
from byteps.recordings.flight import Event, Recording, host_in, title


@dataclass(frozen=True)
class Evidence:
    file: str
    text: str


@dataclass
class Suspect:
    when: float
    kind: str
    cause: str
    role: Optional[str] = None
    rank: Optional[int] = None
    host: str = ""
    evidence: List[Evidence] = field(default_factory=list)
    remedy: str = ""
    is_own_word: bool = False  # the process says it of itself, or the launcher saw it
    is_of_start: bool = False  # it kept the job from beginning, so it is nothing once the job has begun
    is_of_old_age: bool = False  # like being told to stop: what others do to those that live on
    is_seen_by_launcher: bool = False
    missing: Tuple[Tuple[str, int], ...] = ()  # those that never came, for an accusation of several

    def names(self, role: Optional[str], rank: Optional[int], host: str) -> bool:
        if self.missing:
            return any(role == r and rank in (None, n) for r, n in self.missing)
        if host and self.host:
            return host == self.host
        return role is not None and role == self.role and (rank == self.rank or None in (rank, self.rank))


# ---------------------------------------------------------------------------- suspects


LATE_S = 0.05  # two clocks of one machine may differ by so much


def find_suspects(recordings: List[Recording]) -> List[Suspect]:
    return [each for each in claims(recordings) if not is_sent_by_launcher(each, recordings)]


def is_sent_by_launcher(suspect: Suspect, recordings: List[Recording]) -> bool:
    """The signal that it got is one of those with which bpslaunch ends a job."""
    if suspect.kind != "told_to_stop" or not suspect.is_of_old_age:
        return False
    ended = [event for each in recordings if each.role == "launcher" for event in each.find("ended")]
    for event in ended:
        told = number_of(event.fields, "told_t")
        is_it = told is not None and suspect.names(event.role, event.rank, host_in(event))
        if told is not None and is_it and event.recording.wall(told) <= suspect.when + LATE_S:
            return True
    return False


def claims(recordings: List[Recording]) -> Iterator[Suspect]:
    for recording in recordings:
        if recording.role == "launcher":
            yield from seen_by_launcher(recording, recordings)
            continue
        for rule in (raised, signalled, left_early):
            suspect = rule(recording, recordings)
            if suspect is not None:
                yield suspect
        suspect = judge(recording, recordings)
        if suspect is not None:
            yield suspect
        if recording.role == "scheduler":
            yield from vanished(recording, recordings)


def judge(recording: Recording, recordings: List[Recording]) -> Optional[Suspect]:
    """What comes of the cause in a recording's first line."""
    if recording.how in ("", "well"):
        return None
    rule = cannot_start if recording.how in ("settings", "port", "network") else RULES.get(recording.cause.kind, other)
    if recording.cause.kind == "no_descriptors":
        rule = no_descriptors
    return rule(recording, recordings)


def own(recording: Recording, when: float, kind: str, cause: str, remedy: str, **more: Any) -> Suspect:
    """What a process says of itself."""
    evidence = [more.pop("evidence", None) or said(recording)]
    return Suspect(
        when,
        kind,
        cause,
        recording.role,
        recording.rank,
        recording.host,
        evidence,
        remedy,
        is_own_word=True,
        **more,
    )


def accuse(recording: Recording, when: float, what: str, remedy: str, **more: Any) -> Suspect:
    """What this recording's cause says of somebody; `what` became of him is the predicate of the sentence."""
    who = recording.cause.who
    return Suspect(
        when,
        recording.cause.kind,
        f"{titled(recording, who)} {what}",
        who.role,
        who.rank,
        who.host,
        [said(recording)],
        remedy,
        **more,
    )


def tell(recording: Recording, when: float, what: str, remedy: str, **more: Any) -> Suspect:
    """The same of what only a process itself can know: in its own recording it is its own word."""
    if is_about_itself(recording):
        return own(recording, when, recording.cause.kind, f"{recording.title} {what}", remedy, **more)
    return accuse(recording, when, what, remedy, **more)


def is_about_itself(recording: Recording) -> bool:
    who = recording.cause.who
    if who.host:
        return who.host == recording.host
    return not who.role or (who.role, who.rank) == (recording.role, recording.rank)


def titled(recording: Recording, who: Participant) -> str:
    """A member does not know the scheduler's host and process, but its address."""
    if who.role == "scheduler" and recording.role != "scheduler":
        return f"the scheduler at {recording.scheduler}"
    return title(who.role, who.rank, who.host)


# ---- what events say


def raised(recording: Recording, _: List[Recording]) -> Optional[Suspect]:
    """The program on this rank ended with an exception that was not ours."""
    for event in recording.find("raised"):
        if event.cause == "interrupted":
            cause = f"{recording.title} was interrupted (Ctrl-C, SIGINT)"
            return own(recording, event.when, "interrupted", cause, "Nothing is wrong.")
        cause = f"the program on {recording.title} raised {event.text}"
        remedy = f"Look at the traceback of {title(recording.role, recording.rank)}."
        return own(recording, event.when, "raised", cause, remedy)
    return None


def signalled(recording: Recording, _: List[Recording]) -> Optional[Suspect]:
    for event in recording.find("signal"):
        cause = f"{recording.title} was told to stop by {event.name or 'a signal'}"
        return own(recording, event.when, "told_to_stop", cause, WHO_SENT_IT, is_of_old_age=True)
    return None


def left_early(recording: Recording, recordings: List[Recording]) -> Optional[Suspect]:
    """A worker left, and something here could not end without it."""
    ended = [event for kind in ("failed", "done") for event in recording.find(kind) if event.cause == "left"]
    cause = recording.cause
    if cause.kind == "left" and cause.who.role == "worker":
        rank, tensor, text = cause.who.rank, cause.detail, recording.text
    elif ended:
        rank, tensor, text = ended[0].rank, ended[0].detail, ended[0].text
    else:
        return None
    leaves = [event.when for event in recording.find("left") if event.rank == rank]
    waited = f"still waited for it in tensor '{tensor}'" if tensor else "still waited for it"
    return Suspect(
        leaves[0] if leaves else recording.when_first("failed"),
        "left",
        f"{known(recordings, 'worker', rank)} left the job while {title(recording.role, recording.rank)} {waited}",
        "worker",
        rank,
        host_of(recordings, "worker", rank),
        [Evidence(name_of(recording), text)],
        f"Look at the output of worker {rank}: it ended early, or had fewer steps than the others.",
    )


def vanished(scheduler: Recording, recordings: List[Recording]) -> Iterator[Suspect]:
    """Members that lost the scheduler without a word, before the job failed, and did not come back."""
    failed = fail_time(scheduler)
    lost: Dict[str, Event] = {}
    for event in scheduler.events:
        if event.when > failed:
            break
        if event.kind == "lost":
            lost[event.host] = event
        elif event.kind in ("back", "left"):
            lost.pop(event.host, None)
    told = {host_in(e) for each in recordings for e in each.find("ended") if is_none_of_it(e)}
    for host, event in lost.items():
        if host in told:
            continue
        kind = "damaged" if event.cause == "damaged" else "gone"
        what, remedy = disappeared(recordings, host, event.text, kind)
        who = title(event.role, event.rank, host)
        evidence = [Evidence(name_of(scheduler), f"{who} lost its connection: {event.text}")]
        yield Suspect(event.when, kind, f"{who} {what}", event.role, event.rank, host, evidence, remedy)


def is_none_of_it(ended: Event) -> bool:
    """bpslaunch told it to end, or the job went on without it."""
    return bool(ended.fields.get("told") or ended.fields.get("missed"))


def seen_by_launcher(recording: Recording, recordings: List[Recording]) -> Iterator[Suspect]:
    """What bpslaunch saw end by itself, and what it was told. A process that left a recording says more itself, unless
    it was killed."""
    for event in recording.find("signal"):
        cause = f"bpslaunch was told to stop by {event.name}"
        kind = "told_to_stop"
        if event.name == "SIGINT":
            cause, kind = "the job was interrupted (Ctrl-C): bpslaunch got SIGINT", "interrupted"
        evidence = Evidence(name_of(recording), f"bpslaunch got {event.name}")
        yield own(recording, event.when, kind, cause, "Nothing is wrong with the job.", evidence=evidence)
    for event in recording.find("ended"):
        host = host_in(event)
        was_killed = bool(event.fields.get("signal"))
        if is_none_of_it(event) or not event.fields.get("code"):
            continue
        if not was_killed and (event.role != "worker" or recording_of(recordings, host) is not None):
            continue
        who = title(event.role, event.rank)
        yield Suspect(
            event.when,
            event.cause,
            f"{title(event.role, event.rank, host)} ended with {event.text}",
            event.role,
            event.rank,
            host,
            [Evidence(name_of(recording), f"bpslaunch saw {who} end with {event.text}")],
            f"Look at the output of {who}.",
            is_own_word=True,
            is_seen_by_launcher=True,
        )


# ---- what a recording's cause says: one rule for each kind, with other() for those that the text alone tells


def cannot_start(recording: Recording, _: List[Recording]) -> Optional[Suspect]:
    kind = recording.cause.kind
    if recording.how == "settings":
        cause = f"{recording.title} could not start, its settings are wrong: {recording.text}"
        remedy = "Correct the variable that the message names."
    else:
        cause = f"{recording.title} could not start: {recording.text}"
        remedy = "Choose another port, or end the process that has it (ss -ltnp shows it)."
        if recording.how == "network":
            remedy = "The operating system refused it, see its words."
    return own(recording, recording.ended, kind, cause, remedy, is_of_start=True)


def tensor_differs(recording: Recording, _: List[Recording]) -> Optional[Suspect]:
    """Ranks disagree about a tensor: its operations ended with that."""
    remedy = "Make all ranks give this tensor the same shape, dtype and operation."
    when = recording.when_first("mismatch", "failed")
    evidence = [said(recording)]
    kind = recording.cause.kind
    return Suspect(when, kind, recording.text, "worker", None, "", evidence, remedy, is_own_word=True)


def no_memory(recording: Recording, _: List[Recording]) -> Optional[Suspect]:
    """A server or a worker's relay has none for a tensor, or a process could not go on without."""
    cause = recording.cause
    if recording.how == "operation":
        when = recording.when_first("mismatch", "failed")
        who, evidence = cause.who, [said(recording)]
        remedy = "Give the servers more memory, or the job more servers."
        if who.role == "worker":
            remedy = "Give its relay more memory (BYTEPS_RELAY_MEMORY_MB), or its machine fewer workers."
        return Suspect(when, cause.kind, recording.text, who.role, who.rank, "", evidence, remedy, is_own_word=True)
    when = first_with(recording, cause.kind) if is_about_itself(recording) else fail_time(recording)
    what = f"has no memory left: {words(recording)}"
    return tell(recording, when, what, "Give its machine more memory.")


def stalled(recording: Recording, _: List[Recording]) -> Optional[Suspect]:
    """All wait for each other: the ranks submit different tensors."""
    remedy = "Make all ranks submit the same tensors and reach the same barriers, in any order."
    when, kind = fail_time(recording), recording.cause.kind
    return Suspect(when, kind, recording.text, "worker", None, "", [said(recording)], remedy)


def stall_timeout(recording: Recording, _: List[Recording]) -> Optional[Suspect]:
    remedy = "Look at what the ranks do that it waited for, or give BYTEPS_STALL_TIMEOUT_S a larger value."
    return tell(recording, fail_time(recording), f"gave up waiting: {words(recording)}", remedy)


def stands_still(recording: Recording, _: List[Recording]) -> Optional[Suspect]:
    when = fail_time(recording) - recording.cause.for_s
    remedy = "Look at its threads, and whether its machine is overloaded."
    return tell(recording, when, f"could not go on: {words(recording)}", remedy)


def told_to_stop(recording: Recording, _: List[Recording]) -> Optional[Suspect]:
    """By whoever it told: its own recording has the signal."""
    if is_about_itself(recording) and recording.find("signal"):
        return None
    return tell(recording, fail_time(recording), "was told to stop", WHO_SENT_IT, is_of_old_age=True)


def refused(recording: Recording, _: List[Recording]) -> Optional[Suspect]:
    """By whoever answers at the scheduler's address."""
    when = next((e.when for e in recording.find("down") if e.role == "scheduler"), recording.ended)
    what = f"was refused by the scheduler at {recording.scheduler}: {words(recording)}"
    remedy = "Give all processes of the job the same job key and the same version of byteps."
    return tell(recording, when, what, remedy, is_of_start=True)


def sizes_differ(recording: Recording, recordings: List[Recording]) -> Optional[Suspect]:
    """What the scheduler tells all members is its own finding, whosever recording ended first."""
    if recording.role != "scheduler" and any(
        each.role == "scheduler" and each.cause.kind == recording.cause.kind for each in recordings
    ):
        return None
    return own(recording, fail_time(recording), recording.cause.kind, recording.text, EACH_ITS_RANK, is_of_start=True)


def turned_away(recording: Recording, _: List[Recording]) -> Optional[Suspect]:
    """The scheduler's answer to a Join: a rank claimed twice, an impossible one."""
    return own(recording, fail_time(recording), recording.cause.kind, recording.text, EACH_ITS_RANK, is_of_start=True)


def incomplete(recording: Recording, _: List[Recording]) -> Optional[Suspect]:
    cause = recording.cause
    first = cause.missing[0] if cause.missing else (None, None)
    sentence = f"the job never became complete: {cause.detail} did not come" if cause.missing else recording.text
    remedy = "Start what is missing, or look at its output; bps doctor checks the hosts of a job."
    return Suspect(
        fail_time(recording),
        cause.kind,
        sentence,
        first[0],
        first[1],
        "",
        [said(recording)],
        remedy,
        missing=cause.missing,
        is_of_start=True,
    )


def no_descriptors(recording: Recording, _: List[Recording]) -> Optional[Suspect]:
    """A worker that can make no connection tells of itself, if it has a descriptor for a recording; others tell of it,
    or of a server or a scheduler that can take none."""
    cause = recording.cause
    remedy = "Raise the limit: ulimit -n."
    what = f"has no file descriptors left: {words(recording)}"
    is_of_start = recording.how != "job"
    if is_about_itself(recording):
        return tell(recording, first_with(recording, cause.kind), what, remedy, is_of_start=is_of_start)
    when = fail_time(recording) - cause.for_s
    if cause.who.role == "scheduler":  # it refuses who has not joined
        when, is_of_start = recording.ended, True
        what = f"has no file descriptors left: it refused {recording.title}"
    return accuse(recording, when, what, remedy, is_of_start=is_of_start)


def silent(recording: Recording, recordings: List[Recording]) -> Optional[Suspect]:
    cause = recording.cause
    if cause.who.role == "scheduler":
        return no_scheduler(recording, recordings)
    if recording.role == "scheduler" and all_miss_scheduler(recordings):
        return None
    accused = recording_of(recordings, cause.who.host)
    late = longest_pause(accused)
    if late is not None and late[1] >= cause.for_s / 2:
        what = f"stood still for {late[1]:.1f} s: it was stopped (SIGSTOP, a debugger) or got no CPU"
        suspect = accuse(recording, late[0], what, "See who stops it, and whether its machine is overloaded.")
        suspect.evidence.append(Evidence(name_of(accused), f"nothing happened there for {late[1]:.1f} s"))
        return suspect
    what = f"went silent {cause.for_s:.1f} s before it was given up, its connection still open"
    remedy = "It was stopped, it hangs, or its machine or the network to it is gone."
    if accused is not None and accused.how != "settings":
        remedy = "It lived on, so the network between it and the scheduler was interrupted."
    return accuse(recording, heard(recording, fail_time(recording) - cause.for_s), what, remedy)


def gone(recording: Recording, recordings: List[Recording]) -> Optional[Suspect]:
    """Its connection ended, with bytes that were damaged or without."""
    cause = recording.cause
    if cause.who.role == "scheduler" and cause.kind != "damaged":
        return no_scheduler(recording, recordings)
    if recording.role == "scheduler" and all_miss_scheduler(recordings):
        return None
    when = heard(recording, fail_time(recording) - cause.for_s)
    return accuse(recording, when, *disappeared(recordings, cause.who.host, cause.detail, cause.kind))


def unreachable(recording: Recording, recordings: List[Recording]) -> Optional[Suspect]:
    cause = recording.cause
    if cause.who.role == "scheduler":
        return no_scheduler(recording, recordings)
    if recording.role == "scheduler" and all_miss_scheduler(recordings):
        return None
    when = fail_time(recording) - cause.for_s
    if recording_of(recordings, cause.who.host) is None and not lost_by_scheduler(recordings, cause.who):
        finder = cause.told_by if cause.told_by.role else Participant(recording.role, recording.rank)
        what = f"could not be reached by {title(finder.role, finder.rank)}: {cause.detail}"
        return accuse(recording, when, what, "Look at the network between the two: routes, firewalls, addresses.")
    return accuse(recording, when, *disappeared(recordings, cause.who.host, cause.detail, cause.kind))


def disappeared(recordings: List[Recording], host: str, why: str, kind: str) -> Tuple[str, str]:
    """What became of a process whose connection ended, and what to do."""
    if kind == "damaged":
        return f"lost its connection because bytes arrived damaged: {why}", "Look at the network cards and cables."
    accused = recording_of(recordings, host)
    if accused is None:
        what = f"disappeared: it was killed, it crashed or it exited without leaving, and left no recording ({why})"
        return what, "Look at its output and at the kernel's log of its machine (dmesg: out of memory?)."
    late = longest_pause(accused)
    if late is not None and late[1] >= 1.0:
        return f"stood still for {late[1]:.1f} s and lost its connection ({why})", "See who stops it."
    return f"lost its connection and did not come back ({why})", "Look at the network between it and the scheduler."


def all_miss_scheduler(recordings: List[Recording]) -> bool:
    """Several members, and each of them says so: then it is the scheduler that nobody hears."""
    members = [each for each in recordings if each.role in ("worker", "server")]
    return len(members) > 1 and all(
        each.cause.kind in ("gone", "silent", "unreachable") and each.cause.who.role == "scheduler" for each in members
    )


def no_scheduler(recording: Recording, recordings: List[Recording]) -> Optional[Suspect]:
    cause = recording.cause
    when = fail_time(recording) - cause.for_s
    scheduler = next((each for each in recordings if each.role == "scheduler"), None)
    late = longest_pause(scheduler)
    why = f" ({cause.detail})" if cause.detail else ""
    place = f"the scheduler at {recording.scheduler}"
    remedy = "Look at the scheduler's output, and whether its machine is up."
    if late is not None and late[1] >= 1.0:
        sentence = f"{place} stood still for {late[1]:.1f} s: it was stopped or got no CPU"
        when, remedy = late[0], "See who stops it, and whether its machine is overloaded."
    elif recording.epoch == 0 and not recording.find("received"):
        sentence = f"{place} never answered {recording.title}: {cause.detail or recording.text}"
        remedy = "Start it, and check DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT."
    elif scheduler is None:
        sentence = f"{place} disappeared: it was killed, or its machine is gone{why}"
    else:
        remedy = "It lived on, so look at the network between the two."
        if not all_miss_scheduler(recordings):  # the others were not cut off: it is this one
            return own(recording, when, cause.kind, f"{recording.title} was cut off from {place}{why}", remedy)
        sentence = f"{place} was cut off from all others, {recording.title} first{why}"
    host = "" if scheduler is None else scheduler.host
    return Suspect(when, cause.kind, sentence, "scheduler", None, host, [said(recording)], remedy)


def started_anew(recording: Recording, recordings: List[Recording]) -> Optional[Suspect]:
    if recording.cause.who.role == "scheduler":
        remedy = "Look at the output of the first one, and start the whole job again."
        return accuse(recording, fail_time(recording), "is not the one that the job began with", remedy)
    return accuse(recording, fail_time(recording), "was started anew while the job ran", "Look at its output.")


def left(recording: Recording, recordings: List[Recording]) -> Optional[Suspect]:
    if recording.cause.who.role == "worker":
        return None  # see left_early()
    return accuse(recording, fail_time(recording), "ended while the job ran", "Look at its output.")


def from_event(_: Recording, __: List[Recording]) -> Optional[Suspect]:
    """An event of the recording says it, with its time: see raised(). Or it ended nothing: a server was replaced."""
    return None


def other(recording: Recording, _: List[Recording]) -> Optional[Suspect]:
    """In the words of whoever says it: a member that could not go on, or the scheduler."""
    who = recording.cause.told_by
    if who.role:
        cause = f"{title(who.role, who.rank, who.host)} could not go on: {words(recording)}"
        evidence = [said(recording)]
        when = fail_time(recording)
        return Suspect(when, OTHER, cause, who.role, who.rank, who.host, evidence, "Look at its output.")
    if recording.role == "scheduler":
        return Suspect(fail_time(recording), OTHER, recording.text, evidence=[said(recording)])
    return None


WHO_SENT_IT = "Find who sent it: a person, the batch system, the launcher after another process had failed."
EACH_ITS_RANK = "Give each process its own DMLC_WORKER_ID, and all the same DMLC_NUM_WORKER and DMLC_NUM_SERVER."

Rule = Callable[[Recording, List[Recording]], Optional[Suspect]]
RULES: Dict[str, Rule] = {
    "gone": gone,
    "silent": silent,
    "unreachable": unreachable,
    "started_anew": started_anew,
    "left": left,
    "damaged": gone,
    "told_to_stop": told_to_stop,
    "stands_still": stands_still,
    "no_descriptors": no_descriptors,
    "no_memory": no_memory,
    "tensor_differs": tensor_differs,
    "stalled": stalled,
    "stall_timeout": stall_timeout,
    "incomplete": incomplete,
    "sizes_differ": sizes_differ,
    "turned_away": turned_away,
    "refused": refused,
    "keys_differ": refused,
    "versions_differ": refused,
    "setting_missing": cannot_start,
    "setting_invalid": cannot_start,
    "job_key": cannot_start,
    "cannot_listen": cannot_start,
    "raised": from_event,
    "interrupted": from_event,
    "replaced": from_event,
}


# ---------------------------------------------------------------------------- small questions


def said(recording: Recording) -> Evidence:
    return Evidence(name_of(recording), recording.text)


def words(recording: Recording) -> str:
    """What happened, in the words that are nearest to it."""
    return recording.cause.detail or recording.text


def name_of(recording: Optional[Recording]) -> str:
    return "" if recording is None else recording.path.rsplit("/", 1)[-1]


def fail_time(recording: Recording) -> float:
    """When the job ended for this process."""
    return recording.when_first("end")


def first_with(recording: Recording, kind: str) -> float:
    """When something first ended for this cause; the end of the process when there is no such event."""
    return next((each.when for each in recording.events if each.cause == kind), recording.ended)


def heard(recording: Recording, otherwise: float) -> float:
    """When the accused was last heard of, as the scheduler knows it."""
    who = recording.cause.who
    for peer in recording.peers:
        if peer.host == who.host and peer.role == who.role and peer.heard_ns is not None:
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


def lost_by_scheduler(recordings: List[Recording], who: Participant) -> bool:
    """Whether the scheduler lost this member too, or is itself not here to say."""
    schedulers = [each for each in recordings if each.role == "scheduler"]
    for scheduler in schedulers:
        for peer in scheduler.peers:
            if (peer.role, peer.rank) == (who.role, who.rank):
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
