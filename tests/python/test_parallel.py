"""DistributedDataParallel and SyncBatchNorm: the same training as in one process with the whole batch."""

import copy
import pickle

import pytest
import torch
from cluster import without_servers
from test_optimizer import Branches, assert_same, batches, make_model, my_share
from torch import nn

import byteps.torch as bps
from byteps._core import session
from byteps.torch.parallel import DistributedDataParallel as DDP


def train_both(steps=6, **options):
    reference, module = make_model(), make_model(seed=1 + bps.rank())
    model = DDP(module, **options)
    assert_same(make_model(), module) if bps.rank() == 0 else None
    alone = torch.optim.Adam(reference.parameters(), lr=0.01)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for inputs, labels in batches(steps):
        for trained, its_optimizer, x, y in (
            (reference, alone, inputs, labels),
            (model, optimizer, my_share(inputs), my_share(labels)),
        ):
            its_optimizer.zero_grad()
            nn.functional.cross_entropy(trained(x), y).backward()
            its_optimizer.step()
    assert_same(module, reference)
    assert sorted(model.state_dict()) == sorted("module." + name for name in module.state_dict())


def test_training_equals_one_process_with_the_whole_batch(job):
    job.run(train_both)
    job.run(train_both, device_ids=["cpu"], find_unused_parameters=True, bucket_cap_mb=25)


def accumulate():
    reference, module = make_model(), make_model()
    model = DDP(module)
    first, second, third = batches(3)
    pushed = bps.metrics().finished_operations
    with model.no_sync():
        for x, y in (first, second):
            nn.functional.cross_entropy(model(my_share(x)), my_share(y)).backward()
    assert bps.metrics().finished_operations == pushed
    for _ in range(2):  # also twice through one graph, and without zero_grad(): averages of sums are sums of averages
        x, y = third
        loss = nn.functional.cross_entropy(model(my_share(x)), my_share(y))
        loss.backward(retain_graph=True)
        loss.backward()
    for x, y in (first, second, third, third, third, third):
        nn.functional.cross_entropy(reference(x), y).backward()
    for mine, theirs in zip(module.parameters(), reference.parameters()):
        assert torch.allclose(mine.grad, theirs.grad, rtol=1e-10, atol=1e-10)


def test_gradients_of_passes_within_no_sync_are_accumulated_and_averaged_later(job2):
    job2.run(accumulate)


def unused():
    torch.manual_seed(3)
    model = DDP(Branches())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.full((4, 3), 1.0 + bps.rank())).backward()
        for index, layer in enumerate(model.module.mine):
            assert (layer.weight.grad is not None) == (index < bps.size())
        assert model.module.nobody.weight.grad is None
        optimizer.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_parameters_used_on_some_ranks_only_need_no_flag(job3):
    states = job3.run(unused)
    assert all(torch.equal(states[0][name], other[name]) for other in states[1:] for name in other)


def several():
    """Equal names and shapes; in one backward pass, which uses them in an order of each rank's own."""
    modules = [make_model(seed) for seed in (1, 2, 3)]
    references = copy.deepcopy(modules)
    models = [DDP(module) for module in modules]
    (x, y), = batches(1)
    order = [0, 1, 2] if bps.rank() == 0 else [2, 0, 1]
    losses = [nn.functional.cross_entropy(models[index](my_share(x)), my_share(y)) for index in order]
    (losses[0] + losses[1] + losses[2]).backward()
    for index in order[:2]:  # and in passes of their own
        nn.functional.cross_entropy(models[0](my_share(x)), my_share(y)).backward()
    for reference in references:
        nn.functional.cross_entropy(reference(x), y).backward()
    for _ in range(2):
        nn.functional.cross_entropy(references[0](x), y).backward()
    for module, reference in zip(modules, references):
        for mine, theirs in zip(module.parameters(), reference.parameters()):
            assert torch.allclose(mine.grad, theirs.grad, rtol=1e-10, atol=1e-10)


def test_several_models_take_part_in_one_backward_pass(job2):
    job2.run(several)


def buffers(broadcast):
    model = DDP(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), broadcast_buffers=broadcast)
    for step in range(2):
        model(torch.randn(4, 2, generator=torch.Generator().manual_seed(bps.rank() + step))).sum().backward()
    seen = {}
    model.module.register_forward_pre_hook(lambda module, _: seen.update(copy.deepcopy(module.state_dict())))
    model(torch.randn(4, 2)).sum().backward()
    mean, count = seen["1.running_mean"], seen["1.num_batches_tracked"]
    model.eval()
    if bps.rank() == 0:
        model(torch.randn(4, 2))  # in evaluation no rank needs another
    return mean, count


def test_buffers_of_rank_0_go_to_all_before_a_forward_pass(job2):
    (mean, count), (other_mean, other_count) = job2.run(buffers, True)
    assert torch.equal(mean, other_mean) and count == other_count == 2
    (mean, _), (other_mean, _) = job2.run(buffers, False)
    assert not torch.equal(mean, other_mean)


