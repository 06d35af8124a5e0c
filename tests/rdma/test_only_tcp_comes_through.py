"""A way between two hosts that lets TCP through and RDMA not: a filter on UDP port 4791, or a switch whose MTU is
smaller than the packets of the cards. TCP's own detection sees nothing of either."""

import time

import pytest
from lab import BOUND_S, FAILURE_S, LabJob, rdma_filtered, switch_of_small_mtu
from place import wait_until

NO_WAY = ["server 1", "TCP comes through and RDMA does not", "UDP port 4791", "switch's MTU"]
RDMA_GIVES_UP_S = FAILURE_S / 2
SLACK_S = 1.5  # emulated processors have other work


LONG = pytest.mark.long(reason="the other case ends in the same way")


@pytest.mark.parametrize("trouble", [rdma_filtered, pytest.param(switch_of_small_mtu, marks=LONG)])
def test_where_rdma_is_required_the_start_ends_in_time_and_says_where_to_look(tmp_path, trouble):
    with LabJob(tmp_path / "job") as job, trouble(3):
        job.start({"*": [["push", "A"], ["wait"]]}, worker_hosts=(1, 2), server_hosts=(1, 3))
        job.join()
        assert [worker.code for worker in job.workers] == [1, 1], job.story("they did not end as they should")
        began_s = max(worker.heard("start")[0]["t"] for worker in job.workers)
        refused = [worker.heard("refused")[0] for worker in job.workers]
        assert all(each["t"] - began_s < BOUND_S for each in refused), job.story("too late")
        words = ["DMLC_ENABLE_RDMA requires", *NO_WAY]
        assert any(all(word in each["message"] for word in words) for each in refused), job.story(f"not all of {words}")
        job.check_nothing_is_left(wait_s=5)


def test_in_mid_job_rdmas_own_time_limit_ends_every_handle_with_that_reason(tmp_path):
    with LabJob(tmp_path / "job") as job:
        job.start({"*": [["loop"]]}, worker_hosts=(1, 2), server_hosts=(1, 3))
        job.wait_for("looping")
        with rdma_filtered(3):
            began_s = time.monotonic()
            # Who has nothing under way there sees nothing of it, and is told.
            given_up = wait_until(
                lambda: any("transport retry counter exceeded" in worker.err for worker in job.workers),
                RDMA_GIVES_UP_S + SLACK_S,
            )
            assert given_up, job.story(f"not noticed within {RDMA_GIVES_UP_S} s")
            job.join()
        job.check_end(began_s, job.workers, [NO_WAY], BOUND_S)
        job.check_nothing_is_left(wait_s=5)


def test_auto_takes_tcp_with_a_warning_also_in_mid_job_and_rdma_where_it_comes_through(tmp_path):
    """Server 0 is on host 3, server 1 on host 2: between hosts 1 and 2 all is well."""
    with LabJob(tmp_path / "job", rdma="auto", environ={"BYTEPS_LOG_LEVEL": "INFO"}) as job:
        with job.running((1, 1), (3, 2)), rdma_filtered(3):
            assert not any("stays on TCP" in worker.err for worker in job.workers), job.story("too early")
            for worker in job.workers:
                assert wait_until(lambda: "stays on TCP" in worker.err), job.story(f"{worker.name} does not say it")
                assert "WARNING" in worker.err and "UDP port 4791" in worker.err
            job.wait_for_rounds(2)
    with LabJob(tmp_path / "again", rdma="auto", environ={"BYTEPS_LOG_LEVEL": "INFO"}) as job, rdma_filtered(3):
        with job.running((1, 1), (3, 2)):
            for worker in job.workers:
                both = ["stays on TCP", "goes on through RDMA on rxe1"]
                assert wait_until(lambda: all(text in worker.err for text in both)), job.story(f"{worker.name}: {both}")
