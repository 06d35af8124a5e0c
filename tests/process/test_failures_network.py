"""A cable is pulled in mid-push: each process on a host of its own, in network namespaces."""

import contextlib
import time

import hosts
import pytest
from job import FAILURE_S

CASES = {}
SCHEDULER, SERVER_0, SERVER_1, WORKER_0, WORKER_1 = range(5)
LOOP = {"*": [["loop"]]}


def case(function):
    CASES[function.__name__] = function
    return function


@contextlib.contextmanager
def spread(job):
    """The job runs, on five hosts."""
    with hosts.Network(5) as network, job:
        job.environ["DMLC_PS_ROOT_URI"] = network.address(SCHEDULER)
        job.start_scheduler(prefix=network.on(SCHEDULER))
        for host in (SERVER_0, SERVER_1):
            job.start_server(prefix=network.on(host))
        for rank, host in enumerate((WORKER_0, WORKER_1)):
            job.start_worker(rank, LOOP, prefix=network.on(host))
        job.wait_for("looping")
        yield network


def loses(job, pull, cut_off, words, who):
    """`pull` does it. `cut_off`: the process that nobody hears any more, which ends too."""
    # A worker that nobody hears waits for a scheduler, too: by default for a minute.
    job.environ |= {"BYTEPS_RECOVERY_TIMEOUT_S": "1"} if cut_off is worker_1 else {"BYTEPS_RECOVERY": "0"}
    with spread(job) as network:
        began_s = time.monotonic()
        pull(network)
        job.join()
        others = [worker for worker in job.workers if worker is not cut_off(job)]
        job.check_end(began_s, others, words)
        for process in job.processes:
            assert process.code == 1, job.story(f"{process.name} ended with {process.code}")
        if cut_off(job) in job.workers:  # it is alive too, and blames whom it misses
            job.check_end(began_s, [cut_off(job)], [["scheduler at"], ["server "]])
        job.check_cause(*who)
        job.check_nothing_is_left()


def worker_1(job):
    return job.workers[1]


def server_1(job):
    return job.servers[1]


def scheduler(job):
    return job.scheduler


@case
def the_cable_of_a_worker(job):
    loses(job, lambda network: network.cut(WORKER_1), worker_1, [["worker 1 ("]], ("worker", 1))


@case
def the_address_of_a_worker(job):
    loses(job, lambda network: network.take_address(WORKER_1), worker_1, [["worker 1 ("]], ("worker", 1))


@case
def the_cable_of_a_server(job):
    loses(job, lambda network: network.cut(SERVER_1), server_1, [["server 1 ("]], ("server", 1))


@case
def the_address_of_a_server(job):
    loses(job, lambda network: network.take_address(SERVER_1), server_1, [["server 1 ("]], ("server", 1))


@case
def the_cable_of_the_scheduler(job):
    loses(job, lambda network: network.cut(SCHEDULER), scheduler, [["scheduler at "]], ("scheduler", None))


@case
def a_cable_that_is_back_in_time(job):
    """Pulled for less than the failure timeout: the job goes on."""
    with spread(job) as network:
        network.cut(WORKER_1)
        time.sleep(0.5 * FAILURE_S)
        network.mend(WORKER_1)
        job.wait_for_steps(time.monotonic() + 2 * FAILURE_S)  # by then it would have been given up


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CASES)
def test_a_lost_network_ends_the_job_and_names_who_is_cut_off(name, outcomes):
    outcomes[name].result()
