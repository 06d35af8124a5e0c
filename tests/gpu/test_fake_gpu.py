"""The real torch on fake GPUs: what it does is right, what is wrong is found, and nothing is found that is right."""

import re
import signal
import subprocess
import sys
import textwrap

import fake_gpu
import pytest

pytestmark = pytest.mark.skipif(fake_gpu.missing() is not None, reason=f"no fake GPU: {fake_gpu.missing()}")

VIOLATED = 86


def run(script, **settings):
    return fake_gpu.run(textwrap.dedent(script), **settings)


def succeeds(script, **settings):
    done = run(script, **settings)
    assert done.returncode == 0, done.stderr
    assert "VIOLATION" not in done.stderr
    return done.stdout


def violates(rule, script, **settings):
    done = run(script, **settings)
    assert done.returncode == VIOLATED, f"{done.returncode}: {done.stderr}"
    assert re.search(f"fake gpu: VIOLATION: .*{rule}", done.stderr), done.stderr


# ---- the libraries


def test_torch_has_all_the_functions_that_it_wants():
    folder = fake_gpu.build()
    libraries = sorted(folder.glob("lib*.so.*"))
    assert {fake_gpu.cudart_name(), "libcuda.so.1"} <= {library.name for library in libraries}
    assert set(fake_gpu.wanted()) <= set.union(*map(fake_gpu.defined, libraries))
    assert "cudaGraphLaunch" in (folder / "stubs.cc").read_text()


def test_torch_and_who_opens_the_driver_have_the_same_handles():
    succeeds("""
        import ctypes, torch
        driver = ctypes.CDLL("libcuda.so.1")
        tensor = torch.arange(4, device="cpu").to("cuda:1")
        with torch.cuda.device(1):
            stream, event = torch.cuda.Stream(), torch.cuda.Event()
            event.record(stream)
            event.synchronize()
            assert driver.cuStreamQuery(ctypes.c_void_p(stream.cuda_stream)) == 0
            assert driver.cuEventQuery(ctypes.c_void_p(event.cuda_event)) == 0
            torch.cuda.synchronize()
        kind, device = ctypes.c_uint(), ctypes.c_int()
        address = ctypes.c_uint64(tensor.data_ptr())
        assert driver.cuPointerGetAttribute(ctypes.byref(kind), 2, address) == 0 and kind.value == 2
        assert driver.cuPointerGetAttribute(ctypes.byref(device), 9, address) == 0 and device.value == 1
    """)


def test_visible_devices_are_numbered_anew():
    properties = "torch.cuda.get_device_properties(i).pci_bus_id for i in range(torch.cuda.device_count())"
    show = f"import torch; print([{properties}])"
    assert succeeds(show, FAKE_GPU_COUNT=3, CUDA_VISIBLE_DEVICES="2,0").strip() == "[3, 1]"
    assert succeeds(show, CUDA_VISIBLE_DEVICES="").strip() == "[]"


def test_a_process_that_ignores_the_gpu_is_not_changed():
    done = subprocess.run([sys.executable, "-c", "print(1)"], env=fake_gpu.environment(FAKE_GPU_COUNTS="/dev/stderr"),
                          capture_output=True, text=True)  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


# ---- torch


def test_the_cpu_dies_when_it_reads_device_memory():
    done = run("""
        import ctypes, torch
        tensor = torch.arange(12.0).to("cuda")
        assert tensor.cpu().sum() == 66
        print("there", flush=True)
        ctypes.string_at(tensor.data_ptr(), 4)
    """)
    assert (done.stdout, done.returncode) == ("there\n", -signal.SIGSEGV)


def test_five_steps_of_training_are_those_of_the_cpu():
    succeeds("""
        import torch
        from on_fake_gpu import OnFakeGpu

        def train(device):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).to(device)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            x, y = torch.randn(64, 16).to(device), torch.randint(0, 4, (64,)).to(device)
            hooked = []
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(lambda p: hooked.append(p.grad.device.type))
            losses = []
            for _ in range(5):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            return losses, [p.detach().cpu() for p in model.parameters()], hooked

        losses, parameters, hooked = train("cpu")
        with OnFakeGpu() as mode:
            on_device = train("cuda")
        assert on_device[0] == losses and on_device[2] == 20 * ["cuda"]
        assert all(map(torch.equal, on_device[1], parameters))
        assert sum(mode.counts.values()) > 50
    """)


