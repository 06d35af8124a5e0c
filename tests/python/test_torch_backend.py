"""torch.distributed's backend "byteps": its collectives against what they are defined to give, in real jobs."""

import datetime

import pytest
import torch
import torch.distributed as dist
from torch_group import ensure_group


@pytest.fixture
def world(job, tmp_path):
    """The same clusters as the other tests, with a group of all ranks."""
    job.run(ensure_group, str(tmp_path / "store"))
    return job


@pytest.fixture
def world2(job2, tmp_path):
    job2.run(ensure_group, str(tmp_path / "store"))
    return job2


@pytest.fixture
def world3(job3, tmp_path):
    job3.run(ensure_group, str(tmp_path / "store"))
    return job3


_FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
_INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
DTYPES = [*_FLOATS, *_INTEGERS, torch.bool, torch.complex64, torch.complex128]


def test_all_reduce_sums_every_dtype_and_shape(world):
    def check(dtypes):
        rank, size = dist.get_rank(), dist.get_world_size()
        for dtype in dtypes:
            for shape in [(), (0,), (5,), (3, 4), (2, 1, 3, 2)]:
                tensor = torch.full(shape, rank + 1).to(dtype)
                dist.all_reduce(tensor)
                assert torch.equal(tensor, torch.full(shape, size * (size + 1) // 2).to(dtype)), (dtype, shape)

    world.run(check, DTYPES)


def test_all_reduce_has_average_min_max_product_and_logical_operations(world3):
    def check():
        rank = dist.get_rank()
        got = {}
        for op in (dist.ReduceOp.AVG, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
            tensor = torch.tensor([rank + 2.0, -rank, 0.5])
            dist.all_reduce(tensor, op)
            got[str(op).split(".")[-1]] = tensor.tolist()
        for op in (dist.ReduceOp.BOR, dist.ReduceOp.BAND):
            tensor = torch.tensor([rank == 1, True, False])
            dist.all_reduce(tensor, op)
            got[str(op).split(".")[-1]] = tensor.tolist()
        return got

    for got in world3.run(check):
        assert got == {
            "AVG": [3.0, -1.0, 0.5],
            "MIN": [2.0, -2.0, 0.5],
            "MAX": [4.0, 0.0, 0.5],
            "PRODUCT": [24.0, 0.0, 0.125],
            "BOR": [True, True, False],
            "BAND": [False, True, False],
        }


def test_operations_that_the_servers_lack_are_refused_with_a_remedy(world2):
    def check(op):
        dist.all_reduce(torch.ones(2, dtype=torch.int32), getattr(dist.ReduceOp, op))

    for op in ("BAND", "BXOR"):
        for failure in world2.failures(check, op):
            assert failure is not None and failure.kind == "ValueError" and op in failure.text


def test_a_transposed_tensor_gets_its_result_in_place(world2):
    def check():
        base = torch.arange(6.0).view(2, 3) + dist.get_rank()
        view = base.t()
        dist.all_reduce(view)
        return base.tolist()

    assert world2.run(check) == [[[1.0, 3.0, 5.0], [7.0, 9.0, 11.0]]] * 2


def test_complex_tensors_have_sums(world2):
    def check():
        tensor = torch.tensor([1 + 2j, 3 - 1j]) * (dist.get_rank() + 1)
        dist.all_reduce(tensor)
        return tensor.tolist()

    assert world2.run(check) == [[3 + 6j, 9 - 3j]] * 2


def test_broadcast_gives_the_root_s_values_whatever_others_had(world):
    def check(dtypes):
        rank, size = dist.get_rank(), dist.get_world_size()
        for root in range(size):
            for dtype in dtypes:
                tensor = torch.full((3, 2), root).to(dtype) if rank == root else torch.empty(3, 2).to(dtype)
                if rank != root and dtype == torch.float32:
                    tensor.fill_(float("nan"))
                dist.broadcast(tensor, root)
                assert torch.equal(tensor, torch.full((3, 2), root).to(dtype)), (root, dtype)

    world.run(check, DTYPES)


def test_all_gather_takes_equal_and_unequal_shapes(world):
    def check():
        rank, size = dist.get_rank(), dist.get_world_size()
        equal = [torch.zeros(2, 3, dtype=torch.int64) for _ in range(size)]
        dist.all_gather(equal, torch.full((2, 3), rank))
        assert [part[1, 2].item() for part in equal] == list(range(size))
        ragged = [torch.zeros(member, 2) for member in range(size)]  # rank 0's is empty
        dist.all_gather(ragged, torch.full((rank, 2), float(rank)))
        assert all(torch.equal(part, torch.full((member, 2), float(member))) for member, part in enumerate(ragged))
        whole = torch.zeros(size * 3)
        dist.all_gather_into_tensor(whole, torch.full((3,), float(rank)))
        assert whole.tolist() == [float(member) for member in range(size) for _ in range(3)]

    world.run(check)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_all_gather_coalesced_gives_a_list_for_each_rank(world):
    def check():
        rank, size = dist.get_rank(), dist.get_world_size()
        numbers = range(size)  # as many tensors as ranks
        outputs = [[torch.zeros(2, dtype=torch.int64) for _ in numbers] for _ in range(size)]
        dist.all_gather_coalesced(outputs, [torch.full((2,), 10 * rank + number) for number in numbers])
        assert [[part[1].item() for part in parts] for parts in outputs] == [
            [10 * member + number for number in numbers] for member in range(size)
        ]
        outputs = [[torch.zeros(3), torch.zeros(member, 2)] for member in range(size)]  # shapes are each rank's own
        dist.all_gather_coalesced(outputs, [torch.full((3,), float(rank)), torch.full((rank, 2), float(rank))])
        for member, parts in enumerate(outputs):
            assert torch.equal(parts[0], torch.full((3,), float(member)))
            assert torch.equal(parts[1], torch.full((member, 2), float(member)))
        for wrong in ([[torch.zeros(1)]] * (size + 1), [[torch.zeros(1)] * 2] * size):
            with pytest.raises(ValueError, match="all_gather_coalesced: .* output tensors for"):
                dist.group.WORLD.allgather_coalesced(wrong, [torch.zeros(1)])

    world.run(check)


def test_reduce_scatter_gives_each_rank_its_part(world):
    def check():
        rank, size = dist.get_rank(), dist.get_world_size()
        output = torch.zeros(3)
        dist.reduce_scatter_tensor(output, torch.arange(3.0 * size) + rank)
        mine = torch.arange(3.0) + 3 * rank
        assert torch.equal(output, mine * size + sum(range(size)))
        dist.reduce_scatter_tensor(output, torch.arange(3.0 * size), dist.ReduceOp.AVG)
        assert torch.equal(output, mine)
        ragged = torch.zeros(rank + 1, dtype=torch.int64)
        dist.reduce_scatter(ragged, [torch.full((member + 1,), rank + member) for member in range(size)])
        assert ragged.tolist() == [sum(range(size)) + size * rank] * (rank + 1)

    world.run(check)


def test_all_to_all_takes_equal_and_unequal_splits(world):
    def check():
        rank, size = dist.get_rank(), dist.get_world_size()
        output = torch.zeros(2 * size)
        dist.all_to_all_single(output, torch.arange(2.0 * size) + 100 * rank)
        assert output.tolist() == [100.0 * other + 2 * rank + i for other in range(size) for i in range(2)]
        # rank r sends r + d rows to rank d
        send = [rank + other for other in range(size)]
        receive = [other + rank for other in range(size)]
        output = torch.zeros(sum(receive), 2, dtype=torch.int64)
        dist.all_to_all_single(output, torch.full((sum(send), 2), rank), receive, send)
        assert output[:, 1].tolist() == [other for other in range(size) for _ in range(receive[other])]
        parts = [torch.zeros(receive[other]) for other in range(size)]
        dist.all_to_all(parts, [torch.full((count,), float(rank)) for count in send])
        assert [part.tolist() for part in parts] == [[float(other)] * receive[other] for other in range(size)]

    world.run(check)


def test_reduce_gather_and_scatter_have_a_root(world):
    def check():
        rank, size = dist.get_rank(), dist.get_world_size()
        for root in range(size):
            tensor = torch.full((4,), rank + 1.0)
            dist.reduce(tensor, root, dist.ReduceOp.SUM)
            if rank == root:
                assert tensor.tolist() == [size * (size + 1) / 2] * 4
            places = [torch.zeros(2) for _ in range(size)] if rank == root else None
            dist.gather(torch.full((2,), float(rank)), places, root)
            if places is not None:
                assert [place[0].item() for place in places] == list(range(size))
            given = [torch.full((2,), member + 10.0) for member in range(size)] if rank == root else None
            output = torch.zeros(2)
            dist.scatter(output, given, root)
            assert output.tolist() == [rank + 10.0] * 2

    world.run(check)


def test_send_meets_recv_by_rank_and_tag(world3):
    def check():
        rank = dist.get_rank()
        if rank == 0:
            works = [dist.isend(torch.full((3,), float(tag)), 1, tag=tag) for tag in (1, 2)]
            dist.send(torch.tensor([7.0]), 2)
            dist.send(torch.tensor([8.0]), 2)
            for work in works:
                work.wait()
            return []
        if rank == 1:
            second, first = torch.zeros(3), torch.zeros(3)
            dist.recv(second, 0, tag=2)
            dist.recv(first, 0, tag=1)
            return first.tolist() + second.tolist()
        got = [torch.zeros(1), torch.zeros(1)]
        for tensor in got:
            dist.recv(tensor, 0)
        return [tensor.item() for tensor in got]

    assert world3.run(check) == [[], [1.0] * 3 + [2.0] * 3, [7.0, 8.0]]


def test_batches_of_sends_and_receives_pass_a_ring(world3):
    def check():
        rank, size = dist.get_rank(), dist.get_world_size()
        got = torch.zeros(2)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, torch.full((2,), float(rank)), (rank + 1) % size),
                dist.P2POp(dist.irecv, got, (rank - 1) % size),
            ]
        )
        for work in works:
            work.wait()
        return got.tolist()

    assert world3.run(check) == [[2.0] * 2, [0.0] * 2, [1.0] * 2]


