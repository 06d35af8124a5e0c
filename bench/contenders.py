"""Who is measured: BytePS, its rivals, and floors that nobody can pass. Each is a Group (group.py).

All groups of a scenario live at the same time and take turns (ours, gloo, ours, gloo, ...), so that whatever else the
machine does meets them alike. Who has no turn waits for a line of input and uses nothing.
"""

import dataclasses
import importlib.util
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import models
import netlab
import scenarios
from group import Group

ROOT = pathlib.Path(__file__).resolve().parent.parent
BENCH = ROOT / "bench"
OUTPUT = ROOT / "build" / "bench"
MXNET_PYTHON = ROOT / ".venv-mxnet/bin/python"
# Without name service: a command on a host whose name is its address.
NAMED = ["unshare", "--uts", "sh", "-c", 'hostname "$NETLAB_IP" && exec "$@"', "sh"]
HOROVOD_PYTHON = ROOT / ".venv-horovod/bin/python"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class BytePS(Group):
    """Scheduler, servers and workers of one build. framework: of workers of program step, instead of torch."""

    rival = False

    def __init__(self, label, build, worker_build, env, port, framework=""):
        super().__init__(label)
        self.kind = framework or "byteps"
        self._build, self._worker_build, self._env, self._port = build, worker_build, env, port
        self.optional = env.get("DMLC_NUM_SERVER") == "0"

    def start(self, lab, scenario):
        n, k = len(scenario.ranks()), scenario.extra
        server_hosts = [n + i for i in range(k)] + (list(range(n)) if scenario.colocated else [])
        server_hosts = server_hosts[: int(self._env.get("DMLC_NUM_SERVER", len(server_hosts)))]
        scheduler_host = n + k
        env = {
            "DMLC_PS_ROOT_URI": lab.address(scheduler_host),
            "DMLC_PS_ROOT_PORT": self._port or free_port(),
            "DMLC_NUM_WORKER": n,
            "DMLC_NUM_SERVER": len(server_hosts),
            "BYTEPS_JOB_KEY": "the key of a benchmark",
            "BYTEPS_FORCE_DISTRIBUTED": int(bool(server_hosts)),  # also where all workers are on one host
            "BYTEPS_LIBRARY": self._build / "lib" / "libbyteps.so",
            "LD_LIBRARY_PATH": self._build / "lib",
            "PYTHONPATH": ROOT / "python",
            "OMP_NUM_THREADS": 1,
            **({"BYTEPS_GLOBAL_SIZE": scenario.workers} if scenario.hosts else {}),
            **({"DMLC_INTERFACE": lab.interfaces()} if scenario.cards > 1 else {}),
            "MASTER_ADDR": lab.address(0),  # where torch.distributed's ranks meet
            "MASTER_PORT": free_port(),
            **dict(scenario.env),
            **self._env,
        }
        self.others.append(lab.start(scheduler_host, [self._build / "bin" / "byteps_scheduler"], env))
        on_server, on_worker = pinned(scenario)
        # A veth pair does not know that it is shaped; a real card's rate is read from the card.
        mbps = {n + server: netlab.bits_per_second(rate) / 1e6 for server, rate in scenario.slow_servers}
        slow = {host: {"BYTEPS_NIC_MBPS": int(rate)} for host, rate in mbps.items()}
        if slow:
            env["BYTEPS_NIC_MBPS"] = int(netlab.bits_per_second(scenario.rate) / 1e6)
        for rank, host in enumerate(server_hosts):
            server = [*on_server, self._build / "bin" / "byteps_server"]
            self.others.append(lab.start(host, server, {**env, **slow.get(host, {}), "DMLC_RANK": rank}))
        for rank in range(scenario.workers):
            argv = [*on_worker, *self._worker_command(scenario, rank)]
            self.workers.append(lab.start(scenario.host_of(rank), argv, {**env, **place_of(scenario, rank)}))

    def servers(self):
        return self.others[1:]

    def _worker_command(self, scenario, rank):
        place = [rank, scenario.workers, "-", "-", "-"]  # the environment says more
        if scenario.program == "train":
            layers = "-".join(map(str, scenarios.MLP))
            return [sys.executable, BENCH / "train_worker.py", "byteps", *place, scenario.operations, layers]
        if scenario.program == "step":
            python = MXNET_PYTHON if self.kind == "mxnet" else sys.executable
            return [python, BENCH / "step_worker.py", self.kind, *place, scenario.operations, scenario.model]
        if scenario.program == "python":
            return [sys.executable, BENCH / "python_worker.py", scenario.operations, scenario.size]
        if scenario.name.startswith("with-"):
            python = MXNET_PYTHON if scenario.program == "mxnet" else sys.executable
            return [python, BENCH / "framework_worker.py", scenario.program, *place, scenario.operations]
        what = ["--bytes", scenario.size, "--tensors", scenario.tensors]
        if scenario.model:
            path = OUTPUT / f"{scenario.model}.txt"
            models.write_list(scenario.model, path)
            what = ["--list", path]
        last = scenario.last_worker_options if rank == scenario.workers - 1 else ()
        command = [self._worker_build / "bin" / "push_pull_worker", *what, "--operations", scenario.operations]
        return [*command, *scenario.worker_options, *last]


