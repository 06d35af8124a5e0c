"""Frameworks in one process: each rank of one job imports them in an order of its own, and joins before, between or
after them. Every layer then exchanges, several at once, and Keras trains on each backend."""

import importlib
import os

import keras_checks as checks
import numpy as np
import pytest
from cluster import MXNET_PYTHON, TENSORFLOW, Cluster

# By rank: Keras's backend, and what is imported in this order; "init" joins the job. What is missing comes at the end.
# Every two of torch, tensorflow and jax are the first two of a rank, in both orders, the third coming later; Keras is
# imported before and after its backend, and byteps's layers with, before and after the frameworks. On torch Keras comes
# before tensorflow: the other way round triton, which its torch backend imports, crashes, also without byteps.
ORDERS = [
    ("jax", "torch byteps.torch tensorflow byteps.tensorflow jax byteps.jax keras byteps.keras init"),
    ("torch", "init torch byteps.jax keras byteps.torch tensorflow"),
    ("tensorflow", "byteps.tensorflow torch init byteps.keras jax"),
    ("jax", "tensorflow byteps.keras init jax torch"),
    ("torch", "byteps.jax init byteps.keras torch tensorflow"),
    ("tensorflow", "jax tensorflow byteps.keras torch byteps.torch init"),
]
LAYERS = ["byteps.torch", "byteps.tensorflow", "byteps.jax", "byteps.keras"]
COUNT = 1000


def import_all(backend, order):
    os.environ["KERAS_BACKEND"] = backend
    for name in [*order.split(), *LAYERS, "init"]:
        if name == "init":
            importlib.import_module("byteps._core.session").init()
        else:
            importlib.import_module(name)


def sums_of_all_layers():
    """What each layer makes of rank + 1 on all ranks, added up; those of torch are under way meanwhile."""
    import jax
    import jax.numpy as jnp
    import tensorflow as tf
    import torch

    import byteps.jax
    import byteps.keras
    import byteps.tensorflow
    import byteps.torch

    torch.set_num_threads(1)
    mine = np.full(COUNT, byteps.torch.rank() + 1, np.float32)
    handle = byteps.torch.push_pull_async(torch.from_numpy(mine), average=False, name="torch.eager")

    def of_tensorflow(name):
        return byteps.tensorflow.push_pull(tf.constant(mine), op=byteps.tensorflow.Sum, name=f"tf.{name}")

    def of_jax(name):
        return byteps.jax.push_pull(jnp.asarray(mine), average=False, name=f"jax.{name}")

    found = {
        "tensorflow": of_tensorflow("eager"),
        "tensorflow graph": tf.function(lambda: of_tensorflow("graph"))(),
        "tensorflow XLA": tf.function(lambda: of_tensorflow("xla"), jit_compile=True)(),
        "jax": of_jax("eager"),
        "jax jit": jax.jit(lambda: of_jax("jit"))(),
        "keras": byteps.keras.push_pull(mine, "array", average=False),
        "torch": byteps.torch.synchronize(handle),
    }
    return {name: sorted(set(np.asarray(total).tolist())) for name, total in found.items()}


@pytest.mark.long(reason="all frameworks are imported for real in each of three orders")
@pytest.mark.timeout(240)
def test_frameworks_share_a_job_whatever_is_imported_first_and_whenever_it_is_joined():
    size = len(ORDERS)
    environ = dict(TENSORFLOW, JAX_PLATFORMS="cpu")
    with Cluster(size, environ=environ, layer="os", init=False) as cluster:
        cluster.run_each([(import_all, order, {}) for order in ORDERS], timeout_s=200)

        for rank, found in enumerate(cluster.run(sums_of_all_layers)):
            assert set(map(tuple, found.values())) == {(size * (size + 1) / 2,)}, (ORDERS[rank], found)
        alike = [[rank for rank in range(size) if ORDERS[rank][0] == backend] for backend, _ in ORDERS]
        differences = cluster.run_each([(checks.difference_in_a_process_set, (ranks,), {}) for ranks in alike])
        assert max(differences) < 1e-5, differences


def sum_of_mxnet(order):
    for name in order.split():
        importlib.import_module("byteps._core.session").init() if name == "init" else importlib.import_module(name)
    import mxnet as mx

    import byteps.mxnet

    array = mx.nd.ones((COUNT,)) * (byteps.mxnet.rank() + 1)
    byteps.mxnet.byteps_push_pull(array, name="sum", is_average=False)
    return sorted(set(array.asnumpy().tolist()))


@pytest.mark.skipif(not MXNET_PYTHON.exists(), reason="there is no .venv-mxnet: `make setup` makes it")
def test_mxnet_may_be_imported_before_and_after_the_job_is_joined():
    orders = ["init mxnet", "mxnet byteps.mxnet init", "byteps.mxnet init"]
    with Cluster(len(orders), layer="os", init=False, python=MXNET_PYTHON) as cluster:
        assert cluster.run_each([(sum_of_mxnet, (order,), {}) for order in orders]) == [[6.0]] * 3
