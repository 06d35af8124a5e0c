"""Horovod's collectives of byteps.mxnet in jobs of 1 to 3 workers, and all its reductions, compared with numpy's."""

import interrupted
import numpy as np
import pytest
from test_mxnet_ops import DTYPES, array_of, check, expected, values

try:
    import mxnet as mx

    import byteps.mxnet as bps
except ImportError:  # in the process of the tests
    mx = bps = None


def every_reduction():
    rank, size = bps.rank(), bps.size()
    for dtype in DTYPES:
        for op in [] if dtype == "bool" else ["Sum", "Average", "Min", "Max", "Product"]:
            array = array_of(values(rank, (5, 4), dtype), dtype)
            wanted = expected(size, (5, 4), dtype, op)
            check(bps.allreduce(array, op=op, name=f"op.{dtype}.{op}"), wanted, dtype)
            check(array, values(rank, (5, 4), dtype), dtype)  # as it was
            assert bps.allreduce_(array, op=op, name=f"op.{dtype}.{op}") is array
            check(array, wanted, dtype)
    array = array_of(values(rank, (5, 4), "float32"), "float32")
    scaled = bps.allreduce(array, op=bps.Sum, prescale_factor=0.5, postscale_factor=4.0)
    check(scaled, 2 * expected(size, (5, 4), "float32", "Sum"), "float32")
    group = bps.grouped_allreduce([array, array * 2], average=False)
    check(group[1], 2 * expected(size, (5, 4), "float32", "Sum"), "float32")
    for dtype in ("int8", "int32", "int64"):  # as Horovod: on each rank, towards zero
        odd = array_of(np.array([5, -5, 3, -1]).astype(dtype), dtype)
        halved = np.array([2, -2, 1, 0]) * size
        check(bps.allreduce(odd, op=bps.Sum, prescale_factor=0.5), halved, dtype)
        check(bps.grouped_allreduce([odd], op=bps.Sum, prescale_factor=0.5, postscale_factor=3.0)[0], 3 * halved, dtype)
        rows = array_of(np.full((size, 2), 5).astype(dtype), dtype)
        check(bps.reducescatter(rows, op=bps.Sum, prescale_factor=0.5), np.full((1, 2), 2 * size), dtype)
        check(odd, np.array([5, -5, 3, -1]), dtype)
        assert bps.allreduce_(odd, op=bps.Sum, prescale_factor=0.5) is odd
        check(odd, halved, dtype)
        one = array_of(np.array([-1 if rank == 0 else 0]).astype(dtype), dtype)
        check(bps.allreduce(one), np.array([int(-1 / size)]), dtype)
    copies = [array.copy(), array * 3]
    assert bps.grouped_allreduce_(copies, name="group") is not None
    check(copies[1], 3 * expected(size, (5, 4), "float32", "Average"), "float32")