class Client(BytePS):
    """Ours without Python."""

    def __init__(self, build, env, port):
        super().__init__("client", build, build, env, port)

    def _worker_command(self, scenario, rank):
        return super()._worker_command(dataclasses.replace(scenario, program="push_pull"), rank)


class Gloo(Group):
    """torch.distributed over gloo, on the workers' machines alone."""

    rounds = (*Group.rounds, "go clipped", "go scaled", "go accumulated", "go unused", "go ddp4", "go fsdp")
    rounds += ("go fp16", "go powersgd")  # by DDP's hooks

    def __init__(self, port):
        super().__init__("gloo")
        self._port = port

    def start(self, lab, scenario):
        port = self._port or free_port()
        for rank in range(scenario.workers):
            place = [rank, scenario.workers, lab.address(0), port, lab.interface()]
            if scenario.program == "train":
                layers = "-".join(map(str, scenarios.MLP))
                command = [BENCH / "train_worker.py", "gloo", *place, scenario.operations, layers]
            elif scenario.program == "step":
                command = [BENCH / "step_worker.py", "gloo", *place, scenario.operations, scenario.model]
            elif scenario.name.startswith("with-"):
                command = [BENCH / "framework_worker.py", "gloo", *place, scenario.operations]
            else:
                sizes = [f"{scenario.size // scenario.tensors}x{scenario.tensors}"]
                if scenario.model:
                    sizes = models.bucket_bytes(scenario.model)
                command = [BENCH / "gloo_worker.py", *place, scenario.operations, *sizes]
            argv = [*pinned(scenario)[1], sys.executable, *command]
            self.workers.append(lab.start(scenario.host_of(rank), argv, {"OMP_NUM_THREADS": 1}))


class Horovod(Group):
    """Horovod's DistributedOptimizer for torch over its gloo, on the workers' machines alone. Its torch is older than
    ours, so that training alone is measured for itself."""

    rounds = (*Group.rounds, "compute")

    def __init__(self, port):
        super().__init__("horovod")
        self._port = port

    def start(self, lab, scenario):
        port = self._port or free_port()
        for rank in range(scenario.workers):
            place = [rank, scenario.workers, lab.address(0), port, lab.interface()]
            command = ["framework_worker.py", "horovod", *place, scenario.operations]
            if scenario.program == "step":
                command = ["step_worker.py", "horovod", *place, scenario.operations, scenario.model]
            # Named, because it looks up its host's name.
            argv = [*pinned(scenario)[1], *NAMED, HOROVOD_PYTHON, BENCH / command[0], *command[1:]]
            self.workers.append(lab.start(rank, argv, {"OMP_NUM_THREADS": 1}))


