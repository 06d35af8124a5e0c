#!/usr/bin/env python3
"""Hosts on one machine, each with a network card of its own speed.

A host is a network namespace, joined by a veth pair to one bridge; the bridge has a namespace of its own, so the
machine's own network is never touched. Both ends of each pair are shaped (tbf): what a host sends on its own end, what
it receives on the bridge's, so each direction carries at most `rate`, as a cable would. Rates count Ethernet headers.
A host may have several such cards, eth0, eth1, ...: each of a subnet and a bridge of its own, or all of one.

    with Lab(4, "1gbit") as lab:
        processes = [lab.start(host, ["iperf3", "-s", "-1"]) for host in range(4)]

    bench/netlab.py --hosts 4 --rate 1gbit -- sh -c 'echo host $NETLAB_HOST is $NETLAB_IP'
    bench/netlab.py --hosts 2 --rate 50mbit --delay-ms 50 --loss 0.001 -- ss -tin

Where a delay or losses are asked for, a program takes the bridge's place (wan_box.cc), which holds each frame, and
loses some. It stands between the shapers: what is lost has used the sender's card and not the receiver's.

Needs root, iproute2 and the kernel's veth, bridge and tbf. Names carry the pid of who made them; what is left of a dead
one is removed when the next lab is built. Processes end with their lab, also when it is killed.
"""

import argparse
import ctypes
import json
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PREFIX = "bpslab"
SUBNETS = "10.77"
SUBNET = f"{SUBNETS}.0"  # of the first card, or of all
HOSTS_MAX = 100  # in a subnet where cards are of one
MTU = 1500
GSO_BYTES = 65536  # the largest burst that a host hands to its card at once
LINE_BURST_BYTES = 16 << 10  # the same where frames are lost one by one
BOX = pathlib.Path(__file__).resolve().parent.parent / "build" / "release" / "bin" / "wan_box"
BOX_PATIENCE_S = 20
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
PR_SET_PDEATHSIG = 1
NETNS = "/run/netns"


class LabError(RuntimeError):
    pass


def bits_per_second(rate):
    """'1gbit' -> 1e9"""
    match = re.fullmatch(r"([0-9.]+)([kmg]bit)", rate)
    if match is None or float(match[1]) <= 0:
        raise LabError(f"rate {rate!r} is not a number and kbit, mbit or gbit, for example 500mbit")
    return float(match[1]) * UNITS[match[2]]


def missing():
    """Why there can be no lab here; empty when there can."""
    if os.geteuid() != 0:
        return "network namespaces need root: run it with sudo, or in a container that may make them"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"network namespaces need {tool}: install iproute2"
    name = f"{PREFIX}{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode != 0:
        return f"no network namespaces here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return ""


def alive(pid):
    return os.path.exists(f"/proc/{pid}")


def remove_leftovers():
    """Namespaces of labs whose maker is dead, and what still runs in them. Returns their names."""
    removed = []
    for name in sorted(os.listdir(NETNS)) if os.path.isdir(NETNS) else []:
        match = re.match(PREFIX + r"(\d+)-", name)
        if match is None or alive(int(match[1])):
            continue
        remove(name)
        removed.append(name)
    return removed


def remove(name):
    """A namespace of ours, with what still runs in it, whoever started that."""
    pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split()
    for pid in pids:
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            pass
    subprocess.run(["ip", "netns", "del", name], capture_output=True)