def gathers():
    rank, size = bps.rank(), bps.size()
    mine = mx.nd.ones((rank + 1, 3)) * rank
    wanted = np.concatenate([np.full((r + 1, 3), r) for r in range(size)])
    assert (bps.allgather(mine, name="ragged").asnumpy() == wanted).all()
    for dtype in DTYPES:
        array = array_of(values(rank, (2, 5), dtype), dtype)
        every = np.concatenate([values(r, (2, 5), dtype) for r in range(size)])
        check(bps.grouped_allgather([array, mine])[0], every, dtype)
    with mx.util.np_shape(True):
        assert bps.allgather(mx.nd.zeros((0, 3))).shape == (0, 3)

    splits = [(rank + to) % 3 for to in range(size)]  # rank sends so many rows to `to`
    rows = mx.nd.array([[100 * rank + to] for to in range(size) for _ in range(splits[to])]).reshape((-1, 1))
    if sum(splits):
        result, received = bps.alltoall(rows, mx.nd.array(splits, dtype="int32"), name="uneven")
        wanted = [100 * source + rank for source in range(size) for _ in range((source + rank) % 3)]
        assert result.asnumpy().ravel().tolist() == wanted
        assert received.asnumpy().tolist() == [(source + rank) % 3 for source in range(size)]
    even = bps.alltoall(mx.nd.arange(2 * size) + 100 * rank)
    assert even.asnumpy().tolist() == [100 * source + 2 * rank + i for source in range(size) for i in (0, 1)]

    share = bps.reducescatter(mx.nd.arange(7 * 2).reshape((7, 2)), op=bps.Sum, name="scatter")
    counts = [7 // size + (r < 7 % size) for r in range(size)]
    begin = sum(counts[:rank])
    wanted = size * np.arange(14.0).reshape(7, 2)[begin : begin + counts[rank]]
    assert (share.asnumpy() == wanted).all()
    assert (bps.grouped_reducescatter([mx.nd.ones((size, 2))] * 2)[1].asnumpy() == 1).all()


def in_a_process_set():
    rank, size = bps.rank(), bps.size()
    outer = bps.add_process_set([0, size - 1])
    if outer.included():
        array = mx.nd.ones((3,)) * (rank + 1)
        assert (bps.allreduce(array, op=bps.Sum, name="set", process_set=outer).asnumpy() == 1 + size).all()
        assert (bps.broadcast(array, size - 1, process_set=outer).asnumpy() == size).all()
        assert bps.allgather(array, process_set=outer).asnumpy().tolist() == [1] * 3 + [size] * 3
    else:
        with pytest.raises(ValueError, match="rank 1 is not in the process set"):
            bps.allreduce(mx.nd.ones((3,)), process_set=outer)
    bps.remove_process_set(outer)


def columns_that_differ():
    with pytest.raises(mx.base.MXNetError, match="differs between ranks"):
        bps.allgather(mx.nd.ones((2, 2 + bps.rank())), name="columns")
    assert bps.allgather(mx.nd.ones((2, 2)), name="columns.2").shape == (4, 2)


def uneven():
    """Rank r has r + 2 batches, and makes so many calls without a name."""
    rank, size = bps.rank(), bps.size()
    weight = mx.gluon.Parameter("weight", shape=(2,), init="zeros")
    weight.initialize()
    trainer = bps.DistributedTrainer([weight], "sgd", {"learning_rate": 1.0})
    for step in range(rank + 2):
        with mx.autograd.record():
            loss = weight.data().sum()
        loss.backward()
        trainer.step(1)
        bps.allreduce(mx.nd.ones((3,)))
    assert bps.join() == size - 1
    steps = sum(sum(step < other + 2 for other in range(size)) / size for step in range(rank + 2))
    np.testing.assert_allclose(weight.data().asnumpy(), [-steps] * 2, rtol=1e-6)
    bps.broadcast_parameters([weight], size - 1)
    assert bps.allreduce(mx.nd.ones((1,)), op=bps.Sum).asscalar() == size
    assert bps.allgather(mx.nd.array([rank])).asnumpy().tolist() == list(range(size))
    return weight.data().asnumpy().tolist()


def test_ranks_may_have_different_numbers_of_batches(mxnet_clusters):
    results = mxnet_clusters.get(3).run(uneven)
    assert results == [results[0]] * 3


def scatter_much():
    return bps.reducescatter(mx.nd.ones((interrupted.ELEMENTS,)), op=bps.Sum)


def test_ctrl_c_in_a_gather_frees_nothing_that_is_still_written_to(mxnet_job2):
    interrupted.check(mxnet_job2, scatter_much)


def test_reductions_of_every_kind_in_place_and_out_of_place(mxnet_job):
    mxnet_job.run(every_reduction)


def test_allgather_alltoall_and_reducescatter_with_uneven_shares(mxnet_job):
    mxnet_job.run(gathers)


def test_operations_in_a_process_set(mxnet_clusters):
    mxnet_clusters.get(3).run(in_a_process_set)


def test_an_allgather_of_rows_that_differ_raises_on_all_ranks(mxnet_job2):
    mxnet_job2.run(columns_that_differ)
