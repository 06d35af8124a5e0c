"""What tensors on GPUs have beyond those of the CPU: streams, ranks that differ, several devices. On the played GPU
(on_cuda.py), which ends a process that uses memory out of order, whatever the values happen to be."""

import on_cuda
import pytest
import torch
import torch.distributed as dist
from cluster import Cluster
from forked import heard_in_child
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset
from test_compression import coded
from torch_group import ensure_group

import byteps.torch as bps
from byteps.torch.cross_barrier import CrossBarrier
from byteps.torch.parallel import DistributedDataParallel


@pytest.fixture
def world2(job2, tmp_path):
    job2.run(ensure_group, str(tmp_path / "store"))
    return job2


def total(values, size):
    """The sum over ranks r of values + r."""
    return values * size + size * (size - 1) // 2


def check(tensor, wanted, device="cuda:0"):
    assert tensor.device == torch.device(device), tensor.device
    assert torch.equal(tensor.cpu(), wanted.cpu()), (tensor.cpu(), wanted.cpu())


VALUES = torch.arange(6.0).reshape(2, 3)


# ---- copies


def copied_bytes():
    before = bps.metrics()
    tensor = torch.full((1000,), bps.rank() + 1.0)
    check(bps.push_pull(tensor, False, "copied"), torch.full((1000,), 3.0))
    after = bps.metrics()
    return after.device_out_bytes - before.device_out_bytes, after.device_in_bytes - before.device_in_bytes


def test_what_is_copied_from_and_to_gpus_is_counted(job2):
    assert job2.run(copied_bytes) == [(4000, 4000)] * 2


# ---- streams


def on_side_streams():
    """Made on one stream, awaited on another, and freed while the third still reads it: with what comes back from each
    function, also in its second round, when memory of the first is used again."""
    rank, size = bps.rank(), bps.size()
    made, awaited = torch.cuda.Stream(), torch.cuda.Stream()
    for turn in range(3):
        with torch.cuda.stream(made):
            mine = VALUES.cuda() + rank
            handles = {
                "new": bps.push_pull_async(mine, False, "new"),
                "column": bps.push_pull_async(mine.t(), False, "column"),
                "in place": bps.push_pull_async_inplace((mine * 1).t(), False, "in place"),
                "gathered": bps.allgather_async(mine),
                "gathered columns": bps.allgather_async(mine.t()),
                "share": bps.reducescatter_async(mine, op=bps.Sum),
                "exchanged": bps.alltoall_async(mine.repeat(size, 1)),
                "sent": bps.broadcast_async(mine, 1),
                "sparse": bps.sparse_allreduce_async(mine.to_sparse(), "sparse", bps.Sum),
            }
            later = mine * 2  # on the stream, of which nothing above waits
            del mine
        with torch.cuda.stream(awaited):
            found = {name: bps.synchronize(handle) for name, handle in handles.items()}
            found["exchanged"] = found["exchanged"][0]
            found["sparse"] = found["sparse"].to_dense()
            copies = {name: value * 1 for name, value in found.items()}  # reads each on this stream
            del found
        awaited.synchronize()
        made.synchronize()
        check(later, (VALUES + rank) * 2)
        everybody = torch.cat([VALUES + other for other in range(size)])
        whole = total(VALUES, size)
        for name, wanted in {
            "new": whole,
            "column": whole.t(),
            "in place": whole.t(),
            "gathered": everybody,
            "gathered columns": torch.cat([(VALUES + other).t() for other in range(size)]),
            "share": whole[rank : rank + 1],
            "exchanged": everybody,
            "sent": VALUES + 1,
            "sparse": whole,
        }.items():
            check(copies[name], wanted)
        del copies, turn


def test_a_tensor_is_made_and_used_on_any_stream(job2):
    job2.run(on_side_streams)


