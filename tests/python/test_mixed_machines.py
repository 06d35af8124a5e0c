"""Jobs whose workers are on several machines, some of them together: relays, and servers behind them."""

from __future__ import annotations

import os

import numpy as np
import pytest
import test_operations
from cluster import Cluster
from hosts import places
from mixed_sums import (
    COUNTS,
    DTYPES,
    FLOATS,
    INTEGERS,
    OPERATIONS,
    averages_of_halves,
    everything,
    random_exchanges,
    random_values,
    same_sum_many_times,
    sums_at_this_size,
    whole_values,
)

CORE = "byteps._core.session"
HOSTS = (1, 2, 1)
SIZE = sum(HOSTS)
EPSILON = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}  # half a last bit
FLAT = {"BYTEPS_LOCAL_REDUCE": "0"}


def test_workers_are_on_the_machines_asked_for_whether_they_are_forked_or_started():
    for forked in (True, False):
        with Cluster(hosts=([0, 2], [1]), layer=CORE, forked=forked) as cluster:
            (one, two, three) = cluster.run(os.readlink, "/proc/self/ns/net")
            assert one == three and len({one, two, os.readlink("/proc/self/ns/net")}) == 3
            assert cluster.run(sums_at_this_size) == [(0, 2), (0, 1), (1, 2)]


# ---- what comes out


@pytest.fixture(scope="module")
def results():
    """By kind of values: what relays gave, and what servers alone did, by dtype, operation and count."""
    found = {}
    for way, environ in (("relays", {}), ("flat", FLAT)):
        with Cluster(hosts=HOSTS, environ=environ, layer=CORE) as cluster:
            for kind in ("random", "whole"):
                first, *others = cluster.run(everything, kind)
                assert all(other == first for other in others), "every rank has the same bits"
                found[way, kind] = first
    return lambda way, kind, case: np.frombuffer(found[way, kind][case], DTYPES[case[0]])


def cases(dtypes, operations=OPERATIONS):
    return [(dtype, operation, count) for dtype in dtypes for operation in operations for count in COUNTS]


def test_whole_numbers_come_out_as_without_relays_bit_for_bit(results):
    for case in cases(DTYPES):
        assert results("relays", "whole", case).tobytes() == results("flat", "whole", case).tobytes(), case
        dtype, operation, count = case
        mine = [whole_values(dtype, operation, rank, count).astype(np.float64) for rank in range(SIZE)]
        if operation != "average":
            reduced = {"sum": np.sum, "min": np.min, "max": np.max, "product": np.prod}[operation](mine, axis=0)
            np.testing.assert_array_equal(results("relays", "whole", case).astype(np.float64), reduced, str(case))


