"""What happens when something goes wrong in a job on machines with one worker, with two and with one: as in
test_failures.py, every pending operation of every live worker ends in time, with an error that names the rank, or the
job goes on with right sums.

Rank 0 is alone on its machine, ranks 1 and 2 are neighbours, rank 3 is alone again.
"""

import signal
import time

import pytest
from job import BOUND_S, FAILURE_S
from place import wait_until

OPTIONS = {"hosts": (1, 2, 1)}
LOOP = {"*": [["loop"]]}
SHORT_S = 0.7 * FAILURE_S
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def ends_well(job):
    job.join()
    for process in job.processes:
        assert process.code == 0, job.story(f"{process.name} ended with {process.code}")
    job.check_nothing_is_left()


# ---- one rank pushes something else than the others


def differs(job, odd, words):
    right, wrong = [["push", "A", "float32", 1000, "sum"], ["wait"]], [["push", "A", *odd[1]], ["wait"]]
    with job.start({str(odd[0]): wrong, "*": right}):
        job.wait_for("joined")
        began_s = max(worker.heard("joined")[0]["t"] for worker in job.workers)
        job.join()
        job.check_end(began_s, job.workers, [['tensor "A"', f"worker {odd[0]}", *words]])
        job.check_nothing_is_left()


for rank, place in ((0, "alone"), (1, "with_a_neighbour"), (2, "the_other_neighbour")):
    CASES[f"another_size_of_a_rank_{place}"] = lambda job, rank=rank: differs(
        job, (rank, ["float32", 2000, "sum"]), ["4000 bytes", "8000 bytes"]
    )
    CASES[f"another_size_beyond_a_part_of_a_rank_{place}"] = lambda job, rank=rank: differs(
        job, (rank, ["float32", 3_000_000, "sum"]), ["4000 bytes", "12000000 bytes"]
    )
    CASES[f"another_dtype_of_a_rank_{place}"] = lambda job, rank=rank: differs(
        job, (rank, ["int32", 1000, "sum"]), ["float32", "int32"]
    )
    CASES[f"another_operation_of_a_rank_{place}"] = lambda job, rank=rank: differs(
        job, (rank, ["float32", 1000, "average"]), ["sum", "average"]
    )


def stalls(job, odd):
    with job.start({str(odd): [["push", "B"], ["wait"]], "*": [["push", "A"], ["wait"]]}):
        job.wait_for("joined")
        began_s = max(worker.heard("joined")[0]["t"] for worker in job.workers)
        job.join()
        # That nobody can go on is proven in two thirds of the bound; a thread that runs in a look begins it anew.
        words = [[f"but not by worker {odd}", 'tensor "A"', 'tensor "B"']]
        job.check_end(began_s, job.workers, words, bound_s=2 * BOUND_S)
        job.check_nothing_is_left()


CASES["another_name_of_a_rank_alone"] = lambda job: stalls(job, 0)
CASES["another_name_of_a_rank_with_a_neighbour"] = lambda job: stalls(job, 1)


# ---- a process is killed or stopped in mid-push


def loses(job, victim, signal_number, words):
    with job.start(LOOP):
        job.wait_for("looping")
        lost = victim(job)
        began_s = lost.send(signal_number)
        live = [worker for worker in job.workers if worker is not lost]
        job.join(but=[lost])
        job.check_end(began_s, live, words)
        if signal_number == signal.SIGSTOP:
            lost.go_on()
            job.join(timeout_s=BOUND_S + FAILURE_S)
            assert lost.code == 1, job.story(f"{lost.name} ended with {lost.code}")
        job.check_nothing_is_left()


for rank, place in ((0, "alone"), (1, "with_a_neighbour")):
    for name, number, words in (
        ("killed", signal.SIGKILL, "gone for"),
        ("stopped", signal.SIGSTOP, "has said nothing"),
    ):
        CASES[f"a_rank_{place}_is_{name}"] = lambda job, rank=rank, number=number, words=words: loses(
            job, lambda job: job.workers[rank], number, [[f"worker {rank} (", words]]
        )


def loses_service(job, *what):
    job.environ["BYTEPS_RECOVERY"] = "0"
    loses(job, *what)


server_1 = lambda job: job.servers[1]
CASES["a_server_is_killed"] = lambda job: loses_service(job, server_1, signal.SIGKILL, [["server 1"]])
CASES["a_server_is_stopped"] = lambda job: loses_service(job, server_1, signal.SIGSTOP, [["server 1"]])
CASES["the_scheduler_is_killed"] = lambda job: loses_service(
    job, lambda job: job.scheduler, signal.SIGKILL, [["scheduler at"]]
)


def is_cut_off(job, host, words):
    job.environ["BYTEPS_RECOVERY_TIMEOUT_S"] = "1"  # the one that is cut off waits for a scheduler, too
    with job.start(LOOP):
        job.wait_for("looping")
        began_s = time.monotonic()
        job.network.cut(host)
        job.join()
        others = [worker for rank, worker in enumerate(job.workers) if job.places[rank] != host]
        job.check_end(began_s, others, words)
        job.check_nothing_is_left()


@case
def the_cable_of_a_machine_with_two_ranks_is_pulled(job):
    is_cut_off(job, 1, [["worker 1 ("], ["worker 2 ("]])


