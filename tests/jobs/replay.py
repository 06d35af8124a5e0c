"""The training of digits_hash.py once more, in one process, with the sets of ranks that the servers have recorded
(byteps/recordings/absences.py): the hashes of the weights after each step, which those of the ranks that are left must
be, bit for bit.

    hashes = replay(workers=3, steps=200, absences=absences.read([folder]))

It adds in the order of ranks, as BYTEPS_DETERMINISTIC=1 does; of two, any order is that. Where the workers of a machine
sum first, `machines` has the ranks of each: these are added, and then the sums of the machines, in the order of their
lowest ranks."""

import torch

import digits_hash

PREFIX = "byteps.Gradient."  # of the names that DistributedOptimizer gives


def total_of(tensors):
    total = tensors[0].clone()
    for each in tensors[1:]:
        total += each
    return total


def average(gradients, absent, machines):
    """Of one tensor: `gradients` by rank, flat; `absent`: elements from, to, and who is not in these."""
    everybody = set(range(len(gradients)))
    mean = torch.empty_like(gradients[0])
    for first, last, without in [(0, len(mean), set()), *absent]:
        crews = [[gradients[rank][first:last] for rank in ranks if rank not in without] for ranks in machines]
        mean[first:last] = total_of([total_of(crew) for crew in crews if crew]) / len(everybody - without)
    return mean


def replay(workers, steps, absences, machines=None):
    machines = machines or [[rank] for rank in range(workers)]
    shards = [digits_hash.shard(rank, workers) for rank in range(workers)]
    model = digits_hash.make_model()
    optimizer = digits_hash.make_optimizer(model)
    hashes = []
    for step in range(steps):
        by_rank = []
        for x, y in shards:
            optimizer.zero_grad()
            digits_hash.compute_gradients(model, x, y, step)
            by_rank.append([parameter.grad.detach().clone().flatten() for parameter in model.parameters()])
        for number, (name, parameter) in enumerate(model.named_parameters()):
            gradients = [each[number] for each in by_rank]
            mean = average(gradients, absences.absent(PREFIX + name, step), machines)
            parameter.grad = mean.reshape(parameter.shape)
        optimizer.step()
        hashes.append(digits_hash.hash_of(model)[:32])
    return hashes