def test_buffers_of_rank_0_go_to_all_where_there_are_no_servers(job2):
    (mean, count), (other_mean, other_count) = job2.run(without_servers, buffers, True)
    assert torch.equal(mean, other_mean) and count == other_count == 2


def thaw():
    model = DDP(make_model())
    model.module[0].requires_grad_(False)
    (x, y), = batches(1)
    nn.functional.cross_entropy(model(my_share(x)), my_share(y)).backward()
    assert model.module[0].weight.grad is None
    model.module[0].requires_grad_(True)
    model.zero_grad()
    nn.functional.cross_entropy(model(my_share(x)), my_share(y)).backward()
    return [parameter.grad for parameter in model.parameters()]


def test_frozen_layers_are_left_out_until_they_are_thawed(job2):
    first, second = job2.run(thaw)
    assert all(torch.equal(a, b) for a, b in zip(first, second))


def misuse():
    with pytest.raises(ValueError, match="torch.nn.Module"):
        DDP(torch.zeros(2))
    with pytest.raises(ValueError, match="one device"):
        DDP(nn.Linear(1, 1), device_ids=[0, 1])
    model = DDP(nn.Linear(2, 1))
    with pytest.raises(TypeError, match=r"\.module"):
        pickle.dumps(model)
    if session.job().is_alone:
        return  # nothing is exchanged, and nothing can be left half done
    inner = model.module
    del model
    inner(torch.ones(1, 2)).sum().backward()  # the module is an ordinary one again
    model = DDP(inner)
    inner.weight.register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(RuntimeError, match="failed before"):
        model(torch.ones(1, 2))
    bps.suspend()
    bps.resume(1, 2, 0)
    model(torch.ones(1, 2))  # in the next job everything begins anew


def test_misuse_of_a_model_is_told(job1, alone):
    misuse()
    job1.run(misuse)


# ---- SyncBatchNorm


def normalize(dtype, dimensions, affine, momentum, uneven):
    channels, size = 3, bps.size()
    counts = [2 * rank + 2 for rank in range(size)] if uneven else [4] * size
    generator = torch.Generator().manual_seed(5)
    shape = (sum(counts), channels, *[4] * dimensions)
    kinds = [nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d]
    reference = kinds[dimensions](channels, affine=affine, momentum=momentum).to(dtype)
    if affine:
        reference.weight.data = torch.rand(channels, generator=generator, dtype=dtype) + 0.5
    module = nn.Sequential(copy.deepcopy(reference))
    module = bps.SyncBatchNorm.convert_sync_batchnorm(module)[0]
    assert isinstance(module, bps.SyncBatchNorm)
    first = sum(counts[: bps.rank()])
    mine = slice(first, first + counts[bps.rank()])
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-10}
    for _ in range(2):
        whole = torch.randn(shape, generator=generator, dtype=dtype) * 3 + 1
        slope = torch.randn(shape, generator=generator, dtype=dtype)
        whole.requires_grad_()
        part = whole.detach()[mine].requires_grad_()
        wanted, got = reference(whole), module(part)
        assert got.dtype == dtype
        assert torch.allclose(got, wanted[mine], **tolerance)
        (wanted * slope).sum().backward()
        (got * slope[mine]).sum().backward()
        assert torch.allclose(part.grad, whole.grad[mine], **tolerance)
    for mine_, theirs in zip(module.buffers(), reference.buffers()):
        assert torch.allclose(mine_, theirs, **tolerance)
    if affine:  # gradients of weight and bias are this rank's share: an optimizer averages them as any others
        total = bps.push_pull(module.weight.grad, average=False, name=f"total.{dtype}.{dimensions}.{uneven}")
        assert torch.allclose(total, reference.weight.grad, **tolerance)
    module.eval(), reference.eval()
    assert torch.allclose(module(whole[mine]), reference(whole[mine]), **tolerance)


@pytest.mark.parametrize("dimensions", [0, 2])
def test_sync_batch_norm_is_batch_norm_of_all_batches_together(job, dimensions):
    job.run(normalize, torch.float64, dimensions, True, 0.1, uneven=False)
    job.run(normalize, torch.float32, dimensions, True, None, uneven=True)
    job.run(normalize, torch.float64, dimensions, False, 0.1, uneven=True)


def evaluate_alone():
    """Rank 0 only: nobody else would answer."""
    if bps.rank() != 0:
        return
    for options in ({}, {"track_running_stats": False}, {"affine": False, "track_running_stats": False}):
        reference = nn.BatchNorm1d(3, **options)
        module = bps.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(reference))
        x = torch.randn(4, 3)
        assert torch.allclose(module.eval()(x), reference.eval()(x))


def test_sync_batch_norm_exchanges_nothing_in_evaluation(job2):
    job2.run(evaluate_alone)


def one_value():
    module = bps.SyncBatchNorm(2)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        module(torch.ones(1 if bps.rank() == 0 else 0, 2))
    with pytest.raises(ValueError, match="at least 2D"):
        module(torch.ones(2))


def test_sync_batch_norm_refuses_a_single_value_on_all_ranks(job2):
    job2.run(one_value)
