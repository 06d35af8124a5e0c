"""bps why: the first cause, from recordings written here by hand (every kind of cause), and from real processes where
settings, ports, keys or the launcher are concerned. Every other failure of real processes: test_failures.py."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest
from job import Job
from place import MEMBER, ROOT, free_port, wait_for

from byteps.tools import flight, why

ZERO_S = 1_700_000_000  # the time of day at the clock's zero


class Scene:
    """Recordings written by hand; times are seconds on a clock that all share."""

    def __init__(self):
        self.recordings = []

    def add(self, role, rank, pid, how, code, text, events=(), end_s=10.0, peers=(), host="here", **header):
        fields = {
            "byteps_flight": 1, "role": role, "host": host, "pid": pid, "scheduler": "10.0.0.1:9000",
            "wall_zero_ns": ZERO_S * 10**9, "started_ns": 0, "written_ns": int(end_s * 1e9),
            "how": how, "code": code, "text": text,
            "peers": [dict(zip(("role", "rank", "host", "state", "heard_ns"), peer)) for peer in peers], **header,
        }  # fmt: skip
        if rank is not None:
            fields["rank"] = rank
        lines = [fields]
        for at_s, kind, *more in events:
            lines.append({"t": int(at_s * 1e9), "kind": kind, **(more[0] if more else {})})
        if how:
            lines.append({"t": int(end_s * 1e9), "kind": "end", "name": how, "text": text})
        content = "\n".join(map(json.dumps, lines)).encode()
        self.recordings.append(flight.parse(f"/d/byteps-flight-{role}-{rank}-{host}-{pid}.jsonl", content))
        return self

    def ran(self, at_s=1.0):
        """The job was complete: the scheduler sent the roster."""
        return (at_s, "sent", {"name": "Roster", "text": "x"})

    def log(self, at_s, text):
        return (at_s, "log", {"name": "INFO", "text": text})

    def why(self):
        return why.analyse(self.recordings)


@pytest.fixture
def scene():
    return Scene()


GONE = "worker 1 (there:7) has been gone for 3 s (1.2.3.4:5: the other side closed the connection) and the job cannot"
SILENT = "worker 1 (there:7) has said nothing for 3 s and the job cannot go on without it"


def test_a_worker_that_is_gone_and_left_nothing_was_killed(scene):
    scene.add("scheduler", None, 1, "job", "Disconnected", GONE, [scene.ran()])
    scene.add("worker", 0, 6, "job", "Disconnected", GONE)
    verdict = scene.why()
    assert (verdict.role, verdict.rank, verdict.host) == ("worker", 1, "there:7")
    assert "worker 1 (there:7) disappeared: it was killed" in verdict.cause
    assert verdict.when == pytest.approx(ZERO_S + 7)
    assert verdict.evidence == [
        "byteps-flight-scheduler-None-here-1.jsonl and 1 more: " + GONE
    ]  # what several say alike is one line


def test_a_worker_that_is_silent_and_was_paused_says_so_itself(scene):
    scene.add("scheduler", None, 1, "job", "Disconnected", SILENT, [scene.ran()])
    scene.add(
        "worker", 1, 7, "job", "Disconnected", SILENT, [(12.0, "late", {"number": 5 * 10**9})], 12.0, host="there"
    )
    verdict = scene.why()
    assert (verdict.role, verdict.rank) == ("worker", 1)
    assert "stood still for 5.0 s" in verdict.cause and verdict.when == pytest.approx(ZERO_S + 7)


def test_a_worker_that_is_silent_but_lived_was_cut_off(scene):
    scene.add("scheduler", None, 1, "job", "Disconnected", SILENT, [scene.ran()])
    lost = "scheduler at 10.0.0.1:9000 has said nothing for 3 s: the job cannot go on without it"
    scene.add("worker", 1, 7, "job", "Disconnected", lost, host="there")
    verdict = scene.why()
    assert verdict.rank == 1 and "network" in verdict.remedy


def test_a_scheduler_that_left_nothing_was_killed(scene):
    text = "scheduler at 10.0.0.1:9000 has been unreachable for 3 s (10.0.0.1:9000: connection refused): it cannot"
    for rank in range(3):
        scene.add(
            "worker", rank, rank + 5, "job", "Disconnected", text, [(1, "received", {"name": "Roster"})], epoch=1
        )
    verdict = scene.why()
    assert (verdict.role, verdict.rank) == ("scheduler", None)
    assert "scheduler at 10.0.0.1:9000 disappeared" in verdict.cause and "connection refused" in verdict.cause


def test_a_scheduler_that_could_not_have_its_port_is_why_nobody_reached_it(scene):
    text = "scheduler at 10.0.0.1:9000 unreachable since 60 s: 10.0.0.1:9000: connection refused; is it started?"
    scene.add("worker", 0, 5, "job", "Timeout", "gave up joining after 60 s: " + text, end_s=60)
    taken = "cannot listen at port 9000 (DMLC_PS_ROOT_PORT): address already in use"
    scene.add("scheduler", None, 1, "port", "System", taken, end_s=30)
    verdict = scene.why()  # although the worker was there first
    assert verdict.role == "scheduler" and "port 9000" in verdict.cause


def test_a_server_that_cannot_be_reached_and_is_gone_was_killed(scene):
    told = "server 0 (there:9) at 10.0.0.2:7000, shard 0 cannot be reached for 3 s: connection refused"
    scene.add(
        "scheduler", None, 1, "job", "Disconnected", f"worker 0 (here:5): {told}", [scene.ran()],
        peers=[("server", 0, "there:9", "lost", 7 * 10**9)],
    )  # fmt: skip
    scene.add("worker", 0, 5, "job", "Disconnected", told)
    verdict = scene.why()
    assert (verdict.role, verdict.rank) == ("server", 0) and "disappeared" in verdict.cause


def test_a_server_that_only_a_worker_cannot_reach_is_cut_off_from_it(scene):
    told = "server 0 (there:9) at 10.0.0.2:7000, shard 0 cannot be reached for 3 s: no route to host"
    scene.add(
        "scheduler", None, 1, "job", "Disconnected", f"worker 0 (here:5): {told}", [scene.ran()],
        peers=[("server", 0, "there:9", "here", 10 * 10**9)],
    )  # fmt: skip
    verdict = scene.why()
    assert "could not be reached at 10.0.0.2:7000" in verdict.cause and "no route to host" in verdict.cause
    assert "network between" in verdict.remedy


def test_what_was_told_to_stop_is_no_cause_when_a_member_had_vanished_before(scene):
    lost = "worker 0 (there:7) lost its connection: 1.2.3.4:5: the other side closed the connection"
    stopped = "server 0 (here:2): a server was told to stop"
    scene.add("scheduler", None, 1, "job", "Cancelled", stopped, [scene.ran(), scene.log(5, lost)])
    scene.add("server", 0, 2, "job", "Cancelled", "a server was told to stop", [(6, "signal", {"name": "SIGTERM"})])
    verdict = scene.why()
    assert (verdict.role, verdict.rank) == ("worker", 0)


def test_a_member_that_came_back_had_not_vanished(scene):
    lost = "worker 0 (there:7) lost its connection: 1.2.3.4:5: reset"
    stopped = "server 0 (here:2): a server was told to stop"
    events = [scene.ran(), scene.log(5, lost), scene.log(5.1, "worker 0 (there:7) is back")]
    scene.add("scheduler", None, 1, "job", "Cancelled", stopped, events)
    scene.add("server", 0, 2, "job", "Cancelled", "a server was told to stop", [(6, "signal", {"name": "SIGTERM"})])
    verdict = scene.why()
    assert (verdict.role, verdict.rank) == ("server", 0) and "SIGTERM" in verdict.cause


def test_what_the_launcher_saw_names_the_signal_and_clears_those_it_ended(scene):
    events = [scene.ran()]
    events += [scene.log(at, f"worker {r} (here:{7 + r}) lost its connection: x") for r, at in ((0, 5), (1, 5.1))]
    scene.add("scheduler", None, 1, "job", "Cancelled", "server 0 (here:2): a server was told to stop", events)
    ended = dict(role="worker", code=137, signal=9)
    scene.add(
        "launcher", None, 99, "", "", "", [
            (5.01, "ended", dict(ended, rank=0, number=7, text="signal SIGKILL (exit code 137)")),
            (5.2, "ended", dict(ended, rank=1, number=8, told=1, text="signal SIGTERM (exit code 143)")),
        ],
    )  # fmt: skip
    verdict = scene.why()
    assert (verdict.role, verdict.rank) == ("worker", 0) and "SIGKILL" in verdict.cause
    assert verdict.is_known_to_launcher


def test_a_mismatch_comes_before_what_it_makes_the_ranks_do(scene):
    had = ["worker 0 (float32, shape 1, 4 bytes, sum)", "worker 1 (int32, shape 1, 4 bytes, sum)"]
    text = 'tensor "A" differs between ranks: ' + ", but ".join(had)
    scene.add("worker", 0, 5, "operation", "Mismatch", text, [(4, "mismatch", {"text": text})], epoch=1)
    left = "tensor 'B' waits for worker 0, which has left the job"
    scene.add("worker", 1, 6, "operation", "Disconnected", left, [(9, "failed", {"text": left})])
    scene.add("scheduler", None, 1, "job", "Cancelled", "the scheduler was told to stop", [scene.ran()])
    verdict = scene.why()
    assert verdict.cause == text and verdict.when == pytest.approx(ZERO_S + 4)


def test_a_server_without_memory_is_named(scene):
    text = 'server 1 has no memory for tensor "big" (8 GiB): cannot allocate memory'
    scene.add("worker", 0, 5, "operation", "System", text, [(4, "mismatch", {"text": text})])
    verdict = scene.why()
    assert (verdict.role, verdict.rank) == ("server", 1) and '"big"' in verdict.cause


def test_a_rank_that_raised_is_named_with_its_exception(scene):
    scene.add("worker", 1, 6, "raised", "Cancelled", "KeyError: 'x'", [(4, "raised", {"text": "KeyError: 'x'"})])
    left = "tensor 'B' waits for worker 1, which has left the job"
    scene.add(
        "worker",
        0,
        5,
        "operation",
        "Disconnected",
        left,
        [(4, "received", {"name": "Leave", "text": "worker 1, for good"})],
    )
    verdict = scene.why()
    assert (verdict.role, verdict.rank) == ("worker", 1) and "raised KeyError: 'x'" in verdict.cause


def test_a_rank_that_left_early_is_named_by_those_who_waited(scene):
    left = "tensor 'B' waits for worker 1, which has left the job"
    scene.add(
        "worker",
        0,
        5,
        "operation",
        "Disconnected",
        left,
        [(4, "received", {"name": "Leave", "text": "worker 1, for good"})],
    )
    verdict = scene.why()
    assert (verdict.role, verdict.rank) == ("worker", 1) and "'B'" in verdict.cause
    assert verdict.when == pytest.approx(ZERO_S + 4)


def test_a_rank_that_left_is_named_also_by_those_at_a_barrier(scene):
    text = "worker 1 has left the job: a barrier of all workers can never end"
    scene.add("worker", 0, 5, "raised", "Cancelled", "BarrierError", [(4, "done", {"text": text})])
    assert any(s.role == "worker" and s.rank == 1 for s in why.find_suspects(scene.recordings))


def test_who_is_missing_is_excused_by_wrong_settings(scene):
    text = "gave up after 60 s: waiting for worker 1 of 2; here: worker 0 (here:5) since 60 s"
    scene.add("scheduler", None, 1, "job", "Timeout", text, end_s=60)
    verdict = scene.why()
    assert (verdict.role, verdict.rank) == ("worker", 1) and "worker 1 of 2 did not come" in verdict.cause
    scene.add(
        "worker", None, 8, "settings", "InvalidArgument", "DMLC_WORKER_ID='x' is not valid", end_s=61, scheduler=""
    )
    verdict = scene.why()
    assert verdict.host == "here:8" and "DMLC_WORKER_ID='x'" in verdict.cause


def test_wrong_settings_are_no_cause_once_the_job_has_run(scene):
    scene.add("worker", None, 8, "settings", "InvalidArgument", "DMLC_WORKER_ID='x' is not valid", end_s=0.5)
    scene.add("scheduler", None, 1, "job", "Disconnected", GONE, [scene.ran(2)])
    assert scene.why().rank == 1


def test_an_interrupt_is_no_failure(scene):
    for rank in (0, 1):
        scene.add(
            "worker",
            rank,
            5 + rank,
            "raised",
            "Cancelled",
            "KeyboardInterrupt: ",
            [(4, "raised", {"text": "KeyboardInterrupt: "})],
        )
    assert "interrupted" in scene.why().cause


def test_descriptors_that_ran_out_are_named(scene):
    scene.add(
        "worker", 0, 5, "job", "System", "socket: Too many open files", [(3, "down", {"text": "Too many open files"})]
    )
    verdict = scene.why()
    assert "no file descriptors left" in verdict.cause and "ulimit" in verdict.remedy


def test_sizes_that_differ_are_the_scheduler_s_own_words(scene):
    text = "workers disagree about the size of the job: worker 0 (here:5) says 2 workers, worker 1 (here:6) says 3"
    scene.add("scheduler", None, 1, "job", "Mismatch", text)
    scene.add("worker", 0, 5, "job", "Mismatch", text)
    assert scene.why().cause == text


def test_a_reason_that_no_rule_knows_is_told_as_it_is(scene):
    scene.add("scheduler", None, 1, "job", "Unsupported", "something new")
    scene.add("server", 0, 2, "job", "Unsupported", "something new")
    assert scene.why().cause == "something new"


def test_an_empty_folder_has_no_cause(tmp_path):
    verdict = why.explain(tmp_path)
    assert not verdict.is_found and verdict.cause


# ---- files


def test_hostile_and_cut_lines_are_skipped_and_texts_are_harmless():
    head = {
        "byteps_flight": 1,
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
    assert why.analyse([recording]).cause


def test_what_is_no_recording_is_not_read(tmp_path):
    (tmp_path / "byteps-flight-worker-0-a-1.jsonl").write_text("hello\n")
    (tmp_path / "byteps-flight-worker-0-a-2.jsonl").write_bytes(os.urandom(1000))
    (tmp_path / "byteps-flight-worker-0-a-3.jsonl").write_text("")
    assert flight.read([tmp_path]) == []


def test_only_the_newest_job_of_a_folder_counts(scene):
    scene.add("scheduler", None, 1, "job", "Disconnected", GONE)
    scene.add("worker", 0, 5, "job", "Timeout", "other", started_ns=10**12, end_s=1010)
    scene.add("worker", 0, 6, "job", "Timeout", "elsewhere", started_ns=10**12, end_s=1005, scheduler="10.0.0.2:9000")
    assert [each.text for each in flight.newest_job(scene.recordings)] == ["other"]


def launcher_of(scene, scheduler, began_s, end_s, **ended):
    scene.add(
        "launcher", None, 99, "", "", "", [(end_s, "ended", dict({"role": "worker", "code": 1, "rank": 0}, **ended))],
        started_ns=int(began_s * 1e9), end_s=end_s, scheduler=scheduler,
    )  # fmt: skip
    return scene.recordings[-1]


def of_its_job(scene, launcher):
    return [each.text for each in flight.job_of(launcher, scene.recordings) if each is not launcher]


def test_a_launcher_s_job_is_what_names_its_scheduler(scene):
    mine = "127.0.0.1:9002"
    scene.add("worker", 0, 5, "job", "Timeout", "first", end_s=5, scheduler="127.0.0.1:9001")
    scene.add("worker", 0, 6, "settings", "InvalidArgument", "no job", end_s=5, scheduler="127.0.0.1:none")
    scene.add("worker", 0, 7, "settings", "InvalidArgument", "mine", started_ns=6 * 10**9, end_s=7, scheduler=mine)
    assert of_its_job(scene, launcher_of(scene, mine, 6, 8)) == ["mine"]


def test_what_ended_before_the_launcher_began_is_of_another_job_at_the_same_port(scene):
    scene.add("worker", 0, 5, "job", "Timeout", "first", end_s=5)
    scene.add("worker", 0, 6, "job", "Timeout", "mine", started_ns=7 * 10**9, end_s=8)
    scene.add("worker", 1, 7, "job", "Timeout", "its clock is late", end_s=1, host="there")
    launcher = launcher_of(scene, "10.0.0.1:9000", 6, 9, host="there", number=7)
    assert of_its_job(scene, launcher) == ["its clock is late", "mine"]


def test_wrong_settings_with_the_address_of_another_scheduler_are_of_another_job(scene):
    scene.add("scheduler", None, 1, "job", "Timeout", "gave up", end_s=11)
    scene.add("worker", 0, 5, "settings", "InvalidArgument", "DMLC_WORKER_ID='x'", scheduler="10.0.0.2:9000")
    scene.add("worker", 1, 6, "settings", "InvalidArgument", "DMLC_PS_ROOT_PORT='x'", scheduler="10.0.0.1:x")
    job = flight.newest_job(scene.recordings)
    assert sorted(each.text for each in job) == ["DMLC_PS_ROOT_PORT='x'", "gave up"]


def test_jobs_of_one_are_told_apart(scene):
    scene.add("worker", None, 5, "raised", "Cancelled", "first", end_s=5, scheduler="")
    scene.add("worker", None, 6, "raised", "Cancelled", "second", end_s=6, scheduler="")
    assert [each.text for each in flight.newest_job(scene.recordings)] == ["second"]


# ---- real processes

PYTHON = sys.executable


def explain_in(job):
    verdict = why.explain(job.flight)
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
    assert "interrupted (Ctrl-C)" in why.explain(folder).cause


def test_a_folder_that_was_chosen_stays(place):
    chosen = place.folder / "chosen"
    code, out, err = place.run(
        "--local", "--env", f"BYTEPS_FLIGHT_DIR={chosen}", "--", PYTHON, MEMBER, "--only", "0", "--exit", "7"
    )
    assert code == 7 and list(chosen.glob("byteps-flight-launcher-*"))
    assert why.explain(chosen).rank == 0


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
        assert f"'{what}'" in why.explain(place.folder / "chosen").cause


def test_python_asks_by_the_documented_name():
    from byteps import why as documented

    assert documented.explain is why.explain
