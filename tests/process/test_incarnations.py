"""Two lives of a job are two jobs, also where key, ports, ranks and names are the same."""

from job import Job
from place import free_port
from place import wait_until

COUNT = 1000
FORMER_VALUE, VALUE = 1000.0, 1.0
LONG_F = {"BYTEPS_FAILURE_TIMEOUT_MS": "20000"}  # what is left of the first job outlives the start of the second


def last_element(value):
    return [["push", "w", "float32", COUNT, "sum", 0, value]]


def test_a_worker_that_another_job_has_left_behind_gets_into_no_sum(tmp_path):
    """Job A loses its scheduler, its server and rank 1. Its rank 0 looks for the server, where by then that of job B
    is: same key, same port, same rank and epoch, another scheduler. Both ranks of B push 1."""
    port = free_port()
    shared = {"BYTEPS_JOB_KEY": "the key file of this cluster 01234567", "DMLC_PORT": str(port), **LONG_F}
    go = tmp_path / "go"
    with Job(tmp_path / "a", workers=2, servers=1, environ=shared) as a, Job(
        tmp_path / "b", workers=2, servers=1, environ=shared
    ) as b:
        a.start({"0": [*last_element(FORMER_VALUE), ["hold"]], "1": [["hold"]]})
        a.wait_for("hold")
        leftover = a.workers[0]
        for process in (a.scheduler, a.servers[0], a.workers[1]):
            process.kill()
            process.child.wait()
        b.start_scheduler()
        b.start_server({"BYTEPS_LOG_LEVEL": "DEBUG"})
        for rank in (0, 1):
            b.start_worker(rank, {"*": [["await_file", str(go)], *last_element(VALUE), ["wait"]]})
        b.wait_for("joined")

        def came():
            refused = "its scheduler is another" in b.servers[0].err
            return refused or any("has a newer connection" in worker.err for worker in b.workers)

        assert wait_until(came, 10), b.story("what is left of the first job did not come")
        go.touch()
        b.join()
        assert leftover.code is None, a.story("what was left of the first job was gone too early to be a test")
        for worker in b.workers:
            assert [end["code"] for end in worker.ends] == [0], b.story(f"{worker.name} got an error")
            assert worker.heard("sum")[0]["last"] == 2 * VALUE, b.story(f"{worker.name} got a wrong sum")
            assert "newer connection" not in worker.err, b.story(f"{worker.name} lost its place")
        assert {process.code for process in b.processes} == {0}, b.story("the second job did not end well")
        leftover.kill()


def test_unequal_failure_timeouts_are_the_schedulers_and_a_warning(tmp_path):
    """A member that beats every sixth of 30 s would be silent for longer than 3 s and a sixth of it."""
    with Job(tmp_path, workers=2, servers=1) as job:
        job.start_scheduler()
        job.start_server({"BYTEPS_FAILURE_TIMEOUT_MS": "20000"})
        job.start_worker(0, {"*": [["sleep", 6.0], ["push", "w"], ["wait"]]})
        job.start_worker(1, {"*": [["sleep", 6.0], ["push", "w"], ["wait"]]}, {"BYTEPS_FAILURE_TIMEOUT_MS": "30000"})
        job.join()
        assert {process.code for process in job.processes} == {0}, job.story("the job ended")
        words = "but 3000 at the scheduler at 127.0.0.1"
        assert words in job.workers[1].err and words in job.servers[0].err, job.story("nobody says it")
        assert words not in job.workers[0].err
