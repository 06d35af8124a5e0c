"""Each framework but torch (test_machines_torch.py) learns handwritten digits on two machines of two workers, whose
relays sum first, as in one process. What a worker does imports its framework there."""

import numpy as np
import pytest
from cluster import JAX, MXNET_PYTHON, TENSORFLOW, Cluster
from machines import example, summed_at_relays

pytestmark = pytest.mark.timeout(300)  # four processes begin with a framework
EXACT = 1e-9  # of float64, relative
STEPS, BATCH = 10, 24  # the batch of all workers together


def check(function, *args, below, **options):
    with Cluster(hosts=(2, 2), **options) as job:
        for difference in summed_at_relays(job, function, *args):
            assert difference < below


# ---- TensorFlow


def with_a_tape():
    return example("tensorflow/train_digits.py").prove(steps=STEPS)


def test_tensorflow_learns_as_in_a_single_process():
    check(with_a_tape, below=EXACT, layer="byteps.tensorflow", environ=TENSORFLOW)


# ---- JAX


def with_jit():
    import jax

    digits = example("jax/train_digits.py")
    digits.PROOF_STEPS = STEPS
    jax.config.update("jax_enable_x64", True)
    images, _, labels, _ = digits.load()
    return digits.prove(images, labels, BATCH)


def test_jax_learns_as_in_a_single_process():
    check(with_jit, below=EXACT, layer="byteps.jax", environ=JAX)


# ---- Keras


def with_fit():
    """In float32: how far the weights are from those of a fit() with the whole batches."""
    from keras_models import distance, keras_and_bps, share
    from sklearn.datasets import load_digits

    keras, bps = keras_and_bps()
    keras.utils.set_random_seed(1)
    images, labels = load_digits(return_X_y=True)
    images = images[: STEPS * BATCH].reshape(-1, 8, 8, 1).astype("float32") / 16
    labels = labels[: STEPS * BATCH]

    def make():
        layers = [keras.layers.Conv2D(16, 3, activation="relu"), keras.layers.Flatten(), keras.layers.Dense(10)]
        model = keras.Sequential([keras.layers.InputLayer((8, 8, 1)), *layers])
        model.build((None, 8, 8, 1))
        return model

    def fit(model, optimizer, rank, size):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=optimizer, loss=loss)
        parts = [share(part, rank, size, BATCH) for part in (images, labels)]
        model.fit(*parts, batch_size=BATCH // size, epochs=1, shuffle=False, verbose=0)

    reference, model = make(), make()
    begin = bps.broadcast_object(reference.get_weights(), 0)  # the callback broadcasts after the first step
    for each in (reference, model):
        each.set_weights(begin)
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    fit(model, optimizer, bps.rank(), bps.size())
    fit(reference, keras.optimizers.SGD(0.1, momentum=0.9), 0, 1)
    assert distance(begin, reference.get_weights()) > 0.01  # it has learnt something
    return distance(model.get_weights(), reference.get_weights())


KERAS = {
    "torch": dict(environ={"KERAS_BACKEND": "torch"}, layer="keras_without_tensorflow"),
    "jax": dict(environ={**JAX, "KERAS_BACKEND": "jax"}, layer="keras_without_tensorflow"),
    "tensorflow": dict(environ={**TENSORFLOW, "KERAS_BACKEND": "tensorflow"}, layer="byteps.keras"),
    "keras2": dict(environ={**TENSORFLOW, "TF_USE_LEGACY_KERAS": "1"}, layer="byteps.tensorflow.keras"),
}


@pytest.mark.parametrize("backend", KERAS)
def test_keras_learns_as_in_a_single_process(backend):
    check(with_fit, below=1e-5, **KERAS[backend])


# ---- MXNet


def with_gluon(way):
    """In float32: how far the parameters are from those of one process with the whole batches, relative to the largest.
    `way`: what sums, the trainer or a kvstore."""
    import mxnet as mx
    from mxnet import autograd, gluon

    import byteps.mxnet as bps

    digits = example("mxnet/train_digits.py")
    images, _, labels, _ = digits.load()
    options = {"learning_rate": 0.05, "momentum": 0.9}

    def make(seed):
        mx.random.seed(seed)
        net = digits.make_net()
        net(mx.nd.array(images[:1]))  # makes the parameters
        return net

    def trainer_of(net):
        if way == "trainer":
            return bps.DistributedTrainer(net.collect_params(), "sgd", dict(options))
        return gluon.Trainer(net.collect_params(), "sgd", dict(options), kvstore="byteps")

    def train(net, trainer, rank, size, divisor):
        loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
        for begin in range(0, STEPS * BATCH, BATCH):
            mine = slice(begin + rank, begin + BATCH, size)
            with autograd.record():
                loss = loss_of(net(mx.nd.array(images[mine])), mx.nd.array(labels[mine]))
            loss.backward()
            trainer.step(divisor)
        return [parameter.data().asnumpy() for parameter in net.collect_params().values()]

    begin = [parameter.data().asnumpy() for parameter in make(1).collect_params().values()]
    # A kvstore gives rank 0's values in the first step, after its gradients were computed.
    reference, net = make(1), make(1 + bps.rank() if way == "trainer" else 1)
    plain = gluon.Trainer(reference.collect_params(), "sgd", dict(options), kvstore=None)
    wanted = train(reference, plain, 0, 1, BATCH)
    # A kvstore sums; DistributedTrainer averages.
    divisor = BATCH // bps.size() if way == "trainer" else BATCH
    found = train(net, trainer_of(net), bps.rank(), bps.size(), divisor)
    assert max(np.abs(a - b).max() for a, b in zip(begin, wanted)) > 0.01  # it has learnt something
    return float(max(np.abs(a - b).max() / np.abs(b).max() for a, b in zip(found, wanted)))


@pytest.mark.skipif(not MXNET_PYTHON.exists(), reason="there is no .venv-mxnet: `make setup` makes it")
@pytest.mark.parametrize("way", ["trainer", "kvstore"])
def test_mxnet_learns_as_in_a_single_process(way):
    check(with_gluon, way, below=2e-5, layer="byteps.mxnet", python=MXNET_PYTHON)
