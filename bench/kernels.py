"""The summation kernels beside plain loops and torch's add_, on one core and on two at once.

Part of bench/run.py. All take turns on the same memory, in another order each time, so that neither where it lies nor
what else the machine does meets one more than another.
"""

import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time

SIZES = {"512 KiB": 512 << 10, "8 MiB": 8 << 20, "512 MiB": 512 << 20}
# Bytes that an addition reads and writes per byte of the contribution: float32 reads two arrays and writes one; a
# float16 is 2 bytes that are added to 4 that are read and written.
TRAFFIC = {"float32": 3, "float16": 5, "bfloat16": 5, "int8": 3}
TARGETS = {"float32": 0.95, "float16": 0.85, "bfloat16": 0.85, "int8": 0.85}  # shares of the bytes bound
TORCH = "torch add_"
TURN_BYTES = 100e6  # of the contribution in one turn: about 2 ms, but one pass at least
TURNS = 31


class KernelsError(Exception):
    """What is to be measured did not run."""


class Worker:
    """kernels_worker.py on a core, ahead of other work where that is allowed."""

    def __init__(self, library, core):
        nice = ["nice", "-n", "-10"] if os.geteuid() == 0 else []
        script = pathlib.Path(__file__).with_name("kernels_worker.py")
        self.command = [*nice, "taskset", "-c", str(core), sys.executable, str(script), str(library)]
        self.command.append(str(max(SIZES.values())))
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def hear(self):
        line = self.process.stdout.readline()
        if not line:
            raise KernelsError(f"{' '.join(self.command)} ended with {self.process.wait()}")
        return json.loads(line)

    def tell(self, words):
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()

    def end(self):
        self.process.kill()
        self.process.communicate()


def summarized(rates):
    low, middle, high = statistics.quantiles(rates, n=4)
    return {"median": middle, "quartiles": [low, high]}


def _turns(workers, rows, size):
    """GB/s of the contribution by row, added up over the workers, which all do the same at the same time."""
    passes = max(1, int(TURN_BYTES / (size / 2)))
    rates, order = {row: [] for row in rows}, list(enumerate(rows))
    shuffle = random.Random(1).shuffle
    for _ in range(TURNS):
        shuffle(order)
        for number, row in order:
            for worker in workers:
                worker.tell(f"{number} {size} {passes}")
            rates[row].append(sum([worker.hear() for worker in workers]))
    return {row: summarized(values) for row, values in rates.items()}


def measure(build, quick):
    """The target of the kernels, and figures by size and threads, then by row. quick: what caches hold, one thread."""
    allowed = sorted(os.sched_getaffinity(0))
    workers = [Worker(build / "lib" / "libkernels_rows.so", core) for core in allowed[: 1 if quick else 2]]
    try:
        said = [worker.hear() for worker in workers][0]
        figures = {}
        for threads in range(1, len(workers) + 1):
            for label, size in SIZES.items():
                if not quick or size < 64 << 20:
                    name = f"{label}, {threads} thread{'s' if threads > 1 else ''}"
                    figures[name] = _turns(workers[:threads], said["rows"], size)
        return said["target"], figures
    finally:
        for worker in workers:
            worker.end()


def best_plain_loop(one):
    return max((row for row in one if row.startswith("plain loop")), key=lambda row: one[row]["median"])


def ratios(one):
    """By kernel: its memory traffic / that of the best plain loop, which is the bytes bound."""
    bound = one[best_plain_loop(one)]["median"] * TRAFFIC["float32"]
    return {kernel: one[kernel]["median"] * traffic / bound for kernel, traffic in TRAFFIC.items()}


def checks(one):
    """(what, value, target, whether it was reached) of each target, for one size and number of threads."""
    for kernel, ratio in ratios(one).items():
        yield f"{kernel} / bytes bound", ratio, TARGETS[kernel], ratio >= TARGETS[kernel]
    if TORCH in one:
        ratio = one["float32"]["median"] / one[TORCH]["median"]
        yield "float32 / torch", ratio, 1.0, ratio > 1.0


def cell(one, row):
    """What a table says of a row: median, spread (half of what lies between the quartiles), ratio."""
    low, high = one[row]["quartiles"]
    shares = ratios(one)
    return f"{one[row]['median']:.1f} ± {(high - low) / 2:.1f}" + (f" ({shares[row]:.2f})" if row in shares else "")


def verdict(one):
    missed = [f"{what} {value:.2f}, target {target}: NOT reached" for what, value, target, ok in checks(one) if not ok]
    return "; ".join(missed) or f"{len(list(checks(one)))} targets reached"


def table(result):
    """A section of docs/performance.md."""
    lines = [
        "## Summation kernels",
        "",
        "`accumulator += contribution`: GB/s of the contribution, median and half the distance of the quartiles, by",
        "the working set of each thread, which is both arrays. All take turns on the same memory; two threads are two",
        "processes on two cores at the same time, added up. In brackets: bytes read and written per second / those of",
        "the best plain loop `a[i] += b[i]` in float32, compiled for SSE, AVX2 and AVX-512. A float16 or bfloat16 is",
        "added to 4 bytes of float32, so its bound is 3/5 of the plain loop's figure. Targets: float32 at least 0.95,",
        "and ahead of torch's `add_`; the others at least 0.85.",
        "",
        f"Kernels for {result['target']}; load {result['load']:.1f}; commit {result['commit']}.",
        "",
    ]
    figures = result["figures"]
    kernels = [*TRAFFIC, *[row for row in (TORCH, "memcpy") if row in next(iter(figures.values()))]]
    lines.append("| | " + " | ".join([*kernels, "best plain loop", ""]) + " |")
    lines.append("|---" * (len(kernels) + 3) + "|")
    for label, one in figures.items():
        best = best_plain_loop(one)
        cells = [label, *[cell(one, row) for row in kernels]]
        cells += [f"{cell(one, best)}{best.removeprefix('plain loop')}", verdict(one)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def run(build, folder, commit, record, quick=False):
    """Measures, prints and keeps; 1 when it failed."""
    if not (build / "lib" / "libkernels_rows.so").exists():
        print("kernels: left out, no libkernels_rows.so in the build: build with BYTEPS_BENCH=ON")
        return 0
    load = os.getloadavg()[0]
    print(f"kernels: GB/s of the contribution (of the bytes bound)   (load {load:.1f})", flush=True)
    try:
        target, figures = measure(build, quick)
    except (KernelsError, BrokenPipeError) as error:
        print(f"  FAILED: {error}", file=sys.stderr)
        return 1
    for label, one in figures.items():
        print(f"  {label:18s} " + "  ".join(f"{row} {cell(one, row)}" for row in one))
        print(f"  {'':18s} {verdict(one)}", flush=True)
    result = {"bench": "kernels", "time": int(time.time()), "commit": commit, "load": round(load, 2)}
    result["cores"] = os.cpu_count()
    result.update(target=target, figures=figures)
    (folder / "kernels.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if record:
        with open(pathlib.Path(__file__).with_name("history.jsonl"), "a", encoding="utf-8") as history:
            history.write(json.dumps(result) + "\n")
    return 0
