"""What happens when something goes wrong: in each case every pending operation of every live worker ends within twice
the failure timeout, with an error that names the cause, and nothing is left behind.

Most of the time is waiting for a timeout, so the cases of a module run side by side (conftest.py).
"""

import json
import os
import signal
import sys
import time

import pytest
from job import BOUND_S, FAILURE_S, RANK, Process
from place import wait_until

LOOP = {"*": [["loop"]]}

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


# ---- a rank pushes something else than the others


def differs(job, first, second, words):
    with job.start({"0": [["push", *first], ["wait"]], "1": [["push", *second], ["wait"]]}):
        job.wait_for("joined")
        began_s = max(worker.heard("joined")[0]["t"] for worker in job.workers)
        job.join()
        job.check_end(began_s, job.workers, [[f'tensor "{first[0]}"', "worker 0", "worker 1", *words]])
        job.check_nothing_is_left()


@case
def another_size(job):
    differs(job, ["A", "float32", 1000, "sum"], ["A", "float32", 2000, "sum"], ["4000 bytes", "8000 bytes"])


@case
def another_shape_of_the_same_size(job):
    wide, tall = (["A", "float32", 6, "sum", 0, None, shape] for shape in ([2, 3], [3, 2]))
    differs(job, wide, tall, ["shape 2x3", "shape 3x2"])


@case
def another_dtype(job):
    differs(job, ["A", "float32", 1000, "sum"], ["A", "int32", 1000, "sum"], ["float32", "int32"])


@case
def another_operation(job):
    differs(job, ["A", "float32", 1000, "sum"], ["A", "float32", 1000, "average"], ["sum", "average"])


@case
def another_root(job):
    words = ["from worker 0", "from worker 1"]
    differs(job, ["A", "float32", 9, "broadcast", 0], ["A", "float32", 9, "broadcast", 1], words)


# ---- ranks push other names than the others: all wait, none can go on


def stalls(job, first, second, words):
    with job.start({"0": first, "1": second}):
        job.wait_for("joined")
        began_s = max(worker.heard("joined")[0]["t"] for worker in job.workers)
        job.join()
        job.check_end(began_s, job.workers, [words])
        job.check_nothing_is_left()


A_AND_B = [
    'tensor "A" was submitted by worker 0, but not by worker 1',
    'tensor "B" was submitted by worker 1, but not by worker 0',
]


@case
def other_names(job):
    stalls(job, [["push", "A"], ["wait"]], [["push", "B"], ["wait"]], A_AND_B)


@case
def other_names_in_one_long_wait(job):
    stalls(job, [["push", "A"], ["wait_in_c"]], [["push", "B"], ["wait_in_c"]], A_AND_B)


@case
def other_names_after_many_right_ones(job):
    stalls(job, [["loop", 20], ["push", "A"], ["wait"]], [["loop", 20], ["push", "B"], ["wait"]], A_AND_B)


@case
def other_names_behind_more_than_credit(job):
    """What is waited for has not even been sent, for others of this worker fill its credit."""
    job.environ |= {"BYTEPS_PARTITION_BYTES": "16384", "BYTEPS_CREDIT_BYTES": "65536"}
    many = [["push", f"A{i}", "float32", 1 << 16] for i in range(8)]  # four times the credit each
    first = [["push", "A", "float32", 1 << 16], ["wait"]]
    stalls(job, many + first, [["push", "B"], ["wait"]], ["submitted by worker 0, but not by worker 1", 'tensor "B"'])


@case
def another_number_of_pushes(job):
    once = [["push", "A"], ["wait"]]
    words = ['tensor "A" was submitted 2 times by worker 0, but not by worker 1', "a barrier was reached by worker 1"]
    stalls(job, once + once, once + [["barrier"]], words)


# ---- a process is killed or stopped in mid-push


def loses(job, victim, signal_number, words):
    if victim is not worker_1:
        job.environ["BYTEPS_RECOVERY"] = "0"
    with job.start(LOOP):
        job.wait_for("looping")
        lost = victim(job)
        began_s = lost.send(signal_number)
        live = [worker for worker in job.workers if worker is not lost]
        job.join(but=[lost])
        job.check_end(began_s, live, words)
        services = [p for p in (job.scheduler, *job.servers) if p is not lost]
        assert all(p.code == 1 for p in services), job.story("a service did not say that the job failed")
        if signal_number == signal.SIGSTOP:
            lost.go_on()
            job.join(timeout_s=BOUND_S + FAILURE_S)
            assert lost.code == 1, job.story(f"{lost.name} ended with {lost.code}")
            if lost in job.workers:
                assert lost.failures and all(end["message"] for end in lost.failures)
        job.check_nothing_is_left()


def worker_1(job):
    return job.workers[1]


def server_1(job):
    return job.servers[1]


def scheduler(job):
    return job.scheduler


SERVER_WORDS = [["server 1"]]


