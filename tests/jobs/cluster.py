"""A whole job on loopback for tests: scheduler, servers, and workers that stay alive and run what they are told.

    with Cluster(workers=2) as cluster:
        results = cluster.run(function, 1, b=2)      # function(1, b=2) on every rank; results by rank
        failures = cluster.failures(function)        # what it raised on every rank, or None

    Cluster(workers=2, layer="byteps.mxnet", python=MXNET_PYTHON)   # else $BYTEPS_TEST_PYTHON or that of the tests

    cluster.resize(1)                                # the first of these processes goes on alone

    Cluster(hosts=(2, 1))                            # ranks 0 and 1 on one host, 2 on another (hosts.py)

    output = launch("examples/torch/train_digits.py", workers=3)   # a script in a job of bpslaunch

`layer` is the module that a worker imports, and whose init() it has called before its first function runs; `python` the
interpreter it runs in. Functions travel by reference to their module, which the worker's interpreter must be able to
import.

Workers of a layer in IMPORTED are forked where its framework has been imported once for all tests (zygote.py), unless
`forked` is False; those of launch() where `imported` names the framework. Tests of how processes start and end, and one
example of each framework, start Python itself.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

import cloudpickle
import place
import zygote
from job import Job, Process
from place import ROOT, wait_until
from zygote import fork_servers

RUN_TIMEOUT_S = 100.0
END_TIMEOUT_S = 60.0
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
JOB = {
    "BYTEPS_SERVER_ENGINE_THREAD": "2",
    "BYTEPS_START_TIMEOUT_S": "120",
    "BYTEPS_FAILURE_TIMEOUT_MS": "20000",  # so that a busy machine is not taken for a dead one
    "BYTEPS_LOG_LEVEL": "",  # the usual one
}


class RemoteError(Exception):
    """A function raised on a rank: `kind` is the exception's class name, `bases` those of its bases."""

    def __init__(self, rank: int, kind: str, bases: Sequence[str], text: str, trace: str) -> None:
        super().__init__(f"rank {rank}: {kind}: {text}\n{trace}")
        self.rank, self.kind, self.bases, self.text = rank, kind, list(bases), text


def clean_environment() -> Dict[str, str]:
    """The same as place.py's for programs with frameworks, whose threads would take each other's cores, and for what
    they import of the tests."""
    folders = [*place.PYTHON_FOLDERS, str(ROOT / "tests/python"), str(ROOT / "tests/jobs")]
    return {**place.clean_environment(), "PYTHONPATH": os.pathsep.join(folders), "OMP_NUM_THREADS": "1"}


def without_servers(function: Callable, *args: Any, **kwargs: Any) -> Any:
    """For run(): the function on a rank that sees no servers, as where the workers of a machine sum by themselves. What
    is exchanged may not depend on them."""
    from byteps._core import session

    job = session.job()
    server_count, job.server_count = job.server_count, 0
    try:
        return function(*args, **kwargs)
    finally:
        job.server_count = server_count


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
    full = {**clean_environment(), "BYTEPS_FORCE_DISTRIBUTED": "1", **(environ or {})}
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


class Worker(Process):
    """One worker process and the pipe to it."""

    def __init__(self, job: Cluster, rank: int, python: str, layer: str, init: bool, forked: bool) -> None:
        self.rank = rank
        self._imported = IMPORTED.get(layer) if forked else None
        self.pipe, theirs = Pipe()
        with theirs:
            self._descriptor = theirs.fileno()
            command = [python, "-m", "cluster_worker", str(self._descriptor), layer, str(int(init))]
            super().__init__(job, f"worker{rank}", command, job.worker_environ(rank))

    def begin(self, command: List[str], environ: Dict[str, str], **files: Any) -> Any:
        """A subprocess.Popen, or a zygote.Forked that is used alike."""
        python, module, name, _, *arguments = command
        home, network = self.job.place, self.job.network
        if self._imported is not None:
            full = {**home.environ, **environ}
            try:
                server = fork_servers.get(python, self._imported, full, turn=self.rank)
                output = [files["stdout"].fileno(), files["stderr"].fileno()]
                there = network.namespace(self.job.host("worker", self.rank)) if network else None
                child = server.start([module, name, "@0", *arguments], full, [self._descriptor], output, there)
                home.started.append(child)
                return child
            except zygote.Refused as why:
                print(f"cluster.py: {self.name} with {self._imported} is not forked: {why}", file=sys.stderr)
        command = [*self.job.there("worker", self.rank), *command]
        return home.start(command, environ, pass_fds=[self._descriptor], cwd=None, **files)

    def tell(self, function: Callable, args: tuple, kwargs: dict) -> None:
        self.pipe.send_bytes(cloudpickle.dumps((function, args, kwargs)))

    def receive(self, deadline_s: float) -> Any:
        """('ok', value) or ('error', RemoteError)."""
        while not self.pipe.poll(0.2):
            assert self.code is None or self.pipe.poll(0), self.job.story(f"{self.name} ended without an answer")
            assert time.monotonic() < deadline_s, self.job.story(f"{self.name} did not answer in time")
        try:
            tag, value = cloudpickle.loads(self.pipe.recv_bytes())
        except EOFError:
            wait_until(lambda: self.code is not None)
            raise AssertionError(self.job.story(f"{self.name} ended instead of an answer")) from None
        return (tag, value) if tag == "ok" else (tag, RemoteError(self.rank, *value))


