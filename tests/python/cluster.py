"""A whole job on loopback for tests: scheduler, servers, and workers that stay alive and run what they are told.

    with Cluster(workers=2) as cluster:
        results = cluster.run(function, 1, b=2)      # function(1, b=2) on every rank; results by rank
        failures = cluster.failures(function)        # what it raised on every rank, or None

    Cluster(workers=2, layer="byteps.mxnet", python=MXNET_PYTHON)   # else $BYTEPS_TEST_PYTHON or that of the tests

    cluster.resize(1)                                # the first of these processes goes on alone

    output = launch("examples/torch/train_digits.py", workers=3)   # a script in a job of bpslaunch

`layer` is the module that a worker imports, and whose init() it has called before its first function runs; `python` the
interpreter it runs in. Functions travel by reference to their module, which the worker's interpreter must be able to
import. All processes are ended by their own ids.

Workers of a layer in IMPORTED are forked where its framework has been imported once for all tests (zygote.py), unless
`forked` is False; those of launch() where `imported` names the framework. Tests of how processes start and end, and one
example of each framework, start Python itself.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

import cloudpickle
import zygote

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("BYTEPS_TEST_BUILD", "build/release")
RUN_TIMEOUT_S = 100.0
END_TIMEOUT_S = 30.0
WORKER_PYTHON = os.environ.get("BYTEPS_TEST_PYTHON", sys.executable)
MXNET_PYTHON = ROOT / ".venv-mxnet/bin/python"  # made by `make setup`
# The environment of workers with TensorFlow: several of them share few cores.
TENSORFLOW = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "",
    "TF_NUM_INTEROP_THREADS": "2",
    "TF_NUM_INTRAOP_THREADS": "1",
}
# Of workers with JAX, whose programs are compiled for one test and run a few times: compiling well is not worth it.
JAX = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
# By layer: what is imported before a worker is forked, in zygote.py's words; the rest is for what tests import.
TESTING = ["?numpy", "cloudpickle", "?pytest"]
IMPORTED = {
    "byteps._core.session": TESTING,
    "test_operations": ["?hypothesis", *TESTING],
    "byteps.torch": ["torch", *TESTING],
    "byteps.tensorflow": ["tensorflow", *TESTING],
    "byteps.tensorflow.keras": ["tensorflow", "tf_keras", *TESTING],
    "byteps.keras": ["keras", *TESTING],
    "keras_without_tensorflow": ["-tensorflow", "keras", *TESTING],
    "byteps.jax": ["jax", "jax.numpy", *TESTING],
    "byteps.mxnet": ["mxnet", *TESTING],
}
fork_servers = zygote.Servers()  # ended by conftest.py


class ClusterError(Exception):
    """A process did not do its part: it died, or did not answer in time."""


class RemoteError(Exception):
    """A function raised on a rank: `kind` is the exception's class name, `bases` those of its bases."""

    def __init__(self, rank: int, kind: str, bases: Sequence[str], text: str, trace: str) -> None:
        super().__init__(f"rank {rank}: {kind}: {text}\n{trace}")
        self.rank, self.kind, self.bases, self.text = rank, kind, list(bases), text


def clean_environment() -> Dict[str, str]:
    """This process's environment without anything about a job."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("DMLC_", "BYTEPS_"))}
    environ.update(BYTEPS_LIBRARY=str(BUILD / "lib/libbyteps.so"), BYTEPS_BIN=str(BUILD / "bin"))
    environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "python"), str(ROOT / "tests/python")])
    environ["OMP_NUM_THREADS"] = "1"
    return environ


def wait_until(condition: Callable[[], Any], timeout_s: float = 60.0) -> None:
    """AssertionError when it does not become true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{condition} is not true after {timeout_s:.0f} s"
        time.sleep(0.01)


