"""Process sets: the ranks that take part in an operation.

A set is its ranks: nothing has to be registered anywhere, and ranks that are in no set of an operation need not know of
it. The registering functions exist for scripts written for Horovod, and to give sets their numbers.

    even = ProcessSet(range(0, size(), 2))
    if even.included():
        push_pull(tensor, name="t", process_set=even)
"""

from __future__ import annotations

import hashlib
import numbers
import threading
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple, Union

from byteps._core import session

__all__ = [
    "ProcessSet",
    "add_process_set",
    "check_root",
    "get_process_set_ids_and_ranks",
    "global_process_set",
    "is_member",
    "members_of",
    "named",
    "process_set_by_id",
    "remove_process_set",
    "scoped",
]

NAMED_RANKS_MAX = 16  # sets with more ranks are named by a checksum


class ProcessSet:
    """`ranks`: the ranks that belong to it, ascending; None: all ranks of the job. `process_set_id`: its number, None
    until add_process_set(). ValueError: no rank, a rank twice, or a negative one."""

    def __init__(self, ranks: Optional[Iterable[int]] = None) -> None:
        self.process_set_id: Optional[int] = None
        self._ranks: Optional[Tuple[int, ...]] = None
        if ranks is not None:
            self._ranks = tuple(sorted(int(rank) for rank in ranks))
            if not self._ranks or self._ranks[0] < 0 or len(set(self._ranks)) != len(self._ranks):
                raise ValueError(f"a process set of ranks {list(self._ranks)}: it needs different ranks, 0 or larger")

    @property
    def ranks(self) -> List[int]:
        return list(range(session.size()) if self._ranks is None else self._ranks)

    def size(self) -> int:
        """The number of ranks in it."""
        return session.size() if self._ranks is None else len(self._ranks)

    def rank(self) -> int:
        """This worker's number within the set, from 0 to size() - 1. ValueError when it is not in it."""
        if self._ranks is None:
            return session.rank()
        if not self.included():
            raise ValueError(f"rank {session.rank()} is not in the process set of ranks {self.ranks}")
        return self._ranks.index(session.rank())

    def included(self) -> bool:
        """Whether this worker belongs to it."""
        return self._ranks is None or session.rank() in self._ranks

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProcessSet) and self._ranks == other._ranks

    def __hash__(self) -> int:
        return hash(self._ranks)

    def __repr__(self) -> str:
        return f"ProcessSet({'' if self._ranks is None else list(self._ranks)})"


global_process_set = ProcessSet()
global_process_set.process_set_id = 0
_registered: Dict[int, ProcessSet] = {0: global_process_set}
_lock = threading.RLock()  # a signal handler may leave the job


def add_process_set(process_set: Union[ProcessSet, Iterable[int]]) -> ProcessSet:
    """Gives the set a number. The same on all ranks that register the same sets in the same order. ValueError when
    there is one of the same ranks already. All numbers but that of the global set end with the job."""
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    with _lock:
        if added in _registered.values():
            raise ValueError(f"{added} was added before")
        number = max(_registered) + 1
        added.process_set_id = number
        _registered[number] = added
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Takes its number away; False when it has none. The set of all ranks stays."""
    with _lock:
        number = process_set.process_set_id
        if not number or _registered.get(number) is not process_set:
            return False
        del _registered[number]
        process_set.process_set_id = None
        return True


def _forget() -> None:
    """Numbers are those of a job: a rank that joins the next one anew has none."""
    with _lock:
        for number in [each for each in _registered if each != 0]:
            _registered.pop(number).process_set_id = None


session.on_leave(_forget)


def process_set_by_id(number: int) -> ProcessSet:
    """ValueError: no set has the number."""
    with _lock:
        if number not in _registered:
            raise ValueError(f"no process set has the number {number}; there are {sorted(_registered)}")
        return _registered[number]


def get_process_set_ids_and_ranks() -> Dict[int, List[int]]:
    """The ranks of every set that has a number."""
    with _lock:
        registered = dict(_registered)
    return {number: each.ranks for number, each in registered.items()}


def members_of(process_set: Optional[ProcessSet]) -> Tuple[int, ...]:
    """`members` of an Exchange; () is all. ValueError: this worker is not in it, or one of it is not in the job."""
    if process_set is None:
        return ()
    if not isinstance(process_set, ProcessSet):
        raise ValueError(f"process_set is {process_set!r}: it must be a ProcessSet")
    if process_set._ranks is None:
        return ()
    process_set.rank()  # this worker is in it
    size = session.size()
    if process_set._ranks[-1] >= size:
        raise ValueError(f"{process_set} has rank {process_set._ranks[-1]}, but the job has {size} ranks")
    return () if len(process_set._ranks) == size else process_set._ranks


def is_member(process_set: Optional[ProcessSet]) -> bool:
    """Whether this worker takes part; None is all. Optimizers ask it: on the other ranks they work alone."""
    if process_set is None:
        return True
    if not isinstance(process_set, ProcessSet):
        raise ValueError(f"process_set is {process_set!r}: it must be a ProcessSet")
    return process_set.included()


def check_root(root_rank: Any, members: Sequence[int] = ()) -> int:
    """The rank as an int; it may be one of numpy's. ValueError unless it is one of the members, () being all."""
    ranks = members or range(session.size())
    if isinstance(root_rank, bool) or not isinstance(root_rank, numbers.Integral) or root_rank not in ranks:
        those = f"one of the ranks {', '.join(map(str, members))}, those in the process set"
        known = those if members else f"a rank, 0 to {ranks[-1]}"
        raise ValueError(f"root_rank is {root_rank!r}: it must be {known}")
    return int(root_rank)


def scoped(name: str, members: Tuple[int, ...]) -> str:
    """`name` as the operation of these members is known to the servers: two sets may use one name for two tensors."""
    if not members:
        return name
    ranks = ",".join(map(str, members))
    if len(members) > NAMED_RANKS_MAX:
        ranks = f"{len(members)} ranks {hashlib.sha256(ranks.encode()).hexdigest()[:12]}"
    return f"{name}@[{ranks}]"


def named(name: Optional[str], kind: str, members: Tuple[int, ...] = ()) -> Tuple[str, bool]:
    """The name of an operation as these members know it, and whether it is used once: without `name` it is numbered,
    for each set of members apart, because others do not count with them. NotInitializedError: there is no job."""
    current = session.current()
    if name is not None:
        return scoped(name, members), False
    return current.unique_name(scoped(f"{kind}.noname", members)), True
