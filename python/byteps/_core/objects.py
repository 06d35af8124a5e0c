"""Any Python objects between ranks, pickled. Unpickling runs code, and what comes has been in servers' and networks'
hands: so each payload carries a seal (byteps_seal), and nothing is unpickled that is not, by its seal, what that member
of the job has said in this very call. Members of one job trust each other.

All members must make the same calls in the same order, unless they give names.
"""

from __future__ import annotations

import ctypes
import pickle
from typing import Any, List, Optional, Sequence, Tuple

from byteps._core import abi, collectives, errors, session
from byteps._core.client import Job
from byteps._core.collectives import Rows
from byteps._core.exchange import Exchange
from byteps._core.process_sets import scoped

try:
    import cloudpickle as _pickler  # also takes lambdas, and classes of __main__
except ImportError:
    _pickler = pickle

__all__ = ["allgather_object", "broadcast_object"]


def broadcast_object(obj: Any, root_rank: int = 0, name: Optional[str] = None, members: Sequence[int] = ()) -> Any:
    """The root's object, on all members (on the root `obj` itself). The others' `obj` does not matter. On the root it
    raises what pickling raised, on the others a BytePSError that says so, and a MismatchError when what comes is not
    what the root has said."""
    current = session.current()
    job = current.job
    is_root = job.rank == root_rank
    unique = current.unique_name(scoped(f"Object.{name or 'object'}", tuple(members)))
    payload, failure = _pickled(obj) if is_root else (b"", None)
    content = _sealed(job, unique, payload, failure is not None) if is_root else None
    header = (ctypes.c_int64 * 2)(len(content) if content is not None else 0, failure is not None)
    _broadcast(unique + ".size", abi.INT64, header, 2, root_rank, members)
    if content is None:
        content = ctypes.create_string_buffer(max(0, header[0]))
    _broadcast(unique + ".content", abi.UINT8, content, len(content), root_rank, members)
    if failure is not None:
        raise failure
    if is_root:
        return obj
    opened = _opened(job, unique, root_rank, content, 0, len(content), bool(header[1]))
    if header[1]:
        text = bytes(opened).decode(errors="replace")
        raise errors.BytePSError(f"broadcast_object: root rank {root_rank} could not pickle its object: {text}")
    return pickle.loads(opened)


def allgather_object(obj: Any, name: Optional[str] = None, members: Sequence[int] = ()) -> List[Any]:
    """The objects of all members, in the order of ranks; on every member. None in the place of a rank that gives
    nothing: it is vacant, or has called join(). When one of them cannot be pickled, that rank
    raises what pickling raised, and the others a BytePSError that names it. MismatchError: what comes is not what a
    rank has said."""
    current = session.current()
    job = current.job
    ranks = tuple(members) or tuple(range(job.size))
    unique = current.unique_name(scoped(f"Objects.{name or 'object'}", tuple(members)))
    payload, failure = _pickled(obj)
    content = _sealed(job, unique, payload, failure is not None)
    gathered: "List[ctypes.Array[ctypes.c_char]]" = []

    def allocate(count: int) -> int:
        gathered[:] = [ctypes.create_string_buffer(count)]
        return ctypes.addressof(gathered[0])

    def ask(again: str) -> "collectives.Plan[Tuple[List[int], List[List[int]]]]":
        row = [len(content), failure is not None]
        table = yield from collectives.tables(job, f"{unique}.size{again}", row, members, once=True)
        return [size for size, _ in table], table

    block = Rows(abi.UINT8, ctypes.addressof(content), len(content), ())
    plan = collectives.allgather_asking(job, unique + ".content", block, allocate, ask, members, once=True)
    table = collectives.run(job, plan, content)
    if failure is not None:
        raise failure
    objects = []
    begin = 0
    for rank, (size, failed) in zip(ranks, table):
        if rank == job.rank:
            objects.append(obj)
        elif size == 0:  # an object has a seal at least
            objects.append(None)
        else:
            opened = _opened(job, unique, rank, gathered[0], begin, size, bool(failed))
            if failed:
                text = bytes(opened).decode(errors="replace")
                raise errors.BytePSError(f"allgather_object: rank {rank} could not pickle its object: {text}")
            objects.append(pickle.loads(opened))
        begin += size
    return objects


def _pickled(obj: Any) -> Tuple[bytes, Optional[Exception]]:
    """Or what went wrong, as text and as exception."""
    try:
        return _pickler.dumps(obj), None
    except Exception as error:  # whatever the object's own code raises
        return f"{type(error).__name__}: {error}".encode(errors="replace"), error


def _seal_name(unique: str, is_failure: bool) -> str:
    """Counts with the call, so that no older payload fits; an object and a failure's text cannot be taken for each
    other."""
    return unique + (".failure" if is_failure else ".pickle")


def _sealed(job: Job, unique: str, payload: bytes, is_failure: bool) -> "ctypes.Array[ctypes.c_char]":
    """The seal, then the payload."""
    content = ctypes.create_string_buffer(abi.SEAL_BYTES + len(payload))
    address = ctypes.addressof(content)
    ctypes.memmove(address + abi.SEAL_BYTES, payload, len(payload))
    job.seal(_seal_name(unique, is_failure), address + abi.SEAL_BYTES, len(payload), address)
    return content


def _opened(
    job: Job,
    unique: str,
    rank: int,
    content: "ctypes.Array[ctypes.c_char]",
    begin: int,
    size: int,
    is_failure: bool,
) -> memoryview:
    """The payload behind its seal, once it is known to be that rank's; `content` is in use as long as the result is."""
    name = _seal_name(unique, is_failure)
    if size < abi.SEAL_BYTES:
        raise errors.MismatchError(f"'{name}': {size} bytes came from rank {rank}: they carry no seal")
    address = ctypes.addressof(content) + begin
    job.check_seal(rank, name, address + abi.SEAL_BYTES, size - abi.SEAL_BYTES, address)
    return memoryview(content).cast("B")[begin + abi.SEAL_BYTES : begin + size]


def _broadcast(
    name: str, dtype: int, buffer: "ctypes.Array[Any]", count: int, root_rank: int, members: Sequence[int]
) -> None:
    job = session.job()
    address = ctypes.addressof(buffer)
    what = Exchange(abi.BROADCAST, root=root_rank, members=tuple(members), once=True)

    def plan() -> "collectives.Plan[None]":
        yield [job.submit(what.tensor(name, dtype, (count,), address, address))]

    collectives.run(job, plan(), buffer)
