"""The protocol, spoken from Python for peers that are not ours: src/net/wire.h, src/net/tcp/record.h, src/net/frame/.

Everything can be said wrongly: functions make bytes, Connection sends them. A connection that keeps the rules:

    with Connection("127.0.0.1", port) as peer:
        peer.shake_hands(hello(WORKER, rank=0, epoch=1), key)
        peer.send(header(DECLARE, epoch=1, key=key_of("w"), worker=0), declare("w", FLOAT32, 4000))
        answer = peer.receive()
"""

import hashlib
import hmac
import os
import socket
import struct
import threading
import time
from typing import Dict, List, NamedTuple, Tuple, Union

# Kinds of messages.
PUSH, ANSWER, DECLARE, WANTED, FORGET, MISMATCH, MISSING = range(1, 8)
JOIN, ROSTER, HEARTBEAT, LEAVE, BARRIER, BARRIER_DONE, FAIL, WAITING, STALLED = range(16, 25)
SCHEDULER, SERVER, WORKER = range(3)
NO_RANK = 0xFFFFFFFF
FLOAT32, FLOAT64, FLOAT16, UINT8, INT32, INT8, INT64, BFLOAT16, BOOL = range(9)
SUM, AVERAGE, BROADCAST = range(3)

HEADER_BYTES = 48
RECORD_HEAD = struct.Struct("<4sHH")
MAGIC = b"BPS1"
HELLO, REFUSAL, PROOF = 1, 2, 3
PREFIX = struct.Struct("<IHHI")  # and behind it the checksum of these
CHECKSUM = struct.Struct("<I")
NONCE_BYTES = 32
CONNECTING_LABEL = b"byteps proof of the connecting side"
JOB_ID_LABEL = b"byteps job id"

Value = Union[int, bytes]
MASK = (1 << 64) - 1


def key_of(name: str) -> int:
    number = 0xCBF29CE484222325
    for byte in name.encode():
        number = ((number ^ byte) * 0x100000001B3) & MASK
    number = ((number ^ number >> 30) * 0xBF58476D1CE4E5B9) & MASK
    number = ((number ^ number >> 27) * 0x94D049BB133111EB) & MASK
    return number ^ number >> 31


# ---- messages


def header(
    kind: int, flags: int = 0, epoch: int = 0, key: int = 0, part: int = 0, round: int = 0, offset: int = 0,
    worker: int = 0, tag: int = 0,
) -> bytes:  # fmt: skip
    return struct.pack("<BBHIQIIQIIQ", kind, flags, 0, epoch, key, part, round, offset, worker, 0, tag)


def number(tag: int, value: int) -> bytes:
    return struct.pack("<BBQ", tag, 1, value)


def octets(tag: int, value: bytes) -> bytes:
    return struct.pack("<BBI", tag, 2, len(value)) + value


def entries(tag: int, items: List[bytes]) -> bytes:
    return octets(tag, b"".join(struct.pack("<I", len(item)) + item for item in items))


def fields(payload: bytes) -> Dict[int, Value]:
    found: Dict[int, Value] = {}
    while payload:
        tag, kind = payload[0], payload[1]
        if kind == 1:
            (found[tag],) = struct.unpack_from("<Q", payload, 2)
            payload = payload[10:]
        else:
            (length,) = struct.unpack_from("<I", payload, 2)
            found[tag] = payload[6 : 6 + length]
            payload = payload[6 + length :]
    return found


def list_of(payload: bytes) -> List[Dict[int, Value]]:
    items = []
    while payload:
        (length,) = struct.unpack_from("<I", payload)
        items.append(fields(payload[4 : 4 + length]))
        payload = payload[4 + length :]
    return items


def declare(name: str, dtype: int, total_bytes: int, operation: int = SUM, root: int = 0) -> bytes:
    return octets(1, name.encode()) + number(2, dtype) + number(3, operation) + number(4, total_bytes) + number(5, root)


def text(message: str, code: int) -> bytes:
    return octets(1, message.encode()) + number(2, code)


def join(
    role: int, rank: int = NO_RANK, workers: int = 0, servers: int = 0, host: str = "stranger:1",
    endpoints: Tuple[Tuple[str, int], ...] = (),
    partition_bytes: int = 4096000, frame_bytes: int = 32768, life: int = 1, place: bytes = b"",
) -> bytes:  # fmt: skip
    addresses = [octets(1, name.encode()) + number(2, port) for name, port in endpoints]
    return (
        number(1, role) + number(2, rank) + number(3, workers) + number(4, servers) + octets(5, host.encode())
        + entries(6, addresses) + number(7, partition_bytes) + number(8, frame_bytes) + number(9, life)
        + (octets(24, place) if place else b"")
    )  # fmt: skip


