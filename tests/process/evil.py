"""Attackers, for test_evil_peer.py and bench/evil_peer.py: each takes a port and does its worst there.

An attacker keeps what it has opened in `held` when it should stay open; otherwise it closes it.
"""

import os
import random
import re
import socket
import struct
import time
from pathlib import Path
from typing import Callable, Dict, List, Tuple

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
    throw(port, wire.prefix(0xFFFFFFFF, 0xFFFF, b"", 1, 1 << 63) + bytes(70000))
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
        for version in (0, 1, 2, 4, 0xFFFF):
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


def drip(port: int, words: bytes, pause_s: float, seconds: float) -> Tuple[float, int]:
    """One byte at a time. Returns after how many seconds the other side hung up, and how much it took until then."""
    began_s = time.monotonic()
    sent = 0
    with plug(port) as peer:
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
