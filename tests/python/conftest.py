"""Fixtures: `alone` is a job of one in this process; `job1`, `job2`, `job3` are jobs of so many worker processes and
two servers, shared by all tests of a run and started anew when a test has broken one."""

import os
import sys
from typing import Dict

import pytest

sys.path.insert(0, os.path.dirname(__file__))

from cluster import ROOT, Cluster, clean_environment  # noqa: E402

sys.path.insert(0, str(ROOT / "python"))
for name in [name for name in os.environ if name.startswith(("DMLC_", "BYTEPS_")) and name != "BYTEPS_TEST_BUILD"]:
    del os.environ[name]
os.environ["BYTEPS_LIBRARY"] = clean_environment()["BYTEPS_LIBRARY"]

import torch  # noqa: E402

import byteps.torch as bps  # noqa: E402

torch.set_num_threads(1)


class Clusters:
    def __init__(self) -> None:
        self._by_size: Dict[int, Cluster] = {}

    def get(self, size: int) -> Cluster:
        cluster = self._by_size.get(size)
        if cluster is not None and cluster.broken:
            cluster.kill()
            cluster = None
        if cluster is None:
            cluster = self._by_size[size] = Cluster(size).__enter__()
        return cluster

    def end(self) -> None:
        for cluster in self._by_size.values():
            cluster.dismiss()  # all first, so that they end at the same time
        for cluster in self._by_size.values():
            cluster.__exit__(None, None, None)


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


@pytest.fixture
def alone():
    bps.init()
    yield bps
    bps.shutdown()
