"""Hostile and broken peers: strangers that come to a port and do their worst there, listeners at which somebody else
answers than who should, and relays in between that are cut or damage what passes. Who has the job's key says what is
wrong with wire.py.
"""

import contextlib
import os
import random
import re
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

import wire

ADDRESS = "127.0.0.1"


def listening_ports(pid: int) -> List[int]:
    """TCP ports on which a process listens."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            match = re.match(r"socket:\[(\d+)\]", os.readlink(entry))
        except OSError:
            continue
        if match:
            inodes.add(match.group(1))
    ports = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                ports.append(int(words[1].rpartition(":")[2], 16))
    return sorted(set(ports))


def resident_bytes(pid: int) -> int:
    match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(match.group(1)) * 1024


def plug(port: int, timeout_s: float = 5.0) -> socket.socket:
    return socket.create_connection((ADDRESS, port), timeout=timeout_s)


def throw(port: int, data: bytes) -> None:
    """Sends, whatever the other side thinks of it, and reads a little of the answer."""
    with plug(port) as peer:
        try:
            peer.sendall(data)
            peer.settimeout(0.2)
            peer.recv(4096)
        except OSError:
            pass


# ---- strangers, without the key


def random_bytes(port: int) -> None:
    chance = random.Random(port)
    for count in (1, 7, 8, 9, 40, 4096, 4097, 1 << 20):
        throw(port, chance.randbytes(count))
        throw(port, wire.MAGIC + chance.randbytes(count))


def other_protocols(port: int) -> None:
    throw(port, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    throw(port, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500))
    throw(port, b"SSH-2.0-OpenSSH_9.2\r\n")
    throw(port, b"\x1b[2J\x1b[31m\n\n\n\xff\xfe")


def huge_lengths(port: int) -> None:
    for kind in range(6):
        throw(port, wire.RECORD_HEAD.pack(wire.MAGIC, kind, 0xFFFF) + bytes(70000))
    throw(port, wire.prefix(0xFFFFFFFF, 0xFFFF) + bytes(70000))
    # A Hello whose one field says it has 4 GiB.
    throw(port, wire.record(wire.HELLO, bytes(wire.NONCE_BYTES) + struct.pack("<BBI", 5, 2, 0xFFFFFFFF)))


def truncated(port: int) -> None:
    whole = wire.record(wire.HELLO, bytes(wire.NONCE_BYTES) + wire.hello(wire.WORKER, 0, 1))
    for count in range(0, len(whole), 9):
        throw(port, whole[:count])


def frames_without_a_handshake(port: int) -> None:
    throw(port, wire.frame(wire.header(wire.JOIN), wire.join(wire.WORKER, 0, 2, 2)) * 20)
    throw(port, wire.frame(wire.header(wire.PUSH, epoch=1, key=wire.key_of("checked.0.0")), bytes(1000)) * 20)


def another_job(port: int) -> None:
    for key in (b"", b"guess", b"x" * 1000):
        for version in (0, 1, 2, 3, 4, 6, 0xFFFF):
            hello = wire.hello(wire.WORKER, 0, 1, key, version)
            throw(port, wire.record(wire.HELLO, os.urandom(wire.NONCE_BYTES) + hello))


def resets(port: int) -> None:
    for index in range(100):
        peer = plug(port)
        peer.sendall(wire.MAGIC[: index % 5])
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()


STRANGERS: Dict[str, Callable[[int], None]] = {
    attack.__name__: attack
    for attack in (
        random_bytes,
        other_protocols,
        huge_lengths,
        truncated,
        frames_without_a_handshake,
        another_job,
        resets,
    )
}


# ---- many that stay

WORDS = {  # by what they are
    "silent": b"",
    "half a Hello": wire.record(wire.HELLO, bytes(200))[:100],
    "four KiB": wire.RECORD_HEAD.pack(wire.MAGIC, wire.HELLO, 4000) + bytes(3990),
}


def crowd(port: int, count: int, words: bytes = b"") -> List[socket.socket]:
    """Opens that many connections, each says `words`; they stay open. Fewer when the other side turns some away."""
    held = []
    for _ in range(count):
        try:
            peer = plug(port)
            if words:
                peer.sendall(words)
            held.append(peer)
        except OSError:
            pass
    return held


def still_open(held: List[socket.socket]) -> int:
    count = 0
    for peer in held:
        peer.setblocking(False)
        try:
            while peer.recv(65536):
                pass
        except BlockingIOError:
            count += 1
        except OSError:
            pass
    return count


def drip(peer: socket.socket, words: bytes, pause_s: float, seconds: float) -> Tuple[float, int]:
    """One byte at a time. Returns after how many seconds the other side hung up, and how much it took until then."""
    began_s = time.monotonic()
    sent = 0
    peer.settimeout(pause_s)
    while time.monotonic() - began_s < seconds:
        try:
            peer.sendall(words[sent : sent + 1])
            sent += 1
            if not peer.recv(4096):
                break
        except socket.timeout:
            continue
        except OSError:
            break
    return time.monotonic() - began_s, sent


# ---- listeners


class Listener:
    """A port of this machine until its block ends: `serve` has each connection, one after the other; without it the
    kernel takes them, and nobody answers."""

    def __init__(self, serve: Optional[Callable[[socket.socket], Any]] = None, host: str = ADDRESS) -> None:
        self._socket = socket.create_server((host, 0), backlog=4096)
        self.port = self._socket.getsockname()[1]
        if serve is not None:
            threading.Thread(target=self._serve, args=(serve,), daemon=True).start()

    def _serve(self, serve: Callable[[socket.socket], Any]) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            with peer, contextlib.suppress(OSError):
                serve(peer)

    def close(self) -> None:
        hang_up(self._socket)  # so that accept() returns
        self._socket.close()

    def __enter__(self) -> "Listener":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def scheduler_of_version(version: int, key: bytes) -> Listener:
    """Answers every Hello with one of this version."""

    def serve(peer: socket.socket) -> None:
        peer.settimeout(5)
        peer.recv(4096)
        theirs = wire.hello(wire.SCHEDULER, key=key, version=version)
        peer.sendall(wire.record(wire.HELLO, os.urandom(wire.NONCE_BYTES) + theirs))
        peer.recv(4096)

    return Listener(serve)


def parrot(count: int, more: bytes) -> Listener:
    """Says what it hears, and something more."""
    return Listener(lambda peer: (peer.sendall(peer.recv(count) + more), peer.recv(1)))


# ---- between others


class Relay:
    """Listens, and passes each connection on to a port of this machine."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._ends: List[socket.socket] = []
        self._listener = socket.create_server((ADDRESS, 0))
        self.port = self._listener.getsockname()[1]
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = plug(self._target)
            except OSError:
                near.close()
                continue
            for end in (near, far):
                end.settimeout(None)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._ends += [near, far]
            self.connections += 1
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._run, args=(source, sink, source is near), daemon=True).start()

    def _run(self, source: socket.socket, sink: socket.socket, is_outward: bool) -> None:
        with contextlib.suppress(OSError, wire.Refused):
            self.pass_on(source, sink, is_outward)
        hang_up(source, sink)

    def pass_on(self, source: socket.socket, sink: socket.socket, is_outward: bool) -> None:
        while chunk := source.recv(65536):
            sink.sendall(self.changed(chunk, is_outward))

    def changed(self, chunk: bytes, is_outward: bool) -> bytes:
        return chunk

    def cut(self) -> None:
        """Ends all connections; new ones are passed on again."""
        ends, self._ends = self._ends, []
        hang_up(*ends)

    def close(self) -> None:
        hang_up(self._listener)
        self._listener.close()
        self.cut()


