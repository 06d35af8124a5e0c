"""A custom training loop under tf.distribute, over all workers of the job: only the strategy's name is ours.

    bpslaunch --local --workers 2 -- python examples/tensorflow/mirrored_strategy.py
    python examples/tensorflow/mirrored_strategy.py

--devices 2 divides each worker's CPU into two replicas, as a worker with two GPUs would have them.
"""

import argparse

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import byteps.tensorflow as bps
from byteps.tensorflow.distribute import MirroredStrategy

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--devices", type=int, default=1)
GLOBAL_BATCH = 48


def main():
    args = parser.parse_args()
    bps.init()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * args.devices)
    strategy = MirroredStrategy([f"/cpu:{i}" for i in range(args.devices)])

    images, labels = load_digits(return_X_y=True)
    images, labels = images.astype("float32") / 16, labels.astype("int64")
    x, test_x, y, test_y = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=1).batch(GLOBAL_BATCH)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    dataset = strategy.experimental_distribute_dataset(dataset.with_options(options))

    with strategy.scope():
        random = np.random.RandomState(bps.rank())  # other values on each rank: variables begin with those of rank 0
        kernel = tf.Variable(random.normal(0, 0.125, [64, 128]).astype("float32"))
        bias = tf.Variable(tf.zeros([128]))
        head = tf.Variable(random.normal(0, 0.09, [128, 10]).astype("float32"))
    variables = [kernel, bias, head]

    def logits(x):
        return tf.matmul(tf.nn.relu(tf.matmul(x, kernel) + bias), head)

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits(x))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=GLOBAL_BATCH)
        gradients = tape.gradient(loss, variables)
        context = tf.distribute.get_replica_context()
        for variable, gradient in zip(variables, context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)):
            variable.assign_sub(0.5 * gradient)
        return loss

    @tf.function
    def step(x, y):
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(replica_step, args=(x, y)), axis=None)

    for epoch in range(args.epochs):
        losses = [float(step(x, y)) for x, y in dataset]
        if bps.rank() == bps.leader():
            print(f"epoch {epoch}: loss {np.mean(losses):.4f}", flush=True)
    accuracy = float(np.mean(np.argmax(logits(test_x), axis=1) == test_y))
    apart = float(tf.reduce_max(bps.push_pull(head, op=bps.Sum) / bps.size() - head))
    if bps.rank() == bps.leader():
        print(f"RESULT accuracy={accuracy:.4f} replicas={strategy.num_replicas_in_sync} apart={apart:.1g}", flush=True)


if __name__ == "__main__":
    main()
