"""What step_worker.py trains with torch: ours, torch's DistributedDataParallel and FSDP2 over gloo, Horovod's."""

from __future__ import annotations

import contextlib
import functools
import os
import time

import horovod_place
import steps
import torch
from torch import nn


class Sleep(torch.autograd.Function):
    """Each gradient is the one that comes in, 1 but for a GradScaler's, times `own`."""

    @staticmethod
    def forward(ctx, value, forward_s, backward_s, own, *weights):
        time.sleep(forward_s)
        ctx.backward_s, ctx.own, ctx.counts = backward_s, own, [weight.numel() for weight in weights]
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.backward_s)
        return (gradient, None, None, None, *(torch.full((count,), ctx.own * gradient.item()) for count in ctx.counts))


class Layer(nn.Module):
    own = 1.0  # of this rank's gradients

    def __init__(self, elements, share):
        super().__init__()
        for index, count in enumerate(elements):
            self.register_parameter(f"weight{index}", nn.Parameter(torch.zeros(count)))
        self.seconds = (steps.FORWARD_S * share, steps.BACKWARD_S * share)

    def forward(self, value):
        return Sleep.apply(value, *self.seconds, self.own, *self.parameters())


class Model(nn.Sequential):
    without = None  # the index of a layer that is left out

    def forward(self, value):
        for index, layer in enumerate(self):
            value = value if index == self.without else layer(value)
        return value


class Trained:
    """A model and its optimizer. wrap makes of the model what is called; distribute(model, optimizer, passes of a step)
    makes of an optimizer one of all ranks. place: rank and size, as text; none trains alone."""

    passes = 1  # of a step
    gradient = 1.0  # what the optimizer sees, of each weight
    tolerance = 0.0  # of a weight, as a share of it

    def __init__(
        self, layers, distribute=lambda model, optimizer, passes: optimizer, wrap=lambda model: model, place=(0, 1)
    ):
        self.model = Model(*(Layer(*layer) for layer in layers))
        for layer in self.model:
            layer.own = steps.weight_of(int(place[0]), int(place[1]))
        self.wrapped = wrap(self.model)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=steps.LEARNING_RATE, foreach=False)
        self.optimizer = distribute(self.model, optimizer, self.passes)
        self.value = torch.zeros(1, requires_grad=True)
        self.done, self.updating_s = 0, 0.0

    def step(self):
        self.optimizer.zero_grad()
        with self.kept_here():
            for _ in range(self.passes - 1):
                self.backward(self.loss())
        self.backward(self.loss())
        start = time.monotonic()
        self.update()
        self.updating_s += time.monotonic() - start
        self.done += 1

    def take_update_s(self):
        """What updates took since it was last asked for."""
        taken, self.updating_s = self.updating_s, 0.0
        return taken

    def loss(self):
        return self.wrapped(self.value).sum()

    def backward(self, loss):
        loss.backward()

    def update(self):
        self.optimizer.step()

    def kept_here(self):
        """For passes whose gradients do not travel yet. A distributed optimizer counts them itself."""
        return self.wrapped.no_sync() if hasattr(self.wrapped, "no_sync") else contextlib.nullcontext()

    def averaged(self):
        """For what is done with averaged gradients: within it they are, and step() does not wait for them again."""
        if not hasattr(self.optimizer, "synchronize"):
            return contextlib.nullcontext()
        self.optimizer.synchronize()
        return self.optimizer.skip_synchronize()

    def uses(self, layer):
        """How many steps have used a layer."""
        return self.done

    def check(self):
        """After the round: also waits for what crosses steps."""
        for name, weight in self.model.state_dict().items():
            wanted = -steps.LEARNING_RATE * self.gradient * self.uses(int(name.split(".")[0]))
            weight = weight.to_local() if hasattr(weight, "to_local") else weight
            is_right = (weight - wanted).abs().max() <= self.tolerance * abs(wanted)
            steps.check(name, weight[:3], bool(is_right), wanted)


class Clipped(Trained):
    """Their norm is cut to half of what it is."""

    gradient = 0.5
    tolerance = 1e-5  # torch adds 1e-6 to the norm

    def update(self):
        count = sum(parameter.numel() for parameter in self.model.parameters())
        with self.averaged():
            nn.utils.clip_grad_norm_(self.model.parameters(), self.gradient * count**0.5)
            self.optimizer.step()