def memory_that_others_still_use(operation):
    """What a call has made or kept is freed while a stream still reads it, and the next call makes as much; and memory
    of the default stream is freed while that still writes to it."""
    made, awaited = torch.cuda.Stream(), torch.cuda.Stream()
    kept = []
    for turn in range(4):
        torch.zeros(2, 3).add_(1)  # freed, and perhaps not yet done
        torch.zeros(4, 3).add_(1)
        with torch.cuda.stream(made):
            handle = operation(VALUES.cuda() + bps.rank() + turn)
        with torch.cuda.stream(awaited):
            result = bps.synchronize(handle)
            kept.append((result[0] if isinstance(result, tuple) else result) * 1)
            del result
    awaited.synchronize()
    return [each.cpu() for each in kept]


@pytest.mark.parametrize(
    "operation",
    [
        lambda tensor: bps.push_pull_async(tensor, False, "sum"),
        lambda tensor: bps.push_pull_async_inplace(tensor.t(), False, "sum in place"),
        lambda tensor: bps.allgather_async(tensor),
        lambda tensor: bps.reducescatter_async(tensor, op=bps.Sum),
        lambda tensor: bps.alltoall_async(tensor.repeat(2, 1)),
    ],
    ids=["push_pull", "in_place", "allgather", "reducescatter", "alltoall"],
)
def test_memory_is_not_used_again_before_others_have_done_with_it(job2, operation):
    first, second = job2.run(memory_that_others_still_use, operation)
    assert len(first) == len(second) == 4 and not torch.equal(first[0], first[1])


def collectives_on_side_streams(in_callbacks):
    rank, size = dist.get_rank(), dist.get_world_size()
    made, awaited = torch.cuda.Stream(), torch.cuda.Stream()
    for _ in range(3):
        with torch.cuda.stream(made):
            mine = VALUES.cuda() + rank
            plain, column = mine.clone(), (mine * 1).t()
            parts = [torch.empty(3, 2).t() for _ in range(size)]
            into = torch.empty(2, 3)
            works = [
                dist.all_reduce(plain, async_op=True),
                dist.all_reduce(column, async_op=True),
                dist.all_gather(parts, mine, async_op=True),
                dist.all_to_all_single(into, mine, async_op=True),
            ]
            later = mine * 2  # on the stream, of which nothing above waits
        with torch.cuda.stream(awaited):
            if in_callbacks:
                doubled = lambda done: [part * 2 for part in tree_leaves(done.value())]
                futures = [work.get_future().then(doubled) for work in works]
                found = [part / 2 for future in futures for part in future.wait()]
            else:
                for work in works:
                    work.wait()
                found = [each * 1 for each in (plain, column, *parts, into)]
        awaited.synchronize()
        made.synchronize()
        check(later, (VALUES + rank) * 2)
        rows = torch.cat([(VALUES + other)[rank : rank + 1] for other in range(size)])
        whole = total(VALUES, size)
        for value, wanted in zip(found, [whole, whole.t(), *[VALUES + other for other in range(size)], rows]):
            check(value, wanted)


@pytest.mark.parametrize("in_callbacks", [False, True], ids=["waits", "callbacks"])
def test_collectives_of_a_group_are_ordered_by_streams(world2, in_callbacks):
    world2.run(collectives_on_side_streams, in_callbacks)


def training_on_a_side_stream(wrap):
    """Losses and parameters as on the default stream, where they are as on the CPU (the other suites)."""

    def train(stream):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        model, optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        stream.wait_stream(torch.cuda.current_stream())  # the model is there
        with torch.cuda.stream(stream):
            for step in range(3):
                optimizer.zero_grad()
                inputs = torch.ones(4, 3) * torch.arange(4.0).unsqueeze(1) + step + bps.rank()
                model(inputs).pow(2).mean().backward()
                optimizer.step()
            if hasattr(optimizer, "synchronize"):
                optimizer.synchronize()
        stream.synchronize()
        return [value.cpu() for value in model.state_dict().values()]

    plain, other = train(torch.cuda.current_stream()), train(torch.cuda.Stream())
    assert all(torch.equal(a, b) for a, b in zip(plain, other))


def with_optimizer(model, optimizer):
    return model, bps.DistributedOptimizer(optimizer, model.named_parameters())


def in_16_bits(model, optimizer):
    optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters(), compression=bps.Compression.bf16)
    return model, optimizer