def test_objects_travel(world):
    def check():
        rank, size = dist.get_rank(), dist.get_world_size()
        everyone = [None] * size
        dist.all_gather_object(everyone, {"rank": rank, "text": "x" * 10 * rank})
        assert everyone == [{"rank": member, "text": "x" * 10 * member} for member in range(size)]
        objects = [("root", 1.5), None] if rank == size - 1 else [None, None]
        dist.broadcast_object_list(objects, size - 1)
        assert objects == [("root", 1.5), None]

    world.run(check)


def test_subgroups_work_side_by_side(world3):
    def check():
        rank = dist.get_rank()
        pairs = [dist.new_group(ranks) for ranks in ([0, 1], [1, 2], [0, 2])]
        got = []
        for ranks, group in zip(([0, 1], [1, 2], [0, 2]), pairs):
            if rank not in ranks:
                continue
            tensor = torch.tensor([10.0**rank])
            dist.all_reduce(tensor, group=group)
            root = torch.tensor([float(rank)])
            dist.broadcast(root, ranks[1], group=group)
            parts = torch.zeros(2)
            dist.all_gather_into_tensor(parts, torch.tensor([float(rank)]), group=group)
            got.append((tensor.item(), root.item(), parts.tolist()))
            dist.barrier(group=group)
        for group in pairs:
            dist.destroy_process_group(group)
        return got

    first, second, third = (11.0, 1.0, [0.0, 1.0]), (110.0, 2.0, [1.0, 2.0]), (101.0, 2.0, [0.0, 2.0])
    assert world3.run(check) == [[first, third], [first, second], [second, third]]


