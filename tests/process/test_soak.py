"""tools/soak itself: a run of one blow ends well, a violation is reported, and Ctrl-C ends it cleanly."""

import os
import re
import signal
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

import pytest
import soaking
from place import ROOT

SOAK = ROOT / "tools/soak"
ONE_BLOW = ["--minutes", "0.01", "--period-s", "2"]

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def soak():
    loader = SourceFileLoader("soak", str(SOAK))
    module = module_from_spec(spec_from_loader("soak", loader))
    loader.exec_module(module)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield module
    for number, handler in before.items():
        signal.signal(number, handler)


def start(folder, *arguments):
    return subprocess.Popen(
        [sys.executable, SOAK, "--output", folder / "soak", *arguments], text=True, stdout=subprocess.PIPE
    )


def left_by(folder):
    """Processes whose environment has the folder of the run."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as environ:
                if str(folder / "soak").encode() in environ.read():
                    found.append(pid)
        except OSError:
            pass
    return found


def test_a_run_of_one_blow_is_clean(tmp_path):
    run = start(tmp_path, *ONE_BLOW, "--seed", "3")
    out, _ = run.communicate()
    assert run.returncode == 0, out
    assert re.search(r"violations +0\n", out), out
    assert re.search(r"^ +\d:\d\d  (kill|terminate|stop) (scheduler|(server|worker) [01])$", out, re.M), out
    assert {"summary.txt", "memory.csv"} <= set(os.listdir(tmp_path / "soak"))
    assert left_by(tmp_path) == []


def interrupt_after(run, folder, blow):
    """Ctrl-C when it has said that, by which it ends with a summary and leaves nothing."""
    lines = []
    for line in run.stdout:
        lines.append(line)
        if re.search(blow, line):
            break
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate()
    assert run.returncode == 130, out
    assert "interrupted" in out and re.search(r"violations +0\n", out), "".join(lines) + out
    assert left_by(folder) == []


def test_interrupted_it_ends_with_a_summary_and_leaves_nothing(tmp_path):
    run = start(tmp_path, "--minutes", "10", "--period-s", "2", "--seed", "3")
    interrupt_after(run, tmp_path, r"  (kill|terminate|stop) |is stopped for")


def test_what_does_not_end_in_time_is_a_violation(tmp_path, soak, monkeypatch, capsys):
    monkeypatch.setattr(soak, "END_BOUND_S", 0.05)
    code = soak.main([*ONE_BLOW, "--seed", "3", "--output", str(tmp_path / "soak")])
    out = capsys.readouterr().out
    assert code == 1, out
    assert re.search(r"VIOLATION: .* within 0 s", out), out
    assert "exit code" in (tmp_path / "soak/violation-1.txt").read_text()
    assert left_by(tmp_path) == []


@pytest.mark.parametrize("mib_per_minute, grown", [(0.0, False), (0.05, False), (0.5, True)])
def test_growth_is_seen_beyond_the_warm_up(mib_per_minute, grown):
    memory = soaking.Memory()
    memory.series["server0"] = [
        (at, 20.0 * min(1.0, at / 120) + mib_per_minute * at / 60 + (5.0 if at == 900 else 0.0)) for at in range(1800)
    ]
    assert (memory.growth_mib("server0") > soaking.GROWTH_MIB_MAX) == grown


# ---- of recovery


def start_recovery(folder, *arguments):
    command = [sys.executable, ROOT / "tools/soak_recovery", "--output", folder / "soak", "-v", *arguments]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE)


def test_a_job_survives_some_blows_and_the_loss_of_two_of_its_workers(tmp_path):
    run = start_recovery(tmp_path, "--minutes", "0.35", "--period-s", "3", "--seed", "3")
    out, _ = run.communicate()
    assert run.returncode == 0 and re.search(r"violations +0\n", out), out
    assert re.search(r"workers +4, then 2\n", out) and re.search(r"kill a (server|worker) +2", out), out
    assert {"summary.txt", "memory.csv"} <= set(os.listdir(tmp_path / "soak"))
    assert left_by(tmp_path) == []


def test_the_soak_of_recovery_ends_cleanly_with_ctrl_c(tmp_path):
    run = start_recovery(tmp_path, "--minutes", "10", "--period-s", "2", "--seed", "3")
    interrupt_after(run, tmp_path, r"  (kill|stop|cut) ")
