"""Two machines with two ranks each: a relay in each worker's process, and RDMA between relays and servers."""

import pytest
from lab import BOUND_S, LabJob, sent_bytes
from test_jobs import ROUND_BYTES, check_links

HOSTS_OF_WORKERS, HOSTS_OF_SERVERS = (1, 1, 2, 2), (3, 3)
RELAYS, SERVERS_ALONE = {"BYTEPS_LOCAL_REDUCE": "auto"}, {"BYTEPS_LOCAL_REDUCE": "0"}
DEVICES = ("h1", "h2", "h3", "lo")
ROUNDS = 3


def check_relays(job):
    """To servers RDMA alone; the memory shared with relays is that with its own, with its neighbour's, and of its
    neighbour with its own."""
    check_links(job, [(2, 3)] * 4 + [(4, 0)] * 2)


def copies(folder, environ):
    """By device: how many times it has sent what one worker pushes."""
    before = {device: sent_bytes(device) for device in DEVICES}
    with LabJob(folder, workers=4, environ=environ) as job:
        job.start_services(HOSTS_OF_SERVERS)
        for rank, host in enumerate(HOSTS_OF_WORKERS):
            job.start_checked_worker(rank, ROUNDS, host)
        job.check_ended_well()
    return {device: (sent_bytes(device) - before[device]) / (ROUNDS * ROUND_BYTES) for device in DEVICES}


def test_ranks_of_a_machine_sum_in_shared_memory_and_their_relays_speak_rdma_to_the_servers(tmp_path):
    with LabJob(tmp_path / "job", workers=4, environ=RELAYS) as job:
        with job.running(HOSTS_OF_WORKERS, HOSTS_OF_SERVERS):
            check_relays(job)
            job.wait_for_rounds(1)


@pytest.mark.parametrize("environ, each", [(RELAYS, 1), (SERVERS_ALONE, 2)], ids=["relays", "servers"])
def test_a_card_carries_one_copy_for_each_machine_and_without_relays_for_each_rank(tmp_path, environ, each):
    """And loopback next to nothing: what goes within a machine goes through shared memory. 3 % are headers."""
    expected = {"h1": each, "h2": each, "h3": 2 * each}
    found = copies(tmp_path / "job", environ)
    assert found.pop("lo") < 0.1, found
    assert all(expected[device] <= found[device] < 1.2 * expected[device] for device in expected), found


def test_a_killed_rank_takes_its_relay_along_and_the_job_ends_on_both_machines_in_time(tmp_path):
    with LabJob(tmp_path / "job", workers=4, environ=RELAYS) as job:
        job.start({"*": [["loop"]]}, HOSTS_OF_WORKERS, HOSTS_OF_SERVERS)
        job.wait_for("looping")
        check_relays(job)
        began_s = job.workers[3].kill()
        job.join()
        job.check_end(began_s, job.workers[:3], [["worker 3"]], BOUND_S)
        job.check_nothing_is_left(wait_s=5)
