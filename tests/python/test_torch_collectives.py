"""Horovod's names in byteps.torch: reductions, gathers and broadcasts against what one process computes."""

import math

import interrupted
import numpy as np
import pytest
import torch
from cluster import Cluster

import byteps.torch as hvd
from byteps.torch import pending

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
INTEGERS += [getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
COMPLEX = [torch.complex64, torch.complex128]
SHAPES = [(), (0,), (5,), (3, 0, 2), (2, 3), (2, 1, 3, 2)]


def make(rank, shape, dtype, seed=0):
    """What `rank` has: small integers, so that every dtype holds every result exactly."""
    numbers = np.random.default_rng([seed, rank, *shape]).integers(1, 4, shape)
    tensor = torch.tensor(numbers)
    if dtype.is_complex:
        return torch.complex(tensor.double(), (tensor * 2 - 3).double()).to(dtype)
    return tensor.to(dtype)


def everyone(shape, dtype, seed=0):
    return [make(rank, shape, dtype, seed) for rank in range(hvd.size())]


def reduced(parts, op):
    if parts[0].dtype == torch.bool:
        stacked = torch.stack(parts)
        return stacked.all(0) if op in ("Min", "Product") else stacked.any(0)
    wide = torch.complex128 if parts[0].is_complex() else torch.float64
    stacked = torch.stack([part.to(wide) for part in parts])
    if op in ("Sum", "Average"):
        total = stacked.sum(0)
        if op == "Average":
            total = total / len(parts)
            total = total if parts[0].is_floating_point() or parts[0].is_complex() else total.trunc()
        return total.to(parts[0].dtype)
    return {"Min": stacked.amin, "Max": stacked.amax, "Product": stacked.prod}[op](0).to(parts[0].dtype)


def same(got, wanted):
    assert got.dtype == wanted.dtype and got.shape == wanted.shape, (got, wanted)
    if got.numel() and got.dtype in (torch.float16, torch.bfloat16):
        assert torch.allclose(got.float(), wanted.float(), rtol=1e-2), (got, wanted)
    elif got.is_floating_point() or got.is_complex():
        assert torch.allclose(got, wanted, rtol=1e-6), (got, wanted)
    else:
        assert torch.equal(got, wanted), (got, wanted)


def every_reduction():
    for op in (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product):
        for dtype in [*FLOATS, *INTEGERS, *COMPLEX, torch.bool]:
            if dtype.is_complex and op not in (hvd.Average, hvd.Sum) or dtype == torch.bool and op == hvd.Average:
                with pytest.raises(ValueError, match="average of a bool|no minimum"):
                    hvd.allreduce(torch.zeros(1, dtype=dtype), op=op)
                continue
            handles = []
            for shape in SHAPES:
                mine = make(hvd.rank(), shape, dtype)
                handles.append((hvd.allreduce_async(mine, op=op), reduced(everyone(shape, dtype), op)))
            for handle, wanted in handles:
                same(hvd.synchronize(handle), wanted)


def test_every_operation_on_every_dtype_and_shape(job):
    job.run(every_reduction)


def forms():
    size, mine = hvd.size(), make(hvd.rank(), (2, 3), torch.float32)
    total, mean = reduced(everyone((2, 3), torch.float32), "Sum"), reduced(everyone((2, 3), torch.float32), "Average")
    same(hvd.allreduce(mine), mean)
    same(hvd.allreduce(mine, average=False), total)
    same(hvd.allreduce(mine, op="Sum"), total)
    same(hvd.allreduce(mine, name="forms", compression=hvd.Compression.fp16), mean)
    place = mine.clone()
    assert hvd.allreduce_(place, op=hvd.Max) is place
    same(place, reduced(everyone((2, 3), torch.float32), "Max"))
    turned = mine.clone().t()
    hvd.synchronize(hvd.allreduce_async_(turned, op=hvd.Sum))
    same(turned.t(), total)
    handle = hvd.allreduce_async(mine, op=hvd.Sum, name="named")
    while not hvd.poll(handle):
        pass
    same(hvd.synchronize(handle), total)
    several = [make(hvd.rank(), (n,), torch.float64, n) for n in range(4)]
    wanted = [reduced(everyone((n,), torch.float64, n), "Sum") for n in range(4)]
    for got in (
        hvd.grouped_allreduce(several, op=hvd.Sum),
        hvd.grouped_allreduce(several, op=hvd.Sum, name="several"),
        hvd.synchronize(hvd.grouped_allreduce_async(several, op=hvd.Sum)),
        hvd.grouped_allreduce_([t.clone() for t in several], op=hvd.Sum),
    ):
        assert len(got) == 4
        for one, its in zip(got, wanted):
            same(one, its)
    for arguments, why in (
        ({"op": hvd.Sum, "average": True}, "both given"),
        ({"op": hvd.Adasum}, "Adasum, which is not supported: use"),
        ({"op": "Mean"}, "must be one of"),
        ({"op": hvd.Min, "prescale_factor": 2.0}, "Sum and Average only"),
    ):
        with pytest.raises(ValueError, match=why):
            hvd.allreduce(mine, **arguments)
    with pytest.raises(ValueError, match="a str, not int"):
        hvd.allreduce(mine, name=5)
    with pytest.raises(ValueError, match="torch.Tensor"):
        hvd.grouped_allreduce_async([mine, 5])
    assert size == len(everyone((1,), torch.int32))


def test_every_form_of_allreduce(job2, alone):
    job2.run(forms)
    forms()


def scatter_much():
    return hvd.reducescatter(torch.ones(interrupted.ELEMENTS), op=hvd.Sum)


def reduce_much():
    return hvd.allreduce(torch.ones(interrupted.ELEMENTS))


@pytest.mark.parametrize("call", [scatter_much, reduce_much])
def test_ctrl_c_frees_nothing_that_is_still_written_to(job2, call):
    interrupted.check(job2, call)


def gathers():
    rank, size = hvd.rank(), hvd.size()
    for dtype in [*FLOATS, *INTEGERS, *COMPLEX, torch.bool]:
        for shapes in (
            [(r + 1, 2) for r in range(size)],
            [(r, 3) for r in range(size)],  # rank 0 has none
            [(2,)] * size,
            [(0, 4)] * size,
            [(1, 2, 2)] * size,
        ):
            wanted = torch.cat([make(r, shape, dtype) for r, shape in enumerate(shapes)])
            same(hvd.allgather(make(rank, shapes[rank], dtype)), wanted)
    same(hvd.allgather(torch.tensor(float(rank))), torch.arange(float(size)))
    same(hvd.allgather(torch.arange(6.0).view(2, 3).t()), torch.cat([torch.arange(6.0).view(2, 3).t()] * size))
    got = hvd.grouped_allgather([torch.full((rank + 1,), rank), torch.full((1,), -rank)], name="pair")
    same(got[0], torch.cat([torch.full((r + 1,), r) for r in range(size)]))
    same(got[1], -torch.arange(size))
    assert hvd.allgather_object({"rank": rank, "more": [0] * rank}) == [
        {"rank": r, "more": [0] * r} for r in range(size)
    ]


def test_allgather_takes_any_number_of_rows_from_each_rank(job):
    job.run(gathers)


def gathers_in_any_order():
    """Each rank waits in an order of its own, and for a barrier in between: what is started goes on by itself."""
    handles = [hvd.allgather_async(torch.full((hvd.rank() + i,), i), name=f"any.{i}") for i in range(8)]
    hvd.barrier()
    order = sorted(range(8), key=lambda i: (i * 5 + 3 * hvd.rank()) % 8)
    for i in order:
        wanted = sum(r + i for r in range(hvd.size()))
        same(hvd.synchronize(handles[i]), torch.full((wanted,), i))
        with pytest.raises(ValueError, match="not known"):
            hvd.synchronize(handles[i])


def test_gathers_may_be_awaited_in_any_order_with_other_things_in_between(job3):
    job3.run(gathers_in_any_order)


def broadcasts():
    root = hvd.size() - 1
    for dtype in [*FLOATS, *INTEGERS, *COMPLEX, torch.bool]:
        for shape in SHAPES:
            mine, wanted = make(hvd.rank(), shape, dtype), make(root, shape, dtype)
            before = mine.clone()
            same(hvd.broadcast(mine, root), wanted)
            same(mine, before)
            assert hvd.broadcast_(mine, root_rank=root, name="in place") is mine
            same(mine, wanted)
    poisoned = torch.full((2,), 1.0 if hvd.rank() == root else math.nan)
    same(hvd.synchronize(hvd.broadcast_async_(poisoned.t(), root)), torch.ones(2))
    with pytest.raises(ValueError, match="must be a rank"):
        hvd.broadcast(torch.ones(1), hvd.size())


def test_broadcast_gives_all_ranks_the_values_of_the_root(job3):
    job3.run(broadcasts)


def sparse():
    rank, size = hvd.rank(), hvd.size()
    indices = torch.tensor([[rank, 0, rank, 4]])  # twice the same, and one that all have
    values = torch.arange(8.0).view(4, 2) + rank
    mine = torch.sparse_coo_tensor(indices, values, (5, 2))
    everyones = torch.zeros(5, 2)
    for r in range(size):
        part = torch.sparse_coo_tensor(torch.tensor([[r, 0, r, 4]]), torch.arange(8.0).view(4, 2) + r, (5, 2))
        everyones += part.to_dense()
    got = hvd.allreduce(mine)
    assert got.layout == torch.sparse_coo and got.is_coalesced()
    same(got.to_dense(), everyones / size)
    same(hvd.synchronize(hvd.sparse_allreduce_async(mine, "rows", hvd.Sum)).to_dense(), everyones)
    handle = hvd.sparse_allreduce_async(mine, "rows", hvd.Average)
    same(handle().to_dense(), everyones / size)  # as Horovod's
    with pytest.raises(ValueError, match="has been synchronized"):
        handle()
    empty = torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.int64), torch.zeros(0, 2), (5, 2))
    same(hvd.allreduce(mine if rank == 0 else empty, op=hvd.Sum)._nnz() * torch.ones(1), torch.full((1,), 2.0))
    with pytest.raises(ValueError, match="no minimum"):
        hvd.allreduce(mine, op=hvd.Min)
    dense = torch.tensor([-3 - 2 * rank, 0, 5 + rank])
    for options in ({}, {"op": hvd.Sum}, {"postscale_factor": 0.7}):  # integers as dense ones
        same(hvd.allreduce(dense.to_sparse(), **options).to_dense(), hvd.allreduce(dense, **options))
    with pytest.raises(ValueError, match="average of a bool"):
        hvd.allreduce(dense.bool().to_sparse())


