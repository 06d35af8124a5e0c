"""BYTEPS_AUTOTUNE=1: a job works with it, and says what it found, at the level of the log that is usual."""

import sys

import pytest
from job import Job
from place import ROOT

sys.path.insert(0, str(ROOT / "bench"))

import netlab

BULK = str(ROOT / "examples" / "tuning" / "bulk.py")
WHY_NOT = netlab.missing()


def start_worker(job, rank, megabytes, prefix=()):
    job.start_program(rank, [sys.executable, BULK, megabytes], {"BYTEPS_LOG_LEVEL": ""}, prefix)


def run(job, megabytes, prefix=lambda host: (), timeout_s=60):
    job.start_scheduler(prefix=prefix(0))
    job.start_server(prefix=prefix(0))
    for rank in range(job.size):
        start_worker(job, rank, megabytes, prefix(rank + 1))
    job.join(timeout_s=timeout_s)
    for process in job.processes:
        assert process.code == 0, job.story(f"{process.name} ended with {process.code}")
    return [[line for line in worker.err.splitlines() if "autotune" in line] for worker in job.workers]


def test_it_says_that_it_looks_without_any_other_setting(tmp_path):
    with Job(tmp_path, servers=1, environ={"BYTEPS_AUTOTUNE": "1", "BYTEPS_ENABLE_IPC": "0"}) as job:
        for rank, lines in enumerate(run(job, 100)):
            assert f"INFO worker {rank}] autotune: looks for the best credit" in lines[0], job.story("not said")


def test_a_credit_that_is_set_wins_and_that_is_said_once(tmp_path):
    with Job(tmp_path, servers=1, environ={"BYTEPS_AUTOTUNE": "1", "BYTEPS_CREDIT_BYTES": "500000"}) as job:
        for lines in run(job, 100):
            assert len(lines) == 1 and "does nothing" in lines[0] and "500000 bytes" in lines[0], job.story("not said")


@pytest.mark.skipif(WHY_NOT != "", reason=WHY_NOT)
@pytest.mark.timeout(200)
def test_on_a_shaped_network_it_says_what_it_found(tmp_path):
    with netlab.Lab(2, "200mbit") as lab:
        environ = {"BYTEPS_AUTOTUNE": "1", "DMLC_PS_ROOT_URI": lab.address(0)}
        with Job(tmp_path, workers=1, servers=1, environ=environ) as job:
            (lines,) = run(job, 660, lambda host: ["ip", "netns", "exec", lab.namespace(host)], timeout_s=150)
            assert len(lines) >= 2 and "autotune: credit " in lines[1], job.story("nothing was found")
            assert "MB/s that answers come at" in lines[1]
