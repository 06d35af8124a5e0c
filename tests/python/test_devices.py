"""Where tensors of torch may be: what is refused, with which remedy, and before anything travels. Devices that are not
here are pretended. What is on CUDA devices is exchanged in the other suites, once more, where BYTEPS_TEST_DEVICE=cuda.
"""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cluster import Cluster, RemoteError

import byteps.torch as bps
from byteps._core import abi
from byteps._core.exchange import HOST, Exchange, Place
from byteps.torch import devices


def on(device):
    """As a tensor there presents itself."""
    device = torch.device(device)
    return SimpleNamespace(device=device, is_cuda=device.type == "cuda")


@pytest.mark.parametrize(
    "device, why",
    [
        ("meta", r"is on device 'meta', where nothing has values.*model\.to_empty\(device='cpu'\)"),
        ("mps:0", r"is on device 'mps:0', but BytePS takes tensors of the CPU and of CUDA devices only: .*\.cpu\(\)"),
        ("xla:1", r"is on device 'xla:1', but .* only: move it with tensor\.cpu\(\)"),
        ("xpu:0", r"is on device 'xpu:0', but .* only: move it with tensor\.cpu\(\)"),
    ],
)
def test_a_device_that_nothing_can_be_exchanged_from_is_named_with_a_remedy(device, why):
    with pytest.raises(ValueError, match="^the tensor " + why):
        devices.check_device(torch.device(device))


def test_tensors_of_the_cpu_and_of_cuda_are_taken():
    devices.check_device(torch.device("cpu"))
    devices.check_device(torch.device("cuda", 3))
    assert devices.place_of(torch.ones(2)) == HOST


def test_an_amd_gpu_is_refused_by_its_name(monkeypatch):
    """torch calls it "cuda" too."""
    monkeypatch.setattr(torch.version, "hip", "6.2")
    with pytest.raises(ValueError, match=r"'cuda:0' of a torch for ROCm 6\.2, but AMD GPUs are not supported yet: "):
        devices.check_device(torch.device("cuda:0"))


def test_a_model_is_on_one_gpu_and_the_cpu(alone):
    one = devices.OneDevice()
    for device in ("cuda:1", "cpu", "cuda:1"):
        one.add("first", on(device))
    with pytest.raises(ValueError, match=r"'second' is on device 'cuda:0', others are on 'cuda:1'.*\.to\('cuda:1'\)"):
        one.add("second", on("cuda:0"))
    with pytest.raises(ValueError, match=r"the parameter 'third' is on device 'mps:0'.*model\.cpu\(\) before its"):
        one.add("third", on("mps:0"))
    with pytest.raises(ValueError, match=r"the tensor 'w' is on device 'mps:0'.*move the model with model\.cpu\(\)$"):
        devices.check_all([("w", on("mps:0"))])


def without_a_driver():
    """On a machine that has none; where there is one, this says nothing."""
    if torch.cuda.is_available():
        return "libcuda.so.1"
    with pytest.raises(bps.BytePSError) as info:
        devices.OneDevice().add("weight", on("cuda:0"))
    assert type(info.value).__name__ == "UnsupportedError"
    return str(info.value)


def test_a_missing_driver_is_told_when_a_model_is_wrapped(job2):
    assert all("CUDA" in text or "libcuda" in text for text in job2.run(without_a_driver))


# ---- nothing of a driver before the first tensor on a device

# Says so when it is loaded, which is all that it can do.
TRAP = """
#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void loaded(void) {
  FILE* const trace = fopen(TRACE, "a");
  fprintf(trace, "%d\\n", (int)getpid());
  fclose(trace);
}
"""


def all_on_the_cpu():
    assert bps.push_pull(torch.ones(3), False, "sum").tolist() == [2.0] * 3
    assert bps.broadcast(torch.full((2,), bps.rank() + 1.0), 1).tolist() == [2.0] * 2
    model = torch.nn.Linear(2, 1)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return os.getpid(), Path("/proc/self/maps").read_text()


def test_a_drivers_library_is_loaded_by_the_first_tensor_on_a_device_and_by_no_other(tmp_path):
    """Nor by the servers."""
    trap, trace = tmp_path / "libtrap.so", tmp_path / "trace"
    (tmp_path / "trap.c").write_text(TRAP)
    subprocess.run(["gcc", "-shared", "-fPIC", f'-DTRACE="{trace}"', tmp_path / "trap.c", "-o", trap], check=True)
    with Cluster(2, environ={"BYTEPS_CUDA_LIBRARY": str(trap)}) as cluster:
        found = cluster.run(all_on_the_cpu)
        assert not trace.exists(), trace.read_text()
        for _, maps in found:
            assert "libbyteps.so" in maps and str(trap) not in maps
        with pytest.raises(RemoteError, match="no CUDA driver: .*libtrap.so has no cuInit"):
            cluster.run(use_a_device)
        assert sorted(map(int, trace.read_text().split())) == sorted(pid for pid, _ in found)


def use_a_device():
    devices.OneDevice().add("weight", on("cuda:0"))


def test_a_place_is_told_the_core_and_no_other_rank():
    what = Exchange(abi.SUM, members=(0, 2))
    tensor = what.tensor("name", abi.FLOAT32, (2, 3), 4096, 8192, place=Place(abi.CUDA_MEMORY, 1, 77))
    assert (tensor.memory, tensor.device, tensor.stream) == (abi.CUDA_MEMORY, 1, 77)
    host = what.tensor("name", abi.FLOAT32, (2, 3), 4096, 8192)
    assert (host.memory, host.device, host.stream) == (abi.HOST_MEMORY, 0, None)
    packed = abi.Tensor.from_buffer_copy(bytes.fromhex(what.packed()))
    assert packed.struct_bytes == abi.TENSOR_BYTES and packed.memory == abi.HOST_MEMORY and not packed.stream


def test_this_torch_says_whether_tensors_may_be_on_cuda_devices():
    assert bps.cuda_built() is (torch.version.cuda is not None)