def hang_up(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


class DamagingRelay(Relay):
    """To the scheduler it changes nothing but the ports in Joins, to a shard it turns bits over."""

    def __init__(self, relays: "Relays", port: int, is_scheduler: bool) -> None:
        self._relays, self._is_scheduler = relays, is_scheduler
        super().__init__(port)

    def pass_on(self, source: socket.socket, sink: socket.socket, is_outward: bool) -> None:
        peer = wire.Connection.around(source)
        for kind in (wire.HELLO, wire.PROOF):  # damaged, these are refused with as many reasons as they have fields
            sink.sendall(peer.record(kind))
        if self._is_scheduler and is_outward:
            sink.sendall(self._first_message(peer))
        super().pass_on(source, sink, is_outward)

    def changed(self, chunk: bytes, is_outward: bool) -> bytes:
        return chunk if self._is_scheduler else self._relays.damage(chunk, is_outward)

    def _first_message(self, peer: wire.Connection) -> bytes:
        """A Join of other ports."""
        message = peer.receive()
        payload = message.payload
        if message.kind == wire.JOIN:
            for place in wire.list_of(wire.fields(payload)[6]):
                payload = payload.replace(wire.number(2, place[2]), wire.number(2, self._relays.port_for(place[2])))
        return wire.frame(message.head(), payload)


class Relays:
    """All relays of a job, which turn a bit over in about `mean_bytes` in each direction between workers and shards;
    None: never. Both can be set while the job runs.

        with Relays(job.port, mean_bytes=50000, seed=1) as relays:
            job.start_server({"DMLC_PS_ROOT_PORT": str(relays.scheduler_port)})

    The servers reach the scheduler through one. Their Join names the ports of their shards; it puts ports of relays in
    their place, so that workers come through these too. (It could not if Joins were secret or signed.)"""

    def __init__(self, scheduler_port: int, mean_bytes: Optional[int], seed: int) -> None:
        self.mean_bytes = {True: mean_bytes, False: mean_bytes}  # by whether it is on its way to a shard
        self.flips = 0
        self._prng = random.Random(seed)
        self._lock = threading.Lock()
        self._shards: Dict[int, DamagingRelay] = {}
        self._scheduler = DamagingRelay(self, scheduler_port, True)
        self.scheduler_port = self._scheduler.port

    @property
    def connections(self) -> int:
        return sum(relay.connections for relay in self._all())

    def port_for(self, port: int) -> int:
        with self._lock:
            if port not in self._shards:
                self._shards[port] = DamagingRelay(self, port, False)
            return self._shards[port].port

    def damage(self, chunk: bytes, is_outward: bool) -> bytes:
        mean = self.mean_bytes[is_outward]
        if mean is None:
            return chunk
        with self._lock:
            at = int(self._prng.expovariate(1 / mean))
            if at >= len(chunk):
                return chunk
            self.flips += 1
            changed = bytearray(chunk)
            changed[at] ^= 1 << self._prng.randrange(8)
            return bytes(changed)

    def _all(self) -> List[DamagingRelay]:
        return [self._scheduler, *self._shards.values()]

    def __enter__(self) -> "Relays":
        return self

    def __exit__(self, *_: object) -> None:
        for relay in self._all():
            relay.close()
