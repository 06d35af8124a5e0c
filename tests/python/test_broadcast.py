"""broadcast_parameters, broadcast_optimizer_state, broadcast_object: afterwards all ranks have what the root had."""

import collections
import copy

import numpy as np
import pytest
import torch
from torch import nn

import byteps.torch as bps


def noisy_model(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


# ---- parameters


def every_form():
    rank, size = bps.rank(), bps.size()
    root = size - 1
    wanted = noisy_model(root).state_dict()
    for form in ("state_dict", "named", "named_list", "parameters", "tensors"):
        model = noisy_model(rank)
        model(torch.ones(2, 3) * (rank + 1))  # running means differ, too
        params = {
            "state_dict": lambda model=model: model.state_dict(),
            "named": lambda model=model: model.named_parameters(),
            "named_list": lambda model=model: list(model.named_parameters()),
            "parameters": lambda model=model: model.parameters(),
            "tensors": lambda model=model: list(model.parameters()),
        }[form]()
        bps.broadcast_parameters(params, root_rank=root)
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, wanted[name]), (form, name)
            assert parameter.requires_grad and parameter.is_leaf
        if form == "state_dict":
            reference = noisy_model(root)
            reference(torch.ones(2, 3) * (root + 1))
            for name, value in model.state_dict().items():
                assert torch.equal(value, reference.state_dict()[name]), name
    bps.broadcast_parameters({}, 0)
    bps.broadcast_parameters([], 0)


def test_parameters_are_taken_in_every_form(job):
    job.run(every_form)


def every_dtype():
    rank = bps.rank()
    dtypes = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16]
    dtypes += [torch.int32, torch.int64, torch.bool, torch.complex64, torch.complex128]
    shapes = [(), (0,), (5,), (2, 3)]
    tensors = {
        f"{dtype}.{shape}": torch.full(shape, (rank + 1) % 2, dtype=dtype) for dtype in dtypes for shape in shapes
    }
    tensors["nan"] = torch.full((3,), float("nan") if rank else 1.0)
    tensors["strided"] = torch.full((4, 6), float(rank))[:, ::2]
    tensors["nothing"] = None
    bps.broadcast_parameters(tensors, root_rank=0, prefix="Any.")
    for dtype in dtypes:
        for shape in shapes:
            assert torch.equal(tensors[f"{dtype}.{shape}"], torch.full(shape, 1, dtype=dtype)), (dtype, shape)
    assert torch.equal(tensors["nan"], torch.ones(3))
    assert torch.equal(tensors["strided"], torch.zeros(4, 3))


def test_buffers_of_every_dtype_are_broadcast_also_over_nan(job2):
    job2.run(every_dtype)


def other_parameters():
    rank = bps.rank()
    layers = {"first.weight": torch.ones(2, 2), "second.weight": torch.ones(3)}
    if rank == 1:
        layers["second.weight"] = torch.ones(4)
        layers["third.weight"] = torch.ones(1)
    bps.broadcast_parameters(layers, root_rank=0)


def test_ranks_with_other_parameters_all_raise_and_say_which(job3):
    for rank, failure in enumerate(job3.failures(other_parameters)):
        assert "ValueError" in failure.bases
        assert "differ on rank 1 from those of root rank 0" in failure.text
        if rank == 1:
            assert "third.weight" in failure.text and "second.weight: float32[3]" in failure.text
    job3.run(every_form)  # the job goes on