class Sockets(Group):
    """Not a rival but a floor: the same bytes over the same connections by bare sockets, and one addition pass."""

    def __init__(self, build, port):
        super().__init__("sockets")
        self._program, self._port = build / "bin" / "socket_worker", port
        self._worker_count = 0

    def start(self, lab, scenario):
        n, k = scenario.workers, scenario.extra
        self._worker_count = n
        share = scenario.size // k
        addresses = [word for server in range(k) for word in (lab.address(n + server), self._port)]
        for rank in range(n):
            self.workers.append(lab.start(rank, [self._program, "worker", share, *addresses]))
        for server in range(k):
            self.workers.append(lab.start(n + server, [self._program, "server", self._port, n, share]))

    def turn(self, timeout_s, word="go"):
        """seconds: of both directions, one after the other."""
        out = {"seconds": 0.0, "worker_cpu_s": 0.0, "server_cpu_s": 0.0}
        for direction in ("push", "pull", "add"):
            for process in self.workers:
                process.input.write(direction.encode() + b"\n")
                process.input.flush()
            lines = [[float(text) for text in words] for words in self._lines(timeout_s)]
            starts, ends, _, cpu = zip(*lines)
            out["worker_cpu_s"] += sum(cpu[: self._worker_count])
            out["server_cpu_s"] += sum(cpu[self._worker_count :])
            out[f"{direction}_s"] = max(ends) - min(starts)
            out["seconds"] += out[f"{direction}_s"] if direction != "add" else 0
        out["from_last_start_s"] = out["first_s"] = out["seconds"]
        return out


class Copies(Group):
    """The floor of shared memory: two processes at once, each copies the bytes in and out."""

    def __init__(self, build):
        super().__init__("copies")
        self._program = build / "bin" / "socket_worker"

    def start(self, lab, scenario):
        copier = [self._program, "copier", scenario.size]
        self.workers = [lab.start(host, [*core, *copier]) for host, core in enumerate(pinned(scenario))]


class Rank:
    """One rank of an MPI job: its pipes, and nothing that could be asked of a process."""

    def __init__(self, folder, rank):
        self.argv, self.host, self.pid = [f"MPI rank {rank}"], rank, 0
        for name in ("in", "out"):
            os.mkfifo(f"{folder}/{name}.{rank}")
        # Opened for both ways, so that opening waits for nobody.
        self.input = open(f"{folder}/in.{rank}", "r+b", buffering=0)
        self.output = open(f"{folder}/out.{rank}", "r+b", buffering=0)

    def poll(self):
        return 0

    def errors(self, _bytes_max=0):
        return ""

    def cpu_seconds(self):
        return 0.0