class Scaled(Trained):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.scaler = torch.amp.GradScaler("cpu")

    def backward(self, loss):
        self.scaler.scale(loss).backward()

    def update(self):
        with self.averaged():
            self.scaler.unscale_(self.optimizer)
            self.scaler.step(self.optimizer)
        self.scaler.update()


class Accumulated(Trained):
    passes = steps.PASSES
    gradient = float(steps.PASSES)


class Unused(Trained):
    """Each step leaves out another layer, the same on all ranks."""

    def loss(self):
        self.model.without = self.done % len(self.model)
        return super().loss()

    def uses(self, layer):
        whole, more = divmod(self.done, len(self.model))
        return self.done - whole - (layer < more)


class Sharded(Trained):
    """FSDP2: each layer's weights, and its optimizer's state, are divided among the ranks."""

    def __init__(self, layers, place):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))

        def shard(model):
            for layer in (*model, model):
                fully_shard(layer, mesh=mesh)
            return model

        super().__init__(layers, wrap=shard, place=place)


def of_small_buckets(model):
    """DistributedDataParallel with a bucket for each layer of 4 MiB."""
    return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=4)


class Chosen(Trained):
    """By Compression.auto."""

    tolerance = 0.1  # what the fewest bits are off, with error feedback


KINDS_OF_STEP = {"": Trained, " clipped": Clipped, " scaled": Scaled, " accumulated": Accumulated, " unused": Unused}


def alone(layers):
    """By word: what one process does by itself."""
    return {f"compute{how}": functools.partial(kind, layers) for how, kind in KINDS_OF_STEP.items()}


class Byteps:
    def __init__(self, layers, place):
        import byteps.torch as bps
        from byteps.torch.cross_barrier import CrossBarrier

        torch.set_num_threads(1)
        bps.init()
        torch.distributed.init_process_group("byteps", rank=int(place[0]), world_size=int(place[1]))
        self.barrier, self.close = torch.distributed.barrier, torch.distributed.destroy_process_group

        def distributed(model, optimizer, passes):
            named = model.named_parameters()
            return bps.DistributedOptimizer(optimizer, named_parameters=named, backward_passes_per_step=passes)

        def chosen(model, optimizer, _):
            return bps.DistributedOptimizer(optimizer, model.named_parameters(), compression=bps.Compression.auto)

        def crossed(model, optimizer, _):
            return CrossBarrier(model, optimizer, named_parameters=model.named_parameters())

        self.makers = {
            **alone(layers),
            **{
                f"go{how}": functools.partial(kind, layers, distributed, place=place)
                for how, kind in KINDS_OF_STEP.items()
            },
            "go auto": lambda: Chosen(layers, chosen, place=place),
            "go crossed": lambda: Trained(layers, crossed, place=place),
            "go ddp": lambda: Trained(layers, wrap=nn.parallel.DistributedDataParallel, place=place),
            "go ddp4": lambda: Trained(layers, wrap=of_small_buckets, place=place),
            "go fsdp": lambda: Sharded(layers, place),
        }


class Gloo:
    def __init__(self, layers, place):
        torch.set_num_threads(1)
        os.environ.update(MASTER_ADDR=place[2], MASTER_PORT=place[3], GLOO_SOCKET_IFNAME=place[4])
        torch.distributed.init_process_group("gloo", rank=int(place[0]), world_size=int(place[1]))
        self.barrier, self.close = torch.distributed.barrier, torch.distributed.destroy_process_group

        def wrapped(kind):
            find = {"find_unused_parameters": kind is Unused}
            wrap = functools.partial(nn.parallel.DistributedDataParallel, **find)
            return kind(layers, wrap=wrap, place=place)

        self.makers = {f"go{how}": functools.partial(wrapped, kind) for how, kind in KINDS_OF_STEP.items()}
        self.makers["go ddp4"] = lambda: Trained(layers, wrap=of_small_buckets, place=place)
        self.makers["go fsdp"] = lambda: Sharded(layers, place)


class Horovod:
    """Its DistributedOptimizer over its gloo."""

    def __init__(self, layers, place):
        hvd = horovod_place.joined(place)
        torch.set_num_threads(1)
        hvd.init()
        self.barrier, self.close = hvd.barrier, hvd.shutdown

        def distributed(model, optimizer, passes):
            named = model.named_parameters()
            return hvd.DistributedOptimizer(optimizer, named_parameters=named, backward_passes_per_step=passes)

        self.makers = {**alone(layers), "go": lambda: Trained(layers, distributed, place=place)}


KINDS = {"byteps": Byteps, "gloo": Gloo, "horovod": Horovod}
