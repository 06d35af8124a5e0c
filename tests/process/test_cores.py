"""Which cores the workers and servers of a machine are bound to: on machines that do not exist."""

import os

import pytest
from byteps.launcher import agent, cores, plan
from byteps.launcher.environment import BadEnvironment


def test_one_node_binds_nothing():
    assert cores.share_nodes([[0, 1]], 4) == [None] * 4
    assert cores.share_nodes([], 1) == [None]


def test_neighbouring_ranks_share_a_node_and_split_its_cores():
    nodes = [list(range(8)), list(range(8, 16))]
    assert cores.share_nodes(nodes, 4) == [{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}]


def test_one_rank_on_two_nodes_gets_one_node():
    assert cores.share_nodes([[0, 1], [2, 3]], 1) == [{0, 1}]


@pytest.mark.parametrize("local_size", range(1, 20))
@pytest.mark.parametrize("node_count", [2, 3, 4])
@pytest.mark.parametrize("cores_per_node", [1, 2, 7])
def test_every_rank_gets_cores_of_one_node_and_no_core_is_shared_while_there_are_enough(
    local_size, node_count, cores_per_node
):
    nodes = [list(range(n * cores_per_node, (n + 1) * cores_per_node)) for n in range(node_count)]
    sets = cores.share_nodes(nodes, local_size)
    assert len(sets) == local_size
    for bound in sets:
        assert bound and sum(bool(bound & set(node)) for node in nodes) == 1
    if -(-local_size // node_count) <= cores_per_node:
        assert sum(len(bound) for bound in sets) == len(set().union(*sets))


def machine(folder, cpulists, physical):
    """What /sys/devices/system/node says of a machine with so many physical cores of two hyperthreads each."""
    for node, cpulist in enumerate(cpulists):
        own = folder / f"node{node}"
        own.mkdir(parents=True)
        (own / "cpulist").write_text(cpulist + "\n")
        for core in cores.parse_cores(cpulist):
            topology = own / f"cpu{core}/topology"
            topology.mkdir(parents=True)
            (topology / "thread_siblings_list").write_text(f"{core % physical},{core % physical + physical}\n")
    return folder


def test_nodes_are_read_by_physical_cores(tmp_path):
    machine(tmp_path, ["0-1,4-5", "2-3,6-7"], 4)
    assert cores.read_nodes(set(range(8)), tmp_path) == [[[0, 4], [1, 5]], [[2, 6], [3, 7]]]
    assert cores.read_nodes({0, 1, 2}, tmp_path) == [[[0], [1]], [[2]]]
    assert cores.read_nodes({0, 1}, tmp_path) == [[[0], [1]]]


# ---- servers beside workers


@pytest.fixture
def two_sockets(tmp_path):
    """24 physical cores each, numbered as most machines do: hyperthreads after all physical cores."""
    folder = machine(tmp_path / "two", ["0-23,48-71", "24-47,72-95"], 48)
    return cores.read_nodes(set(range(96)), folder)


def nodes_of(bound, nodes):
    return [number for number, node in enumerate(nodes) if bound & set(sum(node, []))]


def physical(bound):
    return {core % 48 for core in bound}


def test_without_servers_ranks_have_all_cores(two_sockets):
    bound = cores.share(two_sockets, 8, 0, {})
    assert [len(own) for own in bound.workers] == [12] * 8 and bound.servers == []
    assert bound.worker_threads(96) == 12


@pytest.mark.parametrize("servers, on", [(1, [[0, 1]]), (2, [[0], [1]])])
def test_servers_beside_ranks_get_an_eighth_of_the_cores_and_share_none_of_them(two_sockets, servers, on):
    bound = cores.share(two_sockets, 8, servers, {})
    everyone = [*bound.workers, *bound.servers]
    assert sum(len(own) for own in everyone) == len(set().union(*everyone)) == 96
    of_ranks, of_servers = (set().union(*sets) for sets in (bound.workers, bound.servers))
    assert not physical(of_ranks) & physical(of_servers), "not even a hyperthread of a rank's core"
    assert [len(own) for own in bound.servers] == [12 // servers] * servers
    assert [nodes_of(own, two_sockets) for own in bound.servers] == on
    assert [nodes_of(own, two_sockets) for own in bound.workers] == [[0]] * 4 + [[1]] * 4
    assert sorted(len(own) for own in bound.workers) == [10, 10, 10, 10, 11, 11, 11, 11]
    assert bound.worker_threads(96) == 10 and bound.server_loops(96) == 12 // servers


def test_event_loops_that_are_asked_for_have_a_core_each(two_sockets):
    bound = cores.share(two_sockets, 8, 2, {"BYTEPS_SERVER_ENGINE_THREAD": "16"})
    assert [len(own) for own in bound.servers] == [16, 16]


def test_a_node_without_ranks_is_the_servers(two_sockets):
    bound = cores.share(two_sockets, 1, 2, {})
    assert [nodes_of(own, two_sockets) for own in bound.workers + bound.servers] == [[0], [1], [1]]
    assert (bound.worker_threads(96), bound.server_loops(96)) == (48, 24)


def test_on_one_socket_the_ranks_share_what_the_servers_leave(tmp_path):
    nodes = cores.read_nodes(set(range(32)), machine(tmp_path, ["0-31"], 16))
    bound = cores.share(nodes, 4, 1, {})
    assert bound.servers == [{14, 15, 30, 31}]
    assert bound.workers == [set(range(32)) - {14, 15, 30, 31}] * 4
    assert (bound.worker_threads(32), bound.server_loops(32)) == (7, 4)


@pytest.mark.parametrize("threads, is_enough", [(14, True), (12, False)])
def test_servers_get_cores_only_while_each_rank_keeps_three(tmp_path, threads, is_enough):
    nodes = cores.read_nodes(set(range(threads)), machine(tmp_path, [f"0-{threads - 1}"], threads // 2))
    bound = cores.share(nodes, 4, 1, {})
    assert bound.servers == ([{6, 13}] if is_enough else [None])
    assert bound.workers == ([set(range(14)) - {6, 13}] if is_enough else [None]) * 4
    assert bound.worker_threads(threads) == 3


@pytest.mark.parametrize("servers", [1, 2, 5])
@pytest.mark.parametrize("node_count", [1, 2, 3, 4])
def test_what_servers_get_is_theirs_and_leaves_no_rank_too_little(node_count, servers):
    for local_size in range(1, 20):
        for size in (1, 3, 8, 24):
            nodes = [[[2 * core, 2 * core + 1] for core in range(n * size, n * size + size)] for n in range(node_count)]
            check_servers(nodes, local_size, servers)


def check_servers(nodes, local_size, servers):
    bound = cores.share(nodes, local_size, servers, {})
    assert (len(bound.workers), len(bound.servers)) == (local_size, servers)
    if bound.servers[0] is None:
        assert bound.servers == [None] * servers
        assert bound.workers == cores.share(nodes, local_size, 0, {}).workers, "nothing is taken from the ranks"
        return
    of_servers = set().union(*bound.servers)
    assert sum(map(len, bound.servers)) == len(of_servers) and all(bound.servers)
    for own in bound.workers:
        assert own and not own & of_servers and (len(own) >= 3 or local_size < len(nodes))


def test_a_machine_whose_kernel_tells_nothing_binds_no_server():
    bound = cores.share([], 2, 1, {})
    assert (bound.workers, bound.servers) == ([None, None], [None])
    assert (bound.worker_threads(8), bound.server_loops(8)) == (4, 4)


def test_both_are_bound_as_the_agent_of_a_host_starts_them(monkeypatch, two_sockets):
    monkeypatch.setattr(cores, "read_nodes", lambda allowed: two_sockets)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(96)))
    monkeypatch.setattr(plan, "find_executable", lambda role, environ: role)

    def prepared(**environ):
        roles = ["scheduler", "server"] + ["worker"] * 8
        wanted = [{"role": role, "rank": 0, "command": ["true"], "environ": environ} for role in roles]
        return list(agent.prepare(wanted, dict(os.environ)))

    scheduler, server, *workers = prepared()
    assert scheduler.cores is None and len(server.cores) == 12
    assert not any(server.cores & worker.cores for worker in workers)
    assert server.environ["BYTEPS_SERVER_ENGINE_THREAD"] == "12"
    assert {worker.environ["OMP_NUM_THREADS"] for worker in workers} == {"10"}
    assert all(process.cores is None for process in prepared(BYTEPS_NUMA_ON="0"))


def test_a_machine_that_tells_nothing_of_nodes_binds_nothing(tmp_path):
    assert cores.read_nodes({0, 1}, tmp_path / "absent") == []


def test_listed_cores_win_and_are_checked():
    own = min(os.sched_getaffinity(0))
    assert cores.bind(2, 1, {"BYTEPS_VISIBLE_CPU_CORES": f"{own}:{own},900"}).workers == [{own}, {own, 900}]
    with pytest.raises(BadEnvironment, match="has 1 lists for 2 local ranks"):
        cores.bind(2, 0, {"BYTEPS_VISIBLE_CPU_CORES": f"{own}"})
    with pytest.raises(BadEnvironment, match="may use none of the cores"):
        cores.bind(1, 0, {"BYTEPS_VISIBLE_CPU_CORES": "900-901"})
