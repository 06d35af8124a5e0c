"""Collectives as plans over exchanges: gathering, scattering, all-to-all, messages between two ranks.

A plan is a generator: it starts exchanges, yields their handles, goes on when all have ended, and returns its
result. Running drives it. Memory comes as addresses: it must stay valid until the plan is done. `rows` are
elements of the first dimension. They may be on a device (Rows.place), and then everything that a plan writes is there;
a plan itself touches no memory but the host's.

Bytes. A block goes from one rank to others as a broadcast whose root pushes it once, and to each receiver once: nobody
sends or receives more than the collective needs. Names must be the same on all members, like everything that they
must agree on; dtypes and shapes that differ fail on all of them (MismatchError), also where a member has no rows: what
one of them starts, all start.

`members`: the ascending ranks that take part, () for all. `once`: the name is never used again.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import math
from typing import (
    Callable,
    Generator,
    Generic,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
)

from byteps._core import abi, elements, errors, session
from byteps._core.client import Job
from byteps._core.exchange import HOST, Exchange, Place

T = TypeVar("T")
Plan = Generator[List[int], None, T]
Allocate = Callable[[int], int]  # so many rows, at this address; any address when there are none

ELEMENT_BYTES = {
    abi.FLOAT32: 4,
    abi.FLOAT64: 8,
    abi.FLOAT16: 2,
    abi.UINT8: 1,
    abi.INT32: 4,
    abi.INT8: 1,
    abi.INT64: 8,
    abi.BFLOAT16: 2,
    abi.BOOL: 1,
    abi.INT16: 2,
    abi.UINT16: 2,
    abi.UINT32: 4,
    abi.UINT64: 8,
}


DIMENSIONS_MAX = 64  # as in base/shape.h


class Rows(NamedTuple):
    """A tensor in memory, as its rows. Other dtypes than the core's travel as UINT8, with the bytes of an element as
    the last dimension."""

    dtype: int  # an element kind (elements.py)
    address: int
    count: int  # type: ignore[assignment]  # a tuple has a method of this name, which nobody calls
    row_shape: Tuple[int, ...]
    place: Place = HOST

    @property
    def row_elements(self) -> int:
        return math.prod(self.row_shape)

    @property
    def row_bytes(self) -> int:
        return self.row_elements * ELEMENT_BYTES[elements.dtype_of(self.dtype)]

    @property
    def shape(self) -> Tuple[int, ...]:
        return (self.count, *self.row_shape)

    @property
    def fingerprint(self) -> int:
        """The same for rows of the same dtype and shape; never 0."""
        return int.from_bytes(hashlib.sha256(repr((self.dtype, self.row_shape)).encode()).digest()[:7], "little") | 1


class Running(Generic[T]):
    """A plan under way. Its first exchanges are started at once. One thread at a time uses it."""

    def __init__(self, job: Job, plan: "Plan[T]") -> None:
        self._job = job
        self._plan: "Optional[Plan[T]]" = plan
        self._handles: List[int] = []
        self._failure: Optional[Exception] = None
        self._result: Optional[T] = None
        self._advance()

    @property
    def ended(self) -> bool:
        """True when wait() has returned or raised for good, or would at once."""
        return self._plan is None

    def poll(self) -> bool:
        """True when wait() would not block. Lets the plan go on when it can."""
        while self._plan is not None:
            if not all(self._job.poll(handle) for handle in self._handles):
                return False
            self._finish_step()
        return True

    def wait(self) -> T:
        """The plan's result. Raises what its first failed exchange failed with, when all that it has started have
        ended. After an exception from a signal handler it may be called again."""
        while self._plan is not None:
            self._finish_step()
        if self._failure is not None:
            raise self._failure
        return self._result  # type: ignore[return-value]

    def _finish_step(self) -> None:
        while self._handles:
            try:
                self._job.wait(self._handles[0])
            except errors.BytePSError as error:
                self._failure = self._failure or error
            self._handles.pop(0)
        self._advance()

    def _advance(self) -> None:
        """After a failure the plan may know how to go on."""
        plan = self._plan
        assert plan is not None
        failure, self._failure = self._failure, None
        try:
            self._handles = list(next(plan) if failure is None else plan.throw(failure))
            return
        except StopIteration as end:
            self._result = end.value
        except Exception as error:
            self._failure = error
        self._plan = None


def run(job: Job, plan: "Plan[T]", *memory: object) -> T:
    """Drives the plan to its end. `memory`: what its addresses point to; when an exception from a signal handler ends
    the wait, it is kept until the job is left, because the core still works on it."""
    return run_all(job, [plan], *memory)[0]


def run_all(job: Job, plans: "Iterable[Plan[T]]", *memory: object) -> List[T]:
    """run() of several at once. Raises what the first that failed has failed with, when all have ended."""
    running: "List[Running[T]]" = []
    results: List[T] = []
    failure: Optional[Exception] = None
    try:
        running.extend(Running(job, plan) for plan in plans)
        for one in running:
            try:
                results.append(one.wait())
            except Exception as error:
                if not one.ended:
                    raise  # from a signal handler
                failure = failure or error
    except BaseException as interruption:
        # What the plans themselves have made is in the frames of the exception.
        session.current().keep((interruption, running, memory))
        raise
    if failure is not None:
        raise failure
    return results


def _members(job: Job, members: Sequence[int]) -> Tuple[int, ...]:
    return tuple(members) if members else tuple(range(job.size))


def _move(
    job: Job, name: str, rows: Rows, output: int, root: int, members: Sequence[int], priority: int, once: bool
) -> int:
    """Starts a broadcast of the root's rows to `output` of all members; its handle."""
    what = Exchange(abi.BROADCAST, root=root, members=tuple(members), priority=priority, once=once)
    source = rows.address if job.rank == root else 0
    return job.submit(what.tensor(name, rows.dtype, rows.shape, source, output, place=rows.place))


