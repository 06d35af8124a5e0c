"""One folder for what the flight recorders of a job's processes leave, with what bpslaunch itself saw; and the first
cause, said at the end when the job has failed (docs/flight.md).

With BYTEPS_FLIGHT_DIR the user has chosen the folder, and keeps it. Otherwise it is one of this job below the default
folder; it goes when the job ends well, and the oldest ones go when there are many.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional

from byteps import flight, why
from byteps.launcher.plan import Plan

JOBS_KEPT = 16
PREFIX = "job-"


class Recordings:
    def __init__(self, environ: Mapping[str, str]):
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
        self, result: int, story: List[Dict[str, Any]], is_interrupted: bool, say: Callable[[str], None]
    ) -> None:
        """The job has ended with this exit code. story: what bpslaunch saw, as events of a recording."""
        if self.folder is None:
            return
        recordings = flight.newest_job(flight.read([self.folder])) if result != 0 and self.folder.is_dir() else []
        if not recordings:
            return self._forget()
        write(self.folder, story)
        verdict = why.explain(self.folder)
        if not is_interrupted and not verdict.is_known_to_launcher:  # who pressed Ctrl-C knows why
            for line in why.summary(verdict):
                say(line)
        say(f"the last events of its processes: bps why {self.folder}")

    def _forget(self) -> None:
        if not self._chosen:
            shutil.rmtree(self.folder, ignore_errors=True)


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


def write(folder: Path, story: List[Dict[str, Any]]) -> None:
    """bpslaunch's own recording."""
    now = time.monotonic_ns()
    host = socket.gethostname().replace("/", "_")
    header = {
        "byteps_flight": 1,
        "role": "launcher",
        "host": host,
        "pid": os.getpid(),
        "wall_zero_ns": time.time_ns() - now,
        "started_ns": min([event["t"] for event in story] or [now]),
        "written_ns": now,
    }
    try:
        path = folder / f"{flight.PREFIX}launcher-x-{host}-{os.getpid()}.jsonl"
        path.write_text("".join(json.dumps(each) + "\n" for each in [header, *story]))
        path.chmod(0o600)
    except OSError:
        pass  # what the others left is still there
