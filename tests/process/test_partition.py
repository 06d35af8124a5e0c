"""A network that carries nothing between a worker and a server, while both still reach the scheduler: nobody is
silent, no connection is reset, and only TCP's missing acknowledgements tell. All processes are in a network
namespace of their own.
"""

import socket
import subprocess
import time
from pathlib import Path

import pytest
from job import BOUND_S, Job
from place import wait_for

SERVER = "127.0.0.2"
LOOP = {"*": [["loop"]]}


@pytest.fixture
def network():
    """The prefix of a command that runs in a namespace, which a process holds."""
    holder = subprocess.Popen(["unshare", "-n", "sh", "-c", "ip link set lo up && echo up && exec sleep 600"],
                              stdout=subprocess.PIPE, text=True)
    if holder.stdout.readline().strip() != "up":
        pytest.skip("this user may not make network namespaces (run as root)")
    yield ["nsenter", "-t", str(holder.pid), "-n"]
    holder.kill()
    holder.wait()


@pytest.fixture
def job(tmp_path, network):
    with Job(tmp_path, workers=2, servers=1, environ={"BYTEPS_RECOVERY": "0"}) as job:
        job.start_scheduler(prefix=network)
        # Through shared memory they would not need the network that is cut.
        job.start_server({"DMLC_NODE_HOST": SERVER, "BYTEPS_ENABLE_IPC": "0"}, prefix=network)
        yield job


def cut(network):
    """What is sent to the server vanishes; what the server sends arrives."""
    subprocess.run([*network, "ip", "route", "add", "blackhole", f"{SERVER}/32", "table", "local"], check=True)
    return time.monotonic()


def waiting_bytes(network):
    """Of the namespace's connections with the server: what the other side's kernel has not acknowledged, or its process
    not read."""
    address = socket.inet_aton(SERVER)[::-1].hex().upper()
    total = 0
    for line in Path(f"/proc/{network[2]}/net/tcp").read_text().splitlines()[1:]:
        here, there, _, queues = line.split()[1:5]
        if address in (here.partition(":")[0], there.partition(":")[0]):
            total += sum(int(queue, 16) for queue in queues.split(":"))
    return total


def test_workers_that_cannot_reach_a_server_fail_in_time_and_name_it(job, network):
    for rank in range(2):
        job.start_worker(rank, LOOP, prefix=network)
    job.wait_for("looping")
    began_s = cut(network)
    job.join()
    job.check_end(began_s, job.workers, [["server 0", SERVER]])


def test_an_idle_connection_is_missed_too(job, network, tmp_path):
    # Worker 0 has pushed all and waits for an answer that needs worker 1, which pushes nothing before that fails.
    failed = tmp_path / "failed"
    waiting = job.start_worker(0, {"0": [["push", "A"], ["handed_over"], ["wait"]]}, prefix=network)
    job.start_worker(1, {"1": [["await_file", str(failed)], ["push", "A"], ["wait"]]}, prefix=network)
    job.wait_for("joined")
    job.wait_for("handed over", [waiting])
    wait_for("the server to have it all", lambda: waiting_bytes(network) == 0)
    began_s = cut(network)
    job.wait_for("end", [waiting])
    failed.touch()
    job.join()
    job.check_end(began_s, job.workers, [["server 0", SERVER]], bound_s=BOUND_S)
