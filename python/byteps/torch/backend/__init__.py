"""torch.distributed's backend "byteps": docs/torch-distributed.md.

A group is a Python subclass of torch's ProcessGroup, which torch takes for the group itself; its collectives are
exchanges through the summation servers. No code of torch is linked or copied.

    group.py        the group: who it is, and how torch asks for it
    collectives.py  its collectives, as lists of exchanges
    exchange.py     one exchange of one tensor among members
    work.py         waiting for a collective, and futures
    joining.py      which job a new group belongs to
    colocated.py    the scheduler and servers of a job that nobody has described
    meeting.py      how members talk before they have a job
    start.py        init_process_group() of byteps.torch
"""

from __future__ import annotations

from typing import Any


def create(name: str, store: Any, rank: int, size: int, timeout: Any) -> Any:
    """What torch calls for a new group of the backend `name`, ours, on each of its members; they meet in `store`."""
    from byteps.torch.backend.group import create as create_group

    return create_group(name, store, rank, size, timeout)