def with_cross_barrier(model, optimizer):
    return model, CrossBarrier(model, optimizer, model.named_parameters())


def with_model(model, optimizer):
    return DistributedDataParallel(bps.SyncBatchNorm.convert_sync_batchnorm(model)), optimizer


@pytest.mark.parametrize("wrap", [with_optimizer, in_16_bits, with_cross_barrier, with_model])
def test_a_model_is_trained_on_any_stream(job2, wrap):
    job2.run(training_on_a_side_stream, wrap)


def during_a_capture():
    """Refused as soon as it is submitted, and the capture goes on."""
    tensor, column = torch.ones(3), torch.ones(2, 3).t()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    before = bps.metrics().finished_operations
    with torch.cuda.stream(stream):
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        try:
            for call in (bps.push_pull_async_inplace, bps.allgather_async):
                with pytest.raises(ValueError, match="captur"):
                    call(tensor)
        finally:
            try:
                graph.capture_end()
            except RuntimeError:
                pass  # the played GPU makes no graph
    assert bps.metrics().finished_operations == before
    check(bps.push_pull(column, False, "after a capture"), torch.full((3, 2), 2.0))


def test_a_capture_is_refused_and_goes_on(job2):
    job2.run(during_a_capture)


# ---- ranks that differ


def on_different_devices():
    """Rank 0 has its tensors on the GPU, rank 1 in host memory: nobody has to know."""
    rank, size = bps.rank(), bps.size()
    here = "cuda:0" if rank == 0 else "cpu"
    mine = (VALUES + rank).to(here)
    check(bps.push_pull(mine, False, "mixed"), total(VALUES, size), here)
    check(bps.allgather(mine), torch.cat([VALUES, VALUES + 1]), here)
    check(bps.reducescatter(mine, op=bps.Sum), total(VALUES, size)[rank : rank + 1], here)
    for root in range(size):
        check(bps.broadcast(mine, root), VALUES + root, here)
    sent, counts = bps.alltoall(mine, torch.tensor([1, 1], device=here))
    check(sent, torch.stack([VALUES[rank], VALUES[rank] + 1]), here)
    check(counts, torch.ones(2, dtype=torch.int64), here)
    check(bps.allreduce(mine.to_sparse(), op=bps.Sum).to_dense(), total(VALUES, size), here)


def test_some_ranks_may_have_a_tensor_on_a_gpu_and_others_in_host_memory(job2):
    job2.run(on_different_devices)


def trained_on_different_devices(root):
    here = torch.device("cuda:0" if bps.rank() == 0 else "cpu")
    torch.manual_seed(bps.rank())
    model = nn.Linear(3, 2, device=here)
    plain = torch.optim.Adam(model.parameters(), lr=0.1 * (1 + bps.rank()))
    if bps.rank() == root:
        model(torch.ones(1, 3, device=here)).sum().backward()
        plain.step()
        plain.zero_grad()
    bps.broadcast_parameters(model.state_dict(), root)
    bps.broadcast_optimizer_state(plain, root)
    for state in plain.state.values():
        assert state["exp_avg"].device == here and state["step"].device.type == "cpu", state["step"].device
    optimizer = bps.DistributedOptimizer(plain, model.named_parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 3, device=here) * (bps.rank() + 1)).sum().backward()
        optimizer.step()
    assert all(parameter.device == here for parameter in model.parameters())
    state = [value.cpu() for each in optimizer.state.values() for value in each.values()]
    return [parameter.detach().cpu() for parameter in model.parameters()] + state


@pytest.mark.parametrize("root", [0, 1])
def test_a_model_may_be_on_a_gpu_on_some_ranks_only(job2, root):
    first, second = job2.run(trained_on_different_devices, root)
    assert len(first) == len(second) == 8
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(first, second))


# ---- gradients in fewer bytes, on two machines of two workers each

COMPRESSED = 1 << 16  # elements: more than BYTEPS_MIN_COMPRESS_BYTES, and parts of whole blocks


@pytest.fixture(scope="module")
def two_and_two():
    with Cluster(hosts=(2, 2)) as job:
        yield job


