"""A residual network trained in 16 bits with parameters in 32, by byteps.misc.imagenet18.

    bpslaunch --local --workers 2 -- python examples/torch/imagenet_half.py
    python examples/torch/imagenet_half.py --epochs 1

The images are made up, one pattern for each class and noise, so nothing is downloaded; put a DataLoader of ImageNet and
torchvision's resnet18 in their place.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

import byteps.torch as bps
from byteps.misc import imagenet18

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=16, help="of each worker")
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--loss-scale", type=float, default=1024.0)
parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")

CLASSES, IMAGES, PIXELS = 10, 256, 16


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return F.relu(x + self.second(F.relu(self.first(x))))


def make_model():
    return nn.Sequential(
        *[nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), Block(16), nn.MaxPool2d(4)],
        *[nn.Flatten(), nn.Linear(16 * (PIXELS // 4) ** 2, CLASSES)],
    )


def make_images():
    generator = torch.Generator().manual_seed(0)
    patterns = torch.rand(CLASSES, 3, PIXELS, PIXELS, generator=generator)
    labels = torch.arange(IMAGES) % CLASSES
    return patterns[labels] + 0.3 * torch.randn(IMAGES, 3, PIXELS, PIXELS, generator=generator), labels


def main():
    args = parser.parse_args()
    bps.init()
    if args.device == "cuda":
        torch.cuda.set_device(bps.local_rank())  # one process for each GPU
    torch.manual_seed(bps.rank())
    model = make_model().to(args.device).half()
    imagenet18.broadcast_parameters(model.state_dict(), root_rank=0)
    # BytePS: the optimizer updates copies in 32 bits.
    copies = [parameter.detach().float().requires_grad_() for parameter in model.parameters()]
    optimizer = imagenet18.DistributedOptimizer(
        torch.optim.SGD(copies, lr=args.lr, momentum=0.9),
        half=True,
        model=model,
        fp16_params=list(model.parameters()),
        fp32_params=copies,
        loss_scale=args.loss_scale,
    )
    images, labels = (tensor.to(args.device) for tensor in make_images())
    mine = slice(bps.rank(), None, bps.size())
    batches = list(zip(images[mine].half().split(args.batch_size), labels[mine].split(args.batch_size)))
    for _ in range(args.epochs):
        for batch, wanted in batches:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch).float(), wanted)
            (loss * args.loss_scale).backward()
            optimizer.step()
    with torch.no_grad():
        accuracy = (model(images.half()).argmax(1) == labels).float().mean().item()
    if bps.rank() == bps.leader():
        print(f"loss={loss.item():.3f} accuracy={accuracy:.3f}")


if __name__ == "__main__":
    main()
