"""What a job costs in memory: a server nothing beyond what is under way, since it gives a sum back when all have it;
without recovery it keeps each part that it owns once. A worker nothing beyond its tensors.

Bounds: a server's parts times 1.15, where it keeps them, a worker's tensors; both plus what may be under way,
CREDIT_BYTES a connection, and as much that was answered, where that is kept until all are known to have it. A server
also maps both rings of each connection, for its workers are on its host.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster import Cluster

CREDIT_BYTES = 4 << 20
RING_BYTES = 1 << 20
TOTAL_BYTES = 192 << 20
SHARE = 1.15


def resident_bytes(pid, field="VmRSS"):
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(field + ":")]
    return int(line.split()[1]) * 1024


def exchange(tensor_count, rounds=4):
    """Returns by how many bytes this process has grown, at most, beyond its tensors."""
    import ctypes
    import mmap

    from byteps._core import abi, session

    job = session.job()
    size = TOTAL_BYTES // tensor_count
    memory = [mmap.mmap(-1, size) for _ in range(tensor_count)]
    tensors = [(ctypes.c_char * size).from_buffer(each) for each in memory]
    for tensor in tensors:
        ctypes.memset(tensor, 1, size)
    before = resident_bytes("self", "VmHWM")
    for _ in range(rounds):
        handles = []
        for index, tensor in enumerate(tensors):
            address = ctypes.addressof(tensor)
            name = f"{tensor_count}.{index}"
            handles.append(job.push_pull(name, abi.FLOAT32, address, address, size // 4, abi.SUM))
        for handle in handles:
            job.wait(handle)
    return resident_bytes("self", "VmHWM") - before


@pytest.mark.parametrize("recovers", [True, False], ids=["recovery", "no_recovery"])
@pytest.mark.parametrize("tensor_count", [1, 1500])
def test_servers_and_workers_keep_what_they_must_and_little_else(tensor_count, recovers):
    environ = {"BYTEPS_RECOVERY": str(int(recovers))}
    with Cluster(workers=2, servers=2, layer="byteps._core.session", environ=environ) as cluster:
        servers = cluster.servers
        before = [resident_bytes(server.pid) for server in servers]
        grown = cluster.run(exchange, tensor_count)
        connections = len(servers) * 2  # with two shards each
        assert max(grown) <= connections * CREDIT_BYTES, "workers"
        kept = [resident_bytes(server.pid, "VmHWM") - start for server, start in zip(servers, before)]
        under_way = len(servers) * connections * (CREDIT_BYTES + 2 * RING_BYTES)
        answered = len(servers) * connections * CREDIT_BYTES  # and nobody has said yet that it came
        least, most = (0, under_way + answered) if recovers else (TOTAL_BYTES, SHARE * TOTAL_BYTES + under_way)
        assert least <= sum(kept) <= most, "servers"
