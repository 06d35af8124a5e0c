"""Fixtures of the tests of byteps.jax: jobs of 1, 2 and 3 workers that stay alive for all tests of one file."""

from __future__ import annotations

import os
import sys

import pytest
from cluster import Cluster


class JaxJobs:
    def __init__(self, **options) -> None:
        self._options = {"python": os.environ.get("BYTEPS_TEST_JAX_PYTHON", sys.executable), **options}
        self._by_size = {}

    def get(self, size: int) -> Cluster:
        cluster = self._by_size.get(size)
        if cluster is not None and cluster.broken:
            cluster.kill()
            cluster = None
        if cluster is None:
            cluster = self._by_size[size] = Cluster(size, layer="byteps.jax", **self._options).__enter__()
        return cluster

    def end(self) -> None:
        for cluster in self._by_size.values():
            cluster.dismiss()  # all first, so that they end at the same time
        for cluster in self._by_size.values():
            cluster.__exit__(None, None, None)


@pytest.fixture(scope="session")
def jax_jobs():
    jobs = JaxJobs()
    yield jobs
    jobs.end()


@pytest.fixture(params=[1, 2, 3], ids=lambda size: f"{size}_workers")
def job(request, jax_jobs):
    return jax_jobs.get(request.param)


@pytest.fixture
def job2(jax_jobs):
    return jax_jobs.get(2)


@pytest.fixture
def job3(jax_jobs):
    return jax_jobs.get(3)
