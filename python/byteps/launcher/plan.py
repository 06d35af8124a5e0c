"""The processes to start, as data.

A plan is built from the command line and the environment alone and starts nothing, so it can be printed and tested.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Dict, List, Mapping, Optional, Set, Tuple, Union

from byteps.launcher import cores, losses
from byteps.launcher.environment import BadEnvironment, Job, is_forced, read_switch
from byteps.launcher.key import JobKey

if TYPE_CHECKING:
    from byteps.launcher.link import Link

LOOPBACK = "127.0.0.1"
FORCING = "BYTEPS_FORCE_DISTRIBUTED=1 uses servers all the same"

# Who a process is in its job. bpslaunch --local gives these itself; the caller's values would belong to another job.
IDENTITY = (
    "DMLC_ROLE DMLC_NUM_WORKER DMLC_NUM_SERVER DMLC_WORKER_ID DMLC_RANK DMLC_PS_ROOT_URI DMLC_PS_ROOT_PORT "
    "DMLC_NODE_HOST DMLC_INTERFACE DMLC_PORT BYTEPS_LOCAL_RANK BYTEPS_LOCAL_SIZE BYTEPS_GLOBAL_RANK "
    "BYTEPS_GLOBAL_SIZE BYTEPS_JOB_KEY BYTEPS_JOB_KEY_FILE BYTEPS_ATTEMPT"
).split()


class CannotStart(Exception):
    """Something needed is not there; the text says what and where it was looked for."""


class NotExecutable(CannotStart):
    """It is there, but may not be run."""


@dataclass
class Process:
    """One process to start."""

    role: str  # worker, server or scheduler
    rank: Optional[int]  # None: a scheduler, or a process that takes over this one
    command: List[str]
    environ: Dict[str, str]
    cores: Optional[Set[int]] = None  # None: not bound
    link: Optional[Link] = None  # to the host that runs it, which finds the program itself; None: this host
    hears_losses: bool = False  # a scheduler that is told on its standard input which workers were lost

    @property
    def title(self) -> str:
        """As people see it: "worker 0"."""
        return self.role if self.rank is None else f"{self.role} {self.rank}"

    def again(self, attempt: int) -> "Process":
        """The same, which knows that it is started for the how manieth time."""
        return replace(self, environ={**self.environ, "BYTEPS_ATTEMPT": str(attempt)})


Held = Union[socket.socket, JobKey]


@dataclass
class Plan:
    processes: List[Process]
    summary: str  # one line for the start
    notes: List[str] = field(default_factory=list)  # lines behind it
    held: List[Held] = field(default_factory=list)  # the scheduler's port, the job key; close at the end


def machine_workers(job: Job, command: List[str], environ: Mapping[str, str]) -> Plan:
    """The workers of this machine; scheduler and servers are started by others."""
    bound = cores.bind(job.local_size, 0, environ).workers
    processes = []
    for local_rank in range(job.local_size):
        own = dict(environ)
        own["BYTEPS_LOCAL_RANK"] = str(local_rank)
        own["BYTEPS_LOCAL_SIZE"] = str(job.local_size)
        own["PYTHONUNBUFFERED"] = "1"
        rank = job.machine_index * job.local_size + local_rank
        processes.append(Process("worker", rank, with_gdb(command, environ), own, bound[local_rank]))
    summary = f"{count(job.local_size, 'worker')} of machine {job.machine_index}: {shortly(command)}"
    return Plan(processes, summary)


def whole_job(
    worker_count: int,
    server_count: int,
    command: List[str],
    environ: Mapping[str, str],
    shards: Optional[int] = None,
) -> Plan:
    """Scheduler, servers and workers on this machine, over loopback, with a key of their own. Workers also get what
    torchrun would tell them (RANK, WORLD_SIZE, ...), so that torch.distributed finds its store.

    Several workers without servers sum among themselves; one is a job of one, and needs no scheduler either.
    """
    core_count = len(os.sched_getaffinity(0))
    base = {name: value for name, value in environ.items() if name not in IDENTITY}
    key = JobKey()
    base.update(
        DMLC_NUM_WORKER="1",
        BYTEPS_LOCAL_SIZE=str(worker_count),
        PYTHONUNBUFFERED="1",
        BYTEPS_JOB_KEY_FILE=key.path,
    )
    server_count, notes = used_servers(worker_count, server_count, base)
    losses.check_servers(base, worker_count, server_count)
    if shards is not None and server_count > 0:
        base["BYTEPS_SERVER_ENGINE_THREAD"] = str(shards)
    bound = cores.bind(worker_count, server_count, base)
    base.setdefault("OMP_NUM_THREADS", str(bound.worker_threads(core_count)))
    plan = Plan([], f"{count(worker_count, 'worker')}, {count(server_count, 'server')}", notes, [key])
    if worker_count > 1 or server_count > 0:
        held = hold_free_port()
        plan.held.append(held)
        port = held.getsockname()[1]
        plan.summary += f", scheduler on {LOOPBACK} port {port}"
        base.update(
            DMLC_NUM_SERVER=str(server_count),
            DMLC_PS_ROOT_URI=LOOPBACK,
            DMLC_PS_ROOT_PORT=str(port),
            DMLC_NODE_HOST=LOOPBACK,
        )
        base.setdefault("BYTEPS_ROLL_CALL", "0")  # the scheduler's own is shown
        if server_count > 0:
            base.setdefault("BYTEPS_SERVER_ENGINE_THREAD", str(bound.server_loops(core_count)))
        plan.processes.append(_scheduler(base))
        for index in range(server_count):
            plan.processes.append(_service("server", index, dict(base, DMLC_RANK=str(index)), bound.servers[index]))
    store = hold_free_port()
    plan.held.append(store)
    base.update(
        WORLD_SIZE=str(worker_count),
        LOCAL_WORLD_SIZE=str(worker_count),
        MASTER_ADDR=LOOPBACK,
        MASTER_PORT=str(store.getsockname()[1]),
    )
    for rank in range(worker_count):
        own = dict(base, DMLC_ROLE="worker", DMLC_WORKER_ID="0", BYTEPS_LOCAL_RANK=str(rank))
        own.update(RANK=str(rank), LOCAL_RANK=str(rank))
        plan.processes.append(Process("worker", rank, with_gdb(command, environ), own, bound.workers[rank]))
    plan.summary += f": {shortly(command)}"
    return plan


def used_servers(worker_count: int, asked: int, environ: Dict[str, str]) -> Tuple[int, List[str]]:
    """How many servers are started, and what is to be said about the others. `environ`, of the whole job, forces none
    where none was asked for. (Servers beside several workers are started, and the scheduler says who needs none.)"""
    if asked == 0:
        environ.pop("BYTEPS_FORCE_DISTRIBUTED", None)
    elif worker_count == 1 and not is_forced(environ):
        is_not = "1 server is" if asked == 1 else f"{asked} servers are"
        return 0, [f"{is_not} not used: a single worker has nobody to sum with ({FORCING})"]
    return asked, []


def _scheduler(base: Mapping[str, str]) -> Process:
    hears_losses = losses.goes_on(base)
    command = scheduler_command(find_executable("scheduler", base), hears_losses)
    environ = dict(base, DMLC_ROLE="scheduler")
    return Process("scheduler", None, with_gdb(command, base), environ, hears_losses=hears_losses)


def scheduler_command(program: str, hears_losses: bool) -> List[str]:
    return [program, losses.TELLING] if hears_losses else [program]


def _service(role: str, rank: Optional[int], base: Mapping[str, str], own: Optional[Set[int]] = None) -> Process:
    return Process(role, rank, with_gdb([find_executable(role, base)], base), dict(base, DMLC_ROLE=role), own)


def find_executable(role: str, environ: Mapping[str, str]) -> str:
    """byteps_scheduler or byteps_server: in $BYTEPS_BIN, in the installed package, or in the source tree's build."""
    name = f"byteps_{role}"
    package = Path(__file__).resolve().parents[1]
    folders = [package / "bin", package.parents[1] / "build/release/bin"]
    if environ.get("BYTEPS_BIN"):
        folders = [Path(environ["BYTEPS_BIN"])]
    for folder in folders:
        if os.access(folder / name, os.X_OK):
            return str(folder / name)
    looked = ", ".join(str(folder) for folder in folders)
    raise CannotStart(f"{name} was not found in {looked}; reinstall the byteps package, or set BYTEPS_BIN")


