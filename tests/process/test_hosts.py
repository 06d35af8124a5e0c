"""Jobs on several machines, which are network namespaces of this one."""

import os
import subprocess
import sys

import hosts
from job import Job
from place import ROOT, wait_for

# Another user, who may still read the files of this one.
READS = "+dac_override,+dac_read_search"
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
NOBODY += [f"--inh-caps={READS}", f"--ambient-caps={READS}"]
# A network that says its name and stays.
STAYS = """
import hosts, time
with hosts.Network(1) as network:
    print(network.namespace(0), flush=True)
    time.sleep(600)
"""


def namespace_of(process):
    return os.readlink(f"/proc/{process.pid}/ns/net")


def test_ranks_are_counted_host_by_host_or_named():
    assert hosts.places((1, 2, 1)) == [0, 1, 1, 2]
    assert hosts.places(((0, 2), [1])) == [0, 1, 0]


def test_a_job_with_hosts_has_its_ranks_on_the_machines_asked_for_and_its_servers_on_another(tmp_path):
    with Job(tmp_path, servers=2, hosts=(2, 1)) as job:
        job.start({"*": [["loop", 5]]})
        job.wait_for("looping")
        first, second, other, *services = [namespace_of(p) for p in (*job.workers, *job.servers, job.scheduler)]
        assert first == second and len({first, other, services[0], os.readlink("/proc/self/ns/net")}) == 4
        assert set(services) == {services[0]}
        job.join()
        assert [process.code for process in job.processes] == [0] * 6, job.story("failed")
        mine = os.path.basename(job.network.namespace(0)).partition("h")[0]
    assert not any(name.startswith(mine + "h") for name in os.listdir(hosts.NAMED))


def test_servers_may_be_beside_the_workers(tmp_path):
    with Job(tmp_path, servers=2, hosts=([0, 2], [1]), beside=True) as job:
        job.start({"*": [["loop", 5]]})
        job.wait_for("looping")
        where = [namespace_of(process) for process in (job.scheduler, *job.servers, *job.workers)]
        assert where == [where[3], where[3], where[4], where[3], where[4], where[3]] and where[3] != where[4]
        job.join()
        assert [process.code for process in job.processes] == [0] * 6, job.story("failed")


def test_what_is_left_of_a_killed_run_is_removed_by_the_next_and_that_of_a_living_one_stays():
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "tests/jobs")}
    killed, living = [
        subprocess.Popen([sys.executable, "-c", STAYS], env=environ, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        with hosts.Network(1) as network:  # or the test is skipped
            old, other = [process.stdout.readline().strip() for process in (killed, living)]
            assert os.path.exists(old) and os.path.exists(other)
            asleep = subprocess.Popen([*network.on(0), "nsenter", f"--net={old}", "sleep", "600"])
            killed.kill()
            killed.wait()
        with hosts.Network(1):
            assert not os.path.exists(old) and os.path.exists(other)
            wait_for("the end of what ran there", lambda: asleep.poll() is not None)
    finally:
        for process in (killed, living):
            process.kill()
            process.wait()
        hosts.remove_leftovers()


def test_workers_of_two_users_on_one_machine_sum_over_tcp_and_each_says_so_once(tmp_path):
    with Job(tmp_path, servers=1, hosts=(3, 1)) as job:
        job.start_services()
        for rank in range(4):
            job.start_worker(rank, {"*": [["loop", 20], ["barrier"]]}, prefix=NOBODY if rank == 1 else ())
        job.join()
        assert [process.code for process in job.processes] == [0] * 6, job.story("failed")
        for rank, count in enumerate((1, 1, 1, 0)):
            said = [line for line in job.workers[rank].err.splitlines() if "WARNING" in line]
            assert len(said) == count, job.story(f"worker {rank}")
            assert all("it belongs to another user; run all processes of this host as one" in line for line in said)
