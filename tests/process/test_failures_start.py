"""What happens when a job cannot begin: each process that runs says what is wrong, with values, addresses and who is
missing, and ends."""

import re
import signal

import pytest
import wire
from evil import Listener, scheduler_of_version
from job import BOUND_S, FAILURE_S
from place import free_port, wait_until

from byteps.recordings import first_cause

HERE = {"*": [["barrier"]]}
BAD_SETTINGS, PORT_IN_USE = 2, 3
KEY = b"the job key of these tests"
START_S = 3  # shorter than what passes before the first notice

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def refused(worker):
    return worker.heard("refused")[0]


def check_refused(job, workers, code, *words):
    for worker in workers:
        assert worker.heard("refused"), job.story(f"{worker.name} was not refused")
        for word in words:
            assert word in refused(worker)["message"], job.story(f"{worker.name} does not say {word!r}")
        assert worker.code == code, job.story(f"{worker.name} ended with {worker.code}")


# ---- counts


@case
def workers_disagree_about_their_number(job):
    with job:
        job.start_scheduler()
        job.start_server()
        job.start_server()
        job.start_worker(0, HERE)
        job.start_worker(1, HERE, {"DMLC_NUM_WORKER": "3"})
        job.join(timeout_s=BOUND_S)
        check_refused(job, job.workers, 1, " says 2", " says 3", "DMLC_NUM_WORKER", "worker 0 (", "worker 1 (")
        assert {p.code for p in (job.scheduler, *job.servers)} == {1}
        job.check_nothing_is_left()


@case
def workers_disagree_about_the_number_of_servers(job):
    with job:
        job.start_scheduler()
        job.start_server()
        job.start_worker(0, HERE)
        job.start_worker(1, HERE, {"DMLC_NUM_SERVER": "1"})
        job.join(timeout_s=BOUND_S)
        check_refused(job, job.workers, 1, " says 2", " says 1", "DMLC_NUM_SERVER", "worker 0 (", "worker 1 (")
        job.check_nothing_is_left()


@case
def scheduler_knows_another_number_of_servers(job):
    """The workers' word counts, so the job begins; the scheduler says what it was told."""
    with job:
        job.start_scheduler({"DMLC_NUM_SERVER": "3"})
        job.start_server()
        job.start_server()
        for rank in (0, 1):
            job.start_worker(rank, HERE)
        job.join()
        assert {p.code for p in job.processes} == {0}, job.story("not all ended well")
        for words in ("2 servers", "3 servers", "the scheduler", "DMLC_NUM_SERVER"):
            assert words in job.scheduler.err, job.story(f"the scheduler does not say {words!r}")
        job.check_nothing_is_left()


@case
def server_knows_another_number_of_servers(job):
    with job:
        job.environ["BYTEPS_START_TIMEOUT_S"] = str(START_S)
        job.start_scheduler()
        job.start_server()
        job.start_server({"DMLC_NUM_SERVER": "3"})
        for rank in (0, 1):
            job.start_worker(rank, HERE, {"DMLC_NUM_SERVER": "4"})
        job.join(timeout_s=START_S + BOUND_S)
        check_refused(
            job, job.workers, 1, "of 4; here: ", "4 servers", "the scheduler was started for", "2 servers",
            "server 1 (", "DMLC_NUM_SERVER",
        )  # fmt: skip
        job.check_nothing_is_left()


@case
def too_few_workers_come(job):
    with job:
        job.environ["BYTEPS_START_TIMEOUT_S"] = str(START_S)
        job.start_scheduler()
        job.start_server()
        job.start_server()
        job.start_worker(0, HERE)
        job.join(timeout_s=START_S + BOUND_S)
        check_refused(job, job.workers, 1, "worker 1 of 2", "gave up")
        assert "waiting for worker 1 of 2" in job.scheduler.err
        assert {p.code for p in (job.scheduler, *job.servers)} == {1}
        job.check_nothing_is_left()


@case
def too_few_servers_come(job):
    with job:
        job.environ["BYTEPS_START_TIMEOUT_S"] = str(START_S)
        job.start_scheduler()
        job.start_server()
        job.start_worker(0, HERE)
        job.start_worker(1, HERE)
        job.join(timeout_s=START_S + BOUND_S)
        check_refused(job, job.workers, 1, "server 1 of 2", "gave up")
        job.check_nothing_is_left()


