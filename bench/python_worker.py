#!/usr/bin/env python3
"""One worker of the benchmark of small tensors through Python: push_pull of byteps.torch, one after the other, as users
write it. Rounds and output as in push_pull_worker.c.

Usage: python_worker.py OPERATIONS BYTES
"""

import sys
import time

import torch

import byteps.torch as bps


def main():
    operations, size_bytes = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    bps.init()
    values = [torch.empty(size_bytes // 4) for _ in range(operations)]
    print("ready", flush=True)
    for _ in sys.stdin:
        for value in values:
            value.fill_(bps.rank() + 1.0)
        before = bps.metrics()
        bps.barrier()
        cpu, start = time.process_time(), time.monotonic()
        for value in values:
            bps.push_pull_inplace(value, average=False, name="bench")
        end, used = time.monotonic(), time.process_time() - cpu
        bps.barrier()  # checking costs processor time, which others that are still measured need
        wanted = bps.size() * (bps.size() + 1) / 2
        if not all((value == wanted).all() for value in values):
            raise AssertionError("a wrong sum")
        after = bps.metrics()
        counted = [getattr(after, name) - getattr(before, name) for name in
                   ("pushed_bytes", "pushed_frames", "wanted_messages")]  # fmt: skip
        print(f"{start:.9f} {end:.9f} {end:.9f} {used:.9f}", *counted, flush=True)
    bps.shutdown()


if __name__ == "__main__":
    main()