def test_integers_and_extremes_come_out_as_without_relays_bit_for_bit(results):
    for case in [*cases(INTEGERS), *cases(FLOATS, ("min", "max"))]:
        assert results("relays", "random", case).tobytes() == results("flat", "random", case).tobytes(), case
    for dtype, _, count in cases(INTEGERS, ("sum",)):
        mine = [random_values(dtype, "sum", rank, count) for rank in range(SIZE)]
        wrapped = sum(mine[1:], mine[0])
        np.testing.assert_array_equal(results("relays", "random", (dtype, "sum", count)), wrapped, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_sum_has_at_most_one_rounding_more_for_each_machine(results, dtype):
    """Of what the machine has together, and of float16 what its headroom takes of numbers near zero."""
    half = EPSILON[dtype]
    added = EPSILON["float64" if dtype == "float64" else "float32"]  # of each addition
    for operation in ("sum", "average"):
        for count in COUNTS:
            mine = np.array([random_values(dtype, operation, rank, count) for rank in range(SIZE)], np.float64)
            where = np.array(places(HOSTS))
            machines = [np.abs(mine[where == host].sum(axis=0)) for host in range(len(HOSTS))]
            subnormal = len(machines) * 2.0**-25 * max(HOSTS) if dtype == "float16" else 0
            share = 1 / SIZE if operation == "average" else 1
            exact = mine.sum(axis=0) * share
            once = (
                half * np.abs(exact)
                + 2 * SIZE * added * np.abs(mine).sum(axis=0) * share
                + (2.0**-25 if subnormal else 0)
            )
            more = (half * sum(machines) + subnormal) * share
            case = (dtype, operation, count)
            flat, relays = [
                np.abs(results(way, "random", case).astype(np.float64) - exact) for way in ("flat", "relays")
            ]
            assert (flat <= once * 1.01).all(), case
            assert (relays <= (once + more) * 1.01).all(), case


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_product_is_rounded_at_each_factor_at_most(results, dtype):
    for count in COUNTS:
        exact = np.prod(
            [random_values(dtype, "product", rank, count).astype(np.float64) for rank in range(SIZE)], axis=0
        )
        got = results("relays", "random", (dtype, "product", count)).astype(np.float64)
        assert (np.abs(got - exact) <= SIZE * 1.01 * EPSILON[dtype] * exact).all(), count


@pytest.mark.parametrize("hosts", [(4, 4), (1, 7), (5, 1, 2)], ids=str)
def test_averages_of_float16_are_exact_where_the_sums_of_a_machine_are_beyond_it(hosts):
    with Cluster(hosts=hosts, layer=CORE) as cluster:
        for value in (10_000, 60_000):
            assert cluster.run(averages_of_halves, value) == [[value]] * 8


def test_deterministic_jobs_repeat_each_other_bit_for_bit():
    found = set()
    for _ in range(2):
        with Cluster(hosts=HOSTS, environ={"BYTEPS_DETERMINISTIC": "1"}, layer=CORE) as cluster:
            for rounds in cluster.run(same_sum_many_times, 10):
                found.update(rounds)
    assert len(found) == 1


# ---- what the tests of operations have, for three workers


@pytest.mark.parametrize("hosts", [(2, 1), (1, 2)], ids=str)
def test_every_operation_for_all_for_some_and_for_one(hosts):
    """Sets within one machine, with one member on each, with none on one; results for a root alone; uneven inputs."""
    with Cluster(hosts=hosts, layer="test_operations", init=False) as cluster:
        for function in (test_operations.extremes, test_operations.subsets, test_operations.to_the_root):
            cluster.run(function)
        for time in range(2):
            assert cluster.run(test_operations.uneven_inputs, time) == [1, 1, 1]
        for text in cluster.run(test_operations.disagreeing_members):
            assert text.count(", of workers ") == 2, "what both had"
        cluster.run(test_operations.leave)


@pytest.mark.parametrize("hosts", [(1, 2, 1), (3, 2), ([0, 3], [1, 4], [2])], ids=str)
def test_random_exchanges_of_random_members_come_out_right_in_any_order(hosts):
    for seed, environ in enumerate(({}, {"BYTEPS_PARTITION_BYTES": "65536", "BYTEPS_CREDIT_BYTES": "65536"})):
        with Cluster(hosts=hosts, environ=environ, layer=CORE) as cluster:
            cluster.run(random_exchanges, 10 * len(hosts) + seed, 60, 4)


# ---- jobs of other sizes on each machine, made of the same processes


def test_suspended_workers_go_on_with_another_number_on_each_machine():
    with Cluster(hosts=([0, 3], [1, 2]), layer=CORE) as cluster:
        assert cluster.run(sums_at_this_size) == [(0, 2), (0, 2), (1, 2), (1, 2)]
        cluster.resize(3)  # one and two
        assert cluster.run(sums_at_this_size) == [(0, 1), (0, 2), (1, 2)]
        cluster.resize(2)  # one and one: the servers alone
        assert cluster.run(sums_at_this_size) == [(0, 1), (0, 1)]
        cluster.resize(4)
        assert cluster.run(sums_at_this_size) == [(0, 2), (0, 2), (1, 2), (1, 2)]
        cluster.resize(1)
        assert cluster.run(sums_at_this_size) == [(0, 1)]
        cluster.resize(3)
        assert cluster.run(sums_at_this_size) == [(0, 1), (0, 2), (1, 2)]
