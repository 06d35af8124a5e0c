"""Learns scikit-learn's handwritten digits with each kind of gradient compression: what travels, and what is learned.

    BYTEPS_LOCAL_REDUCE=0 bpslaunch --local --workers 2 --servers 2 -- python examples/torch/compressed_digits.py

Workers of one machine would sum in memory first; BYTEPS_LOCAL_REDUCE=0 sends what workers of two machines would send.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import byteps.torch as bps

MOMENTUM = {"lr": 0.1, "momentum": 0.9}
# What feeds back the most of a gradient goes with SGD without momentum (docs/compression.md, Recipes).
PLAIN = {"lr": 0.3}
KINDS = {
    "none": (bps.Compression.none, MOMENTUM),
    "fp16": (bps.Compression.fp16, MOMENTUM),
    "int8": (bps.Compression.int8, MOMENTUM),
    "int4": (bps.Compression.int4, MOMENTUM),
    "int4, error feedback": (bps.Compression.int4(error_feedback=True), MOMENTUM),
    "dithering, 4 levels": (bps.Compression.dithering(k=4), MOMENTUM),
    "none, no momentum": (bps.Compression.none, PLAIN),
    "onebit": (bps.Compression.onebit(error_feedback=True), PLAIN),
    "topk, 10 %": (bps.Compression.topk(k=0.1, error_feedback=True), PLAIN),
    "randomk, 10 %": (bps.Compression.randomk(k=0.1, error_feedback=True), PLAIN),
}


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10))


def train(title, compression, options, epochs, data, batch=32):
    """The accuracy on the test images, and the MB that this worker has sent."""
    train_x, test_x, train_y, test_y = data
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), **options)
    optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters(), compression, name=title)
    before = bps.metrics().pushed_wire_bytes
    for epoch in range(epochs):
        order = torch.randperm(len(train_x), generator=torch.Generator().manual_seed(epoch))
        for chosen in order.split(batch * bps.size())[:-1]:
            mine = chosen[bps.rank() :: bps.size()]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(train_x[mine]), train_y[mine]).backward()
            optimizer.step()
    sent = bps.metrics().pushed_wire_bytes - before
    accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
    return accuracy, sent / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    epochs = parser.parse_args().epochs
    bps.init()
    torch.set_num_threads(1)
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    data = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
    if bps.rank() == 0:
        print(f"{'compression':22}{'accuracy':>10}{'sent, MB':>10}")
    for title, (compression, options) in KINDS.items():
        accuracy, sent = train(title, compression, options, epochs, data)
        if bps.rank() == 0:
            print(f"{title:22}{accuracy:10.1%}{sent:10.2f}", flush=True)
    bps.shutdown()


if __name__ == "__main__":
    main()
