"""Recordings of form 1, from before causes and news of members were fields: translated into form 2.

This is the only place that knows sentences: those of the versions that wrote form 1. What today's versions say is in
fields, so whoever words something anew need not look here.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, List, Optional

from byteps.recordings.fields import text_of

FORM = 1
RANKS_MAX = 1000  # that a sentence lists
TEXT_CHARS_MAX = 4096  # of a sentence: none was longer

_UNIT_NS = {"ms": 10**6, "s": 10**9, "min": 60 * 10**9}
_MEMBER = r"(?P<role>worker|server|scheduler)(?: (?P<rank>\d{1,9}))? \((?P<host>[^() ]*)(?: at [^()]*)?\)"
_DURATION = r"(?P<number>\d{1,9}(?:\.\d{1,9})?) (?P<unit>ms|s|min)"

# About a member that the sentence names.
_SILENT = re.compile(rf"{_MEMBER} has said nothing for {_DURATION}")
_GONE = re.compile(rf"{_MEMBER} has been gone for {_DURATION}(?: \((?P<why>.*?)\) and the job)?")
_UNREACHABLE = re.compile(rf"{_MEMBER} at \S+?,? shard \d{{1,9}} cannot be reached for {_DURATION}(?:: (?P<why>.*))?")
_ANEW = re.compile(rf"{_MEMBER} was started anew while the job ran")
_STOPPED = re.compile(rf"{_MEMBER} was stopped while the job ran")
_TOLD = re.compile(rf"{_MEMBER}: (?P<what>.*)", re.DOTALL)
_SCHEDULER = re.compile(
    r"scheduler at \S+ (?P<how>has been unreachable for|has said nothing for|unreachable since) "
    + _DURATION
    + r"(?P<why>.*)"
)
_REFUSED = re.compile(
    r"scheduler at \S+: every attempt to join was refused for " + _DURATION + r": (?P<why>.*)", re.DOTALL
)
_LEFT = re.compile(
    r"tensor '(?P<tensor>.*)' waits for worker (?P<rank>\d{1,9}), which has left"
    r"|worker (?P<rank_at_barrier>\d{1,9}) has left the job: a barrier"
)
_STALLED = re.compile(r"all workers wait, and none can go on: ")
_STOP = re.compile(r"(a server|the scheduler) was told to stop")
_MISSING = re.compile(r"gave up [^;]{0,100}?waiting for (?P<who>[^;]*); here: ")
_TURNED_AWAY = re.compile(r"two processes claim|two servers claim|cannot be part of a job")
_SIZES = re.compile(r"disagree about the size")
_DESCRIPTORS = re.compile(r"too many open files|no file descriptors? left", re.IGNORECASE)
_MEMORY = re.compile(r"out of memory|no memory|cannot allocate memory", re.IGNORECASE)
_DAMAGED = re.compile(r"\bCRC|checksum|corrupt", re.IGNORECASE)
_BY_PEER = re.compile(r"refused by it")
_TENSOR = re.compile(r'tensor "(?P<tensor>[^"]*)"')
_VARIABLE = re.compile(r"\b(?:DMLC|BYTEPS)_[A-Z_]+")
_NEWS = re.compile(
    rf"{_MEMBER} (?:(?P<is_lost>lost its connection: )(?P<why>.*)|(?P<what>is here|is back|has left|left before))"
)
_PATH = re.compile(r" \(events: [^)]*\)")

_Fields = Dict[str, Any]


def head(fields: _Fields) -> _Fields:
    """The first line, with its cause."""
    text = _sentence(fields)
    translated = {**fields, "text": text}
    if text_of(fields, "how"):
        translated["cause"] = _cause_of(fields, text)
    return translated


def events(fields: _Fields, role: str) -> List[_Fields]:
    """A line behind it, of a process of this role, and the news of a member in it, which is an event of its own now."""
    text = _sentence(fields)
    kind = text_of(fields, "kind")
    told: _Fields = {**fields, "text": text}
    news: _Fields = {}
    if kind == "log" and role == "scheduler":
        news = _news(text)
    elif kind == "received" and text_of(fields, "name") == "Leave" and role != "scheduler":
        news = _departure(text)
    elif kind in ("failed", "done"):
        told.update(_left(text, "cause"))
    elif kind == "raised":
        told["cause"] = _exception(text)
    elif kind == "ended":
        told["cause"] = "killed" if fields.get("signal") else "exited"
    if "cause" not in told and _DESCRIPTORS.search(text):
        told["cause"] = "no_descriptors"
    elif "cause" not in told and _MEMORY.search(text):
        told["cause"] = "no_memory"
    return [told, {"t": fields.get("t"), **news}] if news else [told]


# ---- events


def _news(text: str) -> _Fields:
    """What became of a member was a line of the scheduler's log."""
    found = _NEWS.match(text)
    if not found:
        return {}
    if not found["is_lost"]:
        return {"kind": {"is here": "here", "is back": "back"}.get(found["what"], "left"), **_process(found)}
    cause = {"cause": "damaged"} if _DAMAGED.search(found["why"]) else {}
    return {"kind": "lost", **_process(found), **cause, "text": found["why"]}


def _departure(text: str) -> _Fields:
    found = re.match(r"workers? (\d{1,9})", text)
    return {"kind": "left", "role": "worker", "rank": int(found[1])} if found else {}


def _left(text: str, kind_field: str) -> _Fields:
    """What could not end because a worker has left."""
    found = _LEFT.match(text)
    if not found:
        return {}
    rank = int(found["rank"] or found["rank_at_barrier"])
    return {kind_field: "left", "role": "worker", "rank": rank, "detail": found["tensor"] or ""}


def _exception(text: str) -> str:
    return "interrupted" if text.startswith("KeyboardInterrupt") else "raised"


