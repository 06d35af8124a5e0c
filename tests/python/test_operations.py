"""What the C interface reduces, through real servers: operations, dtypes, scales, members, results for one rank alone.
Workers of the core alone, without a framework; correctness against plain Python."""

from __future__ import annotations

import ctypes
import math
import time
from typing import List, Optional, Sequence

import pytest

from byteps._core import abi, errors
from byteps._core.client import Job, Metrics
from cluster import Cluster
from counted import pushed_and_pulled

INTEGERS = {
    abi.UINT8: ctypes.c_uint8,
    abi.INT8: ctypes.c_int8,
    abi.INT16: ctypes.c_int16,
    abi.UINT16: ctypes.c_uint16,
    abi.INT32: ctypes.c_int32,
    abi.UINT32: ctypes.c_uint32,
    abi.INT64: ctypes.c_int64,
    abi.UINT64: ctypes.c_uint64,
}
TYPES = {abi.FLOAT32: ctypes.c_float, abi.FLOAT64: ctypes.c_double, abi.BOOL: ctypes.c_uint8, **INTEGERS}
SIZE = 3

_job: Optional[Job] = None


def job() -> Job:
    global _job
    if _job is None:
        _job = Job.join()
    return _job


def leave() -> None:
    global _job
    job().leave()
    _job = None


def exchange(
    name: str, dtype: int, values: Sequence[float], operation: int, gets: bool = True, **options: object
) -> List[float]:
    """The result, or [] when this rank gets none."""
    array = (TYPES[dtype] * len(values))(*values)
    result = (TYPES[dtype] * len(values))()
    handle = job().push_pull(
        name,
        dtype,
        ctypes.addressof(array),
        ctypes.addressof(result) if gets else 0,
        len(values),
        operation,
        **options,
    )
    job().wait(handle)
    return list(result) if gets else []


def operations_of_all_dtypes() -> None:
    rank = job().rank
    for dtype in TYPES:
        if dtype == abi.BOOL:
            continue
        mine = [rank + 1, 3 - rank, 2] * 50
        expected = {
            abi.SUM: [6, 6, 6],
            abi.AVERAGE: [2, 2, 2],
            abi.MIN: [1, 1, 2],
            abi.MAX: [3, 3, 2],
            abi.PRODUCT: [6, 6, 8],
        }
        for operation, result in expected.items():
            assert exchange(f"all.{dtype}.{operation}", dtype, mine, operation) == result * 50
    mine = [rank == 1, rank != 1, True, False]
    for operation, result in {
        abi.SUM: [1, 1, 1, 0],
        abi.MAX: [1, 1, 1, 0],
        abi.MIN: [0, 0, 1, 0],
        abi.PRODUCT: [0, 0, 1, 0],
    }.items():
        assert exchange(f"bool.{operation}", abi.BOOL, mine, operation) == result


def extremes() -> None:
    rank = job().rank
    mine = [math.nan if rank == 1 else 1.0, -math.inf if rank == 2 else 5.0]
    low = exchange("nan.min", abi.FLOAT32, mine, abi.MIN)
    assert math.isnan(low[0]) and low[1] == -math.inf
    high = exchange("nan.max", abi.FLOAT64, mine, abi.MAX)
    assert math.isnan(high[0]) and high[1] == 5.0
    top = (1 << 64) - 1
    assert exchange("large", abi.UINT64, [top - rank], abi.MAX) == [top]
    assert exchange("wrap", abi.UINT64, [top if rank == 0 else 1], abi.SUM) == [1]


def scales() -> None:
    rank = job().rank
    assert exchange("scaled", abi.FLOAT32, [rank + 1.0], abi.SUM, scale=0.5) == [3.0]
    assert exchange("mean", abi.FLOAT64, [rank + 1.0], abi.AVERAGE, scale=10) == [20.0]
    assert exchange("whole", abi.INT32, [-(rank + 1)], abi.SUM, scale=0.25) == [-1]
    for operation in (abi.MIN, abi.MAX, abi.PRODUCT, abi.BROADCAST):
        with pytest.raises(errors.InvalidArgumentError, match="'refused'.*only sums and averages have a scale"):
            exchange("refused", abi.FLOAT32, [1.0], operation, scale=2)
    with pytest.raises(errors.InvalidArgumentError, match="'refused'.*finite"):
        exchange("refused", abi.FLOAT32, [1.0], abi.SUM, scale=math.nan)


