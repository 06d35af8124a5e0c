"""Accelerate on BytePS: make the process group first, because Accelerate has a fixed list of backends. `pip install
accelerate`

    torchrun --nproc-per-node 2 examples/torch/accelerate_ddp.py
    bpslaunch --local --workers 2 -- python examples/torch/accelerate_ddp.py
"""

import argparse

import torch
import torch.distributed as dist
from accelerate import Accelerator
from backend_ddp_digits import load
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    dist.init_process_group("byteps")  # or byteps.torch.init_process_group(), under any launcher
    accelerator = Accelerator(cpu=args.device == "cpu")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    train, tests = load()
    loader = DataLoader(train, batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(20):
        for images, labels in loader:
            optimizer.zero_grad()
            accelerator.backward(F.cross_entropy(model(images), labels))
            optimizer.step()
    mine = tests[accelerator.process_index :: accelerator.num_processes]
    images, labels = (tensor.to(accelerator.device) for tensor in mine)
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).float()
    right = accelerator.gather(right)
    accelerator.print(f"test accuracy {right.mean():.3f} on '{dist.get_backend()}'")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
