"""A job on several hosts: which process runs where, and what is told to whom."""

from __future__ import annotations

import argparse
import os
import selectors
import shlex
import shutil
import time
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from byteps import __version__
from byteps.launcher import link, losses
from byteps.launcher.hostfile import Host
from byteps.launcher.keeper import Keeper
from byteps.launcher.key import JobKey, given_key
from byteps.launcher.link import Link, Unreachable
from byteps.launcher.plan import IDENTITY, Plan, Process, count, shortly, used_servers

# What goes to the other hosts from bpslaunch's own environment, beside what -x names: settings of BytePS and of the
# libraries that training uses, and where programs and libraries are.
FORWARDED_PREFIXES = ("BYTEPS_", "DMLC_", "NCCL_", "CUDA_", "OMP_", "MKL_", "PYTHON", "LC_")
FORWARDED_NAMES = "PATH LD_LIBRARY_PATH VIRTUAL_ENV CONDA_PREFIX LANG".split()
END_WITHIN_S = 5.0  # an agent ends what it started within two seconds
KEPT = ("DMLC_INTERFACE",)  # of IDENTITY: the same interface on all hosts


class BadHosts(Exception):
    """These hosts cannot make a job; the text says why and what to do."""


def forwarded(environ: Mapping[str, str], extra: Iterable[Tuple[str, Optional[str]]] = ()) -> Dict[str, str]:
    """`extra`: names with the value to set, or None for the one that it has here."""
    chosen = {
        name: value
        for name, value in environ.items()
        if (name.startswith(FORWARDED_PREFIXES) or name in FORWARDED_NAMES) and (name not in IDENTITY or name in KEPT)
    }
    for name, value in extra:
        if value is not None:
            chosen[name] = value
        elif name in environ:
            chosen[name] = environ[name]
        else:
            raise BadHosts(f"-x {name}: there is no such variable here; write -x {name}=value")
    return chosen


def scheduler_address(hosts: Sequence[Host], environ: Mapping[str, str]) -> str:
    """How all reach the scheduler, which runs on the first host."""
    address = environ.get("DMLC_PS_ROOT_URI") or hosts[0].address
    others = [host.name for host in hosts[1:] if not host.is_loopback]
    if Host(address, address).is_loopback and others:
        raise BadHosts(
            f"the scheduler runs on the first host, and {others[0]} cannot reach it at {address}: name the first host "
            "as the others know it, write address=A behind it, or set DMLC_PS_ROOT_URI"
        )
    return address


