"""Any Python objects between ranks, pickled: members of one job trust each other.

All members must make the same calls in the same order, unless they give names.
"""

from __future__ import annotations

import ctypes
import pickle
from typing import Any, List, Optional, Sequence, Tuple

from byteps._core import abi, collectives, errors, session
from byteps._core.collectives import Rows
from byteps._core.process_sets import scoped

try:
    import cloudpickle as _pickler  # also takes lambdas, and classes of __main__
except ImportError:
    _pickler = pickle  # type: ignore[assignment]

__all__ = ["allgather_object", "broadcast_object"]


def broadcast_object(obj: Any, root_rank: int = 0, name: Optional[str] = None, members: Sequence[int] = ()) -> Any:
    """The root's object, on all members (on the root `obj` itself). The others' `obj` does not matter. On the root it
    raises what pickling raised, on the others a BytePSError that says so."""
    current = session.current()
    job = current.job
    is_root = job.rank == root_rank
    unique = current.unique_name(scoped(f"Object.{name or 'object'}", tuple(members)))
    payload, failure = _pickled(obj) if is_root else (b"", None)
    header = (ctypes.c_int64 * 2)(len(payload), failure is not None)
    _broadcast(unique + ".size", abi.INT64, header, 2, root_rank, members)
    content = ctypes.create_string_buffer(payload, len(payload)) if is_root else ctypes.create_string_buffer(header[0])
    _broadcast(unique + ".content", abi.UINT8, content, header[0], root_rank, members)
    if failure is not None:
        raise failure
    if is_root:
        return obj
    if header[1]:
        text = content.raw.decode(errors="replace")
        raise errors.BytePSError(f"broadcast_object: root rank {root_rank} could not pickle its object: {text}")
    return pickle.loads(content.raw)


def allgather_object(obj: Any, name: Optional[str] = None, members: Sequence[int] = ()) -> List[Any]:
    """The objects of all members, in the order of ranks; on every member. When one of them cannot be pickled, that rank
    raises what pickling raised, and the others a BytePSError that names it."""
    current = session.current()
    job = current.job
    ranks = tuple(members) or tuple(range(job.size))
    unique = current.unique_name(scoped(f"Objects.{name or 'object'}", tuple(members)))
    payload, failure = _pickled(obj)
    rows = collectives.tables(job, unique + ".size", [len(payload), failure is not None], members, once=True)
    table = collectives.run(job, rows)
    content = ctypes.create_string_buffer(payload, len(payload))
    gathered: List[Any] = []

    def allocate(count: int) -> int:
        gathered.append(ctypes.create_string_buffer(count))
        return ctypes.addressof(gathered[0])

    counts = [size for size, _ in table]
    block = Rows(abi.UINT8, ctypes.addressof(content), len(payload), 1)
    plan = collectives.allgather(job, unique + ".content", block, allocate, members, counts, once=True)
    collectives.run(job, plan, content)
    if failure is not None:
        raise failure
    objects = []
    begin = 0
    for rank, (size, failed) in zip(ranks, table):
        part = gathered[0].raw[begin : begin + size]
        begin += size
        if failed:
            text = part.decode(errors="replace")
            raise errors.BytePSError(f"allgather_object: rank {rank} could not pickle its object: {text}")
        objects.append(obj if rank == job.rank else pickle.loads(part))
    return objects


def _pickled(obj: Any) -> Tuple[bytes, Optional[Exception]]:
    """Or what went wrong, as text and as exception. Never empty: an empty buffer has no address."""
    try:
        return _pickler.dumps(obj), None
    except Exception as error:  # whatever the object's own code raises
        return f"{type(error).__name__}: {error}".encode(errors="replace"), error


def _broadcast(
    name: str, dtype: int, buffer: "ctypes.Array[Any]", count: int, root_rank: int, members: Sequence[int]
) -> None:
    job = session.job()
    address = ctypes.addressof(buffer)

    def plan() -> "collectives.Plan[None]":
        yield [
            job.push_pull(
                name, dtype, address, address, count, abi.BROADCAST, root=root_rank, once=True, members=members
            )
        ]

    collectives.run(job, plan(), buffer)