def test_what_is_no_parameter_is_refused(alone):
    for wrong in (nn.Linear(1, 1), "weights", torch.ones(1), 3):
        with pytest.raises(ValueError, match="invalid params of type"):
            bps.broadcast_parameters(wrong, 0)
    with pytest.raises(ValueError, match="'extra' is a dict"):
        bps.broadcast_parameters({"extra": {}}, 0)
    with pytest.raises(ValueError, match="duplicates: w"):
        bps.broadcast_parameters([("w", torch.ones(1)), ("w", torch.ones(1))], 0)
    for name, why in (("a\0b", "NUL"), ("w\udc80", "lone surrogate")):
        with pytest.raises(ValueError, match=why):
            bps.broadcast_parameters({name: torch.ones(1)}, 0)
    with pytest.raises(ValueError, match="share one place in memory"):
        bps.broadcast_parameters({"expanded": torch.ones(1).expand(3)}, 0)
    for root in (1, -1, None, True, False, 0.0, "0"):
        with pytest.raises(ValueError, match="root_rank"):
            bps.broadcast_parameters({}, root)
        with pytest.raises(ValueError, match="root_rank"):
            bps.broadcast_object(1, root)
    assert bps.broadcast_object("numpy's", np.int64(0)) == "numpy's"
    bps.broadcast_parameters({"a": torch.ones(1), 3: torch.ones(1)}, 0)


# ---- optimizer state


def make_optimizer(kind, parameters, rate):
    return {
        "sgd": lambda: torch.optim.SGD(parameters, lr=rate, momentum=0.9),
        "plain_sgd": lambda: torch.optim.SGD(parameters, lr=rate),
        "adam": lambda: torch.optim.Adam(parameters, lr=rate, betas=(0.8, 0.9), amsgrad=True),
        "adam_tensor_rate": lambda: torch.optim.Adam(parameters, lr=torch.tensor(rate), foreach=False),
        "rmsprop": lambda: torch.optim.RMSprop(parameters, lr=rate, centered=True, momentum=0.1),
        "adagrad": lambda: torch.optim.Adagrad(parameters, lr=rate),
    }[kind]()


def optimizer_state(kind, steps_of_root, steps_of_others):
    """Root 1 has trained; the others have not, or for longer. Afterwards all train alike."""
    model = noisy_model(5)
    optimizer = make_optimizer(kind, model.parameters(), 0.1 if bps.rank() == 1 else 0.7)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "note": {"deep": [None, True, "text"]}})
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    inputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))

    def step():
        optimizer.zero_grad()
        model(inputs).square().sum().backward()
        optimizer.step()

    for _ in range(steps_of_root if bps.rank() == 1 else steps_of_others):
        step()
    if bps.rank() == 1:
        scheduler.step()
        optimizer.param_groups[1]["note"]["deep"][1] = False
    before = copy.deepcopy(model.state_dict())
    rate = optimizer.param_groups[0]["lr"]
    bps.broadcast_optimizer_state(optimizer, root_rank=1)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())  # no step was made
    if isinstance(rate, torch.Tensor):
        assert optimizer.param_groups[0]["lr"] is rate  # filled in place
    bps.broadcast_parameters(model.state_dict(), root_rank=1)
    state = copy.deepcopy(optimizer.state_dict())
    step()
    return state, copy.deepcopy(model.state_dict())


def assert_equal(one, other):
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for a, b in zip(one, other):
            assert_equal(a, b)
    else:
        assert one == other


@pytest.mark.parametrize("kind", ["sgd", "plain_sgd", "adam", "adam_tensor_rate", "rmsprop", "adagrad"])
def test_optimizer_state_is_the_roots_whatever_the_others_had(job2, kind):
    for steps_of_root, steps_of_others in ((3, 0), (0, 2), (2, 1)):
        (state0, model0), (state1, model1) = job2.run(optimizer_state, kind, steps_of_root, steps_of_others)
        assert_equal(state0, state1)
        assert_equal(model0, model1)
        assert float(state0["param_groups"][0]["lr"]) == pytest.approx(0.05)
        assert state0["param_groups"][1]["note"] == {"deep": [None, False, "text"]}


def shared_option():
    rate = torch.tensor(0.5)
    optimizer = torch.optim.Adam([nn.Parameter(torch.ones(2))], lr=rate, foreach=False)
    optimizer.param_groups[0]["initial_lr"] = rate if bps.rank() == 1 else torch.tensor(0.7)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
    group = optimizer.param_groups[0]
    return float(group["lr"]), float(group["initial_lr"])


def test_options_that_share_a_tensor_on_one_rank_only_get_the_roots_values(job2):
    assert job2.run(shared_option) == [(0.5, pytest.approx(0.7))] * 2


