#!/usr/bin/env python3
"""Whether copies from GPUs, the network, and copies to them overlap: 64 MiB of gradients on fake GPUs (tests/gpu) whose
copy engines have a rate, on hosts whose cards have one.

    sudo .venv/bin/python bench/device_overlap.py [--repeats 7] [--out-mbps 200] [--card 800mbit] [--in-mbps 200]

Prints the median, with quartiles, of the time of one exchange, its ratio to the slowest of the three alone, and what
they would take one after the other. The rates are the fake's: nothing here is about a real GPU, but for the ratio.
"""

import argparse
import os
import pathlib
import re
import statistics
import sys

import limits
import netlab

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "release"
MIB = 1 << 20
TENSORS, BYTES = 16, 4 * MIB
WORKERS = SERVERS = 2


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="exchanges that are timed (default 7)")
    parser.add_argument("--out-mbps", type=float, default=200, help="MB/s from a GPU (default 200)")
    parser.add_argument("--in-mbps", type=float, default=200, help="MB/s to a GPU (default 200)")
    parser.add_argument("--card", default="800mbit", help="rate of each host's card (default 800mbit)")
    parser.add_argument("--pinned-mb", type=int, default=64, help="BYTEPS_PINNED_MB (default 64)")
    return parser.parse_args()


def measure(args, lab):
    env = {
        "DMLC_PS_ROOT_URI": lab.address(WORKERS + SERVERS),
        "DMLC_PS_ROOT_PORT": 9100,
        "DMLC_NUM_WORKER": WORKERS,
        "DMLC_NUM_SERVER": SERVERS,
        "BYTEPS_JOB_KEY": "the key of a benchmark",
        "BYTEPS_CUDA_LIBRARY": BUILD / "lib/fake_gpu/libcuda.so.1",
        "BYTEPS_PINNED_MB": args.pinned_mb,
        "FAKE_GPU_OUT_MBPS": args.out_mbps,
        "FAKE_GPU_IN_MBPS": args.in_mbps,
    }
    lab.start(WORKERS + SERVERS, [BUILD / "bin/byteps_scheduler"], env)
    for rank in range(SERVERS):
        lab.start(WORKERS + rank, [BUILD / "bin/byteps_server"], {**env, "DMLC_RANK": rank})
    command = [BUILD / "bin/device_worker", TENSORS, BYTES, args.repeats + 2, 0, "timed"]
    place = {"DMLC_ROLE": "worker"}
    workers = [lab.start(rank, command, {**env, **place, "DMLC_WORKER_ID": rank}) for rank in range(WORKERS)]
    rounds = {}
    for worker in workers:
        for line in worker.output:
            found = re.match(rb"rank \d+ round (\d+) seconds ([\d.]+)", line)
            if found:
                number = int(found[1])
                rounds[number] = max(rounds.get(number, 0.0), float(found[2]))
        if worker._popen.wait(60) != 0:
            sys.exit(f"device_overlap: a worker has failed: {worker.errors()}")
    return [rounds[number] for number in sorted(rounds) if number >= 2]  # the credit has found its value


def main():
    args = arguments()
    size = TENSORS * BYTES
    card = netlab.bits_per_second(args.card) / 8 * limits.PAYLOAD
    stages = {
        "copy out": size / (args.out_mbps * 1e6),
        "network": limits.servers(WORKERS, SERVERS, False, size, card),
        "copy in": size / (args.in_mbps * 1e6),
    }
    load = os.getloadavg()[0]
    with netlab.Lab(WORKERS + SERVERS + 1, args.card, nice=-10) as lab:
        seconds = measure(args, lab)
    low, median, high = statistics.quantiles(seconds, n=4)
    slowest, whole = max(stages.values()), sum(stages.values())
    print(", ".join(f"{name} {1e3 * time:.0f} ms" for name, time in stages.items()), f"  (load {load:.1f})")
    print(f"64 MiB: {1e3 * median:.0f} ms ({1e3 * low:.0f} to {1e3 * high:.0f})")
    print(f"{median / slowest:.3f} x the slowest; one after the other {whole / slowest:.2f} x")


if __name__ == "__main__":
    main()