class Cluster(Job):
    """A Job whose workers do as they are told; of those, the first `size` are in it."""

    def __init__(
        self,
        workers: int = 2,
        servers: int = 2,
        environ: Optional[Dict[str, str]] = None,
        init: bool = True,
        layer: str = "byteps.torch",
        python: Union[str, Path] = WORKER_PYTHON,
        forked: bool = True,
        hosts: Sequence[Union[int, Sequence[int]]] = (),
        beside: bool = False,
    ) -> None:
        folder = Path(tempfile.mkdtemp(prefix="cluster-"))
        super().__init__(folder, workers, servers, {**JOB, **(environ or {})}, hosts=hosts, beside=beside)
        if not self.network:
            self.environ.setdefault("DMLC_NODE_HOST", "127.0.0.1")
        self.place.environ.update(clean_environment())
        self._worker_options = (str(python), layer, init, forked)
        self.broken = False
        self._last: List[tuple] = []

    def __enter__(self) -> Cluster:
        try:
            self.start_services()
            for rank in range(self.size):
                self.workers.append(Worker(self, rank, *self._worker_options))
            self.gather(RUN_TIMEOUT_S)  # every worker says that it is up
        except BaseException:
            self.close()
            raise
        return self

    def resize(self, workers: int) -> None:
        """The first so many of the processes go on as the job, the others stay without one."""
        if workers != self.size:
            self.run(_suspend)
            self.size = workers
            self.run_each([(_resume, (workers, self.server_count, rank), {}) for rank in range(workers)])

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None and not self.broken:
            print(self.story(f"{kind.__name__} within the job"), file=sys.stderr)
        self.close() if kind is not None or self.broken else self.end()

    # ---- telling workers what to do

    def run(self, function: Callable, *args: Any, **kwargs: Any) -> List[Any]:
        """Results by rank; raises the first rank's RemoteError if there is one."""
        return self.run_each([(function, args, kwargs)] * self.size)

    def run_each(self, calls: Sequence[tuple], timeout_s: float = RUN_TIMEOUT_S) -> List[Any]:
        """The same with a (function, args, kwargs) for each rank."""
        for tag, value in self.outcomes(calls, timeout_s):
            if tag == "error":
                self.broken = True  # the ranks may be at different places now
                print(self.story(str(value)), file=sys.stderr)
                raise value
        return [value for _, value in self._last]

    def failures(self, function: Callable, *args: Any, **kwargs: Any) -> List[Optional[RemoteError]]:
        """By rank: what the function raised there, None where it returned."""
        outcomes = self.outcomes([(function, args, kwargs)] * self.size)
        return [value if tag == "error" else None for tag, value in outcomes]

    def outcomes(self, calls: Sequence[tuple], timeout_s: float = RUN_TIMEOUT_S) -> List[tuple]:
        assert not self.broken, "an earlier call has left the ranks at different places"
        for worker, call in zip(self.workers, calls):
            worker.tell(*call)
        return self.gather(timeout_s)

    def gather(self, timeout_s: float) -> List[tuple]:
        deadline_s = time.monotonic() + timeout_s
        try:
            self._last = [worker.receive(deadline_s) for worker in self.workers[: self.size]]
        except AssertionError:
            self.broken = True
            raise
        return self._last

    # ---- the end

    def dismiss(self) -> None:
        """Tells the workers to exit; end() waits for it."""
        for worker in self.workers:
            worker.pipe.close()

    def end(self) -> None:
        """Lets the workers exit in the ordinary way; servers and scheduler must then end by themselves, and well."""
        self.dismiss()
        try:
            self.join(timeout_s=END_TIMEOUT_S)
            bad = {process.name: process.code for process in self.processes if process.code != 0}
            assert not bad, self.story(f"exit codes: {bad}")
        finally:
            self.close()

    def story(self, text: str) -> str:
        """With where the workers are that still run."""
        for worker in self.workers:
            if worker.code is None:
                worker.send(signal.SIGUSR1)
        time.sleep(0.5)
        return super().story(text)

    def close(self) -> None:
        super().close()
        self.dismiss()
        shutil.rmtree(self.place.folder, ignore_errors=True)


class Clusters:
    """Three worker processes that are made into a job of one, two or three, as a test asks; `options` are Cluster's."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._cluster: Optional[Cluster] = None

    def get(self, size: int) -> Cluster:
        if self._cluster is not None and self._cluster.broken:
            self._cluster.close()
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