@case
def scheduler_knows_another_number_of_workers(job):
    """Workers count processes, the scheduler may count machines: what the workers say is right, but it is told."""
    with job:
        job.environ["BYTEPS_START_TIMEOUT_S"] = str(START_S)
        job.start_scheduler()
        job.start_server()
        job.start_server()
        for rank in (0, 1):
            job.start_worker(rank, HERE, {"DMLC_NUM_WORKER": "3"})
        job.join(timeout_s=START_S + BOUND_S)
        check_refused(job, job.workers, 1, "worker 2 of 3", "the scheduler", "2 workers")
        job.check_nothing_is_left()


@case
def a_server_too_many_is_a_spare(job):
    with job:
        job.start_scheduler()
        for _ in range(3):
            job.start_server({"DMLC_RANK": ""})
        for rank in (0, 1):
            job.start_worker(rank, HERE)
        job.join()
        assert {p.code for p in job.processes} == {0}, job.story("not all ended well")
        assert any("spare" in server.err for server in job.servers), job.story("nobody says that it is a spare")
        job.check_nothing_is_left()


@case
def two_processes_claim_one_rank(job):
    with job:
        job.start_scheduler()
        job.start_server()
        job.start_server()
        first = job.start_worker(0, HERE)
        assert wait_until(lambda: re.search(r"worker 0 .*is here", job.scheduler.err)), job.story("no worker 0")
        second = job.start_worker(0, HERE)
        assert second.child.wait(BOUND_S) == 1
        check_refused(job, [second], 1, "worker 0", "DMLC_WORKER_ID", str(first.pid), str(second.pid))
        job.start_worker(1, HERE)
        job.join(but=[second])
        assert first.code == 0, job.story("the first claimant was hurt")
        job.check_nothing_is_left()


@case
def a_rank_beyond_the_size(job):
    with job:
        worker = job.start_worker(2, HERE)
        assert worker.child.wait(10) == BAD_SETTINGS
        check_refused(job, [worker], BAD_SETTINGS, "DMLC_WORKER_ID=2", "DMLC_NUM_WORKER=2")
        job.check_nothing_is_left()


# ---- addresses


@case
def scheduler_port_in_use(job):
    with job, Listener() as taken:
        port = taken.port
        process = job.start_scheduler({"DMLC_PS_ROOT_PORT": str(port)})
        assert process.child.wait(10) == PORT_IN_USE
        assert f"127.0.0.1:{port}" in process.err and "DMLC_PS_ROOT_PORT" in process.err
        assert "address already in use" in process.err.lower()
        job.check_nothing_is_left()


@case
def server_port_in_use(job):
    with job, Listener() as taken:
        port = taken.port
        process = job.start_server({"DMLC_PORT": str(port)})
        assert process.child.wait(10) == PORT_IN_USE
        assert f"127.0.0.1:{port}" in process.err and "DMLC_PORT" in process.err
        job.check_nothing_is_left()