def test_sparse_tensors_are_summed_by_their_indices(job2):
    job2.run(sparse)


@pytest.mark.parametrize("way", ["", "_async", "_", "_async_"])
def test_all_tensors_of_a_group_are_checked_before_the_first_is_sent(alone, way):
    before = hvd.metrics().finished_operations
    wrong = [torch.ones(2, dtype=torch.bool), torch.ones(2, device="meta")]
    wrong += [torch.ones(1).expand(3)] if way.endswith("_") else []
    for tensor in wrong:
        with pytest.raises(ValueError, match="tensor 1 of the group"):
            getattr(hvd, f"grouped_allreduce{way}")([torch.ones(2), tensor])
        if not way.endswith("_"):
            with pytest.raises(ValueError, match="tensor 1 of the group"):
                getattr(hvd, f"grouped_reducescatter{way}")([torch.ones(2), tensor])
    with pytest.raises(ValueError, match="tensor 1 of the group"):
        hvd.grouped_allgather([torch.ones(2), torch.eye(2).to_sparse()])
    assert hvd.metrics().finished_operations == before and not pending._operations


def mismatch():
    with pytest.raises(hvd.MismatchError, match="allgather.rows"):
        hvd.allgather(torch.ones(2, 2 + hvd.rank()), name="rows")
    with pytest.raises(hvd.MismatchError, match="allgather.none"):
        hvd.allgather(torch.ones(0, 2 + hvd.rank()), name="none")
    with pytest.raises(hvd.MismatchError, match="reducescatter"):
        hvd.reducescatter(torch.ones(4, 6) if hvd.rank() else torch.ones(4, 2, 3))
    with pytest.raises(hvd.MismatchError, match="reducescatter.group"):
        hvd.grouped_reducescatter([torch.ones(2), torch.ones(4, 6) if hvd.rank() else torch.ones(4, 2, 3)], "group")
    with pytest.raises(hvd.MismatchError, match="alltoall"):
        hvd.alltoall(torch.ones(4, 6) if hvd.rank() else torch.ones(4, 2, 3))
    with pytest.raises(hvd.MismatchError, match="broadcast"):
        hvd.broadcast(torch.ones(4, 6) if hvd.rank() else torch.ones(4, 2, 3), 0)
    with pytest.raises(hvd.MismatchError, match="complex"):
        hvd.grouped_allgather([torch.ones(2, 4), torch.ones(2, 4 - hvd.rank(), dtype=torch.complex64)], "complex")
    with pytest.raises(hvd.MismatchError, match="shapes"):
        hvd.allreduce(torch.ones(2 + hvd.rank()), name="shapes")
    eights = [torch.zeros(4, dtype=dtype) for dtype in (torch.float8_e4m3fn, torch.float8_e5m2)]
    for call in (lambda x: hvd.broadcast(x, 0), hvd.allgather, hvd.alltoall):
        with pytest.raises(hvd.MismatchError, match=r"(?=.*float8_e4m3fn).*float8_e5m2"):  # as many bytes
            call(eights[hvd.rank()])
        with pytest.raises(hvd.MismatchError, match=r"(?=.*[( ]uint8).*float8_e5m2"):
            call([torch.zeros(4, 1, dtype=torch.uint8), eights[1]][hvd.rank()])
    pairs = [torch.zeros(4, 2), torch.zeros(4, dtype=torch.complex64)]
    for call in (hvd.allreduce, hvd.reducescatter):
        with pytest.raises(hvd.MismatchError, match=r"(?=.*\(float32).*complex64"):
            call(pairs[hvd.rank()])
    same(hvd.allgather(torch.full((1,), hvd.rank())), torch.arange(hvd.size()))


