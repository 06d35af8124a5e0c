"""A worker that trains on the digits and says how: step after step when it ended and what its weights are then.

python digits_hash.py STEPS: one line "step N at T is H" for each, T of CLOCK_MONOTONIC and H the SHA-256 of the weights
(32 digits of it), and a last one "weights SHA-256". LATE_S: all but rank 0 join so much later. STEP_MS: a step computes
at least so long, as larger models do.
"""

import atexit
import hashlib
import os
import sys
import time

import torch
from sklearn.datasets import load_digits

import byteps.torch as bps

BATCH = 32


def shard(rank, size):
    """The images and labels of a rank."""
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images[rank::size], dtype=torch.float32) / 16, torch.tensor(labels[rank::size])


def make_model():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def compute_gradients(model, x, y, step):
    first = step * BATCH % (len(x) - BATCH)
    torch.nn.functional.cross_entropy(model(x[first : first + BATCH]), y[first : first + BATCH]).backward()


def hash_of(model):
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    return hashlib.sha256(weights).hexdigest()


def all_pushed_bytes():
    counted = bps.metrics()
    return counted.pushed_bytes + counted.local_pushed_bytes


def main() -> None:
    if os.environ.get("RANK", os.environ.get("DMLC_WORKER_ID")) != "0":  # all others join later
        time.sleep(float(os.environ.get("LATE_S", "0")))
    bps.init()
    print(f"pid {os.getpid()} of rank {bps.rank()}", flush=True)
    x, y = shard(bps.rank(), bps.size())
    model = make_model()
    optimizer = bps.DistributedOptimizer(make_optimizer(model), named_parameters=model.named_parameters())
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    pushed = 0
    for step in range(int(sys.argv[1])):
        began = time.monotonic()
        optimizer.zero_grad()
        compute_gradients(model, x, y, step)
        time.sleep(max(0.0, began + float(os.environ.get("STEP_MS", "2")) / 1000 - time.monotonic()))
        optimizer.step()
        print(f"step {step} at {time.monotonic():.6f} is {hash_of(model)[:32]}", flush=True)
        assert all_pushed_bytes() > pushed, "nothing went to the servers, or to relays"
        pushed = all_pushed_bytes()
    print("weights", hash_of(model), flush=True)
    bps.barrier()  # who leaves takes along what others may lack still
    atexit._run_exitfuncs()  # leaves for good; to take torch apart as well costs a second of processor time
    os._exit(0)


if __name__ == "__main__":
    main()
