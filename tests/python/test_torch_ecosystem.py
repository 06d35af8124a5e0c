"""What is built on torch.distributed runs unmodified on the backend "byteps", with the results of one process; DDP with
our communication hook over another backend; the examples; Lightning, Accelerate and the HF Trainer where installed."""

import importlib.util

import pytest
import torch
from cluster import launch
from place import ROOT
from torch_group import ensure_group

EXAMPLES = ROOT / "examples/torch"
QUIET = {"PYTHONWARNINGS": "ignore"}


def _net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))


def _inputs(step, rank):
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(10 * step + rank))


def _train(module, optimizer, rank, steps=4):
    for step in range(steps):
        optimizer.zero_grad()
        module(_inputs(step, rank)).pow(2).mean().backward()
        optimizer.step()


def _alone(size, steps=4):
    """The parameters of one process that sees all ranks' inputs."""
    net = _net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(steps):
        optimizer.zero_grad()
        (sum(net(_inputs(step, rank)).pow(2).mean() for rank in range(size)) / size).backward()
        optimizer.step()
    return [parameter.detach() for parameter in net.parameters()]


def _alike(parameters, expected, tolerance=1e-6):
    return all(torch.allclose(a.detach(), b, atol=tolerance) for a, b in zip(parameters, expected))


@pytest.fixture
def world2(job2, tmp_path):
    job2.run(ensure_group, str(tmp_path / "store"))
    return job2


def test_ddp_trains_as_one_process_compiled_or_not(world2):
    def check(expected):
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        for wrap in (lambda ddp: ddp, lambda ddp: torch.compile(ddp, backend="aot_eager")):
            net = _net()
            _train(wrap(DistributedDataParallel(net)), torch.optim.SGD(net.parameters(), 0.1), dist.get_rank())
            assert _alike(net.parameters(), expected)

    world2.run(check, _alone(2))


def test_fully_shard_trains_as_one_process(world2):
    def check(expected):
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(torch.get_default_device().type, (dist.get_world_size(),))
        net = _net()
        for module in (net[0], net[2], net):
            fully_shard(module, mesh=mesh)
        _train(net, torch.optim.SGD(net.parameters(), 0.1), dist.get_rank())
        assert _alike([parameter.full_tensor() for parameter in net.parameters()], expected)

    world2.run(check, _alone(2))


def test_functional_collectives_run(world2):
    def check():
        import torch.distributed as dist
        import torch.distributed._functional_collectives as functional

        group, rank = dist.group.WORLD, dist.get_rank()
        tensor = torch.full((4,), rank + 1.0)
        gathered = functional.all_gather_tensor(tensor, 0, group) + 0
        scattered = functional.reduce_scatter_tensor(torch.arange(4.0), "sum", 0, group) + 0
        assert gathered.tolist() == [1.0] * 4 + [2.0] * 4 and scattered.tolist() == [4.0 * rank, 4.0 * rank + 2]
        exchanged = functional.all_to_all_single(torch.arange(2.0) + 10 * rank, None, None, group) + 0
        assert exchanged.tolist() == [rank, 10.0 + rank]

    world2.run(check)


@pytest.mark.host(reason="what plays the kernels of a GPU sees nothing of what is compiled")
def test_functional_collectives_run_compiled(world2):
    def check():
        import torch.distributed as dist
        import torch.distributed._functional_collectives as functional

        group = dist.group.WORLD

        @torch.compile(backend="aot_eager", fullgraph=True)
        def double_sum(value):
            return functional.all_reduce(value * 2, "sum", group) + 1

        assert double_sum(torch.full((4,), dist.get_rank() + 1.0)).tolist() == [7.0] * 4

    world2.run(check)


