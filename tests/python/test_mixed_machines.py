"""Jobs whose workers are on several machines, some of them together: relays, and servers behind them."""

from __future__ import annotations

import os

from cluster import Cluster


def where_and_sum(name):
    import torch

    import byteps.torch as bps

    total = bps.push_pull(torch.full((300_000,), float(bps.rank() + 1)), average=False, name=name)
    assert torch.equal(total, torch.full_like(total, bps.size() * (bps.size() + 1) / 2))
    return os.readlink("/proc/self/ns/net"), bps.local_rank(), bps.local_size()


def test_workers_are_on_the_machines_asked_for_whether_they_are_forked_or_started():
    for forked in (True, False):
        with Cluster(hosts=([0, 2], [1]), forked=forked) as cluster:
            (one, *first), (two, *second), (three, *third) = cluster.run(where_and_sum, "x")
            assert one == three and len({one, two, os.readlink("/proc/self/ns/net")}) == 3
            assert (first, second, third) == ([0, 2], [0, 1], [1, 2])
