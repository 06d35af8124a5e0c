"""import byteps.server, and python -m byteps.server: upstream's way to run servers and scheduler."""

import os
import signal
import subprocess
import sys
import time

import pytest
from cluster import clean_environment
from place import hold_port, wait_for


def start(role, port, command=("-c", "import byteps.server; print('returned')"), **extra):
    environ = dict(
        clean_environment(),
        DMLC_ROLE=role,
        DMLC_NUM_WORKER="1",
        DMLC_NUM_SERVER="1",
        DMLC_WORKER_ID="0",
        DMLC_PS_ROOT_URI="127.0.0.1",
        DMLC_PS_ROOT_PORT=str(port),
        DMLC_NODE_HOST="127.0.0.1",
        BYTEPS_FORCE_DISTRIBUTED="1",
        **extra,
    )
    return subprocess.Popen([sys.executable, *command], env=environ, stdout=-1, stderr=-1, text=True)


def end(processes):
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()


def test_a_job_runs_on_servers_that_were_imported():
    with hold_port() as held:
        port = held.getsockname()[1]
        worker = "import torch, byteps.torch as bps; bps.init(); print(bps.push_pull(torch.ones(2), name='x').sum())"
        processes = [
            start("scheduler", port),
            start("server", port, ("-m", "byteps.server")),
            start("worker", port, ("-c", worker)),
        ]
        try:
            outputs = [process.communicate(timeout=60) for process in processes]
        finally:
            end(processes)
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    assert [out.strip() for out, _ in outputs] == ["returned", "", "tensor(2.)"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_the_server_and_its_exit_code_comes_back(number):
    with hold_port() as held:
        process = start("scheduler", held.getsockname()[1])
        try:
            children = wait_for_child(process.pid)
            process.send_signal(number)
            out, _ = process.communicate(timeout=30)
        finally:
            end([process])
    assert process.returncode == 128 + number and out == ""
    assert not any(os.path.exists(f"/proc/{child}") for child in children)


def blocks(pid, number):
    with open(f"/proc/{pid}/status") as status:
        mask = next(int(line.split()[1], 16) for line in status if line.startswith("SigBlk:"))
    return mask >> (number - 1) & 1


def wait_for_child(pid, timeout_s=30):
    """The ids of its children that have become our executable."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with open(f"/proc/{pid}/task/{pid}/children") as listing:
            children = listing.read().split()
        for child in children:
            with open(f"/proc/{child}/comm") as name:
                if name.read().startswith("byteps_"):
                    wait_for("a handler of signals", lambda: blocks(child, signal.SIGTERM), 60)
                    return children
        time.sleep(0.01)
    raise AssertionError("no child was started")


def test_a_role_that_is_none_is_refused():
    for role in ("worker", ""):
        process = start(role, 1, ("-m", "byteps.server"))
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 2
        assert "byteps.server needs one of server, scheduler" in errors


def test_a_missing_executable_is_named(tmp_path):
    environ = dict(clean_environment(), DMLC_ROLE="server", BYTEPS_BIN=str(tmp_path))
    command = [sys.executable, "-m", "byteps.server"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and "byteps_server was not found" in done.stderr
