"""Trains on scikit-learn's handwritten digits with tf.keras and a tf.data pipeline: Keras 3, or with
TF_USE_LEGACY_KERAS=1 Keras 2.

    bpslaunch --local --workers 2 -- python examples/tensorflow_keras/digits.py
    TF_USE_LEGACY_KERAS=1 python examples/tensorflow_keras/digits.py                   # a job of one
"""

import argparse

import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import byteps.tensorflow.keras as bps

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=36, help="of all workers together")


def main():
    args = parser.parse_args()
    bps.init()
    tf.keras.utils.set_random_seed(bps.rank())  # other weights on each rank, until they are broadcast
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.2, random_state=0, stratify=labels
    )
    data = tf.data.Dataset.from_tensor_slices((train_x, train_y)).shard(bps.size(), bps.rank())
    data = data.shuffle(1000, seed=bps.rank()).repeat().batch(args.batch_size // bps.size(), drop_remainder=True)

    layers = [
        tf.keras.layers.Conv2D(32, 3, activation="relu"),
        tf.keras.layers.Conv2D(64, 3, activation="relu"),
        tf.keras.layers.MaxPooling2D(),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(10),
    ]
    model = tf.keras.Sequential([tf.keras.layers.InputLayer((8, 8, 1)), *layers])
    optimizer = bps.DistributedOptimizer(tf.keras.optimizers.Adam(0.005))
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    model.fit(
        data,
        steps_per_epoch=len(train_x) // args.batch_size,  # the same on all ranks
        epochs=args.epochs,
        callbacks=[
            bps.callbacks.BroadcastGlobalVariablesCallback(0),
            bps.callbacks.MetricAverageCallback(),
            bps.callbacks.LearningRateWarmupCallback(warmup_epochs=2),
        ],
        verbose=2 if bps.rank() == bps.leader() else 0,
    )
    accuracy = model.evaluate(test_x, test_y, verbose=0)[1]
    if bps.rank() == bps.leader():
        print(f"{bps.size()} workers: test accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