def _all_of(started: Iterable[int]) -> "Plan[None]":
    """Yields the handles of the exchanges that `started` starts, at once. When one cannot be started, those before it
    end before that is raised: their memory is in use until then."""
    handles: List[int] = []
    try:
        handles.extend(started)
    except Exception:
        yield handles
        raise
    yield handles


def tables(
    job: Job, name: str, row: Sequence[int], members: Sequence[int] = (), once: bool = False
) -> "Plan[List[List[int]]]":
    """Every member's row of integers, by member; all rows have the same length."""
    ranks = _members(job, members)
    width = len(row)
    table = (ctypes.c_int64 * (len(ranks) * width))()
    first = ranks.index(job.rank) * width
    table[first : first + width] = list(row)
    address = ctypes.addressof(table)
    what = Exchange(abi.SUM, members=tuple(members), once=once)
    yield [job.submit(what.tensor(name, abi.INT64, (len(ranks), width), address, address))]
    return [list(table[i * width : (i + 1) * width]) for i in range(len(ranks))]


def _tables_of(
    job: Job, name: str, what: str, row: Sequence[int], rows: Rows, members: Sequence[int], once: bool
) -> "Plan[List[List[int]]]":
    """tables() of `what`. MismatchError on all members unless their rows are of the same dtype and shape. A member that
    has called join() has zeros, and no say."""
    table = yield from tables(job, f"{name}/{what}", [*row, rows.fingerprint], members, once)
    if len({line[-1] for line in table} - {0}) > 1:
        own = [rows.dtype, rows.count, len(rows.row_shape), *rows.row_shape]
        own += [0] * (3 + DIMENSIONS_MAX - len(own))
        described = yield from tables(job, f"{name}/shapes", own, members, once)
        raise errors.MismatchError(_differences(name, _members(job, members), described))
    return [line[:-1] for line in table]


