"""Fixtures of the tests of byteps.jax: jobs of 1, 2 and 3 workers, whose processes serve all tests."""

from __future__ import annotations

import pytest
from cluster import JAX, Clusters


@pytest.fixture(scope="session")
def jax_jobs():
    jobs = Clusters(layer="byteps.jax", environ=JAX)
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
