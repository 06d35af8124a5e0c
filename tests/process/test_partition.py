"""A network that carries nothing between a worker and a server, while both still reach the scheduler: nobody is
silent, no connection is reset, and only TCP's missing acknowledgements tell. All processes are in a network
namespace of their own.
"""

import subprocess
import time

import pytest
from job import BOUND_S, Job

SERVER = "127.0.0.2"
LOOP = {"*": [["loop"]]}


@pytest.fixture
def network():
    """A process that holds the namespace, and the prefix of a command that runs in it."""
    holder = subprocess.Popen(["unshare", "-n", "sh", "-c", "ip link set lo up && echo up && exec sleep 600"],
                              stdout=subprocess.PIPE, text=True)
    if holder.stdout.readline().strip() != "up":
        pytest.skip("this user may not make network namespaces (run as root)")
    yield ["nsenter", "-t", str(holder.pid), "-n"]
    holder.kill()
    holder.wait()


@pytest.fixture
def job(tmp_path, network):
    with Job(tmp_path, workers=2, servers=1) as job:
        job.start_scheduler(prefix=network)
        # Through shared memory they would not need the network that is cut.
        job.start_server({"DMLC_NODE_HOST": SERVER, "BYTEPS_ENABLE_IPC": "0"}, prefix=network)
        yield job


def cut(network):
    """What is sent to the server vanishes; what the server sends arrives."""
    subprocess.run([*network, "ip", "route", "add", "blackhole", f"{SERVER}/32", "table", "local"], check=True)
    return time.monotonic()


def test_workers_that_cannot_reach_a_server_fail_in_time_and_name_it(job, network):
    for rank in range(2):
        job.start_worker(rank, LOOP, prefix=network)
    job.wait_for("looping")
    began_s = cut(network)
    job.join()
    job.check_end(began_s, job.workers, [["server 0", SERVER]])


def test_an_idle_connection_is_missed_too(job, network):
    # Worker 0 has pushed everything and waits for an answer that needs worker 1, which cannot push.
    job.start_worker(0, {"0": [["push", "A"], ["wait"]]}, prefix=network)
    job.start_worker(1, {"1": [["sleep", 2], ["push", "A"], ["wait"]]}, prefix=network)
    job.wait_for("joined")
    time.sleep(1)
    began_s = cut(network)
    job.join()
    job.check_end(began_s, job.workers, [["server 0", SERVER]], bound_s=BOUND_S)
