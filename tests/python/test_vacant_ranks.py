"""A job goes on without a worker (BYTEPS_ON_WORKER_LOSS=continue): what layers make of sums is right for those that are
left, and nothing raises.

Each job of three loses a rank once, for all tests of its layer. What needs to have been there before is made before."""

import os
import signal
import time

import numpy as np
import pytest
from cluster import RUN_TIMEOUT_S, TENSORFLOW, Cluster

GOES_ON = {"BYTEPS_RECOVERY": "1", "BYTEPS_ON_WORKER_LOSS": "continue", "BYTEPS_FAILURE_TIMEOUT_MS": "3000"}


class Left:
    """The workers that are left."""

    def __init__(self, cluster, lost):
        self.cluster, self.lost = cluster, lost
        self.workers = [worker for worker in cluster.workers if worker.rank != lost]

    def begin(self, function, *args):
        for worker in self.workers:
            worker.tell(function, args, {})

    def outcomes(self):
        return [worker.receive(RUN_TIMEOUT_S + time.monotonic()) for worker in self.workers]

    def run(self, function, *args):
        self.begin(function, *args)
        outcomes = self.outcomes()
        for tag, value in outcomes:
            if tag == "error":
                raise value
        return [value for _, value in outcomes]


def end(cluster):
    cluster.broken = True  # one of its processes was killed


# ---- byteps.torch, without rank 0

kept = {}  # in a worker: what was made before the loss


def text_model(sparse):
    import torch

    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Embedding(9, 4, sparse=sparse), torch.nn.Flatten(), torch.nn.Linear(8, 2))


def words_of(rank, step):
    import torch

    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randint(9, (5, 2), generator=generator), torch.randint(2, (5,), generator=generator)


def normed_model():
    import torch

    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))


def train_normed(steps):
    import torch

    import byteps.torch as bps

    for _ in range(steps):
        kept["normed"](torch.randn(6, 3) + bps.rank()).sum().backward()


def before_the_loss():
    import torch
    from torch.nn.parallel import DistributedDataParallel as TorchDDP

    import byteps.torch as bps
    from byteps.torch.parallel import DistributedDataParallel

    torch.manual_seed(bps.rank())
    kept["text"] = text_model(True)
    kept["alone"] = text_model(False)
    kept["optimizer"] = bps.DistributedOptimizer(
        torch.optim.SGD(kept["text"].parameters(), lr=0.5), kept["text"].named_parameters()
    )
    kept["normed"] = DistributedDataParallel(normed_model())
    train_normed(2)
    bps.init_process_group()
    kept["hooked"] = TorchDDP(torch.nn.Linear(2, 1, bias=False))
    kept["plain"] = TorchDDP(torch.nn.Linear(2, 1, bias=False))
    kept["hooked"].register_comm_hook(bps.DDPHookState(), bps.ddp_comm_hook)
    bps.barrier()


def lost_amid_an_allgather():
    """Rank 0 says that it has two rows, and is killed before it gives them."""
    import torch

    import byteps.torch as bps
    from byteps._core import collectives, session
    from byteps.torch import moving

    tensor = torch.full((2, 1), float(bps.rank()))
    if bps.rank() > 0:
        return bps.allgather(tensor, name="amid").flatten().tolist()
    rows = moving.rows_of(tensor)[0]
    name = moving.wire_name(moving.title_of("allgather", "amid"), ()) + "/rows"
    collectives.run(session.job(), collectives.tables(session.job(), name, [2, rows.fingerprint], once=True))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def left():
    with Cluster(3, environ=GOES_ON) as cluster:
        cluster.run(before_the_loss)
        left = Left(cluster, 0)
        left.begin(lost_amid_an_allgather)
        cluster.workers[0].tell(lost_amid_an_allgather, (), {})
        left.gathered_amid = left.outcomes()
        yield left
        end(cluster)


def test_an_allgather_amid_which_a_rank_is_lost_has_the_rows_of_the_others(left):
    assert left.gathered_amid == [("ok", [1, 1, 2, 2])] * 2


def sparse_averages():
    import torch

    import byteps.torch as bps

    results = []
    for dtype in (torch.float32, torch.int64):
        one = torch.sparse_coo_tensor([[0, 2]], torch.tensor([10, 10 * bps.rank()], dtype=dtype), (3,))
        results.append(bps.allreduce(one, name=f"sparse{dtype}").to_dense().tolist())
        results.append(bps.allreduce(one, name=f"sum{dtype}", op=bps.Sum).to_dense().tolist())
    return results


def test_a_sparse_average_is_of_those_that_are_left(left):
    assert left.run(sparse_averages) == [[[10, 0, 15], [20, 0, 30]] * 2] * 2


def train_text():
    import torch

    import byteps.torch as bps

    alone = torch.optim.SGD(kept["alone"].parameters(), lr=0.5)
    for step in range(3):
        kept["optimizer"].zero_grad()
        alone.zero_grad()
        for rank in (1, 2):
            words, labels = words_of(rank, step)
            (torch.nn.functional.cross_entropy(kept["alone"](words), labels) / 2).backward()
            if rank == bps.rank():
                torch.nn.functional.cross_entropy(kept["text"](words), labels).backward()
        kept["optimizer"].step()
        alone.step()
    for one, other in zip(kept["text"].parameters(), kept["alone"].parameters()):
        torch.testing.assert_close(one, other)


def test_sparse_gradients_train_as_one_process_with_the_data_of_those_that_are_left(left):
    left.run(train_text)


def buffers_after_a_step():
    own = [buffer.clone().tolist() for buffer in kept["normed"].buffers()]
    train_normed(0)
    kept["normed"]._broadcast_buffers()
    return own, [buffer.tolist() for buffer in kept["normed"].buffers()]


