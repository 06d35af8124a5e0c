"""The conformance suite of transports (tests/conformance) between two hosts with an RDMA device each."""

import re
import subprocess

import pytest
from lab import sent_packets
from place import BUILD

PACKETS_MIN = {1: 5000, 2: 15_000, 3: 0}  # of up to 4096 bytes, and acknowledgements


@pytest.mark.parametrize("kind", ["rdma"])
def test_a_transport_passes_the_conformance_suite(kind):
    """It listens on host 1, and what speaks to that does so as host 2 (hosts.sh)."""
    before = sent_packets()
    command = [BUILD / "bin/conformance_test", f"--gtest_filter=*/{kind}", "--gtest_brief=1"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    passed = re.search(r"PASSED  \] (\d+) tests", run.stdout)
    assert passed and int(passed[1]) > 20 and "SKIPPED" not in run.stdout, run.stdout
    sent = {host: count - before[host] for host, count in sent_packets().items()}
    assert all(sent[host] >= least for host, least in PACKETS_MIN.items()), sent
