"""Handwritten digits with a graph and a session of tf.compat.v1, for scripts from TensorFlow 1.

    bpslaunch --local --workers 2 -- python examples/tensorflow/digits_v1.py
    python examples/tensorflow/digits_v1.py --steps 50
"""

import argparse

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import byteps.tensorflow as bps

v1 = tf.compat.v1
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=300, help="of all workers together")
parser.add_argument("--batch-size", type=int, default=32, help="of each worker")
parser.add_argument("--lr", type=float, default=0.1, help="of one worker")


def layer(x, name, outputs):
    kernel = v1.get_variable(f"{name}/kernel", [x.shape[1], outputs])
    return tf.matmul(x, kernel) + v1.get_variable(f"{name}/bias", [outputs], initializer=v1.zeros_initializer())


def batches(images, labels, size):
    random = np.random.RandomState(bps.rank())  # each worker draws its own batches
    while True:
        chosen = random.randint(0, len(images), size)
        yield images[chosen], labels[chosen]


def main():
    args = parser.parse_args()
    bps.init()
    v1.set_random_seed(bps.rank())  # other variables on each rank, until they are broadcast
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32")
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.2, random_state=0, stratify=labels
    )
    x, y = v1.placeholder(tf.float32, [None, 64]), v1.placeholder(tf.int64, [None])
    logits = layer(tf.nn.relu(layer(x, "hidden", 64)), "output", 10)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
    accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32))
    # BytePS: the rate grows with the number of workers, gradients are averaged.
    optimizer = bps.DistributedOptimizer(v1.train.MomentumOptimizer(args.lr * bps.size(), 0.9))
    train = optimizer.minimize(loss, global_step=v1.train.get_or_create_global_step())
    tested = v1.train.FinalOpsHook(accuracy, {x: test_x, y: test_y})
    hooks = [
        bps.BroadcastGlobalVariablesHook(0),  # BytePS: all begin with rank 0's variables
        v1.train.StopAtStepHook(last_step=args.steps // bps.size()),
        tested,
    ]
    drawn = batches(train_x, train_y, args.batch_size)
    with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
        while not session.should_stop():
            batch, wanted = next(drawn)
            session.run(train, {x: batch, y: wanted})
    if bps.rank() == bps.leader():
        print(f"test accuracy {tested.final_ops_values:.4f}")


if __name__ == "__main__":
    v1.disable_eager_execution()
    main()
