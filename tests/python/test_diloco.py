"""DiLoCo: what all ranks have in common is that of a dull model, whatever is streamed, coded, loaded, or left amid."""

import copy
import re

import numpy as np
import pytest
from cluster import Cluster

try:
    import torch

    import byteps.torch as bps
    from byteps.torch.diloco import _parts, _Piece
except ImportError:
    torch = bps = None  # in a worker with MXNet

STEPS = 24


@pytest.fixture(scope="module")
def apart():
    """Two workers, each on a machine of its own."""
    with Cluster(hosts=(1, 1)) as job:
        yield job


def model_of():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 4), torch.nn.Linear(4, 1))


def step_of(model, optimizer, rank, step):
    """One of training, which depends on the rank."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    optimizer.zero_grad()
    model(torch.randn(8, 6, generator=generator)).square().mean().backward()
    optimizer.step()


def inner_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def trained(steps=STEPS, first=0, load=None, **options):
    """The parameters, flat, and the state, after so many steps."""
    model = model_of()
    name = f"diloco {sorted(options.items())}"
    optimizer = bps.DiLoCo(inner_of(model), model.named_parameters(), name=name, **options)
    if load is not None:
        model.load_state_dict(load[0])
        optimizer.load_state_dict(load[1])
    for step in range(first, first + steps):
        step_of(model, optimizer, bps.rank(), step)
    values = flat(model)
    optimizer.synchronize()  # before the model's own state is taken
    return values, copy.deepcopy((model.state_dict(), optimizer.state_dict()))


def flat(model):
    return torch.cat([each.detach().reshape(-1) for each in model.parameters()]).numpy()


def dull(sync_every, fragments=1, delay=0, alpha=0.0, lr=0.7, momentum=0.9, nesterov=True, steps=STEPS):
    """The parameters of both ranks, by a model that has both in one process."""
    models = [model_of(), model_of()]
    optimizers = [inner_of(model) for model in models]
    named = [list(model.parameters()) for model in models]
    pieces = _parts([_Piece(str(place), each) for place, each in enumerate(named[0])], fragments)
    numbers = [[int(piece.name) for piece in part] for part in pieces]
    theta = [each.detach().clone() for each in named[0]]
    moments = [torch.zeros_like(each) for each in theta]
    flying = {}
    for step in range(1, steps + 1):
        for rank in (0, 1):
            step_of(models[rank], optimizers[rank], rank, step - 1)
        for part, members in enumerate(numbers):
            if step % sync_every == (part + 1) * (sync_every // fragments) % sync_every:
                of_both = [[theta[i] - parameters[i].detach() for i in members] for parameters in named]
                flying[part] = step, [(first + second) / 2 for first, second in zip(*of_both)]
        for part in [part for part, (begun, _) in flying.items() if step - begun >= delay]:
            for i, delta in zip(numbers[part], flying.pop(part)[1]):
                moments[i] = momentum * moments[i] + delta
                theta[i] = theta[i] - lr * (delta + momentum * moments[i] if nesterov else moments[i])
                for parameters in named:
                    with torch.no_grad():
                        parameters[i].copy_((1 - alpha) * theta[i] + alpha * parameters[i])
    return [flat(model) for model in models]


@pytest.mark.parametrize(
    "options, of_dull",
    [
        ({"sync_every": 6}, {"sync_every": 6}),
        ({"sync_every": 4, "outer_lr": 1.0, "outer_momentum": 0.0}, {"sync_every": 4, "lr": 1.0, "momentum": 0.0}),
        ({"sync_every": 6, "nesterov": False, "fragments": 3}, {"sync_every": 6, "nesterov": False, "fragments": 3}),
        (
            {"sync_every": 8, "fragments": 2, "fragment_sync_delay": 3, "fragment_update_alpha": 0.25},
            {"sync_every": 8, "fragments": 2, "delay": 3, "alpha": 0.25},
        ),
    ],
)
def test_parameters_are_those_of_a_dull_model(apart, options, of_dull):
    found = apart.run(lambda: trained(**options)[0])
    for mine, expected in zip(found, dull(**of_dull)):
        np.testing.assert_allclose(mine, expected, rtol=2e-5, atol=2e-6)


def test_after_an_exchange_all_have_the_same_bits(apart):
    first, second = apart.run(lambda: trained(sync_every=6)[0])
    np.testing.assert_array_equal(first, second)


def test_what_is_streamed_and_coded_is_in_common_all_the_same(apart):
    def train():
        model = torch.nn.Linear(300, 300)
        bps.broadcast_parameters(model.state_dict(), root_rank=0)
        compression = bps.Compression.int4(error_feedback=True)
        options = {"sync_every": 4, "fragments": 2, "fragment_sync_delay": 1, "compression": compression}
        optimizer = bps.DiLoCo(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **options)
        before = bps.metrics()
        generator = torch.Generator().manual_seed(bps.rank())
        for _ in range(60):  # some 15 rounds, of which two are checked
            optimizer.zero_grad()
            model(torch.randn(4, 300, generator=generator)).square().mean().backward()
            optimizer.step()
        optimizer.synchronize()
        after = bps.metrics()
        pushed = after.pushed_bytes - before.pushed_bytes
        theta = {name: each.numpy() for name, each in optimizer.state_dict()["byteps.DiLoCo"]["theta"].items()}
        return theta, pushed / (after.pushed_wire_bytes - before.pushed_wire_bytes)

    (first, ratio), (second, _) = apart.run(train)
    assert set(first) == {"weight", "bias"} and ratio > 6
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


def test_training_goes_on_from_a_checkpoint_as_if_nothing_had_been(apart):
    options = {"sync_every": 6, "fragments": 2, "fragment_sync_delay": 1, "compression": "int4"}

    def train():
        options["compression"] = bps.Compression.int4(error_feedback=True)
        whole, _ = trained(24, **options)
        _, state = trained(14, **options)
        assert state[1]["byteps.DiLoCo"]["steps"] == 14
        return whole, trained(10, first=14, load=state, **options)[0]

    for whole, resumed in apart.run(train):
        np.testing.assert_array_equal(whole, resumed)


def test_a_job_that_is_left_amid_an_exchange_is_not_waited_for_in_the_next_one(apart):
    def begin():
        model = model_of()
        optimizer = bps.DiLoCo(inner_of(model), model.named_parameters(), sync_every=4, fragment_sync_delay=3)
        for step in range(4):
            step_of(model, optimizer, bps.rank(), step)
        assert optimizer._fragments[0].begun_at == 4
        rank = bps.rank()
        bps.suspend()
        bps.resume(2, 1, rank)
        for step in range(4, 12):
            step_of(model, optimizer, bps.rank(), step)
        optimizer.synchronize()
        return optimizer._fragments[0].rounds, flat(model)

    (first_rounds, first), (second_rounds, second) = apart.run(begin)
    assert first_rounds == second_rounds == 2
    np.testing.assert_array_equal(first, second)


def test_ranks_that_begin_with_different_parameters_are_told(apart):
    def train():
        torch.manual_seed(bps.rank())
        model = torch.nn.Linear(3, 2)
        with pytest.raises(ValueError, match=r"DiLoCo: the parameters differ on rank 1 .*Begin with broadcast_param"):
            bps.DiLoCo(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), sync_every=4)

    apart.run(train)


def test_what_cannot_be_is_an_error_that_names_the_argument(alone):
    def make(**options):
        model = model_of()
        named = options.pop("named_parameters", model.named_parameters())
        return bps.DiLoCo(torch.optim.SGD(model.parameters(), lr=0.1), named, **{"sync_every": 8, **options})

    for wrong, text in [
        ({"sync_every": 0}, "sync_every is 0: it must be a number of at least 1"),
        ({"sync_every": 10, "fragments": 3}, "sync_every is 10 and fragments is 3"),
        ({"fragments": 8}, "fragments is 8, and there are 6 parameters"),
        ({"fragment_sync_delay": 8}, "fragment_sync_delay is 8 and sync_every is 8"),
        ({"outer_momentum": 1.5}, "outer_momentum is 1.5: it must be a number from 0 to 1"),
        ({"fragment_update_alpha": -1}, "fragment_update_alpha is -1"),
        ({"compression": bps.Compression.powersgd()}, "DiLoCo has Compression.none"),
        ({"named_parameters": model_of().named_parameters()}, "named_parameters and the optimizer's parameters differ"),
    ]:
        with pytest.raises(ValueError, match=re.escape(text)):
            make(**wrong)
    optimizer = make()
    with pytest.raises(ValueError, match="is not that of a DiLoCo optimizer"):
        optimizer.load_state_dict(torch.optim.SGD(model_of().parameters(), lr=0.1).state_dict())
    with pytest.raises(ValueError, match="takes no further parameters"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})


def test_alone_the_outer_optimizer_works_as_well(alone):
    found, _ = trained(sync_every=6)
    assert np.isfinite(found).all()


def test_fragments_are_of_about_the_same_size():
    def sizes(counts, parts):
        pieces = [_Piece(str(place), torch.nn.Parameter(torch.zeros(count))) for place, count in enumerate(counts)]
        return [sum(piece.theta.numel() for piece in part) for part in _parts(pieces, parts)]

    assert sizes([10] * 8, 4) == [20, 20, 20, 20]
    assert sizes([100, 1, 1, 1], 4) == [100, 1, 1, 1]
    assert sizes([1, 1, 1, 100], 4) == [1, 1, 1, 100]
    assert sizes([5, 5, 30, 5, 5], 2) in ([40, 10], [10, 40])
    assert min(sizes([3, 50, 2, 2, 60, 1, 9], 5)) > 0
