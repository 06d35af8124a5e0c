"""DistributedOptimizer: the same training as in one process with the whole batch, to rounding."""

import copy
import warnings

import pytest
import torch
from cluster import without_servers
from job import FORCED
from torch import nn

import byteps.torch as bps
from byteps._core import session

BATCH = 12  # divisible by 1, 2 and 3


def make_model(seed=1):
    torch.manual_seed(seed)
    layers = [nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 36, 10), nn.Tanh(), nn.Linear(10, 3)]
    return nn.Sequential(*layers).double()


def batches(count, seed=2):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        inputs = torch.randn(BATCH, 1, 8, 8, dtype=torch.float64, generator=generator)
        yield inputs, torch.randint(0, 3, (BATCH,), generator=generator)


def my_share(tensor):
    return tensor[bps.rank() :: bps.size()]


def assert_same(model, reference, tolerance=1e-10):
    for (name, mine), theirs in zip(model.named_parameters(), reference.parameters()):
        assert torch.allclose(mine, theirs, rtol=tolerance, atol=tolerance), (name, (mine - theirs).abs().max())


KINDS = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "adam": lambda ps: torch.optim.Adam(ps, lr=0.01),
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=0.01, amsgrad=True),
    "rmsprop": lambda ps: torch.optim.RMSprop(ps, lr=0.01, centered=True),
}


# ---- the same training


def train_both(kind, steps=15, named=True):
    reference, model = make_model(), make_model(seed=1 + bps.rank())
    alone = KINDS[kind](reference.parameters())
    optimizer = KINDS[kind](model.parameters())
    optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters() if named else None)
    assert isinstance(optimizer, type(alone)) and type(optimizer).__name__ == type(alone).__name__
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
    for inputs, labels in batches(steps):
        for trained, its_optimizer, x, y in (
            (reference, alone, inputs, labels),
            (model, optimizer, my_share(inputs), my_share(labels)),
        ):
            its_optimizer.zero_grad()
            nn.functional.cross_entropy(trained(x), y).backward()
            its_optimizer.step()
    assert_same(model, reference)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_training_equals_one_process_with_the_whole_batch(job2, kind):
    job2.run(train_both, kind)


def test_training_equals_one_process_with_any_number_of_workers(job):
    job.run(train_both, "sgd", named=False)


def test_workers_without_servers_are_not_alone(job2):
    job2.run(without_servers, train_both, "sgd")


def accumulate(passes):
    reference, model = make_model(), make_model()
    alone = torch.optim.SGD(reference.parameters(), lr=0.1)
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), backward_passes_per_step=passes
    )
    for turn in range(3):
        if turn == 2:
            optimizer.set_backward_passes_per_step(1)
            passes = 1
        alone.zero_grad()
        optimizer.zero_grad()
        for inputs, labels in batches(passes, seed=turn):
            nn.functional.cross_entropy(reference(inputs), labels).backward()
            nn.functional.cross_entropy(model(my_share(inputs)), my_share(labels)).backward()
        alone.step()
        optimizer.step()
    assert_same(model, reference)


def test_backward_passes_are_accumulated_before_gradients_travel(job2):
    job2.run(accumulate, passes=3)


def fewer_passes_than_announced():
    model = nn.Linear(2, 1)
    bps.broadcast_parameters(model.state_dict())
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), backward_passes_per_step=4
    )
    model(torch.full((1, 2), 1.0 + bps.rank())).sum().backward()  # the last, incomplete group of an epoch
    optimizer.step()
    assert torch.equal(model.weight.grad, torch.full((1, 2), (bps.size() + 1) / 2))


def test_a_step_after_fewer_passes_averages_what_is_there(job2):
    job2.run(fewer_passes_than_announced)


def clip():
    reference, model = make_model(), make_model()
    alone = torch.optim.SGD(reference.parameters(), lr=1.0)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for inputs, labels in batches(4):
            alone.zero_grad()
            nn.functional.cross_entropy(reference(inputs), labels).backward()
            wanted = nn.utils.clip_grad_norm_(reference.parameters(), 0.1)
            alone.step()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(my_share(inputs)), my_share(labels)).backward()
            optimizer.synchronize()
            got = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            with optimizer.skip_synchronize():
                optimizer.step()
            assert torch.allclose(got, wanted)
    assert_same(model, reference)


def test_gradients_are_clipped_after_synchronize(job2):
    job2.run(clip)


