"""Jobs of plain C++ workers whose tensors are on the fake GPU (device_worker.cc): sums, and what happens when a worker
is killed at any call of its driver, when any call fails, and when a copy never ends."""

import json
import random
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from job import BOUND_S, Job
from place import BUILD, wait_until

from byteps.tools import trace

FAKE = BUILD / "lib/fake_gpu/libcuda.so.1"
WORKER = BUILD / "bin/device_worker"
AT_ONCE = 8
MIB = 1 << 20
KILLS, KILLS_LONG = 20, 180
VIOLATION = 86
# Who sums, in the words of tests/jobs/job.py.
MODES = {"servers": ("0", "1"), "relays": ("auto", "1"), "alone": ("auto", "0")}


def job_of(folder, workers=2, mode="servers", environ=()):
    local_reduce, forced = MODES[mode]
    settings = {
        "BYTEPS_CUDA_LIBRARY": str(FAKE),
        "BYTEPS_LOCAL_REDUCE": local_reduce,
        "BYTEPS_FORCE_DISTRIBUTED": forced,
        **dict(environ),
    }
    return Job(folder, workers=workers, servers=1, environ=settings)


def start(job, words=("5", "300000", "3"), environs=()):
    """All workers; `environs`: of some of them, by rank."""
    job.start_services()
    for rank in range(job.size):
        job.start_program(rank, [WORKER, *words], dict(environs).get(rank, ()))


@pytest.mark.parametrize("mode", MODES)
def test_sums_and_broadcasts_are_right_and_nothing_is_used_early_or_kept(tmp_path, mode):
    with job_of(tmp_path, workers=3, mode=mode) as job:
        # Late kernels, and tensors of several parts.
        start(job, ("6", str(9 * MIB), "3", "2000"))
        job.join()
        assert [worker.code for worker in job.workers] == [0, 0, 0], job.story("not well")


# Parts have about 4 MB: a pool for two of them, and one that holds none.
@pytest.mark.parametrize("pinned_mb", [8, 1])
def test_a_pool_smaller_than_what_is_under_way_is_right(tmp_path, pinned_mb):
    with job_of(tmp_path, environ={"BYTEPS_PINNED_MB": str(pinned_mb)}) as job:
        start(job, ("6", str(9 * MIB), "2"))
        job.join()
        assert [worker.code for worker in job.workers] == [0, 0], job.story("not well")


def test_two_ranks_on_one_gpu_work(tmp_path):
    with job_of(tmp_path, environ={"FAKE_GPU_COUNT": "1"}) as job:
        start(job)
        job.join()
        assert [worker.code for worker in job.workers] == [0, 0], job.story("not well")


def lines_of_plans(job):
    return [line for worker in job.workers for line in worker.err.splitlines() if "not in use yet: " in line]


@pytest.mark.parametrize("mode", MODES)
def test_a_machine_says_at_the_start_what_its_gpus_would_allow(tmp_path, mode):
    # NVML is found as the system's is. The kernel knows none of these devices, so no switches.
    environ = {"LD_LIBRARY_PATH": str(FAKE.parent), "FAKE_GPU_COUNT": "3", "FAKE_GPU_LINKS": "0-1:4,1-2:4,0-2:4",
               "BYTEPS_NIC_MBPS": "10000"}  # fmt: skip
    own = {rank: {"CUDA_VISIBLE_DEVICES": str(rank)} for rank in range(3)}
    with job_of(tmp_path, workers=3, mode=mode, environ=environ) as job:
        start(job, ("3", "300000", "2"), own)
        job.join()
        assert [worker.code for worker in job.workers] == [0, 0, 0], job.story("not well")
        (line,) = lines_of_plans(job)
        assert "worker 0]" in line and "3 GPUs, NVLink" in line and "10 Gbit/s expected" in line, line
        assert "copied to the host and summed there" in line, line


