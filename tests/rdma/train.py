"""A short training on handwritten digits, for test_training.py: batches come from a data loader that forks after the
job has moved tensors. Rank 0 prints the relative difference to the same training in one process, and the losses.

    train.py USER...        # a rank for each user (lab.py); torch, which takes long to import there, is imported once
"""

import copy
import ctypes
import importlib.util
import json
import os
import sys
import types
from pathlib import Path

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import byteps.torch as bps

STEPS = 20
BATCH = 64  # of all ranks together


def load():
    """scikit-learn's file, without importing it: that would take most of the test's time."""
    folder = Path(importlib.util.find_spec("sklearn").submodule_search_locations[0])
    table = torch.tensor(numpy.loadtxt(folder / "datasets/data/digits.csv.gz", delimiter=",", max_rows=STEPS * BATCH))
    return TensorDataset(table[:, :-1] / 16, table[:, -1].long())


def train(model, optimizer, batches):
    losses = []
    for inputs, labels in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def rank_as(user):
    """On that user's host from here on, with the right to read root's files."""
    PR_SET_SECUREBITS, NO_SETUID_FIXUP = 28, 4  # linux/prctl.h, linux/securebits.h: capabilities stay
    assert ctypes.CDLL(None).prctl(PR_SET_SECUREBITS, NO_SETUID_FIXUP, 0, 0, 0) == 0
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    bps.init()
    torch.set_num_threads(1)
    torch.manual_seed(bps.rank())
    digits = load()
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10)).double()
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    alone = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    mine = Subset(digits, range(bps.rank(), len(digits), bps.size()))
    losses = train(model, optimizer, DataLoader(mine, batch_size=BATCH // bps.size(), num_workers=1, timeout=60))
    losses = bps.push_pull(torch.tensor(losses), name="losses").tolist()
    if bps.rank() == 0:
        train(alone, torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9), DataLoader(digits, batch_size=BATCH))
        pairs = [(a.detach(), b.detach()) for a, b in zip(model.parameters(), alone.parameters())]
        difference = max(((a - b).norm() / b.norm()).item() for a, b in pairs)
        print(json.dumps({"difference": difference, "losses": losses}), flush=True)


def without_dynamo():
    """The first optimizer imports the compiler, which nothing here uses and takes as long as all of torch."""
    nothing = types.SimpleNamespace(disable=lambda function, *_, **__: function, graph_break=lambda: None)
    torch._dynamo = sys.modules["torch._dynamo"] = nothing


def main():
    without_dynamo()
    children = []
    for rank, user in enumerate(sys.argv[1:]):
        pid = os.fork()
        if pid == 0:
            os.environ["DMLC_WORKER_ID"] = str(rank)
            rank_as(int(user))
            return 0
        children.append(pid)
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children)


if __name__ == "__main__":
    sys.exit(main())
