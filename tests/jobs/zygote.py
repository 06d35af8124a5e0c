"""Fork servers: a process imports a framework once, and each worker that needs it is forked from there.

    server = Servers().get(python, ["torch"], environ)      # for this interpreter, these imports, these variables
    process = server.start(["-m", "cluster_worker", "@0", ...], environ, [pipe])   # like subprocess.Popen, of Python
    server.command()                                        # put it for "python" into a command line of other programs

A server has one thread and has not loaded libbyteps, so nothing of what is tested exists before the fork; for
frameworks that start threads when they are imported it declines, and the caller starts Python as always. What is read
while a framework is imported is as in a real start too: a server serves workers whose environment equals its own but
for the variables that are read later (LATE). The worker then has the environment, descriptors, folder and cores of who
asks for it, its script is __main__, and it ends as Python ends. What forks share and real starts do not is the seed of
str's hash and where things lie in memory: COPIES servers of a kind take turns, so that the ranks of a job differ in
both.

A worker ends with the server, a server with the process that made it, and a worker with the connection of who asked
for it.

usage: python zygote.py run SOCKET COMMAND...     `python COMMAND...`, forked; for real if the server declines
       python zygote.py serve FD LIFE IMPORT...   FD: listening; LIFE: a pipe that ends with who made the server;
                                                  an IMPORT "-x" lets `import x` fail; "?x" may be missing
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

LATE_PREFIXES = ("DMLC_", "BYTEPS_", "FAKE_GPU_", "PYTEST_", "SLURM_", "HOROVOD_", "TORCHELASTIC_")
LATE = set("COLUMNS LINES LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT RANK WORLD_SIZE".split())
LATE |= set("GROUP_RANK GROUP_WORLD_SIZE ROLE_NAME ROLE_RANK ROLE_WORLD_SIZE TORCH_NCCL_ASYNC_ERROR_HANDLING".split())
LATE |= set("OLDPWD PWD SHLVL TEST_MARK TMPDIR _".split())
IDLE_SERVERS = 3  # kept without workers
PROMISED_S = 20.0  # a server that was asked for is not taken for idle before it may have its first worker
COPIES = {"torch": 2}  # by the first import; else 1: more costs more than it finds, see test_import_orders.py
FORWARDED = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]
PR_SET_PDEATHSIG = 1
CLONE_NEWNET = 0x40000000
LOOK_EVERY_S = 1.0
LENGTH = struct.Struct("!I")
STATUS = struct.Struct("!i")


def early(environ: Dict[str, str]) -> Dict[str, str]:
    """The variables that a framework may read while it is imported."""
    return {k: v for k, v in environ.items() if not k.startswith(LATE_PREFIXES) and k not in LATE}


class Refused(Exception):
    """This server cannot fork that worker: start it for real."""


class Forked:
    """A worker, with the interface of subprocess.Popen. Several threads may ask for its end."""

    def __init__(self, args: Sequence[str], connection: socket.socket, pid: int, pidfd: int) -> None:
        self.args, self.pid = args, pid
        self.returncode: Optional[int] = None
        self._connection, self._pidfd = connection, pidfd
        self._lock = threading.Lock()  # guards what follows its end

    def poll(self) -> Optional[int]:
        with self._lock:
            if self.returncode is None and _readable(self._connection, 0):
                self._end()
            return self.returncode

    def wait(self, timeout: Optional[float] = None) -> int:
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            left_s = LOOK_EVERY_S if deadline_s is None else min(LOOK_EVERY_S, deadline_s - time.monotonic())
            if left_s <= 0:
                import subprocess

                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            try:
                _readable(self._connection, left_s)
            except (OSError, ValueError):
                pass  # another thread has closed it, at the worker's end
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        with self._lock:
            if self.returncode is None:
                try:
                    signal.pidfd_send_signal(self._pidfd, number)
                except ProcessLookupError:
                    pass  # its end is not told yet

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def _end(self) -> None:
        data = self._connection.recv(STATUS.size)
        self.returncode = STATUS.unpack(data)[0] if data else -signal.SIGKILL  # it ended with its server
        self._connection.close()
        os.close(self._pidfd)


def _readable(connection: socket.socket, timeout_s: Optional[float]) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else max(0, timeout_s * 1000)))


def ask(
    path: str,
    args: Sequence[str],
    environ: Dict[str, str],
    descriptors: Sequence[int],
    namespace: Optional[str] = None,
) -> Forked:
    """A worker with these as its descriptors 0, 1, 2 and then "@0", "@1"... of `args`, in that network namespace."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
        request = {"args": list(args), "environ": environ, "folder": os.getcwd(), "namespace": namespace}
        request["cores"] = sorted(os.sched_getaffinity(0))
        encoded = json.dumps(request).encode()
        socket.send_fds(connection, [LENGTH.pack(len(encoded))], list(descriptors))
        connection.sendall(encoded)
        answer, fds, _, _ = socket.recv_fds(connection, LENGTH.size, 1)
    except OSError as error:
        connection.close()
        raise Refused(f"{type(error).__name__}: {error}") from None
    if not fds:
        connection.close()
        raise Refused("its imports failed, or the framework has threads, or the environment is another")
    return Forked(args, connection, LENGTH.unpack(answer)[0], fds[0])


