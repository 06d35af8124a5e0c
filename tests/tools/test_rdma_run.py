"""What tests/rdma/run relies on: a guest in which every test is skipped does not count as well."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("must_run, code", [("0", 0), ("1", 5)])
def test_tests_of_the_guest_that_are_all_skipped_are_a_failure_where_they_must_run(must_run, code):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/rdma/test_lab.py"]
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TESTS_MUST_RUN": must_run}
    run = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert run.returncode == code and "3 skipped" in run.stdout, run.stdout + run.stderr
    assert ("no test was run" in run.stdout) == (must_run == "1"), run.stdout
