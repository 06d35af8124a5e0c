"""What step_worker.py trains with frameworks other than torch, all of them over BytePS. Layers sleep within the
framework's own graph, without Python's lock, and their gradients are ones."""

from __future__ import annotations

import functools
import os
import time

import numpy as np
import steps


def naps(seconds):
    """A function of arrays that sleeps and returns the first; the others are what it waits for."""

    def nap(value, *_):
        time.sleep(seconds)
        return np.asarray(value)

    return nap


class Trained:
    """Has step(), and arrays() of the weights, by name. `own`, which all take: this rank's gradients."""

    done = 0

    def take_update_s(self):
        """Not known apart."""

    def check(self):
        wanted = -steps.LEARNING_RATE * self.done
        for name, array in self.arrays():
            steps.check(name, array[:3], bool((array == np.float32(wanted)).all()), wanted)


class JaxTrained(Trained):
    """One jitted step."""

    def __init__(self, layers, exchange, own=1.0):
        import jax
        import jax.numpy as jnp

        self.jax = jax
        called = [self.layer(elements, share, own) for elements, share in layers]
        self.weights = [[jnp.zeros(count) for count in elements] for elements, _ in layers]

        def loss(weights, value):
            for layer, ours in zip(called, weights):
                value = layer(value, ours)
            return value

        def step(weights, value):
            value, gradients = jax.value_and_grad(loss)(weights, value)
            update = jax.tree_util.tree_map(lambda w, g: w - steps.LEARNING_RATE * g, weights, exchange(gradients))
            return update, value

        self.jitted = jax.jit(step, donate_argnums=0)  # weights in place, as torch has them

    def layer(self, elements, share, own):
        jax, jnp = self.jax, self.jax.numpy
        number = jax.ShapeDtypeStruct((), np.float32)
        forward_nap, backward_nap = naps(steps.FORWARD_S * share), naps(steps.BACKWARD_S * share)

        @jax.custom_vjp
        def apply(value, weights):
            return jax.pure_callback(forward_nap, number, value)

        def forward(value, weights):
            value = apply(value, weights)
            return value, value

        def backward(value, gradient):
            gradient = jax.pure_callback(backward_nap, number, gradient, value)
            return gradient, [jnp.full(count, own * gradient) for count in elements]

        apply.defvjp(forward, backward)
        return apply

    def step(self):
        self.weights, _ = self.jax.block_until_ready(self.jitted(self.weights, np.float32(0)))
        self.done += 1

    def arrays(self):
        return [(f"{i}.{j}", np.asarray(w)) for i, layer in enumerate(self.weights) for j, w in enumerate(layer)]


class Jax:
    def __init__(self, layers, _):
        import byteps.jax as bps

        bps.init()
        self.barrier, self.close = bps.barrier, bps.shutdown
        own = steps.weight_of(bps.rank(), bps.size())
        self.makers = {
            "go": lambda: JaxTrained(layers, lambda gradients: bps.push_pull_tree(gradients, name="gradients"), own),
            "compute": lambda: JaxTrained(layers, lambda gradients: gradients),
        }


def tensorflow_layer(tf, elements, share, own):
    """A function of a value and the layer's weights. Its operations have no state: TensorFlow runs those that have some
    in the order of the program, and exchanges with them."""
    forward_nap, backward_nap = naps(steps.FORWARD_S * share), naps(steps.BACKWARD_S * share)

    def called(nap, *values):
        result = tf.numpy_function(nap, values, tf.float32, stateful=False)
        result.set_shape(values[0].shape)
        return result

    @tf.custom_gradient
    def apply(value, *weights):
        result = called(forward_nap, value)

        def gradients(gradient):
            gradient = called(backward_nap, gradient, result)
            return gradient, *(tf.fill([count], own * tf.reshape(gradient, [])) for count in elements)

        return result, gradients

    return apply


class TensorFlowTrained(Trained):
    """One tf.function."""

    def __init__(self, layers, distribute, own=1.0):
        import tensorflow as tf

        called = [tensorflow_layer(tf, *layer, own) for layer in layers]
        self.weights = [[tf.Variable(tf.zeros(count)) for count in elements] for elements, _ in layers]
        flat = [weight for layer in self.weights for weight in layer]

        def step(value):
            with tf.GradientTape() as tape:
                for layer, weights in zip(called, self.weights):
                    value = layer(value, *weights)
            for weight, gradient in zip(flat, distribute(tape).gradient(value, flat)):
                weight.assign_sub(steps.LEARNING_RATE * gradient)

        self.function, self.value = tf.function(step), tf.zeros(())

    def step(self):
        self.function(self.value)
        self.done += 1

    def arrays(self):
        return [(f"{i}.{j}", w.numpy()) for i, layer in enumerate(self.weights) for j, w in enumerate(layer)]


class TensorFlow:
    def __init__(self, layers, _):
        import tensorflow as tf

        import byteps.tensorflow as bps

        tf.config.threading.set_intra_op_parallelism_threads(1)
        bps.init()
        self.barrier, self.close = bps.barrier, bps.shutdown
        own = steps.weight_of(bps.rank(), bps.size())
        self.makers = {
            "go": lambda: TensorFlowTrained(layers, bps.DistributedGradientTape, own),
            "compute": lambda: TensorFlowTrained(layers, lambda tape: tape),
        }


