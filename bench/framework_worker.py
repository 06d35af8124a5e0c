"""One worker of the benchmark of frameworks: what each layer costs, and how much communication it hides.

Usage: framework_worker.py KIND RANK SIZE ADDRESS PORT INTERFACE STEPS
KIND: one of KINDS below. ADDRESS, PORT and INTERFACE are for gloo and Horovod.

Each line of its input is a round. "go", "compute" and "communicate" are those of train_worker.py: STEPS steps of
training, the same without summing, the sums of all gradients without computing. "small" sums 160 tensors of 4 KiB STEPS
times, all at once; the third number of its answer is then the first one plus how long submitting took the last time.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np
from framework_model import BATCH, LAYERS, SMALL_COUNT, SMALL_ELEMENTS, digits, first_weights
from framework_torch import Horovod, Torch, TorchDdp


class Jax:
    """byteps.jax inside one jitted step."""

    def __init__(self):
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        import jax
        import jax.numpy as jnp

        import byteps.jax as bps

        bps.init()
        self.jax, self.bps, self.rank = jax, bps, bps.rank()
        self.weights = [tuple(map(jnp.asarray, pair)) for pair in first_weights()]
        self.alone = self.weights
        self.small_arrays = [jnp.ones(SMALL_ELEMENTS) for _ in range(SMALL_COUNT)]

        def loss(weights, images, labels):
            for place, (matrix, bias) in enumerate(weights):
                images = images @ matrix + bias
                images = jax.nn.relu(images) if place < len(weights) - 1 else images
            return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(images), labels[:, None], axis=1))

        def update(weights, gradients):
            return jax.tree_util.tree_map(lambda w, g: w - 0.01 * g, weights, gradients)

        self.step_together = jax.jit(
            lambda w, x, y: update(w, bps.push_pull_tree(jax.grad(loss)(w, x, y), name="gradients"))
        )
        self.step_alone = jax.jit(lambda w, x, y: update(w, jax.grad(loss)(w, x, y)))
        self.sum_all = jax.jit(lambda w: bps.push_pull_tree(w, name="alone"))
        self.sum_small = jax.jit(lambda arrays: bps.push_pull_tree(arrays, name="small"))

    def step(self, images, labels):
        self.weights = self.jax.block_until_ready(self.step_together(self.weights, images, labels))

    def compute(self, images, labels):
        self.alone = self.jax.block_until_ready(self.step_alone(self.alone, images, labels))

    def communicate(self):
        self.jax.block_until_ready(self.sum_all(self.weights))

    def small(self):
        arrays = self.sum_small(self.small_arrays)
        submitted = time.monotonic()
        self.jax.block_until_ready(arrays)
        return submitted

    def finish(self):
        pass

    def barrier(self):
        self.bps.barrier()

    def close(self):
        self.bps.shutdown()


class TensorFlow:
    """byteps.tensorflow's DistributedGradientTape in one tf.function."""

    def __init__(self):
        import tensorflow as tf

        import byteps.tensorflow as bps

        tf.config.threading.set_intra_op_parallelism_threads(1)
        bps.init()
        self.tf, self.bps, self.rank = tf, bps, bps.rank()
        self.weights = [tf.Variable(value) for pair in first_weights() for value in pair]
        self.alone = [tf.Variable(value) for pair in first_weights() for value in pair]
        self.small_tensors = [tf.ones(SMALL_ELEMENTS) for _ in range(SMALL_COUNT)]

        def train(weights, images, labels, distribute):
            with tf.GradientTape() as tape:
                for place in range(0, len(weights), 2):
                    images = images @ weights[place] + weights[place + 1]
                    images = tf.nn.relu(images) if place < len(weights) - 2 else images
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=images))
            tape = bps.DistributedGradientTape(tape) if distribute else tape
            for weight, gradient in zip(weights, tape.gradient(loss, weights)):
                weight.assign_sub(0.01 * gradient)

        def sums(tensors, prefix):
            return [bps.push_pull(tensor, name=f"{prefix}.{place}") for place, tensor in enumerate(tensors)]

        self.step_together = tf.function(lambda x, y: train(self.weights, x, y, True))
        self.step_alone = tf.function(lambda x, y: train(self.alone, x, y, False))
        self.sum_all = tf.function(lambda: sums([tf.identity(weight) for weight in self.weights], "alone"))
        self.sum_small = tf.function(lambda: sums(self.small_tensors, "small"))

    def step(self, images, labels):
        self.step_together(self.tf.constant(images), self.tf.constant(labels))

    def compute(self, images, labels):
        self.step_alone(self.tf.constant(images), self.tf.constant(labels))

    def communicate(self):
        self.sum_all()

    def small(self):
        self.sum_small()
        return time.monotonic()

    def finish(self):
        pass

    def barrier(self):
        self.bps.barrier()

    def close(self):
        self.bps.shutdown()