# ---- who makes servers


class Server:
    """A fork server, which lives until end(); so do its workers at most."""

    def __init__(self, python: str, imports: Sequence[str], environ: Dict[str, str]) -> None:
        import subprocess
        import tempfile

        self.python = python
        self._lock = threading.Lock()
        self._workers: List[Forked] = []
        self.wanted_s = time.monotonic()
        self._folder = tempfile.TemporaryDirectory(prefix="zygote-")
        self.path = os.path.join(self._folder.name, "socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(self.path)
            listener.listen(64)
            theirs, self._life = os.pipe()
            command = [python, os.path.abspath(__file__), "serve", str(listener.fileno()), str(theirs), *imports]
            with open(theirs):
                self._process = subprocess.Popen(command, env=environ, pass_fds=[listener.fileno(), theirs])

    def start(
        self,
        args: Sequence[str],
        environ: Dict[str, str],
        descriptors: Sequence[int] = (),
        output: Sequence[int] = (1, 2),
        namespace: Optional[str] = None,
    ) -> Forked:
        """Raises Refused. `namespace`: the file of the network namespace that the worker is to be in, else this one."""
        worker = ask(self.path, args, environ, [0, *output, *descriptors], namespace)
        with self._lock:
            self._workers.append(worker)
        return worker

    def command(self) -> List[str]:
        """Does with the arguments after it what Python does."""
        return [self.python, "-I", "-S", os.path.abspath(__file__), "run", self.path]

    @property
    def is_idle(self) -> bool:
        """Nobody has asked for it for a while, and none of its workers is alive."""
        with self._lock:
            self._workers = [worker for worker in self._workers if worker.poll() is None]
            return not self._workers and time.monotonic() - self.wanted_s > PROMISED_S

    def end(self) -> None:
        os.close(self._life)
        self._process.wait()
        self._folder.cleanup()


class Servers:
    """The fork servers of this process, each made when it is first asked for. They are large: of those without workers
    only the last few stay. (What start() did not start, but command(), must have ended before the next get(), or a
    short time after it.) Several threads may ask at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._servers: Dict[tuple, Server] = {}  # the one asked for last is at the end

    def get(self, python: str, imports: Sequence[str], environ: Dict[str, str], turn: int = 0) -> Server:
        copy = turn % COPIES.get(imports[0] if imports else "", 1)
        key = (python, tuple(imports), tuple(sorted(early(environ).items())), copy)
        with self._lock:
            server = self._servers.pop(key, None) or Server(python, imports, early(environ))
            server.wanted_s = time.monotonic()
            idle = [each for each, other in self._servers.items() if other.is_idle]
            for each in idle[:-IDLE_SERVERS]:
                self._servers.pop(each).end()
            self._servers[key] = server
            return server

    def get_for_launcher(self, python: str, imports: Sequence[str], environ: Dict[str, str]) -> Server:
        """For workers of `bpslaunch --local` that has this environment."""
        return self.get(python, imports, {**environ, "PYTHONUNBUFFERED": "1"})

    def end(self) -> None:
        while self._servers:
            self._servers.popitem()[1].end()


fork_servers = Servers()  # this process's; tests/conftest.py ends them


# ---- the server


def import_all(names: Sequence[str]) -> None:
    import importlib

    for name in names:
        if name.startswith("-"):
            sys.modules[name[1:]] = None
            continue
        try:
            importlib.import_module(name.lstrip("?"))
        except ImportError:
            if not name.startswith("?"):
                raise


def end_with(parent: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it has ended in between


def serve(listener: socket.socket, life: int, mine: Dict[str, str]) -> Tuple[Dict[str, Any], List[int]]:
    """Forks workers whose early() is `mine`, until `life` ends. Returns only in a worker: the request and the
    descriptors."""
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the others of the terminal
    with open("/proc/self/maps") as maps:
        is_fit = len(os.listdir("/proc/self/task")) == 1 and "libbyteps" not in maps.read()
    workers: Dict[int, Tuple[int, socket.socket]] = {}  # pidfd -> (pid, connection)
    while True:
        watched = {connection.fileno(): pidfd for pidfd, (_, connection) in workers.items()}
        ready = select.select([life, listener, *workers, *watched], [], [])[0]
        if life in ready:
            os._exit(0)
        for fd in ready:
            if fd in workers:
                pid, connection = workers.pop(fd)
                tell_end(os.waitpid(pid, 0)[1], connection)
                os.close(fd)
            elif watched.get(fd) in workers:  # nobody waits for it any more
                signal.pidfd_send_signal(watched[fd], signal.SIGKILL)
                pid, connection = workers.pop(watched[fd])
                os.waitpid(pid, 0)
                connection.close()
                os.close(watched[fd])
        if listener not in ready:
            continue
        connection, _ = listener.accept()
        request, descriptors = receive(connection)
        if not request or not is_fit or early(request["environ"]) != mine:
            connection.close()
        else:
            sys.stdout.flush()
            server = os.getpid()
            pid = fork()
            if pid == 0:
                end_with(server)
                for each in [listener, connection, *(other for _, other in workers.values())]:
                    each.close()
                for fd in [life, *workers]:
                    os.close(fd)
                signal.signal(signal.SIGINT, interrupt)
                return request, descriptors
            pidfd = os.pidfd_open(pid)
            workers[pidfd] = (pid, connection)
            socket.send_fds(connection, [LENGTH.pack(pid)], [pidfd])
        for fd in descriptors:
            os.close(fd)


def fork() -> int:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of threads, which do not exist yet
        return os.fork()


def receive(connection: socket.socket) -> Tuple[Optional[Dict[str, Any]], List[int]]:
    head, descriptors, _, _ = socket.recv_fds(connection, LENGTH.size, 16)
    if len(head) < LENGTH.size:
        return None, descriptors
    left, parts = LENGTH.unpack(head)[0], []
    while left > 0:
        parts.append(connection.recv(left))
        if not parts[-1]:
            return None, descriptors
        left -= len(parts[-1])
    return json.loads(b"".join(parts)), descriptors


def tell_end(status: int, connection: socket.socket) -> None:
    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    try:
        connection.sendall(STATUS.pack(code))
    except OSError:
        pass
    connection.close()


# ---- the worker


def become(request: Dict[str, Any], descriptors: List[int], changed: Dict[str, str]) -> List[str]:
    """Makes this process what was asked for; imports have `changed` these variables. Returns its arguments."""
    for number, fd in enumerate(descriptors[:3]):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update({**request["environ"], **changed})
    os.chdir(request["folder"])
    if request["namespace"]:
        enter(request["namespace"])
    os.sched_setaffinity(0, request["cores"])
    if "tempfile" in sys.modules:
        sys.modules["tempfile"].tempdir = None  # $TMPDIR may be another
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    numbers = {f"@{index}": str(fd) for index, fd in enumerate(descriptors[3:])}
    return [numbers.get(word, word) for word in request["args"]]


def enter(namespace: str) -> None:
    import ctypes

    with open(namespace) as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns({namespace})")


def run_as_main(args: List[str]) -> None:
    """What Python does with these arguments."""
    import types

    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    if args[0] == "-c":
        sys.argv = ["-c", *args[2:]]
        sys.path.insert(0, "")
        code: Any = compile(args[1], "<string>", "exec")
    elif args[0] == "-m":
        import importlib.util

        sys.path.insert(0, os.getcwd())
        spec = importlib.util.find_spec(args[1])
        assert spec is not None and spec.loader is not None and spec.origin is not None, args[1]
        code = spec.loader.get_code(args[1])
        main.__spec__, main.__file__ = spec, spec.origin
        sys.argv = [spec.origin, *args[2:]]
    else:
        sys.argv = args
        sys.path.insert(0, os.path.dirname(os.path.abspath(args[0])))
        main.__file__ = args[0]
        with open(args[0], "rb") as file:
            code = compile(file.read(), args[0], "exec")
    exec(code, main.__dict__)


# ---- in place of Python in a command line


def run(path: str, args: List[str]) -> None:
    try:
        worker = ask(path, args, dict(os.environ), [0, 1, 2])
    except Refused:
        os.execv(sys.executable, [sys.executable, *args])
    for number in FORWARDED:
        signal.signal(number, lambda number, _: worker.send_signal(number))
    code = worker.wait()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(code)


def main() -> None:
    mode, *args = sys.argv[1:]
    if mode == "run":
        run(args[0], args[1:])
        return
    del sys.path[0]  # this file's folder
    listener = socket.socket(fileno=int(args[0]))
    life = int(args[1])
    for fd in (listener.fileno(), life):
        os.set_inheritable(fd, False)
    before = dict(os.environ)
    import_all(args[2:])
    gc.collect()
    gc.freeze()  # so that workers need not go through it all when they end
    changed = {name: value for name, value in os.environ.items() if before.get(name) != value}
    request, descriptors = serve(listener, life, early(before))
    run_as_main(become(request, descriptors, changed))


if __name__ == "__main__":
    main()