def gradient(rank, device):
    return torch.randn(COMPRESSED, generator=torch.Generator("cpu").manual_seed(rank), device="cpu").to(device)


def compressed(name, format, device="cuda:0"):
    """The average, and how many bytes left the GPU and, of the leaders of the machine's sum, the machine."""
    before = bps.metrics()
    result = bps.push_pull(gradient(bps.rank(), device), name=name, compression=getattr(bps.Compression, format))
    after = bps.metrics()
    assert result.device == torch.device(device) and result.dtype == torch.float32
    counts = [after[at] - before[at] for at in range(len(after))]
    moved = type(after)(*counts)
    return result.cpu(), moved.device_out_bytes, moved.pushed_wire_bytes


@pytest.mark.parametrize("format", ["int8", "int4"])
def test_codes_of_gpus_are_made_of_the_machines_sums_in_host_memory_bit_for_bit(two_and_two, format):
    results = two_and_two.run(compressed, f"coded.{format}", format)
    sums = [gradient(rank, "cpu") + gradient(rank + 1, "cpu") for rank in (0, 2)]
    total = sum(torch.from_numpy(coded(each.numpy(), format)) for each in sums)
    wanted = torch.from_numpy(coded((total / 4).numpy(), format))
    for result, out_bytes, _ in results:
        assert torch.equal(result, wanted)
        assert out_bytes == 4 * COMPRESSED
    for machine in (results[:2], results[2:]):
        sent = sum(on_wire for _, _, on_wire in machine)
        assert 4 * COMPRESSED / sent > {"int8": 3.9, "int4": 7.0}[format]
    mixed = two_and_two.run_each([(compressed, (f"mixed.{format}", format, device), {}) for device in DEVICES])
    assert all(torch.equal(result, wanted) for result, _, _ in mixed), "some of them are in host memory"


DEVICES = ["cuda:0", "cpu", "cpu", "cuda:0"]


@pytest.mark.parametrize("format", ["fp16", "bf16"])
def test_casts_of_gpus_are_made_there_and_half_the_bytes_leave_them(two_and_two, format):
    results = two_and_two.run(compressed, f"cast.{format}", format)
    wanted = sum(gradient(rank, "cpu") for rank in range(4)) / 4
    for result, out_bytes, _ in results:
        assert torch.equal(result, results[0][0])
        torch.testing.assert_close(result, wanted, rtol=0, atol={"fp16": 4e-3, "bf16": 4e-2}[format])
        assert out_bytes == 2 * COMPRESSED
    for machine in (results[:2], results[2:]):
        assert sum(on_wire for _, _, on_wire in machine) == 2 * COMPRESSED


def trained_in_fewer_bytes(format, feeds_back, device):
    compression = getattr(bps.Compression, format)
    compression = compression(error_feedback=True) if feeds_back else compression
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(160, 256), nn.ReLU(), nn.Linear(256, 4)).to(device)
    plain = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = bps.DistributedOptimizer(plain, model.named_parameters(), compression, name=f"{compression}{device}")
    generator = torch.Generator("cpu").manual_seed(bps.rank())
    losses = []
    for _ in range(6):
        inputs = torch.randn(8, 160, generator=generator, device="cpu").to(device)
        optimizer.zero_grad()
        loss = (model(inputs) - inputs[:, :4]).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    residuals = optimizer._gradients.residuals.tensors.values()
    assert all(each.device.type == "cpu" for each in residuals)
    return [value.cpu() for value in model.state_dict().values()], losses, optimizer.residual_norm()


@pytest.mark.parametrize(
    "format, feeds_back", [("fp16", False), ("bf16", False), ("int8", True), ("int4", True), ("int4", False)]
)
def test_a_model_is_trained_in_fewer_bytes_as_in_host_memory(two_and_two, format, feeds_back):
    results = two_and_two.run(trained_in_fewer_bytes, format, feeds_back, "cuda:0")
    for weights, _, _ in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(weights, results[0][0]))
    norm = sum(norm**2 for _, _, norm in results) ** 0.5
    assert (norm > 0) == feeds_back
    in_memory = two_and_two.run(trained_in_fewer_bytes, format, feeds_back, "cpu")
    for (weights, losses, _), (wanted, wanted_losses, _) in zip(results, in_memory):
        assert losses == pytest.approx(wanted_losses, rel=1e-2)
        if format.startswith("int"):  # a cast on the device is of each rank's gradient, one below of the machine's sum
            assert all(torch.equal(a, b) for a, b in zip(weights, wanted))


