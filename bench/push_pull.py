#!/usr/bin/env python3
"""push_pull on loopback: real scheduler, servers and workers, with torch's gloo beside it in the same run.

    .venv/bin/python bench/push_pull.py [--workers 2] [--servers 2] [--mib 64] [--rounds 7] [--tensors 1] [--record]

A round lasts from the first worker's start to the last worker's end. Loopback is not a network: these figures say
what the processors do, not what a cable would. Prints a table and, with --record, appends a line to
bench/history.jsonl.
"""

import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "release"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Processes:
    """Starts processes, reaps them with what they used, and ends those still running."""

    def __init__(self):
        self.running = []

    def start(self, argv, env=None):
        process = subprocess.Popen(
            [str(a) for a in argv], env={**os.environ, **(env or {})}, stdout=subprocess.PIPE, text=True
        )
        self.running.append(process)
        return process

    def finish(self, process):
        """Its output and its CPU seconds; raises when it failed."""
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.running.remove(process)
        if process.returncode != 0:
            raise RuntimeError(f"{process.args[0]} ended with {process.returncode}")
        return output, usage.ru_utime + usage.ru_stime

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.running:
            process.kill()
            process.wait()


def round_seconds(outputs):
    """From one 'start end' line per worker and round: seconds from the first start to the last end, by round."""
    rounds = zip(*[[tuple(map(float, line.split())) for line in output.splitlines()] for output in outputs])
    return [max(end for _, end in one) - min(start for start, _ in one) for one in rounds]


def run_byteps(args):
    env = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NUM_WORKER": str(args.workers),
        "DMLC_NUM_SERVER": str(args.servers),
        "BYTEPS_FORCE_DISTRIBUTED": "1",
        "BYTEPS_SERVER_ENGINE_THREAD": str(args.shards),
    }
    worker = [BUILD / "bin" / "push_pull_worker", args.mib << 20, args.rounds, args.tensors]
    with Processes() as processes:
        scheduler = processes.start([BUILD / "bin" / "byteps_scheduler"], env)
        servers = [processes.start([BUILD / "bin" / "byteps_server"], env) for _ in range(args.servers)]
        workers = [processes.start(worker, {**env, "DMLC_WORKER_ID": str(i)}) for i in range(args.workers)]
        outputs, worker_cpu = zip(*[processes.finish(p) for p in workers])
        server_cpu = sum(processes.finish(p)[1] for p in servers)
        processes.finish(scheduler)
    gib_in = args.workers * (args.rounds + 1) * args.mib / 1024  # what the servers received in all rounds
    return {
        "seconds": round_seconds(outputs),
        "server_cpu_s_per_gib": server_cpu / gib_in,
        "worker_cpu_s_per_gib": sum(worker_cpu) / gib_in,
    }


def run_gloo(args):
    script = ROOT / "bench" / "gloo_worker.py"
    port = free_port()
    with Processes() as processes:
        workers = [
            processes.start(
                [sys.executable, script, args.mib << 20, args.rounds, args.tensors, rank, args.workers, port]
            )
            for rank in range(args.workers)
        ]
        outputs = [processes.finish(p)[0] for p in workers]
    return {"seconds": round_seconds(outputs)}


def describe(name, result, mib):
    times = sorted(result["seconds"])
    median = statistics.median(times)
    extra = ""
    if "server_cpu_s_per_gib" in result:
        extra = (
            f"  CPU s/GiB: servers {result['server_cpu_s_per_gib']:.2f}, workers {result['worker_cpu_s_per_gib']:.2f}"
        )
    print(
        f"{name:8s} {1e3 * times[0]:9.2f} {1e3 * median:9.2f} {1e3 * times[-1]:9.2f} ms   "
        f"{mib / 1024 / median:6.2f} GiB/s{extra}"
    )
    return median


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--shards", type=int, default=1, help="event loops per server")
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tensors", type=int, default=1, help="the bytes are split over so many")
    parser.add_argument("--record", action="store_true", help="append to bench/history.jsonl")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    print(
        f"push_pull of {args.mib} MiB fp32 in {args.tensors} tensors, {args.workers} workers, "
        f"{args.servers} servers, loopback, "
        f"{args.rounds} rounds, load {load:.1f}"
    )
    print("              min    median       max           rate")
    results = {"byteps": run_byteps(args), "gloo": run_gloo(args)}
    medians = {name: describe(name, result, args.mib) for name, result in results.items()}
    print(f"gloo / byteps: {medians['gloo'] / medians['byteps']:.2f}")
    if args.record:
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, text=True, capture_output=True
        ).stdout.strip()
        line = {
            "bench": "push_pull",
            "time": int(time.time()),
            "commit": commit,
            "load": load,
            "cores": os.cpu_count(),
            **{k: getattr(args, k) for k in ("workers", "servers", "shards", "mib", "tensors")},
            **results,
        }
        with open(ROOT / "bench" / "history.jsonl", "a", encoding="utf-8") as history:
            history.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