def hold_port() -> socket.socket:
    """A free loopback port, kept from others until the scheduler has bound it (both use SO_REUSEADDR)."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


def launch(
    *command: Any,
    workers: int = 2,
    servers: int = 2,
    python: Union[str, Path] = sys.executable,
    environ: Optional[Dict[str, str]] = None,
    imported: Sequence[str] = (),
) -> str:
    """Runs `python command...` on each worker of a job of bpslaunch, as users do, in the repository's folder: what it
    wrote to standard output. AssertionError with the ends of its output when it fails. `imported`: forks the workers
    where these modules have been imported."""
    sizes = ["--workers", str(workers), "--servers", str(servers)]
    full = {**clean_environment(), **(environ or {})}
    runner = fork_servers.get_for_launcher(str(python), imported, full).command() if imported else [python]
    done = subprocess.run(
        [python, "-m", "byteps.launcher", "--local", *sizes, "--", *runner, *map(str, command)],
        cwd=ROOT,
        env=full,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


class Worker:
    """One worker process and the pipe to it."""

    def __init__(
        self, rank: int, environ: Dict[str, str], python: str, layer: str, init: bool, forked: bool
    ) -> None:
        self.rank = rank
        ours, theirs = Pipe()
        self.pipe: Connection = ours
        self.process = self._start(theirs.fileno(), environ, python, layer, init, forked)
        theirs.close()

    def _start(
        self, pipe: int, environ: Dict[str, str], python: str, layer: str, init: bool, forked: bool
    ) -> Union[subprocess.Popen, zygote.Forked]:
        def arguments(pipe: str) -> List[str]:
            return ["-m", "cluster_worker", pipe, layer, str(int(init))]

        if forked and layer in IMPORTED:
            try:
                server = fork_servers.get(python, IMPORTED[layer], environ, turn=self.rank)
                return server.start(arguments("@0"), environ, [pipe])
            except zygote.Refused as why:
                print(f"cluster.py: a worker of {layer} is not forked: {why}", file=sys.stderr)
        return subprocess.Popen([python, *arguments(str(pipe))], env=environ, pass_fds=[pipe])

    def send(self, function: Callable, args: tuple, kwargs: dict) -> None:
        self.pipe.send_bytes(cloudpickle.dumps((function, args, kwargs)))

    def receive(self, deadline: float) -> Any:
        """('ok', value) or ('error', RemoteError)."""
        while not self.pipe.poll(0.2):
            if self.process.poll() is not None and not self.pipe.poll(0):
                raise ClusterError(f"rank {self.rank} ended with exit code {self.process.returncode}")
            if time.monotonic() > deadline:
                raise ClusterError(f"rank {self.rank} did not answer in time")
        try:
            tag, value = cloudpickle.loads(self.pipe.recv_bytes())
        except EOFError:
            code = self.process.wait(END_TIMEOUT_S)
            raise ClusterError(f"rank {self.rank} ended with exit code {code}") from None
        return (tag, value) if tag == "ok" else (tag, RemoteError(self.rank, *value))


class Cluster:
    def __init__(
        self,
        workers: int = 2,
        servers: int = 2,
        environ: Optional[Dict[str, str]] = None,
        init: bool = True,
        layer: str = "byteps.torch",
        python: Union[str, Path] = WORKER_PYTHON,
        forked: bool = True,
    ) -> None:
        self.size = workers
        self.server_count = servers
        self._extra = dict(environ or {})
        self._worker_options = (str(python), layer, init, forked)
        self.workers: List[Worker] = []  # those of the job; after resize() the first of all_workers
        self.all_workers: List[Worker] = []
        self.services: List[subprocess.Popen] = []
        self.broken = False
        self._last: List[tuple] = []

    def __enter__(self) -> "Cluster":
        with hold_port() as held:
            port = held.getsockname()[1]
            base = clean_environment()
            base.update(
                DMLC_NUM_WORKER=str(self.size),
                DMLC_NUM_SERVER=str(self.server_count),
                DMLC_PS_ROOT_URI="127.0.0.1",
                DMLC_PS_ROOT_PORT=str(port),
                DMLC_NODE_HOST="127.0.0.1",
                BYTEPS_JOB_KEY=secrets.token_hex(16),
                BYTEPS_FORCE_DISTRIBUTED="1",
                BYTEPS_SERVER_ENGINE_THREAD="2",
                BYTEPS_START_TIMEOUT_S="120",
                BYTEPS_FAILURE_TIMEOUT_MS="20000",  # so that a busy machine is not taken for a dead one
            )
            base.update(self._extra)
            try:
                self._start(base)
            except BaseException:
                self.kill()
                raise
        return self

    def _start(self, base: Dict[str, str]) -> None:
        for role, count in (("scheduler", 1), ("server", self.server_count)):
            for _ in range(count):
                command = [str(BUILD / f"bin/byteps_{role}")]
                self.services.append(subprocess.Popen(command, env=dict(base, DMLC_ROLE=role)))
        for rank in range(self.size):
            own = dict(base, DMLC_ROLE="worker", DMLC_WORKER_ID=str(rank))
            self.all_workers.append(Worker(rank, own, *self._worker_options))
        self.workers = list(self.all_workers)
        self.gather(RUN_TIMEOUT_S)  # every worker says that it is up

    def resize(self, workers: int) -> None:
        """The first so many of the processes go on as the job, the others stay without one."""
        if workers != self.size:
            self.run(_suspend)
            self.size, self.workers = workers, self.all_workers[:workers]
            self.run_each([(_resume, (workers, self.server_count, rank), {}) for rank in range(workers)])

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None or self.broken:
            self.kill()
        else:
            self.end()

    # ---- telling workers what to do

    def run(self, function: Callable, *args: Any, **kwargs: Any) -> List[Any]:
        """Results by rank; raises the first rank's RemoteError if there is one."""
        return self.run_each([(function, args, kwargs)] * self.size)

    def run_each(self, calls: Sequence[tuple], timeout_s: float = RUN_TIMEOUT_S) -> List[Any]:
        """The same with a (function, args, kwargs) for each rank."""
        for tag, value in self.outcomes(calls, timeout_s):
            if tag == "error":
                self.broken = True  # the ranks may be at different places now
                raise value
        return [value for _, value in self._last]

    def failures(self, function: Callable, *args: Any, **kwargs: Any) -> List[Optional[RemoteError]]:
        """By rank: what the function raised there, None where it returned."""
        outcomes = self.outcomes([(function, args, kwargs)] * self.size)
        return [value if tag == "error" else None for tag, value in outcomes]

    def outcomes(self, calls: Sequence[tuple], timeout_s: float = RUN_TIMEOUT_S) -> List[tuple]:
        if self.broken:
            raise ClusterError("an earlier call has left the ranks at different places")
        for worker, call in zip(self.workers, calls):
            worker.send(*call)
        return self.gather(timeout_s)

    def gather(self, timeout_s: float) -> List[tuple]:
        deadline = time.monotonic() + timeout_s
        try:
            self._last = [worker.receive(deadline) for worker in self.workers]
        except ClusterError:
            self.broken = True
            self._show_stacks()
            raise
        return self._last

    # ---- the end

    def dismiss(self) -> None:
        """Tells the workers to exit; end() waits for it."""
        for worker in self.all_workers:
            worker.pipe.close()

    def end(self) -> None:
        """Lets the workers exit in the ordinary way; servers and scheduler must then end by themselves, and well."""
        self.dismiss()
        ended: Dict[str, Any] = {}
        everyone = [(f"worker {w.rank}", w.process) for w in self.all_workers]
        everyone += [(f"service {i}", process) for i, process in enumerate(self.services)]
        try:
            for title, process in everyone:
                ended[title] = process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._show_stacks()
            self.kill()
            raise ClusterError(f"{title} did not end; ended so far: {ended}") from None
        bad = {title: code for title, code in ended.items() if code != 0}
        if bad:
            raise ClusterError(f"exit codes: {bad}")

    def _show_stacks(self) -> None:
        """Where the workers are, on standard error."""
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.send_signal(signal.SIGUSR1)
        time.sleep(0.5)

    def kill(self) -> None:
        for process in [worker.process for worker in self.all_workers] + self.services:
            if process.poll() is None:
                process.kill()
        for process in [worker.process for worker in self.all_workers] + self.services:
            process.wait(END_TIMEOUT_S)
        for worker in self.all_workers:
            worker.pipe.close()


class Clusters:
    """Three worker processes that are made into a job of one, two or three, as a test asks; `options` are Cluster's."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._cluster: Optional[Cluster] = None

    def get(self, size: int) -> Cluster:
        if self._cluster is not None and self._cluster.broken:
            self._cluster.kill()
            self._cluster = None
        if self._cluster is None:
            self._cluster = Cluster(3, **self._options).__enter__()
        self._cluster.resize(size)
        return self._cluster

    def end(self) -> None:
        if self._cluster is not None:
            self._cluster.__exit__(None, None, None)


def _suspend() -> None:
    from byteps._core import session

    session.suspend()


def _resume(*numbers: int) -> None:
    from byteps._core import session

    session.resume(*numbers)
    if "mxnet" in sys.modules:
        # Who was outside has made fewer layers, which have numbers in their names: all begin again.
        names = sys.modules["mxnet"].name.NameManager
        names._current.value = names()
