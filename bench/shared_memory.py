#!/usr/bin/env python3
"""A worker and a server on one host: push_pull through shared memory, through TCP, and what memcpy bounds.

    .venv/bin/python bench/shared_memory.py [--mib 64] [--rounds 15] [--build build/release]

One worker, one server with one shard; a round begins when the worker pushes and ends when it has the sum. The two
ways take turns, so that other load falls on both. The bound: a round moves every byte through a ring twice, out and
back, and each of the two processes is one thread that copies it on both ways. So it takes at least twice as long as
two threads need that copy as many bytes at the same time, one into a block of a ring's size and one out of such a
block (the row "memcpy: in and out of a ring" of transport_bench).
"""

import argparse
import os
import pathlib
import socket
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Job:
    """A job of one worker, whose rounds are asked for one by one."""

    def __init__(self, build: pathlib.Path, mib: int, ipc: bool) -> None:
        environ = {
            **os.environ,
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(free_port()),
            "DMLC_NUM_WORKER": "1",
            "DMLC_NUM_SERVER": "1",
            "DMLC_WORKER_ID": "0",
            "BYTEPS_FORCE_DISTRIBUTED": "1",
            "BYTEPS_SERVER_ENGINE_THREAD": "1",
            "BYTEPS_ENABLE_IPC": "1" if ipc else "0",
        }
        executables = [build / f"bin/byteps_{role}" for role in ("scheduler", "server")]
        self.others = [subprocess.Popen([executable], env=environ) for executable in executables]
        self.worker = subprocess.Popen(
            [build / "bin/push_pull_worker", "--bytes", str(mib << 20)],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self.worker.stdout.readline().strip() != "ready":
            raise RuntimeError("the worker has not joined")

    def round(self) -> float:
        self.worker.stdin.write("go\n")
        self.worker.stdin.flush()
        begin, end = self.worker.stdout.readline().split()[:2]
        return float(end) - float(begin)

    def end(self) -> None:
        self.worker.stdin.close()
        for process in (self.worker, *self.others):
            if process.wait(timeout=30) != 0:
                raise RuntimeError(f"{process.args[0]} ended with {process.returncode}")


def memcpy_seconds(build: pathlib.Path, mib: int) -> float:
    """What the slower of two threads needs for so many bytes, at best."""
    command = [build / "bin/transport_bench", "1", "32", "1024", "memcpy"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rates = [float(line.split("GiB/s")[0].split()[-1]) for line in out.splitlines() if line.startswith("memcpy")]
    return mib / 1024 / statistics.median(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    args = parser.parse_args()
    jobs = {"TCP": Job(args.build, args.mib, ipc=False), "shared memory": Job(args.build, args.mib, ipc=True)}
    times: dict[str, list[float]] = {name: [] for name in (*jobs, "memcpy")}
    for job in jobs.values():
        job.round()  # the first one allocates
    for _ in range(args.rounds):
        for name, job in jobs.items():
            times[name].append(job.round())
        times["memcpy"].append(2 * memcpy_seconds(args.build, args.mib))
    for job in jobs.values():
        job.end()
    medians = {name: statistics.median(of) for name, of in times.items()}
    print(f"load {os.getloadavg()[0]:.1f}, {args.rounds} rounds of {args.mib} MiB, median (best)")
    for name, of in times.items():
        print(f"  {name:14} {1e3 * medians[name]:7.1f} ms ({1e3 * min(of):.1f})")
    print(f"  shared memory against TCP    {medians['TCP'] / medians['shared memory']:.2f}")
    print(f"  shared memory against memcpy {medians['memcpy'] / medians['shared memory']:.2f}")


if __name__ == "__main__":
    main()
