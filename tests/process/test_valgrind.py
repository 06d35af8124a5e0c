"""The worker library leaves nothing behind in a process of others: valgrind sees no error and no leak.

valgrind knows no AVX-512 and hides it in CPUID, so the kernels choose AVX2 by themselves.
"""

import shutil
import signal

import pytest
from job import Job, Process
from place import BUILD, wait_until

VALGRIND = shutil.which("valgrind")
FINDING = 99  # no other exit code of a worker
KINDS = "definite,indirect"


def command(*arguments, kinds=KINDS + ",possible"):
    return [
        VALGRIND, "--quiet", "--leak-check=full", f"--show-leak-kinds={kinds}", f"--errors-for-leak-kinds={kinds}",
        f"--error-exitcode={FINDING}", "--num-callers=30", BUILD / "bin/checked_worker", *arguments,
    ]  # fmt: skip


ENVIRON = {"BYTEPS_FAILURE_TIMEOUT_MS": "10000"}  # valgrind is slow

pytestmark = [
    pytest.mark.long(reason="valgrind is some twenty times slower; the sanitizers find most of the same"),
    pytest.mark.skipif(VALGRIND is None, reason="there is no valgrind here (Debian: apt-get install valgrind)"),
    pytest.mark.timeout(240),
]


def start(folder, *arguments, **options):
    job = Job(folder, workers=1, servers=1, environ=ENVIRON)
    job.start_services()
    job.start_program(0, command(*arguments, **options))
    return job


def check(job, code=0):
    job.join(timeout_s=120)
    worker = job.workers[0]
    assert worker.code != FINDING, job.story("valgrind has found something")
    assert worker.code == code, job.story(f"the worker ended with {worker.code}")
    assert "==" not in worker.err, job.story("valgrind said something")
    job.check_nothing_is_left()


def test_a_worker_that_joins_and_leaves_twice_is_clean(tmp_path):
    with start(tmp_path, "2", "3", "leave") as job:
        check(job)
        assert job.workers[0].out_path.read_text().count("rank 0 joined") == 2


def test_a_worker_that_exits_without_leaving_is_clean(tmp_path):
    # Its threads still run then, and of glibc's blocks for them valgrind sees only pointers into the middle.
    with start(tmp_path, "1", "3", "exit", kinds=KINDS) as job:
        check(job)


def test_a_worker_whose_server_was_killed_is_clean(tmp_path):
    with start(tmp_path, "1", "0", "fail") as job:
        worker = job.workers[0]
        assert wait_until(lambda: "round" in worker.out_path.read_text(), 60), job.story("no rounds")
        job.servers[0].kill()
        check(job)
        assert "server 0" in worker.err, job.story("the error does not name the server")
        assert job.servers[0].code == -signal.SIGKILL


def test_a_worker_that_gives_up_joining_is_clean(tmp_path):
    with Job(tmp_path, workers=1, servers=1, environ={**ENVIRON, "BYTEPS_START_TIMEOUT_S": "2"}) as job:
        job.start_program(0, command("1", "1", "fail"))
        check(job)
        assert "127.0.0.1" in job.workers[0].err


def test_a_job_of_one_is_clean(tmp_path):
    with Job(tmp_path, workers=1, servers=0) as job:
        alone = {name: value for name, value in job.place.environ.items() if not name.startswith("DMLC_")}
        job.workers.append(Process(job, "worker0", command("2", "3", "leave"), alone))
        check(job)