class OpenMpi(Group):
    """MPI_Allreduce by Open MPI over TCP, on the workers' machines alone. ring: its ring algorithm instead of its own
    choice. mpirun runs on the first host; it reaches the others through a script that enters their namespaces."""

    def __init__(self, program, ring):
        super().__init__("mpi ring" if ring else "mpi")
        self._program, self._ring = program, ring
        self._folder = None

    def start(self, lab, scenario):
        self._folder = tempfile.TemporaryDirectory(prefix="byteps-bench-")
        folder = pathlib.Path(self._folder.name)
        agent = folder / "agent"
        self.workers = [Rank(folder, rank) for rank in range(scenario.workers)]
        enter = [
            f'{lab.address(host)}) exec ip netns exec {lab.namespace(host)} sh -c "$*" ;;'
            for host in range(scenario.workers)
        ]
        script = ["#!/bin/sh", "host=$1; shift", "case $host in", *enter, "esac", ""]
        agent.write_text("\n".join(script), encoding="ascii")
        agent.chmod(0o755)
        only = f"{netlab.SUBNET}.0/24"
        settings = {
            "plm_rsh_agent": agent,
            "btl": "tcp,self",
            "btl_tcp_if_include": only,
            "oob_tcp_if_include": only,
            "routed": "direct",
            "orte_tmpdir_base": folder,
            "hwloc_base_binding_policy": "none",
            "rmaps_base_oversubscribe": 1,
            "mpi_yield_when_idle": 1,
        }
        if self._ring:
            settings.update(coll_tuned_use_dynamic_rules=1, coll_tuned_allreduce_algorithm=4)
        words = [text for name, value in settings.items() for text in ("--mca", name, value)]
        hosts = ",".join(lab.address(host) for host in range(scenario.workers))
        mpirun = ["mpirun", "--allow-run-as-root", "-n", scenario.workers, "--host", hosts, "--map-by", "node", *words]
        command = [*mpirun, self._program, folder, scenario.operations, scenario.size]
        self.others = [lab.start(0, [*NAMED, *command])]

    def stop(self):
        for rank in self.workers:
            rank.input.write(b"end\n")
        until = time.monotonic() + 5
        while self.others[0].poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        for rank in self.workers:
            rank.input.close()
            rank.output.close()
        self._folder.cleanup()


def place_of(scenario, rank):
    """What tells a worker its place in the job, as bpslaunch says it."""
    host = scenario.host_of(rank)
    if not scenario.hosts:
        return {"DMLC_WORKER_ID": host}
    return {
        "DMLC_WORKER_ID": host,
        "BYTEPS_LOCAL_RANK": rank - sum(scenario.hosts[:host]),
        "BYTEPS_LOCAL_SIZE": scenario.hosts[host],
        "BYTEPS_GLOBAL_RANK": rank,
    }


def pinned(scenario):
    """Commands that put servers and workers on their cores; empty when the scenario leaves that open."""
    return [["taskset", "-c", core] for core in scenario.cores] or [[], []]


def mpi_program():
    """The compiled MPI worker, and why there is none."""
    if shutil.which("mpirun") is None or shutil.which("mpicc") is None:
        return None, "Open MPI is left out: no mpirun and mpicc here (Debian: openmpi-bin libopenmpi-dev)"
    program, source = OUTPUT / "mpi_worker", BENCH / "mpi_worker.c"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        command = ["mpicc", "-O3", "-std=c11", "-D_POSIX_C_SOURCE=200809L", "-o", str(program), str(source)]
        made = subprocess.run(command, capture_output=True, text=True)
        if made.returncode != 0:
            return None, f"Open MPI is left out: {' '.join(command)} failed: {made.stderr.strip()}"
    return program, ""


def why_no_horovod():
    """Empty where it is installed."""
    has = HOROVOD_PYTHON.exists() and any(HOROVOD_PYTHON.parent.parent.glob("lib/python3*/site-packages/horovod"))
    return "" if has else "Horovod is left out: it is not in .venv-horovod (make setup-horovod)"


def why_no_framework(name):
    """Empty where it is installed."""
    has = MXNET_PYTHON.exists() if name == "mxnet" else importlib.util.find_spec(name)
    return "" if has else f"{name} is left out: it is not installed (make setup)"


def rivals(scenario, build, port, env=None):
    """The rivals of a scenario that can run here, and a line for each that cannot. `env`: of those that are ours."""
    found, refused = [], []
    for name in scenario.rivals:
        if name == "gloo":
            found.append(Gloo(port))
        elif name == "client":
            found.append(Client(build, env or {}, port))
        elif name == "copies":
            found.append(Copies(build))
        elif name == "sockets":
            found.append(Sockets(build, port + 1))
        elif name == "horovod":
            why = why_no_horovod()
            found += [] if why else [Horovod(port and port + 2)]
            refused += [why] if why else []
        else:
            program, why = mpi_program()
            if program is not None:
                found.append(OpenMpi(program, name == "mpi-ring"))
            elif why not in refused:
                refused.append(why)
    return found, refused
