"""The hosts of a job: one line each.

    # machines with GPUs, then machines that only sum
    gpu1 workers=4
    gpu2 workers=4 servers=1
    admin@10.0.0.7 servers=2 port=2222
    cpu2 servers=2 address=10.1.0.8

A line begins with the host as ssh knows it: a name, an IPv4 or an IPv6 address, with user@ before it if needed.
    workers=N   worker processes (slots=N means the same)
    servers=N   server processes
    port=N      of its ssh
    address=A   how the other hosts reach it, when that is not the host's name
A line that names only one of workers and servers has none of the other; one that names neither has one worker. When no
line has servers, and several hosts have workers, each of these gets one. A '#' begins a comment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Iterable, List, Optional

from byteps.launcher.environment import SERVERS_MAX, WORKERS_MAX, parse_number

SETTINGS = {"workers": WORKERS_MAX, "slots": WORKERS_MAX, "servers": SERVERS_MAX, "port": 65535, "address": 0}


class BadHostfile(Exception):
    """The text names the file, the line and the accepted form."""


@dataclass(frozen=True)
class Host:
    name: str  # as ssh knows it, without user and brackets
    address: str  # as the other hosts reach it
    workers: int = 0
    servers: int = 0
    user: Optional[str] = None
    port: Optional[int] = None  # of ssh

    @property
    def is_loopback(self) -> bool:
        return self.address.startswith("127.") or self.address in ("::1", "localhost")


def read_hosts(
    path: str,
    workers_per_host: Optional[int] = None,
    servers_per_host: Optional[int] = None,
    wants_servers: bool = False,
) -> List[Host]:
    try:
        with open(path, encoding="utf-8") as file:
            return parse_hosts(file, path, workers_per_host, servers_per_host, wants_servers)
    except OSError as error:
        raise BadHostfile(f"the hostfile '{path}' cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadHostfile(f"the hostfile '{path}' is not a text file") from None


def parse_hosts(
    lines: Iterable[str],
    path: str = "hostfile",
    workers_per_host: Optional[int] = None,
    servers_per_host: Optional[int] = None,
    wants_servers: bool = False,
) -> List[Host]:
    """The counts that are given here are those of lines that name neither workers nor servers. `wants_servers`: also
    where all workers are on one host, which needs none."""
    hosts: List[Host] = []
    seen: Dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{path}, line {number}"
        host = _parse_line(words, where, workers_per_host, servers_per_host)
        if host.name in seen:
            raise BadHostfile(f"{where}: {host.name} is in line {seen[host.name]} already; add up what it shall run")
        seen[host.name] = number
        hosts.append(host)
    if not hosts:
        raise BadHostfile(f"{path} names no host")
    worker_count = sum(host.workers for host in hosts)
    if worker_count == 0:
        raise BadHostfile(f"{path}: no host has workers; write workers=N behind a host")
    is_one_machine = sum(host.workers > 0 for host in hosts) == 1
    needs_servers = not is_one_machine or (wants_servers and worker_count > 1)
    if needs_servers and not any(host.servers for host in hosts):
        if servers_per_host == 0:
            raise BadHostfile(f"{worker_count} workers have nobody to sum for them: write servers=N behind a host")
        hosts = [Host(**{**vars(host), "servers": min(host.workers, 1)}) for host in hosts]
    return hosts


def _parse_line(words: List[str], where: str, workers: Optional[int], servers: Optional[int]) -> Host:
    user, at, name = words[0].rpartition("@")
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    if not name or name.startswith("-") or user.startswith("-") or (at and not user):
        raise BadHostfile(f"{where}: '{words[0]}' is not a host: a name or an address, or user@host")
    settings: Dict[str, str] = {}
    for word in words[1:]:
        key, equals, value = word.partition("=")
        key = "workers" if key == "slots" else key
        if not equals or key not in SETTINGS:
            raise BadHostfile(f"{where}: '{word}' is not known; there are {'=, '.join(SETTINGS)}=")
        if key in settings:
            raise BadHostfile(f"{where}: {key}= is there twice")
        settings[key] = value
    numbers = {}
    for key in ("workers", "servers", "port"):
        if key not in settings:
            continue
        number = parse_number(settings[key])
        if number is None or not (1 if key == "port" else 0) <= number <= SETTINGS[key]:
            raise BadHostfile(f"{where}: {key}='{settings[key]}' is not valid: it takes a number up to {SETTINGS[key]}")
        numbers[key] = number
    if "workers" not in numbers and "servers" not in numbers:
        numbers["workers"] = 1 if workers is None else workers
        numbers["servers"] = servers or 0
    return Host(
        name=name,
        address=settings.get("address") or name,
        workers=numbers.get("workers", 0),
        servers=numbers.get("servers", 0),
        user=user or None,
        port=numbers.get("port"),
    )
