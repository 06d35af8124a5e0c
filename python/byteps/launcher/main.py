"""The command line of bpslaunch."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from byteps.launcher import bounds, gpus, hosts, losses, plan
from byteps.launcher.crew import Crew, Order
from byteps.launcher.environment import (
    SERVERS_MAX,
    SHARDS_MAX,
    WORKERS_MAX,
    BadEnvironment,
    Job,
    parse_number,
    read_job,
    read_port,
    wants_servers_anyway,
)
from byteps.launcher.hostfile import BadHostfile, read_hosts
from byteps.launcher.hosts import BadHosts
from byteps.launcher.keeper import Keeper
from byteps.launcher.link import SSH_FAILED, Link, Unreachable
from byteps.launcher.plan import CannotStart, NotExecutable, Plan
from byteps.launcher.recordings import Recordings
from byteps.launcher.screen import Screen

EXIT_USAGE = 2
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127
IMPATIENT_S = 2.0  # who interrupts a job does not wait longer for a reader who takes nothing

DESCRIPTION = """\
Starts the processes of a BytePS job.

A job has three roles:
  worker     your training program; one process per GPU, or as many as you like
  server     sums what the workers push; runs on machines with or without GPUs
  scheduler  one per job; knows who is here, holds no data
"""

EPILOG = """\
On one machine, everything at once:
  bpslaunch --local --workers 2 -- python train.py --epochs 5

On several machines, everything at once over ssh; the file has lines like: node1 workers=4 servers=1
  bpslaunch --hosts hosts.txt -- python train.py --epochs 5

A job that goes on when a worker is killed or its host is gone, with sums and averages of those that are there:
  bpslaunch --hosts hosts.txt --on-worker-loss continue -- python train.py --epochs 5

On several machines, one call per process or worker machine, told by the environment what it is:
  export DMLC_NUM_WORKER=2 DMLC_NUM_SERVER=1 DMLC_PS_ROOT_URI=10.0.0.1 DMLC_PS_ROOT_PORT=9000
  export BYTEPS_JOB_KEY_FILE=~/job.key                  # the same file everywhere: openssl rand -hex 16
  DMLC_ROLE=scheduler bpslaunch                         # on 10.0.0.1
  DMLC_ROLE=server    bpslaunch                         # on a machine that sums
  DMLC_ROLE=worker DMLC_WORKER_ID=0 BYTEPS_LOCAL_SIZE=4 bpslaunch python train.py
  DMLC_ROLE=worker DMLC_WORKER_ID=1 BYTEPS_LOCAL_SIZE=4 bpslaunch python train.py
The order does not matter. The number of workers on a machine is the number of devices listed in
NVIDIA_VISIBLE_DEVICES, or BYTEPS_LOCAL_SIZE, or 1.

