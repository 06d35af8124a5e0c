"""No loop waits for anything but its own input: not for name servers, readers of its log, disks, or other threads.

The faults are made by small libraries that are loaded with LD_PRELOAD (conftest.py): slow_calls.c makes calls slow,
no_blocking.c ends a process whose loop makes a call that may block, with its name.
"""

import contextlib
import fcntl
import os
import shutil
import time

import pytest
from evil import Relay
from job import BOUND_S, FAILURE_S, Job
from place import BUILD, wait_until

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
    pytest.mark.skipif(BUILD.name in ("asan", "tsan"), reason="a sanitizer's runtime must be loaded first"),
]


# ---- name servers


def test_a_name_server_that_stops_answering_in_mid_job_is_not_missed(tmp_path, preload):
    """The connection of a worker to the scheduler breaks for an instant, and no name is resolved any more."""
    slow = tmp_path / "names_are_slow"
    with Job(tmp_path / "job", environ={"DMLC_PS_ROOT_URI": "localhost", "DMLC_NODE_HOST": "localhost"}) as job:
        job.start_services()
        cable = Relay(job.port)
        plan = {"*": [["loop"]]}
        job.start_worker(0, plan)
        environ = {"LD_PRELOAD": preload["slow_calls"], "SLOW_NAMES": str(slow), "DMLC_PS_ROOT_PORT": str(cable.port)}
        job.start_worker(1, plan, environ)
        job.wait_for("looping")
        slow.touch()
        # The first attempt after a cut is at the address that is known. Only when that fails the name is looked up.
        for _ in range(3):
            cable.cut()
            job.wait_for_steps(time.monotonic() + FAILURE_S * 7 / 6 + 1)  # by then the scheduler would have given it up
        cable.close()


def test_a_slow_name_server_makes_the_start_slow_and_nothing_else(tmp_path, preload):
    slow = tmp_path / "names_are_slow"
    slow.touch()
    plan = {"*": [["loop", 20]]}
    with Job(tmp_path / "job", environ={"DMLC_PS_ROOT_URI": "localhost", "DMLC_NODE_HOST": "localhost"}) as job:
        environ = {"LD_PRELOAD": preload["slow_calls"], "SLOW_NAMES": str(slow)}
        job.start_scheduler()
        job.start_server()
        job.start_server(environ)
        job.start_worker(0, plan)
        job.start_worker(1, plan, environ)
        job.join(timeout_s=90)
        assert [process.code for process in job.processes] == [0] * 5, job.story("not all ended well")
        assert slow.read_text().count("asked") >= 2, "it was slow"


def test_servers_tell_addresses_so_that_workers_look_nothing_up(tmp_path, preload):
    """The name of the servers is unknown to the workers."""
    with Job(tmp_path / "job", environ={"DMLC_NODE_HOST": "localhost"}) as job:
        never = tmp_path / "names_are_slow"
        never.touch()
        environ = {"LD_PRELOAD": preload["slow_calls"], "SLOW_NAMES": str(never)}
        job.start_services()
        for rank in range(job.size):
            job.start_worker(rank, {"*": [["loop", 5]]}, environ)
        job.join()
        assert [worker.code for worker in job.workers] == [0, 0], job.story("not all ended well")
        assert never.read_text() == "", "a worker looked a name up"


# ---- readers of the log


@contextlib.contextmanager
def full_pipe():
    """The descriptor of a pipe that takes nothing more."""
    out, into = os.pipe()
    os.set_blocking(into, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(into, b"x" * 4096)
    os.set_blocking(into, True)
    try:
        yield into
    finally:
        os.close(out)
        os.close(into)


def saying_to(descriptor):
    """How a Process is started with this standard error."""
    return {"prefix": ["bash", "-c", f'exec "$@" 2>&{descriptor}', "bash"], "pass_fds": [descriptor]}


def test_a_worker_whose_log_nobody_reads_goes_on(tmp_path):
    """Its notice that somebody is late does not come out; the other rank comes later than it would be missed."""
    with Job(tmp_path / "job") as job, full_pipe() as pipe:
        job.start_services()
        plan = {"0": [["push", "A"], ["wait"]], "1": [["sleep", 5 + 2 * FAILURE_S], ["push", "A"], ["wait"]]}
        job.start_worker(0, plan, {"BYTEPS_LOG_LEVEL": "DEBUG"}, **saying_to(pipe))
        job.start_worker(1, plan)
        job.join()
        assert [worker.code for worker in job.workers] == [0, 0], job.story("not all ended well")


def test_servers_and_a_scheduler_whose_log_nobody_reads_still_tell_the_workers(tmp_path):
    with Job(tmp_path / "job", servers=1) as job, full_pipe() as pipe:
        job.start_scheduler(**saying_to(pipe))
        job.start_server(**saying_to(pipe))
        for rank in range(2):
            plan = {"0": [["push", "A", "float32", 1000]], "1": [["push", "A", "float32", 999]]}
            job.start_worker(rank, plan)
        job.join()
        for worker in job.workers:
            assert [end["name"] for end in worker.failures] == ["A"], job.story("no mismatch")
            assert "differs between ranks" in worker.failures[0]["message"], job.story("another error")


@pytest.mark.parametrize("who", ["scheduler", "server"])
def test_a_log_whose_reader_has_gone_ends_nobody(tmp_path, who):
    """As `byteps_scheduler 2>&1 | head -1` does it."""
    out, into = os.pipe()
    os.close(out)
    with Job(tmp_path / "job", servers=1, environ={"BYTEPS_LOG_LEVEL": "DEBUG"}) as job:
        job.start_scheduler(**(saying_to(into) if who == "scheduler" else {}))
        job.start_server(**(saying_to(into) if who == "server" else {}))
        os.close(into)
        for rank in range(2):
            job.start_worker(rank, {"*": [["loop", 5]]})
        job.join()
        assert [process.code for process in job.processes] == [0] * 4, job.story("not all ended well")


def test_what_was_logged_before_the_end_is_written(tmp_path):
    with Job(tmp_path / "job", servers=1) as job:
        out, into = os.pipe()
        fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, 4096)
        job.start_scheduler(**saying_to(into))
        os.close(into)
        with os.fdopen(out, "rb", buffering=0) as read:
            text = b""
            while b"listening at" not in text:
                text += read.read(4096)
            job.scheduler.send(15)
            while more := read.read(4096):
                text += more
        text = text.decode()
        job.join()
        assert "listening at" in text and "told to stop" in text, text


