"""torch.distributed's own backend "nccl" on fake GPUs: two processes with a device each. What it gives is what gloo
gives on the CPU, and what would hang or be wrong on real ones is found. Beside byteps: tests/python/test_cuda.py."""

import re
import sys
import textwrap

import fake_gpu
import pytest
from place import Place, wait_until
from zygote import fork_servers

pytestmark = pytest.mark.skipif(
    fake_gpu.missing() is not None or not fake_gpu.has_nccl(),
    reason=f"no fake NCCL: {fake_gpu.missing() or 'this torch does not open libnccl.so.2'}",
)

VIOLATED = 86
PRELUDE = """
import os, signal, sys
import torch
import torch.distributed as dist
from on_fake_gpu import OnFakeGpu

OnFakeGpu.everywhere()
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("cpu:gloo,cuda:nccl", init_method="file://" + os.path.abspath("store"), rank=rank, world_size=2)
"""


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path)
    place.environ.update(fake_gpu.environment(), PYTHONWARNINGS="ignore", TORCH_NCCL_BLOCKING_WAIT="1",
                         TORCH_NCCL_DUMP_ON_TIMEOUT="0", GLOO_SOCKET_IFNAME="lo")  # fmt: skip
    place.environ["TEST_MARK"] = place.mark
    place.forked = fork_servers.get(sys.executable, ["torch"], place.environ).command()
    yield place
    place.close()


def ranks(place, body, **settings):
    """Runs two ranks to their ends: [(exit code, standard output, standard error)]."""
    path = place.folder / "body.py"
    path.write_text(PRELUDE + textwrap.dedent(body))
    environs = [{"RANK": str(rank), **settings} for rank in range(2)]
    processes = [place.start([*place.forked, path], environ) for environ in environs]
    ended = [process.communicate(timeout=60) for process in processes]
    assert wait_until(lambda: not place.living(), 15), place.living()
    return [(process.returncode, *each) for process, each in zip(processes, ended)]


def test_torch_wants_nothing_of_nccl_that_is_not_there_and_the_real_one_has_all_that_the_fake_has():
    fake = fake_gpu.build() / "libnccl.so.2"
    there = {symbol for symbol in fake_gpu.defined(fake) if symbol.startswith("nccl")}
    assert {symbol for symbol in fake_gpu.wanted() if symbol.startswith("nccl")} <= there
    real = fake_gpu.nccl_header().parent.parent / "lib" / "libnccl.so.2"
    assert there <= fake_gpu.defined(real)


def test_collectives_and_training_give_what_gloo_gives_on_the_cpu(place):
    ended = ranks(place, """
        def same(function):
            results = []
            for device in ("cpu", "cuda"):
                torch.manual_seed(rank)
                results.append([each.cpu() for each in function(device)])
            for a, b in zip(*results):
                assert torch.equal(a, b), (a, b)

        def collectives(device):
            found = []
            for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8):
                mine = (torch.randn(12) * 8 + 32).to(dtype).to(device)
                for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
                    reduced = mine.clone()
                    dist.all_reduce(reduced, op)
                    found.append(reduced)
                dist.broadcast(reduced, 1)
                found.append(reduced)
                all = torch.zeros(24, dtype=dtype, device=device)
                dist.all_gather_into_tensor(all, mine)
                parts = [torch.zeros(12, dtype=dtype, device=device) for _ in range(2)]
                dist.all_gather(parts, mine)
                half = torch.zeros(6, dtype=dtype, device=device)
                dist.reduce_scatter_tensor(half, mine)
                found.append(half)
                exchanged = torch.zeros(12, dtype=dtype, device=device)
                dist.all_to_all_single(exchanged, mine)
                there = torch.zeros(12, dtype=dtype, device=device)
                pair = [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, there, 1 - rank)]
                for each in dist.batch_isend_irecv(pair):
                    each.wait()
                found += [all, *parts, exchanged, there]
            return found
        same(collectives)

        def training(device):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to(device)
            model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.0005)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            torch.manual_seed(rank)
            for _ in range(3):
                optimizer.zero_grad()
                x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))
                torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
                optimizer.step()
            return [parameter.detach() for parameter in model.parameters()]
        same(training)

        scaled = torch.full((3,), 2.0 * rank + 1, device="cuda")
        dist.all_reduce(scaled, dist.ReduceOp.AVG)
        assert scaled.tolist() == [2, 2, 2]
        dist.all_reduce(scaled, dist._make_nccl_premul_sum(0.25))
        assert scaled.tolist() == [1, 1, 1]
        objects = [None, None]
        dist.all_gather_object(objects, {"rank": rank})
        assert objects == [{"rank": 0}, {"rank": 1}]
        group = dist.new_group([0, 1], backend="nccl")
        dist.all_reduce(scaled, group=group)
        assert scaled.tolist() == [2, 2, 2]
        dist.barrier()
        dist.destroy_process_group()
    """, FAKE_GPU_LEAKS="1")  # fmt: skip
    for code, _, err in ended:
        assert code == 0 and "VIOLATION" not in err, err


