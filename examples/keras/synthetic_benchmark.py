"""Images per second of Keras's fit() on random data, printed as the original's benchmark prints them.

    KERAS_BACKEND=tensorflow bpslaunch --local --workers 2 -- python examples/keras/synthetic_benchmark.py

Models: cnn (built in, small), and any of keras.applications, for example ResNet50.
"""

import argparse
import time

import keras
import numpy as np

import byteps.keras as bps

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="cnn", help="model to benchmark")
parser.add_argument("--batch-size", type=int, default=32, help="input batch size")
parser.add_argument("--num-batches-per-iter", type=int, default=5, help="batches per measurement")
parser.add_argument("--num-iters", type=int, default=5, help="measurements")
parser.add_argument("--fp16-pushpull", action="store_true", help="use fp16 compression during push_pull")
parser.add_argument("--jit-compile", action="store_true", help="compile by XLA (tensorflow; jax always does)")


def make_model(name):
    """The model, and its images' shape."""
    if name != "cnn":
        return getattr(keras.applications, name)(weights=None), (224, 224, 3)
    layers = [
        *[keras.layers.Conv2D(32, 3, activation="relu"), keras.layers.MaxPooling2D()],
        *[keras.layers.Conv2D(64, 3, activation="relu"), keras.layers.MaxPooling2D()],
        *[keras.layers.Flatten(), keras.layers.Dense(256, activation="relu"), keras.layers.Dense(1000)],
    ]
    return keras.Sequential([keras.layers.Input((32, 32, 3)), *layers]), (32, 32, 3)


class Rates(keras.callbacks.Callback):
    """Images per second of each epoch."""

    def __init__(self, images_per_epoch):
        super().__init__()
        self.images_per_epoch = images_per_epoch
        self.rates = []

    def on_epoch_begin(self, epoch, logs=None):
        self.began = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.rates.append(self.images_per_epoch / (time.perf_counter() - self.began))
        if bps.rank() == bps.leader() and epoch > 0:
            print(f"Iter #{epoch - 1}: {self.rates[-1]:.1f} img/sec per worker", flush=True)


def main():
    args = parser.parse_args()
    bps.init()
    model, shape = make_model(args.model)
    images = args.batch_size * args.num_batches_per_iter
    inputs = np.random.rand(images, *shape).astype("float32")
    labels = np.random.randint(0, 1000, images)
    compression = bps.Compression.fp16 if args.fp16_pushpull else bps.Compression.none
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(0.01), compression=compression)
    from_logits = args.model == "cnn"
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits)
    model.compile(optimizer=optimizer, loss=loss, jit_compile=True if args.jit_compile else "auto")
    if bps.rank() == bps.leader():
        print(f"Model: {args.model}\nBatch size: {args.batch_size}\nNumber of workers: {bps.size()}", flush=True)
    rates = Rates(images)
    callbacks = [bps.callbacks.BroadcastGlobalVariablesCallback(0), rates]
    # The first epoch compiles, and does not count.
    options = dict(epochs=args.num_iters + 1, callbacks=callbacks, verbose=0, shuffle=False)
    model.fit(inputs, labels, batch_size=args.batch_size, **options)
    mean, deviation = np.mean(rates.rates[1:]), 1.96 * np.std(rates.rates[1:])
    if bps.rank() == bps.leader():
        print(f"Img/sec per worker: {mean:.1f} +-{deviation:.1f}")
        print(f"Total img/sec on {bps.size()} worker(s): {bps.size() * mean:.1f} +-{bps.size() * deviation:.1f}")


if __name__ == "__main__":
    main()
