"""One worker of the training benchmark: an MLP on scikit-learn's digits, with byteps.torch or torch's DDP over gloo.

Usage: train_worker.py byteps|gloo RANK SIZE ADDRESS PORT INTERFACE STEPS LAYERS   (LAYERS: 64-3500-10)

Each line of its input is a round of STEPS steps: "go" trains; "go crossed" trains another model of the same shape with
byteps.torch.cross_barrier, until its parameters are up to date; "compute" does the same on each worker alone, without
summing anything; "communicate" sums all gradients without computing any. Prints as push_pull_worker.c does.
"""

import copy
import os
import sys
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

BATCH = 32


class OverByteps:
    def __init__(self, model):
        import byteps.torch as bps
        from byteps.torch.cross_barrier import CrossBarrier

        bps.init()
        self._bps, self._model, self.rank = bps, model, bps.rank()
        bps.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self._optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        self._crossed = copy.deepcopy(model)
        optimizer = torch.optim.SGD(self._crossed.parameters(), lr=0.01)
        self._crossing = CrossBarrier(self._crossed, optimizer, named_parameters=self._crossed.named_parameters())
        self._gradients = [(name, torch.zeros_like(p)) for name, p in model.named_parameters()]
        self._one = torch.zeros(1)

    def step(self, inputs, labels):
        self._optimizer.zero_grad()
        F.cross_entropy(self._model(inputs), labels).backward()
        self._optimizer.step()

    def crossed_step(self, inputs, labels):
        self._crossing.zero_grad()
        F.cross_entropy(self._crossed(inputs), labels).backward()
        self._crossing.step()

    def finish_crossing(self):
        self._crossing.synchronize()

    def communicate(self):
        handles = [
            self._bps.push_pull_async_inplace(gradient, name=f"alone.{name}", priority=-place)
            for place, (name, gradient) in reversed(list(enumerate(self._gradients)))
        ]
        for handle in handles:
            self._bps.synchronize(handle)

    def barrier(self):
        self._bps.push_pull_inplace(self._one, name="barrier")

    def close(self):
        self._bps.shutdown()


class OverGloo:
    def __init__(self, model, place):
        import torch.distributed as dist

        self.rank, size = int(place[0]), int(place[1])
        os.environ.update(MASTER_ADDR=place[2], MASTER_PORT=place[3], GLOO_SOCKET_IFNAME=place[4])
        dist.init_process_group("gloo", rank=self.rank, world_size=size)
        self._dist = dist
        self._model = nn.parallel.DistributedDataParallel(model)
        self._optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self._gradients = [torch.zeros_like(p) for p in model.parameters()]

    def step(self, inputs, labels):
        self._optimizer.zero_grad()
        F.cross_entropy(self._model(inputs), labels).backward()
        self._optimizer.step()

    def communicate(self):
        for work in [self._dist.all_reduce(gradient, async_op=True) for gradient in reversed(self._gradients)]:
            work.wait()

    def barrier(self):
        self._dist.barrier()

    def close(self):
        self._dist.destroy_process_group()


def make_model(layers):
    torch.manual_seed(1)
    found = []
    for inputs, outputs in zip(layers, layers[1:]):
        found += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*found[:-1])


def main():
    kind, place, steps = sys.argv[1], sys.argv[2:7], int(sys.argv[7])
    layers = [int(word) for word in sys.argv[8].split("-")]
    torch.set_num_threads(1)
    alone = make_model(layers)  # its steps are the computation and nothing else
    alone_optimizer = torch.optim.SGD(alone.parameters(), lr=0.01)
    job = OverByteps(make_model(layers)) if kind == "byteps" else OverGloo(make_model(layers), place)
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    random = torch.Generator().manual_seed(job.rank)
    print("ready", flush=True)
    for line in sys.stdin:
        job.barrier()
        cpu, start = time.process_time(), time.monotonic()
        for _ in range(steps):
            chosen = torch.randint(len(images), (BATCH,), generator=random)
            if line.strip() == "communicate":
                job.communicate()
            elif line.strip() == "compute":
                alone_optimizer.zero_grad()
                F.cross_entropy(alone(images[chosen]), labels[chosen]).backward()
                alone_optimizer.step()
            elif line.strip() == "go crossed":
                job.crossed_step(images[chosen], labels[chosen])
            else:
                job.step(images[chosen], labels[chosen])
        if line.strip() == "go crossed":
            job.finish_crossing()
        end = time.monotonic()
        print(f"{start:.9f} {end:.9f} {end:.9f} {time.process_time() - cpu:.9f}", flush=True)
    job.close()


if __name__ == "__main__":
    main()
