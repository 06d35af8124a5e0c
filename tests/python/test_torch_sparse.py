"""Sparse gradients, and what Horovod's DistributedOptimizer takes: the same training as in one process."""

import pytest
import torch
from test_optimizer import assert_same, batches, make_model, my_share
from torch import nn

import byteps.torch as hvd
from byteps.torch.parallel import DistributedDataParallel

WORDS = 7


class Text(nn.Module):
    """Words to classes; `rare` is used on some ranks only."""

    def __init__(self, sparse):
        super().__init__()
        torch.manual_seed(4)
        self.words = nn.Embedding(WORDS, 3, sparse=sparse)
        self.rare = nn.Embedding(WORDS, 3, sparse=sparse)
        self.out = nn.Linear(3, 2)
        self.double()

    def forward(self, words, with_rare):
        found = self.words(words).mean(1)
        return self.out(found + self.rare(words).sum(1) if with_rare else found)


def lines(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, WORDS, (6, 4), generator=generator), torch.randint(0, 2, (6,), generator=generator)


def train_text(way, sparse, kind):
    """`sparse` by rank: whether its embeddings make sparse gradients. The last rank never uses `rare`."""
    size, rank = hvd.size(), hvd.rank()
    make = {
        "sgd": lambda ps: torch.optim.SGD(ps, lr=0.3),
        "adagrad": lambda ps: torch.optim.Adagrad(ps, lr=0.1),
    }[kind]
    reference, model = Text(False), Text(sparse[rank])
    alone = make(reference.parameters())
    if way == "ddp":
        wrapped = DistributedDataParallel(model)
        optimizer = make(model.parameters())
    else:
        wrapped = model
        optimizer = hvd.DistributedOptimizer(
            make(model.parameters()), model.named_parameters(), sparse_as_dense=way == "dense"
        )
    for step in range(4):
        words, labels = lines(step)
        alone.zero_grad()
        optimizer.zero_grad()
        for r in range(size):
            with_rare = r < size - 1 and step % 2 == 0
            loss = nn.functional.cross_entropy(reference(words[r::size], with_rare), labels[r::size])
            (loss / size).backward()
            if r == rank:
                nn.functional.cross_entropy(wrapped(words[r::size], with_rare), labels[r::size]).backward()
        alone.step()
        optimizer.step()
        is_sparse = model.words.weight.grad.layout == torch.sparse_coo
        assert is_sparse == all(sparse)
        if model.rare.weight.grad is not None:  # the last rank's comes from the others
            assert (model.rare.weight.grad.layout == torch.sparse_coo) == all(sparse)
        assert (model.rare.weight.grad is None) == (size == 1 or step % 2 == 1)
    assert_same(model, reference)


@pytest.mark.parametrize("way", ["sparse", "dense", "ddp"])
def test_embeddings_learn_as_in_one_process(job2, way):
    job2.run(train_text, way, [True, True], "sgd")
    if way == "sparse":
        job2.run(train_text, way, [True, True], "adagrad")


def test_gradients_that_are_sparse_on_some_ranks_only_travel_dense(job3):
    job3.run(train_text, "sparse", [True, False, True], "sgd")
    job3.run(train_text, "sparse", [True, True, True], "sgd")


