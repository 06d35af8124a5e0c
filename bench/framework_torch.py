"""Jobs of framework_worker.py with torch: ours, torch's DDP, Horovod's."""

from __future__ import annotations

import os
import time

import horovod_place
from framework_model import SMALL_COUNT, SMALL_ELEMENTS, first_weights


class Torch:
    """byteps.torch's DistributedOptimizer; with `crossed` the cross barrier."""

    def __init__(self, crossed=False):
        import torch

        import byteps.torch as bps

        self.prepare(torch, bps, crossed)

    def prepare(self, torch, bps, crossed=False):
        torch.set_num_threads(1)
        bps.init()
        self.torch, self.bps, self.rank = torch, bps, bps.rank()
        self.alone, self.alone_optimizer = self.made()
        self.model, optimizer = self.made()
        self.crossed = crossed
        if crossed:
            from byteps.torch.cross_barrier import CrossBarrier

            self.optimizer = CrossBarrier(self.model, optimizer, named_parameters=self.model.named_parameters())
        else:
            self.optimizer = self.distributed(optimizer)
        self.gradients = [torch.zeros_like(p) for p in self.model.parameters()]
        self.small_tensors = [torch.ones(SMALL_ELEMENTS) for _ in range(SMALL_COUNT)]
        self.one = torch.zeros(1)

    def distributed(self, optimizer):
        return self.bps.DistributedOptimizer(optimizer, named_parameters=self.model.named_parameters())

    def made(self):
        torch, layers = self.torch, []
        for weights, bias in first_weights():
            linear = torch.nn.Linear(*weights.shape)
            linear.weight.data.copy_(torch.from_numpy(weights.T.copy()))
            linear.bias.data.copy_(torch.from_numpy(bias))
            layers += [linear, torch.nn.ReLU()]
        model = torch.nn.Sequential(*layers[:-1])
        return model, torch.optim.SGD(model.parameters(), lr=0.01)

    def train(self, model, optimizer, images, labels):
        torch = self.torch
        optimizer.zero_grad()
        outputs = model(torch.from_numpy(images))
        torch.nn.functional.cross_entropy(outputs, torch.from_numpy(labels).long()).backward()
        optimizer.step()

    def step(self, images, labels):
        self.train(self.model, self.optimizer, images, labels)

    def compute(self, images, labels):
        self.train(self.alone, self.alone_optimizer, images, labels)

    def start(self, prefix, tensors):
        return [
            self.bps.push_pull_async_inplace(tensor, name=f"{prefix}.{place}", priority=-place)
            for place, tensor in reversed(list(enumerate(tensors)))
        ]

    def wait(self, handles):
        for handle in handles:
            self.bps.synchronize(handle)

    def communicate(self):
        self.wait(self.start("alone", self.gradients))

    def small(self):
        handles = self.start("small", self.small_tensors)
        submitted = time.monotonic()
        self.wait(handles)
        return submitted

    def finish(self):
        if self.crossed:
            self.optimizer.synchronize()

    def barrier(self):
        self.bps.push_pull_inplace(self.one, name="barrier")

    def close(self):
        self.bps.shutdown()


class TorchDdp(Torch):
    """torch's DistributedDataParallel over a backend of torch.distributed: gloo or byteps."""

    def __init__(self, backend, place):
        import torch
        import torch.distributed as dist

        if backend == "byteps":
            import byteps.torch  # noqa: F401 - where the package is not installed, this makes the backend known
        else:
            os.environ.update(MASTER_ADDR=place[2], MASTER_PORT=place[3], GLOO_SOCKET_IFNAME=place[4])
        torch.set_num_threads(1)
        dist.init_process_group(backend, rank=int(place[0]), world_size=int(place[1]))
        self.torch, self.dist, self.rank, self.crossed = torch, dist, int(place[0]), False
        self.alone, self.alone_optimizer = self.made()
        model, self.optimizer = self.made()
        self.model = torch.nn.parallel.DistributedDataParallel(model)
        self.gradients = [torch.zeros_like(p) for p in model.parameters()]
        self.small_tensors = [torch.ones(SMALL_ELEMENTS) for _ in range(SMALL_COUNT)]

    def start(self, prefix, tensors):
        return [self.dist.all_reduce(tensor, async_op=True) for tensor in reversed(tensors)]

    def wait(self, handles):
        for handle in handles:
            handle.wait()

    def barrier(self):
        self.dist.barrier()

    def close(self):
        self.dist.destroy_process_group()


class Horovod(Torch):
    """Horovod's DistributedOptimizer over its gloo."""

    def __init__(self, place):
        hvd = horovod_place.joined(place)
        import torch

        self.prepare(torch, hvd)

    def start(self, prefix, tensors):
        return [
            self.bps.allreduce_async_(tensor, name=f"{prefix}.{place}", op=self.bps.Sum)
            for place, tensor in reversed(list(enumerate(tensors)))
        ]

    def barrier(self):
        self.bps.barrier()