def die_with_parent():
    """Runs in the child before exec: it must not outlive whoever measures."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Process:
    """A command on a host: pipes for its input and output, standard error in a temporary file."""

    def __init__(self, host, argv, env):
        self.host, self.argv = host, [str(word) for word in argv]
        self._errors = tempfile.TemporaryFile()
        self._popen = subprocess.Popen(
            self.argv,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        self.pid, self.input, self.output = self._popen.pid, self._popen.stdin, self._popen.stdout

    def poll(self):
        return self._popen.poll()

    def errors(self, bytes_max=2000):
        """The end of what it wrote to standard error."""
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - bytes_max))
        return self._errors.read().decode(errors="replace")

    def cpu_seconds(self):
        """User and system time of all its threads that still live, to the nanosecond."""
        total = 0
        try:
            for thread in os.listdir(f"/proc/{self.pid}/task"):
                with open(f"/proc/{self.pid}/task/{thread}/schedstat", encoding="ascii") as file:
                    total += int(file.read().split()[0])
        except OSError:
            pass
        return total * 1e-9

    def stop(self, patience_s=2.0):
        """Ends it with all that it started."""
        for pipe in (self.input, self.output):
            try:
                pipe.close()
            except OSError:
                pass
        for number, patience in ((0, patience_s), (signal.SIGTERM, 1.0), (signal.SIGKILL, 5.0)):
            try:
                os.killpg(self.pid, number)
                self._popen.wait(patience)
            except ProcessLookupError:
                pass
            except subprocess.TimeoutExpired:
                continue
            break
        self._popen.wait()
        self._errors.close()


class Line:
    """The box between the ports of a lab that has a delay or losses; see wan_box.cc."""

    def __init__(self, box, prefix, options, ports):
        if not os.path.exists(box):
            raise LabError(f"a delay or losses need {box}, which is not there: build it (make setup)")
        self._process = Process("the line", [*prefix, box, *options, *ports], dict(os.environ))
        self.pid = self._process.pid
        if self._read() != "ready":
            errors = self._process.errors().strip()
            self._process.stop(0)
            raise LabError(f"the box of the line did not start: {errors}")

    def counters(self):
        """By port: what its host has sent and what became of it, and what was sent to it; and "overflow", of all. Since
        the lab was built."""
        os.kill(self.pid, signal.SIGUSR1)
        return json.loads(self._read() or "{}")

    def stop(self):
        self._process.stop(0)

    def _read(self):
        """A line of what it says; empty when there is none."""
        readable, _, _ = select.select([self._process.output], [], [], BOX_PATIENCE_S)
        return self._process.output.readline().decode().strip() if readable else ""


class Loopback:
    """A lab of one host, this machine, with nothing shaped: no root needed. Hosts are only names."""

    rates, congestion_control = None, None

    def __init__(self, nice=0):
        self.processes, self._nice = [], nice

    def address(self, _host):
        return "127.0.0.1"

    def interface(self):
        return "lo"

    def interfaces(self):
        return self.interface()

    def start(self, host, argv, env=None):
        full = {**os.environ, **{name: str(value) for name, value in (env or {}).items()}}
        self.processes.append(Process(host, [*self._nicely(), *argv], full))
        return self.processes[-1]

    def counters(self):
        return {}

    def card_bytes(self):
        return []

    def _nicely(self):
        return ["nice", "-n", str(self._nice)] if self._nice and (self._nice > 0 or os.geteuid() == 0) else []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.stop(0)
        self.processes.clear()


class Lab(Loopback):
    """Hosts 0 to hosts-1; see above.

    rates: one for all, or one per host, of each of its cards; None leaves that host unshaped. delay_ms: of each frame,
    on its way from host to host; loss: the probability that it is lost there, by chance of this seed; frames: how many
    are there at most. queue_ms: how much a shaper holds, at its rate. nice: of every command, below 0 to win against
    other work. cards: of each host. one_subnet: all of them are in one; else each has a subnet of its own. box: the
    program that delays and loses."""

    _count = 0

    def __init__(self, hosts, rates, delay_ms=0.0, queue_ms=10.0, congestion_control="reno", nice=0, *,
                 cards=1, one_subnet=False, loss=0.0, seed=1, frames=65536, box=BOX):  # fmt: skip
        super().__init__(nice)
        Lab._count += 1
        self._name = f"{PREFIX}{os.getpid()}-{Lab._count}"
        self.hosts = hosts
        self.rates = list(rates) if isinstance(rates, (list, tuple)) else [rates] * hosts
        if len(self.rates) != hosts:
            raise LabError(f"{hosts} hosts, but {len(self.rates)} rates")
        if hosts >= HOSTS_MAX or cards > 2:
            raise LabError(f"{hosts} hosts of {cards} cards; there may be {HOSTS_MAX - 1} of 2")
        if cards > 1 and (delay_ms or loss):
            raise LabError("a long line is between hosts of one card")
        self._cards, self._one_subnet = cards, one_subnet
        self.congestion_control = congestion_control
        self._queue_ms = queue_ms
        self.line = None
        self._has_line, self._box = bool(delay_ms or loss), box
        self._line_options = ["--delay-ms", delay_ms, "--loss", loss, "--seed", seed, "--frames", frames]
        self._made = []

    def address(self, host, card=0):
        if self._one_subnet:
            return f"{SUBNET}.{card * HOSTS_MAX + host + 1}"
        return f"{SUBNETS}.{card}.{host + 1}"

    def interface(self):
        return "eth0"

    def interfaces(self):
        """All of a host, as DMLC_INTERFACE has them."""
        return ",".join(f"eth{card}" for card in range(self._cards))

    def start(self, host, argv, env=None):
        told = {
            "NETLAB_HOST": host,
            "NETLAB_HOSTS": self.hosts,
            "NETLAB_IP": self.address(host),
            "NETLAB_NAMESPACE": self.namespace(host),
        }
        return super().start(host, ["ip", "netns", "exec", self.namespace(host), *argv], {**told, **(env or {})})

    def namespace(self, host):
        return f"{self._name}-h{host}"

    def counters(self):
        """Since the lab was built: packets that shapers dropped (at the sender's card, at the receiver's), what TCP
        repeated on hosts that have a process, and of a line what it lost by chance, and what it had no room for."""
        found = {"drops_out": 0, "drops_in": 0, "retransmissions": 0, "timeouts": 0}
        for host in range(self.hosts):
            if self.rates[host]:
                found["drops_out"] += self._drops(self.namespace(host))
        found["drops_in"] = self._drops(f"{self._name}-switch")
        seen = set()
        for process in self.processes:
            if process.host not in seen and process.poll() is None:
                seen.add(process.host)
                found["retransmissions"] += tcp_counter(process.pid, "snmp", "Tcp", "RetransSegs")
                found["timeouts"] += tcp_counter(process.pid, "netstat", "TcpExt", "TCPTimeouts")
        if self.line is not None:
            counters = self.line.counters()
            found["line_drops"] = counters.pop("overflow")
            found["line_drops"] += sum(port["dropped"] + port["too_long"] for port in counters.values())
            found["lost"] = sum(port["lost"] for port in counters.values())
        return found

    def card_bytes(self):
        """Since the lab was built, for each host: bytes that its cards have sent and received, with headers."""
        return [[sum(ways) for ways in zip(*cards)] for cards in self.bytes_by_card()]

    def bytes_by_card(self):
        """The same for each host and card."""
        found = []
        for host in range(self.hosts):
            links = json.loads(self._run("ip", "-n", self.namespace(host), "-s", "-j", "link", "show"))
            cards = {each["ifname"]: each["stats64"] for each in links}
            ways = [[cards[f"eth{card}"][way]["bytes"] for way in ("tx", "rx")] for card in range(self._cards)]
            found.append(ways)
        return found

    def _drops(self, namespace):
        rows = json.loads(self._run("tc", "-n", namespace, "-s", "-j", "qdisc", "show") or "[]")
        return sum(row.get("drops", 0) for row in rows if row.get("root"))

    def __enter__(self):
        why = missing()
        if why:
            raise LabError(why)
        remove_leftovers()
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        super().__exit__()
        if self.line is not None:
            self.line.stop()
            self.line = None
        while self._made:
            remove(self._made.pop())

    def _build(self):
        switch = f"{self._name}-switch"
        self._add(switch)
        if not self._has_line:
            self._build_bridges(switch)
        for host in range(self.hosts):
            self._build_host(switch, host)
        if self._has_line:
            enter = [*self._nicely(), "ip", "netns", "exec", switch]
            ports = [f"port{host}c0" for host in range(self.hosts)]
            self.line = Line(self._box, enter, self._line_options, ports)

    def _build_bridges(self, switch):
        for number in range(1 if self._one_subnet else self._cards):
            kind = ["type", "bridge", "stp_state", "0", "mcast_snooping", "0"]
            self._run("ip", "-n", switch, "link", "add", f"br{number}", *kind)
            self._run("ip", "-n", switch, "link", "set", f"br{number}", "mtu", MTU, "up")
        for table in ("arp", "ip", "ip6"):  # no packet filter on the bridge's path; the module may be absent
            setting = f"net.bridge.bridge-nf-call-{table}tables=0"
            subprocess.run(["ip", "netns", "exec", switch, "sysctl", "-qw", setting], capture_output=True)

    def _build_host(self, switch, host):
        name = self.namespace(host)
        self._add(name)
        settings = [f"net.ipv4.tcp_congestion_control={self.congestion_control}"]
        if self._one_subnet:  # a card answers for its own address only
            settings += [f"net.ipv4.conf.all.{each}" for each in ("arp_ignore=1", "arp_announce=2", "rp_filter=2")]
        self._run("ip", "netns", "exec", name, "sysctl", "-qw", *settings)
        for card in range(self._cards):
            self._build_card(switch, host, card)

    def _build_card(self, switch, host, card):
        name, own, port = self.namespace(host), f"eth{card}", f"port{host}c{card}"
        self._run("ip", "-n", switch, "link", "add", port, "type", "veth", "peer", "name", own, "netns", name)
        bursts = ["gso_max_segs", 1] if self._has_line else ["gso_max_size", GSO_BYTES]
        for where, device in ((switch, port), (name, own)):
            self._run("ip", "-n", where, "link", "set", device, "mtu", MTU, *bursts)
            self._shape(where, device, self.rates[host])
        # On a line there is only what hosts say: nothing of IPv6, so that it loses the same again.
        if self._has_line:
            for where, device in ((switch, port), (name, own)):
                self._run("ip", "-n", where, "link", "set", device, "addrgenmode", "none")
        else:
            bridge = "br0" if self._one_subnet else f"br{card}"
            self._run("ip", "-n", switch, "link", "set", port, "master", bridge)
        self._run("ip", "-n", switch, "link", "set", port, "up")
        self._run("ip", "-n", name, "addr", "add", f"{self.address(host, card)}/24", "dev", own)
        self._run("ip", "-n", name, "link", "set", own, "up")

    def _shape(self, namespace, device, rate):
        if not rate:
            return
        bytes_per_second = bits_per_second(rate) / 8
        # The bucket holds the largest burst, a whole GSO packet where hosts have them, and about 0.5 ms of traffic.
        largest = LINE_BURST_BYTES if self._has_line else GSO_BYTES + 4096
        burst = int(max(largest, bytes_per_second * 0.0005))
        limit = int(burst + max(256 << 10, bytes_per_second * self._queue_ms / 1000))
        shaper = ["tbf", "rate", rate, "burst", burst, "limit", limit]
        self._run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "handle", "1:", *shaper)

    def _add(self, name):
        self._run("ip", "netns", "add", name)
        self._made.append(name)
        self._run("ip", "-n", name, "link", "set", "lo", "up")

    @staticmethod
    def _run(*words):
        argv = [str(word) for word in words]
        done = subprocess.run(argv, capture_output=True, text=True)
        if done.returncode != 0:
            raise LabError(f"{' '.join(argv)}: {done.stderr.strip()}")
        return done.stdout


def tcp_counter(pid, file, group, name):
    """A counter of the network namespace that process pid is in."""
    try:
        with open(f"/proc/{pid}/net/{file}", encoding="ascii") as lines:
            rows = [line.split() for line in lines if line.startswith(group + ":")]
    except OSError:
        return 0
    for names, values in zip(rows[::2], rows[1::2]):
        if name in names:
            return int(values[names.index(name)])
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rate", default="1gbit", help="of every host; several, separated by commas: one per host")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="of each frame, on the way from host to host")
    parser.add_argument("--loss", type=float, default=0.0, help="the probability that a frame is lost there")
    parser.add_argument("--seed", type=int, default=1, help="of the loss")
    parser.add_argument("command", nargs="+", help="run once on every host, after --")
    args = parser.parse_args()
    rates = args.rate.split(",") if "," in args.rate else args.rate
    try:
        with Lab(args.hosts, rates, args.delay_ms, loss=args.loss, seed=args.seed) as lab:
            processes = [lab.start(host, args.command) for host in range(args.hosts)]
            for process in processes:
                process.input.close()
            worst = 0
            for process in processes:
                output = process.output.read().decode(errors="replace")
                while process.poll() is None:
                    time.sleep(0.01)
                worst = max(worst, abs(process.poll()))
                print(f"--- host {process.host}, exit code {process.poll()}\n{output}{process.errors()}", end="")
            print(f"--- {lab.counters()}")
    except LabError as error:
        sys.exit(f"netlab: {error}")
    sys.exit(worst)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the lab is taken down
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
