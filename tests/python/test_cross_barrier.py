"""CrossBarrier: the same training as with DistributedOptimizer, and no layer waits for another's gradients."""

import copy

import pytest
import torch
from test_optimizer import assert_same, batches, make_model, my_share
from torch import nn

import byteps.torch as bps

KINDS = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=1e-3, nesterov=True),
    "adam": lambda ps: torch.optim.Adam(ps, lr=torch.tensor(0.01), amsgrad=True),
    "nadam": lambda ps: torch.optim.NAdam(ps, lr=0.01),
    "adagrad": lambda ps: torch.optim.Adagrad(ps, lr=0.05),
    "rmsprop": lambda ps: torch.optim.RMSprop(ps, lr=0.01, centered=True),
    "adadelta": lambda ps: torch.optim.Adadelta(ps),
    "rprop": lambda ps: torch.optim.Rprop(ps, lr=0.01),
}


def train_both(kind, zero, steps=6):
    from byteps.torch.cross_barrier import CrossBarrier

    reference, model = make_model(), make_model(seed=1 + bps.rank())
    alone, optimizer = KINDS[kind](reference.parameters()), KINDS[kind](model.parameters())
    optimizer = CrossBarrier(model, optimizer, model.named_parameters())
    assert isinstance(optimizer, type(alone)) and type(optimizer).__name__ == type(alone).__name__
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(each, 0.8) for each in (alone, optimizer)]
    for number, (inputs, labels) in enumerate(batches(steps)):
        for trained, its_optimizer, x, y in (
            (reference, alone, inputs, labels),
            (model, optimizer, my_share(inputs), my_share(labels)),
        ):
            nn.functional.cross_entropy(trained(x), y).backward()
            its_optimizer.step()
            {"optimizer": its_optimizer, "model": trained}[zero].zero_grad(**({} if zero == "model" else NOT_NONE))
        for scheduler in schedulers:
            scheduler.step()  # the steps of most layers are still to come, with the rate of before
        if number == 3:
            saved = copy.deepcopy(optimizer.state_dict())
            assert_same_state(saved, alone.state_dict())
            optimizer.load_state_dict(saved)
    if steps % 2:
        optimizer.synchronize()
    else:
        model.state_dict()
    assert_same(model, reference)


NOT_NONE = {"set_to_none": False}


def assert_same_state(mine, theirs):
    for index, state in theirs["state"].items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                assert torch.allclose(mine["state"][index][key], value, rtol=1e-9, atol=1e-12), key


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_training_equals_one_process_with_the_whole_batch(job2, kind):
    job2.run(train_both, kind, zero="optimizer")


def test_training_equals_one_process_with_any_number_of_workers(job):
    job.run(train_both, "sgd", zero="model", steps=5)


def wait_for_own_parameters_only():
    """Rank 1 holds back the gradient of the last layer, until both ranks have seen the first layer's forward pass."""
    from byteps.torch import pending
    from byteps.torch.cross_barrier import CrossBarrier
    from byteps.torch.exchange import Repeated

    torch.manual_seed(1)
    model = nn.Sequential()
    model.add_module("first", nn.Linear(2, 2, bias=False))
    model.add_module("last", nn.Linear(2, 1, bias=False))
    plain = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = CrossBarrier(model, plain, model.named_parameters())
    held, before = [], copy.deepcopy(model.state_dict())
    start, synchronize = Repeated.start, pending.synchronize
    if bps.rank() == 1:
        Repeated.start = lambda *of: held.append(of) or -1 if "last.weight" in of[0].name else start(*of)
        pending.synchronize = lambda handle: synchronize(start(*held[0]) if handle == -1 else handle)
    seen = []

    def after_first(*_):
        assert not torch.equal(model.first.weight, before["first.weight"])
        assert torch.equal(model.last.weight, before["last.weight"])
        seen.append(1)
        bps.barrier()

    try:
        model(torch.full((1, 2), 1.0 + bps.rank())).sum().backward()
        optimizer.step()
        assert torch.equal(model.first.weight, before["first.weight"])
        model.first.register_forward_hook(after_first)
        model(torch.ones(1, 2))
    finally:
        Repeated.start, pending.synchronize = start, synchronize
    assert seen and not torch.equal(model.last.weight, before["last.weight"])
    return model.last.weight.detach()


def test_a_layer_waits_for_its_own_parameters_only(job2):
    first, second = job2.run(wait_for_own_parameters_only)
    assert torch.equal(first, second)


class Reader(nn.Module):
    """Reads its child's weight without calling the child."""

    def __init__(self):
        super().__init__()
        self.child = nn.Linear(2, 2)

    def forward(self, x):
        return x @ self.child.weight


class Listing(nn.Module):
    """Its weights are in lists, which are never called: nobody but this module can wait for them."""

    def __init__(self):
        super().__init__()
        weights = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))]
        self.lists = nn.ModuleList([nn.ParameterList(weights[:1]), nn.ParameterDict({"two": weights[1]})])

    def forward(self, x):
        return x * self.lists[0][0] * self.lists[1]["two"]


