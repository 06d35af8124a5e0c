"""Jobs of the real torch on the fake GPU (torch_worker.py): a process that ends while copies run, that is killed at any
call of the driver, or whose calls fail."""

import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fake_gpu
import pytest
from job import Job
from place import wait_until
from zygote import fork_servers

pytestmark = pytest.mark.skipif(fake_gpu.missing() is not None, reason=f"no fake GPU: {fake_gpu.missing()}")

WORKER = Path(__file__).with_name("torch_worker.py")
IMPORTED = ["torch", "torch._dynamo"]  # the latter by the first optimizer, in two seconds
AT_ONCE = 4
END_S = 100
KILLED = -9


def start(job, words=(3,), environs=(), last=()):
    """Two workers with these arguments; `environs`: more variables, by rank; `last`: the last rank's arguments."""
    on_gpu = fake_gpu.variables(everywhere=True)
    python = fork_servers.get(sys.executable, IMPORTED, {**job.place.environ, **on_gpu}).command()
    job.start_services()
    for rank in range(job.size):
        told = last if last and rank == job.size - 1 else words
        job.start_program(rank, [*python, WORKER, *told], {**on_gpu, **dict(environs).get(rank, {})})


def job_of(folder, **settings):
    return Job(folder, workers=2, servers=1, environ={"BYTEPS_FAILURE_TIMEOUT_MS": "5000", **settings})


def ended(job):
    """The workers, when they have ended."""
    assert wait_until(lambda: all(worker.code is not None for worker in job.workers), END_S), job.story("no end")
    return job.workers


def story(job, text=""):
    return f"{text} {[worker.code for worker in job.workers]}\n{job.story('')}"


# ---- a process ends while copies run

SLOW = {"FAKE_GPU_OUT_MBPS": "10"}  # what is under way at the end, 4 MiB, takes 0.4 s
ENDS = {"return": 0, "exit": 3, "raise": 1}


@pytest.mark.parametrize("end", ENDS)
def test_a_process_may_end_while_its_copies_run(tmp_path, end):
    with job_of(tmp_path) as job:
        start(job, (1, "wait"), {1: {**SLOW, "FAKE_GPU_LEAKS": "1"}}, last=(1, end))
        waits, ends = ended(job)
        assert ends.code == ENDS[end] and "VIOLATION" not in ends.err, story(job)
        assert ("LookupError: as it was told" in ends.err) == (end == "raise"), story(job)
        assert waits.code == 1 and "worker 1" in waits.err and "VIOLATION" not in waits.err, story(job)


# ---- calls that fail


WORDS = {700: "an illegal memory access was encountered", 719: "unspecified launch failure"}


@pytest.mark.parametrize("symbol, call, code", [("cuMemcpyDtoHAsync", 1, 719), ("cuEventQuery", 9, 700)])
def test_a_device_that_is_lost_is_named_on_all_ranks(tmp_path, symbol, call, code):
    with job_of(tmp_path) as job:
        # No steps: in them torch's own calls may meet what has happened first.
        start(job, (0, "wait"), {1: {"FAKE_GPU_FAIL": f"{symbol}:{call}={code}"}})
        for worker in ended(job):
            said = worker.err.splitlines()
            named = f"CUDA device 0 (0000:01:00.0): {symbol} failed: "
            assert worker.code == 1, story(job)
            assert any("Error: " in line and named in line and WORDS[code] in line for line in said), story(job)
        assert "worker 1" in job.workers[0].err, story(job)


def check_failure(folder, symbol, call, code):
    with job_of(folder) as job:
        start(job, environs={1: {"FAKE_GPU_FAIL": f"{symbol}:{call}={code}"}})
        other, failed = ended(job)
        told = story(job, f"{symbol}, call {call}, error {code}:")
        for worker in (failed, other):
            assert "terminate called" not in worker.err and "VIOLATION" not in worker.err, told
        if failed.code == 0:  # one that can be done without
            assert other.code == 0, told
        else:
            assert failed.code == 1 and "CUDA" in failed.err, told
            assert other.code == 1 and "worker 1" in other.err, told


# Torch's alone, in its threads too, where an error ends the process.
OF_TORCH = {"cuDevicePrimaryCtxGetState"}


def calls_of_a_run(folder):
    """How often a good run of rank 1 calls each function of the driver, and all of them."""
    with job_of(folder) as job:
        start(job, environs={1: {"FAKE_GPU_COUNTS": str(folder / "counts")}})
        assert [worker.code for worker in ended(job)] == [0, 0], story(job)
    counts = {symbol: int(count) for symbol, count in map(str.split, (folder / "counts").read_text().splitlines())}
    ours = [name for name in counts if name[:2] == "cu" and name[2].isupper() and name not in OF_TORCH]
    return {name: counts[name] for name in ours}, counts["total"]


def run_all(check, chosen):
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for future in [pool.submit(check, *each) for each in chosen]:
            future.result()


def failures(folder, seed, count):
    """A call of each function first, then of any; with an error that ends one call, or the whole context."""
    calls, _ = calls_of_a_run(folder / "counted")
    chosen = random.Random(seed)
    symbols = chosen.sample(sorted(calls), len(calls))
    for number in range(count):
        symbol = symbols[number % len(symbols)]
        yield folder / str(number), symbol, chosen.randint(1, calls[symbol]), chosen.choice([1, 700, 719])


def test_a_call_of_the_driver_that_fails_is_a_named_error(tmp_path):
    run_all(check_failure, failures(tmp_path, 1, 4))


@pytest.mark.long(reason="20 jobs of torch")
@pytest.mark.timeout(1200)
def test_20_more_calls_of_the_driver_that_fail_are_named_errors(tmp_path):
    run_all(check_failure, failures(tmp_path, 2, 20))


# ---- a process is killed


def check_kill(folder, call):
    with job_of(folder) as job:
        start(job, environs={1: {"FAKE_GPU_KILL": str(call)}})
        other, killed = ended(job)
        told = story(job, f"killed at call {call}:")
        assert killed.code == KILLED, told
        assert other.code == 1 and "worker 1" in other.err and "VIOLATION" not in other.err, told


def kills(folder, seed, count):
    _, total = calls_of_a_run(folder / "counted")
    for call in random.Random(seed).sample(range(1, total - total // 10), count):
        yield folder / str(call), call


def test_a_process_that_is_killed_at_a_call_of_the_driver_ends_the_job_with_its_name(tmp_path):
    run_all(check_kill, kills(tmp_path, 1, 3))


@pytest.mark.long(reason="20 jobs of torch that are killed")
@pytest.mark.timeout(1200)
def test_20_more_processes_that_are_killed_end_their_jobs_with_their_names(tmp_path):
    run_all(check_kill, kills(tmp_path, 2, 20))
