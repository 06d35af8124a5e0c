"""Two machines for tests of training: what the programs of examples/ do on their workers, and who summed.

    with Cluster(hosts=(2, 2), layer="byteps.jax") as job:   # ranks 0 and 1 on one, 2 and 3 on the other
        differences = summed_at_relays(job, train)           # train() on each rank; results by rank
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any, Callable, List, Tuple

from cluster import Cluster
from place import ROOT

CARD = "cable"  # of each host (hosts.py)
TIMEOUT_S = 200.0  # four processes import a framework and compile, on few cores


def example(path: str) -> Any:
    """The module of an example, which has functions of its parts."""
    file = ROOT / "examples" / path
    spec = importlib.util.spec_from_file_location(f"example_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent))  # some import others
    spec.loader.exec_module(module)
    return module


def copies(cluster: Cluster, function: Callable, *args: Any) -> Tuple[List[Any], List[float], List[dict]]:
    """Results by rank; by rank: how many times as much as a worker pushed its machine's card has sent; and what each
    rank counted."""
    told = cluster.run_each([(_watched, (function, *args), {})] * cluster.size, TIMEOUT_S)
    pushed = max(each["pushed"] for each in told)
    return [each["result"] for each in told], [each["sent"] / pushed for each in told], told


def summed_at_relays(cluster: Cluster, function: Callable, *args: Any) -> List[Any]:
    """Results by rank of the function. What it exchanged went the way of docs/local.md: every process has a relay, each
    card has sent one copy of what its workers pushed, and loopback next to nothing."""
    results, cards, told = copies(cluster, function, *args)
    assert all(each["relays"] == 1 for each in told), told
    # More are headers; less: what one rank broadcasts, other machines do not send.
    assert all(0.8 < card < 1.3 for card in cards), (cards, told)
    assert all(each["loopback"] < 0.1 * each["pushed"] for each in told), told
    return results


def _watched(function: Callable, *args: Any) -> dict:
    from byteps._core import session

    def counts():
        session.barrier()
        metrics = session.metrics()
        pushed = max(metrics.local_pushed_bytes, metrics.pushed_bytes)  # all that it has, to relays or to servers
        found = {"sent": _sent(CARD), "loopback": _sent("lo"), "pushed": pushed}
        session.barrier()  # nobody goes on before all have looked
        return found

    before = counts()
    result = function(*args)
    told = {what: count - before[what] for what, count in counts().items()}
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    return {"result": result, "relays": names.count("byteps-relay"), **told}


def _sent(device: str) -> int:
    """Bytes of this machine."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == device:
            return int(numbers.split()[8])
    raise AssertionError(f"there is no device {device}")
