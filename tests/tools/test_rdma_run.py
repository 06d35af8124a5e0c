"""What tests/rdma/run relies on: a guest in which every test is skipped does not count as well, and one that hangs
while it boots is booted again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/rdma"))

import guest


@pytest.mark.parametrize("must_run, code", [("0", 0), ("1", 5)])
def test_tests_of_the_guest_that_are_all_skipped_are_a_failure_where_they_must_run(must_run, code):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/rdma/test_lab.py"]
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TESTS_MUST_RUN": must_run}
    run = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert run.returncode == code and "3 skipped" in run.stdout, run.stdout + run.stderr
    assert ("no test was run" in run.stdout) == (must_run == "1"), run.stdout


@pytest.mark.parametrize("hanging, code", [(2, 3), (3, guest.CODE_BROKEN)])
def test_a_guest_that_hangs_while_it_boots_is_booted_again(monkeypatch, capfd, hanging, code):
    machines = []

    def start(image, initramfs, ctl, memory_mib):
        well = "echo said >>output; echo 3 >code; echo 1 >ready; sleep 0.2"
        command = "sleep 60" if len(machines) < hanging else well
        machines.append(subprocess.Popen(["sh", "-c", "exec 2>&1; " + command], cwd=ctl))
        return machines[-1]

    monkeypatch.setattr(guest, "_start", start)
    monkeypatch.setattr(guest.signal, "signal", lambda *_: None)
    monkeypatch.setattr(guest.kernel, "prepare", lambda: (None, None))
    monkeypatch.setattr(guest, "BOOT_S", 0.5)
    assert guest.run(["true"], 60, 1024, {}) == code
    said = capfd.readouterr()
    assert (said.out == "said\n") == (code == 3)
    assert said.err.count("was not ready") == hanging
    assert all(machine.poll() is not None for machine in machines)