def unusual_models():
    from byteps.torch.cross_barrier import CrossBarrier

    torch.manual_seed(2)
    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    optimizer = CrossBarrier(attention, torch.optim.SGD(attention.parameters(), lr=0.1))
    for _ in range(3):  # out_proj is a child that is never called
        x = torch.full((2, 3, 4), 1.0 + bps.rank())
        attention(x, x, x)[0].square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        attention.eval()(x, x, x)
    assert not optimizer._pending

    listing = Listing()
    optimizer = CrossBarrier(listing, torch.optim.SGD(listing.parameters(), lr=0.25))
    for _ in range(2):
        listing(torch.ones(2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.synchronize()
    assert all(weight.tolist() == [0.5625, 0.5625] for weight in listing.parameters())

    reader = Reader()
    optimizer = CrossBarrier(reader, torch.optim.SGD(reader.parameters(), lr=0.1))
    reader(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match=r"child.weight.*optimizer.synchronize\(\)"):
        reader(torch.ones(1, 2)).sum().backward()
    with pytest.raises(RuntimeError, match="was changed or replaced between"):
        optimizer.synchronize()
    assert reader.child.bias.grad is None

    model = make_model(3)
    bps.broadcast_parameters(model.state_dict())
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = CrossBarrier(model, plain, num_steps=2, backward_passes_per_step=2)
    for number, (x, y) in enumerate(batches(4)):
        nn.functional.cross_entropy(model(my_share(x)), my_share(y)).backward()
        if number == 1:
            optimizer.step()
            assert optimizer._pending
            optimizer.zero_grad()
        if number == 3:
            optimizer.step()
            assert not optimizer._pending  # it was the last one
            optimizer.zero_grad()
    nn.functional.cross_entropy(model(my_share(x)), my_share(y)).backward()
    optimizer.synchronize()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    with optimizer.skip_synchronize():
        optimizer.step()
    with pytest.raises(ValueError, match="groups"):
        optimizer.add_param_group({"params": []})
    return attention.out_proj.weight.detach(), model[0].weight.detach()


def test_modules_that_read_their_children_and_other_unusual_ways(job2):
    (a, b), (c, d) = job2.run(unusual_models)
    assert torch.equal(a, c) and torch.equal(b, d)


def leave_with_steps_to_come():
    from byteps.torch.cross_barrier import CrossBarrier

    model = make_model()
    optimizer = CrossBarrier(model, torch.optim.SGD(model.parameters(), lr=0.1))
    inputs, labels = next(batches(1))
    nn.functional.cross_entropy(model(my_share(inputs)), my_share(labels)).backward()
    optimizer.step()
    assert optimizer._pending
    rank = bps.rank()
    bps.suspend()
    bps.resume(2, 2, rank)
    model.state_dict()
    reference = make_model()
    model.load_state_dict(reference.state_dict())
    alone = torch.optim.SGD(reference.parameters(), lr=0.1)
    for inputs, labels in batches(3):
        for trained, its_optimizer, x, y in (
            (reference, alone, inputs, labels),
            (model, optimizer, my_share(inputs), my_share(labels)),
        ):
            nn.functional.cross_entropy(trained(x), y).backward()
            its_optimizer.step()
            its_optimizer.zero_grad()
    optimizer.synchronize()
    assert_same(model, reference)


def test_steps_that_are_to_come_when_the_job_is_left_are_lost_and_training_goes_on_in_the_next(job2):
    job2.run(leave_with_steps_to_come)


def step_after_synchronize():
    from byteps.torch.cross_barrier import CrossBarrier

    model = nn.Linear(2, 1)
    bps.broadcast_parameters(model.state_dict())
    before = model.weight.detach().clone()
    optimizer = CrossBarrier(model, torch.optim.SGD(model.parameters(), lr=1.0))
    model(torch.full((1, 2), 1.0 + bps.rank())).sum().backward()
    optimizer.synchronize()
    model.weight.grad.mul_(bps.rank())  # whatever was done to it: it is not averaged again
    with pytest.warns(UserWarning, match="not averaged again"):
        optimizer.step()
    assert torch.allclose(before - model.weight, torch.full((1, 2), 1.5 * bps.rank()))


def test_what_was_synchronized_is_not_averaged_again(job2):
    job2.run(step_after_synchronize)


def test_importing_it_changes_nothing(tmp_path, monkeypatch, alone):
    monkeypatch.chdir(tmp_path)
    hooks = bps._DistributedOptimizer._make_hook
    import byteps.torch.cross_barrier as crossing

    assert crossing.init is bps.init and bps._DistributedOptimizer._make_hook is hooks and not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match=r"torch\.nn\.Module first"):
        crossing.CrossBarrier(torch.optim.SGD([torch.zeros(1)], lr=0.1), None)
    train_both("adam", zero="optimizer")