def place(bus: int, mbps: int = 126030) -> bytes:
    """Of a device at this bus, of which nothing else is known (src/base/place.h)."""
    return struct.pack("<BBIBBIBhhIB", 1, 1, 0, bus, 0, mbps, 0, -1, -1, 0, 0)


def leave(final: bool = True) -> bytes:
    return number(1, int(final))


def barrier(count: int) -> bytes:
    return number(1, count)


def job_id(key: bytes) -> bytes:
    return hmac.digest(key, JOB_ID_LABEL, hashlib.sha256)[:16] if key else bytes(16)


def hello(
    role: int, rank: int = NO_RANK, epoch: int = 0, key: bytes = b"", version: int = 12, incarnation: bytes = bytes(16)
) -> bytes:
    """The fields of a Hello; the connection puts the nonce before them."""
    return (
        number(1, version) + number(2, role) + number(3, rank) + number(4, epoch) + octets(5, job_id(key))
        + octets(6, incarnation)
    )  # fmt: skip


def hello_of_version_2(role: int, rank: int = NO_RANK, epoch: int = 0, key: bytes = b"") -> bytes:
    """The same as processes before version 3 said it, byte for byte."""
    return number(1, 2) + number(2, role) + number(3, rank) + number(4, epoch) + octets(5, job_id(key))


def floats(values: List[float]) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def floats_of(payload: bytes) -> List[float]:
    return list(struct.unpack(f"<{len(payload) // 4}f", payload))


def record(kind: int, body: bytes) -> bytes:
    return RECORD_HEAD.pack(MAGIC, kind, len(body)) + body


def crc32c_table() -> List[int]:
    table = list(range(256))
    for _ in range(8):
        table = [(value >> 1) ^ (0x82F63B78 if value & 1 else 0) for value in table]
    return table


CRC32C_TABLE = crc32c_table()


