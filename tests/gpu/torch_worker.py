"""A worker with the real torch, whose tensors are on the fake GPU: for jobs whose processes end badly. It runs with
fake_gpu.variables(everywhere=True).

    torch_worker.py STEPS [END]

Each step trains a small model and exchanges tensors beside it, and prints {"event": "step"}. END is `leave` (the
default, with shutdown()), or with a sum under way: `return` at the end of the script, `exit` (sys.exit(3)), `raise`;
`wait` waits for that sum.
"""

import json
import sys

import torch

import byteps.torch as bps

LARGE = 1 << 20  # elements


def tell(event, **more):
    print(json.dumps({"event": event, **more}), flush=True)


def step(model, optimizer, rank, number):
    optimizer.zero_grad()
    inputs = torch.full((4, 8), number + rank + 1.0, device="cuda")
    loss = model(inputs).square().mean()
    loss.backward()
    metric = bps.push_pull_async(loss.detach(), name="metric")
    gathered = bps.allgather_async(inputs[:1])
    optimizer.step()
    assert bps.synchronize(gathered).shape == (bps.size(), 8)
    return bps.synchronize(metric).item()


def main(steps, end="leave"):
    bps.init()
    torch.manual_seed(bps.rank())
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())
    bps.broadcast_parameters(model.state_dict())
    for number in range(steps):
        tell("step", loss=step(model, optimizer, bps.rank(), number))
    if end == "leave":
        bps.shutdown()
        return
    handle = bps.push_pull_async(torch.ones(LARGE, device="cuda"), name="under way")
    if end == "exit":
        sys.exit(3)
    if end == "raise":
        raise LookupError("as it was told")
    if end == "wait":
        bps.synchronize(handle)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
