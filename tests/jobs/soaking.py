"""What both soaks (tools/soak, tools/soak_recovery) do: jobs of workers that check every sum (checked_worker.c), how
far they are, and how much memory their processes have over time.
"""

from __future__ import annotations

import os
import re
import statistics
from pathlib import Path
from typing import Dict, Iterable, List, Optional, Tuple

from job import Job, Process

ROLES = ("scheduler", "server", "worker")
GROWTH_MIB_MAX = 4.0  # a worker remembers its last 65536 names used once, which takes hours here and 4 MiB
WARM_UP = 0.2  # the part of the run whose memory does not count: buffers and pools fill
APART = {"start_new_session": True}  # Ctrl-C is for the soak
TOLD = re.compile(r"rank \d+ of (\d+) round (\d+)$")


class Interrupted(Exception):
    pass


def interrupt(number: int, frame: object) -> None:
    raise Interrupted


class CheckedJob(Job):
    """A job whose workers are the checked_worker of the tests."""

    def begin(self, pause_ms: int) -> None:
        self.start_services(**APART)
        for rank in range(self.size):
            self.start_checked(rank, 1, 0, "leave", pause_ms, **APART)

    def rounds(self) -> int:
        """How far the rank is that is least far; 0 before all are at work."""
        return rounds_of(self.workers)

    def by_role(self, role: str) -> List[Process]:
        return {"scheduler": [self.scheduler], "server": self.servers, "worker": self.workers}[role]

    def ended(self) -> List[Process]:
        return [process for process in self.processes if process.code is not None]


def rounds_of(workers: Iterable[Process]) -> int:
    return min((last_told(worker)[1] for worker in workers), default=0)


def last_told(worker: Process) -> Tuple[int, int]:
    """Ranks in the sums of the last round (a bit for each), and its number; 0 and 0 before the first."""
    path = worker.out_path
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - 200))
        lines = file.read().decode().split("\n")[:-1]
    found = [match for match in map(TOLD.search, lines) if match]
    return (int(found[-1][1]), int(found[-1][2])) if found else (0, 0)


def resident_mib(pid: int) -> Optional[float]:
    """What it has of its own, without the pages of files."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return None


def descriptor_count(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


class Memory:
    """Series of (seconds, MiB) by the name of the process, "server0"."""

    def __init__(self) -> None:
        self.series: Dict[str, List[Tuple[float, float]]] = {}
        self.counts_until_s = float("inf")  # what is later does not count as growth

    def sample(self, now_s: float, pids: Dict[str, int]) -> None:
        for name, pid in pids.items():
            mib = resident_mib(pid)
            if mib is not None:
                self.series.setdefault(name, []).append((now_s, mib))

    def growth_mib(self, name: str) -> float:
        """The last fifth of the run over the first fifth after the warm-up, by medians."""
        values = [mib for at_s, mib in self.series[name] if at_s <= self.counts_until_s]
        values = values[int(len(values) * WARM_UP) :]
        fifth = max(1, len(values) // 5)
        return statistics.median(values[-fifth:]) - statistics.median(values[:fifth])

    def grown(self) -> List[str]:
        """What has grown too much."""
        growths = {name: self.growth_mib(name) for name in self.series}
        return [f"{name} grew by {mib:.1f} MiB" for name, mib in growths.items() if mib > GROWTH_MIB_MAX]

    def latest(self) -> str:
        by_role: Dict[str, List[str]] = {role: [] for role in ROLES}
        for name, series in self.series.items():
            by_role[name.rstrip("0123456789")].append(f"{series[-1][1]:.1f}")
        return " ".join(f"{role} {'/'.join(values)}" for role, values in by_role.items())

    def summary(self) -> List[str]:
        return [
            f"  memory {name:10} {series[-1][1]:6.1f} MiB, growth {self.growth_mib(name):+.2f} MiB"
            for name, series in self.series.items()
        ]

    def write(self, path: Path) -> None:
        rows = [(at, name, mib) for name, series in self.series.items() for at, mib in series]
        lines = [f"{at:.1f},{name},{mib:.3f}" for at, name, mib in sorted(rows)]
        path.write_text("seconds,process,anonymous_mib\n" + "\n".join(lines) + "\n")

    def plot(self, path: Path, title: str) -> bool:
        try:
            import matplotlib
        except ImportError:
            return False
        matplotlib.use("Agg")
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(10, 5))
        for name, series in sorted(self.series.items()):
            axes.plot([at / 60 for at, _ in series], [mib for _, mib in series], label=name)
        axes.set(xlabel="minutes", ylabel="anonymous memory, MiB", title=title, ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend()
        figure.tight_layout()
        figure.savefig(path, dpi=110)
        return True


def is_listening(port: int) -> bool:
    wanted, listen = f"{port:04X}", "0A"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[1].endswith(f":{wanted}") and fields[3] == listen:
                return True
    return False