def subsets() -> None:
    rank = job().rank
    mine = [rank + 1.0] * 5000
    if rank != 1:
        assert exchange("pair", abi.FLOAT32, mine, abi.AVERAGE, members=[0, 2]) == [2.0] * 5000
    if rank != 0:
        assert exchange("late", abi.FLOAT32, mine, abi.BROADCAST, members=[1, 2], root=2) == [3.0] * 5000
    assert exchange("alone", abi.FLOAT32, mine, abi.SUM, members=[rank], scale=2) == [2 * (rank + 1.0)] * 5000
    assert exchange("everyone", abi.FLOAT32, mine, abi.SUM, members=[0, 1, 2]) == [6.0] * 5000
    assert exchange("everyone", abi.FLOAT32, mine, abi.SUM) == [6.0] * 5000, "all of them are the same as none"
    before = pushed_and_pulled(metrics())
    exchange("alone", abi.FLOAT32, mine, abi.SUM, members=[rank], scale=2)
    assert pushed_and_pulled(metrics()) == before
    for members, why in (([1, 0, 2], "ascending"), ([rank, 3], "member 3"), ([(rank + 1) % 3], "not among")):
        with pytest.raises(errors.InvalidArgumentError, match=f"'wrong'.*{why}"):
            exchange("wrong", abi.FLOAT32, mine, abi.SUM, members=members)


def metrics() -> Metrics:
    """After a turn of the worker's thread, which publishes them at its end."""
    job().barrier()
    return job().metrics()


def to_the_root() -> None:
    rank = job().rank
    before = pushed_and_pulled(metrics())
    for root in range(SIZE):
        result = exchange(
            f"reduce.{root}", abi.FLOAT32, [rank + 1.0] * 1000, abi.SUM, rank == root, root=root, root_only=True
        )
        assert result == ([6.0] * 1000 if rank == root else [])
    after = pushed_and_pulled(metrics())
    assert after[0] - before[0] == 12000
    assert after[1] - before[1] == 4000, "reduce-scatter: each byte of the own share once"


def one_is_late() -> tuple[int, int]:
    """Frames pushed, and how often they were asked for."""
    before = metrics()
    if job().rank == SIZE - 1:
        time.sleep(0.5)  # the others ask for its contribution after a few milliseconds
    assert exchange("waited.for", abi.FLOAT32, [1.0] * 1000, abi.SUM) == [float(SIZE)] * 1000
    after = metrics()
    return after.pushed_frames - before.pushed_frames, after.wanted_messages - before.wanted_messages


def disagreeing_members() -> str:
    members = [[0, 1], [1, 2], [0, 2]][job().rank]
    with pytest.raises(errors.MismatchError) as failure:
        exchange("x", abi.FLOAT32, [1.0], abi.SUM, members=members)
    return str(failure.value)


def uneven_inputs(turn: int = 0) -> int:
    rank = job().rank
    for step in range([2, 5, 3][rank]):
        mine = [rank + 1.0] * 3000
        active = [other for other in range(SIZE) if step < [2, 5, 3][other]]
        total = float(sum(other + 1 for other in active))
        assert exchange("uneven", abi.FLOAT32, mine, abi.SUM) == [total] * 3000, step
        assert exchange("uneven.mean", abi.FLOAT32, mine, abi.AVERAGE, scale=3) == [total] * 3000, "divided by all"
        if step > 0:  # rank 0 may not know the name when it has no more
            most = [max(active) + 1.0] * 3000
            assert exchange(f"uneven.{turn}.{step}", abi.FLOAT32, mine, abi.MAX, once=True) == most
    last = job().finish_inputs()
    assert exchange("uneven", abi.FLOAT32, [1.0], abi.SUM, members=[rank]) == [1.0]
    assert exchange("uneven.mean", abi.FLOAT32, [1.0] * 3000, abi.AVERAGE, scale=3) == [3.0] * 3000
    return last


def test_every_operation_of_every_dtype_through_two_servers() -> None:
    with Cluster(SIZE, 2, layer="test_operations", init=False) as cluster:
        for function in (operations_of_all_dtypes, extremes, scales, subsets, to_the_root):
            cluster.run(function)
        counted = cluster.run(one_is_late)
        assert all(pushed >= 1 for pushed, _ in counted), counted
        assert counted[-1][1] >= 1, f"the last rank was asked for its contribution: {counted}"
        for turn in range(2):
            assert cluster.run(uneven_inputs, turn) == [1, 1, 1], "rank 1 had the most"
        for text in cluster.run(disagreeing_members):
            assert text.count(", of workers ") == 2, "what both had"
        cluster.run(leave)


def test_deterministic_sums_of_some_and_products() -> None:
    with Cluster(SIZE, 1, {"BYTEPS_DETERMINISTIC": "1"}, layer="test_operations", init=False) as cluster:
        for function in (operations_of_all_dtypes, subsets, to_the_root, uneven_inputs):
            cluster.run(function)
        cluster.run(leave)