The command is run as given, without a shell; a single argument with spaces is split as a shell would.
Exit code: 0 when all workers ended with 0 (with --on-worker-loss continue all that were not lost); that of the process
that failed (128 + n for signal n); 2 when an option or variable is wrong, with its name; 126 when the program is not
executable; 127 when it does not exist; 255 when a host cannot be reached.
All variables: docs/env.md.
"""


def main(argv: Optional[List[str]] = None) -> int:
    options = parse(sys.argv[1:] if argv is None else argv)
    environ = dict(os.environ)
    try:
        command = split_command(options.command)
        if options.local:
            return run_local(options, command, environ)
        if options.hosts is not None:
            return run_hosts(options, command, environ)
        return run_from_environment(command, environ, options.grace)
    except (BadEnvironment, BadHostfile, BadHosts, UsageError) as error:
        return fail(str(error), EXIT_USAGE)
    except Unreachable as error:
        return fail(str(error), SSH_FAILED)
    except NotExecutable as error:
        return fail(str(error), EXIT_NOT_EXECUTABLE)
    except CannotStart as error:
        return fail(str(error), EXIT_NOT_FOUND)
    except OSError as error:
        return fail(f"cannot start: {error}", EXIT_NOT_EXECUTABLE)


EACH_GPU = "gpu"  # instead of a number of workers


class UsageError(Exception):
    """What is wrong with the command line."""


def parse(argv: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bpslaunch",
        usage="bpslaunch [--local | --hosts FILE] [options] [--] command...",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"bpslaunch {_version()}")
    parser.add_argument("--local", action="store_true", help="start a whole job on this machine, over loopback")
    parser.add_argument(
        "--hosts", type=hosts.given, metavar="FILE", help="start a whole job on the hosts listed in FILE, over ssh"
    )
    local = parser.add_argument_group("with --local")
    local.add_argument(
        "--workers", type=_workers, metavar="N", help="worker processes (default 2); gpu: one for each visible GPU"
    )
    local.add_argument(
        "--servers",
        type=_count(SERVERS_MAX, 0),
        metavar="N",
        help="server processes (default 0: the workers of one machine need none)",
    )
    both = parser.add_argument_group("with --local or --hosts")
    both.add_argument(
        "--shards", type=_count(SHARDS_MAX), metavar="N", help="event loops per server (default: cores / servers)"
    )
    both.add_argument(
        "-x",
        "--env",
        type=_assignment,
        action="append",
        default=[],
        metavar="K[=V]",
        help="set a variable for all processes; with --hosts K alone means the value it has here",
    )
    both.add_argument(
        "--on-worker-loss",
        choices=losses.POLICIES,
        help="when a worker is killed, or its host is gone: the job fails, or it goes on with the others, which "
        f"needs a server, or several workers of one machine (default: {losses.VARIABLE}, or fail)",
    )
    both.add_argument("--no-prefix", action="store_true", help="do not put [worker 0] before each line of output")
    remote = parser.add_argument_group("with --hosts")
    remote.add_argument(
        "--workers-per-host", type=_count(WORKERS_MAX, 0), metavar="N", help="where the file says nothing (default 1)"
    )
    remote.add_argument("--servers-per-host", type=_count(SERVERS_MAX, 0), metavar="N", help="likewise (default 0)")
    hosts.add_options(remote)
    remote.add_argument(
        "--folder", type=hosts.given, metavar="PATH", help="where the processes run (default: the current one)"
    )
    parser.add_argument(
        "--grace",
        type=_seconds,
        default=5.0,
        metavar="S",
        help="seconds to end by itself before the next signal (default 5)",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the training program and its arguments")
    options = parser.parse_args(argv)
    check_together(parser, options)
    return options


def check_together(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuses options that have no meaning beside the others."""
    if options.local and options.hosts:
        parser.error("--local and --hosts exclude each other")
    for name, value in options.env:
        if options.local and value is None:
            parser.error(f"'{name}' is not of the form NAME=value")
    for names, wanted, is_there in (
        (("workers", "servers"), "--local", options.local),
        (("shards", "env", "no_prefix", "on_worker_loss"), "--local or --hosts", options.local or options.hosts),
        (("workers_per_host", "servers_per_host", "ssh", "python", "folder"), "--hosts", options.hosts),
    ):
        for name in names:
            if not is_there and getattr(options, name) not in (None, [], False):
                hint = "; the hostfile has these" if options.hosts else "; without it the environment describes the job"
                parser.error(f"--{name.replace('_', '-')} needs {wanted}{hint}")


def split_command(command: List[str]) -> List[str]:
    """Without a leading '--'; a single argument with spaces is cut as a shell would."""
    if command[:1] == ["--"]:
        command = command[1:]
    if len(command) != 1 or not any(space in command[0] for space in " \t\n") or os.path.exists(command[0]):
        return command
    try:
        words = shlex.split(command[0])
    except ValueError as error:
        raise UsageError(f"the command {command[0]!r} cannot be cut into words: {error}") from None
    for word in words:
        if word in ("&&", "||", "|", ";", "&", ">", "<", ">>"):
            raise UsageError(f"the command contains '{word}', which needs a shell: write bpslaunch bash -c '...'")
    return words


# ---- modes


def run_local(options: argparse.Namespace, command: List[str], environ: Dict[str, str]) -> int:
    environ.update(options.env)
    losses.settle(environ, options.on_worker_loss)
    workers, servers = local_counts(options, environ)
    command = need_command(command, environ)
    return run(
        plan.whole_job(workers, servers, command, environ, options.shards), options.grace, not options.no_prefix
    )


def local_counts(options: argparse.Namespace, environ: Mapping[str, str]) -> Tuple[int, int]:
    """Of workers and servers."""
    workers = gpus.count(environ) if options.workers == EACH_GPU else options.workers or 2
    if options.servers is not None:
        return workers, options.servers
    wants_servers = options.shards is not None or wants_servers_anyway(environ)
    return workers, 1 if workers > 1 and wants_servers else 0


