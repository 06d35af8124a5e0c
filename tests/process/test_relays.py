"""Jobs whose workers sum among themselves first: what is counted and said of it, and a relay that stands still."""

import shutil
import time

import pytest
from job import FAILURE_S, SUMMING, Job
from place import BUILD, wait_until

from byteps.recordings import first_cause

WORKERS, SERVERS = 3, 2
COUNT = 3_000_000
M = 4 * COUNT
PARTITION = 262_144  # small, so that each worker leads some


def summing(mode):
    local_reduce, forced = SUMMING[mode]
    return {"BYTEPS_LOCAL_REDUCE": local_reduce, "BYTEPS_FORCE_DISTRIBUTED": forced}


# ---- what is counted


def counted(folder, mode, **environ):
    """The counters of all ranks, by name, and what the scheduler said."""
    patience = {"BYTEPS_FAILURE_TIMEOUT_MS": "20000"}  # so that nothing is lost, and sent again, on a busy machine
    environ = {**summing(mode), **patience, "BYTEPS_PARTITION_BYTES": str(PARTITION), **environ}
    with Job(folder, WORKERS, SERVERS, environ) as job:
        job.start({"*": [["push", "A", "float32", COUNT], ["wait"], ["metrics"]]})
        job.join()
        assert [process.code for process in job.processes] == [0] * (1 + SERVERS + WORKERS), job.story("an error")
        heard = [worker.heard("metrics")[0] for worker in job.workers]
        return {name: [each[name] for each in heard] for name in heard[0]}, job.scheduler.err


def test_where_the_servers_sum_nothing_is_local(tmp_path):
    metrics, said = counted(tmp_path, "servers")
    for name in ("pushed_bytes", "pulled_bytes"):
        assert metrics[name] == [M] * WORKERS
        assert metrics[f"local_{name}"] == [0] * WORKERS
    assert metrics["local_shared_bytes"] == [0] * WORKERS
    assert "with 3 workers and 2 servers; who sums: 2 servers" in said


@pytest.mark.parametrize("shares_memory", [True, False])
def test_relays_exchange_one_copy_for_all_with_the_servers_and_each_worker_has_its_share(tmp_path, shares_memory):
    metrics, said = counted(tmp_path, "relays", BYTEPS_ENABLE_IPC="1" if shares_memory else "0")
    for name in ("pushed_bytes", "pulled_bytes"):
        assert sum(metrics[name]) == M, metrics
        assert all(abs(each - M / WORKERS) < 0.1 * M / WORKERS for each in metrics[name]), metrics
        assert metrics[f"local_{name}"] == [M] * WORKERS
    for rank in range(WORKERS):
        local, at_servers = metrics["local_shared_bytes"][rank], metrics["shared_bytes"][rank]
        with_servers = metrics["pushed_bytes"][rank] + metrics["pulled_bytes"][rank]
        assert local < 2 * M + 1000 and at_servers < with_servers + 1000, metrics  # declarations are counted, too
        assert (local > 0) == (at_servers > 0) == shares_memory, metrics
    assert metrics["finished_bytes"] == [M] * WORKERS
    assert "who sums: relays of one machine with 3 workers, then 2 servers" in said


def test_relays_that_are_alone_exchange_nothing_with_servers(tmp_path):
    metrics, said = counted(tmp_path, "alone")
    for name in ("pushed_bytes", "pulled_bytes"):
        assert metrics[name] == [0] * WORKERS
        assert metrics[f"local_{name}"] == [M] * WORKERS
    assert metrics["shared_bytes"] == [0] * WORKERS
    assert "who sums: relays of one machine with 3 workers alone" in said


