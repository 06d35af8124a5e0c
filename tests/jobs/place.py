"""A place where a test runs commands: bpslaunch, scheduler, servers and workers on loopback, free ports only. A Job
(job.py) starts the processes of one job there; the workers of a Cluster (cluster.py) run what they are told.

Every process of a test carries a mark in its environment, by which the test finds what is left of it.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("BYTEPS_TEST_BUILD", "build/release")
MEMBER = str(Path(__file__).with_name("member.py"))  # a worker that does as its arguments say
MARK = "TEST_MARK"


def installed():
    """The folder of a byteps that is installed for this Python, where this checkout is not built; or None."""
    if (BUILD / "lib/libbyteps.so").is_file():
        return None
    found = [Path(entry) / "byteps" for entry in sys.path if Path(entry).resolve() != ROOT / "python"]
    return next((folder for folder in found if (folder / "lib/libbyteps.so").is_file()), None)


# What is tested: the checkout's byteps, or else an installed one.
INSTALLED = installed()
LIBRARY = (INSTALLED or BUILD) / "lib/libbyteps.so"
# For PYTHONPATH: where the tested byteps is. If it is installed, what this Python has there may be its torch's.
PYTHON_FOLDERS = [str(ROOT / "python")] if INSTALLED is None else [*filter(None, [os.environ.get("PYTHONPATH")])]


def clean_environment():
    """Ours without anything about a job or its devices, for the byteps that is tested."""
    names = [name for name in os.environ if not name.startswith(("BYTEPS_", "DMLC_", "NVIDIA_"))]
    # One may be gone meanwhile: pytest has a variable for each test, and other threads start jobs.
    environ = {name: value for name in names if (value := os.environ.get(name)) is not None}
    environ.update(BYTEPS_BIN=str(LIBRARY.parents[1] / "bin"), BYTEPS_LIBRARY=str(LIBRARY))
    environ["PYTHONPATH"] = os.pathsep.join(PYTHON_FOLDERS)
    return environ


class Place:
    """Runs commands with a clean environment and a temporary folder of their own, and knows what is left of them."""

    def __init__(self, folder: Path):
        self.root = ROOT
        self.mark = uuid.uuid4().hex
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.folder = folder
        self.environ = {**clean_environment(), MARK: self.mark, "TMPDIR": str(self.temporary)}
        self.started = []

    def start(self, command, environ=(), **options):
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        options.setdefault("cwd", self.folder)
        process = subprocess.Popen(
            [str(word) for word in command], env={**self.environ, **dict(environ)}, text=True, **options
        )
        self.started.append(process)
        return process

    def launch(self, *arguments, environ=(), **options):
        """bpslaunch, in the background."""
        return self.start([sys.executable, "-m", "byteps.launcher", *arguments], environ, **options)

    def run(self, *arguments, environ=(), timeout_s=60):
        """bpslaunch to its end: exit code, standard output, standard error."""
        process = self.launch(*arguments, environ=environ)
        out, err = process.communicate(timeout=timeout_s)
        return process.returncode, out, err

    def executable(self, role):
        return LIBRARY.parents[1] / f"bin/byteps_{role}"

    def living(self):
        """Command lines of the processes that carry our mark, by pid."""
        found = {}
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                environ = Path(f"/proc/{entry}/environ").read_bytes()
                state = Path(f"/proc/{entry}/stat").read_bytes().rpartition(b")")[2].split()[0]
                command = Path(f"/proc/{entry}/cmdline").read_bytes()
            except OSError:
                continue
            if f"{MARK}={self.mark}".encode() in environ and state not in (b"Z", b"X"):
                found[int(entry)] = command.replace(b"\0", b" ").decode(errors="replace")
        return found

    def left(self, wait_s=0.0):
        """What is left of the job after at most wait_s: processes, temporary files, shared memory. Not what flight
        recorders leave on purpose, see recordings()."""
        wait_until(lambda: not self.living(), wait_s)
        shared = [name for name in os.listdir("/dev/shm") if "byteps" in name.lower()]
        files = [name for name in os.listdir(self.temporary) if name != f"byteps-{os.geteuid()}"]
        return list(self.living().values()) + files + shared

    def recordings(self):
        """The files of flight recorders in the default folder."""
        return sorted(str(path) for path in Path(self.temporary).glob(f"byteps-{os.geteuid()}/flight/**/*.jsonl"))

    def close(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
        for pid in self.living():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for process in self.started:
            process.wait()


def key_files(place):
    """What BYTEPS_JOB_KEY_FILE is in the processes of a job."""
    found = set()
    for pid in place.living():
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        found |= {entry.partition(b"=")[2] for entry in environ if entry.startswith(b"BYTEPS_JOB_KEY_FILE=")}
    return found


def seen_by_others(place):
    """Command lines of all processes of the machine, and the environments of ours, in one piece."""
    texts = []
    for pid in [entry for entry in os.listdir("/proc") if entry.isdigit()]:
        try:
            texts.append(Path(f"/proc/{pid}/cmdline").read_bytes())
        except OSError:
            pass
    texts += [Path(f"/proc/{pid}/environ").read_bytes() for pid in place.living()]
    return b"\0".join(texts)


def wait_until(condition, timeout_s=20.0):
    """Whether the condition became true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def wait_for(what, condition, timeout_s=20.0):
    """The same, where it has to: an AssertionError names what was waited for."""
    assert wait_until(condition, timeout_s), f"waited {timeout_s:g} s in vain for {what}"


def hold_port():
    """A socket with a free loopback port, which others do not get until it is closed; the scheduler can bind it
    meanwhile (both use SO_REUSEADDR)."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


def free_port():
    """A port that is free now. Nobody is given it before who asks for it takes it, but for another who asks here: it is
    below those that the system gives to who wants any."""
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.sample(range(10_000, max(first_given, 20_000)), 1000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")
