"""One worker of the rival: torch.distributed all_reduce over gloo.

Usage: gloo_worker.py BYTES ROUNDS TENSORS RANK SIZE PORT
"""

import os
import sys
import time

import torch
import torch.distributed as dist


def main():
    total, rounds, tensors, rank, size, port = map(int, sys.argv[1:7])
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size)
    values = [torch.empty(total // tensors // 4) for _ in range(tensors)]
    for number in range(rounds + 1):
        for value in values:
            value.fill_(rank + 1.0)
        dist.barrier()
        start = time.monotonic()
        for work in [dist.all_reduce(value, async_op=True) for value in values]:
            work.wait()
        end = time.monotonic()
        assert all((value == size * (size + 1) / 2).all() for value in values)
        if number > 0:
            print(f"{start:.9f} {end:.9f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