# ---- threads that stand still


def test_a_shard_that_stands_still_ends_the_job_by_name(tmp_path, preload):
    stuck = tmp_path / "stuck"
    with Job(tmp_path / "job", environ={"BYTEPS_SERVER_ENGINE_THREAD": "2"}) as job:
        environ = {"LD_PRELOAD": preload["slow_calls"], "STUCK_THREAD": "byteps-shard", "STUCK_WHEN": str(stuck)}
        job.start_scheduler()
        job.start_server()
        job.start_server(environ)
        for rank in range(2):
            job.start_worker(rank, {"*": [["loop"]]})
        job.wait_for("looping")
        began_s = time.monotonic()
        stuck.touch()
        job.join()
        words = [
            ["server 1 (", f"shard {shard} stands still for {seconds}"] for shard in (0, 1) for seconds in ("3 s", "3.")
        ]
        job.check_end(began_s, job.workers, words)
        assert job.servers[1].code == 1, job.story("the server with it")
        assert "ends without it" in job.servers[1].err, job.story("it does not say so")
        job.check_cause("server", 1, "stands still")
        job.check_nothing_is_left()


# ---- the trap


def trapped(job, report, environ):
    job.environ.update({"NO_BLOCKING_REPORT": str(report), **environ})
    return job


def judge(job, report):
    assert not report.exists(), job.story(report.read_text())
    assert not any(process.code == -6 for process in job.processes), job.story("aborted")


@pytest.mark.parametrize("call", ["usleep", "write", "open", "getaddrinfo"])
def test_the_trap_catches_a_planted_call(tmp_path, preload, call):
    report = tmp_path / "report"
    with Job(tmp_path / "job", workers=1, servers=1) as job:
        environ = {"LD_PRELOAD": f"{preload['no_blocking']}:{preload['planted_call']}", "PLANTED_CALL": call}
        trapped(job, report, environ)
        job.start_server()  # its loop tries to reach a scheduler that is not there
        assert wait_until(lambda: job.servers[0].code == -6), job.story("nothing was trapped")
        assert f"BLOCKING {call}(" in report.read_text()


def test_no_loop_of_a_whole_job_calls_what_may_block(tmp_path, preload):
    """With host names, files of all kinds, all levels of the log, shared memory, and a rank that disagrees."""
    report = tmp_path / "report"
    environ = {
        "LD_PRELOAD": preload["no_blocking"],
        "DMLC_PS_ROOT_URI": "localhost",
        "DMLC_NODE_HOST": "localhost",
        "BYTEPS_LOG_LEVEL": "TRACE",
        "BYTEPS_TRACE_ON": "1",
        "BYTEPS_TRACE_DIR": str(tmp_path / "trace"),
        "BYTEPS_TRACE_START_STEP": "1",
        "BYTEPS_TRACE_END_STEP": "3",
    }
    plan = {
        "0": [["loop", 5], ["barrier"], ["push", "A", "float32", 1000], ["wait"], ["again", "B"], ["wait"]],
        "1": [["loop", 5], ["barrier"], ["push", "A", "float32", 999], ["wait"], ["again", "B"], ["wait"]],
    }
    with trapped(Job(tmp_path / "job"), report, environ) as job:
        job.start(plan)
        job.join()
        judge(job, report)
        for worker in job.workers:
            assert [end["name"] for end in worker.failures] == ["A"], job.story("no mismatch")


@pytest.mark.parametrize("victim", ["scheduler", "server", "worker"])
def test_no_loop_calls_what_may_block_when_the_job_fails(tmp_path, preload, victim):
    report = tmp_path / "report"
    environ = {"LD_PRELOAD": preload["no_blocking"], "BYTEPS_RECOVERY": "0"}
    with trapped(Job(tmp_path / "job"), report, environ) as job:
        job.start({"*": [["loop"]]})
        job.wait_for("looping")
        {"scheduler": job.scheduler, "server": job.servers[1], "worker": job.workers[1]}[victim].kill()
        job.join()
        judge(job, report)
        left = [worker for worker in job.workers if worker.code != -9]
        assert all(worker.failures and worker.code == 1 for worker in left), job.story("no error")


def test_no_loop_calls_what_may_block_when_signals_end_the_job(tmp_path, preload):
    report = tmp_path / "report"
    environ = {"LD_PRELOAD": preload["no_blocking"], "BYTEPS_RECOVERY": "0"}
    with trapped(Job(tmp_path / "job"), report, environ) as job:
        began_s = time.monotonic()
        job.start({"*": [["loop"]]})
        job.wait_for("looping")
        job.servers[0].send(15)
        job.join()
        judge(job, report)
        assert job.servers[0].code == 128 + 15, job.story("by its signal")
        assert time.monotonic() - began_s < 60 + BOUND_S
