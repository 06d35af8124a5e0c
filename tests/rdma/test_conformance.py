"""The conformance suite of transports (tests/conformance) where there is an RDMA device."""

import re
import subprocess

import pytest
from place import BUILD


@pytest.mark.parametrize("kind", ["rdma"])
def test_a_transport_passes_the_conformance_suite(kind):
    command = [BUILD / "bin/conformance_test", f"--gtest_filter=*/{kind}", "--gtest_brief=1"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    passed = re.search(r"PASSED  \] (\d+) tests", run.stdout)
    assert passed and int(passed[1]) > 20 and "SKIPPED" not in run.stdout, run.stdout
