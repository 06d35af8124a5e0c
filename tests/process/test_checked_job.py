"""Jobs of plain C workers whose threads check every sum. Under the sanitizers CI runs the same:
BYTEPS_TEST_BUILD=build/tsan python -m pytest tests/process/test_checked_job.py"""

import signal

import pytest
from job import Job
from place import wait_until

# A build with sanitizers is slow, and so are its silences.
ENVIRON = {"BYTEPS_FAILURE_TIMEOUT_MS": "10000"}
NO_REPORT = ("ThreadSanitizer", "AddressSanitizer", "LeakSanitizer", "runtime error", "CHECK")


def start(job, *arguments):
    job.start_services()
    for rank in range(job.size):
        job.start_checked(rank, *arguments)


def check(job, codes):
    for process in job.processes:
        said = process.err
        assert not any(word in said for word in NO_REPORT), job.story(f"{process.name} has a finding")
        assert process.code in codes[process.name.rstrip("0123456789")], job.story(
            f"{process.name} ended with {process.code}"
        )
    job.check_nothing_is_left()


@pytest.mark.timeout(180)
def test_two_workers_join_twice_and_every_sum_is_right(tmp_path):
    with Job(tmp_path, workers=2, servers=2, environ=ENVIRON) as job:
        start(job, "2", "20", "leave")
        job.join(timeout_s=120)
        check(job, {"worker": [0], "server": [0], "scheduler": [0]})


@pytest.mark.timeout(180)
@pytest.mark.parametrize("victim", ["server", "worker", "scheduler"])
def test_a_killed_process_ends_the_others_without_a_finding(tmp_path, victim):
    environ = {"BYTEPS_FAILURE_TIMEOUT_MS": "3000", "BYTEPS_RECOVERY": "0"}
    with Job(tmp_path, workers=2, servers=2, environ=environ) as job:
        start(job, "1", "0", "leave")
        at_work = lambda: all("round" in worker.out_path.read_text() for worker in job.workers)
        assert wait_until(at_work), job.story("no rounds")
        lost = {"server": job.servers, "worker": job.workers, "scheduler": [job.scheduler]}[victim][-1]
        lost.kill()
        job.join(timeout_s=60)
        codes = {"worker": [1], "server": [1], "scheduler": [1]}
        codes[victim] = [*codes[victim], -signal.SIGKILL]
        check(job, codes)


@pytest.mark.timeout(180)
def test_workers_on_machines_of_two_and_of_one_join_twice_and_every_sum_is_right(tmp_path):
    with Job(tmp_path, servers=2, hosts=(2, 1), environ=ENVIRON) as job:
        start(job, "2", "20", "leave")
        job.join(timeout_s=120)
        check(job, {"worker": [0], "server": [0], "scheduler": [0]})


@pytest.mark.timeout(180)
def test_a_server_serves_a_lost_ones_slots_as_well_and_hands_all_over_when_it_is_told_to_stop(tmp_path):
    environ = {"BYTEPS_FAILURE_TIMEOUT_MS": "3000"}
    with Job(tmp_path, workers=2, servers=2, environ=environ) as job:
        start(job, "1", "300", "leave", "10")
        at_work = lambda: all("round" in worker.out_path.read_text() for worker in job.workers)
        assert wait_until(at_work), job.story("no rounds")
        first, second = job.servers
        first.kill()
        assert wait_until(lambda: "takes its place" in job.scheduler.err), job.story("nobody has its place")
        heirs = [job.start_server() for _ in range(2)]
        assert wait_until(lambda: all(f":{heir.pid} at" in job.scheduler.err for heir in heirs)), job.story("no heirs")
        second.send(signal.SIGTERM)
        assert wait_until(lambda: second.code is not None, 30), job.story("it does not go")
        job.join(timeout_s=120)
        codes = {"worker": [0], "server": [0, -signal.SIGKILL], "scheduler": [0]}
        check(job, codes)
        assert second.code == 0 and job.scheduler.err.count("takes its place") == 3
