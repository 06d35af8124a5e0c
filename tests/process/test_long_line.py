"""bench/wan_box.cc: hosts of bench/netlab.py at the ends of a long line, and a job there. Needs root."""

import hashlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from job import Job
from place import BUILD, ROOT, wait_for

sys.path.insert(0, str(ROOT / "bench"))

import netlab

BOX = BUILD / "bin" / "wan_box"
BULK = str(ROOT / "examples" / "tuning" / "bulk.py")
WHY_NOT = netlab.missing() or ("" if BOX.exists() else f"{BOX} is not built")
needs_namespaces = pytest.mark.skipif(WHY_NOT != "", reason=WHY_NOT)

# Datagrams with their number and when they were sent; namespaces share the clock. Empty ones say that it is over.
SEND = """
import socket, struct, sys, time
to = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(int(sys.argv[2])):
    to.sendto(struct.pack("=Qd", number, time.monotonic()), (sys.argv[1], 7000))
    time.sleep(float(sys.argv[3]) if number else 0.5)  # when the first is there, each knows the other's address
time.sleep(0.3)
for _ in range(50):
    to.sendto(b"", (sys.argv[1], 7000))
    time.sleep(0.001)
"""
# Says how long each that came was under way, and which came.
RECEIVE = """
import json, socket, struct, time
at = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
at.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
at.bind(("", 7000))
at.settimeout(30)
print("listening", flush=True)
took, numbers = [], []
while data := at.recv(64):
    number, sent = struct.unpack("=Qd", data)
    took.append(time.monotonic() - sent)
    numbers.append(number)
print(json.dumps([took, numbers]), flush=True)
"""
SEND_BYTES = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000)) as to:
    to.sendall(b"".join(i.to_bytes(4, "little") for i in range(int(sys.argv[2]) // 4)))
"""
RECEIVE_BYTES = """
import hashlib, socket
with socket.create_server(("", 7000)) as listener:
    print("listening", flush=True)
    peer, _ = listener.accept()
    digest = hashlib.sha256()
    while data := peer.recv(1 << 20):
        digest.update(data)
    print(digest.hexdigest(), flush=True)
"""
# A lab that says its box's pid and stays.
STAYS = """
import sys, time
sys.path.insert(0, sys.argv[1])
import netlab
with netlab.Lab(2, "100mbit", delay_ms=5, box=sys.argv[2]) as lab:
    print(lab.line.pid, flush=True)
    time.sleep(600)
"""


def long_line(hosts, rates, **options):
    return netlab.Lab(hosts, rates, box=BOX, **options)


def python(program, *words):
    return [sys.executable, "-c", program, *words]


def datagrams(lab, count, pause_s=0.0):
    """Seconds that each of those that arrived was under way from host 0 to host 1, and their numbers."""
    receiving = lab.start(1, python(RECEIVE))
    assert receiving.output.readline() == b"listening\n"
    lab.start(0, python(SEND, lab.address(1), count, pause_s))
    line = receiving.output.readline()
    assert line, receiving.errors()
    return json.loads(line)


@needs_namespaces
@pytest.mark.parametrize("delay_ms", [5, 50])
def test_each_frame_is_under_way_for_the_delay_and_hardly_longer(delay_ms):
    with long_line(2, "50mbit", delay_ms=delay_ms, nice=-10) as lab:
        took, numbers = datagrams(lab, 300, 0.002)
    assert len(numbers) == 300, "none is lost"
    assert min(took) >= 1e-3 * delay_ms
    assert statistics.median(took) < 1e-3 * delay_ms + 1e-3


@needs_namespaces
def test_frames_are_lost_with_the_probability_and_by_a_seed_the_same_again():
    count, loss = 4000, 0.05
    arrived = []
    for seed in (7, 7, 8):
        with long_line(2, None, loss=loss, seed=seed) as lab:
            _, numbers = datagrams(lab, count, 1e-5)
            counters = lab.counters()
        assert counters["line_drops"] == 0
        assert counters["lost"] >= count - len(numbers), "and some of what else is said"
        arrived.append(numbers)
    for numbers in arrived:
        lost = count - len(numbers)
        assert abs(lost - count * loss) < 5 * math.sqrt(count * loss * (1 - loss))
        assert numbers == sorted(numbers), "frames do not overtake each other"
    assert arrived[0] == arrived[1] != arrived[2]


@needs_namespaces
def test_tcp_goes_through_a_line_that_loses_and_arrives_whole():
    size = 4 << 20
    with long_line(3, "200mbit", delay_ms=2, loss=0.001) as lab:
        receiving = lab.start(2, python(RECEIVE_BYTES))
        assert receiving.output.readline() == b"listening\n"
        lab.start(0, python(SEND_BYTES, lab.address(2), size))
        digest = receiving.output.readline().decode().strip()
        counters = lab.counters()
    sent = b"".join(i.to_bytes(4, "little") for i in range(size // 4))
    assert digest == hashlib.sha256(sent).hexdigest()
    assert counters["line_drops"] == 0


@needs_namespaces
def test_a_line_ends_with_its_lab_also_when_that_is_killed():
    with long_line(2, "100mbit", delay_ms=5) as lab:
        pid = lab.line.pid
        assert netlab.alive(pid)
    assert not netlab.alive(pid)
    command = python(STAYS, str(ROOT / "bench"), str(BOX))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as lab:
        pid = int(lab.stdout.readline())
        assert netlab.alive(pid)
        lab.kill()
    wait_for("the end of the box", lambda: not netlab.alive(pid), 5)
    netlab.remove_leftovers()


@needs_namespaces
def test_what_does_not_fit_is_dropped_and_counted():
    with long_line(2, None, delay_ms=100, frames=50) as lab:
        _, numbers = datagrams(lab, 200)
        assert lab.counters()["line_drops"] >= 200 - len(numbers) > 0
    assert numbers[:10] == list(range(10)), "the last to come are dropped"


@needs_namespaces
def test_told_to_end_it_says_what_it_has_counted():
    two_ports = f"ip link add left type veth peer name right && exec {BOX} left right"
    with subprocess.Popen(["unshare", "-n", "sh", "-c", two_ports], stdout=subprocess.PIPE, text=True) as box:
        assert box.stdout.readline() == "ready\n"
        for number in (signal.SIGUSR1, signal.SIGTERM):
            box.send_signal(number)
            assert set(json.loads(box.stdout.readline())) == {"left", "right", "overflow"}
        assert box.wait(5) == 0


def test_the_box_says_how_it_is_used_and_what_is_wrong():
    if not BOX.exists():
        pytest.skip(f"{BOX} is not built")

    def run(*words):
        return subprocess.run([BOX, *words], capture_output=True, text=True)

    told = run("--help")
    assert told.returncode == 0 and told.stdout.startswith("usage: wan_box") and "--loss" in told.stdout
    for words, why in [
        ((), "two ports at least"),
        (("a", "b", "--loss", "2"), "--loss 2"),
        (("a", "b", "--delay-ms", "soon"), "--delay-ms soon"),
        (("a", "b", "--speed", "2"), "--speed: no such option"),
        (("a", "b", "--seed"), "without its value"),
        (("nowhere0", "nowhere1"), "nowhere0"),
    ]:
        refused = run(*words)
        assert refused.returncode == 1 and why in refused.stderr


@needs_namespaces
def test_a_lab_without_its_box_says_what_to_do():
    with pytest.raises(netlab.LabError, match="make setup"):
        with netlab.Lab(2, "100mbit", delay_ms=5, box="/nowhere/wan_box"):
            pass
    left = subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout
    assert f"{netlab.PREFIX}{os.getpid()}-" not in left


@needs_namespaces
def test_a_job_on_a_long_line_has_bbr_and_much_under_way(tmp_path):
    available = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text(encoding="ascii")
    if "bbr" not in available.split():
        pytest.skip("this kernel has no bbr")
    with long_line(2, "200mbit", delay_ms=10) as lab:
        environ = {"DMLC_PS_ROOT_URI": lab.address(0)}
        with Job(tmp_path, workers=1, servers=1, environ=environ) as job:
            enter = [["ip", "netns", "exec", lab.namespace(host)] for host in (0, 1)]
            job.start_scheduler(prefix=enter[0])
            job.start_server(prefix=enter[0])
            job.start_program(0, [sys.executable, BULK, "40"], prefix=enter[1])
            sockets = [*enter[1], "ss", "-Htni", "state", "established"]

            def controls():
                shown = subprocess.run(sockets, capture_output=True, text=True, check=True).stdout
                return [control for control in ("bbr", "reno") if f" {control} " in shown]

            wait_for("connections", lambda: controls() == ["bbr"])
            job.join(timeout_s=60)
            for process in job.processes:
                assert process.code == 0, job.story(f"{process.name} ended with {process.code}")
