#!/usr/bin/env python3
"""One worker of the benchmark of training steps: layers that sleep, as if a GPU computed (steps.py).

Usage: step_worker.py byteps|gloo RANK SIZE ADDRESS PORT INTERFACE STEPS MODEL

Each line of its input is a round: "go" trains with the optimizer's hooks (gloo: torch's DistributedDataParallel),
"go crossed" with the cross barrier, "go ddp" with DistributedDataParallel over the backend byteps, "compute" alone.
A round is steps.WARM steps that are not counted, then STEPS; with the cross barrier it ends as it began, amid a step.
Each gradient is 1, so that the weights tell whether all went well. Prints as push_pull_worker.c does.
"""

import os
import sys
import time

import steps
import torch
from torch import nn

RATE = 2.0**-10  # exact, for many steps


class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, forward_s, backward_s, *weights):
        time.sleep(forward_s)
        ctx.backward_s, ctx.counts = backward_s, [weight.numel() for weight in weights]
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.backward_s)
        return (gradient, None, None, *(torch.ones(count) for count in ctx.counts))


class Layer(nn.Module):
    def __init__(self, elements, share):
        super().__init__()
        for index, count in enumerate(elements):
            self.register_parameter(f"weight{index}", nn.Parameter(torch.zeros(count)))
        self.seconds = (steps.FORWARD_S * share, steps.BACKWARD_S * share)

    def forward(self, value):
        return Sleep.apply(value, *self.seconds, *self.parameters())


class Trained:
    """A model and its optimizer. `wrapped` is what is called: the model, or what DDP makes of it."""

    def __init__(self, layers, wrap=lambda model: model, distribute=lambda model, optimizer: optimizer):
        self.model = nn.Sequential(*(Layer(*layer) for layer in layers))
        self.optimizer = distribute(self.model, torch.optim.SGD(self.model.parameters(), lr=RATE, foreach=False))
        self.wrapped = wrap(self.model)
        self.value = torch.zeros(1, requires_grad=True)
        self.done = 0

    def step(self):
        self.optimizer.zero_grad()
        self.wrapped(self.value).sum().backward()
        self.optimizer.step()
        self.done += 1

    def check(self):
        """After the round: also waits for what crosses steps."""
        wanted = -RATE * self.done
        for name, weight in self.model.state_dict().items():
            if not bool((weight == wanted).all()):
                raise AssertionError(f"{name} is {weight[:3]}... after {self.done} steps, which should be {wanted}")


class Byteps:
    def __init__(self, layers, place):
        import byteps.torch as bps
        from byteps.torch.cross_barrier import CrossBarrier

        bps.init()
        torch.distributed.init_process_group("byteps", rank=int(place[0]), world_size=int(place[1]))
        self.barrier, self.close = torch.distributed.barrier, torch.distributed.destroy_process_group

        def distributed(model, optimizer):
            return bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

        def crossed(model, optimizer):
            return CrossBarrier(model, optimizer, named_parameters=model.named_parameters())

        self.trained = {
            "go": Trained(layers, distribute=distributed),
            "go crossed": Trained(layers, distribute=crossed),
            "go ddp": Trained(layers, wrap=nn.parallel.DistributedDataParallel),
        }


class Gloo:
    def __init__(self, layers, place):
        os.environ.update(MASTER_ADDR=place[2], MASTER_PORT=place[3], GLOO_SOCKET_IFNAME=place[4])
        torch.distributed.init_process_group("gloo", rank=int(place[0]), world_size=int(place[1]))
        self.barrier, self.close = torch.distributed.barrier, torch.distributed.destroy_process_group
        self.trained = {"go": Trained(layers, wrap=nn.parallel.DistributedDataParallel)}


def main():
    kind, place, count, model = sys.argv[1], sys.argv[2:7], int(sys.argv[7]), sys.argv[8]
    torch.set_num_threads(1)
    layers = steps.MODELS[model]()
    job = {"byteps": Byteps, "gloo": Gloo}[kind](layers, place)
    trained = {**job.trained, "compute": Trained(layers)}
    print("ready", flush=True)
    for line in sys.stdin:
        one = trained[line.strip()]
        job.barrier()
        for _ in range(steps.WARM):
            one.step()
        cpu, start = time.process_time(), time.monotonic()
        for _ in range(count):
            one.step()
        end, cpu = time.monotonic(), time.process_time() - cpu
        one.check()
        print(f"{start:.9f} {end:.9f} {end:.9f} {cpu:.9f}", flush=True)
    job.close()


if __name__ == "__main__":
    main()
