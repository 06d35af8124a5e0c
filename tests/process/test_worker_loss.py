"""A worker is lost while a job goes on: the others end well, with sums of those that are there."""

import os
import re
import signal
import sys
import time

import pytest

from job import Job
from place import wait_for

PYTHON = sys.executable
WORKER = """
import os, sys, time, torch
import byteps.torch as bps
bps.init()
print("pid", os.getpid(), "of rank", bps.rank(), flush=True)
last = 0
for step in range(int(sys.argv[1])):
    total = bps.push_pull(torch.full((1000,), float(2 ** bps.rank())), name="sum", average=False)
    assert (total == total[0]).all(), "a sum of different ranks"
    if total[0] != last:
        last = total[0]
        print("step", step, "sum", int(last), flush=True)
    time.sleep(0.02)
print("ends with", int(last), flush=True)
"""
GOES_ON = ["--on-worker-loss", "continue"]
RECORDED = r"bpslaunch: which sums those that were lost are not in: bps why \S+"


class Run:
    """bpslaunch whose output is read while it runs."""

    def __init__(self, place, *sizes, steps=300):
        self.path = place.folder / "all"
        with open(self.path, "w") as both:
            self.launcher = place.launch(
                *sizes, *GOES_ON, "--", PYTHON, "-c", WORKER, str(steps), stdout=both, stderr=both
            )

    @property
    def text(self):
        return self.path.read_text()

    def wait_for(self, text, timeout_s=40):
        wait_for(text, lambda: re.search(text, self.text) or self.launcher.poll() is not None, timeout_s)
        found = re.search(text, self.text)
        assert found, self.text
        return found

    def pid(self, rank):
        return int(self.wait_for(rf"pid (\d+) of rank {rank}\b")[1])

    def end(self, timeout_s=90):
        code = self.launcher.wait(timeout_s)
        return code, [line for line in self.text.splitlines() if not re.fullmatch(RECORDED, line)]


SIZES = {
    "one server": ["--local", "--workers", "3", "--servers", "1"],
    "servers": ["--local", "--workers", "3", "--servers", "2", "-x", "BYTEPS_LOCAL_REDUCE=0"],
    "relays": ["--local", "--workers", "3", "--servers", "2", "-x", "BYTEPS_FORCE_DISTRIBUTED=1"],
    "relays alone": ["--local", "--workers", "3", "-x", "BYTEPS_FORCE_DISTRIBUTED=0"],
}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("summing", SIZES)
def test_a_worker_that_is_killed_costs_nobody_else_anything(place, summing, rank):
    run = Run(place, *SIZES[summing])
    for each in range(3):
        run.wait_for(rf"\[worker {each}\] step 0 sum 7")
    begin_s = time.monotonic()
    os.kill(run.pid(rank), signal.SIGKILL)
    others = 7 - 2**rank
    for each in {0, 1, 2} - {rank}:
        run.wait_for(rf"\[worker {each}\] step \d+ sum {others}\b")
    assert time.monotonic() - begin_s < 2.5, "somebody has waited for a timeout"  # BYTEPS_FAILURE_TIMEOUT_MS: 3000
    code, lines = run.end()
    assert code == 0, run.text
    assert run.text.count(f"ends with {others}") == 2 and "Traceback" not in run.text, run.text
    assert re.fullmatch(
        rf"bpslaunch: worker {rank} \(pid \d+\) was lost: ended by signal SIGKILL; the job went on without it",
        lines[-1],
    )
    assert "all other workers ended well" in lines[-2]
    assert re.search(f"^{RECORDED}$", run.text, re.M), run.text
    assert [what for what in place.left() if "torchinductor" not in what] == []


@pytest.mark.timeout(180)
@pytest.mark.parametrize("ranks", [[1], [0], [2, 3]])
def test_workers_of_machines_that_sum_first_go_on_without_one_or_a_whole_machine(tmp_path, ranks):
    environ = {"BYTEPS_RECOVERY": "1", "BYTEPS_ON_WORKER_LOSS": "continue"}
    with Job(tmp_path, servers=2, hosts=(2, 2), environ=environ) as job:
        job.start_services()
        for rank in range(job.size):
            job.start_program(rank, [PYTHON, "-c", WORKER, "400"])
        left = [worker for rank, worker in enumerate(job.workers) if rank not in ranks]
        says = lambda worker, text: re.search(text, worker.out_path.read_text()) or worker.code is not None
        for worker in job.workers:
            wait_for("the first sum", lambda worker=worker: says(worker, r"step \d+ sum 15\b"), 60)
        assert "relays of 2 machines with 2 workers each, then 2 servers" in job.scheduler.err
        for rank in ranks:
            job.workers[rank].kill()
        others = 15 - sum(2**rank for rank in ranks)
        for worker in left:
            wait_for("the sum of the others", lambda worker=worker: says(worker, rf"step \d+ sum {others}\b"), 30)
        job.join(timeout_s=90)
        assert all(worker.code == 0 for worker in left), job.story("a worker that is left has failed")
        for worker in left:
            assert f"ends with {others}" in worker.out_path.read_text(), job.story("another last sum")


