"""bps doctor where there are RDMA devices, and where something is wrong with them."""

import json
import os
import subprocess
import sys

import pytest
from lab import address, on, port_down
from place import BUILD, ROOT


def doctor(host, before=(), **environ):
    """Exit code and findings by check, as a server of a job on this host would have them."""
    own = {
        "PYTHONPATH": str(ROOT / "python"),
        "BYTEPS_BIN": str(BUILD / "bin"),
        "BYTEPS_JOB_KEY": "a key of enough length",
        "DMLC_ROLE": "server",
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "2",
        "DMLC_PS_ROOT_URI": address(1),
        "DMLC_PS_ROOT_PORT": "9",
        "DMLC_ENABLE_RDMA": "ibverbs",
    }
    command = [*on(host), *before, sys.executable, "-m", "byteps.tools.bps", "doctor", "--json"]
    run = subprocess.run(command, env={**os.environ, **own, **environ}, capture_output=True, text=True)
    assert run.stdout, run.stderr
    return run.returncode, {each["check"]: each for each in json.loads(run.stdout)}


def test_a_host_with_rdma_is_ok():
    code, found = doctor(2)
    assert code == 0, found
    assert found["RDMA address"]["text"] == "10.77.0.2 is rxe2's RoCE v2 GID 1"
    assert "ACTIVE" in found["RDMA"]["text"] and "packets of 4096 bytes" in found["RDMA MTU"]["text"]
    assert found["locked memory"]["text"].startswith("unlimited; RDMA needs")
    assert found["RDMA and fork"]["level"] == "ok"


@pytest.mark.long(reason="each problem is tested with played devices in tests/process/test_doctor_rdma.py")
def test_too_little_locked_memory_and_a_port_that_is_down_are_problems():
    with port_down(3):
        code, found = doctor(3, before=["prlimit", "--memlock=65536"], BYTEPS_RDMA_DEVICE="rxe3")
    assert code == 1
    assert found["RDMA"]["level"] == "problem" and "rxe3 port 1 (DOWN" in found["RDMA"]["text"], found
    assert found["locked memory"]["level"] == "problem" and "64 KiB" in found["locked memory"]["text"]