def sparse_adam():
    """It takes nothing but sparse gradients."""
    size, rank = hvd.size(), hvd.rank()
    reference, model = nn.Embedding(WORDS, 3, sparse=True).double(), nn.Embedding(WORDS, 3, sparse=True).double()
    hvd.broadcast_parameters(reference.state_dict())
    model.load_state_dict(reference.state_dict())
    alone = torch.optim.SparseAdam(reference.parameters(), lr=0.1)
    mine = torch.optim.SparseAdam(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(mine, model.named_parameters(), sparse_as_dense=True)
    for step in range(3):
        words, _ = lines(step)
        alone.zero_grad()
        optimizer.zero_grad()
        for r in range(size):
            (reference(words[r::size]).sin().sum() / size).backward()
        model(words[rank::size]).sin().sum().backward()
        alone.step()
        optimizer.step()
        assert model.weight.grad.layout == torch.sparse_coo
    assert_same(model, reference)


@pytest.mark.host(reason="a played GPU changes no sparse tensor in place, as torch does with two gradients")
def test_a_sparse_gradient_that_travels_dense_reaches_the_optimizer_sparse(job2, alone):
    job2.run(sparse_adam)
    sparse_adam()


def sum_of_other_sizes(sizes):
    """Each rank's last row."""
    rows = sizes[hvd.rank()]
    tensor = torch.sparse_coo_tensor([[rows - 1]], torch.ones(1, 2), (rows, 2))
    return hvd.allreduce(tensor, average=False, name="of other sizes").to_dense()


def test_sparse_tensors_whose_sizes_differ_between_ranks_are_refused_on_all(job2):
    for failure in job2.failures(sum_of_other_sizes, [4, 100000]):
        assert failure.kind == "MismatchError" and "worker 0 (4,), worker 1 (100000,)" in failure.text, failure
    for total in job2.run(sum_of_other_sizes, [4, 4]):
        assert total[3].tolist() == [2.0, 2.0]


def combine(**options):
    reference, model = make_model(), make_model()
    alone = torch.optim.SGD(reference.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **options)
    for inputs, labels in batches(2):
        for trained, its_optimizer, x, y in (
            (reference, alone, inputs, labels),
            (model, optimizer, my_share(inputs), my_share(labels)),
        ):
            its_optimizer.zero_grad()
            loss = nn.functional.cross_entropy(trained(x), y)
            (loss * hvd.size() if trained is reference and options.get("op") == hvd.Sum else loss).backward()
            its_optimizer.step()
    assert_same(model, reference)


def test_what_horovods_optimizer_takes_ours_takes(job2):
    job2.run(combine, op=hvd.Sum)
    job2.run(combine, gradient_predivide_factor=8.0, num_groups=2)
    job2.run(combine, op=hvd.Average, groups=[[torch.zeros(1)]])


def test_what_cannot_be_is_refused(alone):
    parameter = nn.Parameter(torch.zeros(1))
    for options, why in (
        ({"op": hvd.Min}, "Average or Sum"),
        ({"op": hvd.Adasum}, "not supported: use"),
        ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "op=Average only"),
        ({"groups": -1}, "number of groups"),
        ({"groups": [torch.zeros(1)]}, "list of lists"),
    ):
        with pytest.raises(ValueError, match=why):
            hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.1), **options)
    named = [("first", parameter)]
    other = nn.Parameter(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"not among them. By group, index and shape: 0.1 \[2, 3\]"):
        hvd.DistributedOptimizer(torch.optim.SGD([parameter, other], lr=0.1), named)
    hvd.PartialDistributedOptimizer(torch.optim.SGD([parameter, other], lr=0.1), named, local_layers=[other])
    with pytest.raises(ValueError, match="modules or parameters"):
        hvd.PartialDistributedOptimizer(torch.optim.SGD([parameter], lr=0.1), local_layers=["head"])


def partly(scale):
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
    hvd.broadcast_parameters(model.state_dict())
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = hvd.PartialDistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), local_layers=model[1], scale_local_gradients=scale
    )
    x = torch.full((1, 2), 1.0 + hvd.rank())
    model(x).sum().backward()
    optimizer.step()
    own = (x @ before[0].t()) / (hvd.size() if scale else 1)
    assert torch.allclose(model[1].weight, before[1] - own)
    mean = (hvd.size() + 1) / 2
    assert torch.allclose(model[0].weight, before[0] - before[1].t() * mean)


def test_local_layers_learn_from_their_own_ranks_data(job2):
    job2.run(partly, True)
    job2.run(partly, False)


def average_without_more_inputs():
    average = None
    if hvd.rank() < 2:
        one = torch.sparse_coo_tensor([[0, 1 + hvd.rank()]], torch.tensor([3.0, 3.0]), (3,))
        average = hvd.allreduce(one).to_dense().tolist()
    hvd.join()
    return average


def test_a_rank_without_more_inputs_counts_in_a_sparse_average(job3):
    assert job3.run(average_without_more_inputs) == [[2, 1, 1], [2, 1, 1], None]
