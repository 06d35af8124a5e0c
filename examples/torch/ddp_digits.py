"""DistributedDataParallel, with batch normalization over the batches of all workers, on handwritten digits.

    bpslaunch --local --workers 2 -- python examples/torch/ddp_digits.py
    python examples/torch/ddp_digits.py

At the end, in a job of several workers, every rank's model is compared with that of rank 0.
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import byteps.torch as bps
from byteps.torch.parallel import DistributedDataParallel

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=64, help="of all workers together")
parser.add_argument("--accumulate", type=int, default=1, help="backward passes per step")
parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")


def make_model():
    model = nn.Sequential(
        *[nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)],
        *[nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 16, 10)],
    )
    return bps.SyncBatchNorm.convert_sync_batchnorm(model)


def main():
    args = parser.parse_args()
    bps.init()
    if args.device == "cuda":
        torch.cuda.set_device(bps.local_rank())  # one process for each GPU
    torch.manual_seed(bps.rank())  # other values on each rank, until the wrapper is made
    torch.set_num_threads(1)
    images, labels = load_digits(return_X_y=True)
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8)[shuffled] / 16
    labels = torch.tensor(labels)[shuffled]
    images, labels = images.to(args.device), labels.to(args.device)

    model = DistributedDataParallel(make_model().to(args.device))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        order = torch.randperm(1437, generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(args.batch_size)[:-1]:
            parts = batch[bps.rank() :: bps.size()].chunk(args.accumulate)
            optimizer.zero_grad()
            for part in parts[:-1]:
                with model.no_sync():  # gradients stay here
                    (F.cross_entropy(model(images[part]), labels[part]) / len(parts)).backward()
            (F.cross_entropy(model(images[parts[-1]]), labels[parts[-1]]) / len(parts)).backward()
            optimizer.step()

    model.eval()
    with torch.no_grad():
        accuracy = (model(images[1437:]).argmax(1) == labels[1437:]).float().mean().item()
    for name, value in model.state_dict().items():
        if not torch.equal(bps.broadcast(value, root_rank=0), value):
            raise SystemExit(f"rank {bps.rank()}: {name} is not what rank 0 has")
    if bps.rank() == bps.leader():
        print(f"accuracy {accuracy:.4f} on 360 held-out images; all {bps.size()} ranks have the same model", flush=True)


if __name__ == "__main__":
    main()