COMPARED = """
import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from on_fake_gpu import OnFakeGpu

def same(function, exactly=True):
    torch.manual_seed(0)
    expected = tree_leaves(function("cpu"))
    torch.manual_seed(0)
    with OnFakeGpu():
        results = [x.cpu() if isinstance(x, torch.Tensor) else x for x in tree_leaves(function("cuda"))]
    assert len(results) == len(expected)
    for a, b in zip(results, expected):
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(a, b, **(dict(rtol=0, atol=0) if exactly else {}))
        else:
            assert a == b, (a, b)
"""


def test_optimizers_do_as_on_the_cpu():
    succeeds(f"""{COMPARED}
def train(device, optimizer_of):
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, 4)).to(device)
    parameters = list(model.parameters())
    optimizer = optimizer_of(parameters)
    x, y = torch.randn(16, 8).to(device), torch.randint(0, 4, (16,)).to(device)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    return [each.detach() for each in parameters]

for optimizer_of in (
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    lambda p: torch.optim.Adam(p),
    lambda p: torch.optim.AdamW(p, fused=True),
    lambda p: torch.optim.RMSprop(p),
):
    same(lambda device: train(device, optimizer_of))
""")


def test_layers_do_as_on_the_cpu():
    succeeds(f"""{COMPARED}
def convolution(device):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                          nn.Linear(392, 3)).to(device)
    x = torch.randn(4, 3, 16, 16).to(device).to(memory_format=torch.channels_last)
    nn.functional.cross_entropy(model(x), torch.tensor([0, 1, 2, 0]).to(device)).backward()
    return [p.grad for p in model.parameters()], list(model.state_dict().values())
same(convolution, exactly=False)

def embedding(device, sparse):
    model = nn.Embedding(20, 6, sparse=sparse).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.tensor([[1, 2], [2, 19]]).to(device)).pow(2).sum().backward()
        optimizer.step()
    grad = model.weight.grad
    return model.weight.detach(), grad.to_dense(), grad.coalesce().values() if sparse else 0
same(lambda device: embedding(device, False))
same(lambda device: embedding(device, True))

def attention(device):
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).to(device)
    model(torch.randn(2, 5, 16).to(device)).square().mean().backward()
    return [p.grad for p in model.parameters()]
same(attention, exactly=False)

def mixed_precision(device):
    model = nn.Linear(8, 8).to(device)
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler(device)
    x = torch.randn(4, 8).to(device)
    for _ in range(2):
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return [p.detach() for p in model.parameters()], scaler.get_scale()
same(mixed_precision)
""")


def test_tensors_of_all_kinds_move_and_change_as_on_the_cpu():
    succeeds(f"""{COMPARED}
def tensors(device):
    found = []
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16,
                  torch.int32, torch.int64, torch.bool, torch.complex64):
        x = (torch.arange(12) % 5).to(dtype).reshape(3, 4).to(device)
        transposed, columns = x.t(), x[:, 1:3]
        filled = torch.empty(4, 3, dtype=dtype, device=device).copy_(transposed)
        wide = torch.empty(4, 3, dtype=torch.complex128, device=device).copy_(transposed)
        gone_there = torch.zeros(3, 2, dtype=dtype).copy_(columns)
        strided = torch.zeros(3, 8, dtype=dtype)
        strided[:, ::2].copy_(x)
        back = torch.zeros(4, 4, dtype=dtype, device=device)
        back[:3].copy_(torch.ones(1, 4))
        found += [transposed.contiguous(), transposed.clone(), columns.to("cpu", copy=True)]
        found += [filled, wide, gone_there, strided, back]
        x[:, 1] = 1
        found += [x, torch.cat([x, x]), x.expand(2, 3, 4).clone()]
        if dtype.is_complex:
            found += [x.conj().clone(), x.conj().to("cpu", copy=True), x.imag.clone()]
    return found
same(tensors)

def operations(device):
    x, y, out = torch.arange(10.0, device=device), torch.rand(5, device=device), torch.empty(0, device=device)
    torch.add(x, 1, out=out)
    z = torch.zeros(3, 3, device=device).fill_(2)
    z[0] = x[:3]
    generator = torch.Generator(device).manual_seed(4)
    numbers = torch.randn(4, generator=generator, device=device)
    return (out, z, x[x > 4], torch.nonzero(x > 3), numbers, y.tolist(), x.max(0),
            x.sort(descending=True), x.sum().item(), bool((x > 0).any()), list(x.split(3)), x.new_zeros(4), x.half(),
            torch.randperm(5, device=device), torch.linalg.norm(x), x.expand(3, 10).sum(), torch.unique(x))
same(operations)

with OnFakeGpu():
    x = torch.randn(4, 4, device="cuda:0")
    assert torch.equal(x.t().half().to("cuda:1").cpu(), x.cpu().t().half())
    assert "cuda:0" in repr(x)
    model = nn.Linear(3, 3).cuda()
    import copy, io
    file = io.BytesIO()
    torch.save(copy.deepcopy(model).state_dict(), file)
    file.seek(0)
    assert torch.load(file)["weight"].device.type == "cuda"
""")


