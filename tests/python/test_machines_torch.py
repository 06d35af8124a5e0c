"""byteps.torch and torch.distributed's backend on two machines of two workers, or of one and two: what a machine's
workers have is summed at their relays, and the results are those of one process. Other frameworks are in
test_machines_all.py."""

import copy

import pytest
import torch
import torch.distributed as dist
from cluster import Cluster
from machines import copies, example, summed_at_relays
from torch import nn
from torch_group import ensure_group

import byteps.torch as bps

EXACT = 1e-9  # of float64, relative


@pytest.fixture(scope="module")
def two_and_two():
    with Cluster(hosts=(2, 2)) as job:
        yield job


@pytest.fixture(scope="module")
def one_and_two():
    with Cluster(hosts=(1, 2)) as job:
        yield job


@pytest.fixture
def world(two_and_two, tmp_path):
    two_and_two.run(ensure_group, str(tmp_path / "store"))
    return two_and_two


# ---- who is where


def place():
    return bps.local_rank(), bps.local_size(), bps.cross_rank(), bps.cross_size(), bps.is_homogeneous()


def test_ranks_and_sizes_are_those_of_the_machines_where_no_variable_says_them(two_and_two, one_and_two):
    assert two_and_two.run(place) == [(0, 2, 0, 2, True), (1, 2, 0, 2, True), (0, 2, 1, 2, True), (1, 2, 1, 2, True)]
    # The other machine has no local rank 1, so that rank 2 has nobody across.
    assert one_and_two.run(place) == [(0, 1, 0, 2, False), (0, 2, 1, 2, False), (1, 2, 0, 1, False)]


# ---- the optimizer


def digits():
    """The relative difference of the parameters from those of one process, on rank 0."""
    torch.set_num_threads(1)
    return example("torch/train_digits.py").prove(steps=12)[0]


def test_digits_are_learned_as_in_a_single_process(two_and_two):
    assert max(summed_at_relays(two_and_two, digits)) < EXACT


@pytest.mark.long(reason="its processes import much; tests of exchanges have machines of unequal size")
def test_digits_are_learned_as_in_a_single_process_by_machines_of_unequal_size(one_and_two):
    assert max(summed_at_relays(one_and_two, digits)) < EXACT


def one_large_sum():
    total = bps.push_pull(torch.full((500_000,), float(bps.rank() + 1)), average=False, name="large")
    return total.unique().tolist()


def test_without_relays_a_card_carries_a_copy_for_each_worker():
    """So what the other tests look at makes a difference."""
    with Cluster(hosts=(2, 2), environ={"BYTEPS_LOCAL_REDUCE": "0"}) as job:
        results, cards, told = copies(job, one_large_sum)
    assert results == [[10.0]] * 4 and not any(each["relays"] for each in told)
    assert all(1.9 < card < 2.3 for card in cards), cards


# ---- torch.distributed


def ddp():
    """The largest relative difference of a parameter from those of one process with the whole batches."""
    digits = example("torch/train_digits.py")
    inputs, labels, _, _ = digits.load(torch.float64)
    reference = digits.make_model(7, torch.float64)
    parallel = nn.parallel.DistributedDataParallel(copy.deepcopy(reference))
    for model, rank, size in ((parallel, dist.get_rank(), dist.get_world_size()), (reference, 0, 1)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        digits.train_steps(model, optimizer, inputs, labels, 8, 24, rank, size)
    pairs = [(a.detach(), b.detach()) for a, b in zip(parallel.module.parameters(), reference.parameters())]
    return max(((a - b).norm() / b.norm()).item() for a, b in pairs)


def test_ddp_on_the_backend_learns_digits_as_in_a_single_process(world):
    assert max(summed_at_relays(world, ddp)) < EXACT


def collectives():
    """Of groups within a machine, across both, and of one worker here and both there."""
    rank = dist.get_rank()
    shapes = [[0, 1], [2, 3], [0, 2], [1, 3], [1, 2, 3], [0, 1, 2, 3], [3, 0]]
    groups = [dist.new_group(ranks) for ranks in shapes]
    for ranks, group in zip(shapes, groups):
        if rank not in ranks:
            continue
        size, mine = len(ranks), dist.get_group_rank(group, rank)
        members = dist.get_process_group_ranks(group)
        for count in (3, 100_000):
            for dtype in (torch.float32, torch.int64):
                own = torch.arange(count * size).to(dtype) + rank
                total = torch.arange(count * size).to(dtype) * size + sum(ranks)
                whole = own.clone()
                dist.all_reduce(whole, group=group)
                assert torch.equal(whole, total), (ranks, count, dtype)
                part = torch.zeros(count, dtype=dtype)
                dist.reduce_scatter_tensor(part, own, group=group)
                assert torch.equal(part, total[count * mine : count * (mine + 1)]), (ranks, count, dtype)
                whole = torch.zeros(count * size, dtype=dtype)
                dist.all_gather_into_tensor(whole, torch.full((count,), rank).to(dtype), group=group)
                assert torch.equal(whole, torch.tensor(members).to(dtype).repeat_interleave(count)), (ranks, count)
                values = own.clone()
                dist.broadcast(values, ranks[-1], group=group)
                assert torch.equal(values, own - rank + ranks[-1]), (ranks, count, dtype)
        dist.barrier(group=group)
    for group in groups:
        dist.destroy_process_group(group)


def test_collectives_of_groups_that_span_machines_and_of_those_that_do_not(world):
    world.run(collectives)
