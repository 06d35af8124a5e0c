"""Learns scikit-learn's handwritten digits with an exchange in each step, and with DiLoCo, in which ranks train by
themselves and come together now and then: what is learned, and what travels.

    BYTEPS_LOCAL_REDUCE=0 bpslaunch --local --workers 4 --servers 2 -- python examples/jax/diloco_digits.py

Workers of one machine would sum in memory first; BYTEPS_LOCAL_REDUCE=0 sends what those of several machines would send.
"""

import argparse

import jax
import numpy as np
import optax
from train_digits import load, make_params, predict, share, train_step

import byteps.jax as bps

INT4 = bps.Compression.int4(error_feedback=True)
WAYS = {  # the optimizer, and what bps.diloco() is told
    "each step": (bps.distributed, None),
    "DiLoCo, 11 steps": (lambda optimizer: optimizer, {"sync_every": 11}),
    "DiLoCo, 11 steps, int4": (lambda optimizer: optimizer, {"sync_every": 11, "compression": INT4}),
}


def train(title, epochs, data):
    """The accuracy on the test images, and the MB that this worker has sent."""
    train_images, test_images, train_labels, test_labels = data
    distribute, options = WAYS[title]
    optimizer = distribute(optax.sgd(0.1, momentum=0.9))
    params = bps.broadcast_parameters(make_params(0), root_rank=0)
    state = jax.jit(optimizer.init)(params)
    outer = bps.diloco(outer_momentum=0.5, name=title, **options) if options else None
    common = outer.init(params) if outer else None
    before = bps.metrics().pushed_wire_bytes
    batch = 32 * bps.size()
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(len(train_images))
        for begin in range(0, len(order) - batch + 1, batch):
            mine = share(order[begin : begin + batch], bps.rank(), bps.size())
            params, state, _ = train_step(optimizer, params, state, train_images[mine], train_labels[mine])
            if outer:
                params, common = outer.update(params, common)
    params = bps.broadcast_parameters(params, root_rank=0)  # between two exchanges each rank has its own
    sent = bps.metrics().pushed_wire_bytes - before
    outputs = np.asarray(jax.jit(predict)(params, test_images))
    return float((outputs.argmax(1) == test_labels).mean()), sent / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30)
    options = parser.parse_args()
    bps.init()
    data = [part.astype(np.float32) if part.dtype == np.float64 else part for part in load()]
    if bps.rank() == 0:
        print(f"{'exchange':38}{'accuracy':>10}{'sent, MB':>10}")
    for title in WAYS:
        accuracy, sent = train(title, options.epochs, data)
        if bps.rank() == 0:
            print(f"{title:38}{accuracy:10.1%}{sent:10.2f}", flush=True)
    bps.shutdown()


if __name__ == "__main__":
    main()