def test_ranks_that_disagree_all_get_an_error_that_names_the_tensor(job2):
    job2.run(mismatch)


def wait_for_different_things():
    hvd.allgather(torch.ones(hvd.rank() + 1))
    hvd.push_pull(torch.ones(3), name=f"only on {hvd.rank()}")


def test_ranks_that_wait_for_different_things_are_told_also_after_a_gather():
    with Cluster(2, environ={"BYTEPS_FAILURE_TIMEOUT_MS": "6000"}) as cluster:
        for failure in cluster.failures(wait_for_different_things):
            assert failure.kind == "MismatchError" and "none can go on" in failure.text
        cluster.broken = True  # the job has ended with that


def join_and_barrier():
    hvd.barrier() if hvd.rank() else hvd.join()


def test_a_rank_that_has_joined_and_one_at_a_barrier_are_told_that_they_wait_for_each_other():
    with Cluster(2, environ={"BYTEPS_FAILURE_TIMEOUT_MS": "6000"}) as cluster:
        for failure in cluster.failures(join_and_barrier):
            assert failure.kind == "MismatchError"
            assert "(join) was reached by worker 0, but not by worker 1" in failure.text
        cluster.broken = True  # the job has ended with that


def place():
    return hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()


def test_workers_of_one_machine_are_neighbours_where_no_launcher_says_local_ranks(job):
    hosts = (job.places or [0] * job.size)[: job.size]
    here = [[rank for rank in range(job.size) if hosts[rank] == host] for host in sorted(set(hosts))]
    expected = {}
    for neighbours in here:
        for local, rank in enumerate(neighbours):
            others = [machine for machine in here if len(machine) > local]  # who have such a local rank too
            where = (local, len(neighbours), others.index(neighbours), len(others))
            expected[rank] = (*where, len({len(machine) for machine in here}) == 1)
    assert job.run(place) == [expected[rank] for rank in range(job.size)]