# ---- a process is slow


def bears(job, victim):
    """Stopped three times, for less than the failure timeout; every sum is checked."""
    with job.start({"*": [["loop", 10], ["barrier"]] * 4}):
        job.wait_for("looping")
        for _ in range(3):
            victim(job).stop()
            time.sleep(SHORT_S)
            victim(job).go_on()
            time.sleep(0.1)
        ends_well(job)


CASES["a_rank_alone_stops_for_less_than_the_timeout"] = lambda job: bears(job, lambda job: job.workers[0])
CASES["a_rank_with_a_neighbour_stops_for_less_than_the_timeout"] = lambda job: bears(job, lambda job: job.workers[1])
CASES["a_server_stops_for_less_than_the_timeout"] = lambda job: bears(job, lambda job: job.servers[0])


@case
def a_rank_stops_for_less_than_the_timeout_while_more_than_a_window_waits_for_it(job):
    """Over TCP, as neighbours of two users; a link to a relay is not made again."""
    failure_s = 2 * FAILURE_S
    job.environ.update(BYTEPS_ENABLE_IPC="0", BYTEPS_CREDIT_BYTES=str(64 << 20))
    job.environ.update(BYTEPS_FAILURE_TIMEOUT_MS=f"{1000 * failure_s:.0f}")
    pushes = [["push", name, "float32", 12_000_000, "sum", 0, 1] for name in ("A", "B")]
    with job.start({"*": [*pushes, ["wait"]] * 3}):
        slow = job.workers[1]
        assert wait_until(lambda: slow.heard("sum"), 60), job.story("no sum")
        slow.stop()
        time.sleep(0.8 * failure_s)
        slow.go_on()
        ends_well(job)
        assert {end["last"] for worker in job.workers for end in worker.heard("sum")} == {4}


# ---- a rank ends early


def ends_early(job, rank, step, code, words):
    with job.start({str(rank): [["loop", 5], step], "*": [["loop"]]}):
        job.wait_for("looping")
        early = job.workers[rank]
        assert early.child.wait(20) == code, job.story("it did not end as told")
        began_s = time.monotonic()
        job.join()
        job.check_end(began_s, [worker for worker in job.workers if worker is not early], words)
        job.check_nothing_is_left()


for rank, place in ((0, "alone"), (2, "with_a_neighbour")):
    for name, step, code, words in (
        ("exits_without_a_word", ["exit", 0], 0, "has been gone for"),
        ("leaves_early", ["quit", 0], 0, "which has left the job"),
        ("raises", ["raise"], 1, "which has left the job"),
    ):
        CASES[f"a_rank_{place}_{name}"] = lambda job, rank=rank, step=step, code=code, words=words: ends_early(
            job, rank, step, code, [[f"worker {rank}", words]]
        )


@case
def two_neighbours_leave_early(job):
    with job.start({"1": [["loop", 5]], "2": [["loop", 5]], "*": [["loop"]]}):
        job.wait_for("looping")
        assert job.workers[1].child.wait(20) == job.workers[2].child.wait(20) == 0, job.story("they did not end well")
        began_s = time.monotonic()
        job.join()
        job.check_end(began_s, [job.workers[0], job.workers[3]], [["worker 1", "left the job"], ["worker 2", "left"]])
        job.check_nothing_is_left()


@case
def ctrl_c_at_all_ranks(job):
    with job.start(LOOP):
        job.wait_for("looping")
        for worker in job.workers:
            worker.send(signal.SIGINT)
        began_s = time.monotonic()
        job.join()
        assert time.monotonic() - began_s < BOUND_S, job.story("late")
        for worker in job.workers:
            assert worker.code == -signal.SIGINT and "KeyboardInterrupt" in worker.err, job.story("not as Ctrl-C does")
        job.check_nothing_is_left()


# ---- ranks have other settings


def goes_on(job, *settings):
    """With settings of each rank, in their order; every sum is checked."""
    with job:
        job.start_services()
        for rank in range(job.size):
            job.start_worker(rank, {"*": [["loop", 20], ["barrier"]]}, environ=settings[rank % len(settings)])
        ends_well(job)


def settings_differ(name, *values):
    CASES[f"ranks_have_another_{name}"] = lambda job: goes_on(job, *({name: value} for value in values))


settings_differ("BYTEPS_PARTITION_BYTES", "65536", "4096000", "1000000", "524288")
settings_differ("BYTEPS_CREDIT_BYTES", "65536", "4000000", "100000")
settings_differ("BYTEPS_LOCAL_REDUCE", "auto", "0", "auto", "auto")
CASES["rank_0_sums_at_servers_only"] = lambda job: goes_on(job, {"BYTEPS_LOCAL_REDUCE": "0"}, {}, {}, {})
settings_differ("BYTEPS_ENABLE_IPC", "1", "0", "1")
settings_differ("BYTEPS_IPC_RING_BYTES", "65536", "1048576", "131072", "65536")
settings_differ("BYTEPS_DETERMINISTIC", "1", "0")
settings_differ("BYTEPS_AUTOTUNE", "0", "1", "0", "1")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CASES)
def test_it_goes_on_or_ends_with_an_error_that_names_the_rank(name, outcomes):
    outcomes[name].result()
