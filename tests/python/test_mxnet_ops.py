"""byteps.mxnet's operations in jobs of 1 to 3 workers: every result is compared with numpy's. The functions run in
.venv-mxnet; the process of the tests has no MXNet."""

import os
import random
import time

import numpy as np
import pytest
from cluster import MXNET_PYTHON, Cluster

try:
    import mxnet as mx

    import byteps.mxnet as bps
except ImportError:
    mx = bps = None

DTYPES = ["float32", "float64", "float16", "uint8", "int8", "int32", "int64", "bool", "bfloat16"]
BFLOAT16 = np.dtype([("bfloat16", np.uint16)])  # how MXNet says it
SHAPES = [(), (0,), (1,), (3, 0, 2), (7,), (2, 3), (4, 5, 6), (2, 3, 4, 5), (70001,)]


def values(rank, shape, dtype, seed=0):
    """What `rank` has: small integers, so that every sum and product of three is exact in every dtype."""
    generator = np.random.RandomState(1000 * seed + rank)
    low, high = (0, 2) if dtype == "bool" else (0, 4) if dtype == "uint8" else (-3, 4)
    return generator.randint(low, high, shape).astype("float32" if dtype == "bfloat16" else dtype)


def array_of(numbers, dtype):
    if dtype == "bfloat16":
        return mx.nd.amp_cast(mx.nd.array(numbers, dtype="float32"), dtype=BFLOAT16)
    return mx.nd.array(numbers, dtype=numbers.dtype)


def numbers_of(array):
    if array.dtype == BFLOAT16:
        array = mx.nd.amp_cast(array, dtype="float32")
    return array.asnumpy()


def expected(size, shape, dtype, op, seed=0):
    every = np.stack([values(rank, shape, dtype, seed).astype("float64") for rank in range(size)])
    if dtype == "bool":
        return every.any(axis=0)
    total = {
        "Sum": every.sum(axis=0),
        "Average": every.sum(axis=0) / size,
        "Min": every.min(axis=0),
        "Max": every.max(axis=0),
        "Product": every.prod(axis=0),
    }[op]
    return np.trunc(total) if dtype.startswith(("int", "uint")) else total


def check(result, wanted, dtype):
    tolerance = {"bfloat16": 2**-8, "float16": 2**-11}.get(dtype, 1e-6)
    np.testing.assert_allclose(numbers_of(result).astype("float64"), wanted, rtol=tolerance, atol=1e-12)


def every_dtype_and_shape():
    rank, size = bps.rank(), bps.size()
    with mx.util.np_shape(True):  # dimensions of 0, and none
        for dtype in DTYPES:
            for shape in SHAPES if dtype != "bfloat16" else SHAPES[4:]:  # MXNet's bfloat16 has no such shapes
                mine = values(rank, shape, dtype)
                for op in ["Sum"] if dtype == "bool" else ["Sum", "Average"]:
                    array = array_of(mine, dtype)
                    name = f"{dtype}.{shape}.{op}"
                    bps.byteps_push_pull(array, name=name, is_average=op == "Average")
                    check(array, expected(size, shape, dtype, op), dtype)
                    assert array.shape == shape


def test_sum_and_average_of_every_dtype_and_shape(mxnet_job):
    mxnet_job.run(every_dtype_and_shape)


# ---- the engine


def ordered_by_the_engine():
    """No wait anywhere: each result needs the one before."""
    size = bps.size()
    array = mx.nd.ones((100, 100)) + 1
    for _ in range(3):
        bps.byteps_push_pull(array, name="ordered", is_average=False)
        array *= 10
    assert (array.asnumpy() == 2000 * size**3).all()
    kept = mx.nd.ones((10,))
    earlier = kept * 1  # reads before the exchange writes
    bps.byteps_push_pull(kept, name="kept", is_average=False)
    later = kept * 1
    kept[:] = -1
    assert (earlier.asnumpy() == 1).all() and (later.asnumpy() == size).all() and (kept.asnumpy() == -1).all()


def many_in_flight():
    rank, size = bps.rank(), bps.size()
    shapes = {f"many.{i}": (1 + 37 * i % 501,) for i in range(300)}
    for round_ in range(3):
        arrays = {name: mx.nd.ones(shape) * (rank + round_) for name, shape in shapes.items()}
        order = list(arrays)
        random.Random(10 * round_ + rank).shuffle(order)  # another one on each rank
        for name in order:
            bps.byteps_push_pull(arrays[name], name=name, is_average=False, priority=-int(name[5:]))
        for array in arrays.values():
            assert (array.asnumpy() == sum(range(size)) + size * round_).all()