# ---- the first line


def _cause_of(fields: _Fields, text: str) -> _Fields:
    how, role = text_of(fields, "how"), text_of(fields, "role")
    if how in ("settings", "port", "network"):
        return _cannot_start(how, text)
    if how == "raised":
        return {"kind": _exception(text)}
    for rule in (_of_ranks, _of_start, _of_members):
        found = rule(text, role)
        if found:
            return found
    if how == "operation":
        return _of_operation(text_of(fields, "code"), text)
    told = _TOLD.match(text) if role == "scheduler" else None
    if told:
        return _told(told)
    if _STOP.search(text):
        return {"kind": "told_to_stop"}
    return _shortage(text)


def _cannot_start(how: str, text: str) -> _Fields:
    if _DESCRIPTORS.search(text):
        return {"kind": "no_descriptors", "detail": text}
    if how != "settings":
        return {"kind": "cannot_listen"}
    variable = _VARIABLE.search(text)
    return {"kind": "setting_invalid", "detail": variable[0] if variable else ""}


def _of_operation(code: str, text: str) -> _Fields:
    tensor = _TENSOR.search(text)
    detail = tensor["tensor"] if tensor else ""
    if code == "Mismatch":
        return {"kind": "tensor_differs", "detail": detail}
    if code != "System":
        return {"kind": "other"}
    server = re.search(r"server (\d{1,9})", text)
    who: _Fields = {"rank": int(server[1])} if server else {}
    return {"kind": "no_memory", "role": "server", **who, "detail": detail}


def _of_ranks(text: str, _: str) -> Optional[_Fields]:
    if _STALLED.search(text):
        return {"kind": "stalled"}
    return _left(text, "kind") or None


def _of_start(text: str, _: str) -> Optional[_Fields]:
    refused = _REFUSED.search(text)
    if refused:
        if _DESCRIPTORS.search(refused["why"]) and _BY_PEER.search(refused["why"]):
            return {"kind": "no_descriptors", "role": "scheduler", "detail": refused["why"]}
        return {"kind": "refused", "for_ns": _ns(refused), "detail": refused["why"]}
    if _TURNED_AWAY.search(text):
        return {"kind": "turned_away"}
    if _SIZES.search(text):
        return {"kind": "sizes_differ"}
    missing = _MISSING.search(text)
    if not missing:
        return None
    ranks = {f"missing_{role}s": _ranks(missing["who"], role) for role in ("worker", "server")}
    return {"kind": "incomplete", "detail": missing["who"], **ranks}


def _of_members(text: str, role: str) -> Optional[_Fields]:
    """What became of one, in the words of who noticed; `told_by`, where the scheduler passed them on."""
    told = _TOLD.match(text) if role == "scheduler" else None
    teller = {"told_by": _process(told)} if told else {}
    found = _UNREACHABLE.search(text)
    if found:
        why = found["why"] or ""
        accused = _process(found)
        if _DESCRIPTORS.search(why) and not _BY_PEER.search(why):  # the one that wanted to reach it has none
            return {"kind": "no_descriptors", **teller.get("told_by", {}), **teller, "detail": why}
        return {"kind": "unreachable", **accused, **teller, "for_ns": _ns(found), "detail": why}
    for pattern, kind in ((_SILENT, "silent"), (_GONE, "gone"), (_ANEW, "started_anew"), (_STOPPED, "left")):
        found = pattern.search(text)
        if found:
            parts = found.groupdict()
            why = parts.get("why") or ""
            kind = "damaged" if kind == "gone" and _DAMAGED.search(why) else kind
            for_ns = _ns(found) if "number" in parts else 0
            return {"kind": kind, **_process(found), "for_ns": for_ns, "detail": why}
    found = _SCHEDULER.search(text) if role != "scheduler" else None
    if not found:
        return None
    kind = "silent" if found["how"] == "has said nothing for" else "unreachable"
    why = found["why"].split("; ")[0].replace(": the job cannot go on without it", "").strip(" :()")
    return {"kind": kind, "role": "scheduler", "for_ns": _ns(found), "detail": why}


def _told(told: "re.Match[str]") -> _Fields:
    """A member could not go on, for a reason of its own."""
    who = _process(told)
    if _STOP.search(told["what"]):
        return {"kind": "told_to_stop", **who, "told_by": who}
    return {"kind": "other", **who, "told_by": who, "detail": told["what"]}


def _shortage(text: str) -> _Fields:
    if _DESCRIPTORS.search(text):
        return {"kind": "no_descriptors", "detail": text}
    return {"kind": "no_memory", "detail": text} if _MEMORY.search(text) else {"kind": "other"}


# ---- what sentences are made of


def _sentence(fields: _Fields) -> str:
    return _PATH.sub("", text_of(fields, "text")[:TEXT_CHARS_MAX])


def _process(found: "re.Match[str]") -> _Fields:
    rank = {} if found["rank"] is None else {"rank": int(found["rank"])}
    return {"role": found["role"], **rank, "host": found["host"]}


def _ns(found: "re.Match[str]") -> int:
    return int(float(found["number"]) * _UNIT_NS[found["unit"]])


def _ranks(text: str, role: str) -> List[int]:
    """Of "workers 0-2, 5 and 7 of 9 and server 1 of 2" those of this role."""
    return sorted(set(_listed(text, role)))[:RANKS_MAX]


def _listed(text: str, role: str) -> Iterator[int]:
    for ranks in re.findall(rf"{role}s? ([\d, and-]+?) of", text):
        for first, last in re.findall(r"(\d{1,9})(?:-(\d{1,9}))?", ranks):
            yield from range(int(first), min(int(last or first), int(first) + RANKS_MAX) + 1)
