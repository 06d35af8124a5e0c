"""What a process runs out of: file descriptors, memory."""

import contextlib
import os
import re
import resource
import time
from pathlib import Path

import pytest
from job import BOUND_S
from place import wait_until

CASES = {}
HERE = {"*": [["loop", 5], ["barrier"]]}
START_S = 20
SYSTEM = 6  # byteps_code


def case(function):
    CASES[function.__name__] = function
    return function


def descriptors_of(process):
    return sum(1 for _ in Path(f"/proc/{process.pid}/fd").iterdir())


def has_a_loop(process):
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        try:
            if "eventpoll" in os.readlink(link):
                return True
        except OSError:
            pass  # closed meanwhile
    return False


def allow_no_more_descriptors(process, more=0):
    count = descriptors_of(process) + more
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (count, count))


def settled(process):
    """Returns once the process has opened what it opens at its start."""
    assert wait_until(lambda: has_a_loop(process)), "it has not begun"
    last, same = -1, 0
    while same < 5:
        time.sleep(0.05)
        count = descriptors_of(process)
        same = same + 1 if count == last else 0
        last = count


def cpu_s(process):
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def ends(worker):
    """Its errors."""
    return worker.heard("refused") + worker.failures


def check_in_time(job):
    """Each worker has its errors soon after the last worker has come."""
    complete_s = max(worker.heard("start")[0]["t"] for worker in job.workers)
    for worker in job.workers:
        assert ends(worker) and worker.code == 1, job.story(f"{worker.name} ended with {worker.code}")
        late_s = max(end["t"] for end in ends(worker)) - complete_s
        assert late_s < BOUND_S, job.story(f"{worker.name} heard of it after {late_s:.1f} s")


# ---- descriptors


@case
def a_server_without_descriptors(job):
    """It can accept no worker: they are told why, and the job ends."""
    job.environ["BYTEPS_RECOVERY"] = "0"  # else they wait for another in its place
    with job:
        job.start_services()
        assert wait_until(lambda: job.scheduler.err.count("is here") >= 2), job.story("no servers")
        settled(job.servers[1])
        allow_no_more_descriptors(job.servers[1])
        for rank in (0, 1):
            job.start_worker(rank, HERE)
        job.join()
        check_in_time(job)
        for worker in job.workers:
            text = worker.heard("refused")[0]["message"]
            assert "server 1 (" in text and "no file descriptor left" in text and "ulimit -n" in text, job.story(text)
        assert "Too many open files" in job.servers[1].err
        job.check_cause("server", 1, "descriptor")
        job.check_nothing_is_left()


@case
def a_scheduler_without_descriptors(job):
    with job:
        job.environ["BYTEPS_START_TIMEOUT_S"] = str(START_S)
        job.start_scheduler()
        settled(job.scheduler)
        allow_no_more_descriptors(job.scheduler, more=2)
        for _ in range(2):
            job.start_server()
        assert wait_until(lambda: job.scheduler.err.count("is here") >= 2), job.story("no servers")
        for rank in (0, 1):
            job.start_worker(rank, HERE)
        assert wait_until(lambda: "cannot accept connections" in job.scheduler.err), job.story("there are enough")
        used_s, began_s = cpu_s(job.scheduler), time.monotonic()
        job.join(but=[job.scheduler, *job.servers])  # until then the workers try, again and again
        share = (cpu_s(job.scheduler) - used_s) / (time.monotonic() - began_s)
        assert share < 0.2, job.story(f"the scheduler spins: {share:.0%} of a processor")
        job.join()
        for worker in job.workers:
            text = worker.heard("refused")[0]["message"]
            assert "scheduler at" in text and "no file descriptor left" in text, job.story(text)
        job.check_cause("scheduler", None, "descriptor")
        job.check_nothing_is_left()


