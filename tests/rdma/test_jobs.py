"""Jobs whose tensors move by RDMA: every element of every sum is checked. Which way each connection goes is what the
kernel says of queue pairs and mappings; the devices count packets."""

import json
import os
import re
import subprocess
from pathlib import Path

from lab import LabJob, sent_packets
from place import wait_until

ON_TCP = "stays on TCP"
PACKET_BYTES = 4096
ROUND_BYTES = 2 * 4 * (1 + 1000 + 65537 + 262144)  # of checked_worker


def queue_pairs(process):
    """How many of them this process has that are connected."""
    said = subprocess.run(["rdma", "-j", "resource", "show", "qp"], capture_output=True, text=True, check=True).stdout
    threads = {int(name) for name in os.listdir(f"/proc/{process.pid}/task")}
    pairs = [pair for pair in json.loads(said) if pair.get("pid") in threads]
    return sum(pair["type"] == "RC" and pair["state"] == "RTS" for pair in pairs)


def shared_segments(process):
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    return len(set(re.findall(r" (\d+) +/memfd:byteps(?!-rdma)", maps)))


def check_links(job, expected):
    """How many connections of each worker and server go by RDMA, and how many through shared memory."""

    def found():
        return [(queue_pairs(process), shared_segments(process)) for process in (*job.workers, *job.servers)]

    assert wait_until(lambda: found() == expected), job.story(f"there are {found()} instead of {expected}")


def test_sums_of_two_workers_and_two_servers_on_other_hosts_move_by_rdma(tmp_path):
    before = sent_packets()
    with LabJob(tmp_path / "job", environ={"BYTEPS_SERVER_ENGINE_THREAD": "2"}) as job:
        with job.running((1, 2), (3, 3)):
            check_links(job, [(4, 0)] * 4)
        rounds = job.rounds()
    sent = {host: count - before[host] for host, count in sent_packets().items()}
    packets = ROUND_BYTES / PACKET_BYTES
    assert rounds >= 1 and sent[1] >= packets and sent[2] >= packets and sent[3] >= 2 * packets, sent


def registrations(process, bytes_each):
    """How many pieces of memory of this size this process has registered."""
    said = subprocess.run(["rdma", "-j", "resource", "show", "mr"], capture_output=True, text=True, check=True).stdout
    threads = {int(name) for name in os.listdir(f"/proc/{process.pid}/task")}
    return sum(region.get("pid") in threads and region["mrlen"] == bytes_each for region in json.loads(said))


def test_sums_go_from_registered_memory_where_locked_memory_is_unlimited(tmp_path):
    slab_bytes = 4 << 20
    unlimited = ["prlimit", "--memlock=unlimited"]
    with LabJob(tmp_path / "job") as job, job.running((1, 2), (3, 3), server_prefix=unlimited):
        check_links(job, [(2, 0)] * 4)
        counts = [registrations(process, slab_bytes) for process in (*job.workers, *job.servers)]
        assert counts[:2] == [0, 0] and min(counts[2:]) > 0, counts


def test_servers_beside_workers_share_memory_while_the_others_are_on_rdma(tmp_path):
    with LabJob(tmp_path / "job", servers=3) as job, job.running((1, 2), (1, 2, 3)):
        check_links(job, [(2, 1), (2, 1), (1, 1), (1, 1), (2, 0)])


def test_auto_takes_rdma_where_both_ends_can_and_tcp_elsewhere(tmp_path):
    environs = ({}, {"DMLC_ENABLE_RDMA": "0"})
    with LabJob(tmp_path / "job", rdma="auto") as job, job.running((1, 2), (3, 3), environs):
        check_links(job, [(1, 0), (1, 0), (2, 0), (0, 0)])
        assert all(ON_TCP in worker.err for worker in job.workers), job.story("it is not said")
