"""Which cores each worker of a machine is bound to: on machines that do not exist."""

import pytest
from byteps.launcher import cores
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


def test_nodes_are_read_with_hyperthreads_side_by_side(tmp_path):
    for node, cpulist in enumerate(["0-1,4-5", "2-3,6-7"]):
        folder = tmp_path / f"node{node}"
        folder.mkdir()
        (folder / "cpulist").write_text(cpulist + "\n")
        for core in cores.parse_cores(cpulist):
            topology = folder / f"cpu{core}/topology"
            topology.mkdir(parents=True)
            (topology / "thread_siblings_list").write_text(f"{core % 4},{core % 4 + 4}\n")
    assert cores.read_nodes(set(range(8)), tmp_path) == [[0, 4, 1, 5], [2, 6, 3, 7]]
    assert cores.read_nodes({0, 1, 2}, tmp_path) == [[0, 1], [2]]
    assert cores.read_nodes({0, 1}, tmp_path) == [[0, 1]]


def test_a_machine_that_tells_nothing_of_nodes_binds_nothing(tmp_path):
    assert cores.read_nodes({0, 1}, tmp_path / "absent") == []


def test_listed_cores_win_and_are_checked():
    import os

    own = min(os.sched_getaffinity(0))
    assert cores.bind(2, {"BYTEPS_VISIBLE_CPU_CORES": f"{own}:{own},900"}) == [{own}, {own, 900}]
    with pytest.raises(BadEnvironment, match="has 1 lists for 2 local ranks"):
        cores.bind(2, {"BYTEPS_VISIBLE_CPU_CORES": f"{own}"})
    with pytest.raises(BadEnvironment, match="may use none of the cores"):
        cores.bind(1, {"BYTEPS_VISIBLE_CPU_CORES": "900-901"})