def synchronize_and_step(op, partial):
    """The warning is there, and the numbers are as without synchronize()."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
    nn.init.ones_(model[0].weight), nn.init.ones_(model[1].weight)
    wrap, more = bps.DistributedOptimizer, {}
    if partial:
        wrap, more = bps.PartialDistributedOptimizer, {"local_layers": model[1]}
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), op=op, **more)
    total, mine = sum(range(1, bps.size() + 1)), bps.rank() + 1
    loss = lambda: model(torch.full((1, 2), float(mine))).sum()
    wanted = total if op == bps.Sum else total / bps.size()
    loss().backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="not averaged again"):
        optimizer.step()
    assert torch.allclose(1 - model[0].weight, torch.full((2, 2), float(wanted)))
    second = 2 * mine / bps.size() if partial else 2 * wanted
    assert torch.allclose(1 - model[1].weight, torch.full((1, 2), float(second)))
    # A step without gradients after a synchronize() without a step: a new one.
    loss().backward()
    optimizer.synchronize()
    optimizer.zero_grad()
    if bps.rank() == 0:
        loss().backward()
    optimizer.step()


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("op", ["Sum", "Average"])
def test_what_was_synchronized_is_not_averaged_again(job2, op, partial):
    job2.run(synchronize_and_step, bps.ReduceOp[op], partial)


def clip_too_early():
    model = make_model()
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    inputs, labels = next(batches(1))
    nn.functional.cross_entropy(model(inputs), labels).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1e-9)
    with pytest.raises(RuntimeError, match="was changed or replaced between backward.* and synchronize"):
        optimizer.step()
    optimizer.zero_grad()  # and the next step is fine
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()


@pytest.mark.host(reason="it writes to what is under way, for which a played GPU ends the process")
def test_changing_a_gradient_that_is_under_way_is_an_error(job2):
    job2.run(clip_too_early)


def changed_view():
    """A gradient that is a view, alone of its buffer."""
    parameter = nn.Parameter(torch.zeros(4))
    optimizer = bps.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), [("view.alone", parameter)])
    parameter.grad = torch.zeros(10)[:4]
    parameter.sum().backward()
    parameter.grad.mul_(2)
    with pytest.raises(RuntimeError, match="view.alone: the gradient was changed or replaced between backward"):
        optimizer.step()


@pytest.mark.host(reason="it writes to what is under way, for which a played GPU ends the process")
def test_a_view_that_is_changed_is_an_error_as_other_gradients_are(job2):
    job2.run(changed_view)


def gradients_of_one_buffer(by_backward):
    parameters = [nn.Parameter(torch.zeros(count)) for count in (4, 6)]
    named = [(f"flat.{by_backward}.{index}", parameter) for index, parameter in enumerate(parameters)]
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), named)
    flat = torch.zeros(10)
    parameters[0].grad, parameters[1].grad = flat[:4], flat[4:]
    for step in range(1, 3):
        flat.zero_()
        if by_backward:
            (sum(parameter.sum() for parameter in parameters) * bps.rank()).backward()
        else:
            flat.fill_(bps.rank())
        optimizer.step()
        for parameter in parameters:
            assert torch.equal(parameter, torch.full_like(parameter, -step * (bps.size() - 1) / 2))


@pytest.mark.parametrize("by_backward", [False, True])
def test_gradients_may_be_views_of_one_buffer(job2, by_backward):
    job2.run(gradients_of_one_buffer, by_backward)


def replaced_too_early(replace):
    model = nn.Linear(4, 1)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    before = copy.deepcopy(model.state_dict())
    model(torch.ones(1, 4)).sum().backward()
    for parameter in model.parameters():
        replace(parameter)
    with pytest.raises(RuntimeError, match=r"weight[.\d]*: the gradient was changed or replaced between backward"):
        optimizer.step()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    optimizer.zero_grad()
    model(torch.ones(1, 4)).sum().backward()
    optimizer.synchronize()
    for parameter in model.parameters():
        replace(parameter)  # now they are averaged
    with optimizer.skip_synchronize():
        optimizer.step()
    assert torch.allclose(before["weight"] - model.weight, torch.full((1, 4), 0.5))


def new_gradient(parameter):
    parameter.grad = torch.clamp(parameter.grad, max=0.5)


def new_memory(parameter):
    parameter.grad.data = torch.clamp(parameter.grad.data, max=0.5)


@pytest.mark.host(reason="it reads what is under way, for which a played GPU ends the process")
@pytest.mark.parametrize("replace", [new_gradient, new_memory])
def test_replacing_a_gradient_that_is_under_way_is_an_error(job2, replace):
    job2.run(replaced_too_early, replace)


def loss_scaling():
    model = nn.Linear(4, 1)
    bps.broadcast_parameters(model.state_dict())
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    before = copy.deepcopy(model.state_dict())
    for rank_with_infinity in (1, None):
        optimizer.zero_grad()
        inputs = torch.full((1, 4), float("inf") if bps.rank() == rank_with_infinity else 1.0)
        scaler.scale(model(inputs).sum()).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        if rank_with_infinity is not None:  # no rank may step, and all lower their scale alike
            assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
            assert scaler.get_scale() == 2.0**7
    assert torch.allclose(model.weight, before["weight"] - 1)


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="this torch has no GradScaler for CPUs")
def test_an_infinite_gradient_on_one_rank_stops_the_step_on_all(job2):
    job2.run(loss_scaling)


def with_closure():
    reference, model = make_model(), make_model()
    alone = torch.optim.SGD(reference.parameters(), lr=0.1)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())

    def evaluate(trained, its_optimizer, x, y):
        its_optimizer.zero_grad()
        loss = nn.functional.cross_entropy(trained(x), y)
        loss.backward()
        return loss

    for inputs, labels in batches(4):
        alone.step(lambda: evaluate(reference, alone, inputs, labels))
        loss = optimizer.step(lambda: evaluate(model, optimizer, my_share(inputs), my_share(labels)))
        assert isinstance(loss, torch.Tensor)
    assert_same(model, reference)


def test_a_closure_makes_gradients_that_are_averaged_before_they_are_used(job2):
    job2.run(with_closure)


def with_scheduler(scheduler_first):
    model = nn.Linear(2, 1)
    bps.broadcast_parameters(model.state_dict())
    plain = torch.optim.SGD(model.parameters(), lr=1.0)
    if scheduler_first:
        scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, 0.5)
    optimizer = bps.DistributedOptimizer(plain, model.named_parameters())
    if not scheduler_first:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rate in (1.0, 0.5, 0.25):
            assert optimizer.param_groups[0]["lr"] == rate
            optimizer.zero_grad()
            model(torch.full((1, 2), 1.0 + bps.rank())).sum().backward()
            before = model.weight.detach().clone()
            optimizer.step()
            assert torch.allclose(before - model.weight, torch.full((1, 2), rate * (bps.size() + 1) / 2))
            scheduler.step()


def test_learning_rate_schedulers_work_whenever_they_are_made(job2):
    job2.run(with_scheduler, True)
    job2.run(with_scheduler, False)


# ---- parameters without gradients


class Branches(nn.Module):
    """Each rank goes its own way: `mine[rank]`; `nobody` is never used."""

    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(3, 3)
        self.mine = nn.ModuleList([nn.Linear(3, 1) for _ in range(3)])
        self.nobody = nn.Linear(2, 2)

    def forward(self, inputs):
        return self.mine[bps.rank()](self.shared(inputs)).sum()


def unused(compression_name):
    torch.manual_seed(3)
    model = Branches()
    compression = getattr(bps.Compression, compression_name)
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5), model.named_parameters(), compression
    )
    untouched = copy.deepcopy(model.nobody.state_dict())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.full((4, 3), 1.0 + bps.rank())).backward()
        optimizer.step()
        for index, layer in enumerate(model.mine):
            assert (layer.weight.grad is not None) == (index < bps.size())
        assert model.nobody.weight.grad is None  # so no weight decay either, as in one process
    assert all(torch.equal(value, untouched[name]) for name, value in model.nobody.state_dict().items())
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("compression", ["none", "fp16", "bf16"])
def test_parameters_used_on_some_ranks_only_stay_equal_on_all(job2, compression):
    first, second = job2.run(unused, compression)
    assert all(torch.equal(first[name], second[name]) for name in first)


def dropped_gradients():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    bps.broadcast_parameters(model.state_dict())
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    before = copy.deepcopy(model.state_dict())
    model(torch.ones(1, 2)).sum().backward()
    model.zero_grad(set_to_none=True)  # behind the optimizer's back
    optimizer.step()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert not torch.equal(model[1].weight, before["1.weight"])


def test_gradients_that_the_user_drops_stay_dropped(job2):
    job2.run(dropped_gradients)


def freeze_and_thaw():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    bps.broadcast_parameters(model.state_dict())
    model[0].requires_grad_(False)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    inputs = torch.full((1, 2), 1.0 + bps.rank())

    def step():
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
        return {name: value.clone() for name, value in model.state_dict().items()}

    first = step()
    model[0].requires_grad_(True)
    second = step()
    third = step()
    assert not torch.equal(first["0.weight"], second["0.weight"])
    return third


def test_thawed_parameters_are_averaged_too(job2):
    first, second = job2.run(freeze_and_thaw)
    assert all(torch.equal(first[name], second[name]) for name in first)


def later_group():
    first, second = nn.Linear(2, 2), nn.Linear(2, 1)
    for layer in (first, second):
        bps.broadcast_parameters(layer.state_dict())
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(first.parameters(), lr=1.0), first.named_parameters())
    optimizer.add_param_group({"params": list(second.parameters()), "lr": 0.5})
    second(first(torch.full((1, 2), 1.0 + bps.rank()))).sum().backward()
    optimizer.step()
    return second.weight.detach(), first.weight.detach()


def test_a_parameter_group_added_later_is_averaged_too(job2):
    (a, b), (c, d) = job2.run(later_group)
    assert torch.equal(a, c) and torch.equal(b, d)


# ---- names


def two_models_of_the_same_names():
    """As in a GAN: names are equal, shapes are not."""
    generator, discriminator = nn.Sequential(nn.Linear(2, 3)), nn.Sequential(nn.Linear(3, 1))
    optimizers = [
        bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        for model in (generator, discriminator)
    ]
    for model in (generator, discriminator):
        bps.broadcast_parameters(model.state_dict(), root_rank=0)
    for _ in range(2):
        for optimizer in optimizers:
            optimizer.zero_grad()
        discriminator(generator(torch.full((1, 2), 1.0 + bps.rank()))).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    return generator[0].weight.detach(), discriminator[0].weight.detach()


def test_two_models_may_use_the_same_names(job2):
    (a, b), (c, d) = job2.run(two_models_of_the_same_names)
    assert torch.equal(a, c) and torch.equal(b, d)


def two_equal_models(name=None):
    """Both are under way at once, and start in another order on rank 1, which does not use the first's first layer. How
    far each is from what one process makes of all batches."""
    differences = []
    models, alone, optimizers, plain = [], [], [], []
    for seed in (1, 2):
        for kept, made in ((models, optimizers), (alone, plain)):
            torch.manual_seed(seed)
            kept.append(nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 1)]))
            made.append(torch.optim.SGD(kept[-1].parameters(), lr=0.1))
        own_name = name and f"{name}.{seed}"
        optimizers[-1] = bps.DistributedOptimizer(optimizers[-1], models[-1].named_parameters(), name=own_name)

    def loss(model, seed, step, rank):
        x = torch.full((2, 3), 0.1 * (rank + 1) * seed + 0.2 * step)
        hidden = model[0](x) if seed == 2 or rank != 1 else x
        return model[1](torch.tanh(hidden)).square().sum()

    for step in range(3):
        for made in (optimizers, plain):
            for optimizer in made:
                optimizer.zero_grad()
        for seed in (1, 2):
            loss(models[seed - 1], seed, step, bps.rank()).backward()
            for rank in range(bps.size()):
                (loss(alone[seed - 1], seed, step, rank) / bps.size()).backward()
        for made in (optimizers, plain):
            for optimizer in made:
                optimizer.step()
    for model, other in zip(models, alone):
        differences += [(a - b).abs().max().item() for a, b in zip(model.parameters(), other.parameters())]
    return max(differences)


@pytest.mark.parametrize("name", [None, "own"])
def test_equal_models_whose_gradients_leave_in_another_order_on_each_rank_are_kept_apart(job2, name):
    assert max(job2.run(two_equal_models, name)) < 1e-6


def different_models():
    model = nn.Linear(4, 2 + bps.rank())
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), [("head." + name, p) for name, p in model.named_parameters()]
    )
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()


def test_models_that_differ_between_ranks_give_an_error_that_names_the_parameter(job2):
    for failure in job2.failures(different_models):
        assert failure.kind == "MismatchError" and "byteps.Gradient.head." in failure.text


def priorities():
    from byteps.torch.exchange import Repeated

    seen = []
    original = Repeated.start
    Repeated.start = lambda self, *given: seen.append((self.name, self.what.priority)) or original(self, *given)
    try:
        model = make_model()
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        inputs, labels = next(batches(1))
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    finally:
        Repeated.start = original
    return {name: priority for name, priority in seen if name.startswith("Gradient.")}


def test_the_first_layers_travel_first(job2):
    for by_name in job2.run(priorities):
        names = [f"Gradient.{name}" for name, _ in make_model().named_parameters()]
        ordered = sorted(by_name, key=lambda name: -by_name[name])
        assert [name.rsplit(".", 1)[0] if name.count(".") > 2 else name for name in ordered] == names


def repeated_with_others():
    """What is told of a tensor once is told anew of one that is not like it."""
    from byteps._core import abi, errors
    from byteps._core.exchange import Exchange
    from byteps.torch.exchange import Repeated

    repeated = Repeated(Exchange(abi.SUM), "repeated")
    whole = torch.arange(12.0).reshape(4, 3)
    assert torch.equal(bps.synchronize(repeated.start(whole.clone())), 2 * whole)
    assert torch.equal(bps.synchronize(repeated.start(whole.t().clone().t())), 2 * whole)
    for other in (whole.double(), whole.half(), whole[:2].clone(), whole.reshape(3, 4).clone()):
        with pytest.raises(errors.InvalidArgumentError, match="repeated' was float32, shape 4x3"):
            bps.synchronize(repeated.start(other))


def test_what_is_told_of_a_gradient_once_is_not_told_of_another_dtype_or_shape(job2):
    job2.run(repeated_with_others)


# ---- from job to job


def leave_after_backward(passes):
    """What is under way is lost, and what an optimizer of the job before does is right in the next one, beside a new
    optimizer of equal names."""
    models = [make_model() for _ in range(2)]

    def distributed(model):
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        return bps.DistributedOptimizer(sgd, model.named_parameters(), backward_passes_per_step=passes)

    def backward(model, x, y):
        nn.functional.cross_entropy(model(x), y).backward()

    optimizers = [distributed(models[0])]
    x, y = next(batches(1, seed=9))
    for _ in range(passes):
        backward(models[0], my_share(x), my_share(y))
    if bps.rank() == 1:
        optimizers[0]._gradients.begin()  # also amid synchronize()
    rank = bps.rank()
    bps.suspend()
    assert all(p.grad is None for p in models[0].parameters())
    bps.resume(2, 2, rank)
    optimizers.append(distributed(models[1]))
    order = slice(None, None, 1 - 2 * rank)
    reference = make_model()
    alone = torch.optim.SGD(reference.parameters(), lr=0.1)
    for number in range(2):
        for seed in range(passes):
            x, y = next(batches(1, seed=10 * number + seed))
            backward(reference, x, y)
            for model in models[order]:
                backward(model, my_share(x), my_share(y))
        alone.step(), alone.zero_grad()
        for optimizer in optimizers:
            optimizer.step(), optimizer.zero_grad()
    for model in models:
        assert_same(model, reference)
    return [optimizer._gradients.slots[0].name for optimizer in optimizers]


@pytest.mark.parametrize("passes", [1, 2])
def test_an_optimizer_goes_on_in_the_next_job(job2, passes):
    first, second = job2.run(leave_after_backward, passes)
    assert first == second and first[0] != first[1]


def test_numbers_that_tell_models_and_optimizers_apart_begin_anew_in_each_job(alone):
    """A rank that has been in another job before has the same ones as a rank that has not."""
    from byteps._keras.exchange import GradientExchange

    make = lambda: GradientExchange(bps.Average, bps.Compression.none, 1.0, False, None, None, 1, True)
    kept, kept_state = make(), bps.DDPHookState()
    for _ in range(2):
        assert [kept.title, make().title] == ["0", "1"] and kept.title == "0"
        assert [kept_state.wire_name(), bps.DDPHookState().wire_name()] == ["ddp", "ddp.2"]
        bps.shutdown()
        bps.init()
    bps.shutdown()
    early = bps.DDPHookState()
    bps.init()
    assert early.wire_name() == "ddp"


# ---- errors


def test_wrong_arguments_are_refused_with_a_reason(alone):
    model = nn.Linear(2, 2)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"sequence of tuples"):
        bps.DistributedOptimizer(sgd, named_parameters=model.parameters())
    with pytest.raises(ValueError, match=r"must be unique. Found duplicates: same"):
        bps.DistributedOptimizer(sgd, [("same", model.weight), ("same", model.bias)])
    with pytest.raises(ValueError, match="LBFGS"):
        bps.DistributedOptimizer(torch.optim.LBFGS(model.parameters()))
    wrong = (({"compression": "fp16"}, "'fp16': use one of"), ({"process_set": [0]}, "must be a ProcessSet"))
    for options, why in wrong:
        with pytest.raises(ValueError, match=f"{next(iter(options))} is .*{why}"):
            bps.DistributedOptimizer(sgd, **options)
    with pytest.raises(ValueError, match="already"):
        bps.DistributedOptimizer(bps.DistributedOptimizer(sgd))
    with pytest.raises(ValueError, match="at least 1"):
        bps.DistributedOptimizer(sgd, backward_passes_per_step=0)
    with pytest.raises(ValueError, match=r"torch\.optim\.Optimizer"):
        bps.DistributedOptimizer(model)
    with pytest.raises(ValueError, match="lone surrogate"):
        bps.DistributedOptimizer(sgd, [("w\udc80", model.weight)])
    assert bps.DistributedOptimizer(sgd).find_duplicates([1, 2, 1]) == {1}


def test_a_parameter_on_another_device_is_refused_when_the_optimizer_is_made(alone):
    from byteps.torch.cross_barrier import CrossBarrier

    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for wrap in (
        lambda: bps.DistributedOptimizer(sgd, model.named_parameters()),
        lambda: bps.PartialDistributedOptimizer(sgd, model.named_parameters(), local_layers=model[0]),
        lambda: CrossBarrier(model, sgd),
    ):
        with pytest.raises(ValueError, match=r"parameter '1\.weight' is on device 'meta'.*to_empty\(device='cpu'\)"):
            wrap()
    with pytest.raises(ValueError, match=r"parameter 'push_pull\.noname\.0\.2' is on device 'meta'"):
        bps.DistributedOptimizer(sgd)


def test_a_layer_that_stays_on_its_rank_may_be_on_another_device(alone):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    bps.PartialDistributedOptimizer(sgd, model.named_parameters(), local_layers=model[1])


def guards():
    model = nn.Linear(2, 1)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(AssertionError, match="before optimizer.step"):
        optimizer.zero_grad()
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(AssertionError, match="under way"):
        optimizer.set_backward_passes_per_step(2)
    with pytest.raises(RuntimeError):  # the second backward changed the gradients
        optimizer.step()
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="skip_synchronize"):
        optimizer.step()


@pytest.mark.host(reason="it writes to what is under way, for which a played GPU ends the process")
def test_misuse_is_told_from_use(job2):
    job2.run(guards)


def count_passes():
    model = nn.Linear(2, 1)
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), backward_passes_per_step=2
    )
    backward = lambda: model(torch.ones(1, 2)).sum().backward()
    for passes in (2, 1, 2, 0):  # fewer are no misuse
        for _ in range(passes):
            backward()
        optimizer.step()
        optimizer.zero_grad()
    backward()
    optimizer.zero_grad()
    backward()
    with pytest.raises(AssertionError, match=r"before optimizer.step"):
        optimizer.zero_grad()
    with pytest.raises(AssertionError, match=r"more than backward_passes_per_step \(2\) times"):
        backward()
    with pytest.raises(AssertionError, match="under way"):
        optimizer.set_backward_passes_per_step(3)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(1, 2)).sum()
        loss.backward()
        return loss

    model = nn.Linear(2, 1)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    backward()
    optimizer.step(closure)


@pytest.mark.host(reason="it adds to what is under way, for which a played GPU ends the process")
def test_backward_passes_are_counted_alike_with_two_workers_and_alone(job2, alone):
    job2.run(count_passes)
    count_passes()


def test_alone_nothing_is_pushed_and_state_is_kept(alone):
    model = make_model()
    plain = torch.optim.Adam(model.parameters(), lr=0.01)
    inputs, labels = next(batches(1))
    nn.functional.cross_entropy(model(inputs), labels).backward()
    plain.step()
    optimizer = bps.DistributedOptimizer(plain, model.named_parameters())
    assert optimizer.state is plain.state and len(optimizer.state) == 6
    saved = copy.deepcopy(optimizer.state_dict())
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    before = bps.metrics().finished_operations
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    optimizer.load_state_dict(saved)
    optimizer.step()
    assert bps.metrics().finished_operations == before
    assert calls == [1, 1]


def alone_and_exchanging():
    model = make_model()
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    inputs, labels = next(batches(1))
    before = bps.metrics().finished_operations
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    return session.job().is_alone, bps.metrics().finished_operations > before


def test_a_single_worker_is_alone_unless_it_has_servers(job1, alone):
    assert job1.run(alone_and_exchanging) == [(False, True) if FORCED == "1" else (True, False)]
    assert job1.run(without_servers, alone_and_exchanging) == [(True, False)]
    assert alone_and_exchanging() == (True, False)
