"""Horovod's names in byteps.torch: what has one receiver or some members: scatters, all-to-all, process sets; factors,
and gradients of all collectives."""

import pytest
import torch
from test_torch_collectives import everyone, make, reduced, same
from torch import nn

import byteps.torch as hvd
from byteps.torch import tensors


def factors():
    mine = make(hvd.rank(), (7,), torch.float32)
    total = reduced(everyone((7,), torch.float32), "Sum")
    same(hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.5, postscale_factor=6.0), total * 3)
    same(hvd.allreduce(mine, postscale_factor=10.0), total * 10 / hvd.size())


def test_factors_scale_the_result(job2, alone):
    job2.run(factors)
    factors()


def integers():
    """As Horovod: the first factor on each rank, the others on the sum, each time towards zero."""
    size = hvd.size()
    for dtype in (torch.int8, torch.int16, torch.int32, torch.int64):
        mine = torch.tensor([5, -5, 3, -1, 100], dtype=dtype)
        halves = torch.tensor([2, -2, 1, 0, 50], dtype=dtype)
        halved = torch.tensor([2, -2, 1, 0], dtype=dtype) * size
        same(hvd.allreduce(mine, op=hvd.Average, prescale_factor=0.5), halves)
        same(hvd.allreduce(mine[:4], op=hvd.Sum, prescale_factor=0.5), halved)
        same(hvd.synchronize(hvd.allreduce_async(mine[:4], op=hvd.Sum, prescale_factor=0.5)), halved)
        same(hvd.allreduce_(mine[:4].clone(), op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0), halved * 3)
        first, second = hvd.grouped_allreduce([mine[:4], torch.tensor([5.0])], op=hvd.Sum, prescale_factor=0.5)
        same(first, halved)
        same(second, torch.tensor([2.5 * size]))
        rows = mine[:1].repeat(size)
        same(hvd.reducescatter(rows, op=hvd.Sum, prescale_factor=0.5), halved[:1])
        same(hvd.grouped_reducescatter([rows], op=hvd.Sum, prescale_factor=0.5)[0], halved[:1])
        same(hvd.synchronize(hvd.reducescatter_async(rows, op=hvd.Sum, prescale_factor=0.5)), halved[:1])
        same(hvd.allreduce(mine[:1], op=hvd.Sum, postscale_factor=0.3), torch.tensor([int(5 * size * 0.3)]).to(dtype))
        odd = torch.tensor([-1 if hvd.rank() == 0 else 0], dtype=dtype)
        same(hvd.allreduce(odd), torch.tensor([int(-1 / size)], dtype=dtype))
        same(hvd.allreduce(odd * 5, postscale_factor=2.0), torch.tensor([int(-10 / size)], dtype=dtype))
    beyond, _ = tensors.prepare(torch.tensor([2**63 - 1, -(2**63)]), hvd.Sum, None, 2.0, 1.0)
    assert beyond.tolist() == [2**63 - 1024, -(2**63)]  # the largest that float64 has below 2^63
    same(hvd.allreduce(torch.tensor([200], dtype=torch.uint8), prescale_factor=0.5), torch.tensor([100]).byte())


def test_integers_are_scaled_and_averaged_as_horovod_does(job2, alone):
    job2.run(integers)
    integers()


