"""A peer that is merely slow fails nothing: the job ends well, with right sums.

Slow is: stopped again and again for less than the failure timeout, or on the processor for a tenth of the time only.
"""

import threading
import time

import pytest
from job import FAILURE_S
from place import wait_until

STEPS = 40
PAUSE_S = 0.7 * FAILURE_S
LIMIT_S = 90.0

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function



class Interrupted:
    """Stops a process for stopped_s, lets it run for running_s, and so on, at most `times`."""

    def __init__(self, process, stopped_s, running_s, times):
        self.process, self.stopped_s, self.running_s, self.times = process, stopped_s, running_s, times
        self.count = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        while self.count < self.times and not self._end.is_set() and self.process.code is None:
            self.process.stop()
            time.sleep(self.stopped_s)
            self.process.go_on()
            self.count += 1
            self._end.wait(self.running_s)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join()


def bears(job, victim, stopped_s, running_s, times):
    with job.start({"*": [["loop", STEPS // 4], ["barrier"]] * 4}):
        job.wait_for("looping")
        with Interrupted(victim(job), stopped_s, running_s, times) as slow:
            job.join(timeout_s=LIMIT_S)
        assert slow.count >= 2, job.story("it was over before anything was slow")
        for process in job.processes:
            assert process.code == 0, job.story(f"{process.name} ended with {process.code}")
        for worker in job.workers:
            assert worker.heard("done")[0]["steps"] == STEPS
        job.check_nothing_is_left()


def add(who, victim):
    CASES[f"{who}_stops_for_less_than_the_timeout"] = lambda job: bears(job, victim, PAUSE_S, 0.1, 3)
    CASES[f"{who}_has_a_tenth_of_a_processor"] = lambda job: bears(job, victim, 0.09, 0.01, 10**6)


add("worker", lambda job: job.workers[1])
add("server", lambda job: job.servers[1])
add("scheduler", lambda job: job.scheduler)


# ---- a rank that does something else for a while


@case
def a_rank_computes_for_long(job):
    """The other waits for longer than twice the failure timeout, and is told for whom."""
    pause_s = 2.5 * FAILURE_S
    told = job.place.folder / "told"
    computing = [["sleep", pause_s], ["await_file", str(told)], ["push", "A"], ["wait"]]
    with job.start({"0": [["push", "A"], ["wait"]], "1": computing}):
        says = wait_until(lambda: "tensor 'A' misses worker 1" in job.workers[0].err)
        assert says, job.story("it does not say for whom it waits")
        told.touch()
        job.join()
        assert {p.code for p in job.processes} == {0}, job.story("not all ended well")
        job.check_nothing_is_left()


@case
def threads_wait_for_what_another_thread_computes(job):
    """All main threads wait, but another thread of each rank has something to submit, which ends the wait."""
    plan = {"0": [["push_from_a_thread", "A", 2 * FAILURE_S], ["push", "B"], ["wait"]]}
    plan["1"] = [["push_from_a_thread", "B", 2 * FAILURE_S], ["push", "A"], ["wait"]]
    with job.start(plan):
        job.join()
        assert {p.code for p in job.processes} == {0}, job.story("not all ended well")
        job.check_nothing_is_left()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CASES)
def test_a_slow_peer_fails_nothing(name, outcomes):
    outcomes[name].result()
