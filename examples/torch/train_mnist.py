"""An MNIST-like script, written as one writes it for Horovod: only the import and the word push_pull are ours.

    bpslaunch --local --workers 2 -- python examples/torch/train_mnist.py
    python examples/torch/train_mnist.py

The data are scikit-learn's handwritten digits at MNIST's size, 28 x 28, so nothing is downloaded.
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
import torch.utils.data.distributed
from sklearn.datasets import load_digits

import byteps.torch as bps

parser = argparse.ArgumentParser(description="PyTorch MNIST-like example")
parser.add_argument("--batch-size", type=int, default=64, metavar="N", help="input batch size for training")
parser.add_argument("--test-batch-size", type=int, default=100, metavar="N", help="input batch size for testing")
parser.add_argument("--epochs", type=int, default=10, metavar="N", help="number of epochs to train")
parser.add_argument("--lr", type=float, default=0.1, metavar="LR", help="learning rate")
parser.add_argument("--momentum", type=float, default=0.5, metavar="M", help="SGD momentum")
parser.add_argument("--seed", type=int, default=42, metavar="S", help="random seed")
parser.add_argument("--log-interval", type=int, default=10, metavar="N", help="batches between two lines")
parser.add_argument("--fp16-pushpull", action="store_true", help="use fp16 compression during push_pull")
parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, kernel_size=5)
        self.conv2 = nn.Conv2d(10, 20, kernel_size=5)
        self.conv2_drop = nn.Dropout2d(0.1)
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2_drop(self.conv2(x)), 2))
        x = x.view(-1, 320)
        x = F.relu(self.fc1(x))
        x = F.dropout(x, 0.1, training=self.training)
        return F.log_softmax(self.fc2(x), dim=1)


def make_datasets():
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    images = F.interpolate(images, size=28, mode="bilinear", align_corners=False)
    dataset = torch.utils.data.TensorDataset(images, torch.tensor(labels))
    return torch.utils.data.random_split(dataset, [1437, 360], torch.Generator().manual_seed(0))


def train(args, epoch, model, optimizer, train_loader, train_sampler):
    model.train()
    # BytePS: set epoch to sampler for shuffling.
    train_sampler.set_epoch(epoch)
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(args.device), target.to(args.device)
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0 and bps.rank() == bps.leader():
            # BytePS: use train_sampler to determine the number of examples in this worker's partition.
            print(
                f"Train Epoch: {epoch} [{batch_idx * len(data)}/{len(train_sampler)} "
                f"({100.0 * batch_idx / len(train_loader):.0f}%)]\tLoss: {loss.item():.6f}"
            )


def metric_average(value, name):
    return bps.push_pull(torch.tensor(value), name=name).item()


def test(args, model, test_loader, test_sampler):
    model.eval()
    test_loss = 0.0
    test_accuracy = 0.0
    with torch.no_grad():
        for data, target in test_loader:
            data, target = data.to(args.device), target.to(args.device)
            output = model(data)
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            test_accuracy += output.argmax(1).eq(target).float().sum().item()

    # BytePS: use test_sampler to determine the number of examples in this worker's partition.
    test_loss /= len(test_sampler)
    test_accuracy /= len(test_sampler)

    # BytePS: average metric values across workers.
    test_loss = metric_average(test_loss, "avg_loss")
    test_accuracy = metric_average(test_accuracy, "avg_accuracy")
    if bps.rank() == bps.leader():
        print(f"\nTest set: Average loss: {test_loss:.4f}, Accuracy: {100 * test_accuracy:.2f}%\n", flush=True)


def main():
    args = parser.parse_args()

    # BytePS: initialize library.
    bps.init()
    # BytePS: pin a GPU to each process of a machine.
    if args.device == "cuda":
        torch.cuda.set_device(bps.local_rank())
    torch.manual_seed(args.seed)
    # BytePS: limit # of CPU threads to be used per worker.
    torch.set_num_threads(1)

    train_dataset, test_dataset = make_datasets()
    # BytePS: use DistributedSampler to partition the data.
    train_sampler = torch.utils.data.distributed.DistributedSampler(
        train_dataset, num_replicas=bps.size(), rank=bps.rank()
    )
    train_loader = torch.utils.data.DataLoader(train_dataset, batch_size=args.batch_size, sampler=train_sampler)
    test_sampler = torch.utils.data.distributed.DistributedSampler(
        test_dataset, num_replicas=bps.size(), rank=bps.rank()
    )
    test_loader = torch.utils.data.DataLoader(test_dataset, batch_size=args.test_batch_size, sampler=test_sampler)

    model = Net().to(args.device)
    # BytePS: scale learning rate by the number of workers.
    optimizer = optim.SGD(model.parameters(), lr=args.lr * bps.size(), momentum=args.momentum)

    # BytePS: broadcast parameters & optimizer state.
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)

    # BytePS: (optional) compression algorithm.
    compression = bps.Compression.fp16 if args.fp16_pushpull else bps.Compression.none

    # BytePS: wrap optimizer with DistributedOptimizer.
    optimizer = bps.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=compression
    )

    for epoch in range(1, args.epochs + 1):
        train(args, epoch, model, optimizer, train_loader, train_sampler)
        test(args, model, test_loader, test_sampler)


if __name__ == "__main__":
    main()