# ---- several devices of a process


def on_the_second_device():
    """Which is not the current one."""
    assert torch.cuda.current_device() == 0
    mine = (VALUES + bps.rank()).to("cuda:1")
    check(bps.push_pull(mine, False, "second"), total(VALUES, 2), "cuda:1")
    check(bps.allgather(mine.t()), torch.cat([VALUES.t(), VALUES.t() + 1]), "cuda:1")
    check(bps.broadcast(mine, 1), VALUES + 1, "cuda:1")
    model = nn.Linear(3, 1, device="cuda:1")
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    bps.broadcast_parameters(model.state_dict())
    model(mine).sum().backward()
    optimizer.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


def test_a_tensor_may_be_on_a_device_that_is_not_the_current_one(job2):
    first, second = job2.run(on_the_second_device)
    assert all(torch.equal(a, b) for a, b in zip(first, second))


def model_of_two_devices():
    split = nn.Sequential(nn.Linear(2, 2, device="cuda:0"), nn.Linear(2, 2, device="cuda:1"))
    sgd = torch.optim.SGD(split.parameters(), lr=0.1)
    for wrap in (
        lambda: bps.DistributedOptimizer(sgd, split.named_parameters()),
        lambda: CrossBarrier(split, sgd),
        lambda: DistributedDataParallel(split),
        lambda: bps.broadcast_parameters(split.state_dict(), 0),
        lambda: bps.broadcast_optimizer_state(sgd, 0),
    ):
        with pytest.raises(ValueError, match=r"is on device 'cuda:1', others are on 'cuda:0'.*model\.to\('cuda:0'\)"):
            wrap()
    embedding = nn.Sequential(nn.Linear(2, 2, device="cpu"), nn.Linear(2, 2, device="cuda:0"))
    bps.broadcast_parameters(embedding.state_dict(), 0)
    sgd = torch.optim.SGD(embedding.parameters(), lr=0.1)
    bps.DistributedOptimizer(sgd, embedding.named_parameters())


def test_the_model_of_a_process_is_on_one_gpu_and_the_cpu(job2):
    job2.run(model_of_two_devices)


def input_and_output_apart():
    with pytest.raises(ValueError, match="all_gather .*: the tensors are on the devices 'cpu' and 'cuda:0'"):
        dist.all_gather([torch.empty(2, device="cpu") for _ in range(2)], torch.ones(2))
    token = torch.ones(2)
    dist.barrier(device_ids=[0])  # after what the current stream has been given
    dist.all_reduce(token)
    check(token, torch.full((2,), 2.0))
    group = dist.distributed_c10d._get_default_group()
    assert group._get_backend(torch.device("cuda")) is group and group._get_backend(torch.device("cpu")) is group
    objects = [None, None]
    dist.all_gather_object(objects, {"rank": dist.get_rank()})
    assert objects == [{"rank": 0}, {"rank": 1}]


def test_the_tensors_of_a_collective_are_on_one_device(world2):
    world2.run(input_and_output_apart)


def both_named(path):
    store = dist.FileStore(path, bps.size())
    dist.init_process_group("cpu:byteps,cuda:byteps", store=store, rank=bps.rank(), world_size=bps.size())
    for device in ("cpu", "cuda:0"):
        tensor = torch.ones(2, device=device)
        dist.all_reduce(tensor)
        check(tensor, torch.full((2,), 2.0), device)
    dist.destroy_process_group()


def no_driver():
    model = nn.Linear(2, 1, device="cuda:0")
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for wrap in (
        lambda: bps.DistributedOptimizer(sgd, model.named_parameters()),
        lambda: DistributedDataParallel(model),
        lambda: bps.broadcast_parameters(model.state_dict()),
    ):
        with pytest.raises(bps.BytePSError, match="/nowhere/libcuda.so.1") as info:
            wrap()
        assert type(info.value).__name__ == "UnsupportedError"


