#!/usr/bin/env python3
"""What strangers at the ports cost a running job: its step time, in turns of quiet, control and attack, in one run.

    .venv/bin/python bench/evil_peer.py [--seconds 60] [--rate 133] [--held 300] [--mib 16] [--words random] [--record]

A job of 2 workers and 2 servers sums on loopback. In windows of an attack a process opens `rate` connections a second
to the scheduler and the servers, says something to each, and keeps up to `held` of them open. In the windows of the
control it does the same at ports of its own, where nobody answers: what is left of the difference to quiet windows is
what opening and holding connections costs the machine, which has the attacker on it too. The ratio of an attack's
windows to the controls beside them is what the job does about its strangers. Windows take turns, so that what else
happens on the machine meets all three alike. Prints medians and quartiles; --record appends a line to
bench/history.jsonl.
"""

import argparse
import collections
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "jobs"))
import evil
import wire

WINDOW_S = 1.5
SETTLE_S = 0.25  # at a window's start, left out: connections of the one before are still closed
KINDS = ("quiet", "control", "attack", "control")
CONTROL_PORTS = 3
STEPS_LEAST = 5  # of a window that counts


def kind_of(window):
    return KINDS[window % len(KINDS)]


def words_of(name):
    """What the connections say, one after the other."""
    chance = random.Random(1)
    if name == "random":
        return [chance.randbytes(count) for count in (64, 1000, 4096, 20000)]
    if name == "silent":
        return [b""]
    guess = wire.record(wire.HELLO, os.urandom(wire.NONCE_BYTES) + wire.hello(wire.WORKER, 0, 1, b"guess"))
    return [*evil.WORDS.values(), guess, chance.randbytes(1000)]


class Attacker:
    """The attacker's process: until it is ended."""

    def __init__(self, options):
        self.options = options
        self.words = words_of(options.words)
        self.held = collections.deque()
        self.deaf = []  # the control's listeners: the kernel takes connections for them, nobody else does
        self.kind = "quiet"

    def change_to(self, kind):
        for peer in [*self.held, *self.deaf]:
            peer.close()
        self.held.clear()
        self.deaf = [evil.Listener() for _ in range(CONTROL_PORTS)]
        self.kind = kind

    def ports(self):
        return self.options.ports if self.kind == "attack" else [deaf.port for deaf in self.deaf]

    def open_one(self, number):
        ports = self.ports()
        try:
            peer = evil.plug(ports[number % len(ports)], timeout_s=1)
            peer.setblocking(False)
            self.held.append(peer)
            peer.send(self.words[number % len(self.words)])
        except OSError:
            pass
        while len(self.held) > self.options.held:
            self.held.popleft().close()

    def run(self):
        os.nice(19)
        number = 0
        next_s = time.monotonic()
        while True:
            now_s = time.monotonic()
            kind = kind_of(int((now_s - self.options.began) / WINDOW_S))
            if kind != self.kind:
                self.change_to(kind)
            if kind == "quiet":
                time.sleep(0.01)
                next_s = time.monotonic()
            elif now_s < next_s:
                time.sleep(next_s - now_s)
            else:
                self.open_one(number)
                number += 1
                next_s += 1 / self.options.rate


