"""Bits that change on the way between real processes: sums stay exact, and when nothing gets through, an error says
why."""

import time

import pytest
from evil import Relays
from job import FAILURE_S, Job

CORRUPTED = "corrupted on the way (CRC32C differs)"


@pytest.fixture
def job(tmp_path):
    # Shared memory would go past the relay.
    environ = {"BYTEPS_ENABLE_IPC": "0", "BYTEPS_RECOVERY_TIMEOUT_S": "1"}
    with Job(tmp_path / "job", workers=2, servers=2, environ=environ) as job:
        yield job
        job.check_nothing_is_left(wait_s=5)


def start_servers(job, relays):
    job.start_scheduler()
    for _ in range(job.server_count):
        job.start_server({"DMLC_PS_ROOT_PORT": str(relays.scheduler_port)})


def start_checked_workers(job, rounds):
    for rank in range(job.size):
        job.start_checked(rank, 1, rounds, "leave")


def test_sums_stay_exact_while_a_bit_changes_now_and_then(job):
    with Relays(job.port, mean_bytes=1_000_000, seed=4) as relays:
        start_servers(job, relays)
        start_checked_workers(job, rounds=12)
        job.join(timeout_s=100)
        assert [worker.code for worker in job.workers] == [0, 0], job.story("a worker failed")
        assert [process.code for process in job.processes] == [0] * 5, job.story("not all ended well")
        assert relays.flips >= 20, "too few to mean anything"
    said = "".join(process.err for process in job.processes)
    assert CORRUPTED in said, job.story("nobody has noticed")
    lines = sum(process.err.count(CORRUPTED) for process in job.servers)
    assert lines <= 4 * len(job.servers), job.story("each kind of line may come once a minute")


@pytest.mark.parametrize("is_outward", [True, False], ids=["to the shards", "from the shards"])
def test_when_nothing_gets_through_whole_the_job_ends_with_that_reason(job, is_outward):
    with Relays(job.port, mean_bytes=None, seed=5) as relays:
        start_servers(job, relays)
        for rank in range(job.size):
            job.start_worker(rank, {"*": [["loop"]]})
        job.wait_for("looping")
        began_s = time.monotonic()
        relays.mean_bytes[is_outward] = 100
        job.join(timeout_s=30)
        job.check_end(began_s, job.workers, [["server", "cannot be reached", CORRUPTED]], bound_s=3 * FAILURE_S)
        # Each of the four connections is tried again every sixtieth of the failure timeout.
        assert relays.connections < 4 * 60 * 1.5, "it tries again without a pause"
