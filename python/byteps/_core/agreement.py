"""Do all ranks mean the same? Asked before a call whose ranks would otherwise wait for each other for ever."""

from __future__ import annotations

import ctypes
import hashlib
from typing import Callable, List, Sequence

from byteps._core import abi, collectives, errors, objects, session
from byteps._core.exchange import Exchange
from byteps._core.process_sets import scoped


def require_agreement(
    items: List[str], root_rank: int, what: str, members: Sequence[int] = (), remedy: str = ""
) -> None:
    """Raises ValueError on every member, with what differs from the root's, unless all have the same items in the same
    order. `what` begins the message: "broadcast_variables: variables differ"; `remedy` ends it."""
    current = session.current()
    job = current.job
    ranks = tuple(members) or tuple(range(job.size))
    if len(ranks) == 1:
        return
    digest = int.from_bytes(hashlib.sha256("\n".join(items).encode()).digest()[:7], "little")
    name = current.unique_name(scoped("agreement", tuple(members)))
    digests = [row[0] for row in collectives.run(job, collectives.tables(job, name, [digest], members, once=True))]
    expected_digest = digests[ranks.index(root_rank)]
    # Zero is a rank that has called join(), or is vacant: it has no say.
    differing = [rank for rank, value in zip(ranks, digests) if value not in (expected_digest, 0)]
    if not differing:
        return
    expected = objects.broadcast_object(items, root_rank, "agreement", members)
    message = f"{what} on rank {', '.join(map(str, differing))} from those of root rank {root_rank}"
    if job.rank in differing:
        lacking = [item for item in expected if item not in items]
        extra = [item for item in items if item not in expected]
        message += f". Here lacking: {_shortened(lacking)}. Here in addition: {_shortened(extra)}"
        if not lacking and not extra:
            message += ". The order differs"
    raise ValueError(f"{message}. {remedy}" if remedy else message)


def with_root(root: int, name: str, broadcasts: Callable[[int], None]) -> int:
    """broadcasts(root), and where that one was lost, so that it fails on all ranks, again from the lowest that is left.
    Which that is all ranks hear alike, as leader() would not let them. Returns the root whose values all have."""
    while True:
        try:
            broadcasts(root)
            return root
        except errors.DisconnectedError:
            following = _lowest_rank(name)  # raises when the job is over
            if following == root:
                raise
            root = following


def _lowest_rank(name: str) -> int:
    """Of those that give their own, as those that are lost do not."""
    job = session.job()
    rank = (ctypes.c_int64 * 1)(job.rank)
    address = ctypes.addressof(rank)

    def plan() -> "collectives.Plan[None]":
        yield [job.submit(Exchange(abi.MIN).tensor(name, abi.INT64, (1,), address, address))]

    collectives.run(job, plan(), rank)
    return rank[0]


def _shortened(items: List[str]) -> str:
    shown = "; ".join(items[:5]) or "nothing"
    return shown + (f"; and {len(items) - 5} more" if len(items) > 5 else "")