class Job:
    """2 workers, 2 servers, a scheduler."""

    def __init__(self, options):
        binaries = Path(os.environ.get("BYTEPS_BENCH_BINARIES", ROOT / "build" / "release" / "bin"))
        with socket.create_server((evil.ADDRESS, 0)) as probe:
            port = probe.getsockname()[1]
        self.env = {
            **os.environ,
            "DMLC_PS_ROOT_URI": evil.ADDRESS,
            "DMLC_PS_ROOT_PORT": str(port),
            "DMLC_NUM_WORKER": "2",
            "DMLC_NUM_SERVER": "2",
            "BYTEPS_FORCE_DISTRIBUTED": "1",
            "BYTEPS_SERVER_ENGINE_THREAD": "1",
            "BYTEPS_JOB_KEY": os.urandom(16).hex(),
            "BYTEPS_LOG_LEVEL": "ERROR",
            "BYTEPS_FLIGHT_EVENTS": "0",
        }
        self.services = [self._start([binaries / "byteps_scheduler"], "scheduler")]
        self.services += [self._start([binaries / "byteps_server"], "server") for _ in range(2)]
        command = [binaries / "push_pull_worker", "--bytes", str(options.mib << 20)]
        self.workers = [self._start(command, "worker", DMLC_WORKER_ID=str(rank)) for rank in range(2)]
        for worker in self.workers:
            if worker.stdout.readline() != b"ready\n":
                raise RuntimeError("a worker could not join")
        self.ports = [port for service in self.services for port in evil.listening_ports(service.pid)]

    def _start(self, command, role, **env):
        return subprocess.Popen(
            command, env={**self.env, "DMLC_ROLE": role, **env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def step(self):
        """(start, end)"""
        for worker in self.workers:
            worker.stdin.write(b"go\n")
            worker.stdin.flush()
        times = [tuple(map(float, worker.stdout.readline().split())) for worker in self.workers]
        return min(each[0] for each in times), max(each[1] for each in times)

    def service_cpu_s(self):
        total = 0
        for service in self.services:
            fields = Path(f"/proc/{service.pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total / os.sysconf("SC_CLK_TCK")

    def end(self):
        for worker in self.workers:
            worker.stdin.close()
        codes = [process.wait(30) for process in self.workers + self.services]
        if any(codes):
            raise RuntimeError(f"the job ended with {codes}")


def medians_of(steps, began_s):
    """Step time of each window, by its number."""
    windows = collections.defaultdict(list)
    for start, end in steps:
        window = int((start - began_s) / WINDOW_S)
        if int((end - began_s) / WINDOW_S) == window and start - began_s - window * WINDOW_S > SETTLE_S:
            windows[window].append(end - start)
    return {window: statistics.median(times) for window, times in windows.items() if len(times) >= STEPS_LEAST}


def ratios(medians, kind, other):
    """Of each window of a kind to those beside it that are of the other kind."""
    found = []
    for window, median in medians.items():
        beside = [medians[near] for near in (window - 1, window + 1) if near in medians and kind_of(near) == other]
        if kind_of(window) == kind and beside:
            found.append(median / statistics.mean(beside))
    return found


def spread_text(values):
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.3f} (quartiles {low:.3f} to {high:.3f}, {len(values)} windows)"


def measure(options):
    job = Job(options)
    attacker = None
    try:
        for _ in range(20):
            job.step()
        began_s = time.monotonic()
        command = [sys.executable, __file__, "--attacker", "--began", repr(began_s), "--rate", str(options.rate),
                   "--held", str(options.held), "--words", options.words, "--ports", *map(str, job.ports)]  # fmt: skip
        attacker = subprocess.Popen(command)
        steps = []
        cpu_s = collections.Counter()
        before = (kind_of(0), job.service_cpu_s())
        while time.monotonic() - began_s < options.seconds:
            steps.append(job.step())
            kind = kind_of(int((time.monotonic() - began_s) / WINDOW_S))
            if kind != before[0]:
                now = job.service_cpu_s()
                cpu_s[before[0]] += now - before[1]
                before = (kind, now)
    finally:
        if attacker is not None:
            attacker.terminate()
            attacker.wait()
        job.end()
    return medians_of(steps, began_s), {kind: cpu_s[kind] / options.seconds * len(KINDS) / KINDS.count(kind)
                                        for kind in dict.fromkeys(KINDS)}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=float, default=133, help="connections a second")
    parser.add_argument("--held", type=int, default=300, help="connections open at a time")
    parser.add_argument("--mib", type=int, default=16)
    parser.add_argument("--words", choices=("random", "silent", "mixed"), default="random")
    parser.add_argument("--record", action="store_true", help="append to bench/history.jsonl")
    parser.add_argument("--attacker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--ports", type=int, nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attacker:
        return Attacker(options).run()
    load = os.getloadavg()[0]
    medians, cores = measure(options)
    quiet = [median for window, median in medians.items() if kind_of(window) == "quiet"]
    attack, control = ratios(medians, "attack", "control"), ratios(medians, "control", "quiet")
    if min(len(quiet), len(attack), len(control)) < 3:
        sys.exit(f"only {len(medians)} windows could be compared: give it more --seconds, or a smaller --mib")
    print(
        f"step of {options.mib} MiB: {1e3 * statistics.median(quiet):.1f} ms when it is quiet; "
        f"{options.rate:.0f} connections a second ({options.words}), {options.held} held\n"
        f"  the same at a foreign port: {spread_text(control)} times as long\n"
        f"  at the job's ports, against that: {spread_text(attack)} times as long\n"
        f"  cores that scheduler and servers use: {', '.join(f'{kind} {used:.3f}' for kind, used in cores.items())}; "
        f"load before {load:.1f}, {os.cpu_count()} cores"
    )
    if options.record:
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, text=True, capture_output=True
        ).stdout.strip()
        line = {
            "bench": "evil_peer", "time": int(time.time()), "commit": commit, "load": load, "cores": os.cpu_count(),
            "mib": options.mib, "rate": options.rate, "held": options.held, "words": options.words,
            "quiet_seconds": statistics.median(quiet), "control_ratios": control, "ratios": attack,
            "service_cores": cores,
        }  # fmt: skip
        with open(ROOT / "bench" / "history.jsonl", "a", encoding="utf-8") as history:
            history.write(json.dumps(line) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