def test_who_sums_does_not_depend_on_what_a_launcher_counts(tmp_path):
    """Each worker is told another number of workers on its machine."""
    with Job(tmp_path, WORKERS, SERVERS, summing("relays")) as job:
        job.start_services()
        for rank in range(WORKERS):
            counted = {"BYTEPS_LOCAL_RANK": str(rank // 2), "BYTEPS_LOCAL_SIZE": str(rank + 1)}
            of_job = {"BYTEPS_GLOBAL_RANK": str(rank), "BYTEPS_GLOBAL_SIZE": str(WORKERS)}
            job.start_worker(rank, {"*": [["loop", 3], ["metrics"]]}, {**counted, **of_job})
        job.join()
        assert [worker.code for worker in job.workers] == [0] * WORKERS, job.story("an error")
        assert "who sums: relays of one machine with 3 workers, then 2 servers" in job.scheduler.err
        assert all(worker.heard("metrics")[0]["local_pushed_bytes"] > 0 for worker in job.workers)


def test_a_relay_without_memory_is_named_on_all_machines(tmp_path):
    """Worker 2, on the other machine, hears of it from a server."""
    push, full = [["push", "huge", "float32", 16 << 20], ["wait"]], tmp_path / "full"
    with Job(tmp_path / "job", servers=2, hosts=(2, 1)) as job:
        job.start_services()
        for rank in range(3):
            late = [["await_file", str(full)]] if rank == 1 else []
            limit = {"BYTEPS_RELAY_MEMORY_MB": "1"} if rank < 2 else {}
            job.start_worker(rank, {"*": [["push", "A"], ["wait"], *late, *push]}, limit)
        assert wait_until(lambda: job.workers[0].failures), job.story("nothing was refused")
        full.touch()
        job.join()
        for worker in job.workers:
            (end,) = worker.failures
            assert "no memory for" in end["message"] and "by the relay of worker" in end["message"], end
            assert "server" not in end["message"], end
        job.check_cause("worker", {0, 1}, "huge")
        assert "BYTEPS_RELAY_MEMORY_MB" in first_cause.explain(job.flight).remedy


# ---- who is late


@pytest.mark.parametrize("mode", ["relays", "alone"])
def test_a_notice_names_the_rank_that_is_late(tmp_path, mode):
    plan = {"1": [["sleep", 9], ["push", "A"], ["wait"]], "*": [["push", "A"], ["wait"]]}
    with Job(tmp_path, WORKERS, SERVERS, summing(mode)) as job:
        job.start(plan)
        job.join()
        assert [worker.code for worker in job.workers] == [0] * WORKERS, job.story("an error")
        for rank in (0, 2):
            assert "tensor 'A' misses worker 1 (" in job.workers[rank].err, job.story("it is not named")


# ---- a relay that stands still


needs_preload = pytest.mark.skipif(
    shutil.which("cc") is None or BUILD.name in ("asan", "tsan"),
    reason="needs a C compiler, and no sanitizer's runtime, which must be loaded first",
)


def stuck_when(file, preload):
    return {"LD_PRELOAD": preload["slow_calls"], "STUCK_THREAD": "byteps-relay", "STUCK_WHEN": str(file)}


@needs_preload
@pytest.mark.parametrize("mode", ["relays", "alone"])
def test_a_relay_that_stands_still_ends_the_job_by_the_name_of_its_worker(tmp_path, preload, mode):
    stuck = tmp_path / "stuck"
    with Job(tmp_path / "job", WORKERS, SERVERS, summing(mode)) as job:
        job.start_services()
        for rank in range(WORKERS):
            job.start_worker(rank, {"*": [["loop"]]}, stuck_when(stuck, preload) if rank == 1 else {})
        job.wait_for("looping")
        began_s = time.monotonic()
        stuck.touch()
        job.join()
        words = [f"the relay of worker 1 stands still for {seconds}" for seconds in ("3 s", "3.")]
        job.check_end(began_s, job.workers, [[each, "byteps-relay"] for each in words])
        assert "its relay stands still" in job.workers[1].err, job.story("it does not say what it leaves behind")
        job.check_cause("worker", 1, "stands still")
        job.check_nothing_is_left()


@needs_preload
def test_who_leaves_with_a_relay_that_stands_still_is_missed_by_name(tmp_path, preload):
    """All have contributed, but what it leads is at its relay. It waits for that for a while, and ends without it."""
    stuck = tmp_path / "stuck"
    first = [["push", "first"], ["wait"], ["await_file", str(stuck)], ["sleep", 1.5]]
    then = ["push", "A", "float32", 100_000]
    plan = {"1": [*first, then, ["sleep", 0.5], ["quit", 0]], "*": [*first, then, ["wait"]]}
    with Job(tmp_path / "job", WORKERS, SERVERS, {**summing("relays"), "BYTEPS_PARTITION_BYTES": "65536"}) as job:
        job.start_services()
        for rank in range(WORKERS):
            job.start_worker(rank, plan, stuck_when(stuck, preload) if rank == 1 else {})
        job.wait_for("end")
        began_s = time.monotonic()
        stuck.touch()
        job.join()
        left = [job.workers[rank] for rank in (0, 2)]
        job.check_end(began_s, left, [["tensor 'A' waits for worker 1, which has left"]], bound_s=4 * FAILURE_S)
        assert "its relay stands still" in job.workers[1].err, job.story("it does not say what it leaves behind")
        job.check_cause("worker", 1, "left the job")
        job.check_nothing_is_left()
