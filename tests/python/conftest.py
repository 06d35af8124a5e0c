"""Fixtures: `alone` is a job of one in this process; `job1`, `job2`, `job3` are jobs of so many worker processes and
two servers, made of the same processes for all tests of a run (so one test has one of them), which are started anew
when a test has broken them. `mxnet_job2` and `mxnet_job` (one of each size) are the same in .venv-mxnet; `tf_job2`,
`tf_job3` and `tf_job` with workers that have TensorFlow. BYTEPS_TEST_DEVICE=cuda: on_cuda.py."""

import importlib.util
import os
import sys

import place
import pytest

# `make test-gpu` runs with any Python: one line says what it lacks.
if lacking := [name for name in ("torch", "numpy", "cloudpickle") if importlib.util.find_spec(name) is None]:
    sys.exit(f"these tests need {', '.join(lacking)}: {sys.executable} -m pip install {' '.join(lacking)}")
if not place.LIBRARY.is_file():
    sys.exit(f"byteps is neither built here (make setup) nor installed for {sys.executable}")
if place.INSTALLED:  # pytest has put the checkout's first
    sys.path[:] = [entry for entry in sys.path if entry != str(place.ROOT / "python")]

import on_cuda
from cluster import MXNET_PYTHON, TENSORFLOW, Clusters, clean_environment

if on_cuda.CHOSEN:
    on_cuda.prepare()
    # Of frameworks that are not here, perhaps, and have nothing on a GPU.
    collect_ignore_glob = [f"test_{kind}*.py" for kind in ("jax", "keras", "mixed", "mxnet", "tensorflow")]

for name in [name for name in os.environ if name.startswith(("DMLC_", "BYTEPS_")) and name != "BYTEPS_TEST_BUILD"]:
    del os.environ[name]
os.environ["BYTEPS_LIBRARY"] = clean_environment()["BYTEPS_LIBRARY"]

import torch

import byteps.torch as bps

torch.set_num_threads(1)


def pytest_configure(config):
    config.addinivalue_line("markers", "host(reason): not with tensors on a GPU (on_cuda.py)")


def pytest_collection_modifyitems(config, items):
    out = [item for item in items if on_cuda.is_left_out(item)]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in out]
    reason = on_cuda.missing()
    for item in items if reason else []:
        item.add_marker(pytest.mark.skip(reason=f"no GPU: {reason}"))


@pytest.fixture(scope="session")
def clusters():
    clusters = Clusters()
    yield clusters
    clusters.end()


@pytest.fixture
def job1(clusters):
    return clusters.get(1)


@pytest.fixture
def job2(clusters):
    return clusters.get(2)


@pytest.fixture
def job3(clusters):
    return clusters.get(3)


@pytest.fixture(params=[1, 2, 3], ids=lambda size: f"{size}_workers")
def job(request, clusters):
    return clusters.get(request.param)


@pytest.fixture(scope="session")
def mxnet_clusters():
    if not MXNET_PYTHON.exists():
        pytest.skip(
            f"there is no {MXNET_PYTHON}: `make setup` makes it where MXNet 1.9.1 runs, with CPython 3.9 to 3.11 on "
            "x86-64 Linux"
        )
    clusters = Clusters(layer="byteps.mxnet", python=MXNET_PYTHON)
    yield clusters
    clusters.end()


@pytest.fixture
def mxnet_job2(mxnet_clusters):
    return mxnet_clusters.get(2)


@pytest.fixture(params=[1, 2, 3], ids=lambda size: f"{size}_workers")
def mxnet_job(request, mxnet_clusters):
    return mxnet_clusters.get(request.param)


@pytest.fixture(scope="session")
def tf_clusters():
    clusters = Clusters(layer="byteps.tensorflow", environ=TENSORFLOW)
    yield clusters
    clusters.end()


@pytest.fixture
def tf_job2(tf_clusters):
    return tf_clusters.get(2)


@pytest.fixture
def tf_job3(tf_clusters):
    return tf_clusters.get(3)


@pytest.fixture(params=[1, 2, 3], ids=lambda size: f"{size}_workers")
def tf_job(request, tf_clusters):
    return tf_clusters.get(request.param)


@pytest.fixture
def alone():
    bps.init()
    yield bps
    bps.shutdown()