def test_ranks_that_call_different_collectives_are_found(place):
    ended = ranks(place, """
        mine = torch.ones(4, device="cuda")
        work = dist.all_reduce(mine, async_op=True) if rank == 0 else dist.broadcast(mine, 0, async_op=True)
        work.wait()
    """)  # fmt: skip
    assert ended[0][0] == VIOLATED, ended[0][2]  # where the hub is
    assert re.search("VIOLATION: all ranks .* same order: .*ncclBroadcast.*ncclAllReduce", ended[0][2]) or re.search(
        "VIOLATION: all ranks .* same order: .*ncclAllReduce.*ncclBroadcast", ended[0][2]
    )
    assert ended[1][0] != 0 and "ncclRemoteError" in ended[1][2]


def test_a_rank_that_is_killed_is_an_error_for_the_other_one(place):
    ended = ranks(place, """
        mine = torch.ones(4, device="cuda")
        dist.all_reduce(mine)
        torch.cuda.synchronize()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(mine, async_op=True).wait()
    """)  # fmt: skip
    assert ended[1][0] == -9
    assert ended[0][0] == 1 and "DistBackendError" in ended[0][2] and "ncclRemoteError" in ended[0][2], ended[0][2]


def test_a_result_that_is_not_awaited_is_found(place):
    ended = ranks(place, """
        mine = torch.ones(4, device="cuda")
        work = dist.all_reduce(mine, async_op=True)
        if rank == 1:
            work.wait()
        mine.add_(1)
        torch.cuda.synchronize()
        os._exit(0)
    """)  # fmt: skip
    assert ended[0][0] == VIOLATED, ended[0][2]
    assert re.search("VIOLATION: work is ordered .*aten::add_ of .* is not ordered after ncclAllReduce", ended[0][2])


def test_tensors_are_shared_between_processes(place):
    ended = ranks(place, """
        from torch.multiprocessing.reductions import reduce_tensor

        torch.cuda.set_device(0)
        given = [None]
        if rank == 0:
            theirs = torch.arange(1000.0, device="cuda")
            theirs.mul_(3)
            given = [reduce_tensor(theirs)]
        dist.broadcast_object_list(given, 0, device="cpu")
        if rank == 1:
            rebuild, arguments = given[0]
            mine = rebuild(*arguments)
            assert mine.device.type == "cuda" and torch.equal(mine.cpu(), 3 * torch.arange(1000.0))
            mine.add_(1)
            torch.cuda.synchronize()
        dist.monitored_barrier(dist.new_group(backend="gloo"))
        if rank == 0:
            assert torch.equal(theirs.cpu(), 3 * torch.arange(1000.0) + 1)
        else:
            del mine
            torch.cuda.synchronize()
        dist.monitored_barrier(dist.new_group(backend="gloo"))
        dist.destroy_process_group()
    """)  # fmt: skip
    for code, _, err in ended:
        assert code == 0 and "VIOLATION" not in err, err
