"""What bps doctor asks one host: QUESTIONS. Runs there: in the agent (doctor_agent.py), or in bps doctor itself.

The answers are plain data; what they mean is decided in doctor_findings.py.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import hmac
import os
import platform
import resource
import secrets
import selectors
import socket
import stat
import struct
import subprocess
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, Tuple

from byteps.launcher import plan
from byteps.tools import doctor_rdma
from byteps.tools.doctor_findings import NO_ANSWER, NO_ROUTE, REFUSED, STRANGER, UNKNOWN_NAME, UNREACHABLE

SIOCGIFADDR = 0x8915  # linux/sockios.h
NONCE_BYTES = 16
PROOF_BYTES = 32
LISTEN_FOR_S = 60.0
CONNECT_WITHIN_S = 5.0
STRANGERS_MAX = 512  # connections to one listener at a time
SHARED_MEMORY = "/dev/shm"
KIND_OF_ERROR = {errno.ECONNREFUSED: REFUSED, errno.EHOSTUNREACH: NO_ROUTE}
SYSCTLS = ("net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem", "net.ipv4.tcp_congestion_control", "net.core.somaxconn")


# ---- the host itself


def facts(environ: Mapping[str, str], key_path: str = "", nonce: str = "", sys_folder: str = "/sys") -> Dict[str, Any]:
    """environ: of a process that would run here, beside what this host sets itself."""
    own = {name: value for name, value in os.environ.items() if name not in plan.IDENTITY}
    own.update(environ)
    return {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "shared_memory": shared_memory(),
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "locked_bytes": resource.getrlimit(resource.RLIMIT_MEMLOCK),
        "interfaces": interfaces(),
        "sysctls": {name: sysctl(name) for name in SYSCTLS},
        "settings": settings(own),
        "codecs": codecs(own),
        "machine": machine(own, sys_folder),
        "rdma": doctor_rdma.look(own),
        "key_file": key_file(key_path, nonce),
    }


def shared_memory() -> Optional[Tuple[int, int]]:
    """Its size and what is free, in bytes; None when it is not there."""
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def sysctl(name: str) -> str:
    try:
        with open("/proc/sys/" + name.replace(".", "/"), encoding="ascii") as file:
            return " ".join(file.read().split())
    except OSError:
        return ""


def interfaces() -> List[Dict[str, Any]]:
    """Those that are up and have an address, but loopback."""
    found: Dict[str, Dict[str, Any]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                reply = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # no IPv4 address
            found[name] = {"name": name, "address": socket.inet_ntoa(reply[20:24])}
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as file:
            for line in file:
                words = line.split()
                if words[3] == "00":  # global scope
                    address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[0]))
                    found.setdefault(words[5], {"name": words[5], "address": address})
    except OSError:
        pass
    for name, entry in found.items():
        entry["mbit_per_s"] = _speed(name)
    return [found[name] for name in sorted(found) if name != "lo"]


def _speed(interface: str) -> Optional[int]:
    try:
        with open(f"/sys/class/net/{interface}/speed", encoding="ascii") as file:
            speed = int(file.read())
    except (OSError, ValueError):
        return None
    return speed if speed > 0 else None


def machine(environ: Mapping[str, str], sys_folder: str) -> Dict[str, List[str]]:
    """What byteps_server --machine says: lines of its tree, the plan for its GPUs if there are any, and remarks.
    Nothing where it does not run: that is for settings() to tell."""
    found: Dict[str, List[str]] = {"tree": [], "plan": [], "remark": []}
    try:
        command = [plan.find_executable("server", environ), "--machine", sys_folder]
        run = subprocess.run(
            command, env=dict(environ), stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False
        )
    except (OSError, plan.CannotStart, subprocess.TimeoutExpired):
        return found
    for line in run.stdout.decode(errors="replace").splitlines():
        word, _, text = line.partition(" ")
        if word in found:
            found[word].append(text)
    return found


def settings(environ: Mapping[str, str]) -> Dict[str, Any]:
    """What byteps_server --check says: version, protocol, kernels, devices, own addresses, warnings, and an error, if
    there is one: each with its text, its kind, and the variable or file that it is about."""
    try:
        executable = plan.find_executable("server", environ)
    except plan.CannotStart as error:
        return {"missing": str(error)}
    try:
        run = subprocess.run(
            [executable, "--check"], env=dict(environ), stdin=subprocess.DEVNULL, capture_output=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"missing": f"{executable} does not run: {error}"}
    found: Dict[str, Any] = {"warnings": []}
    told: Dict[str, str] = {}  # the warning or error that the next lines are about
    for line in run.stdout.decode(errors="replace").splitlines():
        word, _, text = line.partition(" ")
        if word in ("warning", "error"):
            told = {"text": text, "kind": "other", "about": ""}
            if word == "error":
                found["error"] = told
            else:
                found["warnings"].append(told)
        elif word in ("kind", "about"):
            told[word] = text
        elif word == "further_address":
            found.setdefault("further_addresses", []).append(text)
        else:
            found[word] = text
    if "protocol" not in found:
        said = run.stderr.decode(errors="replace").strip() or f"exit code {run.returncode}"
        return {"missing": f"{executable} does not run: {said}"}
    return found


def codecs(environ: Mapping[str, str]) -> Dict[str, Dict[str, float]]:
    """What byteps_server --codecs says of each format of compression; {} where it does not run."""
    try:
        executable = plan.find_executable("server", environ)
        run = subprocess.run(
            [executable, "--codecs"], env=dict(environ), stdin=subprocess.DEVNULL, capture_output=True, timeout=20
        )
    except (plan.CannotStart, OSError, subprocess.TimeoutExpired):
        return {}
    rows = [line.split() for line in run.stdout.decode(errors="replace").splitlines()]
    return {name: {key: float(value) for key, value in zip(rest[::2], rest[1::2])} for name, *rest in rows}


def key_file(path: str, nonce: str) -> Optional[Dict[str, Any]]:
    """Of the file with the job key: who may read it, and a fingerprint that shows nothing of it."""
    if not path:
        return None
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            key = file.readline().rstrip(b"\n")
    except OSError as error:
        return {"error": error.strerror}
    return {"mode": mode, "bytes": len(key), "fingerprint": fingerprint(key, nonce)}


def fingerprint(key: bytes, nonce: str) -> str:
    """32 bits, other ones with every nonce: enough to see that two keys differ, too little to guess one."""
    return hmac.new(key, b"byteps doctor " + nonce.encode(), hashlib.sha256).hexdigest()[:8]


# ---- the network


class Stranger:
    """A connection that has not proved anything yet."""

    def __init__(self, peer: socket.socket, deadline_s: float):
        self.peer = peer
        self.deadline_s = deadline_s
        self.said = b""
        self.expected: Optional[bytes] = None  # its proof, once it has been asked


class Listener:
    """Answers connections from other hosts of the job for a while. Anyone may connect: of those that are at it, at most
    STRANGERS_MAX are kept, each for CONNECT_WITHIN_S; for another one the oldest goes."""

    def __init__(self, port: int, key: str):
        self._key = key.encode()
        self._socket = _listening_socket(port)
        self._socket.setblocking(False)
        self.port = self._socket.getsockname()[1]
        self._strangers: Deque[Stranger] = deque()  # the oldest first
        self._deadline_s = time.monotonic() + LISTEN_FOR_S
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._deadline_s = 0.0

    def _serve(self) -> None:
        with self._socket, selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ, None)
            while time.monotonic() < self._deadline_s:
                for key, _ in selector.select(0.2):
                    if key.data is None:
                        self._accept(selector)
                    elif key.data in self._strangers and not self._hear(key.data):
                        self._drop(key.data, selector)
                while self._strangers and time.monotonic() > self._strangers[0].deadline_s:
                    self._drop(self._strangers[0], selector)
            for stranger in list(self._strangers):
                self._drop(stranger, selector)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        if len(self._strangers) == STRANGERS_MAX:
            self._drop(self._strangers[0], selector)
        try:
            peer, _ = self._socket.accept()
        except OSError:
            return
        peer.setblocking(False)
        self._strangers.append(Stranger(peer, time.monotonic() + CONNECT_WITHIN_S))
        selector.register(peer, selectors.EVENT_READ, self._strangers[-1])

    def _drop(self, stranger: Stranger, selector: selectors.BaseSelector) -> None:
        selector.unregister(stranger.peer)
        stranger.peer.close()
        self._strangers.remove(stranger)

    def _hear(self, stranger: Stranger) -> bool:
        """Whether there is more to come. What is sent is little and the first on its connection: there is room."""
        wanted = NONCE_BYTES if stranger.expected is None else PROOF_BYTES
        try:
            more = stranger.peer.recv(wanted - len(stranger.said))
            stranger.said += more
            if not more or len(stranger.said) < wanted:
                return bool(more)
            if stranger.expected is None:
                own = secrets.token_bytes(NONCE_BYTES)
                stranger.expected = _proof(self._key, b"connector", stranger.said, own)
                stranger.peer.send(own + _proof(self._key, b"listener", stranger.said, own))
                stranger.said = b""
                return True
            if hmac.compare_digest(stranger.said, stranger.expected):
                stranger.peer.send(b"k")
        except BlockingIOError:
            return True
        except OSError:
            pass  # the other side says what it saw
        return False


_listeners: List[Listener] = []  # of this process: an agent, or bps doctor


def listen(ports: List[int], key: str) -> List[Any]:
    """For each port (0: any free one) the one that is listened at, or an error text."""
    opened: List[Any] = []
    for port in ports:
        try:
            _listeners.append(Listener(port, key))
            opened.append(_listeners[-1].port)
        except OSError as error:
            opened.append(os.strerror(error.errno) if error.errno else str(error))
    return opened


def end_listening() -> None:
    while _listeners:
        _listeners.pop().close()


def reach(places: List[Tuple[str, int]], key: str) -> List[Dict[str, Any]]:
    """Connects to each place: {"ms", "via"}, or {"error", "kind"}, UNKNOWN_NAME or another."""
    with ThreadPoolExecutor(32) as pool:
        return list(pool.map(lambda place: connect(place[0], place[1], key), places))


def connect(host: str, port: int, key: str) -> Dict[str, Any]:
    begin_s = time.monotonic()
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return {"error": f"{host} cannot be looked up: {error.strerror or error}", "kind": UNKNOWN_NAME}
    address = found[0][4][0]
    is_open = False  # somebody listens there, whoever it is
    deadline_s = begin_s + 2 * CONNECT_WITHIN_S  # for all that is said, once there is a connection
    try:
        with socket.create_connection((host, port), timeout=CONNECT_WITHIN_S) as there:
            took_ms = (time.monotonic() - begin_s) * 1e3
            is_open = True
            address = there.getpeername()[0]
            asked = secrets.token_bytes(NONCE_BYTES)
            there.sendall(asked)
            said = _receive(there, NONCE_BYTES + PROOF_BYTES, deadline_s)
            theirs = said[:NONCE_BYTES]
            if not hmac.compare_digest(said[NONCE_BYTES:], _proof(key.encode(), b"listener", asked, theirs)):
                trouble = {"error": "somebody else answers there", "kind": STRANGER}
                return {**trouble, "address": address, "is_open": True}
            there.sendall(_proof(key.encode(), b"connector", asked, theirs))
            _receive(there, 1, deadline_s)
            return {"ms": took_ms, "address": address, "via": there.getsockname()[0]}
    except socket.timeout:
        trouble = {"error": f"no answer within {CONNECT_WITHIN_S:.0f} s", "kind": NO_ANSWER}
    except OSError as error:
        kind = KIND_OF_ERROR.get(error.errno or 0, UNREACHABLE)
        trouble = {"error": (error.strerror or str(error)).lower(), "kind": kind}
    return {**trouble, "address": address, "is_open": is_open}


def _proof(key: bytes, side: bytes, asked: bytes, own: bytes) -> bytes:
    return hmac.new(key, b"byteps doctor " + side + b" " + asked + own, hashlib.sha256).digest()


def _receive(peer: socket.socket, count: int, deadline_s: float) -> bytes:
    data = b""
    while len(data) < count:
        peer.settimeout(max(0.001, min(CONNECT_WITHIN_S, deadline_s - time.monotonic())))
        more = peer.recv(count - len(data))
        if not more:
            raise ConnectionError("the connection was closed")
        data += more
    return data


def _listening_socket(port: int) -> socket.socket:
    """At all addresses, of both families where there are two, as byteps_scheduler and byteps_server do."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", port), family=family, backlog=128, dualstack_ipv6=both)


def is_port_free(port: int) -> str:
    """Empty, or why nobody could listen there now."""
    try:
        _listening_socket(port).close()
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)
    return ""


def now() -> float:
    return time.time()


QUESTIONS: Dict[str, Callable[..., Any]] = {
    "facts": facts,
    "listen": listen,
    "end listening": end_listening,
    "reach": reach,
    "port free": is_port_free,
    "now": now,
}