def test_two_kinds_of_devices_may_be_named(tmp_path):
    with Cluster(2) as cluster:
        cluster.run(both_named, str(tmp_path / "store"))


def test_a_missing_driver_is_told_when_a_model_is_wrapped():
    with Cluster(2, environ={"BYTEPS_CUDA_LIBRARY": "/nowhere/libcuda.so.1"}) as cluster:
        cluster.run(no_driver)


# ---- beside the user's own NCCL: a group of torch's between the same ranks


needs_nccl = pytest.mark.skipif(
    not dist.is_nccl_available() or (on_cuda.IS_REAL and torch.cuda.device_count() < 2),
    reason="no NCCL in this torch, or no two GPUs for it",
)


@pytest.fixture
def nccl2(tmp_path):
    with Cluster(2) as cluster:
        cluster.run(begin_nccl, str(tmp_path / "store"))
        yield cluster
        if not cluster.broken:
            cluster.run(dist.destroy_process_group)


def begin_nccl(path):
    torch.cuda.set_device(bps.rank())
    dist.init_process_group("nccl", store=dist.FileStore(path, 2), rank=bps.rank(), world_size=2)


def by_turns(ours_first):
    """Both are under way at once, on the current stream and another, and each reads what the other one has left."""
    device, rank = torch.device("cuda", bps.rank()), bps.rank()
    side = torch.cuda.Stream()
    for turn in range(4):
        mine, other = (torch.full((1000,), float(turn + rank), device=device) for _ in range(2))
        side.wait_stream(torch.cuda.current_stream())

        def submit_ours():
            return bps.push_pull_async(mine, average=False, name="mine")

        def submit_nccl():
            with torch.cuda.stream(side):
                return dist.all_reduce(other, async_op=True)

        if ours_first:
            handle, work = submit_ours(), submit_nccl()
        else:
            work, handle = submit_nccl(), submit_ours()
        sum_of_ours = bps.synchronize(handle)
        work.wait()
        torch.cuda.current_stream().wait_stream(side)
        wanted = torch.full((1000,), 2.0 * turn + 1)
        check(sum_of_ours, wanted, device)
        check(other, wanted, device)
        dist.all_reduce(sum_of_ours)
        check(bps.push_pull(sum_of_ours, average=True, name="both"), 2 * wanted, device)


@needs_nccl
def test_sums_of_nccl_and_ours_are_right_side_by_side_in_both_orders(nccl2):
    nccl2.run(by_turns, True)
    nccl2.run(by_turns, False)


def train(wrapped, device):
    """Two models in one loop, each step of one between those of the other."""
    models, optimizers = [], []
    for wrap in wrapped:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
        sgd = torch.optim.SGD(model.parameters(), lr=0.125)
        model, optimizer = wrap(model, sgd)
        models.append(model)
        optimizers.append(optimizer)
    for step in range(3):
        torch.manual_seed(10 * step + bps.rank())
        x = torch.randn(4, 6, device="cpu").to(device)
        losses = [model(x).square().mean() for model in models]
        for optimizer in optimizers:
            optimizer.zero_grad()
        for loss in losses:
            loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    return [[parameter.detach().cpu() for parameter in model.parameters()] for model in models]


def ours(model, sgd):
    return model, bps.DistributedOptimizer(sgd, model.named_parameters())


def nccls(model, sgd):
    return nn.parallel.DistributedDataParallel(model), sgd


def training_beside_ddp(first, second):
    return train((first, second), torch.device("cuda", bps.rank()))


@needs_nccl
def test_a_model_of_ours_and_one_of_ddp_over_nccl_are_trained_in_one_loop(nccl2):
    for wraps in ((ours, nccls), (nccls, ours)):
        results = nccl2.run(training_beside_ddp, *wraps)
        flat = [[tensor for model in rank for tensor in model] for rank in results]
        assert all(torch.equal(a, b) for a, b in zip(*flat))  # ranks
        one, other = results[0]
        assert all(torch.equal(a, b) for a, b in zip(one, other))  # who sums


