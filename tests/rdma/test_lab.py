"""What the other tests build on: three hosts with RDMA devices, and a job over TCP between them."""

import subprocess
import sys

from lab import HOSTS, LabJob, cable_pulled, on, sent_bytes, sent_packets


def test_each_host_has_an_rdma_device_that_is_up():
    said = subprocess.run(["ibv_devinfo"], capture_output=True, text=True, check=True).stdout
    assert said.count("PORT_ACTIVE") == len(HOSTS), said
    assert all(f"hca_id:\trxe{host}" in said for host in HOSTS)


def test_who_runs_on_a_host_speaks_from_its_address_and_a_pulled_cable_cuts_it_off():
    ask = "import socket; s = socket.create_connection(('10.77.0.3', 9), 3)"
    with cable_pulled(2):
        cut = subprocess.run([*on(2), sys.executable, "-c", ask], capture_output=True, text=True)
    back = subprocess.run([*on(2), sys.executable, "-c", ask], capture_output=True, text=True)
    assert "timed out" in cut.stderr or "No route" in cut.stderr, cut.stderr
    assert "refused" in back.stderr, back.stderr


def test_a_job_over_tcp_between_hosts_has_exact_sums_and_leaves_the_rdma_devices_alone(tmp_path):
    before = sent_packets()
    bytes_before = {host: sent_bytes(f"h{host}") for host in HOSTS}
    with LabJob(tmp_path / "job", rdma="0") as job:
        job.start_services()
        for rank in range(job.size):
            job.start_checked_worker(rank, rounds=2)
        job.check_ended_well()
    assert sent_packets() == before
    for host in (1, 2):  # 2 threads * 2 rounds * 1.3 MB to the other host's server at least in part
        assert sent_bytes(f"h{host}") - bytes_before[host] > 1e6