def test_dtensors_change_their_placement(world2):
    def check():
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        mesh = init_device_mesh(torch.get_default_device().type, (dist.get_world_size(),))
        whole = torch.arange(8.0).view(4, 2)
        rows = distribute_tensor(whole, mesh, [Shard(0)])
        columns = rows.redistribute(mesh, [Shard(1)])
        assert columns.to_local().shape == (4, 1) and torch.equal(columns.full_tensor(), whole)
        assert torch.equal(rows.redistribute(mesh, [Replicate()]).to_local(), whole)
        assert (rows @ columns.t().redistribute(mesh, [Replicate()])).sum().full_tensor().item() == (
            whole @ whole.t()
        ).sum().item()

    world2.run(check)


def test_distributed_checkpoints_are_written_and_read(world2, tmp_path):
    def check(folder):
        import torch.distributed.checkpoint as checkpoint

        net = _net()
        checkpoint.save({"model": net.state_dict()}, checkpoint_id=folder)
        read = {"model": {name: torch.zeros_like(value) for name, value in net.state_dict().items()}}
        checkpoint.load(read, checkpoint_id=folder)
        assert _alike(read["model"].values(), list(net.state_dict().values()), 0)

    world2.run(check, str(tmp_path / "checkpoint"))


def test_the_communication_hook_averages_buckets_of_ddp_over_another_backend(world2, tmp_path):
    def check(path, expected):
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        import byteps.torch as bps

        gloo = dist.new_group(backend="gloo")
        for compression, tolerance in ((bps.Compression.none, 1e-6), (bps.Compression.fp16, 1e-3)):
            net = _net()
            before = bps.metrics().finished_operations
            ddp = DistributedDataParallel(net, process_group=gloo)
            ddp.register_comm_hook(bps.DDPHookState(compression), bps.ddp_comm_hook)
            _train(ddp, torch.optim.SGD(net.parameters(), 0.1), dist.get_rank())
            assert _alike(net.parameters(), expected, tolerance)
            assert bps.metrics().finished_operations - before >= 4
        try:
            net = DistributedDataParallel(_net(), process_group=gloo)
            net.register_comm_hook(None, bps.ddp_comm_hook)
            net(_inputs(0, 0)).sum().backward()
        except Exception as error:
            return "DDPHookState()" in str(error)

    assert world2.run(check, str(tmp_path / "gloo"), _alone(2)) == [True, True]


def test_the_demo_learns_the_digits_and_is_the_same_training_as_in_one_process(tmp_path):
    out = launch(EXAMPLES / "train_digits.py", "--plot", tmp_path / "loss.png", servers=1, environ=QUIET)
    words = dict(word.split("=") for word in out.split("DEMO ")[1].split())
    assert float(words["accuracy"]) >= 0.97 and float(words["max_relative_difference"]) < 1e-12, words
    assert (tmp_path / "loss.png").stat().st_size > 0
    assert (tmp_path / "result.txt").read_text() == "DEMO " + out.split("DEMO ")[1]


# Packages that are large: the examples for them are tested where they are installed.
NEEDED = {"lightning_ddp.py": "lightning", "accelerate_ddp.py": "accelerate", "hf_trainer.py": "transformers"}
LONG = pytest.mark.long(reason="whole trainings; what they use of the backend is tested in small above")
LONG_EXAMPLES = [pytest.param(example, marks=LONG) for example in ["fsdp_digits.py", "ddp_comm_hook.py", *NEEDED]]


@pytest.mark.parametrize("example", ["backend_ddp_digits.py", *LONG_EXAMPLES])
def test_an_example_learns_the_digits(example):
    package = NEEDED.get(example)
    if package is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install {package}")
    # As if the package were installed, where torch finds the backend by itself.
    code = (
        f"import byteps.torch, runpy, sys; sys.path.insert(0, '{EXAMPLES}'); sys.argv = ['{EXAMPLES / example}']; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    imported = [package] if package else ["torch"]
    out = launch("-c", code, servers=1, environ=QUIET, imported=imported)
    reached = float(out.split("test accuracy ")[1][:5])
    assert reached >= 0.97, out