def given(text: str) -> str:
    """For argparse. An option that a script has left empty is not the same as none."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty")
    return text


def add_options(parser: "argparse._ActionsContainer") -> None:
    """How other hosts are reached: for every command that has --hosts."""
    parser.add_argument("--ssh", type=given, metavar="COMMAND", help="for example 'ssh -i key' (default ssh)")
    parser.add_argument(
        "--python", type=given, metavar="PATH", help="Python of the other hosts (default: the one of this host)"
    )


def ssh_words(ssh: Optional[str]) -> List[str]:
    """The command of --ssh, or ssh when none is given."""
    try:
        words = shlex.split(ssh or "ssh")
    except ValueError as error:
        raise BadHosts(f'--ssh "{ssh}" cannot be cut into words: {error}') from None
    if shutil.which(words[0]) is None:
        raise BadHosts(
            f"there is no program '{words[0]}' (looked along PATH) to reach the hosts: install it, or name another: "
            "--ssh COMMAND"
        )
    return words


def reach(hosts: Sequence[Host], ssh: Sequence[str], python: Optional[str], keeper: Keeper) -> List[Link]:
    """Links to agents on all hosts, or Unreachable."""
    links = [Link(host, ssh, python or link.default_python(), keeper) for host in hosts]
    selector = selectors.DefaultSelector()
    try:
        link.connect(links, selector)
        for each in links:
            if each.lost is not None:
                raise Unreachable(each.why_unreachable())
        link.check_versions(links, __version__)
    except BaseException:
        release(links, keeper)
        raise
    finally:
        for each in links:
            each.unregister()
        selector.close()
    return links


def release(links: Sequence[Link], keeper: Keeper) -> None:
    for each in links:
        each.end("bpslaunch ends")
    deadline_s = time.monotonic() + END_WITHIN_S
    for each in links:
        each.join(keeper, max(0.0, deadline_s - time.monotonic()))


def free_port(first: Link) -> int:
    """For the scheduler, which runs there."""
    (port,) = link.ask_once([first], 10.0, "port")
    if port is None:
        raise Unreachable(f"host {first.host.name} found no port for the scheduler: {first.lost or 'no answer'}")
    return port


def job_plan(
    links: Sequence[Link],
    address: str,
    port: int,
    command: List[str],
    environ: Mapping[str, str],
    shards: Optional[int] = None,
) -> Plan:
    """Ranks are given host by host. `environ` is what all processes get."""
    hosts = [each.host for each in links]
    worker_count = sum(host.workers for host in hosts)
    base = dict(environ)
    server_count, notes = used_servers(worker_count, sum(host.servers for host in hosts), base)
    losses.check_servers(base, worker_count, server_count)
    base.update(
        DMLC_NUM_WORKER=str(sum(host.workers > 0 for host in hosts)),
        DMLC_NUM_SERVER=str(server_count),
        DMLC_PS_ROOT_URI=address,
        DMLC_PS_ROOT_PORT=str(port),
        BYTEPS_GLOBAL_SIZE=str(worker_count),
    )
    if shards is not None:
        base["BYTEPS_SERVER_ENGINE_THREAD"] = str(shards)
    has_scheduler = worker_count > 1 or server_count > 0
    if has_scheduler:
        base.setdefault("BYTEPS_ROLL_CALL", "0")  # the scheduler's own is shown
    sizes = f"{count(len(hosts), 'host')}, {count(worker_count, 'worker')}, {count(server_count, 'server')}"
    plan = Plan([], sizes, notes)
    if has_scheduler:
        plan.summary += f", scheduler on {address} port {port}"
        scheduler = Process("scheduler", None, [], dict(base, DMLC_ROLE="scheduler"), link=links[0])
        scheduler.hears_losses = losses.goes_on(base)
        plan.processes.append(scheduler)
    server_rank = worker_rank = machine = 0
    for each in links:
        host = each.host
        own = dict(base, BYTEPS_LOCAL_SIZE=str(max(1, host.workers)))
        if "DMLC_INTERFACE" not in environ:
            own["DMLC_NODE_HOST"] = host.address
        for _ in range(host.servers if server_count > 0 else 0):
            special = dict(own, DMLC_ROLE="server", DMLC_RANK=str(server_rank))
            plan.processes.append(Process("server", server_rank, [], special, link=each))
            server_rank += 1
        for local_rank in range(host.workers):
            special = dict(
                own,
                DMLC_ROLE="worker",
                DMLC_WORKER_ID=str(machine),
                BYTEPS_LOCAL_RANK=str(local_rank),
                BYTEPS_GLOBAL_RANK=str(worker_rank),
            )
            plan.processes.append(Process("worker", worker_rank, command, special, link=each))
            worker_rank += 1
        machine += host.workers > 0
    plan.summary += f": {shortly(command)}"
    return plan


def start_messages(plan: Plan, folder: str, key: JobKey) -> List[Tuple[Link, Dict[str, Any]]]:
    """What each agent is told to start, in the order of the plan."""
    wanted: Dict[Link, List[Dict[str, Any]]] = {}
    for process in plan.processes:
        if process.link is not None:
            words: Dict[str, Any] = {"role": process.role, "rank": process.rank, "command": process.command}
            if process.hears_losses:
                words["hears_losses"] = True
            wanted.setdefault(process.link, []).append({**words, "environ": process.environ})
    return [
        (each, {"start": {"folder": folder, "environ": {}, "key": key.text, "processes": processes}})
        for each, processes in wanted.items()
    ]


def job_key(environ: Mapping[str, str]) -> JobKey:
    """The key that is set here, or a fresh one."""
    return JobKey(given_key(environ))


def own_folder() -> str:
    """Where we are, as the user knows it: what a link to a network folder is called, is the same on all hosts."""
    known = os.environ.get("PWD", "")
    try:
        return known if os.path.samefile(known, ".") else os.getcwd()
    except OSError:
        return os.getcwd()
