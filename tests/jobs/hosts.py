"""Hosts on one machine: network namespaces joined by a bridge, whose cables a test can pull. To BytePS each is a
machine of its own (docs/local.md).

    Job(folder, servers=1, hosts=(2, 1))           # ranks 0 and 1 on one host, 2 on another, the rest on a third

    with Network(3) as network:                    # where a test says itself what is where
        job.start_server(prefix=network.on(1))     # as on host 1, 10.91.0.2
        network.cut(1)                             # its cable is pulled: nothing comes or goes, nobody is told
        network.take_address(2)                    # its address is gone

Needs root and iproute2; a test without them is skipped, and says why. Everything made here has the network's own name,
with the pid of who made it, and is removed at the end, however that comes; what is left of a process that was killed is
removed by the next one that makes a network.
"""

import itertools
import os
import re
import shutil
import signal
import subprocess

PREFIX = "10.91.0"
NAMED = "/run/netns"  # where iproute2 has the names of namespaces
NAME = "bps{}n"


def remove_leftovers():
    """Namespaces whose maker is dead, and what still runs in them."""
    for name in os.listdir(NAMED) if os.path.isdir(NAMED) else []:
        maker = re.match(NAME.format(r"(\d+)"), name)
        if maker is not None and not os.path.exists(f"/proc/{maker[1]}"):
            remove(name)


def remove(name):
    pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split()
    for pid in pids:
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            pass
    subprocess.run(["ip", "netns", "del", name], capture_output=True)


def places(hosts):
    """The host of each rank, where `hosts` has for each host how many of the ranks, or which: (2, 1), ((0, 2), [1])."""
    found = {}
    for host, those in enumerate(hosts):
        found.update(dict.fromkeys(range(len(found), len(found) + those) if isinstance(those, int) else those, host))
    return [found[rank] for rank in range(len(found))]


def skip(why):
    import pytest  # not above: workers import job.py, and may have none

    pytest.skip(why)


class Network:
    _numbers = itertools.count(1)

    def __init__(self, hosts):
        self._name = f"{NAME.format(os.getpid())}{next(self._numbers)}"
        self._hosts = hosts
        self._made = []

    def __enter__(self):
        self.make()
        return self

    def __exit__(self, *_):
        self.remove()

    def make(self):
        """Does nothing the second time."""
        if self._made:
            return
        if os.geteuid() != 0:
            skip("network namespaces need root")
        if shutil.which("ip") is None:
            skip("network namespaces need iproute2 (ip)")
        remove_leftovers()
        try:
            self._build()
        except BaseException:
            self.remove()
            raise

    def remove(self):
        for name in reversed(self._made):
            remove(name)
        self._made.clear()

    def on(self, host):
        """Put before a command, runs it on this host."""
        return ["ip", "netns", "exec", self._host(host)]

    def namespace(self, host):
        """The file that is this host's network namespace, for setns()."""
        return f"{NAMED}/{self._host(host)}"

    def address(self, host):
        return f"{PREFIX}.{host + 1}"

    def cut(self, host):
        self._ip("-n", self._switch, "link", "set", f"port{host}", "down")

    def mend(self, host):
        self._ip("-n", self._switch, "link", "set", f"port{host}", "up")

    def take_address(self, host):
        self._ip("-n", self._host(host), "addr", "del", f"{self.address(host)}/24", "dev", "cable")

    def _host(self, host):
        return f"{self._name}h{host}"

    def _build(self):
        # The bridge has a namespace of its own, so that the machine's own network is not touched.
        self._switch = f"{self._name}switch"
        try:
            self._add(self._switch)
        except subprocess.CalledProcessError as error:
            skip(f"no network namespaces here: {error.stderr.decode().strip()}")
        self._ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
        self._ip("-n", self._switch, "link", "set", "br0", "up")
        for host in range(self._hosts):
            name, port = self._host(host), f"port{host}"
            self._add(name)
            self._ip("-n", name, "link", "set", "lo", "up")
            self._ip("-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", "cable", "netns", name)
            self._ip("-n", self._switch, "link", "set", port, "master", "br0")
            self._ip("-n", self._switch, "link", "set", port, "up")
            self._ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "cable")
            self._ip("-n", name, "link", "set", "cable", "up")

    def _add(self, name):
        self._ip("netns", "add", name)
        self._made.append(name)

    @staticmethod
    def _ip(*words):
        subprocess.run(["ip", *words], check=True, capture_output=True)