def test_a_wish_that_cannot_be_followed_is_named_and_gpus_that_cannot_be_told_are_not_guessed(tmp_path):
    environ = {"LD_LIBRARY_PATH": str(FAKE.parent), "BYTEPS_PCIE_SWITCH_SIZE": "4", "BYTEPS_REDUCE_ROOTS": "5"}
    own = {rank: {"BYTEPS_LOCAL_RANK": str(rank), "BYTEPS_LOCAL_SIZE": "2", "DMLC_NUM_WORKER": "1",
                  "DMLC_WORKER_ID": "0"} for rank in range(2)}  # fmt: skip
    with job_of(tmp_path / "said", environ=environ) as job:
        start(job, environs=own)
        job.join()
        assert [worker.code for worker in job.workers] == [0, 0], job.story("not well")
        (line,) = lines_of_plans(job)
        assert "2 GPUs" in line and "BYTEPS_REDUCE_ROOTS has no effect" in line, line
    with job_of(tmp_path / "unsaid", environ=environ) as job:
        start(job)
        job.join()
        assert [worker.code for worker in job.workers] == [0, 0], job.story("not well")
        assert lines_of_plans(job) == []


def test_where_there_is_no_driver_the_first_tensor_says_what_was_looked_for(tmp_path):
    with job_of(tmp_path, environ={"BYTEPS_CUDA_LIBRARY": "/nowhere/libcuda.so.1"}) as job:
        start(job)
        assert wait_until(lambda: all(worker.code is not None for worker in job.workers), 30), job.story("no end")
        for worker in job.workers:
            assert worker.code == 1 and "no CUDA driver: /nowhere/libcuda.so.1" in worker.err, job.story("")


# ---- the timeline


def in_order(*times):
    assert all(later >= earlier - 0.01 for earlier, later in zip(times, times[1:])), times


@pytest.mark.parametrize("mode", ["servers", "relays"])
def test_a_timeline_has_what_each_part_waited_for_at_its_gpu(tmp_path, mode):
    rounds, tensors = 4, 6
    environ = {"BYTEPS_TRACE_ON": "1", "BYTEPS_TRACE_START_STEP": "1", "BYTEPS_TRACE_DIR": str(tmp_path / "trace"),
               "BYTEPS_PINNED_MB": "8"}  # fmt: skip
    with job_of(tmp_path, mode=mode, environ=environ) as job:
        start(job, (str(tensors), str(9 * MIB), str(rounds), "2000"))
        job.join()
        assert [worker.code for worker in job.workers] == [0, 0], job.story("not well")
        processes = trace.read([str(tmp_path / "trace")])
    for worker in processes[:2]:
        assert len(worker.operations) == (rounds - 1) * tensors
        for part in worker.parts:
            at = part.copies
            in_order(at.entered, at.ready, at.lent, at.first_out, part.queued, part.first_sent, part.last_sent)
            in_order(at.first_out, at.last_out, part.last_sent)
            in_order(part.first_answer, part.last_answer, at.last_in)
            in_order(at.first_in, at.last_in)
            # Who gets a broadcast gives nothing, and its root has the result, in place in tensor 2.
            number = int(part.tensor.split()[1])
            assert (at.last_out > at.lent) == (number % 3 < 2 or worker.rank == 0), part
            assert (at.last_in > at.first_in) == (number != 2 or worker.rank != 0), part
        for operation in worker.operations:
            mine = [part for part in worker.parts if (part.tensor, part.round) == (operation.tensor, operation.round)]
            assert len(mine) >= 3, mine
            in_order(operation.submitted, max(part.copies.last_in for part in mine), operation.done)
    summary = trace.summarize(processes)
    titles = {**trace.BEFORE, **(trace.STAGES if mode == "servers" else trace.RELAYED), **trace.BEHIND}
    assert summary.titles == titles
    assert all(each.total_us > 0 for each in summary.stages if each.stage in {*trace.BEFORE, *trace.BEHIND}), summary


# ---- errors of the driver


def outcome(folder, environs, words=("3", "100000", "2")):
    """How the workers ended, by rank: their exit code and what they said. The others' is an error that names rank 1."""
    with job_of(folder) as job:
        start(job, words, environs)
        begun_s = time.monotonic()
        ended = wait_until(lambda: all(worker.code is not None for worker in job.workers), 40)
        assert ended, job.story(f"not all have ended after {time.monotonic() - begun_s:.0f} s")
        return [(worker.code, worker.err) for worker in job.workers], job.story("")


