"""bps why: the first cause, from recordings written here by hand (every kind of cause), from some that versions without
causes have left, and from real processes where settings, ports, keys or the launcher are concerned. Every other failure
of real processes: test_failures.py."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from job import Job
from place import MEMBER, ROOT, free_port, wait_for

from byteps.recordings import causes, first_cause, flight, form_1, suspects
from byteps.tools import why

ZERO_S = 1_700_000_000  # the time of day at the clock's zero
S = 10**9


class Scene:
    """Recordings written by hand; times are seconds on a clock that all share. Nothing goes by the texts."""

    def __init__(self):
        self.recordings = []

    def add(
        self, role, rank, pid, how="", cause=None, events=(), text="why", end_s=10.0, peers=(), host="here", **header
    ):
        fields = {
            "byteps_flight": 2, "role": role, "host": host, "pid": pid, "scheduler": "10.0.0.1:9000",
            "wall_zero_ns": ZERO_S * S, "started_ns": 0, "written_ns": int(end_s * S), "how": how, "text": text,
            "peers": [dict(zip(("role", "rank", "host", "state", "heard_ns"), peer)) for peer in peers], **header,
        }  # fmt: skip
        if cause is not None:
            fields["cause"] = cause
        if rank is not None:
            fields["rank"] = rank
        lines = [fields]
        for at_s, kind, *more in events:
            lines.append({"t": int(at_s * S), "kind": kind, **(more[0] if more else {})})
        if how:
            ended = {"cause": cause["kind"]} if cause else {}
            lines.append({"t": int(end_s * S), "kind": "end", "name": how, "text": text, **ended})
        content = "\n".join(map(json.dumps, lines)).encode()
        self.recordings.append(flight.parse(f"/d/byteps-flight-{role}-{rank}-{host}-{pid}.jsonl", content))
        return self

    def ran(self, at_s=1.0):
        """The job was complete: the scheduler sent the roster."""
        return (at_s, "sent", {"name": "Roster", "text": "x"})

    def why(self):
        return first_cause.analyse(self.recordings)


@pytest.fixture
def scene():
    return Scene()


WORKER_1 = {"role": "worker", "rank": 1, "host": "there:7"}
SERVER_0 = {"role": "server", "rank": 0, "host": "there:9"}
WORKER_0 = {"role": "worker", "rank": 0, "host": "here:5"}
GONE = {"kind": "gone", **WORKER_1, "for_ns": 3 * S, "detail": "1.2.3.4:5: the other side closed the connection"}
SILENT = {"kind": "silent", **WORKER_1, "for_ns": 3 * S}
STOPPED = {"kind": "told_to_stop", "role": "server", "rank": 0, "host": "here:2"}
LEFT = {"kind": "left", "role": "worker", "rank": 1, "detail": "B"}


def test_a_worker_that_is_gone_and_left_nothing_was_killed(scene):
    scene.add("scheduler", None, 1, "job", GONE, [scene.ran()], "it is gone")
    scene.add("worker", 0, 6, "job", GONE, text="it is gone")
    verdict = scene.why()
    assert (verdict.kind, verdict.role, verdict.rank, verdict.host) == ("gone", "worker", 1, "there:7")
    assert "worker 1 (there:7) disappeared: it was killed" in verdict.cause
    assert verdict.when == pytest.approx(ZERO_S + 7)
    assert verdict.evidence == [
        "byteps-flight-scheduler-None-here-1.jsonl and 1 more: it is gone"
    ]  # what several say alike is one line


def test_a_worker_that_is_silent_and_was_paused_says_so_itself(scene):
    scene.add("scheduler", None, 1, "job", SILENT, [scene.ran()])
    scene.add("worker", 1, 7, "job", SILENT, [(12.0, "late", {"number": 5 * S})], end_s=12.0, host="there")
    verdict = scene.why()
    assert (verdict.kind, verdict.role, verdict.rank) == ("silent", "worker", 1)
    assert "stood still for 5.0 s" in verdict.cause and verdict.when == pytest.approx(ZERO_S + 7)


def test_a_worker_that_is_silent_but_lived_was_cut_off(scene):
    scene.add("scheduler", None, 1, "job", SILENT, [scene.ran()])
    scene.add("worker", 1, 7, "job", {"kind": "silent", "role": "scheduler", "for_ns": 3 * S}, host="there")
    verdict = scene.why()
    assert verdict.rank == 1 and "network" in verdict.remedy


def test_a_scheduler_that_left_nothing_was_killed(scene):
    cause = {"kind": "unreachable", "role": "scheduler", "for_ns": 3 * S, "detail": "connection refused"}
    for rank in range(3):
        scene.add("worker", rank, rank + 5, "job", cause, [(1, "received", {"name": "Roster"})], epoch=1)
    verdict = scene.why()
    assert (verdict.role, verdict.rank) == ("scheduler", None)
    assert "scheduler at 10.0.0.1:9000 disappeared" in verdict.cause and "connection refused" in verdict.cause


def test_a_scheduler_that_could_not_have_its_port_is_why_nobody_reached_it(scene):
    cause = {"kind": "unreachable", "role": "scheduler", "for_ns": 60 * S, "detail": "connection refused"}
    scene.add("worker", 0, 5, "job", cause, end_s=60)
    taken = "cannot listen at port 9000 (DMLC_PS_ROOT_PORT): address already in use"
    scene.add("scheduler", None, 1, "port", {"kind": "cannot_listen"}, text=taken, end_s=30)
    verdict = scene.why()  # although the worker was there first
    assert (verdict.kind, verdict.role) == ("cannot_listen", "scheduler") and "port 9000" in verdict.cause


def unreachable(detail, **more):
    return {"kind": "unreachable", **SERVER_0, "for_ns": 3 * S, "detail": detail, **more}


def test_a_server_that_cannot_be_reached_and_is_gone_was_killed(scene):
    scene.add(
        "scheduler", None, 1, "job", unreachable("connection refused", told_by=WORKER_0), [scene.ran()],
        peers=[("server", 0, "there:9", "lost", 7 * S)],
    )  # fmt: skip
    scene.add("worker", 0, 5, "job", unreachable("connection refused"))
    verdict = scene.why()
    assert (verdict.role, verdict.rank) == ("server", 0) and "disappeared" in verdict.cause


def test_a_server_that_only_a_worker_cannot_reach_is_cut_off_from_it(scene):
    scene.add(
        "scheduler", None, 1, "job", unreachable("10.0.0.2:7000: no route to host", told_by=WORKER_0), [scene.ran()],
        peers=[("server", 0, "there:9", "here", 10 * S)],
    )  # fmt: skip
    verdict = scene.why()
    assert "server 0 (there:9) could not be reached by worker 0: 10.0.0.2:7000: no route to host" in verdict.cause
    assert "network between" in verdict.remedy


def test_bytes_that_were_damaged_are_no_death(scene):
    scene.add("scheduler", None, 1, "job", {**GONE, "kind": "damaged", "detail": "a wrong sum"}, [scene.ran()])
    verdict = scene.why()
    assert verdict.kind == "damaged" and "bytes arrived damaged: a wrong sum" in verdict.cause


def test_what_was_told_to_stop_is_no_cause_when_a_member_had_vanished_before(scene):
    lost = (5, "lost", {"role": "worker", "rank": 0, "host": "there:7", "text": "the other side closed it"})
    scene.add("scheduler", None, 1, "job", STOPPED, [scene.ran(), lost])
    scene.add("server", 0, 2, "job", STOPPED, [(6, "signal", {"name": "SIGTERM"})])
    verdict = scene.why()
    assert (verdict.role, verdict.rank) == ("worker", 0) and "the other side closed it" in verdict.cause


def test_a_member_that_came_back_had_not_vanished(scene):
    who = {"role": "worker", "rank": 0, "host": "there:7"}
    events = [scene.ran(), (5, "lost", {**who, "text": "reset"}), (5.1, "back", who)]
    scene.add("scheduler", None, 1, "job", STOPPED, events)
    scene.add("server", 0, 2, "job", STOPPED, [(6, "signal", {"name": "SIGTERM"})])
    verdict = scene.why()
    assert (verdict.kind, verdict.role, verdict.rank) == ("told_to_stop", "server", 0) and "SIGTERM" in verdict.cause


def test_what_the_launcher_saw_names_the_signal_and_clears_those_it_ended(scene):
    lost = [
        (at, "lost", {"role": "worker", "rank": r, "host": f"here:{7 + r}", "text": "x"})
        for r, at in ((0, 5), (1, 5.1))
    ]
    scene.add("scheduler", None, 1, "job", STOPPED, [scene.ran(), *lost])
    ended = dict(role="worker", code=137, signal=9, cause="killed")
    scene.add(
        "launcher", None, 99, events=[
            (5.01, "ended", dict(ended, rank=0, number=7, text="signal SIGKILL (exit code 137)")),
            (5.2, "ended", dict(ended, rank=1, number=8, told=1, text="signal SIGTERM (exit code 143)")),
        ],
    )  # fmt: skip
    verdict = scene.why()
    assert (verdict.kind, verdict.role, verdict.rank) == ("killed", "worker", 0) and "SIGKILL" in verdict.cause
    assert verdict.is_known_to_launcher


@pytest.mark.parametrize("told_s, who", [(6.0, ("worker", 0)), (9.0, ("server", 0))])
def test_what_the_launcher_sends_when_it_ends_a_job_is_no_cause_but_what_came_before_it_is(scene, told_s, who):
    lost = (8, "lost", {"role": "worker", "rank": 0, "host": "there:7", "text": "the other side closed it"})
    scene.add("scheduler", None, 1, "job", STOPPED, [scene.ran(), lost], end_s=8.5)
    scene.add("server", 0, 2, "job", STOPPED, [(6.01, "signal", {"name": "SIGINT"})])
    ended = dict(role="server", rank=0, number=2, code=130, signal=0, cause="exited", told=1, told_t=int(told_s * S))
    scene.add("launcher", None, 99, events=[(9.5, "ended", ended)])
    verdict = scene.why()
    assert (verdict.role, verdict.rank) == who, verdict


def test_a_mismatch_comes_before_what_it_makes_the_ranks_do(scene):
    differs = {"kind": "tensor_differs", "detail": "A"}
    scene.add("worker", 0, 5, "operation", differs, [(4, "mismatch", {"text": "t"})], "they differ", epoch=1)
    left = {**LEFT, "rank": 0}
    scene.add("worker", 1, 6, "operation", left, [(9, "failed", {"cause": "left", "role": "worker", "rank": 0})])
    scene.add("scheduler", None, 1, "job", {"kind": "told_to_stop", "role": "scheduler"}, [scene.ran()])
    verdict = scene.why()
    assert verdict.cause == "they differ" and verdict.when == pytest.approx(ZERO_S + 4)


def test_a_server_without_memory_is_named(scene):
    cause = {"kind": "no_memory", "role": "server", "rank": 1, "detail": "big"}
    scene.add("worker", 0, 5, "operation", cause, [(4, "mismatch", {"text": "t"})], text='tensor "big"')
    verdict = scene.why()
    assert (verdict.kind, verdict.role, verdict.rank) == ("no_memory", "server", 1) and '"big"' in verdict.cause


def test_a_process_without_memory_says_so_itself(scene):
    cause = {"kind": "no_memory", **WORKER_1, "detail": "a thread could not begin"}
    scene.add("scheduler", None, 1, "job", {**cause, "told_by": WORKER_1}, [scene.ran()], end_s=10)
    assert "worker 1 (there:7) has no memory left: a thread could not begin" == scene.why().cause
    scene.add("worker", 1, 7, "job", {"kind": "no_memory"}, host="there", text="its own words", end_s=11)
    assert "its own words" in scene.why().cause


def test_a_rank_that_raised_is_named_with_its_exception(scene):
    exception = "KeyError: 'x'"
    scene.add("worker", 1, 6, "raised", {"kind": "raised"}, [(4, "raised", {"text": exception, "cause": "raised"})])
    scene.add("worker", 0, 5, "operation", LEFT, [(4, "left", {"role": "worker", "rank": 1})])
    verdict = scene.why()
    assert (verdict.kind, verdict.role, verdict.rank) == ("raised", "worker", 1)
    assert f"raised {exception}" in verdict.cause


def test_an_exception_that_is_named_like_an_interrupt_is_none(scene):
    event = (4, "raised", {"text": "KeyboardInterruptedError: x", "cause": "raised"})
    scene.add("worker", 1, 6, "raised", {"kind": "raised"}, [event])
    assert scene.why().kind == "raised"


def test_a_tensor_that_is_named_like_an_error_misleads_nobody(scene):
    cause = {"kind": "tensor_differs", "detail": "worker 3 (a:1) has said nothing for 9 s"}
    text = 'tensor "worker 3 (a:1) has said nothing for 9 s and the job cannot go on: no memory" differs between ranks'
    scene.add("worker", 0, 5, "operation", cause, [(4, "mismatch", {"text": text})], text)
    verdict = scene.why()
    assert (verdict.kind, verdict.rank, verdict.cause) == ("tensor_differs", None, text)


def test_a_rank_that_left_early_is_named_by_those_who_waited(scene):
    scene.add("worker", 0, 5, "operation", LEFT, [(4, "left", {"role": "worker", "rank": 1})])
    verdict = scene.why()
    assert (verdict.kind, verdict.role, verdict.rank) == ("left", "worker", 1) and "'B'" in verdict.cause
    assert verdict.when == pytest.approx(ZERO_S + 4)


def test_a_rank_that_left_is_named_also_by_those_at_a_barrier(scene):
    done = (4, "done", {"cause": "left", "role": "worker", "rank": 1})
    scene.add("worker", 0, 5, "raised", {"kind": "raised"}, [done])
    assert any((s.kind, s.role, s.rank) == ("left", "worker", 1) for s in suspects.find_suspects(scene.recordings))


def test_who_is_missing_is_excused_by_wrong_settings(scene):
    cause = {"kind": "incomplete", "missing_workers": [1], "detail": "worker 1 of 2"}
    scene.add("scheduler", None, 1, "job", cause, end_s=60)
    verdict = scene.why()
    assert (verdict.kind, verdict.role, verdict.rank) == ("incomplete", "worker", 1)
    assert "worker 1 of 2 did not come" in verdict.cause
    wrong, text = {"kind": "setting_invalid", "detail": "DMLC_WORKER_ID"}, "DMLC_WORKER_ID='x' is not valid"
    scene.add("worker", None, 8, "settings", wrong, text=text, end_s=61, scheduler="")
    verdict = scene.why()
    assert verdict.host == "here:8" and "DMLC_WORKER_ID='x'" in verdict.cause


def test_wrong_settings_are_no_cause_once_the_job_has_run(scene):
    scene.add("worker", None, 8, "settings", {"kind": "setting_invalid"}, end_s=0.5)
    scene.add("scheduler", None, 1, "job", GONE, [scene.ran(2)])
    assert scene.why().rank == 1


def test_an_interrupt_is_no_failure(scene):
    event = (4, "raised", {"text": "KeyboardInterrupt: ", "cause": "interrupted"})
    for rank in (0, 1):
        scene.add("worker", rank, 5 + rank, "raised", {"kind": "interrupted"}, [event])
    verdict = scene.why()
    assert verdict.kind == "interrupted" and "interrupted" in verdict.cause


def test_descriptors_that_ran_out_are_named(scene):
    cause = {"kind": "no_descriptors", "detail": "socket: Too many open files"}
    scene.add("worker", 0, 5, "job", cause, [(3, "down", {"cause": "no_descriptors"})])
    verdict = scene.why()
    assert "no file descriptors left" in verdict.cause and "ulimit" in verdict.remedy
    assert verdict.when == pytest.approx(ZERO_S + 3)


def test_a_scheduler_without_descriptors_is_named_by_whom_it_refused(scene):
    scene.add("worker", 0, 5, "job", {"kind": "no_descriptors", "role": "scheduler"})
    verdict = scene.why()
    assert verdict.role == "scheduler" and "it refused worker 0 (here:5)" in verdict.cause


@pytest.mark.parametrize("kind", ["refused", "keys_differ", "versions_differ"])
def test_who_is_refused_is_named_with_the_other_side_s_words(scene, kind):
    scene.add("worker", 0, 5, "job", {"kind": kind, "detail": "go away"}, [(3, "down", {"role": "scheduler"})])
    verdict = scene.why()
    assert (verdict.kind, verdict.rank) == (kind, 0) and verdict.cause.endswith(
        "refused by the scheduler at 10.0.0.1:9000: go away"
    )


def test_sizes_that_differ_are_the_scheduler_s_own_words(scene):
    scene.add("scheduler", None, 1, "job", {"kind": "sizes_differ"}, text="2 here, 3 there")
    scene.add("worker", 0, 5, "job", {"kind": "sizes_differ"}, text="2 here, 3 there", end_s=9)
    verdict = scene.why()
    assert (verdict.role, verdict.cause) == ("scheduler", "2 here, 3 there")


def test_ranks_that_all_wait_are_the_cause_in_the_words_of_who_proved_it(scene):
    for role, rank in (("scheduler", None), ("worker", 0)):
        scene.add(role, rank, 5, "job", {"kind": "stalled"}, [scene.ran()], "A was submitted by worker 0 only")
    verdict = scene.why()
    assert (verdict.kind, verdict.cause) == ("stalled", "A was submitted by worker 0 only")


def test_a_thread_that_stands_still_is_that_of_its_process(scene):
    cause = {"kind": "stands_still", **SERVER_0, "told_by": SERVER_0, "for_ns": 3 * S, "detail": "shard 0"}
    scene.add("scheduler", None, 1, "job", cause, [scene.ran()])
    verdict = scene.why()
    assert (verdict.role, verdict.rank, verdict.when) == ("server", 0, pytest.approx(ZERO_S + 7))


def test_a_server_that_was_started_anew_is_named(scene):
    scene.add("scheduler", None, 1, "job", {"kind": "started_anew", **SERVER_0}, [scene.ran()])
    assert "server 0 (there:9) was started anew" in scene.why().cause


def test_what_has_no_kind_is_told_in_the_words_of_who_tells_it(scene):
    scene.add("scheduler", None, 1, "job", {"kind": "other", **SERVER_0, "told_by": SERVER_0, "detail": "odd"})
    assert scene.why().cause == "server 0 (there:9) could not go on: odd"


def test_a_reason_of_a_later_version_is_told_as_it_is(scene):
    scene.add("scheduler", None, 1, "job", {"kind": "invented later"}, text="something new")
    scene.add("server", 0, 2, "job", {"kind": "invented later"}, text="something new")
    verdict = scene.why()
    assert (verdict.kind, verdict.cause) == ("other", "something new")


# ---- what was survived


def replaced(at_s, text, epoch=1, cause="gone", **who):
    fields = {"role": "server", "rank": 0, "host": "there:9", "number": 1, "epoch": epoch, "text": text, **who}
    return (at_s, "replaced", {**fields, "cause": cause} if cause else fields)


def of_scheduler(at_s, term):
    return (at_s, "replaced", {"role": "scheduler", "number": term, "epoch": 1, "text": f"scheduler, term {term}"})


def lines_of(verdict):
    return [line.split("  ", 1)[1] for line in verdict.survived]


def test_losses_that_were_survived_are_told_in_order_and_once_for_all_that_tell_of_them(scene):
    scene.add("worker", 0, 5, "well", events=[of_scheduler(4, 2), replaced(2.2, "late"), of_scheduler(6, 3)])
    again = replaced(5, "again", number=2, host="there:10")
    scene.add("worker", 1, 6, "well", events=[replaced(2.1, "first"), again])
    scene.add("server", 1, 7, "well", events=[of_scheduler(4.1, 2)])
    verdict = scene.why()
    assert not verdict.is_found and "the job ended well" in verdict.cause
    assert lines_of(verdict) == ["first", "scheduler, term 2", "again", "scheduler, term 3"]
    report = why.report(verdict, scene.recordings)
    assert report.startswith("Survived:\n  ") and report.index("again") < report.index("the job ended well")


def test_who_has_seen_a_server_end_tells_more_than_who_had_a_connection_still(scene):
    scene.add("worker", 0, 5, "well", events=[replaced(2, "it was open", cause=None)])
    scene.add("worker", 1, 6, "well", events=[replaced(2.1, "it was lost")])
    assert lines_of(scene.why()) == ["it was lost"]


@pytest.mark.parametrize(
    ("kind", "words"), [("left", "open: it was told to stop"), ("lost", "open: it is silent"), ("here", "open")]
)
def test_the_scheduler_knows_why_a_server_was_replaced_whose_connections_were_open(scene, kind, words):
    scene.add("worker", 0, 5, "well", events=[replaced(2, "open", cause=None)])
    scene.add("scheduler", None, 1, "well", events=[(1.9, kind, {**SERVER_0, "text": "it is silent"})])
    assert lines_of(scene.why()) == [words]


def test_what_no_worker_could_tell_the_scheduler_or_another_server_does(scene):
    scene.add("server", 1, 7, "job", GONE, [replaced(2, "a server's words", cause=None)])
    assert lines_of(scene.why()) == ["a server's words"]
    at_scheduler = (1.9, "replaced", {**SERVER_0, "text": "the scheduler's words"})
    scene.add("scheduler", None, 1, "job", GONE, [scene.ran(), at_scheduler])
    assert lines_of(scene.why()) == ["the scheduler's words"]
    scene.add("worker", 0, 5, "job", GONE, [replaced(2.1, "a worker's words")])
    assert lines_of(scene.why()) == ["a worker's words"]


def test_a_server_that_was_replaced_is_no_cause_of_a_later_end(scene):
    ended = {"role": "server", "rank": 0, "number": 9, "code": 137, "signal": 9, "cause": "killed", "host": "there"}
    scene.add(
        "scheduler", None, 1, "job", GONE, [scene.ran(), (3, "lost", {**SERVER_0, "text": "reset"})], "it is gone"
    )
    scene.add("launcher", None, 99, events=[(3, "ended", dict(ended, text="signal SIGKILL"))])
    assert scene.why().role == "server"
    scene.add("worker", 0, 5, "job", GONE, [replaced(3.5, "server 0 was lost")], "it is gone")
    verdict = scene.why()
    assert (verdict.kind, verdict.role, verdict.rank) == ("gone", "worker", 1)
    assert lines_of(verdict) == ["server 0 was lost"]
    assert not any("server 0" in line for line in verdict.timeline)


def test_its_successor_is_a_cause_when_it_has_none(scene):
    events = [scene.ran(), (7, "lost", {**SERVER_0, "host": "there:10", "text": "reset"})]
    scene.add("scheduler", None, 1, "job", {**GONE, **SERVER_0, "host": "there:10"}, events)
    scene.add("worker", 0, 5, "job", {**GONE, **SERVER_0, "host": "there:10"}, [replaced(3.5, "server 0 was lost")])
    verdict = scene.why()
    assert (verdict.role, verdict.rank, verdict.host) == ("server", 0, "there:10")
    assert len(verdict.survived) == 1


def test_a_scheduler_that_is_lost_once_more_is_the_cause_and_the_first_time_is_none(scene):
    def killed(at_s, pid):
        return (at_s, "ended", {"role": "scheduler", "number": pid, "code": 137, "signal": 9, "text": "SIGKILL"})

    away = {"kind": "unreachable", "role": "scheduler", "for_ns": 2 * S, "detail": "connection refused"}
    scene.add("launcher", None, 99, events=[killed(3, 20), killed(8, 21)])
    scene.add("worker", 0, 5, "job", away, [of_scheduler(4, 2)])
    verdict = scene.why()
    assert verdict.role == "scheduler" and verdict.when == pytest.approx(ZERO_S + 8)
    assert lines_of(verdict) == ["scheduler, term 2"]


def test_an_empty_folder_has_no_cause(tmp_path):
    verdict = first_cause.explain(tmp_path)
    assert not verdict.is_found and verdict.cause


def test_every_kind_of_the_core_is_known_has_a_rule_and_is_documented():
    header = (ROOT / "src" / "base" / "cause.h").read_text()
    enumerators = re.findall(r"^  k(\w+) = (\d+),", header, re.MULTILINE)
    names = [re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name, _ in enumerators]
    assert list(causes.KINDS) == names and [int(number) for _, number in enumerators] == list(range(len(names)))
    assert set(suspects.RULES) == set(names) - {causes.OTHER}
    documented = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", (ROOT / "docs" / "flight.md").read_text(), re.MULTILINE)
    assert set(names) <= {name for row in documented for name in re.findall(r"`(\w+)`", row)}


# ---- recordings of form 1, as versions without causes have left them

OLD = Path(__file__).parent / "recordings_of_form_1"


@pytest.mark.parametrize(
    ("folder", "kind", "role", "rank", "words"),
    [
        ("gone", "gone", "worker", 1, "worker 1 (node:31049) disappeared: it was killed"),
        ("differs", "tensor_differs", "worker", None, 'tensor "A" differs between ranks: worker 1 (int32'),
        ("settings", "setting_invalid", "worker", None, "DMLC_WORKER_ID='none' is not valid"),
    ],
)
def test_recordings_of_form_1_are_read(folder, kind, role, rank, words):
    recordings = flight.read([OLD / folder])
    assert recordings and all(each.header["byteps_flight"] == form_1.FORM for each in recordings)
    verdict = first_cause.analyse(flight.newest_job(recordings))
    assert (verdict.kind, verdict.role, verdict.rank) == (kind, role, rank) and words in verdict.cause


def test_form_1_has_news_of_members_in_its_lines():
    (scheduler,) = [each for each in flight.read([OLD / "gone"]) if each.role == "scheduler"]
    assert [(each.kind, each.rank) for each in scheduler.events if each.kind in ("here", "lost")] == [
        ("here", 0), ("here", 1), ("lost", 1),
    ]  # fmt: skip
    assert scheduler.find("lost")[0].text == "127.0.0.1:47388: the other side closed the connection"


def form_1_cause(text, role="scheduler", how="job", code=""):
    head = {"byteps_flight": 1, "role": role, "how": how, "code": code, "text": text, "rank": 0}
    recording = flight.parse("x", json.dumps(head).encode())
    return recording.cause


MEMBER_TEXT = "worker 1 (there:7)"
WORKER_2 = {"role": "worker", "rank": 2}
AWAY = "scheduler at 10.0.0.1:9000"
UNREACHABLE_TEXT = "server 0 (there:9) at 10.0.0.2:7000, shard 0 cannot be reached for 3 s: "


@pytest.mark.parametrize(
    ("text", "kind", "who", "more"),
    [
        (f"{MEMBER_TEXT} has said nothing for 3.5 s and the job", "silent", WORKER_1, {"for_s": 3.5}),
        (f"{MEMBER_TEXT} has been gone for 2 min (cut) and the job", "gone", WORKER_1, {"for_s": 120, "detail": "cut"}),
        (f"{MEMBER_TEXT} has been gone for 3 s (CRC32C differs) and the job", "damaged", WORKER_1, {}),
        (f"{MEMBER_TEXT} was started anew while the job ran", "started_anew", WORKER_1, {}),
        (f"{MEMBER_TEXT} was stopped while the job ran", "left", WORKER_1, {}),
        (f"{MEMBER_TEXT}: a server was told to stop", "told_to_stop", WORKER_1, {}),
        (f"{MEMBER_TEXT}: it broke (events: /a/b)", "other", WORKER_1, {"detail": "it broke"}),
        (f"{MEMBER_TEXT}: {UNREACHABLE_TEXT}refused", "unreachable", SERVER_0, {"detail": "refused", "for_s": 3}),
        (f"{MEMBER_TEXT}: {UNREACHABLE_TEXT}Too many open files", "no_descriptors", WORKER_1, {}),
        ("tensor 'B' waits for worker 2, which has left the job", "left", WORKER_2, {"detail": "B"}),
        ("worker 2 has left the job: a barrier", "left", WORKER_2, {}),
        ("all workers wait, and none can go on: x", "stalled", {}, {}),
        ("two processes claim to be worker 1", "turned_away", {}, {}),
        ("workers disagree about the size of the job", "sizes_differ", {}, {}),
        ("socket: Too many open files", "no_descriptors", {}, {}),
        ("bind: out of memory", "no_memory", {}, {}),
        ("something else", "other", {}, {}),
        (
            "gave up after 60 s: waiting for workers 0-1 and 3 of 4 and server 1 of 2; here: nobody", "incomplete", {},
            {"missing": (("worker", 0), ("worker", 1), ("worker", 3), ("server", 1))},
        ),
    ],
)  # fmt: skip
def test_sentences_of_form_1_have_causes(text, kind, who, more):
    cause = form_1_cause(text)
    assert cause.kind == kind
    assert cause.who == causes.participant(who)
    for name, value in more.items():
        assert getattr(cause, name) == value


@pytest.mark.parametrize(
    ("text", "kind", "detail"),
    [
        (f"{AWAY} has been unreachable for 3 s (no way): the job cannot go on without it", "unreachable", "no way"),
        (f"gave up joining after 60 s: {AWAY} unreachable since 60 s: refused; is it", "unreachable", "refused"),
        (f"{AWAY} has said nothing for 3 s: the job cannot go on without it; look at its log", "silent", ""),
    ],
)
def test_a_member_of_form_1_that_misses_the_scheduler_says_so(text, kind, detail):
    cause = form_1_cause(text, role="worker")
    assert (cause.kind, cause.who.role, cause.detail) == (kind, "scheduler", detail)


# ---- files


def test_hostile_and_cut_lines_are_skipped_and_texts_are_harmless():
    head = {
        "byteps_flight": 2,
        "role": "worker",
        "text": "\x1b[31mred\u202e",
        "rank": "no number",
        "peers": [3, {"rank": []}],
    }
    lines = [
        json.dumps(head).encode(), b"\xff\xfe", b"[" * 100_000, b'{"t": "x"}', b'{"t": 1e999}', b"x" * 200_000, b"null",
        b'{"t": 5, "kind": 7, "text": ["list"], "number": 1e400}', b'{"t": 6, "kind": "log", "text": "fine"}',
        b'{"t": 7, "ki',
    ]  # fmt: skip
    recording = flight.parse("x", b"\n".join(lines))
    assert [event.text for event in recording.events] == ["", "fine"]
    assert recording.damaged_lines == len(lines) - 3
    assert recording.text == "?[31mred?" and recording.rank is None
    assert first_cause.analyse([recording]).cause


def test_what_is_no_recording_is_not_read(tmp_path):
    (tmp_path / "byteps-flight-worker-0-a-1.jsonl").write_text("hello\n")
    (tmp_path / "byteps-flight-worker-0-a-2.jsonl").write_bytes(os.urandom(1000))
    (tmp_path / "byteps-flight-worker-0-a-3.jsonl").write_text("")
    assert flight.read([tmp_path]) == []


def test_only_the_newest_job_of_a_folder_counts(scene):
    scene.add("scheduler", None, 1, "job", GONE, text="first")
    scene.add("worker", 0, 5, "job", text="other", started_ns=10**12, end_s=1010)
    scene.add("worker", 0, 6, "job", text="elsewhere", started_ns=10**12, end_s=1005, scheduler="10.0.0.2:9000")
    assert [each.text for each in flight.newest_job(scene.recordings)] == ["other"]


def launcher_of(scene, scheduler, began_s, end_s, **ended):
    scene.add(
        "launcher", None, 99, events=[(end_s, "ended", dict({"role": "worker", "code": 1, "rank": 0}, **ended))],
        started_ns=int(began_s * S), end_s=end_s, scheduler=scheduler,
    )  # fmt: skip
    return scene.recordings[-1]


def of_its_job(scene, launcher):
    return [each.text for each in flight.job_of(launcher, scene.recordings) if each is not launcher]


WRONG = {"kind": "setting_invalid", "detail": "DMLC_WORKER_ID"}


def test_a_launcher_s_job_is_what_names_its_scheduler(scene):
    mine = "127.0.0.1:9002"
    scene.add("worker", 0, 5, "job", text="first", end_s=5, scheduler="127.0.0.1:9001")
    scene.add("worker", 0, 6, "settings", WRONG, text="no job", end_s=5, scheduler="127.0.0.1:none")
    scene.add("worker", 0, 7, "settings", WRONG, text="mine", started_ns=6 * S, end_s=7, scheduler=mine)
    assert of_its_job(scene, launcher_of(scene, mine, 6, 8)) == ["mine"]


def test_what_ended_before_the_launcher_began_is_of_another_job_at_the_same_port(scene):
    scene.add("worker", 0, 5, "job", text="first", end_s=5)
    scene.add("worker", 0, 6, "job", text="mine", started_ns=7 * S, end_s=8)
    scene.add("worker", 1, 7, "job", text="its clock is late", end_s=1, host="there")
    launcher = launcher_of(scene, "10.0.0.1:9000", 6, 9, host="there", number=7)
    assert of_its_job(scene, launcher) == ["its clock is late", "mine"]


def test_wrong_settings_with_the_address_of_another_scheduler_are_of_another_job(scene):
    scene.add("scheduler", None, 1, "job", text="gave up", end_s=11)
    scene.add("worker", 0, 5, "settings", WRONG, text="rank", scheduler="10.0.0.2:9000")
    scene.add("worker", 1, 6, "settings", {**WRONG, "detail": "DMLC_PS_ROOT_PORT"}, text="port", scheduler="10.0.0.1:x")
    job = flight.newest_job(scene.recordings)
    assert sorted(each.text for each in job) == ["gave up", "port"]


def test_jobs_of_one_are_told_apart(scene):
    scene.add("worker", None, 5, "raised", text="first", end_s=5, scheduler="")
    scene.add("worker", None, 6, "raised", text="second", end_s=6, scheduler="")
    assert [each.text for each in flight.newest_job(scene.recordings)] == ["second"]


# ---- real processes

PYTHON = sys.executable


def explain_in(job):
    verdict = first_cause.explain(job.flight)
    assert verdict.is_found, job.story(verdict.cause)
    return verdict


def test_real_wrong_settings_of_a_worker_are_the_cause(tmp_path):
    with Job(tmp_path, workers=1, servers=1, environ={"BYTEPS_START_TIMEOUT_S": "3"}) as job:
        job.start_scheduler()
        job.start_server()
        job.start_worker(0, {"0": []}, {"DMLC_WORKER_ID": "none"})
        job.join()
        verdict = explain_in(job)
        assert verdict.role == "worker" and "DMLC_WORKER_ID='none'" in verdict.cause, job.story(verdict.cause)
        assert "(events: " in job.workers[0].heard("refused")[0]["message"]


def test_a_real_port_in_use_is_the_cause(tmp_path):
    with Job(tmp_path, workers=1, servers=1, environ={"BYTEPS_START_TIMEOUT_S": "3"}, port=free_port()) as job:
        job.start_scheduler()
        wait_for("the scheduler to listen", lambda: "listening" in job.scheduler.err)
        with Job(
            tmp_path / "second", workers=1, servers=1, environ={"BYTEPS_JOB_KEY": "k" * 32}, port=job.port
        ) as second:
            second.start_scheduler()
            second.join()
            assert second.scheduler.code == 3
            verdict = explain_in(second)
            assert verdict.role == "scheduler" and str(job.port) in verdict.cause
            assert "(events: " in second.scheduler.err


def test_a_worker_that_never_comes_is_the_cause(tmp_path):
    with Job(tmp_path, workers=2, servers=1, environ={"BYTEPS_START_TIMEOUT_S": "2"}) as job:
        job.start_scheduler()
        job.start_server()
        job.start_worker(0, {"0": []})
        job.join()
        verdict = explain_in(job)
        assert (verdict.role, verdict.rank) == ("worker", 1), job.story(verdict.cause)


def test_a_real_wrong_key_is_the_cause(tmp_path):
    environ = {"BYTEPS_START_TIMEOUT_S": "9", "BYTEPS_FAILURE_TIMEOUT_MS": "1000"}
    with Job(tmp_path, workers=1, servers=1, environ=environ) as job:
        job.start_scheduler()
        job.start_server()
        job.start_worker(0, {"0": []}, {"BYTEPS_JOB_KEY": "another key of sixteen bytes"})
        job.join()
        verdict = explain_in(job)
        assert (verdict.role, verdict.rank) == ("worker", 0), job.story(verdict.cause)
        assert "key" in verdict.cause
        written = "".join(path.read_text() for path in job.flight.iterdir())
        assert "another key of sixteen bytes" not in written and job.environ["BYTEPS_JOB_KEY"] not in written


def test_bpslaunch_says_the_first_cause_and_where_the_recordings_are(place):
    code, out, err = place.run("--local", "--", PYTHON, "-c", DIFFER)
    assert code == 1, err
    assert "bpslaunch: First cause: tensor " in err and "worker 0" in err and "worker 1" in err
    folder = err.rsplit("bps why ", 1)[1].split()[0]
    told = subprocess.run(
        [PYTHON, "-m", "byteps.tools.bps", "why", "--json", folder],
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")}, capture_output=True, text=True,
    )  # fmt: skip
    assert told.returncode == 0 and json.loads(told.stdout)["cause"].startswith("tensor ")
    assert place.left() == [] and place.recordings()


DIFFER = """
import ctypes
from byteps._core.client import Job
job = Job.join()
count = 10 + job.rank
values = (ctypes.c_float * count)()
address = ctypes.addressof(values)
job.wait(job.push_pull("A", 0, address, address, count, 0))
"""


def test_a_job_that_ends_well_leaves_no_recording(place):
    code, out, err = place.run("--local", "--", PYTHON, MEMBER)
    assert code == 0 and place.recordings() == []


def test_an_interrupted_job_leaves_recordings_and_no_blame(place):
    launcher = place.launch("--local", "--", PYTHON, MEMBER, "--sleep", "--touch", "joined")
    wait_for("both workers to join", lambda: {"joined0", "joined1"} <= set(os.listdir(place.folder)))
    launcher.send_signal(signal.SIGINT)
    out, err = launcher.communicate(timeout=30)
    assert "First cause" not in err and "bps why " in err
    folder = err.rsplit("bps why ", 1)[1].split()[0]
    assert "interrupted (Ctrl-C)" in first_cause.explain(folder).cause


def test_a_folder_that_was_chosen_stays(place):
    chosen = place.folder / "chosen"
    code, out, err = place.run(
        "--local", "--env", f"BYTEPS_FLIGHT_DIR={chosen}", "--", PYTHON, MEMBER, "--only", "0", "--exit", "7"
    )
    assert code == 7 and list(chosen.glob("byteps-flight-launcher-*"))
    assert first_cause.explain(chosen).rank == 0


RAISES = """
import sys
from byteps._core import session
session.init()
raise KeyError(sys.argv[1])
"""


def test_jobs_that_share_a_folder_have_each_its_own_cause(place):
    environ = {"BYTEPS_FLIGHT_DIR": str(place.folder / "chosen")}
    code, out, err = place.run("--local", "--", PYTHON, "-c", DIFFER, environ=environ)
    assert code == 1 and "bpslaunch: First cause: tensor " in err, err
    for workers, what in (("1", "second"), ("1", "third"), ("2", "fourth")):
        command = ["--local", "--workers", workers, "--", PYTHON, "-c", RAISES, what]
        code, out, err = place.run(*command, environ=environ)
        assert code == 1 and re.search(f"First cause: the program on worker.* raised KeyError: '{what}'", err), err
        assert f"'{what}'" in first_cause.explain(place.folder / "chosen").cause


def test_python_asks_by_the_documented_name():
    from byteps import why as documented

    assert documented.explain is first_cause.explain


@pytest.mark.parametrize(
    "text",
    [
        "worker 1 (a:1) has said nothing for 1.2.3 s",
        f"worker {'9' * 5000} (a:1) has said nothing for 1 s",
        f"worker 1 (a:1) has said nothing for {'9' * 400} s",
        f"workers 0-{'9' * 5000} of 2",
        "gave up waiting for " * 3000,
    ],
)
def test_nothing_in_a_sentence_of_form_1_is_trusted(text):
    assert form_1_cause(text).kind == "other"