@case
def worker_killed(job):
    loses(job, worker_1, signal.SIGKILL, [["worker 1 (", "has been gone for"]])


@case
def worker_stopped(job):
    loses(job, worker_1, signal.SIGSTOP, [["worker 1 (", "has said nothing for"]])


@case
def server_killed(job):
    loses(job, server_1, signal.SIGKILL, SERVER_WORDS)


@case
def server_stopped(job):
    loses(job, server_1, signal.SIGSTOP, SERVER_WORDS)


@case
def scheduler_killed(job):
    loses(job, scheduler, signal.SIGKILL, [["scheduler at 127.0.0.1:", "has been unreachable for"]])


@case
def scheduler_stopped(job):
    loses(job, scheduler, signal.SIGSTOP, [["scheduler at 127.0.0.1:", "the job cannot go on without it"]])


# ---- a rank ends early


def ends_early(job, step, code, words):
    with job.start({"1": [["loop", 5], step], "*": [["loop"]]}):
        job.wait_for("looping")
        early = job.workers[1]
        assert early.child.wait(20) == code, job.story("it did not end as told")
        began_s = time.monotonic()
        job.join()
        job.check_end(began_s, [job.workers[0]], words)
        job.check_nothing_is_left()


@case
def rank_exits_without_a_word(job):
    ends_early(job, ["exit", 0], 0, [["worker 1 (", "has been gone for"]])


@case
def rank_exits_with_an_error(job):
    ends_early(job, ["quit", 3], 3, [["worker 1", "which has left the job"]])


@case
def rank_raises(job):
    ends_early(job, ["raise"], 1, [["worker 1", "which has left the job"]])


@case
def rank_ends_well_while_others_go_on(job):
    ends_early(job, ["quit", 0], 0, [["worker 1", "which has left the job"]])


# ---- somebody presses Ctrl-C


def interrupted(job, whole_group):
    """bpslaunch in mid-push gets SIGINT, alone or with all of its process group, as a terminal does it."""
    with job:
        command = [sys.executable, "-m", "byteps.launcher", "--local", "--servers", "2", "--", sys.executable, RANK]
        launcher = Process(job, "launcher", [*command, json.dumps(LOOP)], job.launch_environ, start_new_session=True)
        assert wait_until(lambda: launcher.out_path.read_text().count('"looping"') == 2), launcher.err
        began_s = time.monotonic()
        if whole_group:
            os.killpg(launcher.pid, signal.SIGINT)
        else:
            launcher.send(signal.SIGINT)
        assert launcher.child.wait(20) == 128 + signal.SIGINT
        assert time.monotonic() - began_s < BOUND_S, launcher.err
        assert "SIGINT: ending the job" in launcher.err
        assert launcher.err.count("KeyboardInterrupt") == 2, "each worker ends as Python ends on Ctrl-C"
        job.check_nothing_is_left()


@case
def interrupt_of_the_launcher(job):
    interrupted(job, whole_group=False)


@case
def interrupt_of_the_whole_group(job):
    interrupted(job, whole_group=True)


# ---- what `bps why` makes of what is left: role, rank, words

DISAGREE = ("worker", None, 'tensor "A" differs between ranks', "worker 0", "worker 1")
STALL = ("worker", None, "but not by worker")
INTERRUPTED = ("launcher", None, "SIGINT")
CAUSES = {
    "another_size": DISAGREE,
    "another_shape_of_the_same_size": (*DISAGREE, "shape 2x3", "shape 3x2"),
    "another_dtype": DISAGREE,
    "another_operation": DISAGREE,
    "another_root": DISAGREE,
    "other_names": STALL,
    "other_names_in_one_long_wait": STALL,
    "other_names_after_many_right_ones": STALL,
    "other_names_behind_more_than_credit": STALL,
    "another_number_of_pushes": STALL,
    "worker_killed": ("worker", 1, "killed"),
    "worker_stopped": ("worker", 1, "stood still"),
    "server_killed": ("server", 1, "killed"),
    "server_stopped": ("server", 1, "stood still"),
    "scheduler_killed": ("scheduler", None, "killed"),
    "scheduler_stopped": ("scheduler", None, "stood still"),
    "rank_exits_without_a_word": ("worker", 1, "exited without leaving"),
    "rank_exits_with_an_error": ("worker", 1, "left the job while worker 0 still waited"),
    "rank_raises": ("worker", 1, "raised"),
    "rank_ends_well_while_others_go_on": ("worker", 1, "left the job while worker 0 still waited"),
    "interrupt_of_the_launcher": INTERRUPTED,
    "interrupt_of_the_whole_group": INTERRUPTED,
}


# ---- running them


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CASES)
def test_it_ends_with_an_error_that_names_the_cause(name, outcomes):
    outcomes[name].result()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CAUSES)
def test_bps_why_names_the_first_cause(name, outcomes):
    outcomes[name].result().check_cause(*CAUSES[name])
