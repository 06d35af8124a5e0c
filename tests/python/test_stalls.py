"""Jobs whose ranks wait for each other for ever end, and say who waits for what; jobs that would go on do not end.

The cases of a table mostly wait, so several jobs run side by side."""

import itertools
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import stall_calls
from cluster import MXNET_PYTHON, TENSORFLOW, WORKER_PYTHON, Cluster

# As by default. Where many jobs share few cores, a machine that is busy must not be taken for one that is dead.
FAILURE_TIMEOUT = {"BYTEPS_FAILURE_TIMEOUT_MS": "6000"}
END_S = 40.0  # with the default, half of it
LAYERS = {
    "core": "byteps._core.session",
    "torch": "byteps.torch",
    "distributed": "byteps.torch",
    "tensorflow": "byteps.tensorflow",
    "jax": "byteps.jax",
    "keras": "keras_without_tensorflow",
    "mxnet": "byteps.mxnet",
}
PYTHONS = {"mxnet": MXNET_PYTHON}
ENVIRON = {"tensorflow": TENSORFLOW, "keras": {"KERAS_BACKEND": "torch"}}
JOBS_AT_ONCE = 4
ONE_AT_A_TIME = threading.Lock()  # of those with a framework that takes long to import

PAIRS = {
    "core": [*itertools.combinations(stall_calls.CORE, 2)],
    "torch": [
        ("push_pull", "barrier"),
        ("push_pull", "grouped_allreduce"),
        ("grouped_allgather", "barrier"),
        ("grouped_allgather", "allgather"),
        ("grouped_reducescatter", "alltoall"),
        ("grouped_reducescatter", "broadcast_object"),
        ("broadcast", "allgather"),
        ("alltoall", "reducescatter"),
        ("allgather_object", "broadcast"),
    ],
    "distributed": [("gather_to_0", "gather_to_1"), ("all_gather", "all_reduce")],
    "tensorflow": [("push_pull", "barrier"), ("broadcast", "allgather"), ("within_a_function", "push_pull")],
    "jax": [("push_pull", "barrier"), ("broadcast", "allgather")],
    "keras": [("push_pull", "barrier"), ("broadcast", "allgather")],
    "mxnet": [("push_pull", "barrier")],
}
CASES = [(layer, *pair) for layer, pairs in PAIRS.items() for pair in pairs]


def cluster(layer, workers=2, **environ):
    extra = {**FAILURE_TIMEOUT, **ENVIRON.get(layer, {}), **environ}
    return Cluster(workers, 1, extra, layer=LAYERS[layer], python=PYTHONS.get(layer, WORKER_PYTHON))


def disagree(layer, first, second):
    """By rank: how long its call took, and what it failed with."""
    with ONE_AT_A_TIME if layer in ENVIRON else nullcontext(), tempfile.TemporaryDirectory() as folder:
        with cluster(layer, TMPDIR=folder) as job:
            calls = [(stall_calls.outcome_of, (layer, name), {}) for name in (first, second)]
            results = job.run_each(calls)
            job.broken = True  # its services have ended with the error
            return results


@pytest.fixture(scope="module")
def outcomes(request):
    items = [item for item in request.session.items if item.module is request.module and hasattr(item, "callspec")]
    chosen = {item.callspec.params.get("case") for item in items}
    with ThreadPoolExecutor(JOBS_AT_ONCE) as pool:
        futures = {case: pool.submit(disagree, *case) for case in CASES if case in chosen}
        yield futures
        for future in futures.values():
            future.cancel()


# torch.<group>.<number>[.<which exchange of the collective>]; a gather's says from whom to whom.
MENTIONS = {"gather_to_0": '.0.1.0"', "gather_to_1": '.0.0.1"', "all_gather": '.0.1"', "all_reduce": '.0"'}


def mention(name):
    return "a barrier was reached" if name == "barrier" else MENTIONS.get(name, name)


