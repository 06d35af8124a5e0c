"""One folder for what the flight recorders of a job's processes leave, with what bpslaunch itself saw; and the first
cause, said at the end when the job has failed (docs/flight.md).

With BYTEPS_FLIGHT_DIR the user has chosen the folder, and keeps it. Otherwise it is one of this job below the default
folder; it goes when the job ends well, and the oldest ones go when there are many. On other hosts the agent has such a
folder too: its files are fetched when the job fails, and stay there as well, for the errors of that host name them.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import socket
import stat
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from byteps.launcher.link import Link, ask_once
from byteps.launcher.plan import Plan
from byteps.recordings import absences, first_cause, flight

JOBS_KEPT = 16
PREFIX = "job-"
# Of what other hosts send: a file as it was (of a longer one, the head and the last events), all of a host as it
# travels (less than frames.BODY_BYTES_MAX), and how long bpslaunch waits for all hosts together.
FILE_BYTES_MAX = 16 << 20
HOST_BYTES_MAX = 12 << 20
HOST_UNPACKED_BYTES_MAX = 256 << 20  # on our disk
HOST_FILES_MAX = 1024
GATHER_WITHIN_S = 10.0

NAME = re.compile(re.escape(flight.PREFIX) + r"[\w.-]{1,200}\.jsonl", re.ASCII)


class Recordings:
    """Here and on each host. environ: of a process of the job."""

    def __init__(self, environ: Mapping[str, str]):
        self._began_s = time.time()
        self._began_ns = time.monotonic_ns()
        self._environ = environ
        self._chosen = environ.get("BYTEPS_FLIGHT_DIR", "")
        self.folder: Optional[Path] = Path(self._chosen) if self._chosen else None
        if not self._chosen and environ.get("BYTEPS_FLIGHT_EVENTS") != "0":
            self.folder = make_folder()

    def give(self, plan: Plan) -> None:
        """Tells the processes of this machine where to leave their recordings."""
        for process in plan.processes:
            if self.folder is not None and process.link is None:
                process.environ["BYTEPS_FLIGHT_DIR"] = str(self.folder)

    def close(
        self,
        result: int,
        story: List[Dict[str, Any]],
        is_interrupted: bool,
        say: Callable[[str], None],
        links: Sequence[Link] = (),
    ) -> None:
        """The job has ended with this exit code. story: what bpslaunch saw, as events of a recording. links: to the
        hosts that it ran on."""
        if self.folder is None:
            return
        if links and result != 0:
            self._gather(links, self.folder, say)
        for link in links if result == 0 else ():
            link.send({"forget": True})
        if result == 0 and absences.are_in(self.folder):
            return say(f"which sums those that were lost are not in: bps why {self.folder}")
        if result == 0:
            return self.forget()
        content = self._own(story)
        path = self.folder / f"{flight.PREFIX}launcher-x-{host_in_path()}-{os.getpid()}.jsonl"
        own = flight.parse(str(path), content)
        assert own is not None  # it is ours
        job = flight.job_of(own, flight.read([self.folder]))  # a folder that was chosen may have those of others
        if len(job) == 1:
            return self.forget()
        write(path, content)
        verdict = first_cause.analyse(job)
        if not is_interrupted and not verdict.is_known_to_launcher:  # who pressed Ctrl-C knows why
            for line in first_cause.summary(verdict):
                say(line)
        say(f"the last events of its processes: bps why {self.folder}")

    def _own(self, story: List[Dict[str, Any]]) -> bytes:
        """bpslaunch's own recording, of a job that began when this object was made."""
        now = time.monotonic_ns()
        header: Dict[str, Any] = {
            "byteps_flight": flight.FORM,
            "role": "launcher",
            "host": host_in_path(),
            "pid": os.getpid(),
            "wall_zero_ns": time.time_ns() - now,
            "started_ns": self._began_ns,
            "written_ns": now,
        }
        uri, port, key_file = map(self._environ.get, ("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "BYTEPS_JOB_KEY_FILE"))
        if uri:
            header["scheduler"] = f"{uri}:{port}"  # as its processes write it
        if key_file:
            header["settings"] = {"BYTEPS_JOB_KEY_FILE": key_file}
        return "".join(json.dumps(each) + "\n" for each in [header, *story]).encode()

    def _gather(self, links: Sequence[Link], folder: Path, say: Callable[[str], None]) -> None:
        """Fetches what the other hosts have."""
        there = [each for each in links if each.lost is None]
        answers = dict(zip(there, ask_once(there, GATHER_WITHIN_S, "recordings")))
        for each in links:
            left_out = None if answers.get(each) is None else unpack(answers[each], folder)
            if left_out is None:
                reason = "its connection is lost" if each.lost is not None else "no answer in time"
                say(f"the last events of the processes of {each.host.name} stay there: {reason}")
            elif left_out:
                say(f"the last events of {left_out} of the processes of {each.host.name} stay there: too many bytes")

    def pack(self) -> Dict[str, Any]:
        """What the processes of this host have left, for unpack() elsewhere: the scheduler's, then the small ones."""
        reply: Dict[str, Any] = {"files": {}, "left_out": 0}
        sizes: Dict[Path, int] = {}
        for path in self.folder.glob(flight.PREFIX + "*.jsonl") if self.folder else ():
            try:
                facts = path.stat()
            except OSError:
                continue
            if facts.st_mtime >= self._began_s - 1:  # a folder that was chosen may have those of other jobs
                sizes[path] = facts.st_size
        free = HOST_BYTES_MAX
        unpacked = 0
        for path in sorted(sizes, key=lambda path: ("-scheduler-" not in path.name, sizes[path], path.name)):
            unpacked += min(sizes[path], FILE_BYTES_MAX)
            if unpacked > HOST_UNPACKED_BYTES_MAX or len(reply["files"]) == HOST_FILES_MAX:
                reply["left_out"] += 1
                continue
            text = base64.b64encode(zlib.compress(head_and_tail(path, FILE_BYTES_MAX), 1)).decode()
            free -= len(text)
            if free < 0:
                reply["left_out"] += 1
            else:
                reply["files"][path.name] = text
        return reply

    def forget(self) -> None:
        """The job ended well: what its processes have left is of no use, but which sums a lost worker is not in."""
        if self.folder is not None and not self._chosen and not absences.are_in(self.folder):
            shutil.rmtree(self.folder, ignore_errors=True)

    def forget_if_empty(self) -> None:
        if self.folder is not None and not self._chosen:
            try:
                self.folder.rmdir()
            except OSError:
                pass


def head_and_tail(path: Path, bytes_max: int) -> bytes:
    """A file; of one that is too long its first line, and then whole lines up to its end. Empty: it cannot be read."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            if size <= bytes_max:
                return file.read(bytes_max)
            head = file.readline(flight.LINE_BYTES_MAX)
            file.seek(size - (bytes_max - len(head)))
            file.readline(flight.LINE_BYTES_MAX)  # the rest of one
            return head + file.read(bytes_max)
    except OSError:
        return b""


def unpack(reply: Any, folder: Path) -> Optional[int]:
    """Puts what pack() made into this folder; what is there already (a shared folder) stays as it is. Returns how many
    files were left out, being too many or too large; None when this is no such reply. Nothing in it is trusted."""
    if not isinstance(reply, dict) or not isinstance(reply.get("files"), dict):
        return None
    left_out = reply.get("left_out")
    left_out = left_out if isinstance(left_out, int) else 0
    free_files, free_bytes = HOST_FILES_MAX, HOST_UNPACKED_BYTES_MAX
    for name, text in reply["files"].items():
        if not NAME.fullmatch(name) or not isinstance(text, str):
            continue
        if free_files == 0 or free_bytes == 0:
            left_out += 1
            continue
        try:
            content = zlib.decompressobj().decompress(base64.b64decode(text), min(FILE_BYTES_MAX, free_bytes))
            free_files -= 1
            free_bytes -= len(content)
            folder.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with open(os.open(folder / name, flags, 0o600), "wb") as file:
                file.write(content)
        except (OSError, ValueError, zlib.error):
            continue
    return left_out


def make_folder() -> Optional[Path]:
    """A new folder of this job; None when the default one cannot be used: then each process says so itself."""
    default = flight.default_folder()
    try:
        for folder in (default.parent, default):
            os.makedirs(folder, mode=0o700, exist_ok=True)
            facts = os.lstat(folder)
            if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
                return None  # of another user, or others can write there
        jobs = sorted(default.glob(PREFIX + "*"), key=lambda path: path.lstat().st_mtime)
        for old in jobs[: max(0, len(jobs) + 1 - JOBS_KEPT)]:
            shutil.rmtree(old, ignore_errors=True)
        return Path(tempfile.mkdtemp(prefix=time.strftime(PREFIX + "%Y%m%d-%H%M%S-"), dir=default))
    except OSError:
        return None


def write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
        path.chmod(0o600)
    except OSError:
        pass  # what the others left is still there


def host_in_path() -> str:
    return socket.gethostname().replace("/", "_")
