"""Operations under way, by handle: whatever started them, poll() and synchronize() end them."""

from __future__ import annotations

import itertools
from typing import Any, Callable, Dict, List, Optional, Sequence

from byteps._core import session

__all__ = ["poll", "synchronize"]


class Pending:
    """One operation. It keeps the memory alive until the core has given it back."""

    @property
    def ended(self) -> bool:
        """False after wait() was left by an exception from a signal handler: the operation is still under way."""
        raise NotImplementedError

    def poll(self) -> bool:
        """True when wait() would not block."""
        raise NotImplementedError

    def wait(self) -> Any:
        """The result; raises what the operation failed with."""
        raise NotImplementedError


class Group(Pending):
    """Several with one handle. All are waited for, also when one has failed."""

    def __init__(self, members: List[Pending], finish: Callable[[List[Any]], Any]) -> None:
        self._members = members
        self._finish = finish
        self._results: List[Any] = []
        self._failure: Optional[Exception] = None

    @property
    def ended(self) -> bool:
        return not self._members

    def poll(self) -> bool:
        return all(member.poll() for member in self._members)

    def wait(self) -> Any:
        while self._members:
            try:
                self._results.append(self._members[0].wait())
            except Exception as error:
                if not self._members[0].ended:
                    raise
                self._failure = self._failure or error
            self._members.pop(0)
        if self._failure is not None:
            raise self._failure
        return self._finish(self._results)


_handles = itertools.count(1)  # grows for the life of the process, so that no old handle is mistaken for a new one
_operations: Dict[int, Pending] = {}
session.on_leave(_operations.clear)


def note(pending: Pending) -> int:
    """Its handle. Noted before it is submitted: an exception from a signal handler in between must not free memory."""
    handle = next(_handles)
    _operations[handle] = pending
    return handle


class CallableHandle(int):
    """A handle that is also called for its result, as Horovod's of sparse sums are."""

    def __call__(self) -> Any:
        return synchronize(self)


def forget(handle: int) -> None:
    """It was not submitted after all."""
    del _operations[handle]


def group(handles: Sequence[int], finish: Callable[[List[Any]], Any] = lambda results: results) -> int:
    """One handle for all of these, which are used up. The result is finish(list of theirs)."""
    handle = note(Group([_find(each) for each in handles], finish))
    for each in handles:
        del _operations[each]
    return handle


def poll(handle: int) -> bool:
    """True when synchronize() would not block. ValueError for an unknown handle."""
    return _find(handle).poll()


def synchronize(handle: int) -> Any:
    """Waits and returns the result, a tensor or what the operation's function says; the handle is used up. Other
    Python threads run meanwhile. Raises what the operation failed with; ValueError for an unknown handle."""
    operation = _find(handle)
    try:
        return operation.wait()
    finally:
        if operation.ended:
            _operations.pop(handle, None)


def _find(handle: int) -> Pending:
    session.current()
    operation = _operations.get(handle)
    if operation is None:
        raise ValueError(
            f"handle {handle!r} is not known: it was not created by push_pull, or has been synchronized already, "
            "or shutdown() has ended it"
        )
    return operation