def _differences(name: str, ranks: Sequence[int], described: Sequence[Sequence[int]]) -> str:
    each = []
    for rank, (dtype, count, dimensions, *extents) in zip(ranks, described):
        shape = "x".join(map(str, [count, *extents[:dimensions]]))
        each.append(f"worker {rank} ({elements.name_of(dtype)}, shape {shape})")
    same = "the dtype and all dimensions but the first are to be the same"
    return f'tensor "{name}" differs between ranks: {", ".join(each)}; {same}'


def allgather(
    job: Job,
    name: str,
    rows: Rows,
    allocate: Allocate,
    members: Sequence[int] = (),
    counts: Optional[Sequence[int]] = None,
    priority: int = 0,
    once: bool = False,
) -> "Plan[List[int]]":
    """The rows of all members, one after another in the order of ranks, in memory from allocate(). `counts`: how many
    rows each member has, when all know it; otherwise they are asked first, and a lost one has none. Returns the
    counts."""
    if counts is not None:
        yield from _blocks(job, name, rows, allocate, counts, members, priority, once)
        return list(counts)

    def ask(again: str) -> "Plan[Tuple[List[int], List[int]]]":
        table = yield from _tables_of(job, name + again, "rows", [rows.count], rows, members, once)
        asked = [row[0] for row in table]
        return asked, asked

    return (yield from allgather_asking(job, name, rows, allocate, ask, members, priority, once))


def allgather_for_average(
    job: Job, name: str, rows: Rows, allocate: Allocate, members: Sequence[int] = (), once: bool = False
) -> "Plan[Tuple[List[int], int]]":
    """allgather() of what is summed up then: also by how many the sum is divided for an average, which is the same on
    all members. As in the core these are all but the lost ones; who has called join() counts."""

    def ask(again: str) -> "Plan[Tuple[List[int], Tuple[List[int], int]]]":
        table = yield from _tables_of(job, name + again, "rows", [rows.count, 1], rows, members, once)
        asked = [row[0] for row in table]
        there = sum(row[1] for row in table)
        if there < len(table):
            there += yield from _joined(job, f"{name}{again}/there", members, once)
        return asked, (asked, there)

    return (yield from allgather_asking(job, name, rows, allocate, ask, members, once=once))


def _joined(job: Job, name: str, members: Sequence[int], once: bool) -> "Plan[int]":
    """How many members have called join(). Of the average of one place for each member, the place of one that gives
    says by how many it was divided: by those who give, and these."""
    ranks = _members(job, members)
    places = (ctypes.c_double * len(ranks))()
    places[ranks.index(job.rank)] = 1.0
    address = ctypes.addressof(places)
    what = Exchange(abi.AVERAGE, members=tuple(members), once=once)
    yield [job.submit(what.tensor(name, abi.FLOAT64, (len(ranks),), address, address))]
    return round(1.0 / max(places)) - sum(place > 0.0 for place in places)


def allgather_asking(
    job: Job,
    name: str,
    rows: Rows,
    allocate: Allocate,
    ask: "Callable[[str], Plan[Tuple[List[int], T]]]",
    members: Sequence[int] = (),
    priority: int = 0,
    once: bool = False,
) -> "Plan[T]":
    """allgather() of as many rows as the plan ask(the end of its names) says first, and what it says with them. Where a
    member is lost that was asked, and has not given its rows, all others hear so, and ask again."""
    for number in itertools.count():
        again = f"/again.{number}" if number else ""
        counts, answer = yield from ask(again)
        try:
            yield from _blocks(job, name + again, rows, allocate, counts, members, priority, once)
            return answer
        except errors.DisconnectedError:  # or the job is over: then to ask again says so
            if number == len(counts):
                raise
    raise AssertionError


def _blocks(
    job: Job,
    name: str,
    rows: Rows,
    allocate: Allocate,
    counts: Sequence[int],
    members: Sequence[int],
    priority: int,
    once: bool,
) -> "Plan[None]":
    output = allocate(sum(counts))

    def started() -> Iterator[int]:
        place = output
        for rank, count in zip(_members(job, members), counts):
            if count:
                block = rows._replace(count=count)
                yield _move(job, f"{name}/{rank}", block, place, rank, members, priority, once)
            place += count * rows.row_bytes

    yield from _all_of(started())