def test_a_launcher_that_says_local_ranks_counts_machines_itself():
    with Cluster(2, environ={"BYTEPS_LOCAL_RANK": "0", "BYTEPS_LOCAL_SIZE": "1"}) as cluster:
        assert cluster.run(place) == [(0, 1, 0, 2, True), (0, 1, 1, 2, True)]


def facts():
    assert hvd.is_initialized() and hvd.is_homogeneous()
    assert hvd.cross_size() * hvd.local_size() == hvd.size() and hvd.cross_rank() == hvd.rank() // hvd.local_size()
    for name in ("mpi", "gloo", "nccl", "ddl", "ccl", "rocm"):
        assert not getattr(hvd, f"{name}_built")()
    assert hvd.cuda_built() is (torch.version.cuda is not None)
    assert not (hvd.mpi_enabled() or hvd.gloo_enabled() or hvd.mpi_threads_supported())
    with pytest.warns(UserWarning, match="BYTEPS_TRACE_ON=1"):
        hvd.start_timeline("timeline.json")
    hvd.stop_timeline()
    hvd.init(process_sets="dynamic")
    with pytest.raises(ValueError, match="comm"):
        hvd.init(comm=[0])
    with pytest.raises(ValueError, match="comm"):
        hvd.init([0, 1])


def test_a_script_can_ask_what_it_asks_horovod(job2):
    assert not hvd.is_initialized()
    job2.run(facts)
    for _ in range(2):  # the sets' numbers end with the job
        hvd.init(process_sets=[hvd.ProcessSet([0])])
        try:
            facts()
            assert hvd.get_process_set_ids_and_ranks() == {0: [0], 1: [0]}
        finally:
            hvd.shutdown()
    assert not hvd.is_initialized()