class KerasTrained(Trained):
    """train_on_batch(), on the backend tensorflow."""

    def __init__(self, layers, distribute, own=1.0):
        import keras
        import tensorflow as tf

        class Sleeping(keras.layers.Layer):
            def __init__(self, elements, share):
                super().__init__()
                self.elements, self.apply = elements, tensorflow_layer(tf, elements, share, own)

            def build(self, _):
                self.kept = [self.add_weight(shape=(count,), initializer="zeros") for count in self.elements]

            def call(self, value):
                return self.apply(value, *(weight.value for weight in self.kept))

        self.model = keras.Sequential([keras.Input((1,)), *(Sleeping(*layer) for layer in layers)])
        optimizer = distribute(keras.optimizers.SGD(steps.LEARNING_RATE))
        # XLA takes no functions of Python.
        self.model.compile(optimizer=optimizer, loss=lambda _, result: tf.reduce_sum(result), jit_compile=False)
        self.batch = (tf.zeros((1, 1)), tf.zeros((1, 1)))

    def step(self):
        self.model.train_on_batch(*self.batch)
        self.done += 1

    def arrays(self):
        return [(weight.path, np.asarray(weight)) for weight in self.model.trainable_weights]


class Keras:
    def __init__(self, layers, _):
        os.environ["KERAS_BACKEND"] = "tensorflow"
        import tensorflow as tf

        import byteps.keras as bps

        tf.config.threading.set_intra_op_parallelism_threads(1)
        bps.init()
        self.barrier, self.close = bps.barrier, bps.shutdown
        own = steps.weight_of(bps.rank(), bps.size())
        self.makers = {
            "go": lambda: KerasTrained(layers, bps.DistributedOptimizer, own),
            "compute": lambda: KerasTrained(layers, lambda optimizer: optimizer),
        }


@functools.cache
def mxnet_block(mx):
    """The class of a layer of MXNet: an operator of its own within the engine."""

    class Sleep(mx.operator.CustomOp):
        def __init__(self, forward_s, backward_s, own):
            super().__init__()
            self.forward_s, self.backward_s, self.own = forward_s, backward_s, own

        def forward(self, is_train, req, in_data, out_data, aux):
            time.sleep(self.forward_s)
            self.assign(out_data[0], req[0], in_data[0])

        def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
            time.sleep(self.backward_s)
            self.assign(in_grad[0], req[0], out_grad[0])
            for gradient in in_grad[1:]:
                mx.nd.broadcast_to(self.own * out_grad[0], shape=gradient.shape, out=gradient)

    @mx.operator.register("sleep")
    class Sleeps(mx.operator.CustomOpProp):
        def __init__(self, forward_s, backward_s, own, count):  # all of them text
            super().__init__()
            self.told, self.count = (float(forward_s), float(backward_s), float(own)), int(count)

        def list_arguments(self):
            return ["value", *(f"weight{index}" for index in range(self.count))]

        def infer_shape(self, shapes):
            return shapes, [shapes[0]], []

        def create_operator(self, _context, _shapes, _dtypes):
            return Sleep(*self.told)

    class Sleeping(mx.gluon.Block):
        def __init__(self, elements, share, own):
            super().__init__()
            self.options = {"forward_s": steps.FORWARD_S * share, "backward_s": steps.BACKWARD_S * share, "own": own}
            self.kept = [
                self.params.get(f"weight{index}", shape=(count,), init="zeros") for index, count in enumerate(elements)
            ]

        def forward(self, value):
            weights = [parameter.data() for parameter in self.kept]
            return mx.nd.Custom(value, *weights, op_type="sleep", count=len(weights), **self.options)

    return Sleeping


class MxNetTrained(Trained):
    """A gluon net. trainer(parameters, optimizer, its options)."""

    def __init__(self, layers, trainer, own=1.0):
        import mxnet as mx

        self.autograd = mx.autograd
        self.net = mx.gluon.nn.Sequential()
        for layer in layers:
            self.net.add(mxnet_block(mx)(*layer, own))
        self.net.initialize()
        self.trainer = trainer(self.net.collect_params(), "sgd", {"learning_rate": steps.LEARNING_RATE})
        self.value = mx.nd.zeros(1)

    def step(self):
        """The loss is looked at, as in most programs; what comes behind it goes on."""
        with self.autograd.record():
            loss = self.net(self.value)
        loss.backward()
        self.trainer.step(1)
        loss.wait_to_read()
        self.done += 1

    def arrays(self):
        return [(name, parameter.data().asnumpy()) for name, parameter in self.net.collect_params().items()]


class MxNet:
    def __init__(self, layers, _):
        import byteps.mxnet as bps

        import mxnet as mx

        bps.init()
        self.barrier, self.close = bps.barrier, bps.shutdown
        own = steps.weight_of(bps.rank(), bps.size())
        self.makers = {
            "go": lambda: MxNetTrained(layers, bps.DistributedTrainer, own),
            "compute": lambda: MxNetTrained(layers, functools.partial(mx.gluon.Trainer, kvstore=None)),
        }


KINDS = {"jax": Jax, "tensorflow": TensorFlow, "keras": Keras, "mxnet": MxNet}
