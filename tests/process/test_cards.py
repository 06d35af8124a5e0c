"""DMLC_INTERFACE with several names: what a machine sends and receives is spread over all of its cards. Judged by what
the cards have counted, on hosts of two cards each (bench/netlab.py); those tests need root."""

import json
import subprocess
import sys

import pytest
from job import RANK, Job
from place import ROOT, wait_for

sys.path.insert(0, str(ROOT / "bench"))

import netlab

WHY_NOT = netlab.missing()
needs_namespaces = pytest.mark.skipif(WHY_NOT != "", reason=WHY_NOT)

HOSTS, SERVERS = 2, 2
PART_BYTES = 4_096_000  # BYTEPS_PARTITION_BYTES's default; shards take the parts of a tensor in turn
COUNT = 8 * PART_BYTES // 4  # float32
TENSORS = 2
BYTES = 4 * COUNT * TENSORS


class Places:
    """A job on a lab's hosts: those of workers first, then one for each server, then the scheduler's."""

    def __init__(self, lab, folder, ranks, **environ):
        self.lab, self.ranks = lab, ranks
        environ = {
            "DMLC_PS_ROOT_URI": lab.address(HOSTS + SERVERS),
            "DMLC_NUM_WORKER": str(HOSTS),  # machines
            "BYTEPS_LOCAL_SIZE": str(ranks),
            "BYTEPS_LOCAL_REDUCE": "auto",
            "BYTEPS_FORCE_DISTRIBUTED": "1",
            "BYTEPS_SERVER_ENGINE_THREAD": "0",
            "DMLC_INTERFACE": lab.interfaces(),
            **environ,
        }
        self.job = Job(folder, workers=HOSTS * ranks, servers=SERVERS, environ=environ)

    def on(self, host):
        return ["ip", "netns", "exec", self.lab.namespace(host)]

    def start(self, plan):
        self.job.start_scheduler(prefix=self.on(HOSTS + SERVERS))
        for server in range(SERVERS):
            self.job.start_server(prefix=self.on(HOSTS + server))
        for rank in range(HOSTS * self.ranks):
            host, local = divmod(rank, self.ranks)
            place = {"DMLC_WORKER_ID": str(host), "BYTEPS_LOCAL_RANK": str(local)}
            command = [sys.executable, RANK, json.dumps({"*": plan})]
            self.job.start_program(rank, command, place, self.on(host))


def sums(lab, folder, ranks, **environ):
    """Runs a job that sums TENSORS; returns for each host of workers and servers what each of its cards has sent and
    received."""
    places = Places(lab, folder, ranks, **environ)
    plan = [["push", f"T{number}", "float32", COUNT, "sum", 0, number + 1] for number in range(TENSORS)]
    with places.job as job:
        before = lab.bytes_by_card()
        places.start([*plan, ["wait"]])
        job.join()
        after = lab.bytes_by_card()
        for worker in job.workers:
            assert worker.code == 0, job.story(f"{worker.name} ended with {worker.code}")
            found = {each["name"]: each["last"] for each in worker.heard("sum")}
            assert found == {f"T{number}": (number + 1) * job.size for number in range(TENSORS)}, job.story("sums")
    return [
        [[new - old for new, old in zip(*ways)] for ways in zip(*cards)]
        for cards in list(zip(after, before))[: HOSTS + SERVERS]
    ]


@needs_namespaces
@pytest.mark.parametrize("one_subnet", [False, True], ids=["a subnet each", "one subnet"])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.timeout(120)
def test_each_of_two_cards_carries_half(tmp_path, ranks, one_subnet):
    with netlab.Lab(HOSTS + SERVERS + 1, "500mbit", cards=2, one_subnet=one_subnet) as lab:
        carried = sums(lab, tmp_path, ranks)
    for host, cards in enumerate(carried):
        for way in range(2):
            total = sum(card[way] for card in cards)
            # One copy for all ranks of a host; and a server has half of each host's.
            assert BYTES < total < 1.15 * BYTES, (host, carried)
            for card in cards:
                assert 0.45 * total < card[way] < 0.55 * total, (host, carried)