def scatters():
    rank, size = hvd.rank(), hvd.size()
    for dtype in (torch.float32, torch.int64, torch.complex64, torch.bfloat16):
        for rows in (0, 1, 5, 6):
            whole = reduced(everyone((rows, 2), dtype), "Sum")
            begin = rank * (rows // size) + min(rank, rows % size)
            share = whole[begin : begin + rows // size + (rank < rows % size)]
            same(hvd.reducescatter(make(rank, (rows, 2), dtype), op=hvd.Sum), share)
    first, second = hvd.grouped_reducescatter([torch.ones(size), torch.full((size, 2), rank + 1.0)])
    same(first, torch.ones(1))
    same(second, torch.full((1, 2), (size + 1) / 2))
    same(hvd.reducescatter(torch.ones(size), op=hvd.Sum, prescale_factor=0.5), torch.full((1,), size / 2))
    with pytest.raises(ValueError, match="no dimensions"):
        hvd.reducescatter(torch.tensor(1.0))


def test_reducescatter_gives_each_rank_its_share_of_the_rows(job):
    job.run(scatters)


def exchanges():
    rank, size = hvd.rank(), hvd.size()
    for dtype in (torch.float32, torch.int16, torch.complex128, torch.bool):
        splits = [(rank + to) % 3 for to in range(size)]
        parts = [torch.full((splits[to], 2), rank * 2 + to).to(dtype) for to in range(size)]
        wanted = torch.cat([torch.full(((r + rank) % 3, 2), r * 2 + rank).to(dtype) for r in range(size)])
        got, received = hvd.alltoall(torch.cat(parts), splits=torch.tensor(splits))
        same(got, wanted)
        same(received, torch.tensor([(r + rank) % 3 for r in range(size)]))
    same(hvd.alltoall(torch.full((size,), rank)), torch.arange(size))
    got, received = hvd.synchronize(hvd.alltoall_async(torch.arange(size * 2), name="even"))
    same(got, torch.cat([torch.arange(rank * 2, rank * 2 + 2)] * size))
    same(received, torch.full((size,), 2, dtype=torch.int32))
    with pytest.raises(ValueError, match="splits"):
        hvd.alltoall(torch.arange(4), splits=[5] * size)
    if size > 1:
        with pytest.raises(ValueError, match="give splits"):
            hvd.alltoall(torch.arange(size + 1))


def test_alltoall_sends_each_rank_its_rows(job):
    job.run(exchanges)


def gradients():
    """Against the chain rule of one process in which all ranks' losses are added; where Horovod's numbers are others,
    the last argument of check() says how many times as large."""
    rank, size = hvd.rank(), hvd.size()
    weights = [torch.arange(1.0, 13).view(6, 2) * (r + 1) for r in range(size)]

    def check(collective, reference, factor=1.0):
        inputs = [make(r, (6, 2), torch.float64).float().requires_grad_() for r in range(size)]
        losses = reference(inputs)
        sum(losses).backward()
        mine = make(rank, (6, 2), torch.float64).float().requires_grad_()
        collective(mine).backward()
        assert torch.allclose(mine.grad, inputs[rank].grad * factor), (mine.grad, inputs[rank].grad)

    total = lambda inputs: torch.stack(inputs).sum(0)
    share = 6 // size
    part = lambda tensor, r: tensor[r * share : (r + 1) * share]
    check(lambda t: (hvd.allreduce(t) * weights[rank]).sum(), lambda i: [(total(i) / size * w).sum() for w in weights])
    check(
        lambda t: (hvd.grouped_allreduce([t, t * 2], op=hvd.Sum)[1] * weights[rank]).sum(),
        lambda i: [(2 * total(i) * w).sum() for w in weights],
    )
    check(
        lambda t: (hvd.allgather(t).view(size, 6, 2).square().sum(0) * weights[rank]).sum(),
        lambda i: [(torch.stack(i).square().sum(0) * w).sum() for w in weights],
        1 / size,
    )
    check(
        lambda t: (hvd.broadcast(t, size - 1) * weights[rank]).sum(),
        lambda i: [(i[-1] * w).sum() for w in weights],
        1 / size,
    ) if rank == size - 1 else hvd.broadcast(make(rank, (6, 2), torch.float32).requires_grad_(), size - 1).mul(
        weights[rank]
    ).sum().backward()
    check(
        lambda t: (hvd.reducescatter(t, op=hvd.Average) * weights[rank][:share]).sum(),
        lambda i: [(part(total(i) / size, r) * weights[r][:share]).sum() for r in range(size)],
        size,
    )
    check(
        lambda t: (hvd.reducescatter(t, op=hvd.Sum, postscale_factor=3.0) * weights[rank][:share]).sum(),
        lambda i: [(part(total(i) * 3, r) * weights[r][:share]).sum() for r in range(size)],
        size,
    )
    check(
        lambda t: sum((g[6 * rank :].sum() * (i + rank + 1)) for i, g in enumerate(hvd.grouped_allgather([t, t * 2]))),
        lambda i: [(torch.cat(i)[6 * r :].sum() * (r + 1 + 2 * (r + 2))) for r in range(size)],
        1 / size,
    )
    check(
        lambda t: sum(
            (part * weights[rank][:share] * (n + 1)).sum()
            for n, part in enumerate(hvd.grouped_reducescatter([t, t * 2], op=hvd.Sum, prescale_factor=0.5))
        ),
        lambda i: [(part(total(i), r) * weights[r][:share] * 2.5).sum() for r in range(size)],
        size,
    )
    one = torch.ones(2, requires_grad=True)
    first, second = hvd.grouped_allgather([one, torch.arange(3)])  # the second has no gradient
    first.sum().backward()
    assert torch.equal(one.grad, torch.ones(2)) and not second.requires_grad
    assert hvd.grouped_allgather([]) == hvd.grouped_reducescatter([]) == []
    check(
        lambda t: (hvd.alltoall(t) * weights[rank][: share * size]).sum(),
        lambda i: [(torch.cat([part(t, r) for t in i]) * weights[r][: share * size]).sum() for r in range(size)],
    )
    with pytest.raises(ValueError, match="have a gradient"):
        hvd.allreduce(torch.ones(1, requires_grad=True), op=hvd.Max).backward()


def test_collectives_are_differentiable(job):
    job.run(gradients)


def subsets():
    rank, size = hvd.rank(), hvd.size()
    even, pair = hvd.ProcessSet(range(0, size, 2)), hvd.add_process_set([1, 2])
    assert hvd.global_process_set.size() == size and pair.process_set_id is not None
    for chosen in (even, pair):
        if not chosen.included():
            with pytest.raises(ValueError, match="not in the process set"):
                hvd.allreduce(torch.ones(1), process_set=chosen)
            continue
        ranks = chosen.ranks
        mine = torch.full((4, 2), float(rank + 1))
        # one name for all sets
        same(hvd.allreduce(mine, name="set", process_set=chosen), torch.full((4, 2), sum(ranks) / len(ranks) + 1))
        same(hvd.allreduce(mine, op=hvd.Sum, process_set=chosen), torch.full((4, 2), float(sum(ranks) + len(ranks))))
        same(hvd.allgather(mine[:rank], process_set=chosen), torch.cat([torch.full((r, 2), r + 1.0) for r in ranks]))
        same(hvd.broadcast(mine, ranks[1], process_set=chosen), torch.full((4, 2), ranks[1] + 1.0))
        share = hvd.reducescatter(mine, op=hvd.Sum, process_set=chosen)
        same(share, torch.full((2, 2), float(sum(ranks) + len(ranks))))
        same(hvd.alltoall(torch.full((2,), rank), process_set=chosen), torch.tensor(ranks))
        assert hvd.allgather_object(rank, process_set=chosen) == ranks
        assert hvd.broadcast_object(rank, ranks[0], process_set=chosen) == ranks[0]
        hvd.barrier(process_set=chosen)
        with pytest.raises(ValueError, match="in the process set"):
            hvd.broadcast(mine, 3 - sum(ranks), process_set=chosen)
    assert hvd.remove_process_set(pair) and not hvd.remove_process_set(pair)


def test_process_sets_work_among_themselves(job3):
    job3.run(subsets)


def uneven():
    """Rank r has r + 2 batches."""
    model = nn.Linear(2, 1, bias=False)
    hvd.broadcast_parameters(model.state_dict())
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    for _ in range(hvd.rank() + 2):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        hvd.allreduce(torch.ones(2))  # calls without a name have other numbers on each rank now
    last = hvd.join()
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [hvd.size()] * 2
    hvd.broadcast_(model.weight.data, root_rank=last)
    return last, model.weight.detach()


def test_ranks_may_have_different_numbers_of_batches(job3):
    results = job3.run(uneven)
    assert [last for last, _ in results] == [2, 2, 2]
    assert all(torch.equal(weight, results[0][1]) for _, weight in results)


def optimize_among_some():
    """Ranks 0 and 2 learn together, rank 1 alone."""
    model = nn.Linear(2, 1, bias=False)
    hvd.broadcast_parameters(model.state_dict())
    before = model.weight.detach().clone()
    pair = hvd.ProcessSet([0, 2])
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), process_set=pair)
    model(torch.full((1, 2), float(hvd.rank() + 1))).sum().backward()
    optimizer.step()
    assert torch.allclose(model.weight, before - 2)  # (1 + 3) / 2, and 2
    optimizer.zero_grad()
    # A later one of all ranks, whose parameters have the same names but other shapes.
    model = nn.Linear(3, 1, bias=False)
    hvd.broadcast_parameters(model.state_dict())
    before = model.weight.detach().clone()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    model(torch.full((1, 3), float(hvd.rank() + 1))).sum().backward()
    optimizer.step()
    assert torch.allclose(model.weight, before - 2)


def test_an_optimizer_averages_within_its_process_set(job3):
    job3.run(optimize_among_some)