def run_hosts(options: argparse.Namespace, command: List[str], environ: Dict[str, str]) -> int:
    common = hosts.forwarded(environ, options.env)
    losses.settle(common, options.on_worker_loss)
    wants_servers = options.shards is not None or wants_servers_anyway({**environ, **common})
    listed = read_hosts(options.hosts, options.workers_per_host, options.servers_per_host, wants_servers)
    if not command:
        raise UsageError("there is no command: write the training program after the options (see --help)")
    address = hosts.scheduler_address(listed, environ)
    key = hosts.job_key(environ)
    chosen_port = read_port(environ)
    ssh = hosts.ssh_words(options.ssh)
    keeper = Keeper()
    links: List[Link] = []
    try:
        links = hosts.reach(listed, ssh, options.python, keeper)
        port = chosen_port or hosts.free_port(links[0])
        job = hosts.job_plan(links, address, port, command, common, options.shards)
        network = bounds.of_hosts(listed, common)
        if network is not None and network.is_worse:
            job.notes.append(network.text())
        orders = hosts.start_messages(job, options.folder or hosts.own_folder(), key)
        return run(job, options.grace, not options.no_prefix, keeper, orders)
    finally:
        hosts.release(links, keeper)
        keeper.dismiss()


def run_from_environment(command: List[str], environ: Dict[str, str], grace_s: float) -> int:
    if "DMLC_ROLE" not in environ:
        raise UsageError("DMLC_ROLE is missing: set it to worker, server or scheduler; or use --local (see --help)")
    losses.settle(environ)
    job = read_job(environ)
    if job.role != "worker":
        return run_service(job, command, environ)
    command = need_command(command, environ)
    if job.local_size > 1 and not job.has_remote_servers:
        # One machine: upstream needs no servers then, and neither do we.
        servers = 1 if wants_servers_anyway(environ) else 0
        return run(plan.whole_job(job.local_size, servers, command, environ), grace_s, has_prefix=False)
    workers = plan.machine_workers(job, command, environ)
    if job.local_size == 1:
        become(workers.processes[0])
    return run(workers, grace_s, has_prefix=False)


def run_service(job: Job, command: List[str], environ: Dict[str, str]) -> int:
    if command:
        raise UsageError(f"DMLC_ROLE={job.role} takes no command, but got: {shlex.join(command)}")
    if not job.has_remote_servers:
        say(f"DMLC_NUM_WORKER=1 needs no {job.role}; to use one all the same, set BYTEPS_FORCE_DISTRIBUTED=1")
        return 0
    executable = plan.find_executable(job.role, environ)
    become(plan.Process(job.role, None, plan.with_gdb([executable], environ), environ))
    return 0


def become(process: plan.Process) -> None:
    """This process becomes the one to start: signals, terminal and exit code are then its own. Does not return."""
    if process.cores:
        os.sched_setaffinity(0, process.cores)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(process.command[0], process.command, process.environ)


def run(
    job: Plan, grace_s: float, has_prefix: bool, keeper: Optional[Keeper] = None, orders: Sequence[Order] = ()
) -> int:
    screen = Screen()
    recordings = Recordings(job.processes[0].environ)
    recordings.give(job)
    crew = Crew(job, screen, grace_s, has_prefix)
    result = 1
    try:
        for line in (job.summary, *job.notes):
            screen.say(line)
        result = crew.run(keeper, orders)
        return result
    finally:
        links = [link for link, _ in orders]
        recordings.close(result, crew.story(), crew.interrupted_by is not None, screen.say, links)
        for held in job.held:
            held.close()
        await_reader(screen, crew.interrupted_by is not None)


def await_reader(screen: Screen, is_interrupted: bool) -> None:
    """Nothing of the job is left but what its reader has not read yet: from now on a signal simply ends us."""
    if screen.waiting_bytes == 0:
        return
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    screen.finish(IMPATIENT_S if is_interrupted else None)


def need_command(command: List[str], environ: Mapping[str, str]) -> List[str]:
    if not command:
        raise UsageError("there is no command: write the training program after the options (see --help)")
    return plan.find_command(command, environ)


def say(text: str) -> None:
    print(f"bpslaunch: {text}", file=sys.stderr)


def fail(text: str, code: int) -> int:
    say(text)
    return code


# ---- forms of options


def _count(maximum: int, minimum: int = 1) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = parse_number(text)
        if number is None or not minimum <= number <= maximum:
            raise argparse.ArgumentTypeError(f"'{text}' is not a number from {minimum} to {maximum}")
        return number

    return parse


def _workers(text: str) -> Union[int, str]:
    return EACH_GPU if text == EACH_GPU else _count(WORKERS_MAX)(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds from 0 to 86400")
    return seconds


def _assignment(text: str) -> Tuple[str, Optional[str]]:
    """A value of None: the one that the variable has here."""
    name, equals, value = text.partition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"'{text}' is not of the form NAME=value")
    return name, value if equals else None


def _version() -> str:
    try:
        from byteps import __version__
    except ImportError:
        return "(version unknown)"
    return __version__
