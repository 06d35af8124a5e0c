"""DMLC_ENABLE_RDMA on one host over loopback, where RDMA does not go. On hosts with devices: tests/rdma."""

import pytest
from job import BOUND_S, Job


def run_checked_workers(job):
    job.start_services()
    for rank in range(job.size):
        job.start_checked(rank, 1, 2, "leave")
    job.join(timeout_s=60)
    assert [process.code for process in job.processes] == [0] * len(job.processes), job.story("not all ended well")


@pytest.mark.parametrize("said, ipc", [("ibverbs", "1"), ("auto", "1"), ("auto", "0"), ("ucx", "0")])
def test_a_job_on_one_host_needs_no_rdma(tmp_path, said, ipc):
    with Job(tmp_path / "job", environ={"DMLC_ENABLE_RDMA": said, "BYTEPS_ENABLE_IPC": ipc}) as job:
        run_checked_workers(job)
        is_warned = "taken for auto" in job.workers[0].err
        assert is_warned == (said == "ucx"), job.story("the warning")


def test_required_without_shared_memory_it_ends_with_an_error_that_says_why_and_what_to_do(tmp_path):
    with Job(tmp_path / "job", environ={"DMLC_ENABLE_RDMA": "1", "BYTEPS_ENABLE_IPC": "0"}) as job:
        job.start({"*": [["push", "A"], ["wait"]]})
        job.join()
        for worker in job.workers:
            (began,), (refused,) = worker.heard("start"), worker.heard("refused")
            words = ["DMLC_ENABLE_RDMA requires", "loopback address 127.0.0.1", "BYTEPS_ENABLE_IPC=1"]
            assert all(word in refused["message"] for word in words), job.story(f"not all of {words}")
            assert worker.code == 1 and refused["t"] - began["t"] < BOUND_S, job.story("too late")
        assert "DMLC_ENABLE_RDMA=1 is deprecated" in job.servers[0].err


def test_efa_is_refused_at_once_by_every_process(place):
    for role in ("scheduler", "server"):
        process = place.start([place.executable(role)], {"DMLC_ENABLE_RDMA": "fabric", "DMLC_NUM_WORKER": "1"})
        _, err = process.communicate(timeout=20)
        assert process.returncode == 2 and "EFA (libfabric) is not in this version; set it to 0" in err
