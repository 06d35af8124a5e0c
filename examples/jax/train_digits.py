"""Trains a small network on scikit-learn's handwritten digits with optax, and proves that it is the same training.

    bpslaunch --local --workers 2 -- python examples/jax/train_digits.py
    python examples/jax/train_digits.py                                          # a job of one
"""

import argparse
import time
from functools import partial

import jax
import numpy as np
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import byteps.jax as bps

PROOF_STEPS = 50


def load():
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16, labels, test_size=0.2, random_state=0, stratify=labels)
    return [np.asarray(part) for part in parts]  # train and test images, train and test labels


def make_params(seed, dtype=np.float32):
    sizes = [64, 256, 128, 10]
    normal = np.random.default_rng(seed).standard_normal
    return [
        {"w": (normal((a, b)) * (2 / a) ** 0.5).astype(dtype), "b": np.zeros(b, dtype)}
        for a, b in zip(sizes, sizes[1:])
    ]


def predict(params, images):
    for layer in params[:-1]:
        images = jax.nn.relu(images @ layer["w"] + layer["b"])
    return images @ params[-1]["w"] + params[-1]["b"]


def loss(params, images, labels):
    return optax.softmax_cross_entropy_with_integer_labels(predict(params, images), labels).mean()


@partial(jax.jit, static_argnums=0)
def train_step(optimizer, params, state, images, labels):
    value, gradients = jax.value_and_grad(loss)(params, images, labels)
    updates, state = optimizer.update(gradients, state, params)  # averages over all workers, when it is distributed
    return optax.apply_updates(params, updates), state, value


def share(indices, rank, size):
    """This rank's part of a global batch: equal parts, so that the mean of the parts' means is the batch's mean."""
    return indices[rank::size]


def prove(images, labels, batch):
    """The same steps in float64, distributed and in one process: the largest relative difference of a parameter."""
    params = alone = bps.broadcast_parameters(make_params(7, np.float64))
    transformation = optax.adam(1e-2)
    optimizer = bps.distributed(transformation)
    state, alone_state = jax.jit(optimizer.init)(params), jax.jit(transformation.init)(alone)
    for step in range(PROOF_STEPS):
        whole = np.random.default_rng(step).permutation(len(images))[:batch]
        mine = share(whole, bps.rank(), bps.size())
        params, state, _ = train_step(optimizer, params, state, images[mine], labels[mine])
        alone, alone_state, _ = train_step(transformation, alone, alone_state, images[whole], labels[whole])
    norm = np.linalg.norm
    return max(float(norm(a - b) / norm(b)) for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(alone)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30)
    args = parser.parse_args()
    bps.init()
    jax.config.update("jax_enable_x64", True)  # for the proof

    train_images, test_images, train_labels, test_labels = load()
    inputs = train_images.astype(np.float32)
    params = bps.broadcast_parameters(make_params(bps.rank()), root_rank=0)  # other values on each rank until here
    optimizer = bps.distributed(optax.adam(1e-3 * bps.size()))
    state = jax.jit(optimizer.init)(params)
    batch = 32 * bps.size()
    began = time.perf_counter()
    for epoch in range(args.epochs):
        order = np.random.default_rng(epoch).permutation(len(inputs))
        for begin in range(0, len(order) - batch + 1, batch):
            mine = share(order[begin : begin + batch], bps.rank(), bps.size())
            params, state, value = train_step(optimizer, params, state, inputs[mine], train_labels[mine])
        average = float(bps.push_pull(value, name="loss"))
        if bps.rank() == bps.leader() and (epoch + 1) % 10 == 0:
            print(f"epoch {epoch + 1}: loss {average:.4f}", flush=True)
    samples_per_s = args.epochs * (len(inputs) // batch) * batch / (time.perf_counter() - began)
    outputs = np.asarray(jax.jit(predict)(params, test_images.astype(np.float32)))
    accuracy = float((outputs.argmax(1) == test_labels).mean())
    difference = prove(train_images, train_labels, 48 // bps.size() * bps.size())
    if bps.rank() == bps.leader():
        rate = f"samples_per_s={samples_per_s:.0f}"
        print(f"DIGITS accuracy={accuracy:.4f} difference={difference:.3g} {rate}", flush=True)


if __name__ == "__main__":
    main()
