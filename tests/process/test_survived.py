"""Losses that a job survives are seen: metrics() counts them, bps why lists them, and timelines have them."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from job import SUMMING, Job
from place import ROOT, wait_for

from byteps.recordings import first_cause, flight
from byteps.tools import trace

TRACED = {"BYTEPS_TRACE_ON": "1", "BYTEPS_TRACE_START_STEP": "0", "BYTEPS_TRACE_END_STEP": "100000"}


def recovering(folder, summing="servers", **environ):
    local_reduce, forced = SUMMING[summing]
    full = {
        "BYTEPS_SERVER_ENGINE_THREAD": "2",
        "BYTEPS_LOCAL_REDUCE": local_reduce,
        "BYTEPS_FORCE_DISTRIBUTED": forced,
        "BYTEPS_TRACE_DIR": str(folder / "trace"),
        **environ,
    }
    return Job(folder, environ=full)


def loop_until(path):
    """Sums, and is there for the others until the test has done what it had to do."""
    return {"*": [["loop", 300], ["await_file", str(path)], ["barrier"], ["metrics"]]}


def lose_server(job, rank):
    """Kills it, and waits until all know its like."""
    job.servers[rank].kill()
    job.servers[rank] = job.start_server({"DMLC_RANK": str(rank)})
    job.servers.pop()
    wait_for("its successor", lambda: "takes its place" in job.scheduler.err, 20)
    wait_for("workers that know", lambda: all("has taken its place" in worker.err for worker in job.workers), 20)


def lose_scheduler(job):
    job.scheduler.kill()
    wait_for("its end", lambda: job.scheduler.code is not None)
    job.start_scheduler()
    wait_for("its like", lambda: "the scheduler goes on with the job" in job.scheduler.err, 20)
    wait_for("workers that know", lambda: all("is back" in worker.err for worker in job.workers), 20)


def why(folder):
    command = [sys.executable, "-m", "byteps.tools.bps", "why", str(folder)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    return subprocess.run(command, env=environ, capture_output=True, text=True)


SERVER = r"server 0 \(\S+:{}\) was lost \(.+\); server 0 \(\S+:{}\) took its place [\d.]+ m?s later"
SCHEDULER = r"scheduler at 127.0.0.1:{} was lost \(.+\); started anew, it had the job again .+ later \(term 2\)"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("summing", ["servers", "relays"])
def test_a_job_that_has_lost_a_server_and_the_scheduler_counts_them_and_says_so(tmp_path, summing):
    go_on = tmp_path / "go_on"
    with recovering(tmp_path, summing, BYTEPS_FLIGHT_ALWAYS="1", **TRACED) as job:
        job.start(loop_until(go_on))
        job.wait_for("looping")
        lost = job.servers[0]
        lose_server(job, 0)
        lose_scheduler(job)
        go_on.touch()
        job.join()
        assert all(process.code == 0 for process in job.processes), job.story("a process failed")
        for worker in job.workers:
            counted = worker.heard("metrics")[0]
            losses = {name: counted[name] for name in counted if name.startswith("lost_")}
            assert losses == {"lost_servers": 1, "lost_schedulers": 1, "lost_workers": 0}, job.story(losses)

        server = SERVER.format(lost.pid, job.servers[0].pid)
        scheduler = SCHEDULER.format(job.port)
        told = why(job.flight)
        section = rf"Survived:\n  \d\d:\d\d:\d\d\.\d\d\d  {server}\n  \d\d:\d\d:\d\d\.\d\d\d  {scheduler}\n\n"
        assert re.match(section + "the job ended well", told.stdout), job.story(told.stdout + told.stderr)

        beside = next(each for each in flight.read([job.flight]) if (each.role, each.rank) == ("server", 1))
        assert [each.role for each in beside.find("replaced")] == ["server", "scheduler"], "servers tell of it, too"
        assert beside.find("replaced")[0].host.endswith(f":{lost.pid}")

        processes = trace.read([str(tmp_path / "trace")])
        workers = [each for each in processes if each.role == "worker"]
        assert len(workers) == 2
        for each in workers:
            assert [mark.name for mark in each.marks] == ["server 0 replaced", "scheduler replaced"]
            assert re.fullmatch(server, each.marks[0].text) and re.fullmatch(scheduler, each.marks[1].text)
        top = trace.text_of(trace.summarize(processes), processes)
        assert re.search(rf"\nMeanwhile: {server}\.\nMeanwhile: {scheduler}\.(\n|$)", top), top
        merged = tmp_path / "merged.json"
        assert trace.main(["merge", str(tmp_path / "trace"), "-o", str(merged)], io.StringIO()) == 0
        instants = [each for each in json.loads(merged.read_text())["traceEvents"] if each["ph"] == "i"]
        assert sum(each["name"] == "server 0 replaced" for each in instants) == 2


@pytest.mark.timeout(120)
def test_what_was_survived_is_not_why_a_job_ends_later(tmp_path):
    with recovering(tmp_path, BYTEPS_FAILURE_TIMEOUT_MS="1000") as job:
        job.start({"*": [["loop"]]})
        job.wait_for("looping")
        lose_server(job, 0)
        job.workers[1].kill()
        job.join()
        verdict = first_cause.explain(job.flight)
        assert (verdict.kind, verdict.role, verdict.rank) == ("gone", "worker", 1), job.story(verdict)
        assert len(verdict.survived) == 1 and "server 0" in verdict.survived[0]
        told = why(job.flight)
        assert told.returncode == 0 and told.stdout.startswith("Survived:\n")
        assert "\n\nFirst cause: worker 1" in told.stdout


@pytest.mark.timeout(120)
def test_a_server_that_was_told_to_stop_counts_and_is_told_as_such(tmp_path):
    go_on = tmp_path / "go_on"
    with recovering(tmp_path, BYTEPS_FLIGHT_ALWAYS="1") as job:
        job.start(loop_until(go_on))
        job.wait_for("looping")
        job.servers[1].send(signal.SIGTERM)
        wait_for("its end", lambda: job.servers[1].code is not None, 20)
        go_on.touch()
        job.join()
        assert [worker.heard("metrics")[0]["lost_servers"] for worker in job.workers] == [1, 1]
        (survived,) = first_cause.explain(job.flight).survived
        assert "took the place of server 1" in survived and survived.endswith("it was told to stop")


LOSE_WORKER = """
import os, sys, time
import ctypes
from byteps._core.client import Job
job = Job.join()
values = (ctypes.c_float * 1000)()
address = ctypes.addressof(values)
deadline = time.monotonic() + 30
while time.monotonic() < deadline:
    job.wait(job.push_pull("sum", 0, address, address, 1000, 0))
    time.sleep(0.01)
    if job.rank == 1 and os.path.exists(sys.argv[1]):
        os.kill(os.getpid(), 9)
