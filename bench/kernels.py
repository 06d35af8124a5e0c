"""The summation kernels beside plain loops and torch's add_: kernels_bench, on one core and on two at once.

Part of bench/run.py.
"""

import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

SIZES = {"512 KiB": 512 << 10, "8 MiB": 8 << 20, "512 MiB": 512 << 20}
TARGETS = ("avx512", "avx2", "sse4", "neon", "scalar")
# Memory traffic per byte of input: fp32 reads two arrays and writes one; fp16 adds 2 bytes into 4 that are read and
# written.
TRAFFIC = {"float32": 3, "int8": 3, "float16": 5, "bfloat16": 5}
PLAIN = "float32/add/plain_loop"
TORCH = """
import sys, time, torch
torch.set_num_threads(1)
count = int(sys.argv[1]) // 8
a, b = torch.ones(count), torch.ones(count)  # written: pages never touched would all be one page of zeros
a.add_(b)
passes = max(1, int(2e9) // (count * 4) // 20)
for _ in range(5):
    start = time.perf_counter()
    for _ in range(passes):
        a.add_(b)
    print(passes * count * 4 / (time.perf_counter() - start) / 1e9)
"""


class KernelsError(Exception):
    """What is to be measured did not run."""


def _on(core):
    """Put before a command: runs it on this core, ahead of other work where that is allowed."""
    return [*(["nice", "-n", "-10"] if os.geteuid() == 0 else []), "taskset", "-c", str(core)]


def _rows(output):
    """GB/s by row, from kernels_bench's JSON: the median of its repetitions."""
    found = {}
    for row in json.loads(output)["benchmarks"]:
        if row.get("aggregate_name") == "median":
            found[row["run_name"]] = row["bytes_per_second"] / 1e9
    return found


def _best_target(program):
    names = subprocess.run([program, "--benchmark_list_tests"], capture_output=True, text=True, check=True).stdout
    return next(target for target in TARGETS if f"float32/add/{target}/" in names)


def _run(program, pattern, sizes, cores):
    """kernels_bench on each of the cores at once; GB/s by row, added up."""
    options = [
        f"--benchmark_filter=^({pattern})/({'|'.join(map(str, sizes.values()))})$",
        "--benchmark_repetitions=5",
        "--benchmark_enable_random_interleaving=true",
        "--benchmark_min_time=0.03",
        "--benchmark_format=json",
    ]
    commands = [[*_on(core), str(program), *options] for core in cores]
    running = [subprocess.Popen(c, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) for c in commands]
    outputs = [process.communicate()[0] for process in running]
    if any(process.returncode != 0 for process in running):
        raise KernelsError(f"kernels_bench ended with {[process.returncode for process in running]}: {commands[0]}")
    rows = [_rows(output) for output in outputs]
    return {name: sum(one[name] for one in rows) for name in rows[0]}


def _torch(size, cores):
    commands = [[*_on(core), sys.executable, "-c", TORCH, str(size)] for core in cores]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    return sum(statistics.median(map(float, process.communicate()[0].split())) for process in running)


def measure(build, quick):
    """The target of the kernels, and GB/s by size and threads, then by kernel. quick: what caches hold, one thread."""
    program = build / "bin" / "kernels_bench"
    target = _best_target(program)
    wanted = ["copy/memcpy", PLAIN, *[f"{dtype}/add/{target}" for dtype in TRAFFIC]]
    sizes = {label: size for label, size in SIZES.items() if not quick or size < 64 << 20}
    allowed = sorted(os.sched_getaffinity(0))
    figures, cores = {}, [allowed[:1]] + ([allowed[:2]] if len(allowed) > 1 and not quick else [])
    for chosen in cores:
        rates = _run(program, "|".join(map(re.escape, wanted)), sizes, chosen)
        for label, size in sizes.items():
            one = {name.removesuffix(f"/{target}"): rates[f"{name}/{size}"] for name in wanted}
            one["torch add_"] = _torch(size, chosen)
            figures[f"{label}, {len(chosen)} thread{'s' if len(chosen) > 1 else ''}"] = one
    return target, figures


def ratios(one):
    """By kernel: how close to the memory traffic of the best plain loop it comes; and fp32 beside torch's add_."""
    bound = max(one[PLAIN], one["torch add_"]) * TRAFFIC["float32"]
    found = {dtype: one[f"{dtype}/add"] * TRAFFIC[dtype] / bound for dtype in TRAFFIC}
    found["beside torch"] = one["float32/add"] / one["torch add_"]
    return found


def run(build, folder, commit, record, quick=False):
    """Measures, prints and keeps; 1 when it failed."""
    if not (build / "bin" / "kernels_bench").exists():
        print("kernels: left out, no kernels_bench in the build (Debian: libbenchmark-dev)")
        return 0
    load = os.getloadavg()[0]
    print(f"kernels: GB/s of one array   (load {load:.1f})", flush=True)
    try:
        target, figures = measure(build, quick)
    except KernelsError as error:
        print(f"  FAILED: {error}", file=sys.stderr)
        return 1
    for label, one in figures.items():
        print(f"  {label:18s} " + "  ".join(f"{name} {rate:.1f}" for name, rate in one.items()))
        print(f"  {'':18s} " + "  ".join(f"{name} {ratio:.2f}" for name, ratio in ratios(one).items()), flush=True)
    result = {"bench": "kernels", "time": int(time.time()), "commit": commit, "load": round(load, 2)}
    result["cores"] = os.cpu_count()
    result.update(target=target, figures=figures)
    (folder / "kernels.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if record:
        with open(pathlib.Path(__file__).with_name("history.jsonl"), "a", encoding="utf-8") as history:
            history.write(json.dumps(result) + "\n")
    return 0