@case
def a_worker_without_descriptors(job):
    """It joins, but cannot reach the servers."""
    job.environ["BYTEPS_RECOVERY"] = "0"
    with job:
        job.start_scheduler()
        worker = job.start_worker(1, HERE)
        assert wait_until(lambda: "is here" in job.scheduler.err), job.story("no worker")
        settled(worker)
        allow_no_more_descriptors(worker)
        for _ in range(2):
            job.start_server()
        job.start_worker(0, HERE)
        job.join()
        check_in_time(job)
        text = worker.heard("refused")[0]["message"]
        assert "server" in text and "ulimit -n" in text, job.story(text)
        for end in ends(job.workers[1]):
            assert "worker 1 (" in end["message"] and "ulimit -n" in end["message"], job.story(end["message"])
        job.check_cause("worker", 1, "descriptor")
        job.check_nothing_is_left()


def check_too_few(job, limited, title, text):
    """All workers heard of `limited`, and with its title, that it may not open enough; it says so of "this process"."""
    job.join()
    check_in_time(job)
    for worker in job.workers:
        for end in ends(worker):
            named = worker is limited or f"{title} (" in end["message"]
            assert named and text in end["message"] and end["code"] == SYSTEM, job.story(end["message"])
    assert text in limited.err or limited in job.workers, job.story("it does not say so itself")
    role, rank = title.split()
    job.check_cause(role, int(rank), text)
    job.check_nothing_is_left()


def too_few(what, needed):
    said = f"{what} need {needed} file descriptors, and this process may have {needed - 1}"
    return f"{said}: raise its limit of open files, ulimit -n"


@case
def a_server_that_may_open_too_few_for_the_workers(job):
    """It needs 16 descriptors, and for each of its shards 4 and one for each worker."""
    with job:
        job.environ["BYTEPS_SERVER_ENGINE_THREAD"] = "4"
        needed = 16 + 4 * (4 + job.size)
        job.start_scheduler()
        job.start_server()
        limited = job.start_server(prefix=["prlimit", f"--nofile={needed - 1}"])
        for rank in (0, 1):
            job.start_worker(rank, HERE)
        check_too_few(job, limited, "server 1", too_few("4 shards for 2 workers", needed))


@case
def a_worker_that_may_open_too_few_for_the_servers(job):
    """It needs 16 descriptors, and one for each shard of each server."""
    with job:
        job.environ["BYTEPS_SERVER_ENGINE_THREAD"] = "8"
        needed = 16 + 2 * 8
        job.start_services()
        job.start_worker(0, HERE)
        limited = job.start_worker(1, HERE, prefix=["prlimit", f"--nofile={needed - 1}"])
        check_too_few(job, limited, "worker 1", too_few("connections to 16 shards of the servers", needed))


@case
def processes_that_begin_without_descriptors(job):
    """With whatever number they end: who ends for want of one says so, in an error and to `bps why`."""
    with job:
        job.environ["BYTEPS_START_TIMEOUT_S"] = "2"
        ended = {"scheduler": 0, "server": 0}
        for count in range(5, 12):
            for role, start in (("scheduler", job.start_scheduler), ("server", job.start_server)):
                job.flight = job.place.folder / f"flight-{role}-{count}"
                environ = {"BYTEPS_FLIGHT_DIR": str(job.flight)}
                process = start(environ, prefix=["prlimit", f"--nofile={count}"])
                process.child.wait(20)
                assert process.code > 0, job.story(f"{process.name} ended with {process.code}")
                assert f"events: {job.flight}" in process.err or f"events are in {job.flight}" in process.err
                # A scheduler knows before it opens anything how many its job needs.
                known = f"need 20 file descriptors, and this process may have {count}"
                if "Too many open files" in process.err:
                    ended[role] += 1
                    job.check_cause(role, None, "no file descriptors left")
                elif known in process.err:
                    ended[role] += 1
                    job.check_cause(role, None, known)
                    assert role == "scheduler" and "2 workers and 2 servers" in process.err
        assert min(ended.values()) >= 1, ended
        job.check_nothing_is_left()


# ---- memory of a server

HUGE = ["huge", "float32", 64 << 20]  # 256 MiB
AND_AFTERWARDS = [["again", "small"], ["wait"], ["rejoin"], ["push", "small"], ["wait"], ["loop", 5]]


