"""Hosts on one machine: network namespaces joined by a bridge, whose cables a test can pull.

    with Network(3) as network:
        job.start_server(prefix=network.on(1))     # as on host 1, 10.91.0.2
        network.cut(1)                             # its cable is pulled: nothing comes or goes, nobody is told
        network.take_address(2)                    # its address is gone

Needs root and iproute2. Everything made here has the network's own name and is removed at the end, however that comes.
"""

import os
import shutil
import subprocess

PREFIX = "10.91.0"


def missing():
    """Why there can be no namespaces here; empty when there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need iproute2 (ip)"
    name = f"bpsprobe{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode != 0:
        return f"no network namespaces here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return ""


class Network:
    _count = 0

    def __init__(self, hosts):
        Network._count += 1
        self._name = f"bps{os.getpid()}n{Network._count}"
        self._hosts = hosts
        self._made = []

    def __enter__(self):
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in reversed(self._made):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        self._made.clear()

    def on(self, host):
        """Put before a command, runs it on this host."""
        return ["ip", "netns", "exec", self._host(host)]

    def address(self, host):
        return f"{PREFIX}.{host + 1}"

    def cut(self, host):
        self._ip("-n", self._switch, "link", "set", f"port{host}", "down")

    def mend(self, host):
        self._ip("-n", self._switch, "link", "set", f"port{host}", "up")

    def take_address(self, host):
        self._ip("-n", self._host(host), "addr", "del", f"{self.address(host)}/24", "dev", "eth0")

    def _host(self, host):
        return f"{self._name}h{host}"

    def _build(self):
        # The bridge has a namespace of its own, so that the machine's own network is not touched.
        self._switch = f"{self._name}switch"
        self._add(self._switch)
        self._ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
        self._ip("-n", self._switch, "link", "set", "br0", "up")
        for host in range(self._hosts):
            name, port = self._host(host), f"port{host}"
            self._add(name)
            self._ip("-n", name, "link", "set", "lo", "up")
            self._ip("-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            self._ip("-n", self._switch, "link", "set", port, "master", "br0")
            self._ip("-n", self._switch, "link", "set", port, "up")
            self._ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            self._ip("-n", name, "link", "set", "eth0", "up")

    def _add(self, name):
        self._ip("netns", "add", name)
        self._made.append(name)

    @staticmethod
    def _ip(*words):
        subprocess.run(["ip", *words], check=True, capture_output=True)
