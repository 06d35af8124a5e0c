"""push_pull in jobs of 1 to 3 workers: every result is compared with the same sum made by torch on one rank."""

import random
import threading
import time

import pytest
import torch
from counted import pushed_and_pulled
from place import wait_for

import byteps.torch as bps
from byteps.torch import ops, pending

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.bool,
]
SHAPES = [(), (0,), (1,), (3, 0, 2), (7,), (2, 3), (4, 5, 6), (2, 3, 4, 5), (70001,)]


def values(rank, shape, dtype, seed=0):
    """What `rank` has: small integers, so that every sum is exact in every dtype."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    low, high = (0, 2) if dtype == torch.bool else (0, 9) if dtype == torch.uint8 else (-8, 9)
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def expected(size, shape, dtype, average, seed=0):
    total = sum(values(rank, shape, dtype, seed).to(torch.float64) for rank in range(size))
    if dtype == torch.bool:
        return total > 0
    if average:
        total = total / size if dtype.is_floating_point else torch.trunc(total / size)
    return total.to(dtype)


def check(result, wanted):
    assert result.dtype == wanted.dtype and result.shape == wanted.shape, (result.shape, wanted.shape)
    assert torch.equal(result, wanted), (result, wanted)


# ---- dtypes and shapes


def every_dtype_and_shape():
    rank, size = bps.rank(), bps.size()
    for dtype in DTYPES:
        for shape in SHAPES:
            for average in (False, True) if dtype != torch.bool else (False,):
                wanted = expected(size, shape, dtype, average)
                mine = values(rank, shape, dtype)
                name = f"{dtype}.{shape}.{average}"
                check(bps.push_pull(mine, average, name + ".new"), wanted)
                check(mine, values(rank, shape, dtype))  # not touched
                returned = bps.push_pull_inplace(mine, average, name + ".inplace")
                assert returned is mine
                check(mine, wanted)


def test_every_dtype_in_every_shape_is_summed_and_averaged(job):
    job.run(every_dtype_and_shape)


def large_tensor():
    rank, size = bps.rank(), bps.size()
    shape = (3_000_001,)  # three parts
    mine = values(rank, shape, torch.float32)
    check(bps.push_pull(mine, False, "large"), expected(size, shape, torch.float32, False))


def test_a_tensor_of_several_parts_is_summed(job3):
    job3.run(large_tensor)


def random_floats():
    size = bps.size()
    all_ranks = [torch.randn(10007, generator=torch.Generator().manual_seed(rank)) for rank in range(size)]
    exact = sum(tensor.double() for tensor in all_ranks) / size
    mine = all_ranks[bps.rank()]
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)):
        result = bps.push_pull(mine.to(dtype), name=f"random.{dtype}").double()
        assert torch.allclose(result, exact, rtol=tolerance, atol=tolerance)


def test_random_values_are_averaged_to_the_precision_of_their_dtype(job3):
    job3.run(random_floats)


def non_contiguous():
    rank, size = bps.rank(), bps.size()
    base = values(rank, (6, 8), torch.float32)
    wanted = expected(size, (6, 8), torch.float32, False)
    for name, view in (
        ("transposed", lambda t: t.t()),
        ("strided", lambda t: t[::2, 1::3]),
        ("channels_last", lambda t: t.reshape(2, 3, 2, 4).contiguous(memory_format=torch.channels_last)),
        ("column", lambda t: t[:, 3]),
    ):
        check(bps.push_pull(view(base.clone()), False, name), view(wanted).contiguous())
        mine = view(base.clone())
        assert bps.push_pull_inplace(mine, False, name + ".inplace") is mine
        check(mine, view(wanted))
    check(bps.push_pull(base[:, :1].expand(6, 8), False, "expanded"), wanted[:, :1].expand(6, 8).contiguous())
    # Only the view is written to.
    whole = base.clone()
    bps.push_pull_inplace(whole[::2], False, "rows")
    assert torch.equal(whole[1::2], base[1::2]) and torch.equal(whole[::2], wanted[::2])
    negated = torch.complex(torch.zeros(5), base[0, :5]).conj().imag  # a view with the negative bit
    assert negated.is_neg()
    check(bps.push_pull(negated, False, "negated"), -wanted[0, :5])


def test_non_contiguous_tensors_are_summed_element_by_element_also_in_place(job2):
    job2.run(non_contiguous)


def layouts_differ():
    mine = torch.arange(12.0).reshape(3, 4)
    if bps.rank() == 1:
        mine = mine.t().contiguous().t()  # the same values, other strides
    check(bps.push_pull(mine, True, "layouts"), torch.arange(12.0).reshape(3, 4))


def test_ranks_may_store_a_tensor_in_different_layouts(job2):
    job2.run(layouts_differ)


# ---- many at once, orders, names


def any_order(round_count, tensor_count):
    rank, size = bps.rank(), bps.size()
    sizes = random.Random(1).choices([0, 1, 10, 1000, 50_000, 300_000], k=tensor_count)
    for turn in range(round_count):
        order = list(range(tensor_count))
        random.Random(100 * turn + rank).shuffle(order)
        handles = {}
        for index in order:
            mine = values(rank, (sizes[index],), torch.float32, index + turn)
            handles[index] = bps.byteps_push_pull(mine, average=False, name=f"order.{index}", priority=-index)
        random.Random(7 * turn + rank).shuffle(order)
        for index in order:
            check(bps.synchronize(handles[index]), expected(size, (sizes[index],), torch.float32, False, index + turn))


def test_many_tensors_are_under_way_in_a_different_order_on_each_rank(job):
    job.run(any_order, round_count=3, tensor_count=60)


def one_name_many_times():
    rank, size = bps.rank(), bps.size()
    handles = [
        bps.push_pull_async(values(rank, (100,), torch.int64, seed), average=False, name="again") for seed in range(30)
    ]
    for seed, handle in reversed(list(enumerate(handles))):
        check(bps.synchronize(handle), expected(size, (100,), torch.int64, False, seed))


def test_the_same_name_queues_behind_its_earlier_use(job2):
    job2.run(one_name_many_times)


def unnamed():
    rank, size = bps.rank(), bps.size()
    handles = []
    for seed in range(200):  # of different sizes and dtypes, so a collision would be an error
        shape, dtype = (seed % 17,), DTYPES[seed % 8]
        handles.append((bps.push_pull_async(values(rank, shape, dtype, seed), average=False), shape, dtype, seed))
    for handle, shape, dtype, seed in handles:
        check(bps.synchronize(handle), expected(size, shape, dtype, False, seed))
    check(bps.push_pull(values(rank, (3,), torch.float32), False), expected(size, (3,), torch.float32, False))


def test_unnamed_operations_never_collide(job3):
    job3.run(unnamed)


def rounds_of_unicode_names():
    for name in ("Gewicht.ä", "重み", "a b\tc", "x" * 1000):
        check(bps.push_pull(torch.ones(3), False, name), torch.full((3,), float(bps.size())))


def test_names_are_any_text(job2):
    job2.run(rounds_of_unicode_names)


# ---- autograd


def backward_through_push_pull():
    rank, size = bps.rank(), bps.size()
    for average in (False, True):
        for name in (None, f"differentiable.{average}"):
            mine = values(rank, (4, 3), torch.float64).requires_grad_()
            weight = torch.arange(12.0, dtype=torch.float64).reshape(4, 3) * (rank + 1)
            (bps.push_pull(mine, average, name) * weight).sum().backward()
            total = torch.arange(12.0, dtype=torch.float64).reshape(4, 3) * sum(range(1, size + 1))
            assert torch.equal(mine.grad, total / size if average else total)
    mine = torch.ones(3, requires_grad=True)
    result = bps.push_pull(mine, average=False).sum()
    result.backward(retain_graph=True)
    result.backward()
    assert torch.equal(mine.grad, torch.full((3,), 2.0 * size))
    compressed = torch.ones(5, requires_grad=True)
    reduced = bps.push_pull(compressed, compression=bps.Compression.fp16)
    assert reduced.dtype == torch.float32
    reduced.sum().backward()
    assert torch.equal(compressed.grad, torch.ones(5))


def test_push_pull_is_differentiable(job2):
    job2.run(backward_through_push_pull)


def parameters_in_place():
    weight = torch.nn.Parameter(values(bps.rank(), (5,), torch.float32))
    assert bps.push_pull_inplace(weight, False, "parameter.weight") is weight
    check(weight.detach(), expected(bps.size(), (5,), torch.float32, False))
    assert weight.is_leaf and weight.requires_grad
    column = torch.nn.Parameter(values(bps.rank(), (5, 2), torch.float32).t())
    bps.push_pull_inplace(column, False, "parameter.column")
    check(column.detach(), expected(bps.size(), (5, 2), torch.float32, False).t())
    # Autograd notices that a saved tensor has been written to.
    base = torch.ones(3, requires_grad=True)
    saved = base * 2
    loss = (saved * saved).sum()
    bps.push_pull_inplace(saved, False, "saved")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.inference_mode():
        check(bps.push_pull(torch.ones(2), name="inference"), torch.ones(2))


def test_tensors_that_require_gradients_are_summed_in_place(job2):
    job2.run(parameters_in_place)


def compressed():
    rank, size = bps.rank(), bps.size()
    mine = torch.full((100,), 1.0 + rank, dtype=torch.float64)
    for compression in (bps.Compression.none, bps.Compression.fp16, bps.Compression.bf16):
        result = bps.push_pull(mine, name=f"compressed.{compression.__name__}", compression=compression)
        assert result.dtype == torch.float64
        assert torch.equal(result, torch.full((100,), (size + 1) / 2, dtype=torch.float64))
    integers = bps.push_pull(torch.arange(5), False, "integers", compression=bps.Compression.fp16)
    assert torch.equal(integers, torch.arange(5) * size)
    # The sum is made in 32 bits: 40000 + 40000 does not fit in fp16, their average does.
    big = bps.push_pull(torch.full((3,), 40000.0), name="big", compression=bps.Compression.fp16)
    assert torch.allclose(big, torch.full((3,), 40000.0), rtol=1e-3)


def test_compression_travels_in_16_bits_and_sums_in_32(job2):
    before = job2.run(lambda: pushed_and_pulled(bps.metrics())[0])
    job2.run(compressed)
    job2.run(lambda: bps.push_pull(torch.ones(1000), name="half", compression=bps.Compression.bf16))
    after = job2.run(lambda: pushed_and_pulled(bps.metrics())[0])
    per_worker = [(b - a) for a, b in zip(before, after)]
    assert all(n == 800 + 200 + 200 + 40 + 6 + 2000 for n in per_worker), per_worker


# ---- handles


def wait_and_poll():
    if bps.rank() == 0:
        handle = bps.push_pull_async(torch.ones(4), name="late")
        assert bps.poll(handle) is False
        bps.barrier()
        result = bps.synchronize(handle)
    else:
        bps.barrier()
        handle = bps.push_pull_async(torch.ones(4), name="late")
        result = bps.synchronize(handle)
    check(result, torch.ones(4))
    for call in (bps.poll, bps.synchronize):
        with pytest.raises(ValueError, match=f"handle {handle} is not known"):
            call(handle)


def test_poll_says_whether_synchronize_would_block_and_a_handle_is_used_once(job2):
    job2.run(wait_and_poll)


def others_run_while_one_waits(counted):
    bps.barrier()
    if bps.rank() == 1:  # it lets the other one wait until that one's thread has done its part
        wait_for("the other rank", counted.exists, 60)
        return bps.push_pull(torch.ones(1), name="slow") is not None
    waits = threading.Event()

    def count():
        waits.wait()
        for _ in range(200):
            time.sleep(0.001)
        counted.touch()

    thread = threading.Thread(target=count)
    thread.start()
    handle = bps.push_pull_async(torch.ones(1), name="slow")
    waits.set()
    bps.synchronize(handle)
    thread.join()
    return True


def test_other_threads_run_while_one_waits(job2, tmp_path):
    assert job2.run(others_run_while_one_waits, tmp_path / "counted") == [True, True]


def several_threads():
    rank, size = bps.rank(), bps.size()
    problems = []

    def work(thread):
        try:
            for turn in range(20):
                mine = values(rank, (1000,), torch.float32, thread)
                result = bps.push_pull(mine, False, f"thread.{thread}.{turn}")
                check(result, expected(size, (1000,), torch.float32, False, thread))
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, problems


def test_several_threads_push_at_once(job2):
    job2.run(several_threads)


def grouped():
    ops.byteps_torch_set_num_grads(3)
    counts = []
    for step in range(2):
        started = [
            ops.push_pull_group_sync_inplace(torch.ones(2) * index, False, f"group.{index}") for index in range(3)
        ]
        counts += [count for _, count in started]
        for index, (handle, _) in enumerate(started):
            check(bps.synchronize(handle), torch.ones(2) * index * bps.size())
    return counts


def test_a_group_counts_its_tensors_up_to_the_last_of_the_step(job2):
    assert job2.run(grouped) == [[1, 2, 3, 1, 2, 3]] * 2


# ---- errors


def of_another_shape(kind):
    rank = bps.rank()
    mine = {
        "size": torch.ones(10 + rank),
        "shape": torch.ones([(2, 6), (6, 2), (12,)][rank]),
        "dtype": torch.ones(10, dtype=[torch.float32, torch.float64, torch.float16][rank]),
        "operation": torch.ones(10),
    }[kind]
    bps.push_pull(mine, average=kind != "operation" or rank == 0, name=f"layer7.{kind}")


@pytest.mark.parametrize("kind", ["size", "shape", "dtype", "operation"])
def test_ranks_that_disagree_about_a_tensor_all_get_an_error_with_its_name(job3, kind):
    for failure in job3.failures(of_another_shape, kind):
        assert failure is not None and failure.kind == "MismatchError"
        assert f"byteps.layer7.{kind}" in failure.text
    job3.run(unnamed)  # the job goes on


def another_size_later():
    bps.push_pull(torch.ones(4), name="fixed")
    with pytest.raises(ValueError, match="byteps.fixed"):
        bps.push_pull(torch.ones(5), name="fixed")
    with pytest.raises(ValueError, match="byteps.fixed.* was float32, shape 4, .* and is float32, shape 2x2, "):
        bps.push_pull(torch.ones(2, 2), name="fixed")
    scalar = bps.push_pull(torch.tensor(1.0), False, name="scalar")
    assert scalar.shape == () and scalar == bps.size()
    deep = torch.ones(1, 2, 1, 2, 1, 2)
    check(bps.push_pull(deep, name="deep"), deep)
    with pytest.raises(ValueError, match="byteps.deep.* was float32, shape 1x2x1x2x1x2, .* and is float32, shape 8, "):
        bps.push_pull(torch.ones(8), name="deep")
    check(bps.push_pull(torch.ones(4), name="fixed"), torch.ones(4))


def test_a_name_keeps_its_shape(job2):
    job2.run(another_size_later)


def test_what_cannot_be_summed_is_refused_with_a_reason(alone):
    with pytest.raises(ValueError, match="Tensor type torch.float8_e4m3fn is not supported"):
        bps.push_pull_async(torch.zeros(2, dtype=torch.float8_e4m3fn))
    with pytest.raises(ValueError, match=r"the tensor is on device 'meta'.*torch\.empty_like\(tensor, device='cpu'\)"):
        bps.push_pull_async_inplace(torch.zeros(2, device="meta"))
    with pytest.raises(ValueError, match="dense"):
        bps.push_pull(torch.eye(3).to_sparse(), name="sparse")
    with pytest.raises(ValueError, match="logical or"):
        bps.push_pull(torch.ones(2, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"torch\.Tensor"):
        bps.push_pull_async([1.0, 2.0])
    for call in (bps.push_pull, bps.allreduce, bps.reducescatter):
        with pytest.raises(ValueError, match="compression is 'fp16': use one of Compression"):
            call(torch.ones(2), compression="fp16")
    for factor in (None, "2", float("nan"), 0):
        with pytest.raises(ValueError, match=f"postscale_factor is {factor!r}: it must be a finite number"):
            bps.allreduce(torch.ones(2), postscale_factor=factor)
    with pytest.raises(ValueError, match="init: process_sets is .*: it must be a list of ProcessSet"):
        bps.init(process_sets=[[0, 1]])
    with pytest.raises(ValueError, match="1024"):
        bps.push_pull(torch.ones(1), name="x" * 2000)
    with pytest.raises(ValueError, match="at least 1"):
        ops.byteps_torch_set_num_grads(0)


@pytest.mark.parametrize(
    "name, why",
    [
        (5, "name is 5: the name of a tensor is a str, not int"),
        (b"bytes", "is a str, not bytes"),
        ("a\0b", "NUL"),
        ("w\udc80", "lone surrogate"),
    ],
)
def test_what_is_no_name_is_refused_before_anything_travels(alone, name, why):
    before = bps.metrics().finished_operations
    for call in (bps.push_pull, bps.push_pull_async, bps.push_pull_inplace, bps.byteps_push_pull):
        with pytest.raises(ValueError, match=why):
            call(torch.ones(2), name=name)
    with pytest.raises(ValueError, match=why):
        bps.declare(name)
    assert bps.metrics().finished_operations == before and not pending._operations


def test_a_result_cannot_land_in_elements_that_share_memory(alone):
    before = bps.metrics().finished_operations
    interleaved = torch.arange(8.0).as_strided((2, 3), (3, 2))  # 0 2 4, 3 5 7
    lapping = torch.arange(8.0).as_strided((2, 3), (2, 2))  # 0 2 4, 2 4 6
    for tensor in (torch.ones(1).expand(3), torch.ones(2, 1).expand(2, 2), torch.ones(9).unfold(0, 3, 1), lapping):
        with pytest.raises(ValueError, match="share one place in memory"):
            bps.push_pull_inplace(tensor)
    assert bps.metrics().finished_operations == before and not pending._operations
    assert torch.equal(bps.push_pull(torch.ones(1).expand(3)), torch.ones(3))
    assert torch.equal(bps.push_pull_inplace(torch.ones(1, 3).expand(1, 3)), torch.ones(1, 3))
    assert bps.push_pull_inplace(interleaved).tolist() == [[0, 2, 4], [3, 5, 7]]
    assert torch.equal(bps.push_pull_inplace(torch.ones(9).unfold(0, 3, 3)), torch.ones(3, 3))


def test_a_job_of_one_gives_back_what_it_gets(alone):
    every_dtype_and_shape()
    non_contiguous()
    any_order(round_count=2, tensor_count=20)
    backward_through_push_pull()
    assert alone.size() == 1 and alone.rank() == 0
    assert bps.metrics().finished_operations > 0