def calls_of_a_run(folder):
    """How often a good run calls each function of the driver."""
    counts = folder / "counts"
    ends, story = outcome(folder, {1: {"FAKE_GPU_COUNTS": str(counts)}})
    assert [code for code, _ in ends] == [0, 0], story
    text = counts.read_text()
    found = json.loads(text) if text.startswith("{") else dict(re.findall(r"(\w+)[ :=]+(\d+)", text))
    return {symbol: int(count) for symbol, count in found.items() if int(count) > 0}


def check_injected(folder, symbol, call, code):
    ends, story = outcome(folder, {1: {"FAKE_GPU_FAIL": f"{symbol}:{call}={code}"}})
    told = f"{symbol}, call {call}, error {code}: {story}"
    # What could not be given back is still there at the end.
    kept = ends[1][0] == VIOLATION and "VIOLATION: everything is given back" in ends[1][1]
    assert ends[1][0] in (0, 1) or kept, told
    if ends[1][0] == 1:
        err = ends[1][1]
        assert re.search(r"CUDA|of the user failed|not given back", err), told
        assert "terminate called" not in err, told
    assert ends[0][0] in (0, 1), told


def injections(folder):
    """Each call of each function once, with an error that ends one call, or the whole context."""
    for symbol, count in sorted(calls_of_a_run(folder).items()):
        for call in range(1, count + 1):
            yield symbol, call, 700 if (call + len(symbol)) % 2 else 1


def run_injections(folder, chosen):
    assert chosen
    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = [pool.submit(check_injected, folder / str(i), *each) for i, each in enumerate(chosen)]
        for future in futures:
            future.result()


def test_an_error_of_the_driver_ends_the_job_with_its_words(tmp_path):
    everything = list(injections(tmp_path / "count"))
    run_injections(tmp_path, random.Random(1).sample(everything, 20))


@pytest.mark.long(reason="some hundred jobs")
@pytest.mark.timeout(1200)
def test_an_error_at_each_call_of_the_driver_ends_the_job_with_its_words(tmp_path):
    run_injections(tmp_path, list(injections(tmp_path / "count")))


# ---- a worker is killed


def check_kill(folder, call):
    with job_of(folder, environ={"BYTEPS_FAILURE_TIMEOUT_MS": "1000"}) as job:
        start(job, ("3", "3000000", "1000", "500"), {1: {"FAKE_GPU_KILL": str(call)}})
        killed, other = job.workers[1], job.workers[0]
        assert wait_until(lambda: killed.code is not None, 40), job.story("it was not killed")
        began_s = time.monotonic()
        assert killed.code == -9, job.story("it ended by itself")
        assert wait_until(lambda: other.code is not None, 40), job.story("the other one hangs")
        late_s = time.monotonic() - began_s
        assert late_s <= BOUND_S, job.story(f"the other one ended after {late_s:.1f} s")
        assert other.code == 1 and "worker 1" in other.err, job.story("it does not name the one that is gone")


def run_kills(folder, calls):
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for future in [pool.submit(check_kill, folder / str(call), call) for call in calls]:
            future.result()


def kills(count, seed):
    # The first hundred calls make contexts and memory; a round has some hundred.
    return random.Random(seed).sample(range(1, 2500), count)


def test_a_worker_that_is_killed_at_any_call_ends_the_job_with_its_name(tmp_path):
    run_kills(tmp_path, kills(KILLS, 1))


@pytest.mark.long(reason="180 more jobs that are killed")
@pytest.mark.timeout(1200)
def test_180_more_workers_that_are_killed_at_any_call_end_their_jobs(tmp_path):
    run_kills(tmp_path, kills(KILLS_LONG, 2))


# ---- a copy never ends


def test_a_copy_that_never_ends_keeps_neither_the_job_nor_its_process(tmp_path):
    with job_of(tmp_path, environ={"BYTEPS_FAILURE_TIMEOUT_MS": "1000"}) as job:
        start(job, ("3", "300000", "1000"), {1: {"FAKE_GPU_HANG": "cuMemcpyDtoHAsync:5"}})
        stuck, other = job.workers[1], job.workers[0]
        time.sleep(2)
        assert stuck.code is None, job.story("it has ended")
        other.kill()
        assert wait_until(lambda: stuck.code is not None, 20), job.story("the copy keeps it")
        assert stuck.code == 1 and "worker 0" in stuck.err, job.story("")
        assert "left to itself" in stuck.err, job.story("")
