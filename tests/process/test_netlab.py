"""bench/netlab.py: hosts on shaped cables. Real namespaces, so these tests need root."""

import os
import signal
import subprocess
import sys

import pytest
from place import ROOT, wait_for

sys.path.insert(0, str(ROOT / "bench"))

import netlab

WHY_NOT = netlab.missing()
needs_namespaces = pytest.mark.skipif(WHY_NOT != "", reason=WHY_NOT)

# Sends for a second by TCP to an address; says how many bytes per second arrived there.
SENDER = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 7000)) as to:
    until = time.monotonic() + 1
    while time.monotonic() < until:
        to.sendall(bytes(65536))
"""
RECEIVER = """
import socket, time
with socket.create_server(("", 7000)) as listener:
    print("listening", flush=True)
    peer, _ = listener.accept()
    start, total = time.monotonic(), 0
    while data := peer.recv(1 << 20):
        total += len(data)
    print(total / (time.monotonic() - start), flush=True)
"""
FLOOD = """
import socket, sys
to = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
to.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
for _ in range(5000):
    to.sendto(bytes(1400), (sys.argv[1], 7000))
"""
# A lab that says its name and stays.
STAYS = """
import sys, time
sys.path.insert(0, sys.argv[1])
import netlab
with netlab.Lab(2, "100mbit") as lab:
    asleep = lab.start(1, ["sleep", "600"])
    print(lab.namespace(0), asleep.pid, flush=True)
    time.sleep(600)
"""


def python(program, *words):
    return [sys.executable, "-c", program, *words]


def rate_between(lab, sender, receiver):
    """Bytes per second that one stream of TCP carries from host to host."""
    receiving = lab.start(receiver, python(RECEIVER))
    assert receiving.output.readline() == b"listening\n"
    lab.start(sender, python(SENDER, lab.address(receiver)))
    return float(receiving.output.readline())


def namespaces():
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout


@needs_namespaces
def test_a_card_carries_its_rate_and_no_more_also_when_cards_differ():
    with netlab.Lab(3, ["80mbit", "80mbit", "20mbit"]) as lab:
        fast = rate_between(lab, 0, 1)
        into_slow = rate_between(lab, 0, 2)
        out_of_slow = rate_between(lab, 2, 0)
    # The bucket and the queue come on top of a second's bytes.
    assert 0.5 * 10e6 < fast < 1.1 * 10e6
    assert 0.5 * 2.5e6 < into_slow < 1.2 * 2.5e6
    assert 0.5 * 2.5e6 < out_of_slow < 1.2 * 2.5e6


@needs_namespaces
def test_a_queue_that_overflows_is_counted():
    with netlab.Lab(2, "10mbit") as lab:
        assert lab.counters() == {"drops_out": 0, "drops_in": 0, "retransmissions": 0, "timeouts": 0}
        flooding = lab.start(0, python(FLOOD, lab.address(1)))
        wait_for("the end of the flood", lambda: flooding.poll() is not None)
        assert lab.counters()["drops_out"] > 100


@needs_namespaces
def test_what_crosses_each_card_is_counted_by_direction():
    with netlab.Lab(3, "100mbit") as lab:
        before = lab.card_bytes()
        rate = rate_between(lab, 0, 1)  # for a second
        after = lab.card_bytes()
    sender, receiver, nobody = [[new - old for new, old in zip(*both)] for both in zip(after, before)]
    assert 0.8 * rate < receiver[1] < sender[0] + 10_000  # each is what that host sent, and received
    assert receiver[0] < 0.1 * sender[0] and sender[1] < 0.1 * receiver[1]  # that TCP has it
    assert max(nobody) < 10_000


@needs_namespaces
def test_the_congestion_control_is_the_one_asked_for():
    with netlab.Lab(1, "100mbit", congestion_control="reno") as lab:
        asked = lab.start(0, ["cat", "/proc/sys/net/ipv4/tcp_congestion_control"])
        assert asked.output.readline() == b"reno\n"


@needs_namespaces
def test_nothing_is_left_of_a_lab_not_even_what_left_its_group():
    with netlab.Lab(2, "100mbit") as lab:
        name = lab.namespace(0)
        process = lab.start(0, ["sh", "-c", "setsid sleep 600 & echo $!; wait"])
        escaped = int(process.output.readline())
        assert name in namespaces()
    assert name not in namespaces()
    assert not netlab.alive(process.pid)
    wait_for("the end of who has escaped", lambda: not netlab.alive(escaped), 5)


@needs_namespaces
def test_a_lab_that_cannot_be_built_leaves_nothing():
    with pytest.raises(netlab.LabError, match="warpspeed"):
        with netlab.Lab(2, ["100mbit", "warpspeed"]):
            pass
    assert f"{netlab.PREFIX}{os.getpid()}-" not in namespaces()


@needs_namespaces
def test_what_a_killed_lab_left_is_removed_by_the_next_and_a_living_one_is_left_alone():
    killed, living = [
        subprocess.Popen(python(STAYS, str(ROOT / "bench")), stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    try:
        name, pid = killed.stdout.readline().split()
        living_name, living_pid = living.stdout.readline().split()
        assert name in namespaces()
        killed.kill()  # which leaves the namespaces; the next may be a lab of another process of this machine
        killed.wait()
        wait_for(f"the end of {pid}", lambda: not netlab.alive(int(pid)), 5)  # processes end with their lab
        with netlab.Lab(1, "100mbit"):
            assert name not in namespaces()
            assert living_name in namespaces() and netlab.alive(int(living_pid))
    finally:
        for process in (killed, living):
            process.kill()
            process.wait()
        netlab.remove_leftovers()
    assert living_name not in namespaces()


@needs_namespaces
def test_ctrl_c_ends_a_run_with_nothing_left():
    command = [sys.executable, str(ROOT / "bench" / "netlab.py"), "--hosts", "2", "--", "sleep", "600"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    mine = f"{netlab.PREFIX}{running.pid}-"
    wait_for("a namespace", lambda: f"{mine}1-h1" in namespaces())
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=20)
    assert running.returncode == 130
    assert "Traceback" not in errors
    assert mine not in namespaces()


def test_without_root_it_says_what_is_needed(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "root" in netlab.missing()
    with pytest.raises(netlab.LabError, match="root"):
        with netlab.Lab(2, "1gbit"):
            pass


@pytest.mark.parametrize("rate, bits", [("1gbit", 1e9), ("500mbit", 5e8), ("2.5gbit", 2.5e9)])
def test_rates_are_read(rate, bits):
    assert netlab.bits_per_second(rate) == bits


@pytest.mark.parametrize("rate", ["1", "fast", "-1gbit", "0mbit", "1 gbit"])
def test_what_is_no_rate_is_refused_with_an_example(rate):
    with pytest.raises(netlab.LabError, match="500mbit"):
        netlab.bits_per_second(rate)
