"""ResNet-50 on ImageNet, or on any pictures in one folder per class, with what a training of days needs: the rate warms
up and falls in steps, gradients of several batches travel together, rank 0 writes a checkpoint each epoch and a job
that is started again goes on with the next one, and metrics are those of all workers.

    bpslaunch --local --workers 2 -- \\
        python examples/torch/imagenet_resnet50.py --train-dir imagenet/train --val-dir imagenet/val

That needs torchvision. Without folders: a small ResNet on scikit-learn's handwritten digits.

    python examples/torch/imagenet_resnet50.py --epochs 8 --lr-decay-epochs 6
"""

import argparse
import os

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split
from torch.utils.data.distributed import DistributedSampler

import byteps.torch as bps

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--train-dir", help="a folder with one folder of pictures per class")
parser.add_argument("--val-dir", help="the same for validation, with the same classes")
parser.add_argument("--checkpoint-format", default="./checkpoint-{epoch}.pt", help="checkpoint files, by epoch")
parser.add_argument("--epochs", type=int, default=90)
parser.add_argument("--batch-size", type=int, default=32, help="of each worker")
parser.add_argument("--base-lr", type=float, default=0.0125, help="of one worker")
parser.add_argument("--warmup-epochs", type=float, default=5)
parser.add_argument("--lr-decay-epochs", type=int, nargs="*", default=[30, 60, 80], help="the rate falls to a tenth")
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--wd", type=float, default=5e-5, help="weight decay")
parser.add_argument("--batches-per-pushpull", type=int, default=1, help="batches of a worker between two steps")
parser.add_argument("--fp16-pushpull", action="store_true", help="gradients travel in 16 bits")
parser.add_argument("--num-workers", type=int, default=0, help="processes of each worker that read data")
parser.add_argument("--seed", type=int, default=42)
parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)])
        self.beside = nn.Identity() if stride == 1 else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x):
        y = self.norms[1](self.second(F.relu(self.norms[0](self.first(x)))))
        return F.relu(y + self.beside(x))


def load(args):
    """Training and validation data, and the model."""
    if args.train_dir:
        from torchvision import datasets, models, transforms

        end = [transforms.ToTensor(), transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
        varied = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), *end]
        plain = [transforms.Resize(256), transforms.CenterCrop(224), *end]
        train = datasets.ImageFolder(args.train_dir, transforms.Compose(varied))
        tested = datasets.ImageFolder(args.val_dir or args.train_dir, transforms.Compose(plain))
        return train, tested, models.resnet50(num_classes=len(train.classes))
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    parts = random_split(TensorDataset(images, torch.tensor(labels)), [1437, 360], torch.Generator().manual_seed(0))
    blocks = [Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2)]
    stem = [nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return (*parts, nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)))


def rate_factor(epoch, args):
    """What the rate of one worker is multiplied by; `epoch` has a fraction. "Accurate, Large Minibatch SGD", Goyal et
    al., arXiv 1706.02677, §2.2."""
    whole = bps.size() * args.batches_per_pushpull
    if epoch < args.warmup_epochs:
        return epoch * (whole - 1) / args.warmup_epochs + 1
    return whole * 0.1 ** sum(epoch >= decay for decay in args.lr_decay_epochs)


def train(args, epoch, model, optimizer, loader):
    model.train()
    loader.sampler.set_epoch(epoch)
    for index, (images, labels) in enumerate(loader):
        for group in optimizer.param_groups:
            group["lr"] = args.base_lr * rate_factor(epoch + index / len(loader), args)
        images, labels = images.to(args.device), labels.to(args.device)
        loss = F.cross_entropy(model(images), labels) / args.batches_per_pushpull
        loss.backward()
        if (index + 1) % args.batches_per_pushpull == 0 or index + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()


def evaluate(model, loader, device):
    """Loss and accuracy over what all workers have."""
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64)
    with torch.no_grad():
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            output = model(images)
            loss = F.cross_entropy(output, labels, reduction="sum")
            sums += torch.tensor([loss, (output.argmax(1) == labels).sum(), len(labels)])
    loss, right, count = bps.push_pull(sums, average=False, name="evaluation").tolist()
    return loss / count, right / count


def go_on(args, model, optimizer):
    """The newest epoch that rank 0 has a checkpoint of, or 0. All ranks get what it has."""
    existing = [e for e in range(1, args.epochs + 1) if os.path.exists(args.checkpoint_format.format(epoch=e))]
    begin = bps.broadcast_object(max(existing, default=0), root_rank=0)
    if begin and bps.rank() == 0:
        saved = torch.load(args.checkpoint_format.format(epoch=begin), map_location=args.device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
    return begin


def main():
    args = parser.parse_args()
    bps.init()
    if args.device == "cuda":
        torch.cuda.set_device(bps.local_rank())  # one process for each GPU
    torch.manual_seed(args.seed + bps.rank())  # other values on each rank, until the broadcast
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // bps.local_size()))
    *parts, model = load(args)
    model = model.to(args.device)
    train_loader, tested = (
        DataLoader(
            part,
            args.batch_size,
            sampler=DistributedSampler(part, bps.size(), bps.rank(), shuffle),
            num_workers=args.num_workers,
        )
        for part, shuffle in zip(parts, (True, False))
    )
    optimizer = torch.optim.SGD(model.parameters(), args.base_lr, args.momentum, weight_decay=args.wd)
    begin = go_on(args, model, optimizer)
    optimizer = bps.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=bps.Compression.fp16 if args.fp16_pushpull else bps.Compression.none,
        backward_passes_per_step=args.batches_per_pushpull,
    )
    for epoch in range(begin, args.epochs):
        train(args, epoch, model, optimizer, train_loader)
        loss, accuracy = evaluate(model, tested, args.device)
        if bps.rank() == bps.leader():
            print(f"epoch {epoch}: validation loss {loss:.4f}, accuracy {accuracy:.4f}", flush=True)
            saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(saved, args.checkpoint_format.format(epoch=epoch + 1))
    loss, accuracy = evaluate(model, tested, args.device)
    if bps.rank() == bps.leader():
        print(f"from epoch {begin} to {args.epochs}: loss={loss:.4f} accuracy={accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
