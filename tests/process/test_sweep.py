"""A server dies at its n-th call of a transport, for every n through two steps of C workers whose floats show in which
order they were added: all ranks have the same bits, and those of the run without a death where their order is defined.

`make test` has some of the n; BYTEPS_SWEEP=all, and the tests marked long, have each of them."""

import os
import signal
import time

import pytest
from job import Job, Process
from place import BUILD, wait_until

STEPS = 2
ENVIRON = {
    "BYTEPS_LOCAL_REDUCE": "0",
    "BYTEPS_FAILURE_TIMEOUT_MS": "2000",
    "BYTEPS_PARTITION_BYTES": "16384",
}
RUN_S = 30.0
SOME = 7  # of all calls, in `make test`
WAYS = {  # workers, and what is set besides
    "through shared memory": (2, {}),
    "over TCP": (2, {"BYTEPS_ENABLE_IPC": "0"}),
    "of three, in the order of arrival": (3, {}),
    "of three, in the order of ranks": (3, {"BYTEPS_DETERMINISTIC": "1"}),
}
IN_ORDER = [way for way in WAYS if way != "of three, in the order of arrival"]


class Sweep:
    def __init__(self, folder, way, successor):
        self.folder, self.successor = folder, successor
        self.workers, more = WAYS[way]
        self.environ = {**ENVIRON, **more}
        self.counted = folder / "count"
        self.runs, self.deaths = 0, 0

    def run(self, dies_at=0):
        """What each worker said. The server that dies at this call is the first of two."""
        self.runs += 1
        folder = self.folder / f"run-{self.runs}-dies-at-{dies_at}"
        with Job(folder, workers=self.workers, servers=2, environ=self.environ) as job:
            job.start_scheduler()
            dying = {"DYING_AT": str(dies_at), "DYING_COUNT": str(self.counted), "DMLC_RANK": "0"}
            victim = Process(job, "dying", [BUILD / "bin/byteps_server_dying"], {**job.environ, **dying})
            job.servers.append(victim)
            job.start_server({"DMLC_RANK": "1"})
            for rank in range(job.size):
                job.start_program(rank, [BUILD / "bin/swept_worker", str(STEPS)])
            self._see_to_the_end(job, victim, dies_at)
            assert all(worker.code == 0 for worker in job.workers), job.story(f"call {dies_at}: a worker failed")
            said = [worker.out_path.read_text() for worker in job.workers]  # "joined", and each step's hash
            assert len(set(said)) == 1, job.story(f"call {dies_at}: ranks were given other bits")
            assert said[0].count("step") == STEPS, job.story(f"call {dies_at}")
            assert victim.code == 0 or victim.code == -signal.SIGKILL, job.story(f"call {dies_at}: it ended otherwise")
            self.deaths += victim.code != 0
            job.check_nothing_is_left(5.0)
        return said[0]

    def _see_to_the_end(self, job, victim, dies_at):
        over = lambda: all(worker.code is not None for worker in job.workers)
        deadline_s = time.monotonic() + RUN_S
        is_restarted = False
        while not over():
            assert time.monotonic() < deadline_s, job.story(f"call {dies_at}: it has not ended")
            if victim.code == -signal.SIGKILL and not is_restarted:
                is_restarted = True
                # Before the job has begun nobody can take its place.
                if self.successor == "restart" or not has_begun(job):
                    job.start_server({"DMLC_RANK": "0"})
            time.sleep(0.002)
        first = [job.scheduler, *job.servers[:2]]
        assert wait_until(lambda: all(process.code is not None for process in first), 10), job.story("one lives on")
        for late in job.servers[2:]:  # it may have come when all was over; bpslaunch would end it
            if not wait_until(lambda late=late: late.code is not None, 0.3):
                late.kill()

    def calls(self):
        return int(self.counted.read_text())


def has_begun(job):
    joined = lambda: any("joined" in worker.out_path.read_text() for worker in job.workers)
    return wait_until(lambda: joined() or "takes its place" in job.scheduler.err, 1.0)


def sweep(folder, way, successor, is_whole):
    sweeping = Sweep(folder, way, successor)
    calm = sweeping.run()
    calls = sweeping.calls()
    step = 1 if is_whole else max(1, calls // SOME)
    for dies_at in range(1 if is_whole else step, calls + (20 if is_whole else 1), step):
        said = sweeping.run(dies_at)
        if way in IN_ORDER:
            assert said == calm, f"call {dies_at}: other bits than without a death"
    print(f"\nsweep {way}, {successor}: {sweeping.deaths} deaths at calls 1 to {calls}, all bits equal")
    return sweeping.deaths


@pytest.mark.timeout(120)
@pytest.mark.parametrize("way, successor", [
    ("through shared memory", "restart"),
    ("of three, in the order of arrival", "adoption"),
])  # fmt: skip
def test_whichever_call_a_server_dies_at_all_ranks_are_given_the_same_bits(tmp_path, way, successor):
    assert sweep(tmp_path, way, successor, is_whole=os.environ.get("BYTEPS_SWEEP") == "all") >= SOME - 2


@pytest.mark.long(reason="hundreds of jobs; the quick one samples them")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way, successor", [
    *[(way, "restart") for way in WAYS],
    ("over TCP", "adoption"),
    ("of three, in the order of ranks", "adoption"),
])  # fmt: skip
def test_at_every_call_of_two_steps(tmp_path, way, successor):
    assert sweep(tmp_path, way, successor, is_whole=True) > 40