@pytest.mark.timeout(600)  # the jobs of the cases before it come first
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_ranks_that_make_different_calls_hear_which(case, outcomes):
    layer, *names = case
    if layer == "mxnet" and not MXNET_PYTHON.exists():
        pytest.skip(f"there is no {MXNET_PYTHON}")
    for duration_s, text in outcomes[case].result():
        assert text is not None, f"{case}: the call ended well"
        assert "all workers wait, and none can go on" in text, text
        for rank, name in enumerate(names):
            own, other = f"by worker {rank}, but not by worker {1 - rank}", mention(name)
            said = [part for part in text.split("; ") if own in part]
            assert any(other in part for part in said), f"{name!r} of rank {rank} is not in: {text}"
        assert duration_s < END_S, text


def test_no_more_inputs_on_one_rank_and_a_barrier_on_the_other_is_a_stall():
    with cluster("core") as job:
        join = (stall_calls.outcome_of_join, (), {})
        results = job.run_each([(stall_calls.outcome_of, ("core", "barrier"), {}), join])
        job.broken = True
    for _, text in results:
        assert "a barrier was reached by worker 0, but not by worker 1" in text
        assert "the end of inputs (join) was reached by worker 1, but not by worker 0" in text


# Longer than the failure timeout and the time in which a stall is noticed.
PAUSE_S = 6.0
SHORT = {"BYTEPS_FAILURE_TIMEOUT_MS": "2000"}


def test_a_thread_that_computes_while_another_waits_is_not_taken_for_blocked():
    with cluster("core", **SHORT) as job:
        calls = [(stall_calls.from_two_threads, (order, PAUSE_S), {}) for order in (["x", "y"], ["y", "x"])]
        assert job.run_each(calls) == [[2.0, 2.0], [2.0, 2.0]]


def test_a_thread_that_has_never_submitted_may_still_do_so():
    with cluster("core", **SHORT) as job:
        job.run(stall_calls.from_a_thread_that_never_submitted, PAUSE_S)


def test_a_wait_with_a_limit_may_end_by_itself():
    with cluster("core", **SHORT) as job:
        results = job.run(stall_calls.waits_that_give_up, PAUSE_S)
    assert not all(in_time for in_time, *_ in results)
    assert [ended for _, *ended in results] == [[True, True]] * 2


def test_the_thread_of_the_plans_may_compute_between_two_steps():
    with cluster("core", **SHORT) as job:
        job.run(stall_calls.slow_callbacks, PAUSE_S)


def test_a_worker_that_has_contributed_and_left_is_not_missed():
    with cluster("core", workers=3, **SHORT) as job:
        assert job.run(stall_calls.contributes_and_leaves, PAUSE_S) == [None, 3.0, 3.0]


def test_two_threads_of_a_rank_are_in_a_barrier_each(tmp_path):
    with cluster("core") as job:
        assert job.run(stall_calls.two_barriers_at_once, tmp_path / "both") == [[None, None]] * 2


def test_without_proof_the_users_patience_ends_the_job_and_names_who_waits_for_what():
    with cluster("core", BYTEPS_STALL_TIMEOUT_S="3", **SHORT) as job:
        results = job.run_each([(stall_calls.polls, (name,), {}) for name in "xy"])
        job.broken = True
    for text in results:
        assert 'tensor "x" was submitted by worker 0, but not by worker 1' in text
        assert 'tensor "y" was submitted by worker 1, but not by worker 0' in text
    with cluster("core", BYTEPS_STALL_TIMEOUT_S="3", **SHORT) as job:
        results = job.run_each([(stall_calls.polls, ("x",), {}), (stall_calls.computes, (), {})])
        job.broken = True
    for text in results:
        assert "BYTEPS_STALL_TIMEOUT_S is 3), waiting for tensor 'x' misses worker 1" in text


@pytest.mark.skipif(not MXNET_PYTHON.exists(), reason=f"there is no {MXNET_PYTHON}")
def test_mxnets_engine_may_compute_what_it_submits_while_all_of_python_waits():
    with cluster("mxnet", **SHORT) as job:
        assert job.run(stall_calls.slow_operation, PAUSE_S) == [2.0, 2.0]
