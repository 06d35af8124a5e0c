"""The guest's three hosts (hosts.sh) for tests, and jobs on them.

    with LabJob(folder) as job:                    # the scheduler on host 1, server and worker i on host 1 + i
        job.start({"*": [["loop"]]})
        job.wait_for("looping")
        pull_cable(2)
"""

import signal
import subprocess
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from job import Job
from place import wait_until

HOSTS = (1, 2, 3)
FAILURE_S = 5.0  # emulated processors have other work
BOUND_S = 2 * FAILURE_S
AS_MACHINE = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'


def address(host: int) -> str:
    return f"10.77.0.{host}"


def user(host: int) -> int:
    return 7700 + host


def on(host: int) -> List[str]:
    """Put before a command, runs it on this host: with its boot id (hosts.sh), and as its user, without root's right to
    lock memory."""
    files = "-all,+dac_override"  # the tests' folders, and Python, are root's
    machine = ["unshare", "--mount", "sh", "-c", AS_MACHINE, f"/run/machines/{host}"]
    command = [*machine, "setpriv", f"--reuid={user(host)}", f"--regid={user(host)}", "--clear-groups"]
    return [*command, f"--inh-caps={files}", f"--ambient-caps={files}", f"--bounding-set={files}"]


@contextmanager
def cable_pulled(host: int):
    """Nothing comes or goes, and nobody is told; the device itself stays up."""
    subprocess.run(["ip", "link", "set", f"p{host}", "nomaster"], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "link", "set", f"p{host}", "master", "br0"], check=True)


@contextmanager
def port_down(host: int):
    """The same, and the device sees it: it has lost its carrier."""
    subprocess.run(["ip", "link", "set", f"p{host}", "down"], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "link", "set", f"p{host}", "up"], check=True)


@contextmanager
def rule(*words: str):
    """A rule before those of hosts.sh."""
    subprocess.run(["ip", "rule", "add", "pref", "5", *words], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "rule", "del", "pref", "5", *words], check=True)


def rdma_filtered(host: int):
    """The host's filter lets no RDMA in (RoCE v2 is UDP to port 4791), and all of TCP."""
    return rule("iif", f"h{host}", "ipproto", "udp", "dport", "4791", "blackhole")


@contextmanager
def tcp_filtered(host: int):
    """The other way round: no host hears anything by TCP that this one says."""
    with ExitStack() as rules:
        for other in set(HOSTS) - {host}:
            rules.enter_context(rule("from", address(host), "iif", f"h{other}", "ipproto", "tcp", "blackhole"))
        yield


@contextmanager
def switch_of_small_mtu(host: int):
    """The switch's port takes packets of 2000 bytes, to and from a card that sends 4096 in each."""
    subprocess.run(["ip", "link", "set", f"p{host}", "mtu", "2000"], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "link", "set", f"p{host}", "mtu", "9000"], check=True)


def sent_bytes(device: str) -> int:
    """What this network device has sent: h<i>, the card of host i, by TCP and by RDMA; lo, without a card."""
    return int(Path(f"/sys/class/net/{device}/statistics/tx_bytes").read_text())


def sent_packets() -> Dict[int, int]:
    """By host: what its RDMA device has sent."""
    counter = "/sys/class/infiniband/rxe{0}/ports/1/hw_counters/sent_pkts"
    return {host: int(Path(counter.format(host)).read_text()) for host in HOSTS}


class LabJob(Job):
    def __init__(self, folder: Path, workers: int = 2, servers: int = 2, environ=(), rdma: str = "ibverbs"):
        own = {
            "DMLC_PS_ROOT_URI": address(1),
            "DMLC_ENABLE_RDMA": rdma,
            "BYTEPS_FAILURE_TIMEOUT_MS": str(int(FAILURE_S * 1000)),
            "BYTEPS_LOG_LEVEL": "DEBUG",
        }
        super().__init__(folder, workers, servers, {**own, **dict(environ)})

    def start(self, plan, worker_hosts: Sequence[int] = HOSTS, server_hosts: Sequence[int] = HOSTS):
        self.start_services(server_hosts)
        for rank, host in zip(range(self.size), worker_hosts):
            self.start_worker(rank, plan, prefix=on(host))
        return self

    def start_services(self, server_hosts: Sequence[int] = HOSTS, environs=(), prefix: Sequence[str] = ()):
        """environs: of each server, beside the job's; prefix: what starts each of them, as root."""
        self.start_scheduler()
        for index, host in zip(range(self.server_count), server_hosts):
            self.start_server(environs[index] if environs else (), prefix=[*prefix, *on(host)])

    def start_checked_worker(self, rank: int, rounds: int, host: Optional[int] = None, prefix: Sequence[str] = ()):
        return self.start_checked(rank, 1, rounds, "leave", prefix=[*on(host or HOSTS[rank]), *prefix])

    def check_ended_well(self, timeout_s: float = 60):
        self.join(timeout_s=timeout_s)
        assert [process.code for process in self.processes] == [0] * len(self.processes), self.story("not all are well")
        self.check_nothing_is_left(wait_s=5)

    @contextmanager
    def running(self, worker_hosts, server_hosts, server_environs=(), server_prefix=()):
        """Within, the workers check sums; at its end the job has ended well."""
        self.start_services(server_hosts, server_environs, server_prefix)
        for rank, host in enumerate(worker_hosts):
            self.start_checked_worker(rank, 0, host)
        self.wait_for_rounds(1)
        yield self
        self.workers[0].send(signal.SIGTERM)
        self.check_ended_well()

    def rounds(self) -> int:
        """How many the slowest checked worker has told of."""
        return min(worker.out_path.read_text().count("round") for worker in self.workers)

    def wait_for_rounds(self, more: int, timeout_s: float = 60):
        goal = self.rounds() + more
        assert wait_until(lambda: self.rounds() >= goal, timeout_s), self.story(f"{self.rounds()} rounds and no more")
