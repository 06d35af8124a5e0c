"""The original's compressors through whole jobs, at the C interface: each round's result is that of part_codecs.py, in
which each rank, and the servers, have a codec of their own for each part. The sums' order is fixed (deterministic)."""

import ctypes
import itertools
import threading
import time

import numpy as np
import pytest
from cluster import Cluster
from part_codecs import MASK, Codec, F, mix

from byteps._core import abi, errors, session

CORE = "byteps._core.session"
PART = 4096  # elements, BYTEPS_PARTITION_BYTES of them
COUNT = 2 * PART + 101
RATES = [0.1, 0.1, 0.05, 0.2]
SERVER = 0xFFFFFFFF
KINDS = {
    "onebit": dict(kind="onebit"),
    "onebit-scaling": dict(kind="onebit", scaling=True),
    "topk-share": dict(kind="topk", k=0.01),
    "topk-count": dict(kind="topk", k=700),
    "randomk": dict(kind="randomk", k=0.1),
    "randomk-seed": dict(kind="randomk", k=100, seed=2020),
    "dithering-linear": dict(kind="dithering", k=4),
    "dithering-linear-l2-seed": dict(kind="dithering", k=100, l2=True, seed=2020),
    "dithering-natural-seed": dict(kind="dithering", k=5, natural=True, seed=2020),
    "dithering-natural-l2": dict(kind="dithering", k=16, natural=True, l2=True),
}
CARRIED = {"": {}, "-ef": dict(ef=True), "-mu": dict(mu=0.9), "-ef-mu": dict(ef=True, mu=0.9)}
CASES = {
    name + suffix: {**kind, **carried}
    for (name, kind), (suffix, carried) in itertools.product(KINDS.items(), CARRIED.items())
}
SUMMING = {"BYTEPS_DETERMINISTIC": "1", "BYTEPS_PARTITION_BYTES": str(4 * PART)}
ENVIRON = {**SUMMING, "BYTEPS_LOCAL_REDUCE": "0"}
ALONE = {**SUMMING, "BYTEPS_LOCAL_REDUCE": "auto", "BYTEPS_FORCE_DISTRIBUTED": "0"}
LARGEST = 2**20 - 16  # elements of a part, whatever BYTEPS_PARTITION_BYTES is


def gradients(count, rank):
    """One of each round: some of few different magnitudes, some with zeros."""
    drawn = np.random.default_rng([count, rank]).standard_normal((len(RATES), count)).astype(F)
    drawn[1] = np.round(drawn[1] * 2) / 2
    drawn[2] *= np.random.default_rng(count).random(count) < 0.05
    return drawn


def key_of(name):
    hashed = 0xCBF29CE484222325
    for byte in name.encode():
        hashed = (hashed ^ byte) * 0x100000001B3 & MASK
    return mix(hashed)


# ---- in a worker


def pointer(array):
    return None if array is None else array.ctypes.data


def submit(name, gradient, format, codec, operation=abi.SUM, flags=0, **carried):
    """(handle, output); `carried`: of abi.Tensor, arrays as such."""
    output = np.zeros_like(gradient)
    tensor = abi.Tensor(
        abi.TENSOR_BYTES, abi.FLOAT32, name.encode(), pointer(gradient), pointer(output), gradient.size, operation
    )
    tensor.flags = flags
    tensor.format = format
    tensor.codec = ctypes.pointer(codec)
    for word, value in carried.items():
        setattr(tensor, word, pointer(value) if isinstance(value, np.ndarray) else value)
    return session.job().submit(tensor), output


def codec_of(kind="", k=0, seed=None, scaling=False, natural=False, l2=False, ef=False, mu=None):
    flags = abi.CODEC_SCALING * scaling | abi.CODEC_NATURAL * natural | abi.CODEC_L2 * l2
    flags |= abi.CODEC_ERROR_FEEDBACK * ef | (abi.CODEC_SEEDED if seed is not None else 0)
    return abi.Codec(k, seed or 0, flags, 0)