def without_a_wait():
    mine = torch.ones(1000, device=torch.device("cuda", bps.rank()))
    work = dist.all_reduce(mine, async_op=True)
    bps.push_pull(mine, average=False, name="unordered")
    work.wait()


@needs_nccl
@pytest.mark.skipif(on_cuda.IS_REAL, reason="a real GPU does not tell")
def test_what_nccl_still_writes_must_be_awaited_before_we_read_it(nccl2):
    with pytest.raises(AssertionError, match="(?s)VIOLATION: work is ordered .*not ordered after ncclAllReduce"):
        nccl2.run(without_a_wait)


# ---- living with others


def scaled_training(device):
    """Scales, and which steps were done; then the parameters. An overflow on one rank, each in turn."""
    torch.manual_seed(4)
    with torch.device("cpu"):
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        inputs = torch.randn(8, 4)
    model, inputs = model.to(device), inputs.to(device) + bps.rank()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    named = [(f"{device}.{name}", parameter) for name, parameter in model.named_parameters()]
    optimizer = bps.DistributedOptimizer(optimizer, named)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8, growth_interval=2)
    seen = []
    for step in range(6):
        before = model[0].weight.detach().clone()
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(inputs).float().square().mean()
        if step - 1 == bps.rank():
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        seen.append((scaler.get_scale(), not torch.equal(before, model[0].weight)))
    return seen, [parameter.detach().cpu() for parameter in model.parameters()]


def scaled_on_both():
    (on_cpu, expected), (seen, parameters) = scaled_training("cpu"), scaled_training("cuda")
    assert seen == on_cpu and all(torch.equal(a, b) for a, b in zip(parameters, expected))
    return seen, parameters


def test_a_grad_scaler_skips_the_steps_of_all_ranks_as_on_the_cpu(job2):
    (seen, parameters), (others, theirs) = job2.run(scaled_on_both)
    assert seen == others and all(torch.equal(a, b) for a, b in zip(parameters, theirs))
    assert [is_done for _, is_done in seen] == [True, False, False, True, True, True]
    assert [scale for scale, _ in seen] == [256.0, 128.0, 64.0, 64.0, 128.0, 128.0]


def calls_of_a_child():
    tensor = torch.ones(3)
    pending = bps.push_pull_async(tensor, False, "pending")
    heard = [
        heard_in_child(call)
        for call in (
            lambda: bps.push_pull(tensor, False, "child"),
            lambda: bps.allgather(tensor),
            lambda: bps.synchronize(pending),
            lambda: bps.broadcast_parameters({"tensor": tensor}),
        )
    ]
    check(bps.synchronize(pending), torch.full((3,), 2.0))
    check(bps.push_pull(tensor, False, "after"), torch.full((3,), 2.0))
    return heard


def test_a_forked_child_is_told_what_it_is_and_its_parent_goes_on(job2):
    for heard in job2.run(calls_of_a_child):
        for text in heard:
            assert "this process was forked from a member of a job and is none itself" in text, heard


class Rows(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.full((3,), float(index), device="cpu")


def trained_beside_a_loader(device, workers):
    torch.manual_seed(4)
    model = nn.Linear(3, 1, device="cpu").to(device)
    named = [(f"{device}.{workers}.{name}", parameter) for name, parameter in model.named_parameters()]
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.001), named)
    with torch.device("cpu"):
        loader = DataLoader(Rows(), 2, num_workers=workers, multiprocessing_context="fork" if workers else None)
        for batch in (batch for _ in range(2) for batch in loader):
            optimizer.zero_grad()
            model(batch.to(device) + bps.rank()).square().mean().backward()
            optimizer.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


def loaders_on_both():
    expected, parameters = trained_beside_a_loader("cpu", 0), trained_beside_a_loader("cuda", 2)
    assert all(torch.equal(a, b) for a, b in zip(expected, parameters))


def test_data_loaders_fork_while_a_gpu_trains(job2):
    job2.run(loaders_on_both)
