"""What is measured, as data: one table. bench/run.py runs it, bench/report.py describes it."""

import dataclasses

import limits
from netlab import bits_per_second

MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Scenario:
    name: str
    title: str
    workers: int
    extra: int  # servers on machines of their own
    colocated: bool = False  # each worker's machine runs a server too
    rate: str | None = "1gbit"  # None: loopback, one machine
    slow_servers: tuple = ()  # (server on a machine of its own, its rate)
    size: int = 64 * MIB  # bytes of all tensors together
    tensors: int = 1
    model: str = ""  # a list of models.py instead of equal tensors
    operations: int = 1  # one after the other, in a round
    worker_options: tuple = ()
    last_worker_options: tuple = ()
    env: tuple = ()  # (name, value) for our processes
    cores: tuple = ()  # loopback: (servers' core, workers' core)
    rivals: tuple = ("gloo",)
    target: float | None = None  # ratio to the limit that issue 5 asks for
    quick: bool = False

    def byte_rate(self):
        return bits_per_second(self.rate) / 8 * limits.PAYLOAD if self.rate else None

    def limit(self):
        """Seconds per operation with this scenario's servers; None on loopback."""
        rate = self.byte_rate()
        if rate is None:
            return None
        if self.slow_servers:
            slow = dict(self.slow_servers)
            rates = [bits_per_second(slow.get(i, self.rate)) / 8 * limits.PAYLOAD for i in range(self.extra)]
            return limits.unequal_servers(self.workers, self.size, rate, rates)
        return limits.servers(self.workers, self.extra, self.colocated, self.size, rate)

    def ring_limit(self):
        rate = self.byte_rate()
        return limits.ring(self.workers, self.size, rate) if rate else None


ALL = [
    Scenario("n2k2", "64 MiB, n=k=2, 1 Gbit/s", 2, 2, target=0.985, rivals=("gloo", "mpi"), quick=True),
    Scenario("n4k4", "64 MiB, n=k=4, 1 Gbit/s", 4, 4, target=0.98, rivals=("gloo", "mpi"), quick=True),
    Scenario("n8k8", "64 MiB, n=k=8, 1 Gbit/s", 8, 8, target=0.9, rivals=("gloo", "mpi")),
    Scenario("n2k2-500m", "64 MiB, n=k=2, 500 Mbit/s", 2, 2, rate="500mbit"),
    Scenario("n4k4-500m", "64 MiB, n=k=4, 500 Mbit/s", 4, 4, rate="500mbit"),
    Scenario("n8k8-500m", "64 MiB, n=k=8, 500 Mbit/s", 8, 8, rate="500mbit", target=0.98),
    Scenario("n4k4-2g", "64 MiB, n=k=4, 2 Gbit/s", 4, 4, rate="2gbit", target=0.95),
]


def named(name):
    for scenario in ALL:
        if scenario.name == name:
            return scenario
    raise KeyError(name)
