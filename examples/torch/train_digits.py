"""Trains a small convolutional network on scikit-learn's handwritten digits, and proves that it is the same training.

    make demo                                                                  # 2 workers, 2 servers, here
    bpslaunch --local --workers 2 -- python examples/torch/train_digits.py
    python examples/torch/train_digits.py                                      # a job of one
"""

import argparse
import copy
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F
from tqdm import tqdm

import byteps.torch as bps

PROOF_STEPS = 50


def load(dtype, device="cpu"):
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
    train_x, test_x = (torch.tensor(part, dtype=dtype).reshape(-1, 1, 8, 8) / 16 for part in parts[:2])
    return tuple(t.to(device) for t in (train_x, torch.tensor(parts[2]), test_x, torch.tensor(parts[3])))


def make_model(seed, dtype, device="cpu"):
    torch.manual_seed(seed)
    convolutions = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()]
    head = [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 16, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*convolutions, *head).to(device, dtype)


def make_distributed(model, learning_rate, momentum=0.9, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=momentum)
    optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **options)
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
    return optimizer


def train_steps(model, optimizer, inputs, labels, steps, batch, rank, size):
    """`steps` steps; of each global batch, this rank takes its share. Losses over that share."""
    losses = []
    for step in range(steps):
        chosen = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(step))[:batch][rank::size]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs[chosen]), labels[chosen])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train(model, optimizer, inputs, labels, epochs, seed=0):
    """Epochs in batches of 32 for each rank, in an order that follows from the seed. How many samples they were."""
    batch = 32 * bps.size()
    steps = len(inputs) // batch
    samples = 0
    for epoch in epochs:
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(1000 * seed + epoch))
        train_steps(model, optimizer, inputs[order], labels[order], steps, batch, bps.rank(), bps.size())
        samples += steps * batch
    return samples


def accuracy_of(model, inputs, labels):
    with torch.no_grad():
        return (model(inputs).argmax(1) == labels).double().mean().item()


def prove(device="cpu", steps=PROOF_STEPS, batch=48):
    """The same training, distributed and in one process: the largest relative difference, and both loss curves."""
    inputs, labels, _, _ = load(torch.float64, device)
    batch = batch // bps.size() * bps.size()  # equal shares, so that the mean of the shares' means is the batch's
    model = make_model(7, torch.float64, device)
    reference = copy.deepcopy(model)
    losses = train_steps(model, make_distributed(model, 0.05), inputs, labels, steps, batch, bps.rank(), bps.size())
    losses = bps.push_pull(torch.tensor(losses, dtype=torch.float64), name="losses").tolist()
    alone = torch.optim.SGD(reference.parameters(), lr=0.05, momentum=0.9)
    reference_losses = train_steps(reference, alone, inputs, labels, steps, batch, 0, 1) if bps.rank() == 0 else []
    pairs = [(a.detach(), b.detach()) for a, b in zip(model.parameters(), reference.parameters())]
    difference = max(((a - b).norm() / b.norm()).item() for a, b in pairs) if bps.rank() == 0 else 0.0
    return difference, losses, reference_losses


def plot(path, losses, reference_losses):
    from matplotlib import pyplot

    pyplot.switch_backend("Agg")
    pyplot.figure(figsize=(7, 4))
    pyplot.plot(reference_losses, linewidth=4, color="0.8", label="one process, whole batch")
    pyplot.plot(losses, "--", label=f"{bps.size()} workers, shares of the batch")
    pyplot.xlabel("step"), pyplot.ylabel("training loss"), pyplot.legend(), pyplot.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    pyplot.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--plot", type=Path, default=Path("build/demo/loss.png"))
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    bps.init()
    if args.device == "cuda":
        torch.cuda.set_device(bps.local_rank())  # one process for each GPU
    torch.set_num_threads(1)
    inputs, labels, test_inputs, test_labels = load(torch.float32, args.device)
    model = make_model(bps.rank(), torch.float32, args.device)  # other values on each rank, until the broadcast
    optimizer = make_distributed(model, learning_rate=0.05)
    epochs = tqdm(range(args.epochs), desc="epochs", ncols=80, mininterval=1.0, disable=bps.rank() != 0)
    began = time.perf_counter()
    samples_per_s = train(model, optimizer, inputs, labels, epochs) / (time.perf_counter() - began)
    accuracy = accuracy_of(model, test_inputs, test_labels)
    difference, losses, reference_losses = prove(args.device)
    if bps.rank() == bps.leader():
        plot(args.plot, losses, reference_losses)
        metrics = bps.metrics()
        pushed, pulled, local = (
            count / 2**20 for count in (metrics.pushed_bytes, metrics.pulled_bytes, metrics.local_pushed_bytes)
        )
        print(f"\n  test accuracy       {accuracy:.4f}  ({len(test_labels)} held-out images)")
        print(f"  samples/s           {samples_per_s:.0f}  ({bps.size()} workers)")
        print(f"  pushed, pulled      {pushed:.1f} MiB, {pulled:.1f} MiB per worker; {local:.1f} MiB locally")
        print(f"  the same training?  parameters differ by {difference:.1e} after {PROOF_STEPS} steps in float64")
        print(f"  loss curves         {args.plot}\n")
        values = f"max_relative_difference={difference:.3g} pushed_mib={pushed:.1f} pulled_mib={pulled:.1f}"
        result = f"DEMO accuracy={accuracy:.4f} samples_per_s={samples_per_s:.0f} {values}"
        args.plot.with_name("result.txt").write_text(result + "\n", encoding="utf-8")
        print(result, flush=True)


if __name__ == "__main__":
    main()
