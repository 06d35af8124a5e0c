"""A job that nobody has described: the group's members start what it needs.

The first member starts the scheduler, and, of several machines, the first member on each a summation server there.
(Members of one machine sum among themselves: docs/local.md.) Addresses and a fresh key travel through the group's
store, so whoever can read that store can join. The processes lead sessions of their own, so that a Ctrl-C reaches the
trainer alone; they end by themselves when all members have left or one is lost. A member that started some waits for
that at its end, for END_WAIT_S at most, so that a container does not end under the others.
"""

from __future__ import annotations

import atexit
import os
import secrets
import socket
import subprocess
import sys
import time
from typing import Any, Dict, List, Mapping, Optional

from byteps._core import errors, session
from byteps.launcher.environment import wants_servers_anyway
from byteps.launcher.plan import IDENTITY, LOOPBACK, CannotStart, find_executable, hold_free_port
from byteps.torch.backend.meeting import Meeting

START_TIMEOUT_S = "60"  # all members are here when it begins
END_WAIT_S = 20.0
END_NOTICE_S = 5.0
KEPT = ("DMLC_INTERFACE",)  # of IDENTITY: which interface the processes use
ALONE = {"BYTEPS_ENGINE": "none"}  # a group of one, whatever has started this process

_services: List["subprocess.Popen[bytes]"] = []  # those of earlier groups too, until they have ended


def join(meeting: Meeting) -> None:
    """Starts this member's share of the processes and joins the job. When something cannot be started, all members
    raise and name it."""
    _services[:] = [process for process in _services if process.poll() is None]
    started = len(_services)
    held: List[socket.socket] = []  # the scheduler's port, until it has bound it
    try:
        session.join(_start_all(meeting, held) if meeting.size > 1 else ALONE)
    except BaseException:
        for process in _services[started:]:
            process.terminate()
        raise
    finally:
        for port in held:
            port.close()


def _start_all(meeting: Meeting, held: List[socket.socket]) -> Dict[str, str]:
    """The settings with which this member joins."""
    rank = meeting.rank
    machines_by_rank = [str(each) for each in meeting.tell("machine", machine_name())]
    machines = list(dict.fromkeys(machines_by_rank))  # in the order of their first ranks
    mine = machines_by_rank[rank]
    neighbours = [other for other, name in enumerate(machines_by_rank) if name == mine]
    chosen = meeting.tell_from(0, "scheduler", lambda: _choose(machines, held))
    shared = {
        "DMLC_NUM_WORKER": str(len(machines)),
        "DMLC_NUM_SERVER": str(len(machines) if chosen["servers"] else 0),
        "DMLC_PS_ROOT_URI": chosen["address"],
        "DMLC_PS_ROOT_PORT": str(chosen["port"]),
        "BYTEPS_LOCAL_SIZE": str(len(neighbours)),
        "BYTEPS_GLOBAL_SIZE": str(meeting.size),
        "BYTEPS_JOB_KEY": chosen["key"],
        "BYTEPS_START_TIMEOUT_S": os.environ.get("BYTEPS_START_TIMEOUT_S") or START_TIMEOUT_S,
    }
    if len(machines) == 1:
        shared["DMLC_NODE_HOST"] = LOOPBACK
    index = machines.index(mine)
    roles = ["scheduler"] if rank == 0 else []
    if chosen["servers"] and rank == neighbours[0]:
        roles.append("server")
    meeting.tell("started", None, lambda: _start(roles, index, shared))
    return dict(
        shared,
        DMLC_ROLE="worker",
        DMLC_WORKER_ID=str(index),
        BYTEPS_LOCAL_RANK=str(neighbours.index(rank)),
        BYTEPS_GLOBAL_RANK=str(rank),
    )


def machine_name() -> str:
    """Equal for processes that reach each other through loopback: one boot of one kernel, one network namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()}/{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return socket.gethostname()


def _choose(machines: List[str], held: List[socket.socket]) -> Dict[str, Any]:
    """On the first member: where the scheduler will be, the job's key, and whether there are servers."""
    address = LOOPBACK if len(machines) == 1 else own_address(os.environ)
    held.append(hold_free_port(""))
    # One machine needs none where the core knows it for one, too: by the kernel, and not by the host's name.
    servers = len(machines) > 1 or machines[0] == socket.gethostname() or wants_servers_anyway(os.environ)
    key = secrets.token_hex(32)
    return {"address": address, "port": held[0].getsockname()[1], "key": key, "servers": servers}


def own_address(environ: Mapping[str, str]) -> str:
    """An address of this machine that others can reach: MASTER_ADDR where it is one of ours, else the host name's."""
    tried = []
    for name in (environ.get("DMLC_NODE_HOST"), environ.get("MASTER_ADDR"), socket.getfqdn(), socket.gethostname()):
        for address in _addresses_of(name):
            tried.append(address)
            if not address.startswith("127.") and _is_ours(address):
                return address
    raise errors.SystemRefusedError(
        f"rank 0 knows no address of its machine that others can reach (tried {', '.join(tried) or 'none'}): set "
        "MASTER_ADDR, or DMLC_NODE_HOST on rank 0, to one"
    )


def _addresses_of(name: Optional[str]) -> List[str]:
    try:
        found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM) if name else []
    except OSError:
        return []
    return [str(entry[4][0]) for entry in found]


def _is_ours(address: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _start(roles: List[str], index: int, shared: Mapping[str, str]) -> None:
    base = {name: value for name, value in os.environ.items() if name not in IDENTITY or name in KEPT}
    base.update(shared)
    for role in roles:
        own = dict(base, DMLC_ROLE=role)
        if role == "server":
            own["DMLC_RANK"] = str(index)
        try:
            command = [find_executable(role, os.environ)]
            process = subprocess.Popen(command, env=own, stdin=subprocess.DEVNULL, start_new_session=True)
        except (CannotStart, OSError) as error:
            raise errors.SystemRefusedError(f"the {role} of the job cannot be started: {error}") from error
        if not _services:
            atexit.register(_end)  # runs before the session's own, which was registered when it was imported
        _services.append(process)


def _end() -> None:
    """At the end of this process."""
    session.leave_for_good()
    if getattr(sys, "last_value", None) is not None:  # an exception ends this process: who waits for it shall see that
        return
    deadline_s = time.monotonic() + END_WAIT_S
    notice_s = time.monotonic() + END_NOTICE_S
    while any(process.poll() is None for process in _services) and time.monotonic() < deadline_s:
        if time.monotonic() > notice_s:
            notice_s = deadline_s
            print(
                "byteps: waiting until the other members have left: the scheduler or a server runs here",
                file=sys.stderr,
                flush=True,
            )
        time.sleep(0.02)
