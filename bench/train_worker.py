"""One worker of the training benchmark: an MLP on scikit-learn's digits, with byteps.torch or torch's DDP over gloo.

Usage: train_worker.py byteps|gloo RANK SIZE ADDRESS PORT INTERFACE STEPS LAYERS   (LAYERS: 64-3500-10)

Each line of its input is a round of STEPS steps, and each kind of round has a model of its own, of the same shape, from
when it is first asked for:
    go                     trains
    go crossed             with byteps.torch.cross_barrier, until the parameters are up to date
    go fp16, go int8, go int4:error_feedback, go powersgd, go auto
                           with this compression of gradients: byteps.torch's, or DDP's hook
    go ddp powersgd        with DDP's hook over the backend "byteps"
    compute                the same on each worker alone, without summing anything
    communicate            sums all gradients without computing any
Prints as push_pull_worker.c does.
"""

import os
import sys
import time

import scenarios
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn import functional as F

BATCH = 32


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)


class Trained:
    """finish() is called after a round."""

    def __init__(self, model, optimizer, finish=lambda: None):
        self._model, self._optimizer, self.finish = model, optimizer, finish

    def step(self, inputs, labels):
        self._optimizer.zero_grad()
        F.cross_entropy(self._model(inputs), labels).backward()
        self._optimizer.step()


class Exchanged:
    """Steps that only send: start(name, gradient, place) and wait(what it returned) are of one gradient."""

    def __init__(self, model, start, wait):
        self._gradients = [(name, torch.zeros_like(p)) for name, p in model.named_parameters()]
        self._start, self._wait = start, wait

    def step(self, _inputs, _labels):
        places = reversed(list(enumerate(self._gradients)))
        for started in [self._start(name, gradient, place) for place, (name, gradient) in places]:
            self._wait(started)

    def finish(self):
        pass


def trained_by_ddp(model, how):
    """With its hook for a compression; "": without. PowerSGD's waits for sums within callbacks, which are on gloo's two
    threads: with several buckets it hangs there, so it has one."""
    buckets = {"bucket_cap_mb": 1024} if how == "powersgd" else {}
    ddp = nn.parallel.DistributedDataParallel(model, init_sync=False, **buckets)  # all ranks have made the same
    trained = Trained(ddp, sgd(model))
    if how == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if how == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, scenarios.POWERSGD_RANK, start_powerSGD_iter=2)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        for _ in range(state.start_powerSGD_iter):  # which it does not compress
            trained.step(torch.zeros(BATCH, model[0].in_features), torch.zeros(BATCH, dtype=torch.long))
    return trained


class OverByteps:
    def __init__(self, place):
        import byteps.torch as bps

        bps.init()
        self._bps, self._place, self.rank = bps, place, bps.rank()
        self._one = torch.zeros(1)

    def way(self, word, model):
        """What does the steps of such a round."""
        named, how = model.named_parameters(), word.removeprefix("go").strip()
        if word == "communicate":
            return self._exchanged(model)
        if how == "crossed":
            from byteps.torch.cross_barrier import CrossBarrier

            crossing = CrossBarrier(model, sgd(model), named_parameters=named)
            return Trained(model, crossing, crossing.synchronize)
        if how == "ddp powersgd":
            dist.init_process_group("byteps", rank=int(self._place[0]), world_size=int(self._place[1]))
            return trained_by_ddp(model, "powersgd")
        choices = self._bps.Compression
        compression = {
            "": choices.none,
            "fp16": choices.fp16,
            "int8": choices.int8,
            "int4:error_feedback": choices.int4(error_feedback=True),
            "auto": choices.auto,
            "powersgd": choices.powersgd(rank=scenarios.POWERSGD_RANK),
        }[how]
        return Trained(model, self._bps.DistributedOptimizer(sgd(model), named, compression=compression))

    def _exchanged(self, model):
        def start(name, gradient, place):
            return self._bps.push_pull_async_inplace(gradient, name=f"alone.{name}", priority=-place)

        return Exchanged(model, start, self._bps.synchronize)

    def barrier(self):
        self._bps.push_pull_inplace(self._one, name="barrier")

    def close(self):
        if dist.is_initialized():
            dist.destroy_process_group()
        self._bps.shutdown()


class OverGloo:
    def __init__(self, place):
        self.rank, size = int(place[0]), int(place[1])
        os.environ.update(MASTER_ADDR=place[2], MASTER_PORT=place[3], GLOO_SOCKET_IFNAME=place[4])
        dist.init_process_group("gloo", rank=self.rank, world_size=size)
        self.barrier, self.close = dist.barrier, dist.destroy_process_group

    def way(self, word, model):
        """What does the steps of such a round."""
        if word == "communicate":
            return Exchanged(model, lambda _, gradient, __: dist.all_reduce(gradient, async_op=True), dist.Work.wait)
        return trained_by_ddp(model, word.removeprefix("go").strip())


def make_model(layers):
    torch.manual_seed(1)
    found = []
    for inputs, outputs in zip(layers, layers[1:]):
        found += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*found[:-1])


def make_way(job, word, layers):
    model = make_model(layers)
    return Trained(model, sgd(model)) if word == "compute" else job.way(word, model)


def main():
    kind, place, steps = sys.argv[1], sys.argv[2:7], int(sys.argv[7])
    layers = [int(word) for word in sys.argv[8].split("-")]
    torch.set_num_threads(1)
    job = {"byteps": OverByteps, "gloo": OverGloo}[kind](place)
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    random = torch.Generator().manual_seed(job.rank)
    ways = {}
    print("ready", flush=True)
    for line in sys.stdin:
        word = line.strip()
        if word not in ways:
            ways[word] = make_way(job, word, layers)
        job.barrier()
        cpu, start = time.process_time(), time.monotonic()
        for _ in range(steps):
            chosen = torch.randint(len(images), (BATCH,), generator=random)
            ways[word].step(images[chosen], labels[chosen])
        ways[word].finish()
        end = time.monotonic()
        print(f"{start:.9f} {end:.9f} {end:.9f} {time.process_time() - cpu:.9f}", flush=True)
    job.close()


if __name__ == "__main__":
    main()
