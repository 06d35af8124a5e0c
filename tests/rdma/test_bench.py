"""A smoke test of the benchmark's worker over RDMA. The machine is emulated and the device is Soft-RoCE: its figures
say that a job runs, and nothing about cards."""

import subprocess

import pytest
from lab import LabJob, on
from place import BUILD

BYTES, OPERATIONS, ROUNDS = 4 << 20, 2, 3
HOSTS_OF_WORKERS, HOSTS_OF_SERVERS = (1, 2), (3, 3)


def start_worker(job, rank, host):
    command = [BUILD / "bin/push_pull_worker", "--bytes", str(BYTES), "--operations", str(OPERATIONS)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return job.start_program(rank, command, prefix=on(host), **pipes).child


@pytest.mark.long(reason="a smoke test of a tool for people")
@pytest.mark.parametrize("way", ["ibverbs", "0"])
def test_the_benchmarks_worker_runs_over_either_way(tmp_path, way, capsys):
    with LabJob(tmp_path / "job", rdma=way) as job:
        job.start_services(HOSTS_OF_SERVERS)
        workers = [start_worker(job, rank, host) for rank, host in enumerate(HOSTS_OF_WORKERS)]
        for worker in workers:  # a round needs all
            worker.stdin.write("go\n" * ROUNDS)
            worker.stdin.flush()
        said = [worker.communicate(timeout=60)[0].splitlines() for worker in workers]
        codes = [worker.returncode for worker in workers]
        assert codes == [0, 0], job.story("a worker ended badly: it checks its sums")
    assert [lines[0] for lines in said] == ["ready", "ready"] and [len(lines) for lines in said] == [1 + ROUNDS] * 2
    seconds = [float(end) - float(start) for start, end, *_ in (line.split() for line in said[0][1:])]
    with capsys.disabled():
        print(f"\nsmoke test, emulated, DMLC_ENABLE_RDMA={way}: {BYTES >> 20} MiB in {min(seconds) / OPERATIONS:.3f} s")
