"""Which cores each worker of a machine is bound to.

Reaching memory of another NUMA node costs bandwidth, and the scheduler of the kernel does not know that a worker and
its tensors belong together. So on a machine with several nodes, neighbouring local ranks share a node, and the ranks of
one node share its cores evenly. On a machine with one node nothing is bound: the kernel does it better.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterable, List, Mapping, Optional, Set

from byteps.launcher.environment import BadEnvironment, read_switch

NODE_FOLDER = Path("/sys/devices/system/node")

CoreSets = List[Optional[Set[int]]]  # per local rank; None: not bound


def bind(local_size: int, environ: Mapping[str, str]) -> CoreSets:
    """BYTEPS_VISIBLE_CPU_CORES ('0-3,8:4-7,9': one list per local rank) decides; else BYTEPS_NUMA_ON."""
    allowed = os.sched_getaffinity(0)
    listed = environ.get("BYTEPS_VISIBLE_CPU_CORES", "")
    if listed:
        return _from_list(listed, local_size, allowed)
    if not read_switch(environ, "BYTEPS_NUMA_ON", default=True):
        return [None] * local_size
    return share_nodes(read_nodes(allowed), local_size)


def share_nodes(nodes: List[List[int]], local_size: int) -> CoreSets:
    """nodes: the usable cores of each NUMA node, those of one physical core side by side."""
    if len(nodes) < 2:
        return [None] * local_size
    sets: CoreSets = []
    for rank in range(local_size):
        node = rank * len(nodes) // local_size
        first = -(-node * local_size // len(nodes))  # first rank on this node
        after = -(-(node + 1) * local_size // len(nodes))
        cores, ranks = nodes[node], after - first
        if len(cores) < ranks:  # too few to split: they share all of them
            sets.append(set(cores))
            continue
        begin = (rank - first) * len(cores) // ranks
        end = (rank - first + 1) * len(cores) // ranks
        sets.append(set(cores[begin:end]))
    return sets


def read_nodes(allowed: Set[int], folder: Path = NODE_FOLDER) -> List[List[int]]:
    """Nodes that have cores we may use; empty when the kernel does not tell."""
    nodes = []
    for path in sorted(folder.glob("node[0-9]*"), key=lambda p: int(p.name[4:])):
        try:
            cores = parse_cores((path / "cpulist").read_text()) & allowed
        except (OSError, ValueError):
            return []
        if cores:
            nodes.append(sorted(cores, key=lambda core: (_physical_core(path, core), core)))
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
