"""Learns scikit-learn's handwritten digits with an exchange in each step, and with DiLoCo, in which ranks train by
themselves and come together now and then: what is learned, and what travels.

    BYTEPS_LOCAL_REDUCE=0 bpslaunch --local --workers 4 --servers 2 -- python examples/torch/diloco_digits.py

Workers of one machine would sum in memory first; BYTEPS_LOCAL_REDUCE=0 sends what those of several machines would send.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import byteps.torch as bps


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10))


def in_each_step(model, optimizer):
    return bps.DistributedOptimizer(optimizer, model.named_parameters(), name="steps")


def by_diloco(title, **options):
    def distribute(model, optimizer):
        return bps.DiLoCo(optimizer, model.named_parameters(), outer_momentum=0.5, name=title, **options)

    return distribute


WAYS = {
    "each step": in_each_step,
    "DiLoCo, 11 steps": by_diloco("eleven", sync_every=11),
    "DiLoCo, 11 steps, int4": by_diloco(
        "coded", sync_every=11, compression=bps.Compression.int4(error_feedback=True)
    ),
    "DiLoCo, 12 steps, 4 fragments, int4": by_diloco(
        "streamed",
        sync_every=12,
        fragments=4,
        fragment_sync_delay=2,
        fragment_update_alpha=0.5,
        compression=bps.Compression.int4(error_feedback=True),
    ),
}


def train(distribute, epochs, seed, data, batch=32):
    """The accuracy on the test images, and the MB that this worker has sent."""
    train_x, test_x, train_y, test_y = data
    model = make_model()
    optimizer = distribute(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    before = bps.metrics().pushed_wire_bytes
    for epoch in range(epochs):
        order = torch.randperm(len(train_x), generator=torch.Generator().manual_seed(1000 * seed + epoch))
        for chosen in order.split(batch * bps.size())[:-1]:
            mine = chosen[bps.rank() :: bps.size()]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(train_x[mine]), train_y[mine]).backward()
            optimizer.step()
    optimizer.synchronize()
    bps.broadcast_parameters(model.state_dict(), root_rank=0)  # between two exchanges each rank has its own
    sent = bps.metrics().pushed_wire_bytes - before
    accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
    return accuracy, sent / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0, help="of the order of the images")
    options = parser.parse_args()
    bps.init()
    torch.set_num_threads(1)
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    data = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
    if bps.rank() == 0:
        print(f"{'exchange':38}{'accuracy':>10}{'sent, MB':>10}")
    for title, distribute in WAYS.items():
        accuracy, sent = train(distribute, options.epochs, options.seed, data)
        if bps.rank() == 0:
            print(f"{title:38}{accuracy:10.1%}{sent:10.2f}", flush=True)
    bps.shutdown()


if __name__ == "__main__":
    main()