def test_many_collectives_are_in_flight_at_once_and_end_in_any_order(world):
    def check():
        size = dist.get_world_size()
        tensors = [torch.full((index + 1,), float(index)) for index in range(100)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in reversed(works):
            assert work.wait() and work.is_completed() and work.is_success()
        return all(torch.equal(tensor, torch.full_like(tensor, size * index)) for index, tensor in enumerate(tensors))

    assert world.run(check) == [True] * world.size


def test_futures_complete_and_chain(world2):
    def check():
        tensor = torch.ones(4)
        future = dist.all_reduce(tensor, async_op=True).get_future()
        return future.then(lambda done: done.value()[0] * 3).wait().tolist()

    assert world2.run(check) == [[6.0] * 4] * 2


def test_a_forked_child_does_not_wait_for_its_parent_s_collectives(world2):
    def check():
        import os

        works = [dist.irecv(torch.zeros(1), 1 - dist.get_rank(), tag=tag) for tag in (1, 2)]
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            seen = []
            for call in (works[0].wait, works[1].get_future, works[1].is_completed):
                try:
                    seen.append(f"{call()}")
                except BaseException as error:
                    seen.append(type(error).__name__)
            os.write(writer, " ".join(seen).encode())
            os._exit(0)
        os.close(writer)
        os.waitpid(pid, 0)
        for tag in (1, 2):
            dist.send(torch.ones(1), 1 - dist.get_rank(), tag=tag)
        return os.read(reader, 1000).decode(), [work.wait() for work in works]

    assert world2.run(check) == [("InvalidArgumentError InvalidArgumentError InvalidArgumentError", [True, True])] * 2


def test_a_mismatch_names_collective_group_and_ranks(world2):
    def check():
        dist.all_reduce(torch.ones(3 + dist.get_rank()))

    for failure in world2.failures(check):
        assert failure.kind == "MismatchError"
        assert "all_reduce" in failure.text and "group" in failure.text and "worker 1" in failure.text


@pytest.mark.host(reason="torch itself broadcasts floats of 8 bits as bytes on GPUs")
def test_dtypes_that_travel_alike_are_told_apart(world2):
    def check(what):  # complex numbers are pairs of real ones before torch calls a group
        x = torch.zeros(4, dtype=torch.float8_e5m2 if dist.get_rank() else torch.float8_e4m3fn)
        if what == "all_gather":
            dist.all_gather([torch.zeros_like(x), torch.zeros_like(x)], x)
        else:
            dist.broadcast(x, 0)

    for what in ("all_gather", "broadcast"):
        for failure in world2.failures(check, what):
            assert failure.kind == "MismatchError"
            assert "float8_e4m3fn" in failure.text and "float8_e5m2" in failure.text


def test_a_collective_that_others_do_not_call_times_out_and_may_be_waited_for_again(world2):
    def check():
        tensor = torch.ones(1)
        if dist.get_rank() == 0:
            work = dist.all_reduce(tensor, async_op=True)
            try:
                work.wait(datetime.timedelta(milliseconds=50))
            except TimeoutError as error:
                text = str(error)
            dist.send(torch.zeros(1), 1)  # now rank 1 may call it
            work.wait()
            return text, tensor.item()
        dist.recv(torch.zeros(1), 0)
        dist.all_reduce(tensor)
        return "", tensor.item()

    (text, first), (_, second) = world2.run(check)
    assert "all_reduce" in text and "timeout" in text and first == second == 2.0


def test_wrong_arguments_are_told_before_anything_is_sent(world2):
    def all_gather():
        dist.all_gather_into_tensor(torch.zeros(5), torch.zeros(3))

    def reduce_scatter():
        dist.reduce_scatter_tensor(torch.zeros(2), torch.zeros(5))

    def sparse():
        dist.all_reduce(torch.eye(3).to_sparse())

    def alltoall():
        dist.all_to_all_single(torch.zeros(3), torch.zeros(3))

    for function in (all_gather, reduce_scatter, sparse, alltoall):
        assert [failure.kind for failure in world2.failures(function)] == ["ValueError"] * 2, function.__name__
    assert world2.run(lambda: dist.barrier()) == [None, None]


def test_autograd_sees_that_a_result_has_landed(world2):
    def check():
        weight = torch.ones(2, requires_grad=True)
        product = weight * 2
        saved = product.exp()  # keeps its own result for backward
        with torch.no_grad():
            dist.all_reduce(saved)
        try:
            saved.sum().backward()
        except RuntimeError as error:
            return "modified by an inplace operation" in str(error)

    assert world2.run(check) == [True, True]