def memory_of_all_kinds():
    size = bps.size()
    whole = mx.nd.arange(12).reshape((3, 4))
    bps.byteps_push_pull(whole[1:3], name="rows", is_average=False)  # a part of another array
    wanted = np.arange(12.0).reshape(3, 4)
    wanted[1:3] *= size
    assert (whole.asnumpy() == wanted).all()
    for _ in range(3):  # nobody holds the array any more when the engine comes to it
        bps.byteps_push_pull(mx.nd.ones((1000,)) * 2, name="dropped")
    fresh = mx.nd.empty((5,))  # without memory yet
    bps.push_pull(mx.nd.ones((5,)), average=False, name="fresh").copyto(fresh)
    assert (fresh.asnumpy() == size).all()
    images, weight = mx.nd.ones((2, 16, 8, 8)), mx.nd.ones((32, 16, 3, 3))
    result = mx.nd.Convolution(images, weight, kernel=(3, 3), num_filter=32, no_bias=True)  # in oneDNN's layout
    bps.byteps_push_pull(result, name="convolution", is_average=False)
    assert (result.asnumpy() == 144 * size).all()
    modern = mx.np.ones((2, 2))
    assert type(bps.allreduce(modern, average=False)) is type(modern)
    assert (bps.allreduce(modern, average=False).asnumpy() == size).all()


def test_operations_before_and_after_are_ordered_by_the_engine(mxnet_job):
    mxnet_job.run(ordered_by_the_engine)


def test_hundreds_of_arrays_in_flight_in_another_order_on_each_rank(mxnet_job):
    mxnet_job.run(many_in_flight)


def test_views_dropped_arrays_and_the_layout_of_convolutions(mxnet_job):
    mxnet_job.run(memory_of_all_kinds)


# ---- broadcasts


def broadcasts():
    rank, size = bps.rank(), bps.size()
    for root in range(size):
        for dtype in DTYPES:
            array = array_of(values(rank, (3, 4), dtype, seed=root), dtype)
            check(bps.broadcast(array, root), values(root, (3, 4), dtype, seed=root), dtype)
            assert bps.broadcast_(array, root, name=f"in place {root} {dtype}") is array
            check(array, values(root, (3, 4), dtype, seed=root), dtype)
    array = mx.nd.ones((4,)) if rank == 0 else mx.nd.ones((4,)) * float("nan")
    assert (bps.broadcast(array, 0).asnumpy() == 1).all()


def objects():
    rank, size = bps.rank(), bps.size()
    assert bps.broadcast_object({"epoch": rank}, root_rank=size - 1) == {"epoch": size - 1}
    assert bps.allgather_object(["x" * rank]) == [["x" * r] for r in range(size)]


def test_broadcasts_of_every_dtype_from_every_root(mxnet_job):
    mxnet_job.run(broadcasts)


def test_objects_travel(mxnet_job2):
    mxnet_job2.run(objects)


# ---- errors


def mismatch():
    array = mx.nd.ones((3 + bps.rank(),))
    bps.byteps_push_pull(array, name="mismatch")
    dependent = array * 2
    with pytest.raises(mx.base.MXNetError, match="byteps.mismatch.*shape 3.*shape 4|byteps.mismatch.*shape 4.*shape 3"):
        dependent.asnumpy()
    try:
        mx.nd.waitall()  # MXNet raises an error of an array here too, once
    except mx.base.MXNetError:
        pass
    array = mx.nd.ones((3,))
    bps.byteps_push_pull(array, name="afterwards")
    assert (array.asnumpy() == 1).all()


def on_gpu(array):
    """The array as one on a GPU presents itself."""

    class OnGpu(mx.nd.NDArray):
        __slots__ = ()
        context = property(lambda self: mx.gpu(0))

    array.__class__ = OnGpu
    return array