def test_the_buffers_of_a_model_come_from_the_lowest_rank_that_is_left(left):
    left.run(train_normed, 2)
    (of_1, got_1), (of_2, got_2) = left.run(buffers_after_a_step)
    assert of_1 != of_2
    assert got_1 == got_2 == of_1


def new_model():
    import torch

    import byteps.torch as bps
    from byteps.torch.parallel import DistributedDataParallel

    torch.manual_seed(bps.rank())
    model = normed_model()
    own = model[0].weight.tolist()
    DistributedDataParallel(model)
    return own, model[0].weight.tolist()


def test_a_model_that_is_wrapped_after_the_loss_begins_as_that_of_the_lowest_rank_that_is_left(left):
    (own, got), (_, other) = left.run(new_model)
    assert got == other == own


def objects_of_all():
    import byteps.torch as bps

    return bps.allgather_object({"rank": bps.rank()})


def test_the_object_of_a_vacant_rank_is_none(left):
    assert left.run(objects_of_all) == [[None, {"rank": 1}, {"rank": 2}]] * 2


def gradients_of_gathers():
    import torch

    import byteps.torch as bps

    factor, results = float(bps.rank()), {}
    calls = {
        "allgather": lambda x: bps.allgather(x, name="gradient"),
        "alltoall": lambda x: bps.alltoall(x, name="gradient"),
    }
    for name, call in calls.items():
        x = torch.ones(3, 1, requires_grad=True)
        (call(x) * factor).sum().backward()
        results[name] = x.grad.flatten().tolist()
    return results


def test_gradients_of_collectives_are_those_of_the_ranks_that_are_left(left):
    one, other = left.run(gradients_of_gathers)
    assert one == other
    assert one["allgather"] == [1.5] * 3  # the average of what the ranks say
    assert one["alltoall"] == [0, 1, 2]  # the row of a rank that is lost is used by nobody


def gradient_of_torch_ddp(kind):
    import torch

    import byteps.torch as bps

    assert torch.distributed.get_world_size() == 3
    kept[kind].zero_grad()
    kept[kind](torch.full((1, 2), 10.0 * bps.rank())).sum().backward()
    return kept[kind].module.weight.grad.tolist()


@pytest.mark.parametrize("kind", ["plain", "hooked"])
def test_gradients_of_torchs_ddp_are_averaged_over_those_that_are_left(left, kind):
    assert left.run(gradient_of_torch_ddp, kind) == [[[15.0, 15.0]]] * 2


# ---- byteps.tensorflow, without rank 1


def first_sum():
    import tensorflow as tf

    import byteps.tensorflow as bps

    bps.push_pull(tf.ones(3), name="first")


@pytest.fixture(scope="module")
def tf_left():
    pytest.importorskip("tensorflow")
    with Cluster(3, environ={**GOES_ON, **TENSORFLOW}, layer="byteps.tensorflow") as cluster:
        cluster.run(first_sum)
        cluster.workers[1].kill()
        left = Left(cluster, 1)
        left.run(first_sum)
        yield left
        end(cluster)


def tf_averages(compiled):
    import tensorflow as tf

    import byteps.tensorflow as bps

    ten = 10 * (bps.rank() + 1)
    variable = tf.Variable(tf.ones([5, 2]))

    def averages():
        whole = bps.push_pull(tf.fill([2], ten), name="whole")
        small = bps.push_pull(tf.cast(tf.fill([2], ten), tf.int8), name="small", postscale_factor=2.0)
        slices = tf.IndexedSlices(tf.fill([1, 2], float(ten)), tf.constant([1]), tf.constant([5, 2]))
        sparse = tf.convert_to_tensor(bps.push_pull(slices, name="slices"))
        with bps.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(tf.gather(variable, [1])) * float(ten)
        embedded = tf.convert_to_tensor(tape.gradient(loss, variable))
        return whole, small, sparse[1], embedded[1]

    return [value.numpy() for value in (tf.function(averages) if compiled else averages)()]


@pytest.mark.parametrize("compiled", [False, True])
def test_averages_of_integers_and_of_slices_are_of_those_that_are_left(tf_left, compiled):
    for whole, small, sparse, embedded in tf_left.run(tf_averages, compiled):
        assert (whole.dtype, small.dtype) == (np.float64, np.float32)
        assert whole.tolist() == sparse.tolist() == embedded.tolist() == [20, 20]
        assert small.tolist() == [40, 40]


def tf_gradients():
    import tensorflow as tf

    import byteps.tensorflow as bps

    x = tf.Variable(tf.ones([3, 1]))
    calls = {
        "allgather": lambda: bps.allgather(x),
        "alltoall": lambda: bps.alltoall(x),
    }
    results = {}
    for name, call in calls.items():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(call()) * (bps.rank() + 1.0)
        results[name] = tape.gradient(loss, x).numpy().ravel().tolist()
    return results


def test_gradients_of_tensorflows_collectives_are_those_of_the_ranks_that_are_left(tf_left):
    one, other = tf_left.run(tf_gradients)
    assert one == other
    assert one["allgather"] == [4, 4, 4]
    assert one["alltoall"] == [1, 0, 3]  # the row of a rank that is lost is used by nobody


def tf_objects_and_metrics():
    import byteps.tensorflow as bps
    from byteps._keras import callbacks

    logs = {"loss": 10.0 * (bps.rank() + 1), "name": "any"}
    callbacks.average_logs(logs)
    return bps.allgather_object(bps.rank()), logs


def test_keras_metrics_are_averaged_over_those_that_are_left(tf_left):
    assert tf_left.run(tf_objects_and_metrics) == [([0, None, 2], {"loss": 20.0, "name": "any"})] * 2
