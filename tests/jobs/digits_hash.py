"""A worker that trains on the digits and says how: step after step when it ended, at the end what its weights are.

python digits_hash.py STEPS: one line "step N at T", T of CLOCK_MONOTONIC, and a last one "weights SHA-256".
"""

import hashlib
import os
import sys
import time

import torch
from sklearn.datasets import load_digits

import byteps.torch as bps

BATCH = 32


def main() -> None:
    if os.environ.get("RANK") != "0":  # all others join later
        time.sleep(float(os.environ.get("LATE_S", "0")))
    bps.init()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images[bps.rank() :: bps.size()], dtype=torch.float32) / 16
    y = torch.tensor(labels[bps.rank() :: bps.size()])
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    pushed = 0
    for step in range(int(sys.argv[1])):
        first = step * BATCH % (len(x) - BATCH)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x[first : first + BATCH]), y[first : first + BATCH])
        loss.backward()
        optimizer.step()
        print(f"step {step} at {time.monotonic():.6f}", flush=True)
        assert bps.metrics().pushed_bytes > pushed, "nothing went to the servers"
        pushed = bps.metrics().pushed_bytes
        time.sleep(0.002)
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    print("weights", hashlib.sha256(weights).hexdigest(), flush=True)
    bps.barrier()  # who leaves takes along what others may lack still


if __name__ == "__main__":
    main()