"""


@pytest.mark.timeout(120)
def test_bpslaunch_blames_who_ended_the_job_and_no_server_that_it_had_started_again(place):
    """It ends the workers that live at once, so that none leaves a recording: others tell of the server."""
    go_on, log = place.folder / "go_on", place.folder / "log.txt"
    environ = {"BYTEPS_LOCAL_REDUCE": "0"}
    command = ["--local", "--workers", "2", "--servers", "2", "--", sys.executable, "-c", LOSE_WORKER, str(go_on)]
    with open(log, "w") as output:
        launcher = place.launch(*command, environ=environ, stdout=output, stderr=output)
    servers = lambda: [pid for pid, what in place.living().items() if "byteps_server" in what]
    wait_for("a running job", lambda: len(servers()) == 2, 30)
    time.sleep(2)
    os.kill(servers()[0], signal.SIGKILL)
    wait_for("workers that know", lambda: log.read_text().count("has taken its place") >= 2, 30)
    go_on.touch()
    assert launcher.wait(30) == 128 + signal.SIGKILL, log.read_text()
    assert "First cause: server" not in log.read_text(), log.read_text()
    verdict = first_cause.explain(re.findall(r"bps why (\S+)", log.read_text())[-1])
    assert (verdict.kind, verdict.role, verdict.rank) == ("killed", "worker", 1), verdict
    assert len(verdict.survived) == 1 and "server" in verdict.survived[0], verdict
