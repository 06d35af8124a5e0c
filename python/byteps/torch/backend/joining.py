"""Which job a new group's members belong to, and who they are in it.

All members meet in the group's store, so each step either happens on all of them or raises on all of them:

1. Everyone says where it stands: it has joined a job already (byteps.torch.init(), or an earlier group), or its
   environment describes one (bpslaunch), or neither.
2. Joined: that job is used. Described: it is joined. Neither: the members make a job of their own (colocated.py).
3. Everyone says its rank in the job.

The group for which a job was made leaves it when it is destroyed, and the job ends. One that the environment describes
is left at the end of the process: its servers could not be joined again.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, List, Optional

from byteps._core import errors, session
from byteps._core.client import Job
from byteps.torch.backend import colocated
from byteps.torch.backend.meeting import Meeting

JOINED, DESCRIBED, NEITHER = "has joined a job", "finds a job in its environment", "has no job"
DESCRIPTION = ("DMLC_NUM_WORKER", "DMLC_PS_ROOT_URI")

_job_name = ""  # tells jobs of groups apart: two halves of a world may have one each


class Place:
    """A group's place in a job."""

    def __init__(self, store: Any, job: Job, job_ranks: List[int], token: str, owner: bool) -> None:
        self.store = store
        self.job = job
        self.job_ranks = job_ranks  # by group rank
        self.token = token
        self._owner = owner

    def release(self) -> None:
        """Leaves the job if it was made for this group. Harmless when repeated."""
        if self._owner and self.job.is_live:
            session.leave_for_good()
        self._owner = False


def join(store: Any, rank: int, size: int, timeout: Optional[timedelta]) -> Place:
    """Blocks until all members have called it, at most for `timeout`."""
    global _job_name
    meeting = Meeting(store, rank, size, timeout)
    state = JOINED if session.is_joined() else DESCRIBED if _is_described() else NEITHER
    _check_states(meeting.tell("state", state))
    if state == DESCRIBED:
        session.init()
    elif state == NEITHER:
        colocated.join(meeting)
        _job_name = meeting.name
    job = session.job()
    places = meeting.tell("place", {"job": _job_name, "rank": job.rank})
    if any(each["job"] != _job_name for each in places):
        raise errors.InvalidArgumentError(
            "the members of this group belong to different BytePS jobs: make a group 'byteps' of all of them first"
        )
    return Place(store, job, [int(each["rank"]) for each in places], meeting.name, owner=state == NEITHER)


def _forget_job() -> None:
    global _job_name
    _job_name = ""


session.on_leave(_forget_job)


def _is_described() -> bool:
    return any(os.environ.get(name) for name in DESCRIPTION)


def _check_states(states: List[str]) -> None:
    if len(set(states)) > 1:
        said = "; ".join(f"rank {rank} {state}" for rank, state in enumerate(states))
        raise errors.InvalidArgumentError(
            f"the members of this group differ: {said}. Call byteps.torch.init() on all ranks or on none, and give "
            f"all or none the variables {' and '.join(DESCRIPTION)}"
        )