@contextlib.contextmanager
def start_with_huge(job):
    """One worker pushes it and is refused, then the other. Afterwards both go on, with less than 1 MiB at a time: that
    is all that may be used here (and a step of "loop" may need it, when a worker is late)."""
    full = job.place.folder / "full"
    small = [step for i in range(5) for step in (["push", f"small{i}"], ["wait"])]
    first, huge = [["push", "small"], ["wait"]], [["push", *HUGE], ["wait"], *AND_AFTERWARDS[:-1], *small]
    with job.start({0: [*first, *huge], 1: [*first, ["await_file", str(full)], *huge]}):
        assert wait_until(lambda: job.workers[0].failures), job.story("nothing was refused")
        full.touch()
        yield


def check_huge_is_refused(job, by="server "):
    for worker in job.workers:
        assert [each["name"] for each in worker.failures] == ["huge"], job.story(str(worker.failures))
        (end,) = worker.failures
        assert end["code"] == SYSTEM
        for words in ('tensor "huge" (float32, shape 67108864, 268435456 bytes, sum)', "no memory for", by):
            assert words in end["message"], job.story(f"{words!r} is not in {end['message']!r}")
        assert worker.heard("done")[0]["failed"] is False, job.story("the job did not go on")
    assert {process.code for process in job.processes} == {0}, job.story("not all ended well")


def refusers(job):
    """Each server may be the first that somebody hears of."""
    return {int(re.search(r"server (\d)", worker.failures[0]["message"])[1]) for worker in job.workers}


@case
def a_server_that_may_not_use_more_memory(job):
    job.environ |= {"BYTEPS_SERVER_MEMORY_MB": "8", "BYTEPS_RECOVERY": "0"}
    with job.start({"*": [["push", "small"], ["wait"], ["push", *HUGE], ["wait"], *AND_AFTERWARDS]}):
        job.join(timeout_s=60)
        check_huge_is_refused(job)
        assert "BYTEPS_SERVER_MEMORY_MB" in job.workers[0].failures[0]["message"]
        job.check_cause("server", refusers(job), "huge")
        job.check_nothing_is_left()


@case
def a_server_that_gives_sums_back_and_may_not_use_more_memory(job):
    """With recovery it holds what one worker has pushed and the other has not."""
    job.environ["BYTEPS_SERVER_MEMORY_MB"] = "1"
    with start_with_huge(job):
        job.join(timeout_s=60)
        check_huge_is_refused(job)
        job.check_cause("server", refusers(job), "huge")
        job.check_nothing_is_left()


@case
def a_relay_that_may_not_use_more_memory(job):
    """It holds what one worker has pushed and the other has not."""
    job.environ |= {"BYTEPS_LOCAL_REDUCE": "auto", "BYTEPS_RELAY_MEMORY_MB": "1"}
    with start_with_huge(job):
        job.join(timeout_s=60)
        check_huge_is_refused(job, by="relay")
        allowed = "in use by the relay of worker ", "(BYTEPS_RELAY_MEMORY_MB allows it 1048576 bytes)"
        for words in (*allowed, "Raise that limit"):
            assert words in job.workers[0].failures[0]["message"]
        job.check_cause("worker", {0, 1}, "huge")
        job.check_nothing_is_left()


@case
def a_server_whose_machine_has_no_more_memory(job):
    job.environ["BYTEPS_RECOVERY"] = "0"  # else it gives sums back, and needs little
    full = job.place.folder / "full"
    huge = [["await_file", str(full)], ["push", *HUGE], ["wait"]]
    with job.start({"*": [["push", "small"], ["wait"], *huge, *AND_AFTERWARDS]}):
        job.wait_for("end")
        for server in job.servers:
            used_bytes = int(Path(f"/proc/{server.pid}/statm").read_text().split()[0]) * resource.getpagesize()
            limit = used_bytes + (12 << 20)
            resource.prlimit(server.pid, resource.RLIMIT_AS, (limit, limit))
        full.touch()
        job.join(timeout_s=60)
        check_huge_is_refused(job)
        job.check_cause("server", refusers(job), "huge", "no memory for")
        job.check_nothing_is_left()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CASES)
def test_what_runs_out_is_named(name, outcomes):
    outcomes[name].result()
