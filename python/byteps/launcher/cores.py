"""Which cores the workers and servers of a machine are bound to.

Reaching memory of another NUMA node costs bandwidth, and the scheduler of the kernel does not know that a worker and
its tensors belong together. So on a machine with several nodes, neighbouring local ranks share a node, and the ranks of
one node share its cores evenly. On a machine with one node the ranks share all cores: the kernel does it better.

Servers beside workers get cores that no worker has, where there are enough: all workers wait for a server that waits
for a core. They are those of the nodes that no rank is on; else each node gives as many, so that its ranks stay alike.
Servers together get an eighth of the cores, or as many as they have event loops where that is said. There are enough
when a core is left to each of the threads that a rank has at least: its training, its worker and its relay. Where there
are not, nothing is taken from the workers, and servers run where the kernel finds room.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterable, List, Mapping, Optional, Set, Tuple

from byteps.launcher.environment import BadEnvironment, parse_number, read_switch

NODE_FOLDER = Path("/sys/devices/system/node")
SERVERS_PART = 8  # of so many parts of the cores servers get one
RANK_CORES = 3  # a rank keeps at least

CoreSets = List[Optional[Set[int]]]  # None: not bound
Node = List[List[int]]  # the physical cores of a NUMA node, each as the hyperthreads that we may use


@dataclass
class Bound:
    workers: CoreSets  # per local rank
    servers: CoreSets

    def worker_threads(self, core_count: int) -> int:
        """How many threads each worker has room for, equal for all, on a machine with so many cores."""
        sets = [cores for cores in self.workers if cores is not None]
        room = len(set().union(*sets)) if sets else core_count
        return max(1, min([room // max(1, len(self.workers)), *map(len, sets)]))

    def server_loops(self, core_count: int) -> int:
        """How many event loops each server should have."""
        return max(1, min([core_count // (2 * max(1, len(self.servers))), *(len(own) for own in self.servers if own)]))


def bind(local_size: int, server_count: int, environ: Mapping[str, str]) -> Bound:
    """BYTEPS_VISIBLE_CPU_CORES ('0-3,8:4-7,9': one list per local rank) decides; else BYTEPS_NUMA_ON."""
    allowed = os.sched_getaffinity(0)
    listed = environ.get("BYTEPS_VISIBLE_CPU_CORES", "")
    if listed:
        return Bound(_from_list(listed, local_size, allowed), [None] * server_count)
    if not read_switch(environ, "BYTEPS_NUMA_ON", default=True):
        return Bound([None] * local_size, [None] * server_count)
    return share(read_nodes(allowed), local_size, server_count, environ)


def share(nodes: List[Node], local_size: int, server_count: int, environ: Mapping[str, str]) -> Bound:
    kept: List[Node] = nodes
    given: List[int] = []
    if local_size > 0 and server_count > 0:
        loops = parse_number(environ.get("BYTEPS_SERVER_ENGINE_THREAD", "")) or 0
        kept, given = _give_servers(nodes, local_size, server_count, server_count * loops)
    workers = share_nodes([_threads(node) for node in kept], local_size)
    if given and len(nodes) == 1:
        workers = [set(_threads(kept[0])) for _ in range(local_size)]
    ends = [index * len(given) // max(1, server_count) for index in range(server_count + 1)]
    own: CoreSets = [set(given[begin:end]) or None for begin, end in zip(ends, ends[1:])]
    return Bound(workers, own)


def _give_servers(nodes: List[Node], local_size: int, server_count: int, wanted: int) -> Tuple[List[Node], List[int]]:
    """What the nodes keep, and the cores of all servers: none where there are not enough. `wanted`: cores; 0: an
    eighth of all."""
    ranks = [len(_ranks_on(number, len(nodes), local_size)) for number in range(len(nodes))]
    free = [core for node, on_it in zip(nodes, ranks) if on_it == 0 for core in _threads(node)]
    if free:
        return nodes, free if len(free) >= server_count else []
    wanted = wanted or max(server_count, sum(len(_threads(node)) for node in nodes) // SERVERS_PART)
    kept: List[Node] = []
    given: List[int] = []
    for node, on_it in zip(nodes, ranks):
        count = 0  # of physical cores, from the end
        while count < len(node) and len(_threads(node[len(node) - count :])) * len(nodes) < wanted:
            count += 1
        kept.append(node[: len(node) - count])
        given += _threads(node[len(node) - count :])
        if len(_threads(kept[-1])) < RANK_CORES * on_it:
            return nodes, []
    return kept, given


def _threads(node: Node) -> List[int]:
    return [thread for core in node for thread in core]


def _ranks_on(node: int, node_count: int, local_size: int) -> range:
    return range(-(-node * local_size // node_count), -(-(node + 1) * local_size // node_count))


def share_nodes(nodes: List[List[int]], local_size: int) -> CoreSets:
    """nodes: the usable cores of each NUMA node, those of one physical core side by side."""
    if len(nodes) < 2:
        return [None] * local_size
    sets: CoreSets = []
    for rank in range(local_size):
        node = rank * len(nodes) // local_size
        on_it = _ranks_on(node, len(nodes), local_size)
        cores, ranks = nodes[node], len(on_it)
        if len(cores) < ranks:  # too few to split: they share all of them
            sets.append(set(cores))
            continue
        begin = (rank - on_it[0]) * len(cores) // ranks
        end = (rank - on_it[0] + 1) * len(cores) // ranks
        sets.append(set(cores[begin:end]))
    return sets


def read_nodes(allowed: Set[int], folder: Path = NODE_FOLDER) -> List[Node]:
    """Nodes that have cores we may use; empty when the kernel does not tell."""
    nodes = []
    for path in sorted(folder.glob("node[0-9]*"), key=lambda p: int(p.name[4:])):
        try:
            cores = parse_cores((path / "cpulist").read_text()) & allowed
        except (OSError, ValueError):
            return []
        physical: Dict[int, List[int]] = {}
        for core in sorted(cores):
            physical.setdefault(_physical_core(path, core), []).append(core)
        if physical:
            nodes.append([physical[first] for first in sorted(physical)])
    return nodes


def _physical_core(node: Path, core: int) -> int:
    """The lowest of the hyperthreads that share a physical core."""
    try:
        return min(parse_cores((node / f"cpu{core}/topology/thread_siblings_list").read_text()))
    except (OSError, ValueError):
        return core


def parse_cores(text: str) -> Set[int]:
    """'0-3,8' → {0, 1, 2, 3, 8}. ValueError when it is anything else."""
    cores: Set[int] = set()
    for piece in filter(None, text.strip().split(",")):
        first, _, last = piece.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores


def _from_list(listed: str, local_size: int, allowed: Iterable[int]) -> CoreSets:
    form = "a list of cores per local rank, separated by colons, for example 0-3,8:4-7,9"
    try:
        sets = [parse_cores(piece) for piece in listed.split(":")]
    except ValueError:
        raise BadEnvironment(f"BYTEPS_VISIBLE_CPU_CORES='{listed}' is not valid: it takes {form}") from None
    if len(sets) < local_size:
        raise BadEnvironment(
            f"BYTEPS_VISIBLE_CPU_CORES='{listed}' has {len(sets)} lists for {local_size} local ranks: it takes {form}"
        )
    for cores in sets[:local_size]:
        if not cores & set(allowed):
            raise BadEnvironment(
                f"BYTEPS_VISIBLE_CPU_CORES='{listed}': this process may use none of the cores {sorted(cores)}, "
                f"only {sorted(allowed)}; it takes {form}"
            )
    return [cores for cores in sets[:local_size]]