def trained(cases, count, average, times=1):
    """By case: the results of all rounds. `times`: of the gradients, one after the other, a while apart."""
    results = {}
    for name, case in cases.items():
        residual = np.zeros(count, F) if case.get("ef") else None
        momentum = np.zeros(count, F) if case.get("mu") else None
        results[name] = []
        before = None
        for rate, gradient in list(zip(RATES, gradients(count, session.rank()))) * times:
            time.sleep(0.03 if times > 1 else 0)
            given = gradient.copy()
            handle, output = submit(
                name,
                given,
                getattr(abi, "FORMAT_" + case["kind"].upper()),
                codec_of(**case),
                abi.AVERAGE if average else abi.SUM,
                residual=residual,
                momentum=momentum,
                momentum_mu=case.get("mu", 0),
                residual_ratio=before / rate if before and case.get("ef") else 0,
            )
            session.job().wait(handle)
            before = rate
            assert np.array_equal(given, gradient)
            results[name].append(output)
    return results


# ---- the model


def parts_of(count, length):
    return [slice(first, min(first + length, count)) for first in range(0, count, length)]


def expected(name, case, count, groups, average, length):
    """groups: the ranks that sum first, of each machine; a single one codes by itself."""
    ranks = sum(map(len, groups))
    results = np.zeros((len(RATES), count), F)
    for part, cut in enumerate(parts_of(count, length)):
        workers = [Codec(**case, where=(key_of(name), part, group[0])) for group in groups]
        server = Codec(**{**case, "mu": None}, where=(key_of(name), part, SERVER))
        for round, rate in enumerate(RATES):
            total = np.zeros(cut.stop - cut.start, F)
            for group, worker in zip(groups, workers):
                gradient = sum(
                    (gradients(count, rank)[round, cut] for rank in group[1:]), gradients(count, group[0])[round, cut]
                )
                total = total + worker.code(gradient, rate)
            if average:
                total = total / F(ranks)
            results[round, cut] = total if case["kind"] == "randomk" else server.code(total)
    return results


def check(results, cases, count, groups, average=False, length=PART):
    for name, case in cases.items():
        model = expected(name, case, count, groups, average, length)
        for rank, round in itertools.product(range(len(results)), range(len(RATES))):
            given = results[rank][name][round]
            np.testing.assert_array_equal(given, model[round], err_msg=f"{name}, rank {rank}, round {round}")


# ---- the tests


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_each_round_is_that_of_the_model(workers):
    cases = CASES if workers == 2 else {name: case for name, case in CASES.items() if name.endswith(("-ef-mu", "seed"))}
    with Cluster(workers=workers, environ=ENVIRON, layer=CORE) as job:
        results = job.run(trained, cases, COUNT, False)
        check(results, cases, COUNT, [[rank] for rank in range(workers)])


def test_an_average_is_divided_before_it_is_coded_again():
    cases = {f"average-{name}": CASES[name] for name in ("onebit-ef", "topk-share-ef", "randomk", "dithering-linear")}
    with Cluster(workers=2, environ=ENVIRON, layer=CORE) as job:
        check(job.run(trained, cases, COUNT, True), cases, COUNT, [[0], [1]], average=True)


def test_workers_of_a_machine_sum_first_and_code_once():
    names = (
        "onebit-scaling-ef-mu",
        "topk-share-ef-mu",
        "randomk-seed-ef",
        "dithering-natural-seed-ef",
        "topk-count-mu",
    )
    cases = {name: CASES[name] for name in names}
    with Cluster(hosts=(2, 1), environ=SUMMING, layer=CORE) as job:
        check(job.run(trained, cases, COUNT, False), cases, COUNT, [[0, 1], [2]])


def test_a_part_is_the_tensor_up_to_the_largest_one():
    cases = {"large": dict(kind="topk", k=0.001, ef=True)}
    count = LARGEST + 21
    with Cluster(workers=2, environ={**ENVIRON, "BYTEPS_PARTITION_BYTES": "2147483647"}, layer=CORE) as job:
        results = job.run(trained, cases, count, False)
        check(results, cases, count, [[0], [1]], length=LARGEST)


