"""A script for Horovod as it is: only the import is ours.

    bpslaunch --local --workers 2 -- python examples/torch/horovod_digits.py
    python examples/torch/horovod_digits.py

It trains a small network on scikit-learn's handwritten digits.
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split
from torch.utils.data.distributed import DistributedSampler

import byteps.torch as hvd

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--batch-size", type=int, default=32, help="per worker")
parser.add_argument("--base-lr", type=float, default=0.05)
parser.add_argument("--fp16-allreduce", action="store_true", help="gradients travel in 16 bits")
parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)
parser.add_argument("--batches-per-allreduce", type=int, default=1)
parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")


def make_loaders(batch_size):
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    parts = random_split(TensorDataset(images, torch.tensor(labels)), [1437, 360], torch.Generator().manual_seed(0))
    samplers = [DistributedSampler(part, num_replicas=hvd.size(), rank=hvd.rank()) for part in parts]
    loaders = [DataLoader(part, batch_size, sampler=sampler) for part, sampler in zip(parts, samplers)]
    return (*loaders, samplers[0])


def make_model():
    convolutions = [nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(64 * 9, 10))


def metric_average(value, name):
    return hvd.allreduce(torch.tensor(value), name=name).item()


def evaluate(model, loader, device):
    model.eval()
    loss, right, count = 0.0, 0, 0
    with torch.no_grad():
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            output = model(images)
            loss += F.cross_entropy(output, labels, reduction="sum").item()
            right += (output.argmax(1) == labels).sum().item()
            count += len(labels)
    return metric_average(loss / count, "avg_loss"), metric_average(right / count, "avg_accuracy")


def main():
    args = parser.parse_args()
    hvd.init()
    if args.device == "cuda":
        torch.cuda.set_device(hvd.local_rank())  # one process for each GPU
    torch.manual_seed(42 + hvd.rank())
    torch.set_num_threads(1)
    train_loader, test_loader, train_sampler = make_loaders(args.batch_size)

    model = make_model().to(args.device)
    lr = args.base_lr * hvd.size() * args.batches_per_allreduce
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        backward_passes_per_step=args.batches_per_allreduce,
        op=hvd.Average,
        gradient_predivide_factor=args.gradient_predivide_factor,
    )

    for epoch in range(args.epochs):
        model.train()
        train_sampler.set_epoch(epoch)
        for index, (images, labels) in enumerate(train_loader):
            if index % args.batches_per_allreduce == 0:
                optimizer.zero_grad()
            images, labels = images.to(args.device), labels.to(args.device)
            loss = F.cross_entropy(model(images), labels) / args.batches_per_allreduce
            loss.backward()
            if (index + 1) % args.batches_per_allreduce == 0 or index + 1 == len(train_loader):
                optimizer.step()
        loss, accuracy = evaluate(model, test_loader, args.device)
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: test loss {loss:.4f}, accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
