"""Trains on scikit-learn's handwritten digits with tf.GradientTape, and proves that it is the same training.

    bpslaunch --local --workers 2 -- python examples/tensorflow/train_digits.py
    python examples/tensorflow/train_digits.py                                      # a job of one
"""

import argparse

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import byteps.tensorflow as bps

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=30)
parser.add_argument("--jit-compile", action="store_true", help="let XLA compile the step")


def load(dtype):
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
    return [part.astype(dtype) / 16 for part in parts[:2]] + [part.astype("int64") for part in parts[2:]]


class Model(tf.Module):
    """Two layers."""

    def __init__(self, seed, dtype):
        super().__init__()
        random = np.random.RandomState(seed)
        sizes = [(64, 256), (256, 10)]
        self.kernels = [
            tf.Variable(random.normal(0, size[0] ** -0.5, size).astype(dtype), name=f"kernel{i}")
            for i, size in enumerate(sizes)
        ]
        self.biases = [tf.Variable(np.zeros(size[1], dtype), name=f"bias{i}") for i, size in enumerate(sizes)]

    def __call__(self, x):
        return tf.matmul(tf.nn.relu(tf.matmul(x, self.kernels[0]) + self.biases[0]), self.kernels[1]) + self.biases[1]


def make_step(model, learning_rate, distributed, jit_compile=False):
    """A function that makes one step of gradient descent with momentum and returns the loss."""
    variables = model.trainable_variables
    velocities = [tf.Variable(tf.zeros_like(variable)) for variable in variables]

    @tf.function(jit_compile=jit_compile)
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x)))
        if distributed:
            tape = bps.DistributedGradientTape(tape)
        for variable, velocity, gradient in zip(variables, velocities, tape.gradient(loss, variables)):
            velocity.assign(0.9 * velocity + gradient)
            variable.assign_sub(learning_rate * velocity)
        return loss

    return step


def batches(count, batch, seed, rank, size):
    """Of each global batch, this rank's share."""
    order = np.random.RandomState(seed).permutation(count)
    for begin in range(0, count - batch + 1, batch):
        yield order[begin : begin + batch][rank::size]


def prove(steps=60, batch=48):
    """The same training, distributed and in one process: the largest relative difference of parameters."""
    x, _, y, _ = load("float64")
    batch = batch // bps.size() * bps.size()  # equal shares, so that the mean of the shares' means is the batch's
    ours, reference = Model(7, "float64"), Model(7, "float64")
    step, reference_step = make_step(ours, 0.05, True), make_step(reference, 0.05, False)
    for seed in range(steps):
        step(*[part[next(batches(len(x), batch, seed, bps.rank(), bps.size()))] for part in (x, y)])
        reference_step(*[part[next(batches(len(x), batch, seed, 0, 1))] for part in (x, y)])
    pairs = zip(ours.trainable_variables, reference.trainable_variables)
    return max(float(tf.norm(a - b) / tf.norm(b)) for a, b in pairs)


def main():
    args = parser.parse_args()
    bps.init()
    x, test_x, y, test_y = load("float32")
    model = Model(bps.rank(), "float32")  # other values on each rank, until the broadcast
    bps.broadcast_variables(model.variables, root_rank=0)
    step = make_step(model, 0.1, True, args.jit_compile)
    for epoch in range(args.epochs):
        shares = batches(len(x), 32 * bps.size(), epoch, bps.rank(), bps.size())
        losses = [float(step(x[chosen], y[chosen])) for chosen in shares]
        loss = float(bps.push_pull(tf.constant(np.mean(losses)), name="loss"))
        if bps.rank() == bps.leader():
            print(f"epoch {epoch}: loss {loss:.4f}", flush=True)
    accuracy = float(np.mean(np.argmax(model(test_x), axis=1) == test_y))
    difference = prove()
    if bps.rank() == bps.leader():
        print(f"RESULT accuracy={accuracy:.4f} max_relative_difference={difference:.3g}", flush=True)


if __name__ == "__main__":
    main()
