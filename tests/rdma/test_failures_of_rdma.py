"""What happens when something of RDMA fails: every pending operation ends in time with an error that names the cause,
and no process dies of it."""

import subprocess
import time
from contextlib import contextmanager

import pytest
from lab import BOUND_S, LabJob, address, cable_pulled, on, port_down, tcp_filtered
from place import wait_until

LOOP = {"*": [["loop"]]}
GIVEN_UP = "transport retry counter exceeded"  # ibv_wc_status_str() of IBV_WC_RETRY_EXC_ERR
SLOW_TCP_S = 7.4
LITTLE_MEMORY = ["prlimit", "--memlock=65536"]


@contextmanager
def looping(tmp_path):
    """Server 0 is beside worker 0, server 1 on a host of its own. Any loss ends the job."""
    with LabJob(tmp_path / "job", environ={"BYTEPS_RECOVERY": "0"}) as job:
        job.start(LOOP, worker_hosts=(1, 2), server_hosts=(1, 3))
        job.wait_for("looping")
        yield job


LONG = pytest.mark.long(reason="the other case ends in the same way; each takes half a minute of emulated processors")


@pytest.mark.parametrize("victim", ["server", pytest.param("worker", marks=LONG)])
def test_a_killed_process_ends_the_job_everywhere_in_time(tmp_path, victim):
    with looping(tmp_path) as job:
        dead = job.servers[1] if victim == "server" else job.workers[1]
        began_s = dead.kill()
        job.join()
        job.check_end(began_s, [worker for worker in job.workers if worker is not dead], [[f"{victim} 1"]], BOUND_S)
        job.check_nothing_is_left(wait_s=5)


@pytest.mark.parametrize("trouble", [cable_pulled, pytest.param(port_down, marks=LONG)])
def test_a_host_that_cannot_be_reached_is_seen_in_time(tmp_path, trouble):
    with looping(tmp_path) as job:
        began_s = time.monotonic()
        with trouble(3):
            job.join()
        job.check_end(began_s, job.workers, [["server 1"]], BOUND_S)
        job.check_nothing_is_left(wait_s=5)


def test_a_killed_server_of_which_tcp_says_nothing_is_given_up_by_rdma(tmp_path):
    """RDMA gives up after 1.9 s (7 times 268 ms; twice that would be more than half the failure timeout), TCP after
    2.7 s at the earliest: 3.7 s since it last heard something, and it asks every second."""
    environ = {"BYTEPS_FAILURE_TIMEOUT_MS": str(int(1000 * SLOW_TCP_S)), "BYTEPS_RECOVERY": "0"}
    with LabJob(tmp_path / "job", servers=1, environ=environ) as job:
        go = tmp_path / "go"
        steps = [["push", "A"], ["wait"], ["await_file", str(go)], ["push", "B"], ["wait"]]
        job.start({"*": steps}, worker_hosts=(1, 2), server_hosts=(3,))
        job.wait_for("end")
        for worker in job.workers:
            worker.stop()
        go.touch()
        with tcp_filtered(3):
            began_s = job.servers[0].kill()
            assert wait_until(lambda: job.servers[0].code is not None)  # until then its device acknowledges
            for worker in job.workers:  # they begin B at once
                worker.go_on()
            given_up = wait_until(lambda: any(GIVEN_UP in worker.err for worker in job.workers), SLOW_TCP_S)
            assert given_up, job.story("RDMA was not the first to see it")
            job.join()
        job.check_end(began_s, job.workers, [["server 0"]], 2 * SLOW_TCP_S)


@contextmanager
def no_device(host):
    subprocess.run(["rdma", "link", "delete", f"rxe{host}"], check=True)
    try:
        yield
    finally:
        subprocess.run(["rdma", "link", "add", f"rxe{host}", "type", "rxe", "netdev", f"h{host}"], check=True)


def refused(job, rank, words, prefix=(), environ=()):
    """Worker `rank`, on host 2, cannot have RDMA, which is required."""
    job.start_services(server_hosts=(1, 3))
    for each, host in enumerate((1, 2)):
        more = {"prefix": [*on(host), *prefix], "environ": environ} if each == rank else {"prefix": on(host)}
        job.start_worker(each, {"*": [["push", "A"], ["wait"]]}, **more)
    job.join()
    assert job.workers[rank].code == 1, job.story("it did not end as it should")
    said = job.workers[rank].err + job.workers[rank].out_path.read_text()
    assert all(word in said for word in words), job.story(f"not all of {words}")


def test_memory_that_may_not_be_registered_names_the_limit_and_the_remedy(tmp_path):
    with LabJob(tmp_path / "job") as job:
        refused(job, 1, ["DMLC_ENABLE_RDMA", "limit of locked memory (now 64 KiB)", "ulimit -l"], LITTLE_MEMORY)


def test_a_host_without_a_device_names_its_address_and_what_there_is(tmp_path):
    with LabJob(tmp_path / "job") as job, no_device(2):
        refused(job, 1, [f"no RDMA device for the address {address(2)}", "rxe1", "DMLC_INTERFACE"])


def test_without_memory_auto_goes_on_over_tcp_and_says_so_once(tmp_path):
    with LabJob(tmp_path / "job", rdma="auto", environ={"BYTEPS_LOG_LEVEL": "WARNING"}) as job:
        job.start_services(server_hosts=(3, 3))
        job.start_checked_worker(0, rounds=1, host=1)
        job.start_checked_worker(1, rounds=1, host=2, prefix=LITTLE_MEMORY)
        job.check_ended_well()
        assert job.workers[1].err.count("stays on TCP") == 1, job.story("one warning")
        assert "ulimit -l" in job.workers[1].err and "stays on TCP" not in job.workers[0].err
