"""Who is measured: groups of processes that stand ready and, when it is their turn, do one round.

All groups of a scenario live at the same time and take turns (ours, gloo, ours, gloo, ...), so that whatever else the
machine does meets them alike. Who has no turn waits for a line of input and uses nothing.
"""

import os
import pathlib
import select
import shutil
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BENCH = ROOT / "bench"
START_S = 60  # for a group to get ready


class ContenderError(RuntimeError):
    pass


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Group:
    """Workers, and what stands behind them. A turn is a line to each worker, and a line from each."""

    def __init__(self, label, rival):
        self.label, self.rival = label, rival
        self.workers, self.others = [], []

    def start(self, lab, scenario):
        raise NotImplementedError

    def await_ready(self):
        for process, line in zip(self.workers, self._lines(START_S)):
            if line != ["ready"]:
                raise ContenderError(f"{self.label}: {process.argv} said {line} instead of ready")

    def turn(self, timeout_s):
        """One round: seconds from the first start to the last end, from the last start, and to the first layer's sum;
        CPU seconds of the workers within it and of the others around it."""
        before = [process.cpu_seconds() for process in self.others]
        for process in self.workers:
            process.input.write(b"go\n")
            process.input.flush()
        lines = [[float(word) for word in words] for words in self._lines(timeout_s)]
        after = [process.cpu_seconds() for process in self.others]
        starts, ends, firsts, cpu = zip(*lines)
        return {
            "seconds": max(ends) - min(starts),
            "from_last_start_s": max(ends) - max(starts),
            "first_s": max(firsts) - min(starts),
            "worker_cpu_s": sum(cpu),
            "server_cpu_s": sum(after) - sum(before),
        }

    def stop(self):
        """Workers leave at the end of their input; who is left is ended."""
        for process in self.workers:
            process.input.close()
        until = time.monotonic() + 5
        for process in self.workers + self.others:
            while process.poll() is None and time.monotonic() < until:
                time.sleep(0.01)

    def _lines(self, timeout_s):
        """A line of each worker, in words."""
        until = time.monotonic() + timeout_s
        lines = [b""] * len(self.workers)
        waiting = {process.output.fileno(): i for i, process in enumerate(self.workers)}
        while waiting:
            readable, _, _ = select.select(list(waiting), [], [], 1.0)
            for process in self.others:
                if process.poll() is not None:
                    raise ContenderError(self._why(process))
            if not readable and time.monotonic() > until:
                late = f"{self.label}: {len(waiting)} workers did not finish within {timeout_s:.0f} s"
                raise ContenderError("\n".join([late, *self._complaints()]))
            for fd in readable:
                data = os.read(fd, 4096)
                if not data:
                    raise ContenderError(self._why(self.workers[waiting[fd]]))
                lines[waiting[fd]] += data
                if data.endswith(b"\n"):
                    del waiting[fd]
        return [line.decode().split() for line in lines]

    def _why(self, process):
        time.sleep(0.5)  # the others may have more to say
        ended = f"{self.label}: {process.argv[-1]} ended with exit code {process.poll()}"
        return "\n".join([ended, *self._complaints()])

    def _complaints(self):
        """The end of what its processes wrote to standard error."""
        texts = [(process.argv, process.errors(500).strip()) for process in self.workers + self.others]
        return [f"{' '.join(argv)}\n    {text}" for argv, text in texts if text]


class BytePS(Group):
    """Scheduler, servers and workers of one build."""

    def __init__(self, label, build, worker_build, env, port):
        super().__init__(label, rival=False)
        self._build, self._worker_build, self._env, self._port = build, worker_build, env, port

    def start(self, lab, scenario):
        n, k = scenario.workers, scenario.extra
        server_hosts = [n + i for i in range(k)] + (list(range(n)) if scenario.colocated else [])
        self.scheduler_host = n + k
        env = {
            "DMLC_PS_ROOT_URI": lab.address(self.scheduler_host),
            "DMLC_PS_ROOT_PORT": self._port or free_port(),
            "DMLC_NUM_WORKER": n,
            "DMLC_NUM_SERVER": len(server_hosts),
            "BYTEPS_JOB_KEY": "the key of a benchmark",
            "BYTEPS_FORCE_DISTRIBUTED": 1,
            "LD_LIBRARY_PATH": self._build / "lib",
            **dict(scenario.env),
            **self._env,
        }
        self.others.append(lab.start(self.scheduler_host, [self._build / "bin" / "byteps_scheduler"], env))
        on_server, on_worker = [["taskset", "-c", core] for core in scenario.cores] or [[], []]
        for rank, host in enumerate(server_hosts):
            server = [*on_server, self._build / "bin" / "byteps_server"]
            self.others.append(lab.start(host, server, {**env, "DMLC_RANK": rank}))
        for rank in range(n):
            argv = [*on_worker, *self.worker_command(scenario, rank)]
            self.workers.append(lab.start(rank, argv, {**env, "DMLC_WORKER_ID": rank}))

    def worker_command(self, scenario, rank):
        options = [*scenario.worker_options, *(scenario.last_worker_options if rank == scenario.workers - 1 else ())]
        size = ["--bytes", scenario.size, "--tensors", scenario.tensors]
        command = [self._worker_build / "bin" / "push_pull_worker", *size, "--operations", scenario.operations]
        return [*command, *options]


class Gloo(Group):
    """torch.distributed over gloo, on the workers' machines alone."""

    def __init__(self, port):
        super().__init__("gloo", rival=True)
        self._port = port

    def start(self, lab, scenario):
        sizes = [scenario.size // scenario.tensors] * scenario.tensors
        _, on_worker = [["taskset", "-c", core] for core in scenario.cores] or [[], []]
        for rank in range(scenario.workers):
            place = [rank, scenario.workers, lab.address(0), self._port or free_port(), lab.interface()]
            command = [sys.executable, BENCH / "gloo_worker.py", *place, scenario.operations, *sizes]
            self.workers.append(lab.start(rank, [*on_worker, *command], {"OMP_NUM_THREADS": 1}))


def rivals(scenario, port):
    """The rivals of a scenario that can run here, and a line for each that cannot."""
    found, refused = [], []
    for name in scenario.rivals:
        if name == "gloo":
            found.append(Gloo(port))
        elif name == "mpi":
            refused.append("Open MPI is left out: not yet measured here")
    return found, refused