def test_threads_that_start_later_compute_too():
    succeeds("""
        import threading, torch
        from on_fake_gpu import OnFakeGpu

        class Own(threading.Thread):
            def run(self):
                results.append((torch.ones(3, device="cuda") + 2).sum().item())

        OnFakeGpu.everywhere()
        results = []
        called = threading.Thread(target=lambda: results.append((torch.ones(3, device="cuda") + 1).sum().item()))
        for thread in (called, Own()):
            thread.start()
            thread.join()
        assert results == [6, 9]
    """)


def test_tensors_are_printed_as_those_of_the_cpu():
    succeeds("""
        import threading, torch
        from on_fake_gpu import OnFakeGpu

        def texts(device):
            x = torch.arange(6.0, device=device).reshape(3, 2).sub(2.5).requires_grad_()
            tensors = [
                x, x.t(), x * 2, torch.nn.Parameter(x.detach()), x.sum(), x[:0], x > 0, x.half(), x.to(torch.int64),
                x.detach() / 0, torch.arange(3000, device=device), torch.eye(3, device=device).to_sparse(),
                (x * 1j).conj(), torch.zeros((), device=device),
            ]
            found = [text for each in tensors for text in (repr(each), str(each), f"{each}")]
            found += [f"{x[0, 0]:.3f}", str({"weight": x}), str([x])]
            x.register_hook(lambda grad: found.append(str(grad)))
            x.sum().backward()
            return found

        def check():
            for cpu, cuda in zip(expected, texts("cuda"), strict=True):
                assert " ".join(cuda.replace("device='cuda:0'", "").replace(",", " ").split()).replace(" )", ")") == (
                    " ".join(cpu.replace(",", " ").split())), (cpu, cuda)
            done.append(True)

        expected, done = texts("cpu"), []
        OnFakeGpu.everywhere()
        check()
        with torch.device("cuda"):
            check()
        thread = threading.Thread(target=check)
        thread.start()
        thread.join()
        torch.set_default_device("cuda")
        check()
        torch.set_default_device(None)
        torch.set_default_tensor_type(torch.cuda.FloatTensor)
        check()
        assert len(done) == 5
    """)


def test_tensors_of_tensors_and_process_groups_are_left_to_themselves():
    succeeds("""
        import torch, torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor
        from on_fake_gpu import OnFakeGpu

        OnFakeGpu.everywhere()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        mesh = init_device_mesh("cuda", (1,))
        whole = torch.arange(8.0, device="cuda").view(4, 2)
        rows = distribute_tensor(whole, mesh, [Shard(0)])
        product = (rows + 1) @ rows.t()
        assert product.device.type == "cuda" and torch.equal(product.full_tensor(), (whole + 1) @ whole.t())
        assert torch.equal(rows.redistribute(mesh, [Replicate()]).to_local(), whole)
        assert "DTensor" in repr(rows)
        dist.destroy_process_group()
    """)


def test_a_script_needs_not_know_of_the_gpu():
    code = "import torch; print((torch.ones(3, device='cuda') + 1).sum())"
    for inner in (code, f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}], check=True)"):
        command = [sys.executable, fake_gpu.__file__, sys.executable, "-c", inner]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert (done.stdout, done.returncode) == ("tensor(6., device='cuda:0')\n", 0), done.stderr


def test_a_kernel_that_nobody_computes_is_found():
    violates("launch of .*elementwise", 'import torch; torch.arange(3).to("cuda") + 1')


def test_a_child_of_fork_is_told_that_it_has_no_device():
    succeeds("""
        import os, torch
        torch.ones(3).to("cuda")
        if os.fork() == 0:
            try:
                torch.ones(3).to("cuda")
            except RuntimeError as error:
                os._exit(7)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
    """)


def test_a_stream_that_hangs_does_not_keep_the_process():
    out = succeeds("""
        import torch
        pinned = torch.zeros(1000).pin_memory()
        pinned.to("cuda", non_blocking=True)
        print(torch.cuda.current_stream().query())
    """, FAKE_GPU_HANG="cudaMemcpyAsync:1")  # fmt: skip
    assert out == "False\n"


def test_a_call_fails_as_planned():
    done = run('import torch; torch.ones(3).to("cuda")', FAKE_GPU_FAIL="cudaMemcpyAsync:1=700")
    assert "an illegal memory access was encountered" in done.stderr
    assert done.returncode == 1


