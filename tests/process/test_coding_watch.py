"""Coding that takes longer than the elements would on the line is told once; on a slow line it pays, and is not."""

import sys
from pathlib import Path

import pytest
from job import Job
from place import ROOT

sys.path.insert(0, str(ROOT / "bench"))

import netlab

BULK = str(Path(__file__).with_name("coded_bulk.py"))
WHY_NOT = netlab.missing()
STEPS = 33  # of 32 MiB; it judges by 1024


def warnings(job, broadcasts, prefix=lambda host: ()):
    """What each of two workers has said of coding."""
    job.start_scheduler(prefix=prefix(0))
    job.start_server(prefix=prefix(0))
    for rank in range(job.size):
        command = [sys.executable, BULK, str(broadcasts), str(STEPS)]
        job.start_program(rank, command, {"BYTEPS_LOG_LEVEL": ""}, prefix(rank + 1))
    job.join(timeout_s=150)
    for process in job.processes:
        assert process.code == 0, job.story(f"{process.name} ended with {process.code}")
    return [[line for line in worker.err.splitlines() if "slower here" in line] for worker in job.workers]


@pytest.mark.timeout(200)
def test_where_coding_takes_longer_than_the_line_rank_0_says_so_once(tmp_path):
    with Job(tmp_path, servers=1) as job:
        told, other = warnings(job, broadcasts=20)
        assert other == [] and len(told) == 1, job.story("not said once")
        assert "WARNING worker 0] compression makes exchanges slower here: coding " in told[0], told
        assert "Compression.none" in told[0] and "bps doctor" in told[0], told


@pytest.mark.skipif(WHY_NOT != "", reason=WHY_NOT)
@pytest.mark.timeout(200)
def test_on_a_slow_line_it_pays_and_nothing_is_said(tmp_path):
    with netlab.Lab(3, "200mbit") as lab:
        environ = {"DMLC_PS_ROOT_URI": lab.address(0)}
        with Job(tmp_path, workers=2, servers=1, environ=environ) as job:
            assert warnings(job, 1, lambda host: ["ip", "netns", "exec", lab.namespace(host)]) == [[], []]