def scattered_counts(row_count: int, parts: int) -> List[int]:
    """How many of the rows each part gets: as even as can be, the first ones one more."""
    return [row_count // parts + (index < row_count % parts) for index in range(parts)]


def reducescatter(job: Job, name: str, rows: Rows, output: int, what: Exchange) -> "Plan[int]":
    """The rows of all members, reduced as `what` says, each member getting its share (scattered_counts) in `output`.
    Returns how many rows that are."""
    ranks = _members(job, what.members)
    counts = scattered_counts(rows.count, len(ranks))

    def started() -> Iterator[int]:
        address = rows.address
        for rank, count in zip(ranks, counts):
            share = what._replace(root=rank, root_only=True)
            place = output if rank == job.rank else 0
            shape = (count, *rows.row_shape)
            call = share.tensor(f"{name}/{rank}", rows.dtype, shape, address, place, place=rows.place)
            yield job.submit(call)
            address += count * rows.row_bytes

    yield from _all_of(started())
    return counts[ranks.index(job.rank)]


def alltoall(
    job: Job,
    name: str,
    rows: Rows,
    splits: Sequence[int],
    allocate: Allocate,
    members: Sequence[int] = (),
    received_splits: Optional[Sequence[int]] = None,
    priority: int = 0,
    once: bool = False,
) -> "Plan[List[int]]":
    """Member i of the members gets splits[i] of this rank's rows, which lie in that order; what comes lies in the order
    of ranks in memory from allocate(). `received_splits`: how many rows come from each member, when all know it;
    otherwise it is asked first. Returns them."""
    ranks = _members(job, members)
    me = ranks.index(job.rank)
    if len(splits) != len(ranks) or min(splits) < 0 or sum(splits) != rows.count:
        raise ValueError(
            f"{name}: splits {list(splits)} must be {len(ranks)} numbers of rows, 0 or more, whose sum is {rows.count}"
        )
    if received_splits is None:
        table = yield from _tables_of(job, name, "splits", splits, rows, members, once)
        received_splits = [row[me] for row in table]
    output = allocate(sum(received_splits))
    counts = list(zip(ranks, splits, received_splits))

    def started() -> Iterator[int]:
        source, place = rows.address, output
        for rank, sent, received in counts:
            if rank == job.rank:
                if rows.place == HOST:
                    ctypes.memmove(place, source, received * rows.row_bytes)
                elif received:  # among one, which is a copy, made by who knows the device
                    own = rows._replace(address=source, count=received)
                    yield _move(job, f"{name}/{rank}>{rank}", own, place, rank, (rank,), priority, once)
            else:
                if sent:
                    going = rows._replace(address=source, count=sent)
                    yield _send(job, f"{name}/{job.rank}>{rank}", going, rank, priority, once)
                if received:
                    coming = rows._replace(address=place, count=received)
                    yield _receive(job, f"{name}/{rank}>{job.rank}", coming, rank, priority, once)
            source += sent * rows.row_bytes
            place += received * rows.row_bytes

    yield from _all_of(started())
    return list(received_splits)


def send(job: Job, name: str, rows: Rows, to: int, priority: int = 0, once: bool = False) -> "Plan[None]":
    """Rank `to` receives the rows, with receive() of the same name."""
    yield [_send(job, name, rows, to, priority, once)]


def receive(job: Job, name: str, rows: Rows, source: int, priority: int = 0, once: bool = False) -> "Plan[None]":
    """Fills the rows with those that rank `source` sends."""
    yield [_receive(job, name, rows, source, priority, once)]


def _send(job: Job, name: str, rows: Rows, to: int, priority: int, once: bool) -> int:
    pair = sorted((job.rank, to))
    return _move(job, name, rows, rows.address, job.rank, pair, priority, once)


def _receive(job: Job, name: str, rows: Rows, source: int, priority: int, once: bool) -> int:
    pair = sorted((job.rank, source))
    return _move(job, name, rows, rows.address, source, pair, priority, once)