def wrapped_optimizer_state():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (1 + bps.rank()))
    optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
    assert not optimizer.state and optimizer.param_groups[0]["lr"] == 0.1
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert len(optimizer.state) == 2


def test_state_of_a_distributed_optimizer_is_broadcast_before_the_first_step(job2):
    job2.run(wrapped_optimizer_state)


def other_optimizers():
    shapes = [2, 3] if bps.rank() == 0 else [2]
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(n)) for n in shapes], lr=0.1)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)


def third_arguments():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (1 + bps.rank()), momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    for options in (
        lambda: bps.broadcast_optimizer_state(optimizer, 0, model),
        lambda: bps.broadcast_optimizer_state(optimizer, 0, None),
        lambda: bps.broadcast_optimizer_state(optimizer, 0, "Mine."),
        lambda: bps.broadcast_optimizer_state(optimizer, root_rank=0, prefix="Mine."),
        lambda: bps.broadcast_optimizer_state(optimizer, root_rank=0, model=model),
    ):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 + bps.rank())
        optimizer.step()
        options()
        assert optimizer.param_groups[0]["lr"] == 0.1
    with pytest.raises(TypeError, match="model= or prefix="):
        bps.broadcast_optimizer_state(optimizer, 0, model.state_dict())
    names = [key for key in sent_names() if "optimizer." in key]
    assert names and all(name.startswith(("byteps.Mine.", "byteps.Parameter.")) for name in names)


def sent_names():
    """Names of exchanges from now on are those of before: the last call's, by its prefix."""
    from byteps.torch import exchange

    seen = []
    real = exchange._submit

    def noting(entry, call):
        seen.append(call.name.decode())
        return real(entry, call)

    exchange._submit = noting
    try:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        bps.broadcast_optimizer_state(optimizer, 0, model)
        bps.broadcast_optimizer_state(optimizer, 0, "Mine.")
    finally:
        exchange._submit = real
    return seen


def test_the_third_argument_is_horovods_model_or_the_originals_prefix(job2):
    job2.run(third_arguments)


def test_optimizers_that_differ_raise_on_all_ranks(job2):
    for failure in job2.failures(other_optimizers):
        assert "ValueError" in failure.bases and "the optimizers' parameters differ on rank 1" in failure.text


def test_lbfgs_state_is_refused(alone):
    with pytest.raises(ValueError, match="LBFGS"):
        bps.broadcast_optimizer_state(torch.optim.LBFGS([nn.Parameter(torch.ones(1))]), 0)


# ---- objects

Point = collections.namedtuple("Point", "x y")


def objects():
    rank, size = bps.rank(), bps.size()
    for root in range(size):
        for payload in (None, 1, "x" * 100_000, [], {"a": [1, (2, 3)]}, Point(1, 2), torch.ones(3), 2**200):
            mine = payload if rank == root else "something else"
            got = bps.broadcast_object(mine, root)
            if isinstance(payload, torch.Tensor):
                assert torch.equal(got, payload)
            else:
                assert got == payload
        for length in (5, 50_000, 0, 7):  # the same type and name, other sizes
            assert bps.broadcast_object("y" * length if rank == root else None, root, name="text") == "y" * length
    offset = 10
    function = bps.broadcast_object((lambda x: x + offset) if rank == 0 else None)
    assert function(1) == 11


def test_objects_of_any_size_are_broadcast_again_and_again(job):
    job.run(objects)


def unpicklable():
    bps.broadcast_object((n for n in range(3)) if bps.rank() == 0 else None, root_rank=0)


def test_an_object_that_cannot_be_pickled_raises_on_all_ranks(job2):
    root, other = job2.failures(unpicklable)
    assert root.kind == "TypeError" and "generator" in root.text
    assert other.kind == "BytePSError" and "root rank 0 could not pickle" in other.text and "generator" in other.text
    job2.run(objects)


def test_alone_a_broadcast_changes_nothing(alone):
    every_form()
    every_dtype()
    objects()