@case
def scheduler_unreachable(job):
    with job:
        job.environ["BYTEPS_START_TIMEOUT_S"] = str(START_S)
        job.start_server()
        for rank in (0, 1):
            job.start_worker(rank, HERE)
        job.join(timeout_s=START_S + BOUND_S)
        address = f"scheduler at 127.0.0.1:{job.port}"
        check_refused(job, job.workers, 1, address, "connection refused", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT")
        assert job.servers[0].code == 1 and address in job.servers[0].err
        job.check_nothing_is_left()


@case
def scheduler_unreachable_is_said_before_the_end(job):
    with job:
        worker = job.start_worker(0, HERE)
        told = f"scheduler at 127.0.0.1:{job.port} unreachable since"
        assert wait_until(lambda: told in worker.err), job.story("silence")
        worker.send(signal.SIGINT)
        assert worker.child.wait(BOUND_S) != 0
        job.check_nothing_is_left()


@case
def scheduler_name_that_does_not_resolve(job):
    with job:
        job.environ["BYTEPS_START_TIMEOUT_S"] = str(START_S)
        job.start_worker(0, HERE, {"DMLC_PS_ROOT_URI": "no-such-host.invalid"})
        job.join(timeout_s=START_S + BOUND_S)
        check_refused(job, job.workers, 1, "no-such-host.invalid", "DMLC_PS_ROOT_URI")
        job.check_nothing_is_left()


# ---- keys


@case
def another_job_key(job):
    with job:
        job.start_scheduler()
        job.start_server()
        job.start_server({"BYTEPS_JOB_KEY": "another key of this job"})
        job.start_worker(0, HERE)
        job.start_worker(1, HERE, {"BYTEPS_JOB_KEY": "another key of this job"})
        strange = [job.servers[1], job.workers[1]]
        for process in strange:
            assert process.child.wait(BOUND_S + FAILURE_S) == 1, job.story(f"{process.name} goes on")
        assert "BYTEPS_JOB_KEY" in job.servers[1].err, job.story("the server does not name it")
        check_refused(job, [job.workers[1]], 1, "BYTEPS_JOB_KEY")
        assert job.workers[0].code is None and job.scheduler.code is None, job.story("strangers hurt the job")
        assert "another key of this job" not in job.story("")
        for process in (job.scheduler, job.servers[0], job.workers[0]):
            process.send(signal.SIGTERM)
        job.join()
        job.check_nothing_is_left()


@case
def missing_job_key(job):
    with job:
        job.start_scheduler()
        job.start_worker(0, HERE, {"BYTEPS_JOB_KEY": ""})
        assert job.workers[0].child.wait(BOUND_S + FAILURE_S) in (1, 2), job.story("it goes on")
        check_refused(job, job.workers, job.workers[0].code, "BYTEPS_JOB_KEY")
        job.scheduler.send(signal.SIGTERM)
        job.join()
        job.check_nothing_is_left()


# ---- versions


@case
def a_worker_finds_a_scheduler_of_another_version(job):
    with job, scheduler_of_version(13, KEY) as listener:
        job.environ.update(DMLC_PS_ROOT_PORT=str(listener.port), BYTEPS_JOB_KEY=KEY.decode())
        worker = job.start_worker(0, HERE)
        job.join(timeout_s=BOUND_S + FAILURE_S)
        check_refused(job, [worker], 1, "version 13", "version 12", "the same version of byteps")
        job.check_nothing_is_left()


@case
def a_server_finds_a_scheduler_of_another_version(job):
    with job, scheduler_of_version(13, KEY) as listener:
        job.environ.update(DMLC_PS_ROOT_PORT=str(listener.port), BYTEPS_JOB_KEY=KEY.decode())
        server = job.start_server()
        job.join(timeout_s=BOUND_S + FAILURE_S)
        assert server.code == 1 and "version 12" in server.err, job.story("the server does not name it")
        job.check_nothing_is_left()


def refusal_at(port, hello):
    with wire.Connection("127.0.0.1", port) as peer:
        with pytest.raises(wire.Refused) as refusal:
            peer.shake_hands(hello, KEY)
        return str(refusal.value)


@case
def members_of_an_older_version(job):
    """Scheduler and server refuse them, whatever is newer in a Hello, with both versions on both sides, and go on."""
    with job:
        port = free_port()
        job.environ.update(BYTEPS_JOB_KEY=KEY.decode(), DMLC_PORT=str(port), DMLC_NUM_SERVER="1")
        job.start_scheduler()
        job.start_server()
        assert wait_until(lambda: "is here" in job.scheduler.err), job.story("no server")
        for at, role in ((job.port, wire.WORKER), (job.port, wire.SERVER), (port, wire.WORKER)):
            text = refusal_at(at, wire.hello_of_version_2(role, rank=0, epoch=1, key=KEY))
            assert "protocol version 2 cannot talk to version 12" in text, text
            text = refusal_at(at, wire.hello(role, rank=0, epoch=1, key=KEY, version=9))
            assert "protocol version 9 cannot talk to version 12" in text, text
        for rank in (0, 1):
            job.start_worker(rank, HERE)
        job.join()
        assert {p.code for p in job.processes} == {0}, job.story("strangers hurt the job")
        for process in (job.scheduler, job.servers[0]):
            assert "protocol version 2 cannot talk to version 12" in process.err, job.story(f"{process.name} is silent")
        job.check_nothing_is_left()


# ---- settings

NEEDED = {
    "scheduler": ["DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT"],
    "server": ["DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT"],
    "worker": ["DMLC_WORKER_ID", "DMLC_NUM_SERVER", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT"],
}
# One of each kind: who reads it, a wrong value, what is said of the accepted form.
MALFORMED = [
    ("scheduler", "DMLC_NUM_WORKER", "two", "1 to 4096"),
    ("scheduler", "DMLC_NUM_SERVER", "-1", "0 to 1024"),
    ("scheduler", "DMLC_PS_ROOT_PORT", "70000", "1 to 65535"),
    ("scheduler", "DMLC_ROLE", "worker", "scheduler"),
    ("scheduler", "BYTEPS_FAILURE_TIMEOUT_MS", "3s", "milliseconds, 100 to 3600000"),
    ("scheduler", "BYTEPS_START_TIMEOUT_S", "-1", "seconds, 1 to 604800"),
    ("scheduler", "BYTEPS_JOB_KEY", "secrecy", "at least 16"),
    ("scheduler", "BYTEPS_JOB_KEY_FILE", "/no/such/file", "cannot be read"),
    ("scheduler", "BYTEPS_LOG_LEVEL", "LOUD", "TRACE, DEBUG, INFO, WARNING, ERROR or FATAL"),
    ("server", "DMLC_PORT", "http", "0 to 65535"),
    ("server", "DMLC_INTERFACE", "no-such0", "no-such0"),
    ("server", "BYTEPS_SERVER_ENGINE_THREAD", "1000", "0 to 256"),
    ("server", "BYTEPS_SERVER_MEMORY_MB", "1.5", "MiB, 1 to"),
    ("server", "BYTEPS_DETERMINISTIC", "yes", "0 or 1"),
    ("worker", "DMLC_WORKER_ID", "first", "index, from 0"),
    ("worker", "BYTEPS_LOCAL_RANK", "4", "BYTEPS_LOCAL_SIZE"),
    ("worker", "BYTEPS_PARTITION_BYTES", "4M", "bytes, 64 to 2147483647"),
    ("worker", "BYTEPS_CREDIT_BYTES", "-5", "bytes, from 0"),
]


def start_with(job, role, environ):
    if role == "worker":
        return job.start_worker(0, HERE, environ)
    return job.start_server(environ) if role == "server" else job.start_scheduler(environ)


def check_bad_settings(job, process, *words):
    assert process.child.wait(20) == BAD_SETTINGS, job.story(f"exit code {process.code}")
    said = refused(process)["message"] if process.name.startswith("worker") else process.err
    for word in words:
        assert word in said, job.story(f"{word!r} is not said")
    left = list(job.flight.glob(f"*-{process.pid}.jsonl"))
    assert len(left) == 1 and str(left[0]) in said, job.story(f"its recording: {left}")
    verdict = first_cause.explain(left[0])
    assert process.name.startswith(verdict.role) and words[0] in verdict.cause, verdict.cause


@case
def a_needed_variable_is_missing(job):
    with job:
        for role, names in NEEDED.items():
            for name in names:
                check_bad_settings(job, start_with(job, role, {name: ""}), f"{name} is missing", "set it to")
        job.check_nothing_is_left()


@case
def a_variable_is_malformed(job):
    with job:
        for role, name, value, form in MALFORMED:
            environ = {name: value} if name != "BYTEPS_JOB_KEY_FILE" else {name: value, "BYTEPS_JOB_KEY": ""}
            process = start_with(job, role, environ)
            if name == "BYTEPS_JOB_KEY":  # which is a secret
                check_bad_settings(job, process, name, form)
                assert value not in process.err
            else:
                check_bad_settings(job, process, name, value, form)
        job.check_nothing_is_left()


# ---- what `bps why` makes of what is left: role, rank, words (of those cases in which a job fails)

SIZES = ("workers disagree about the size of the job",)
CAUSES = {
    "workers_disagree_about_their_number": ("scheduler", None, *SIZES),
    "workers_disagree_about_the_number_of_servers": ("scheduler", None, *SIZES),
    "server_knows_another_number_of_servers": ("server", 2, "did not come"),
    "too_few_workers_come": ("worker", 1, "did not come"),
    "too_few_servers_come": ("server", 1, "did not come"),
    "scheduler_knows_another_number_of_workers": ("worker", 2, "did not come"),
    "two_processes_claim_one_rank": ("worker", 0, "two processes claim to be worker 0"),
    "a_rank_beyond_the_size": ("worker", None, "DMLC_WORKER_ID=2"),
    "scheduler_port_in_use": ("scheduler", None, "Address already in use"),
    "server_port_in_use": ("server", None, "DMLC_PORT"),
    "scheduler_unreachable": ("scheduler", None, "connection refused"),
    "scheduler_name_that_does_not_resolve": ("scheduler", None, "no-such-host.invalid"),
    "scheduler_unreachable_is_said_before_the_end": ("worker", 0, "interrupted"),
    "another_job_key": ("server", None, "key"),
    "missing_job_key": ("worker", 0, "key"),
    "a_worker_finds_a_scheduler_of_another_version": ("worker", 0, "version 12"),
    "a_server_finds_a_scheduler_of_another_version": ("server", None, "version 12"),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CASES)
def test_a_job_that_cannot_begin_says_why(name, outcomes):
    outcomes[name].result()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CAUSES)
def test_bps_why_names_the_first_cause(name, outcomes):
    outcomes[name].result().check_cause(*CAUSES[name])