def refusals():
    for wrong, words in [
        (np.ones(3), "expected an mxnet NDArray, got ndarray"),
        (mx.nd.ones((3, 3)).tostype("row_sparse"), "row_sparse.*tostype"),
    ]:
        with pytest.raises(ValueError, match=words):
            bps.byteps_push_pull(wrong, name="wrong")
    before = bps.metrics().finished_operations
    broadcast = lambda array: bps.broadcast_parameters({"w": array})
    for call in (bps.byteps_push_pull, bps.allreduce, bps.allgather, broadcast):
        with pytest.raises(ValueError, match=r"is on device 'gpu\(0\)'.*as_in_context\(mx\.cpu\(\)\)"):
            call(on_gpu(mx.nd.ones((3,))))
    deferred = mx.gluon.Parameter("weight", shape=(2, 0), allow_deferred_init=True)
    deferred.initialize(ctx=mx.gpu(0))
    for call in (bps.broadcast_parameters, lambda params: bps.DistributedTrainer(params, "sgd")):
        with pytest.raises(ValueError, match=r"the parameter 'weight' is on device 'gpu\(0\)'.*ctx=mx\.cpu\(\)"):
            call([("weight", deferred)] if call is bps.broadcast_parameters else [deferred])
    assert bps.metrics().finished_operations == before
    with pytest.raises(ValueError, match="average of a bool array"):
        bps.byteps_push_pull(mx.nd.array([1], dtype="bool"), name="wrong")
    with pytest.raises(ValueError, match="root_rank is 7"):
        bps.broadcast(mx.nd.ones((1,)), 7)
    with pytest.raises(ValueError, match="Adasum"):
        bps.allreduce(mx.nd.ones((1,)), op=bps.Adasum)
    with pytest.raises(ValueError, match="compressor is '2bit'"):
        bps.byteps_declare_tensor("x", byteps_compressor_type="2bit")
    with pytest.raises(ValueError, match="has compressor: it takes byteps_compressor_type, "):
        bps.byteps_declare_tensor("x", compressor="onebit")
    bps.byteps_declare_tensor("x")


def in_a_forked_child():
    bps.byteps_push_pull(mx.nd.ones((3,)), name="before")
    child = os.fork()
    if child == 0:
        try:
            bps.byteps_push_pull(mx.nd.ones((3,)), name="child")
        except ValueError as error:
            os._exit(0 if "forked" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    array = mx.nd.ones((3,))
    bps.byteps_push_pull(array, name="after", is_average=False)
    assert (array.asnumpy() == bps.size()).all()


def leave_and_join_again():
    """What is under way when a rank leaves arrives, though it does not wait for it; the next job works."""
    arrays = [mx.nd.ones((50000,)) for _ in range(20)]
    for index, array in enumerate(arrays):
        bps.byteps_push_pull(array, name=f"last.{index}", is_average=False)
    bps.shutdown()
    assert all((array.asnumpy() == bps_size).all() for array in arrays for bps_size in [2])
    with pytest.raises(ValueError, match="BytePS has not been initialized"):
        bps.byteps_push_pull(arrays[0], name="too late")
    bps.init()
    array = mx.nd.ones((3,))
    bps.byteps_push_pull(array, name="again", is_average=False)
    assert (array.asnumpy() == 2).all()


def test_ranks_that_disagree_all_raise_at_the_next_wait(mxnet_job2):
    mxnet_job2.run(mismatch)


def test_wrong_arguments_are_refused_with_a_remedy(mxnet_job2):
    mxnet_job2.run(refusals)


def test_a_forked_child_is_no_member(mxnet_job2):
    mxnet_job2.run(in_a_forked_child)


def test_leaving_lets_what_is_under_way_arrive(mxnet_job2):
    mxnet_job2.run(leave_and_join_again)


def wait_for_one_that_dies():
    array = mx.nd.ones((3,))
    bps.byteps_push_pull(array, name="dies")
    with pytest.raises(mx.base.MXNetError, match="worker 1"):
        array.wait_to_read()


def test_a_rank_that_dies_ends_the_waits_of_the_others():
    if not MXNET_PYTHON.exists():
        pytest.skip("there is no .venv-mxnet")
    environ = {"BYTEPS_FAILURE_TIMEOUT_MS": "2000"}
    with Cluster(2, environ=environ, layer="byteps.mxnet", python=MXNET_PYTHON) as cluster:
        cluster.workers[0].tell(wait_for_one_that_dies, (), {})
        cluster.workers[1].kill()
        cluster.broken = True
        assert cluster.workers[0].receive(time.monotonic() + 30) == ("ok", None)
