"""DistributedDataParallel keeps its process group (gloo here); its gradients go over BytePS, in 16 bits.

    bpslaunch --local --workers 2 -- python examples/torch/ddp_comm_hook.py
"""

import argparse

import torch
import torch.distributed as dist
from backend_ddp_digits import load
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import byteps.torch as bps


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    bps.init()
    if args.device == "cuda":
        torch.cuda.set_device(bps.local_rank())  # one process for each GPU
    bps.init_process_group("gloo")  # torch.distributed.init_process_group, under any launcher
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(args.device)
    model = DistributedDataParallel(model)
    model.register_comm_hook(bps.DDPHookState(compression=bps.Compression.fp16), bps.ddp_comm_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    train, tests = load()
    images, labels = (tensor.to(args.device) for tensor in train[bps.rank() :: bps.size()])
    for step in range(400):
        chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(step))[: 64 // bps.size()]
        optimizer.zero_grad()
        F.cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()
    images, labels = (tensor.to(args.device) for tensor in tests[:])
    reached = (model(images).argmax(1) == labels).float().mean().item()
    if bps.rank() == bps.leader():
        metrics = bps.metrics()
        carried = max(metrics.pushed_bytes, metrics.local_pushed_bytes)  # to servers, or within the machine
        print(f"test accuracy {reached:.3f}; BytePS carried {carried / 1e6:.1f} MB", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