@pytest.mark.timeout(180)
def test_a_worker_that_stood_still_for_too_long_ends_by_itself_as_a_loss(place):
    run = Run(place, *SIZES["servers"], "-x", "BYTEPS_FAILURE_TIMEOUT_MS=1000", steps=500)
    run.wait_for(r"\[worker 0\] step 0 sum 7")
    stopped = run.pid(1)
    os.kill(stopped, signal.SIGSTOP)
    run.wait_for(r"\[worker 0\] step \d+ sum 5\b")
    os.kill(stopped, signal.SIGCONT)
    run.wait_for(r"worker 1 \(pid \d+\) was lost: away for too long, and ended with exit code 86; the job goes on")
    code, lines = run.end()
    assert code == 0 and "the job went on without it" in lines[-1], run.text
    assert run.text.count("ends with 5") == 2


@pytest.mark.timeout(180)
def test_the_scheduler_is_lost_with_a_worker(place):
    run = Run(place, *SIZES["servers"], steps=500)
    run.wait_for(r"\[worker 0\] step 0 sum 7")
    (scheduler,) = [pid for pid, command in place.living().items() if "byteps_scheduler" in command]
    os.kill(run.pid(1), signal.SIGKILL)
    os.kill(scheduler, signal.SIGKILL)
    run.wait_for(r"\[worker 0\] step \d+ sum 5\b")
    code, lines = run.end()
    assert code == 0 and run.text.count("ends with 5") == 2, run.text


@pytest.mark.timeout(180)
def test_a_host_of_workers_and_a_server_is_lost(place, stand_in):
    (place.folder / "hosts").write_text("127.0.0.1 workers=1 servers=1\n127.0.0.2 workers=2 servers=1\n")
    run = Run(place, "--hosts", place.folder / "hosts", "--ssh", stand_in, "-x", "TEST_MARK", steps=500)
    for each in range(3):
        run.wait_for(rf"\[worker {each}\] step 0 sum 7")
    with open(f"/proc/{run.pid(1)}/stat", "rb") as file:
        agent = int(file.read().rpartition(b")")[2].split()[1])
    os.kill(agent, signal.SIGKILL)
    run.wait_for(r"\[worker 0\] step \d+ sum 1\b")
    code, lines = run.end()
    assert code == 0, run.text
    assert "host 127.0.0.2 was lost with server 1 and worker 1 and worker 2: " in lines[-1], run.text
    assert run.text.count("ends with 1") == 1


TELLER = """
import os, sys, time, torch
import byteps.torch as bps
bps.init()
print("pid", os.getpid(), "of rank", bps.rank(), flush=True)
while bps.push_pull(torch.ones(10), name="until", average=False)[0] == 3:
    time.sleep(0.01)
while bps.metrics().lost_workers == 0:  # the sums know it first
    time.sleep(0.01)
mean = bps.push_pull(torch.full((10,), float(bps.rank())), name="mean", average=True)
print("leader", bps.leader(), "of", bps.size(), "mean", mean[0].item(), flush=True)
bps.barrier()
try:
    bps.broadcast(torch.ones(10), root_rank=0, name="from nobody")
except Exception as error:
    print("told:", error, flush=True)
total = bps.broadcast(torch.full((10,), float(bps.rank())), root_rank=1, name="from the leader")
print("heard", total[0].item(), flush=True)
"""


@pytest.mark.timeout(120)
def test_those_that_are_left_are_told_who_leads_and_that_nobody_is_rank_0(place):
    path = place.folder / "all"
    with open(path, "w") as both:
        sizes = ["--local", "--workers", "3", "--servers", "1"]
        launcher = place.launch(*sizes, *GOES_ON, "--", PYTHON, "-c", TELLER, stdout=both, stderr=both)
    wait_for("all ranks", lambda: len(re.findall(r"pid \d+ of rank", path.read_text())) == 3, 40)
    time.sleep(1)
    os.kill(int(re.search(r"pid (\d+) of rank 0\b", path.read_text())[1]), signal.SIGKILL)
    code = launcher.wait(60)
    text = path.read_text()
    assert code == 0, text
    assert text.count("leader 1 of 3 mean 1.5") == 2, text  # of ranks 1 and 2
    assert len(re.findall(r"told: .*its root, worker 0, was lost, and its rank is vacant", text)) == 2, text
    assert text.count("heard 1.0") == 2, text
    assert len(re.findall(r"WARNING.*rank 0 is vacant, for its worker was lost", text)) == 1, text
