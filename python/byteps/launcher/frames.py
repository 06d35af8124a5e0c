"""What bpslaunch and its agent on another host say to each other, over the standard input and output of ssh.

To the agent: lines of JSON, one message each (agent.py). The end of the input ends the agent and all it started.

From the agent, after a line that tells its words from what a login shell may have printed: frames of

    u8 kind, u32 process (its place in the list that was to be started), u32 length, then so many bytes
"""

from __future__ import annotations

import enum
import json
import struct
from typing import Any, List, NamedTuple

BANNER = b"\nBYTEPS AGENT 1\n"
BANNER_WITHIN_BYTES = 64 << 10  # of what comes first
HEAD = struct.Struct(">BII")
BODY_BYTES_MAX = 16 << 20
ALIVE_EVERY_S = 5.0  # bpslaunch says so often that it is there
SILENCE_S = 60.0  # an agent that hears nothing for so long ends


class Kind(enum.IntEnum):
    HELLO = 1  # JSON: who the agent is
    OUTPUT = 2  # of a process: u8 descriptor (1 or 2), then the bytes
    STARTED = 3  # JSON: pid
    CANNOT_START = 4  # JSON: code, text
    EXIT = 5  # JSON: code, negative for a signal
    GONE = 6  # the process and all it started
    REPLY = 7  # JSON: to an "ask"


class Frame(NamedTuple):
    kind: Kind
    process: int
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class BadFrame(Exception):
    """The other side is not an agent of this version."""


def encode(kind: Kind, process: int, body: bytes = b"") -> bytes:
    return HEAD.pack(kind, process, len(body)) + body


def encode_json(kind: Kind, process: int, value: Any) -> bytes:
    return encode(kind, process, json.dumps(value).encode())


class FrameReader:
    """Turns the bytes of an agent into frames."""

    def __init__(self) -> None:
        self.noise = b""  # what came before the banner
        self._pending = bytearray()
        self._has_banner = False

    def feed(self, data: bytes) -> List[Frame]:
        self._pending += data
        if not self._has_banner:
            place = (b"\n" + bytes(self._pending)).find(BANNER)  # nothing may stand before it
            if place < 0:
                self.noise = bytes(self._pending[:1024])
                if len(self._pending) > BANNER_WITHIN_BYTES:
                    raise BadFrame(f"no agent answered, but: {self.noise[:200].decode(errors='replace')}")
                return []
            self.noise = bytes(self._pending[: max(0, place - 1)])
            del self._pending[: place + len(BANNER) - 1]
            self._has_banner = True
        frames = []
        while len(self._pending) >= HEAD.size:
            kind, process, length = HEAD.unpack_from(self._pending)
            if length > BODY_BYTES_MAX or kind not in Kind._value2member_map_:
                raise BadFrame(f"the agent said what bpslaunch does not know (kind {kind}, {length} bytes)")
            if len(self._pending) < HEAD.size + length:
                break
            frames.append(Frame(Kind(kind), process, bytes(self._pending[HEAD.size : HEAD.size + length])))
            del self._pending[: HEAD.size + length]
        return frames
