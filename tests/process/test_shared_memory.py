"""Workers and servers on one host exchange through shared memory by themselves: real processes."""

import os
import re
import signal
import time
from pathlib import Path

import hosts
import pytest
from job import BOUND_S, FAILURE_S, Job
from place import wait_for, wait_until

SHARES = "goes on through shared memory"
STAYS = "it goes on over TCP"
LOOP = {"*": [["loop"]]}


def new_job(tmp_path, environ=(), **options):
    return Job(tmp_path / "job", environ={"BYTEPS_LOG_LEVEL": "DEBUG", **dict(environ)}, **options)


def shared_mappings(process):
    """Bytes of the segments that a process has mapped; by segment."""
    found = {}
    for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
        if "/memfd:byteps" in line:
            begin, end = (int(number, 16) for number in line.split()[0].split("-"))
            inode = line.split()[4]
            found[inode] = found.get(inode, 0) + end - begin
    return found


def shared_descriptors(process):
    folder = Path(f"/proc/{process.pid}/fd")
    return [name for name in os.listdir(folder) if "memfd:byteps" in os.readlink(folder / name)]


def run_checked_workers(job, rounds=12, server_environ=(), server_prefix=(), worker_environ=()):
    job.start_scheduler()
    for _ in range(job.server_count):
        job.start_server(server_environ, server_prefix)
    for rank in range(job.size):
        job.start_checked(rank, 1, rounds, "leave", environ=worker_environ)
    job.join(timeout_s=60)
    assert [process.code for process in job.processes] == [0] * len(job.processes), job.story("not all ended well")
    job.check_nothing_is_left(wait_s=5)


def test_a_job_on_one_host_uses_it_and_its_sums_are_exact(tmp_path):
    with new_job(tmp_path) as job:
        run_checked_workers(job)
    for process in (*job.servers, *job.workers):
        assert SHARES in process.err, job.story(f"{process.name} does not use it")
    assert SHARES not in job.scheduler.err


@pytest.mark.parametrize("side", ["worker", "server"])
def test_it_can_be_turned_off_on_either_side(tmp_path, side):
    with new_job(tmp_path) as job:
        run_checked_workers(job, rounds=3, **{f"{side}_environ": {"BYTEPS_ENABLE_IPC": "0"}})
    for process in (*job.servers, *job.workers):
        assert SHARES not in process.err and STAYS not in process.err


def test_what_is_mapped_has_no_descriptor_and_is_of_the_size_that_was_asked_for(tmp_path):
    with new_job(tmp_path, environ={"BYTEPS_IPC_RING_BYTES": str(256 << 10)}) as job:
        job.start(LOOP)
        job.wait_for("looping")
        wait_for("a segment for each worker", lambda: len(shared_mappings(job.servers[0])) == job.size, 5)
        for process in (*job.servers, *job.workers):
            sizes = set(shared_mappings(process).values())
            assert sizes == {(64 << 10) + 4 * (256 << 10)}, sizes
            assert shared_descriptors(process) == []
        segments = {inode for process in job.workers for inode in shared_mappings(process)}
        assert len(segments) == job.size * job.server_count, "one for each worker and shard"


@pytest.mark.parametrize("victim", ["worker", "server"])
def test_sigkill_in_mid_transfer_is_noticed_and_leaves_nothing(tmp_path, victim):
    with new_job(tmp_path, {"BYTEPS_RECOVERY": "0"}) as job:
        job.start(LOOP)
        job.wait_for("looping")
        assert wait_until(lambda: shared_mappings(job.workers[0]), 5), job.story("it does not use shared memory")
        dead = job.workers[1] if victim == "worker" else job.servers[1]
        segments = set(shared_mappings(dead))
        assert segments
        began_s = dead.kill()
        living = [process for process in (*job.servers, *job.workers) if process is not dead]

        def released():
            mapped = set()
            for process in living:
                if process.code is None:
                    try:
                        mapped |= set(shared_mappings(process))
                    except OSError:
                        pass  # it has just ended
            return not mapped & segments

        assert wait_until(released, FAILURE_S), "a segment of a dead process is still mapped"
        job.join()
        others = [worker for worker in job.workers if worker is not dead]
        job.check_end(began_s, others, [[victim]], bound_s=BOUND_S)
        job.check_nothing_is_left(wait_s=2)


def test_a_process_that_stands_still_is_waited_for_and_goes_on(tmp_path):
    with new_job(tmp_path) as job:
        job.start(LOOP)
        job.wait_for("looping")
        for process in (job.servers[0], job.workers[0]):
            process.stop()
            time.sleep(FAILURE_S / 3)
            job.wait_for_steps(process.go_on())


def test_without_memory_a_server_says_so_once_and_goes_on_over_tcp(tmp_path):
    # A file of more than 64 KiB may not be made; the log and the flight recorder's file stay below that.
    limited = ["bash", "-c", 'ulimit -f 64 && exec "$@"', "limited"]
    with new_job(tmp_path, environ={"BYTEPS_LOG_LEVEL": "WARNING"}) as job:
        run_checked_workers(job, rounds=3, server_prefix=limited)
    for server in job.servers:
        assert server.err.count(STAYS) == 1, job.story("one warning for each server")
        assert "File too large" in server.err and "BYTEPS_ENABLE_IPC=0" in server.err
    assert all(STAYS not in worker.err for worker in job.workers)


def test_hosts_that_are_network_namespaces_do_not_use_it(tmp_path):
    with hosts.Network(2) as network, new_job(tmp_path, workers=1, servers=1) as job:
        job.environ["DMLC_PS_ROOT_URI"] = network.address(0)
        job.start_scheduler(prefix=network.on(0))
        job.start_server(prefix=network.on(0))
        job.start_worker(0, LOOP, prefix=network.on(1))
        job.wait_for("step")
        for process in (job.servers[0], job.workers[0]):
            assert SHARES not in process.err and STAYS not in process.err, job.story("two hosts share memory")


def test_two_processes_in_one_namespace_use_it_under_the_hosts_own_address(tmp_path):
    with hosts.Network(1) as network, new_job(tmp_path, workers=1, servers=1) as job:
        job.environ["DMLC_PS_ROOT_URI"] = network.address(0)
        job.start_scheduler(prefix=network.on(0))
        job.start_server(prefix=network.on(0))
        job.start_worker(0, LOOP, prefix=network.on(0))
        job.wait_for("looping")
        assert wait_until(lambda: SHARES in job.servers[0].err and SHARES in job.workers[0].err, 5), job.story("no")


def test_names_carry_the_job_and_are_gone_once_both_have_met(tmp_path):
    with new_job(tmp_path, workers=1, servers=1) as job:
        job.start(LOOP)
        job.wait_for("looping")
        wait_for("shared memory", lambda: SHARES in job.workers[0].err, 5)
        inodes = {
            match
            for name in os.listdir(f"/proc/{job.workers[0].pid}/fd")
            for match in re.findall(r"socket:\[(\d+)\]", os.readlink(f"/proc/{job.workers[0].pid}/fd/{name}"))
        }
        listening = [
            line.split()
            for line in Path("/proc/net/unix").read_text().splitlines()
            if line.split()[6] in inodes and line.split()[3] == "00010000"
        ]
        assert listening == [], "nobody can come in any more"
        job.workers[0].send(signal.SIGKILL)
        job.join()
        job.check_nothing_is_left(wait_s=2)
