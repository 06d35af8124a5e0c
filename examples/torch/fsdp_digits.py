"""torch's fully_shard (FSDP2) on BytePS: each rank keeps a part of the parameters, gradients and optimizer state. The
model is saved by torch.distributed.checkpoint, whole, and read back.

    torchrun --nproc-per-node 2 examples/torch/fsdp_digits.py
    bpslaunch --local --workers 2 -- python examples/torch/fsdp_digits.py
"""

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from backend_ddp_digits import accuracy, load
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F


def make_model(mesh, device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    dist.init_process_group("byteps")
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # one process for each GPU
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh(args.device, (size,))
    model = make_model(mesh, args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    train, tests = load()
    images, labels = (tensor.to(args.device) for tensor in train[rank::size])
    for step in range(args.steps):
        chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(step))[: 64 // size]
        optimizer.zero_grad()
        F.cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()
    folders = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folders)
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=folders[0])
    again = {"model": make_model(mesh, args.device).state_dict()}
    checkpoint.load(again, checkpoint_id=folders[0])
    model.load_state_dict(again["model"])
    reached = accuracy(model, tests, args.device)
    kept = sum(parameter.to_local().numel() for parameter in model.parameters())
    if rank == 0:
        print(f"test accuracy {reached:.3f}; rank 0 of {size} keeps {kept} numbers", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
