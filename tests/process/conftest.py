"""Tests with real processes: see tests/jobs."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from job import Job
from place import Place
from sshd import sshd, stand_in


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path)
    yield place
    place.close()


@pytest.fixture(scope="session")
def preload(tmp_path_factory):
    """Libraries for LD_PRELOAD, built from the C files here: paths by name. Needs a C compiler."""
    folder = tmp_path_factory.mktemp("preload")
    paths = {}
    for name in ("slow_calls", "no_blocking", "planted_call"):
        paths[name] = str(folder / f"{name}.so")
        source = Path(__file__).with_name(f"{name}.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-g", "-o", paths[name], source, "-ldl"], check=True)
    return paths


CASES_AT_ONCE = 8


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    """For tests that mostly wait for a timeout: the selected of the module's CASES, by the tests' parameter "name", all
    begun at once. A case is a function of a Job, made with the module's OPTIONS; result() of its outcome is that Job,
    or raises."""
    cases, options = request.module.CASES, getattr(request.module, "OPTIONS", {})
    chosen = [item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")]

    # pytest's factory is not for threads: two that ask first at once get different places for all that follows.
    folders = {name: tmp_path_factory.mktemp(name) for name in cases if name in chosen}

    def run(name):
        job = Job(folders[name], **options)
        cases[name](job)
        return job

    with ThreadPoolExecutor(CASES_AT_ONCE) as pool:
        futures = {name: pool.submit(run, name) for name in folders}
        yield futures
        for future in futures.values():
            future.cancel()