def small_ones(count):
    """With momentum, too small to be coded; and in what way it travels."""
    momentum = np.zeros(count, F)
    outputs = []
    before = session.metrics()
    for gradient in gradients(count, session.rank()):
        handle, output = submit(
            "small",
            gradient,
            abi.FORMAT_TOPK,
            codec_of(k=0.01),
            abi.AVERAGE,
            abi.CODED_WHERE_FIT,
            momentum=momentum,
            momentum_mu=0.9,
        )
        session.job().wait(handle)
        outputs.append(output)
    after = session.metrics()
    return outputs, after.pushed_wire_bytes - before.pushed_wire_bytes, after.pushed_bytes - before.pushed_bytes


@pytest.mark.parametrize("place", ["apart", "one_machine", "two_and_one"])
def test_small_tensors_have_their_momentum(place):
    if place == "two_and_one":
        cluster = Cluster(hosts=(2, 1), environ=SUMMING, layer=CORE)
    else:
        cluster = Cluster(workers=3, environ=ENVIRON if place == "apart" else ALONE, layer=CORE)
    count = 1000
    with cluster as job:
        results = job.run(small_ones, count)
    ranks = np.stack([gradients(count, rank) for rank in range(3)])
    groups = {"apart": [[0], [1], [2]], "one_machine": [[0, 1, 2]], "two_and_one": [[0, 1], [2]]}[place]
    momenta = [np.zeros(count, F) for _ in groups]
    for round in range(len(RATES)):
        total = np.zeros(count, F)
        for momentum, group in zip(momenta, groups):
            gradient = sum((ranks[rank, round] for rank in group[1:]), ranks[group[0], round])
            momentum[:] = F(0.9) * momentum + gradient
            total = total + (gradient + F(0.9) * momentum)
        for outputs, on_wire, pushed in results:
            np.testing.assert_array_equal(outputs[round], total / F(3))
            assert on_wire == pushed


def disagreeing(k_of_rank):
    gradient = np.ones(COUNT, F)
    handle, _ = submit("apart", gradient, abi.FORMAT_TOPK, codec_of(k=k_of_rank[session.rank()]))
    with pytest.raises(errors.MismatchError) as raised:
        session.job().wait(handle)
    return str(raised.value)


def test_ranks_that_disagree_are_told_what_each_has_said():
    with Cluster(workers=2, environ=ENVIRON, layer=CORE) as job:
        for text in job.run(disagreeing, [0.01, 0.02]):
            assert "coded as topk with k = 0.01" in text and "coded as topk with k = 0.02" in text
            assert "Ask for the same compression on all ranks" in text


def test_a_job_goes_on_with_the_same_numbers_on_all_ranks_when_a_server_is_lost():
    names = ("topk-share", "randomk-seed-ef", "dithering-natural-seed", "onebit-ef", "dithering-linear-mu")
    cases = {name: CASES[name] for name in names}
    times = 8
    with Cluster(workers=2, environ=ENVIRON, layer=CORE) as job:
        calm = job.run(trained, cases, COUNT, False, times)
    with Cluster(workers=2, environ={**ENVIRON, "BYTEPS_FAILURE_TIMEOUT_MS": "2000"}, layer=CORE) as job:
        killer = threading.Timer(2.0, job.servers[0].kill)
        killer.start()
        results = job.run(trained, cases, COUNT, False, times)
        killer.join()
        assert "takes its place" in job.scheduler.err or "serves" in job.scheduler.err, job.story("nobody was lost")
        job.servers.pop(0)  # or its exit code would count
    for name in names:
        np.testing.assert_array_equal(results[0][name], results[1][name], err_msg=name)
        if name != "onebit-ef":  # of which the server that was lost had a residual
            np.testing.assert_array_equal(results[0][name], calm[0][name], err_msg=name)