@needs_namespaces
@pytest.mark.timeout(120)
def test_with_one_name_the_other_card_stays_unused(tmp_path):
    with netlab.Lab(HOSTS + SERVERS + 1, "500mbit", cards=2) as lab:
        carried = sums(lab, tmp_path, 1, DMLC_INTERFACE="eth0")
    for first, second in carried:
        assert min(first) > BYTES and max(second) < 0.01 * BYTES, carried


@needs_namespaces
@pytest.mark.timeout(120)
def test_a_worker_whose_card_goes_down_goes_on_by_the_other_one_in_the_same_subnet(tmp_path):
    with netlab.Lab(HOSTS + SERVERS + 1, "500mbit", cards=2, one_subnet=True) as lab:
        places = Places(lab, tmp_path, 1)
        with places.job as job:
            places.start([["loop"]])
            job.wait_for("looping")
            down_s = job.workers[0].heard("looping")[0]["t"]
            subprocess.run(["ip", "-n", lab.namespace(0), "link", "set", "eth1", "down"], check=True)
            job.wait_for_steps(down_s + 6)


def refused(lab, place, role, **environ):
    """What a process says that ends because of its settings."""
    job = {
        "DMLC_ROLE": role,
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
        "DMLC_WORKER_ID": "0",
        "DMLC_PS_ROOT_URI": lab.address(0),
        "DMLC_PS_ROOT_PORT": "9000",
        "BYTEPS_JOB_KEY": "the key of a test",
        **environ,
    }
    command = [place.executable("server")] if role == "server" else [sys.executable, RANK, '{"*": []}']
    process = place.start(["ip", "netns", "exec", lab.namespace(0), *command], job)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 2, out + err
    return out + err


@needs_namespaces
def test_what_cannot_be_used_is_named_with_what_to_do(place):
    with netlab.Lab(1, None, cards=2) as lab:
        for role in ("server", "worker"):
            said = refused(lab, place, role, DMLC_INTERFACE="eth0,eth7")
            assert "'eth7' does not exist; there are: " in said and "eth1" in said
            assert "names eth0 twice" in refused(lab, place, role, DMLC_INTERFACE="eth0,eth0")
            assert "empty name" in refused(lab, place, role, DMLC_INTERFACE="eth0,")
        subprocess.run(["ip", "-n", lab.namespace(0), "link", "set", "eth1", "down"], check=True)
        for role in ("server", "worker"):
            said = refused(lab, place, role, DMLC_INTERFACE="eth0,eth1")
            assert "'eth1' is down; ip link set eth1 up" in said
        subprocess.run(["ip", "-n", lab.namespace(0), "addr", "flush", "dev", "eth1"], check=True)
        subprocess.run(["ip", "-n", lab.namespace(0), "link", "set", "eth1", "up"], check=True)
        for role in ("server", "worker"):
            assert "'eth1' has no IP address" in refused(lab, place, role, DMLC_INTERFACE="eth0,eth1")


@needs_namespaces
def test_cards_of_one_subnet_that_the_kernel_does_not_keep_apart_are_a_warning(tmp_path):
    with netlab.Lab(HOSTS + SERVERS + 1, None, cards=2, one_subnet=True) as lab:
        places = Places(lab, tmp_path, 1)
        loose = ["sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=0"]
        subprocess.run([*places.on(HOSTS), *loose], check=True)
        with places.job as job:
            for server in range(SERVERS):
                job.start_server({"BYTEPS_SERVER_ENGINE_THREAD": "1"}, prefix=places.on(HOSTS + server))
            loose, kept = job.servers
            words = "eth0 and eth1 (DMLC_INTERFACE) are in one subnet"
            wait_for("a warning", lambda: words in loose.err)
            assert "net.ipv4.conf.all.arp_ignore=1" in loose.err
            wait_for("the start", lambda: "BYTEPS_SERVER_ENGINE_THREAD=1: so many of the 2 cards" in kept.err)
            assert words not in kept.err
