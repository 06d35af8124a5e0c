"""What workers of test_mixed_machines.py do: sums of every dtype and operation, with no framework but numpy."""

from __future__ import annotations

import time
from typing import Any, Dict, List, Tuple

import ml_dtypes
import numpy as np

from byteps._core import abi, session

FLOATS = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}
INTEGERS = {name: np.dtype(name) for name in "uint8 int8 int16 uint16 int32 uint32 int64 uint64".split()}
DTYPES = {**FLOATS, **INTEGERS}
OPERATIONS = {
    "sum": abi.SUM,
    "average": abi.AVERAGE,
    "min": abi.MIN,
    "max": abi.MAX,
    "product": abi.PRODUCT,
}
COUNTS = (1, 1000, 200_000)  # the largest has parts for every leader and for both servers


def exchanged(name: str, dtype: str, values: np.ndarray, operation: str = "sum", **what: Any) -> np.ndarray:
    """What came back."""
    job = session.job()
    number = getattr(abi, dtype.upper())
    result = np.empty_like(values)
    handle = job.push_pull(
        name, number, values.ctypes.data, result.ctypes.data, values.size, OPERATIONS[operation], **what
    )
    job.wait(handle)
    return result


def random_values(dtype: str, operation: str, rank: int, count: int) -> np.ndarray:
    """Of a rank: over the whole range of integers; floats of both signs and several sizes, or for a product near 1."""
    generator = np.random.default_rng([rank, count])
    kind = DTYPES[dtype]
    if dtype in INTEGERS:
        bounds = np.iinfo(kind)
        return generator.integers(bounds.min, bounds.max, count, kind, endpoint=True)
    if operation == "product":
        return generator.uniform(0.5, 2, count).astype(kind)
    return (generator.standard_normal(count) * 2.0 ** generator.integers(-8, 8, count)).astype(kind)


def whole_values(dtype: str, operation: str, rank: int, count: int) -> np.ndarray:
    """Small whole numbers: every sum and product of some of them is exact in every dtype."""
    high = 2 if operation == "product" else 8
    return np.random.default_rng([rank, count]).integers(1, high, count, endpoint=True).astype(DTYPES[dtype])


def everything(kind: str) -> Dict[Tuple[str, str, int], bytes]:
    """Results of all dtypes and operations, by dtype, operation and count."""
    values = {"random": random_values, "whole": whole_values}[kind]
    rank, found = session.rank(), {}
    for dtype in DTYPES:
        for operation in OPERATIONS:
            for count in COUNTS:
                mine = values(dtype, operation, rank, count)
                got = exchanged(f"{kind}.{dtype}.{operation}.{count}", dtype, mine, operation)
                found[dtype, operation, count] = got.tobytes()
    return found


def averages_of_halves(value: float) -> List[float]:
    """The values that come back for the average of this in float16."""
    mine = np.full(100_000, value, np.float16)
    return sorted({float(each) for each in exchanged("headroom", "float16", mine, "average")})


def same_sum_many_times(rounds: int) -> List[bytes]:
    """Of numbers whose sum depends on the order, while ranks come in another order each time."""
    mine = random_values("float32", "sum", session.rank(), 200_000)
    generator = np.random.default_rng()
    found = []
    for _ in range(rounds):
        time.sleep(generator.uniform(0, 0.01))
        found.append(exchanged("repeated", "float32", mine).tobytes())
    return found


class Planned:
    """An exchange that all ranks know: of some of them, with whole numbers as values."""

    def __init__(self, seed: int, index: int, size: int) -> None:
        generator = np.random.default_rng([seed, index])
        self.seed, self.index = seed, index
        self.dtype = str(generator.choice(list(DTYPES)))
        self.operation = str(generator.choice([*OPERATIONS, "broadcast"]))
        if self.operation == "average" and self.dtype in INTEGERS:
            self.operation = "sum"
        self.count = int(generator.choice([1, 5, 1000, 100_000]))
        self.members = [rank for rank in range(size) if generator.integers(2)] or list(range(size))
        self.root = int(generator.choice(self.members))
        self.root_only = self.operation != "broadcast" and generator.integers(4) == 0
        self.once = generator.integers(4) == 0

    def values(self, turn: int, rank: int) -> np.ndarray:
        high = 2 if self.operation == "product" else 8
        generator = np.random.default_rng([self.seed, self.index, turn, rank])
        return generator.integers(1, high, self.count, endpoint=True).astype(DTYPES[self.dtype])

    def begin(self, turn: int, rank: int) -> Tuple[int, np.ndarray, np.ndarray]:
        """Handle, and what must stay where it is until that has ended."""
        mine = self.values(turn, rank)
        result = np.zeros_like(mine)
        address = 0 if self.root_only and rank != self.root else result.ctypes.data
        name = f"{self.seed}.{self.index}" + (f".{turn}" if self.once else "")
        handle = session.job().push_pull(
            name,
            getattr(abi, self.dtype.upper()),
            mine.ctypes.data,
            address,
            self.count,
            {**OPERATIONS, "broadcast": abi.BROADCAST}[self.operation],
            self.root if self.operation == "broadcast" or self.root_only else 0,
            members=self.members,
            root_only=self.root_only,
            once=self.once,
        )
        return handle, mine, result

    def check(self, turn: int, rank: int, result: np.ndarray) -> None:
        if self.root_only and rank != self.root:
            return
        if self.operation == "broadcast":
            expected = self.values(turn, self.root).astype(np.float64)
        else:
            all_values = np.array([self.values(turn, member) for member in self.members], np.float64)
            reduce = {"sum": np.sum, "average": np.mean, "min": np.min, "max": np.max, "product": np.prod}
            expected = reduce[self.operation](all_values, axis=0)
        precision = 2.0**-7 if self.operation == "average" else 0  # half of a last bit of bfloat16
        np.testing.assert_allclose(result.astype(np.float64), expected, precision, err_msg=str(vars(self)))


def random_exchanges(seed: int, count: int, turns: int) -> None:
    """All at once, in another order on each rank and in each turn."""
    rank, size = session.rank(), session.size()
    plan = [each for each in (Planned(seed, index, size) for index in range(count)) if rank in each.members]
    for turn in range(turns):
        order = np.random.default_rng([seed, turn, rank]).permutation(len(plan))
        begun = []
        for index in order:
            begun.append((plan[index], *plan[index].begin(turn, rank)))
            if index % 8 == 0:
                time.sleep(0.001 * ((rank + turn) % 3))
        for planned, handle, _, result in begun:
            session.job().wait(handle)
            planned.check(turn, rank, result)
    session.job().barrier()


def sums_at_this_size() -> Tuple[int, int]:
    """Of names that every job of these processes has, and of one that it alone has; the local rank and size."""
    job = session.job()
    for name, count in (("one", 1), ("many", 300_000), (f"size{job.size}", 1000)):
        for _ in range(3):
            got = exchanged(name, "float32", np.full(count, job.rank + 1, np.float32))
            assert (got == job.size * (job.size + 1) / 2).all()
    job.barrier()
    return session.local_rank(), session.local_size()
