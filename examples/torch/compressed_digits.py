"""The training of train_digits.py with each kind of gradient compression: what travels, and what is learned.

    BYTEPS_LOCAL_REDUCE=0 bpslaunch --local --workers 4 --servers 2 -- python examples/torch/compressed_digits.py

Workers of one machine would sum in memory first; BYTEPS_LOCAL_REDUCE=0 sends what workers on machines of their own
would send. BYTEPS_DETERMINISTIC=1 repeats it bit for bit. A seed is other weights at the beginning and another order of
the images; each kind begins with the same.
"""

import argparse
import statistics

import torch
from train_digits import accuracy_of, load, make_distributed, make_model, train

import byteps.torch as bps

COMPRESSION = bps.Compression
MOMENTUM = {"learning_rate": 0.05, "momentum": 0.9}
# What feeds back the most of a gradient goes with SGD without momentum (docs/compression.md, Recipes).
PLAIN = {"learning_rate": 0.3, "momentum": 0.0}
# Of each group, the first is what the others are compared with.
GROUPS = [
    {
        "none": (COMPRESSION.none, MOMENTUM),
        "fp16": (COMPRESSION.fp16, MOMENTUM),
        "bf16": (COMPRESSION.bf16, MOMENTUM),
        "int8": (COMPRESSION.int8, MOMENTUM),
        "int4": (COMPRESSION.int4, MOMENTUM),
        "int4, error feedback": (COMPRESSION.int4(error_feedback=True), MOMENTUM),
        "powersgd, rank 4": (COMPRESSION.powersgd(rank=4), MOMENTUM),
        "dithering, 4 levels": (COMPRESSION.dithering(k=4), MOMENTUM),
    },
    {
        "none, no momentum": (COMPRESSION.none, PLAIN),
        "onebit": (COMPRESSION.onebit(error_feedback=True), PLAIN),
        "topk, 10 %": (COMPRESSION.topk(k=0.1, error_feedback=True), PLAIN),
        "randomk, 10 %": (COMPRESSION.randomk(k=0.1, error_feedback=True), PLAIN),
    },
]


def learn(title, compression, options, epochs, seed, data):
    """The accuracy on the test images in percent, and the MB that this worker has sent."""
    inputs, labels, test_inputs, test_labels = data
    model = make_model(seed, torch.float32)
    optimizer = make_distributed(model, **options, compression=compression, name=f"{title}, seed {seed}")
    before = bps.metrics().pushed_wire_bytes
    train(model, optimizer, inputs, labels, range(epochs), seed)
    sent = bps.metrics().pushed_wire_bytes - before
    return 100 * accuracy_of(model, test_inputs, test_labels), sent / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20, help="of each training (default: 20)")
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each kind, seeds 0, 1, ... (default: 5)")
    args = parser.parse_args()
    bps.init()
    torch.set_num_threads(1)
    data = load(torch.float32)
    if bps.rank() == 0:
        print(f"{'compression':22}{'accuracy':>10}{'lowest':>9}{'highest':>9}{'against none':>14}{'sent, MB':>10}")
    for group in GROUPS:
        plain = None
        for title, (compression, options) in group.items():
            learned = [learn(title, compression, options, args.epochs, seed, data) for seed in range(args.seeds)]
            accuracies, sent = zip(*learned)
            mean = statistics.mean(accuracies)
            plain = mean if plain is None else plain
            spread = f"{min(accuracies):8.1f}%{max(accuracies):8.1f}%"
            if bps.rank() == 0:
                line = f"{title:22}{mean:9.2f}%{spread}{mean - plain:+14.2f}{statistics.mean(sent):10.2f}"
                print(line, flush=True)
    bps.shutdown()


if __name__ == "__main__":
    main()