def find_command(command: List[str], environ: Mapping[str, str]) -> List[str]:
    """The command with its program as a path."""
    path = shutil.which(command[0], path=environ.get("PATH", os.defpath))
    if path is None:
        folders = [""] if os.path.dirname(command[0]) else environ.get("PATH", os.defpath).split(os.pathsep)
        for candidate in (os.path.join(folder, command[0]) for folder in folders):
            if os.path.exists(candidate):
                raise NotExecutable(f"'{candidate}' is not executable")
        raise CannotStart(f"there is no program '{command[0]}' (looked along PATH)")
    return [path] + command[1:]


def with_gdb(command: List[str], environ: Mapping[str, str]) -> List[str]:
    """BYTEPS_ENABLE_GDB=1: the command under gdb, which prints a backtrace if it crashes and keeps its exit code."""
    if not read_switch(environ, "BYTEPS_ENABLE_GDB", default=False):
        return command
    gdb = shutil.which("gdb", path=environ.get("PATH", os.defpath))
    if gdb is None:
        raise BadEnvironment(
            "BYTEPS_ENABLE_GDB=1, but there is no gdb along PATH: install it or unset the variable"
        )
    # gdb ends with 1 when its last command fails, as bt does after a regular end; so the last one is harmless.
    steps = ["-ex", "run", "-ex", "bt", "-ex", "set confirm off"]
    return [gdb, "-batch", "-return-child-result"] + steps + ["--args"] + command


def hold_free_port(host: str = LOOPBACK) -> socket.socket:
    """A free port that stays reserved for a process that sets SO_REUSEADDR, which our scheduler does.

    The socket is bound but never listens: Linux gives its port to nobody who asks for any port, and lets a second
    socket bind it by number when both have SO_REUSEADDR. So nobody can take the port before the scheduler is up.
    """
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((host, 0))
    return held


def shortly(command: List[str]) -> str:
    """The command for people: the program's name without its folder, and the first of its arguments."""
    text = shlex.join([os.path.basename(command[0])] + command[1:]).replace("\n", " ")
    return text if len(text) <= 80 else text[:77] + "..."


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
