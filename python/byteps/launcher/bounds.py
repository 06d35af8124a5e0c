"""Whether the network cards of the servers hold a job back: what the cards allow, against a ring over the same workers.

A machine of workers sends and receives one copy of the gradients, however many workers it has (docs/local.md, "How many
servers"). A server that sums the share x of them on a machine that only sums carries n x copies for n machines of
workers; beside workers it adds (n - 2) x to their one. With rates B in copies a second, all cards finish together at
the time t of which the shares, (t B - 1) / (n - 2) beside workers and t B / n on the others, are 1 in all. With equal
cards, servers beside c of the n, and k machines that only sum, t = n (n - 2 + c) / (n c + k (n - 2)).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Callable, List, Mapping, Optional, Sequence

from byteps.launcher.hostfile import Host

TOLERANCE = 1.001  # of a time: cards that are worse by less are equal


@dataclass(frozen=True)
class Machine:
    name: str
    workers: bool
    servers: bool
    rate: float = 1.0  # of its card, in any unit


@dataclass(frozen=True)
class Bound:
    """Times are in copies of the gradients over the slowest card of the workers (M/B)."""

    worker_machines: int
    server_machines: int  # that only sum
    both: int  # machines of workers with a server beside them
    servers_time: float
    ring_time: float
    more: int  # machines of servers, with such a card, that make it no worse than a ring
    more_time: float
    beside: List[str]  # machines of workers that do so with a server beside them
    beside_time: float

    @property
    def is_worse(self) -> bool:
        return self.servers_time > self.ring_time * TOLERANCE

    def text(self) -> str:
        """One line: what the cards allow, what a ring would take, and where it is worse, the smallest remedies."""
        apart = f"{self.server_machines} of servers" if self.server_machines else ""
        both = f"servers beside {self.both} of them" if self.both else ""
        there = " and ".join(filter(None, (apart, both)))
        said = f"{self.worker_machines} machines of workers with {there} need {self.servers_time:.2f} x M/B (M bytes "
        said += f"of gradients, cards of B bytes a second), a ring would need {self.ring_time:.2f}"
        if not self.is_worse:
            return said
        more = f"{self.more} more machine{'s' if self.more > 1 else ''} of servers"
        named = ", ".join(self.beside) if len(self.beside) <= 4 else f"{len(self.beside)} hosts of workers"
        return (
            f"{said}: the servers' cards hold the job back. With {more} it is {self.more_time:.2f}, with servers=1 "
            f"behind {named} {self.beside_time:.2f}"
        )


def of_hosts(
    hosts: Sequence[Host], environ: Mapping[str, str], rates: Optional[Mapping[str, float]] = None
) -> Optional[Bound]:
    """None where nothing is to be said: the workers are on one machine, or each exchanges with the servers by itself.
    `rates`: of the cards, by the hosts' names; where one is not known, all are taken for equal."""
    is_apart = environ.get("BYTEPS_LOCAL_REDUCE") == "0" and any(host.workers > 1 for host in hosts)
    if is_apart or all(host.is_loopback for host in hosts):
        return None
    known = rates if rates is not None and all(rates.get(host.name) for host in hosts) else {}
    return bound([Machine(host.name, host.workers > 0, host.servers > 0, known.get(host.name, 1.0)) for host in hosts])


def bound(machines: Sequence[Machine]) -> Optional[Bound]:
    working = [each for each in machines if each.workers]
    if len(working) < 2 or not any(each.servers for each in machines):
        return None  # relays sum alone; or the job is refused
    slowest = min(each.rate for each in working)
    ring = 2 * (len(working) - 1) / len(working)

    without = sorted((each for each in working if not each.servers), key=lambda each: -each.rate)

    def time(planned: Sequence[Machine]) -> float:
        return _least_time(planned) * slowest

    def with_more(count: int) -> List[Machine]:
        return [*machines, *[Machine("", False, True, slowest)] * count]

    def with_beside(count: int) -> List[Machine]:
        chosen = {each.name for each in without[:count]}
        return [replace(each, servers=each.servers or each.name in chosen) for each in machines]

    def fewest(changed: Callable[[int], List[Machine]], most: int) -> int:
        """The smallest count with which it is no worse than a ring, found by halves; `most` is enough."""
        least = 0
        while least < most:
            middle = (least + most) // 2
            if time(changed(middle)) <= ring * TOLERANCE:
                most = middle
            else:
                least = middle + 1
        return least

    more, beside = fewest(with_more, len(working)), fewest(with_beside, len(without))
    return Bound(
        worker_machines=len(working),
        server_machines=sum(each.servers and not each.workers for each in machines),
        both=sum(each.servers for each in working),
        servers_time=time(machines),
        ring_time=ring,
        more=more,
        more_time=time(with_more(more)),
        beside=[each.name for each in without[:beside]],
        beside_time=time(with_beside(beside)),
    )


def _least_time(machines: Sequence[Machine]) -> float:
    """For one copy of the gradients."""
    working = [each.rate for each in machines if each.workers]
    both = [each.rate for each in machines if each.workers and each.servers]
    apart = [each.rate for each in machines if each.servers and not each.workers]
    one_copy = 1 / min(working)
    others = len(working) - 2
    if both and others == 0:
        return one_copy  # what it does not send as a worker it sends as a server
    if not both:
        return max(one_copy, len(working) / sum(apart))
    shared = (others + len(both)) / (sum(both) + sum(apart) * others / len(working))
    return max(one_copy, shared)
