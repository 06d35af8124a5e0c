"""One worker of a rival: torch.distributed all_reduce over gloo. Rounds and output as in push_pull_worker.c.

Usage: gloo_worker.py RANK SIZE ADDRESS PORT INTERFACE OPERATIONS BYTES[xCOUNT]...

BYTES: of each tensor, or COUNT of them alike. The gradients of a model come in buckets here, as
DistributedDataParallel makes them.
"""

import os
import sys
import time

import torch
import torch.distributed as dist


def main():
    rank, size = int(sys.argv[1]), int(sys.argv[2])
    os.environ.update(MASTER_ADDR=sys.argv[3], MASTER_PORT=sys.argv[4], GLOO_SOCKET_IFNAME=sys.argv[5])
    operations, sizes = int(sys.argv[6]), []
    for word in sys.argv[7:]:
        size_bytes, _, count = word.partition("x")
        sizes += [int(size_bytes)] * int(count or 1)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size)
    values = [[torch.empty(bytes_ // 4) for bytes_ in sizes] for _ in range(operations)]
    print("ready", flush=True)
    for _ in sys.stdin:
        for value in (tensor for one in values for tensor in one):
            value.fill_(rank + 1.0)
        dist.barrier()
        cpu, start = time.process_time(), time.monotonic()
        for one in values:
            for work in [dist.all_reduce(value, async_op=True) for value in one]:
                work.wait()
        end, used = time.monotonic(), time.process_time() - cpu
        dist.barrier()  # checking costs processor time, which others that are still measured need
        assert all((value == size * (size + 1) / 2).all() for one in values for value in one), "a wrong sum"
        print(f"{start:.9f} {end:.9f} {end:.9f} {used:.9f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
