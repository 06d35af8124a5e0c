"""Trains a small convolutional network on scikit-learn's handwritten digits with Keras 3, on any of its backends.

    KERAS_BACKEND=jax bpslaunch --local --workers 2 -- python examples/keras/digits.py
    KERAS_BACKEND=torch python examples/keras/digits.py                               # a job of one
"""

import argparse

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import byteps.keras as bps

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=36, help="of all workers together")
parser.add_argument("--learning-rate", type=float, default=0.005)
parser.add_argument("--fp16-pushpull", action="store_true", help="gradients travel in 16 bits")


def load():
    """Training images and labels, test images and labels."""
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.2, random_state=0, stratify=labels
    )
    return train_x, train_y, test_x, test_y


def make_model():
    layers = [
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.Conv2D(64, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
    return keras.Sequential([keras.layers.Input((8, 8, 1)), *layers])


def main():
    args = parser.parse_args()
    bps.init()
    keras.utils.set_random_seed(bps.rank())  # other weights on each rank, until they are broadcast
    train_x, train_y, test_x, test_y = load()
    rows = len(train_x) // bps.size()  # as many for each rank: all must make the same number of steps
    mine = slice(bps.rank() * rows, (bps.rank() + 1) * rows)

    compression = bps.Compression.fp16 if args.fp16_pushpull else bps.Compression.none
    optimizer = bps.DistributedOptimizer(keras.optimizers.Adam(args.learning_rate), compression=compression)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = make_model()
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    callbacks = [bps.callbacks.BroadcastGlobalVariablesCallback(0), bps.callbacks.MetricAverageCallback()]
    model.fit(
        train_x[mine],
        train_y[mine],
        batch_size=args.batch_size // bps.size(),
        epochs=args.epochs,
        callbacks=callbacks,
        verbose=2 if bps.rank() == bps.leader() else 0,
    )
    accuracy = model.evaluate(test_x, test_y, verbose=0)[1]
    if bps.rank() == bps.leader():
        print(f"backend {keras.backend.backend()}, {bps.size()} workers: test accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
