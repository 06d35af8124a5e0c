#!/usr/bin/env python3
"""What strangers at the ports cost a running job: its step time with and without an attack, in turn, in one run.

    .venv/bin/python bench/evil_peer.py [--seconds 60] [--rate 100] [--held 300] [--mib 16] [--record]

A job of 2 workers and 2 servers sums on loopback. In every second window an attacker opens `rate` connections a second
to the scheduler and the servers, sends random bytes, half a Hello, a wrong key or nothing, and keeps up to `held` of
them open. It runs on the same machine with nice 19 and its processor time is in the figures, so the rate is bounded:
with few cores an unbounded one would measure the attacker. Each window with an attack is compared with its two
neighbours without. Prints the median ratio and its quartiles; --record appends a line to bench/history.jsonl.
"""

import argparse
import collections
import json
import os
import random
import statistics
import subprocess
import sys
import time

import push_pull

sys.path.insert(0, str(push_pull.ROOT / "tests" / "process"))
import evil  # noqa: E402
import wire  # noqa: E402

WINDOW_S = 1.5
SETTLE_S = 0.25  # at a window's start, left out: connections of the one before are still closed


def is_attacked(now_s, began_s):
    return int((now_s - began_s) / WINDOW_S) % 2 == 1


def attack(options):
    """The attacker's process: until it is ended."""
    os.nice(19)
    chance = random.Random(1)
    held = collections.deque()
    words = [
        b"",
        wire.record(wire.HELLO, bytes(200))[:100],
        wire.record(wire.HELLO, os.urandom(wire.NONCE_BYTES) + wire.hello(wire.WORKER, 0, 1, b"guess")),
        chance.randbytes(1000),
        wire.RECORD_HEAD.pack(wire.MAGIC, wire.HELLO, 4000) + bytes(3990),
    ]
    opened = 0
    while True:
        if not is_attacked(time.monotonic(), options.began):
            while held:
                held.popleft().close()
            time.sleep(0.01)
            continue
        try:
            peer = evil.plug(options.ports[opened % len(options.ports)], timeout_s=1)
            peer.sendall(words[opened % len(words)])
            held.append(peer)
        except OSError:
            pass
        opened += 1
        while len(held) > options.held:
            held.popleft().close()
        time.sleep(1 / options.rate)


def run_job(options, rounds, attacked_from=None):
    """(start, end) of each round, and the attacker's processor seconds."""
    env = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(push_pull.free_port()),
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "2",
        "BYTEPS_FORCE_DISTRIBUTED": "1",
        "BYTEPS_SERVER_ENGINE_THREAD": "1",
        "BYTEPS_JOB_KEY": os.urandom(16).hex(),
        "BYTEPS_LOG_LEVEL": "ERROR",
    }
    binaries = push_pull.ROOT / os.environ.get("BYTEPS_TEST_BUILD", "build/release") / "bin"
    attacker = None
    with push_pull.Processes() as processes:
        services = [processes.start([binaries / "byteps_scheduler"], env)]
        services += [processes.start([binaries / "byteps_server"], env) for _ in range(2)]
        command = [binaries / "push_pull_worker", options.mib << 20, rounds, 1]
        workers = [processes.start(command, {**env, "DMLC_WORKER_ID": str(rank)}) for rank in range(2)]
        if attacked_from is not None:
            while sum(len(evil.listening_ports(service.pid)) for service in services) < 3:
                time.sleep(0.05)
            ports = [port for service in services for port in evil.listening_ports(service.pid)]
            attacker = subprocess.Popen(
                [sys.executable, __file__, "--attacker", "--began", repr(attacked_from), "--rate", str(options.rate),
                 "--held", str(options.held), "--ports", *map(str, ports)]
            )  # fmt: skip
        try:
            outputs = [processes.finish(worker)[0] for worker in workers]
        finally:
            attacker_s = 0.0
            if attacker is not None:
                attacker.terminate()
                _, _, usage = os.wait4(attacker.pid, 0)
                attacker.returncode = 0
                attacker_s = usage.ru_utime + usage.ru_stime
        for service in services:
            processes.finish(service)
    times = [[tuple(map(float, line.split())) for line in output.splitlines()] for output in outputs]
    return [(min(s for s, _ in each), max(e for _, e in each)) for each in zip(*times)], attacker_s


def ratios_of(rounds, began_s):
    """Step time of each attacked window over that of its neighbours."""
    windows = collections.defaultdict(list)
    for start, end in rounds:
        window = int((start - began_s) / WINDOW_S)
        if int((end - began_s) / WINDOW_S) == window and start - began_s - window * WINDOW_S > SETTLE_S:
            windows[window].append(end - start)
    medians = {window: statistics.median(times) for window, times in windows.items() if len(times) >= 5}
    ratios = []
    for window in sorted(medians):
        if window % 2 == 1 and window - 1 in medians and window + 1 in medians:
            ratios.append(2 * medians[window] / (medians[window - 1] + medians[window + 1]))
    quiet = [median for window, median in medians.items() if window % 2 == 0]
    return ratios, statistics.median(quiet)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=float, default=100, help="connections a second")
    parser.add_argument("--held", type=int, default=300, help="connections open at a time")
    parser.add_argument("--mib", type=int, default=16)
    parser.add_argument("--record", action="store_true", help="append to bench/history.jsonl")
    parser.add_argument("--attacker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--ports", type=int, nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attacker:
        return attack(options)
    load = os.getloadavg()[0]
    warm, _ = run_job(options, 30)
    step_s = (warm[-1][1] - warm[0][0]) / len(warm)
    began_s = time.monotonic()
    rounds, attacker_s = run_job(options, int(options.seconds / step_s), began_s)
    ratios, quiet_s = ratios_of(rounds, began_s)
    if len(ratios) < 3:
        sys.exit(f"only {len(ratios)} windows could be compared: give it more --seconds")
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(
        f"step of {options.mib} MiB: {1e3 * quiet_s:.1f} ms without an attack; with {options.rate:.0f} connections a "
        f"second and {options.held} held: {middle:.3f} times as long (quartiles {low:.3f} to {high:.3f}, "
        f"{len(ratios)} windows; attacker {attacker_s:.1f} s of processor; load before {load:.1f}, "
        f"{os.cpu_count()} cores)"
    )
    if options.record:
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=push_pull.ROOT, text=True, capture_output=True
        ).stdout.strip()
        line = {
            "bench": "evil_peer", "time": int(time.time()), "commit": commit, "load": load, "cores": os.cpu_count(),
            "mib": options.mib, "rate": options.rate, "held": options.held, "quiet_seconds": quiet_s,
            "ratios": ratios, "attacker_cpu_s": attacker_s,
        }  # fmt: skip
        with open(push_pull.ROOT / "bench" / "history.jsonl", "a", encoding="utf-8") as history:
            history.write(json.dumps(line) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
