"""torch's own DistributedDataParallel on BytePS, with handwritten digits. Nothing but the backend's name is new.

    torchrun --nproc-per-node 2 examples/torch/backend_ddp_digits.py
    bpslaunch --local --workers 2 -- python examples/torch/backend_ddp_digits.py
"""

import argparse
import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def load():
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images, dtype=torch.float32) / 16
    train_x, test_x, train_y, test_y = train_test_split(images, labels, test_size=0.2, random_state=0)
    return TensorDataset(train_x, torch.tensor(train_y)), TensorDataset(test_x, torch.tensor(test_y))


def accuracy(model, tests, device="cpu"):
    """Each rank looks at its share; the counts are summed."""
    images, labels = (tensor.to(device) for tensor in tests[dist.get_rank() :: dist.get_world_size()])
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).sum()
    counts = torch.stack([right, torch.tensor(len(labels), device=device)])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    dist.init_process_group("byteps")
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # one process for each GPU
    torch.manual_seed(dist.get_rank())  # DDP gives everyone rank 0's parameters
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model = DistributedDataParallel(model.to(args.device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    train, tests = load()
    sampler = DistributedSampler(train, seed=1)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in DataLoader(train, batch_size=64 // dist.get_world_size(), sampler=sampler):
            images, labels = images.to(args.device), labels.to(args.device)
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
    reached = accuracy(model, tests, args.device)
    if dist.get_rank() == 0:
        print(f"test accuracy {reached:.3f} with {dist.get_world_size()} ranks on '{dist.get_backend()}'", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