def test_calls_are_counted(tmp_path):
    succeeds('import torch; torch.ones(3).to("cuda")', FAKE_GPU_COUNTS=tmp_path / "counts")
    counts = dict(line.split() for line in (tmp_path / "counts").read_text().splitlines())
    assert counts["cudaMemcpyAsync"] == "1" and "total" in counts


# ---- order

ORDER = """
import torch
n = 1 << 20
pinned = torch.arange(n, dtype=torch.float32).pin_memory()
out = torch.zeros(n).pin_memory()
here, side = torch.cuda.current_stream(), torch.cuda.Stream()
memory = torch.empty(n, device="cuda")
"""
SLOW = dict(FAKE_GPU_OUT_MBPS=20, FAKE_GPU_IN_MBPS=20)  # 4 MiB: 210 ms


def test_copies_that_wait_for_each_other_are_right():
    succeeds(f"""{ORDER}
memory.copy_(pinned, non_blocking=True)
ready = torch.cuda.Event()
ready.record(here)
with torch.cuda.stream(side):
    side.wait_event(ready)
    out.copy_(memory, non_blocking=True)
    done = torch.cuda.Event()
    done.record(side)
assert not torch.equal(out, pinned) and not done.query()
done.synchronize()
assert torch.equal(out, pinned)
here.wait_stream(side)
memory.copy_(pinned, non_blocking=True)  # after the read
torch.cuda.synchronize()
""", **SLOW)  # fmt: skip


def test_a_missing_wait_is_found_though_the_data_is_there():
    violates("reads .* is not ordered after cudaMemcpyAsync of stream", f"""{ORDER}
import time
memory.copy_(pinned, non_blocking=True)
time.sleep(0.1)  # it is there, but nobody knows
with torch.cuda.stream(side):
    out.copy_(memory, non_blocking=True)
""")  # fmt: skip


def test_a_write_that_does_not_wait_for_a_read_is_found():
    violates("writes .* which reads some of them", f"""{ORDER}
torch.cuda.synchronize()
with torch.cuda.stream(side):
    out.copy_(memory, non_blocking=True)
memory.copy_(pinned, non_blocking=True)
""")  # fmt: skip


def test_a_wait_of_the_host_orders_streams():
    succeeds(f"""{ORDER}
memory.copy_(pinned, non_blocking=True)
done = torch.cuda.Event()
done.record()
done.synchronize()
with torch.cuda.stream(side):
    out.copy_(memory, non_blocking=True)
side.synchronize()
assert torch.equal(out, pinned)
""", **SLOW)  # fmt: skip


def test_operations_of_torch_must_be_ordered_with_copies_of_others():
    script = f"""{ORDER}
import ctypes, sys
from on_fake_gpu import OnFakeGpu
driver = ctypes.CDLL("libcuda.so.1")  # as somebody else's library has it
torch.cuda.synchronize()
stream, event = ctypes.c_void_p(), torch.cuda.Event()
assert driver.cuStreamCreateWithPriority(ctypes.byref(stream), 1, 0) == 0
with OnFakeGpu():
    memory.add_(1)
    event.record()
    assert driver.cuStreamWaitEvent(stream, ctypes.c_void_p(event.cuda_event), 0) == 0
    assert driver.cuMemcpyHtoDAsync_v2(
        ctypes.c_uint64(memory.data_ptr()), ctypes.c_void_p(pinned.data_ptr()), ctypes.c_size_t(4 * n), stream) == 0
    back = torch.cuda.ExternalStream(stream.value)
    if WAITS:
        here.wait_stream(back)
    (memory * 2).sum().item()
"""
    succeeds(script.replace("WAITS", "True"), **SLOW)
    violates("aten::mul of .* reads .* is not ordered after cuMemcpyHtoDAsync", script.replace("WAITS", "False"))


def test_the_source_of_a_copy_must_not_change_under_way():
    violates("the host changed the source", f"""{ORDER}
memory.copy_(pinned, non_blocking=True)
pinned[7] = 0
torch.cuda.synchronize()
""", **SLOW)  # fmt: skip


def test_training_with_work_on_side_streams_raises_no_alarm():
    succeeds("""
        import torch
        from on_fake_gpu import OnFakeGpu
        with OnFakeGpu():
            model = torch.nn.Linear(64, 64).cuda()
            side, pinned = torch.cuda.Stream(), torch.empty(64, 64).pin_memory()
            for _ in range(30):
                model(torch.randn(8, 64, device="cuda")).sum().backward()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    model.weight.grad.record_stream(side)
                    pinned.copy_(model.weight.grad, non_blocking=True)
                    model.weight.grad.mul_(0.5)
                torch.cuda.current_stream().wait_stream(side)
                model.zero_grad()
    """)