def crc32c(content: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in content:
        crc = CRC32C_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def prefix(payload_bytes: int, head_bytes: int, head: bytes = b"") -> bytes:
    """The start of a frame with good checksums, whatever it promises."""
    start = PREFIX.pack(payload_bytes, head_bytes, 0, crc32c(head))
    return start + CHECKSUM.pack(crc32c(start)) + head


def frame(head: bytes, payload: bytes = b"") -> bytes:
    end = CHECKSUM.pack(crc32c(payload)) if payload else b""
    return prefix(len(payload), len(head), head) + payload + end


class Message(NamedTuple):
    kind: int
    flags: int
    epoch: int
    key: int
    part: int
    round: int
    offset: int
    worker: int
    tag: int
    payload: bytes

    def head(self) -> bytes:
        return header(*self[:-1])


class Refused(Exception):
    """The other side said why, in a refusal."""


class Connection:
    def __init__(self, host: str, port: int, timeout_s: float = 10.0) -> None:
        self.socket = socket.create_connection((host, port), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @classmethod
    def around(cls, connected: socket.socket) -> "Connection":
        """For a connection that is there already."""
        connection = cls.__new__(cls)
        connection.socket = connected
        return connection

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def shake_hands(self, own_fields: bytes, key: bytes) -> Dict[int, Value]:
        """Says a Hello of these fields and proves that we have the key. Returns the other side's fields."""
        own = record(HELLO, os.urandom(NONCE_BYTES) + own_fields)
        _, proof = self.open_by_hand(own, key)
        self.socket.sendall(proof)
        return fields(self.their_hello[RECORD_HEAD.size + NONCE_BYTES :])

    def open_by_hand(self, own: bytes, key: bytes) -> Tuple[bytes, bytes]:
        """Says this Hello record. Returns the other side's proof, and the record with ours, which is not sent yet."""
        self.socket.sendall(own)
        self.their_hello = self.record(HELLO)
        theirs = self.record(PROOF)[RECORD_HEAD.size :]
        return theirs, record(PROOF, hmac.digest(key, CONNECTING_LABEL + own + self.their_hello, hashlib.sha256))

    def send(self, head: bytes, payload: bytes = b"") -> None:
        self.socket.sendall(frame(head, payload))

    def receive(self) -> Message:
        """The next message. ConnectionError: the connection has ended. TimeoutError: there is none."""
        start = self._exactly(PREFIX.size)
        self._check(start)
        payload_bytes, head_bytes, _, head_crc = PREFIX.unpack(start)
        head = self._exactly(head_bytes)
        assert head_crc == crc32c(head), "a header with another checksum"
        kind, flags, _, epoch, key, part, round_, offset, worker, _, tag = struct.unpack("<BBHIQIIQIIQ", head)
        payload = self._exactly(payload_bytes)
        if payload:
            self._check(payload)
        return Message(kind, flags, epoch, key, part, round_, offset, worker, tag, payload)

    def receive_kind(self, *kinds: int) -> Message:
        while True:
            message = self.receive()
            if message.kind in kinds:
                return message

    def is_closed_within(self, seconds: float) -> bool:
        """Whether the other side ends the connection in time; reads all that still comes."""
        deadline = time.monotonic() + seconds
        try:
            while time.monotonic() < deadline:
                self.socket.settimeout(max(0.001, deadline - time.monotonic()))
                if not self.socket.recv(65536):
                    return True
        except socket.timeout:
            return False
        except OSError:
            return True
        return False

    def _check(self, content: bytes) -> None:
        (crc,) = CHECKSUM.unpack(self._exactly(CHECKSUM.size))
        assert crc == crc32c(content), "bytes with another checksum"

    def record(self, kind: int) -> bytes:
        head = self._exactly(RECORD_HEAD.size)
        magic, found, length = RECORD_HEAD.unpack(head)
        body = self._exactly(length)
        if found == REFUSAL:
            raise Refused(body[4:].decode(errors="replace"))
        if (magic, found) != (MAGIC, kind):
            raise ConnectionError(f"record {found} of {magic!r} instead of {kind}")
        return head + body

    def _exactly(self, count: int) -> bytes:
        pieces = []
        while count > 0:
            piece = self.socket.recv(count)
            if not piece:
                raise ConnectionError("the other side has closed")
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)


class Member:
    """A worker of a real job that says what it is told to: joined at the scheduler, which hears its heartbeats from a
    thread, and connected to a shard when asked to."""

    def __init__(self, port: int, rank: int, key: bytes, workers: int, servers: int, host: str = "python:1") -> None:
        self.rank, self.key, self.port = rank, key, port
        self.joining = join(WORKER, rank, workers, servers, host, life=time.time_ns())
        self.epoch = 0
        self.incarnation = bytes(16)
        self.rounds: Dict[str, int] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.join_again()
        self._heart = threading.Thread(target=self._beat, daemon=True)
        self._heart.start()

    def join_again(self) -> None:
        """Connects to the scheduler and says Join; returns when the roster is here."""
        scheduler = Connection("127.0.0.1", self.port, timeout_s=30)
        answering = scheduler.shake_hands(self.hello(), self.key)
        scheduler.send(self.header(JOIN), self.joining)
        roster = fields(scheduler.receive_kind(ROSTER).payload)
        self.scheduler = scheduler
        self.epoch, self.incarnation = roster[1], answering[6]
        self.frame_bytes = roster[4]
        places = [list_of(member[4]) for member in list_of(roster[5]) if member[1] == SERVER]
        served = [places[slot[1]][slot[2]] for slot in list_of(roster[7])]
        self.places = [(place[1].decode(), place[2]) for place in served]
        self.beat()

    def beat(self) -> None:
        try:
            with self._lock:
                self.scheduler.send(self.header(HEARTBEAT))
        except OSError:
            pass

    def _beat(self) -> None:
        while not self._ended.wait(0.3):
            self.beat()

    def connect(self, shard: int) -> Connection:
        peer = Connection(*self.places[shard], timeout_s=30)
        peer.shake_hands(self.hello(), self.key)
        return peer

    def hello(self) -> bytes:
        return hello(WORKER, self.rank, self.epoch, self.key, incarnation=self.incarnation)

    def shard_of(self, name: str) -> int:
        """Where the first part of a tensor is."""
        number = key_of(name)
        number = ((number ^ number >> 30) * 0xBF58476D1CE4E5B9) & MASK
        number = ((number ^ number >> 27) * 0x94D049BB133111EB) & MASK
        return (number ^ number >> 31) % len(self.places)

    def header(self, kind: int, **others: int) -> bytes:
        return header(kind, **{"epoch": self.epoch, "worker": self.rank, **others})

    def sum(self, name: str, values: List[float]) -> List[float]:
        """One round of a float32 tensor that fits one frame."""
        round_ = self.rounds.get(name, 0)
        with self.connect(self.shard_of(name)) as shard:
            shard.send(self.header(DECLARE, key=key_of(name)), declare(name, FLOAT32, 4 * len(values)))
            shard.send(self.header(PUSH, key=key_of(name), round=round_, tag=5), floats(values))
            while True:
                answer = shard.receive_kind(ANSWER)
                if (answer.key, answer.round) == (key_of(name), round_):
                    break
        self.rounds[name] = round_ + 1
        return floats_of(answer.payload)

    def leave(self) -> None:
        self._ended.set()
        self._heart.join()
        self.scheduler.send(self.header(LEAVE), leave())
        self.scheduler.receive_kind(LEAVE)
        self.scheduler.socket.close()

    def fall_silent(self) -> None:
        self._ended.set()
        self._heart.join()
