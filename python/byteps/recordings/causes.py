"""Causes, as flight recordings have them: what ended a job or an operation, in fields.

src/base/cause.h has the meaning of each kind, docs/flight.md tells it to users.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from byteps.recordings.fields import dict_of, number_of, text_of

OTHER = "other"  # what has no kind of its own: only the text says it
KINDS = (
    OTHER, "gone", "silent", "unreachable", "started_anew",
    "left", "damaged", "told_to_stop", "stands_still", "no_descriptors",
    "no_memory", "tensor_differs", "stalled", "stall_timeout", "incomplete",
    "sizes_differ", "turned_away", "refused", "keys_differ", "versions_differ",
    "setting_missing", "setting_invalid", "job_key", "cannot_listen", "raised",
    "interrupted", "replaced",
)  # fmt: skip
RANKS_MAX = 4096


@dataclass(frozen=True)
class Participant:
    """A process of the job, as far as it is known."""

    role: str = ""  # empty: nobody is meant
    rank: Optional[int] = None
    host: str = ""  # "host:pid"


@dataclass(frozen=True)
class Cause:
    kind: str = OTHER
    who: Participant = Participant()  # whose fate or fault it is; nobody: that of whose recording it is
    told_by: Participant = Participant()  # who found it, where another one passed it on
    for_s: float = 0.0  # it had been so for this long when it was found
    detail: str = ""  # a tensor's name, a variable's, the words of the network, or of the member that told it
    missing: Tuple[Tuple[str, int], ...] = ()  # "incomplete": role and rank of those who did not come


def read(fields: Dict[str, Any]) -> Cause:
    """From the field `cause` of a recording's first line. What is none there, or of a later version, is OTHER."""
    missing: List[Tuple[str, int]] = []
    for role in ("worker", "server"):
        listed = fields.get(f"missing_{role}s")
        ranks = listed[:RANKS_MAX] if isinstance(listed, list) else []
        missing += [(role, rank) for rank in ranks if isinstance(rank, int) and 0 <= rank < RANKS_MAX]
    return Cause(
        kind_of(text_of(fields, "kind")),
        participant(fields),
        participant(dict_of(fields, "told_by")),
        (number_of(fields, "for_ns") or 0) / 1e9,
        text_of(fields, "detail"),
        tuple(missing),
    )


def kind_of(name: str) -> str:
    return name if name in KINDS else OTHER


def participant(fields: Dict[str, Any]) -> Participant:
    return Participant(text_of(fields, "role"), number_of(fields, "rank"), text_of(fields, "host"))
