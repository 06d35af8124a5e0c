"""byteps.misc.imagenet18: training in 16 bits with parameters in 32, and the example that does it."""

import contextlib
import re

import pytest
import torch
from cluster import launch
from torch import nn

import byteps.torch as bps
from byteps.misc import imagenet18


def model_of(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def copies_of(model):
    return [parameter.detach().float().requires_grad_() for parameter in model.parameters()]


def train(model, optimizer, scale, rows, dtype, steps=6):
    inputs = torch.linspace(-1, 1, 48).view(12, 4)[rows]
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(inputs.to(dtype)).float() - inputs.sum(1, keepdim=True)).square().mean()
        (loss * scale).backward()
        optimizer.step()


def half_against_whole():
    """How far the copies in 32 bits are from a training of one process in 32 bits, and the model from the copies."""
    alone = model_of(1)
    train(alone, torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9), 1.0, slice(None), torch.float32)
    model = model_of(1 if bps.rank() == 0 else 9).half()
    copies = copies_of(model)
    optimizer = imagenet18.DistributedOptimizer(
        torch.optim.SGD(copies, lr=0.1, momentum=0.9),
        half=True,
        model=model,
        fp16_params=list(model.parameters()),
        fp32_params=copies,
        loss_scale=128.0,
    )
    imagenet18.broadcast_parameters(model.state_dict(), root_rank=0)
    train(model, optimizer, 128.0, slice(bps.rank(), None, bps.size()), torch.float16)
    kept = [copy.clone() for copy in copies]
    scale = float("inf") if bps.rank() == 1 else 1.0
    train(model, optimizer, scale, slice(None), torch.float16, steps=1)
    assert all(torch.equal(a, b) for a, b in zip(kept, copies)), "no step with a gradient that is not finite"
    far = max((a - b).abs().max().item() for a, b in zip(copies, alone.parameters()))
    return far, max((a - b.half()).abs().max().item() for a, b in zip(model.parameters(), copies))


def test_half_a_model_learns_as_a_whole_one_in_one_process(job2):
    results = job2.run(half_against_whole)
    assert results[0] == results[1]
    assert results[0][0] < 5e-3 and results[0][1] == 0.0


def test_what_is_done_to_synchronized_gradients_is_what_the_step_sees(alone):
    model = model_of(0).half()
    copies = copies_of(model)
    optimizer = imagenet18.DistributedOptimizer(
        torch.optim.SGD(copies, lr=1.0),
        half=True,
        model=model,
        fp16_params=list(model.parameters()),
        fp32_params=copies,
        loss_scale=8.0,
    )

    def step(skip, clipped_norm):
        before = [copy.detach().clone() for copy in copies]
        optimizer.zero_grad()
        (model(torch.ones(2, 4).half()).float().sum() * 8.0).backward()
        if clipped_norm is not None:
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(copies, clipped_norm)
        with optimizer.skip_synchronize() if skip else contextlib.nullcontext():
            optimizer.step()
        return sum((a - b).square().sum() for a, b in zip(before, copies)).sqrt().item()

    for skip in (False, True):
        assert step(skip, 0.01) == pytest.approx(0.01, rel=1e-3)
    assert step(False, None) > 0.1


def test_wrong_arguments_are_refused_with_a_reason(alone):
    model = model_of(0)
    copies = copies_of(model)
    sgd = torch.optim.SGD(copies, lr=0.1)
    for options, why in (
        ({}, "needs fp16_params"),
        ({"fp16_params": list(model.parameters()), "fp32_params": copies[1:]}, "the same parameters"),
        ({"fp16_params": list(model.parameters()), "fp32_params": copies, "loss_scale": 0}, "loss_scale is 0"),
    ):
        with pytest.raises(ValueError, match=why):
            imagenet18.DistributedOptimizer(sgd, half=True, model=model, **options)
    whole = imagenet18.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    train(model, whole, 1.0, slice(None), torch.float32, steps=1)


@pytest.mark.long(reason="a whole training; the one above is of a small model")
def test_the_example_learns():
    output = launch("examples/torch/imagenet_half.py", imported=["torch"])
    assert float(re.search(r"accuracy=(\S+)", output).group(1)) >= 0.9, output
