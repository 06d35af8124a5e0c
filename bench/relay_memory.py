"""What a relay takes of memory: workers on this machine, with servers beside them and without.

    .venv/bin/python bench/relay_memory.py                # 8 workers, 64 MiB in 16 tensors
    ... bench/relay_memory.py --workers 4 --tensors 1 --size 268435456

A row each for who sums, and for the order of the tensors: the same in all workers, or each begins with another. Rings
are the shared memory of a worker's process, half of each that it shares with another. Heap is what it has taken beside
its tensors at most, sampled every two milliseconds, the median and the largest of the workers. docs/local.md has the
formula.
"""

import argparse
import ctypes
import json
import mmap
import os
import pathlib
import statistics
import subprocess
import sys
import threading
import time

MIB = 1 << 20
ROUNDS = 3
SAMPLE_S = 0.002
MODES = {  # who sums: settings, servers
    "servers": ({"BYTEPS_LOCAL_REDUCE": "0"}, 2),
    "relays, then servers": ({"BYTEPS_FORCE_DISTRIBUTED": "1"}, 2),
    "relays alone": ({}, 0),
}


def held_bytes(file, field):
    """Of this process."""
    fields = dict(line.split(":", 1) for line in pathlib.Path("/proc/self", file).read_text().splitlines()[1:])
    return int(fields[field].split()[0]) << 10


def own_bytes():
    return held_bytes("status", "RssAnon")


class Peak:
    """The most that this process has held while it is entered."""

    def __enter__(self):
        self.bytes = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self):
        while not self._ends.wait(SAMPLE_S):
            self.bytes = max(self.bytes, own_bytes())

    def __exit__(self, *_):
        self._ends.set()
        self._thread.join()


def work(size, count, crossed):
    """A worker: ROUNDS exchanges of all tensors. Says what it held."""
    from byteps._core import abi
    from byteps._core.client import Job

    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    ctypes.memset(address, 1, size)  # floats near 0, in memory of its own
    job = Job.join()
    names = [f"t{i}" for i in range(count)]
    first = job.rank * count // job.size if crossed else 0
    each = size // count
    time.sleep(0.5)  # all have joined
    before = own_bytes()
    with Peak() as peak:
        for _ in range(ROUNDS):
            handles = []
            for i in range(count):
                place = (first + i) % count
                at = address + place * each
                handles.append(job.push_pull(names[place], abi.FLOAT32, at, at, each // 4, abi.SUM))
            for handle in handles:
                job.wait(handle)
        time.sleep(10 * SAMPLE_S)
    said = {"heap": peak.bytes - before, "rings": held_bytes("smaps_rollup", "Pss_Shmem")}
    os.write(1, (json.dumps(said) + "\n").encode())  # in one piece: all write to one pipe
    job.leave()


def measure(options, mode, crossed):
    settings, servers = MODES[mode]
    command = [sys.executable, "-m", "byteps.launcher", "--local", "--workers", str(options.workers)]
    command += ["--servers", str(servers), "--", sys.executable, __file__, "--work"]
    command += ["--size", str(options.size), "--tensors", str(options.tensors), *(["--crossed"] if crossed else [])]
    out = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=300)
    said = [json.loads(line[line.index("{") :]) for line in out.stdout.splitlines() if "{" in line]
    if out.returncode != 0 or len(said) != options.workers:
        raise SystemExit(f"{' '.join(command)}: exit code {out.returncode}\n{out.stderr}")
    return {name: [each[name] / MIB for each in said] for name in ("rings", "heap")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--tensors", type=int, default=16)
    parser.add_argument("--size", type=int, default=64 * MIB, help="bytes of all tensors together")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--crossed", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        return work(options.size, options.tensors, options.crossed)
    print("| who sums | order of the tensors | rings, MiB | heap, MiB: median | most |")
    print("|---|---|---|---|---|", flush=True)
    for mode in MODES:
        for crossed in (False, True):
            of = measure(options, mode, crossed)
            order = "each begins with another" if crossed else "the same"
            figures = (statistics.median(of["rings"]), statistics.median(of["heap"]), max(of["heap"]))
            print("| " + " | ".join((mode, order, *(f"{figure:.1f}" for figure in figures))) + " |", flush=True)


if __name__ == "__main__":
    main()