class Keras(TensorFlow):
    """byteps.keras' DistributedOptimizer in fit(), on the backend of KERAS_BACKEND (tensorflow here)."""

    def __init__(self):
        os.environ.setdefault("KERAS_BACKEND", "tensorflow")
        super().__init__()
        import keras

        import byteps.keras

        self.model = self.compiled(keras, byteps.keras.DistributedOptimizer(keras.optimizers.SGD(0.01)))
        self.model_alone = self.compiled(keras, keras.optimizers.SGD(0.01))

    def compiled(self, keras, optimizer):
        layers = [keras.layers.Dense(width, activation="relu") for width in LAYERS[1:-1]]
        model = keras.Sequential([keras.Input((LAYERS[0],)), *layers, keras.layers.Dense(LAYERS[-1])])
        model.set_weights([value for pair in first_weights() for value in pair])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=optimizer, loss=loss)
        return model

    def step(self, images, labels):
        self.model.fit(images, labels, batch_size=BATCH, epochs=1, shuffle=False, verbose=0)

    def compute(self, images, labels):
        self.model_alone.fit(images, labels, batch_size=BATCH, epochs=1, shuffle=False, verbose=0)


class MxNet:
    """byteps.mxnet's DistributedTrainer with gluon."""

    def __init__(self):
        import byteps.mxnet as bps

        import mxnet as mx

        bps.init()
        self.mx, self.bps, self.rank = mx, bps, bps.rank()
        self.net, self.alone = self.made(), self.made()
        options = {"learning_rate": 0.01}
        self.trainer = bps.DistributedTrainer(self.net.collect_params(), "sgd", options)
        self.trainer_alone = mx.gluon.Trainer(self.alone.collect_params(), "sgd", options, kvstore=None)
        self.loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
        self.gradients = [mx.nd.zeros(shape) for pair in zip(LAYERS, LAYERS[1:]) for shape in (pair, pair[1:])]
        self.small_arrays = [mx.nd.ones(SMALL_ELEMENTS) for _ in range(SMALL_COUNT)]
        self.one = mx.nd.zeros(1)

    def made(self):
        nn = self.mx.gluon.nn
        net = nn.Sequential()
        for place, (weights, bias) in enumerate(first_weights()):
            activation = "relu" if place < len(LAYERS) - 2 else None
            net.add(nn.Dense(weights.shape[1], activation=activation, in_units=weights.shape[0]))
        net.initialize()
        for layer, (weights, bias) in zip(net, first_weights()):
            layer.weight.set_data(self.mx.nd.array(weights.T))
            layer.bias.set_data(self.mx.nd.array(bias))
        return net

    def train(self, net, trainer, images, labels):
        with self.mx.autograd.record():
            loss = self.loss(net(self.mx.nd.array(images)), self.mx.nd.array(labels))
        loss.backward()
        trainer.step(BATCH)
        self.mx.nd.waitall()

    def step(self, images, labels):
        self.train(self.net, self.trainer, images, labels)

    def compute(self, images, labels):
        self.train(self.alone, self.trainer_alone, images, labels)

    def start(self, prefix, arrays):
        for place, array in reversed(list(enumerate(arrays))):
            self.bps.byteps_push_pull(array, name=f"{prefix}.{place}", priority=-place)

    def communicate(self):
        self.start("alone", self.gradients)
        self.mx.nd.waitall()

    def small(self):
        self.start("small", self.small_arrays)
        submitted = time.monotonic()
        self.mx.nd.waitall()
        return submitted

    def finish(self):
        pass

    def barrier(self):
        self.bps.barrier()

    def close(self):
        self.bps.shutdown()


KINDS = {
    "gloo": lambda place: TorchDdp("gloo", place),
    "horovod": Horovod,
    "torch": lambda place: Torch(),
    "torch-crossed": lambda place: Torch(crossed=True),
    "torch-ddp": lambda place: TorchDdp("byteps", place),
    "jax": lambda place: Jax(),
    "tensorflow": lambda place: TensorFlow(),
    "keras": lambda place: Keras(),
    "mxnet": lambda place: MxNet(),
}


def main():
    job = KINDS[sys.argv[1]](sys.argv[2:7])
    steps = int(sys.argv[7])
    batches = digits(np.random.default_rng(job.rank))
    print("ready", flush=True)
    for line in sys.stdin:
        word = line.strip()
        job.barrier()
        cpu, start, submitting_s = time.process_time(), time.monotonic(), None
        for _ in range(steps):
            if word == "small":
                began = time.monotonic()
                submitting_s = job.small() - began
            elif word == "communicate":
                job.communicate()
            elif word == "compute":
                job.compute(*next(batches))
            else:
                job.step(*next(batches))
        if word == "go":
            job.finish()
        end = time.monotonic()
        third = end if submitting_s is None else start + submitting_s
        print(f"{start:.9f} {end:.9f} {third:.9f} {time.process_time() - cpu:.9f}", flush=True)
    job.close()


if __name__ == "__main__":
    main()
