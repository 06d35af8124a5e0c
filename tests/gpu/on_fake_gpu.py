"""Computes on the CPU what kernels would on a fake GPU, for any Python code with torch.

    with OnFakeGpu():
        train()              # on "cuda"

    OnFakeGpu.everywhere()   # the same for the rest of the process, and in threads that start later

A TorchDispatchMode gets every operation below autograd. What only moves or names memory goes its way: to the fake's
copies. Any other is put on the current stream, so that the fake checks its order with all that reads or writes the same
bytes; when its turn has come, it is computed in device memory itself by torch's kernels for CPUs. So an operation has
ended when the call returns, but nothing else knows: to the fake, the host has not waited.

What would launch a kernel all the same ends the process (the fake refuses cudaLaunchKernel): nothing is left out
silently. Not for torch.compile, CUDA graphs, operations that only GPUs have (cuDNN's, fused LSTM cells), nor
for threads of C++ that know no mode.
"""

import atexit
import contextlib
import ctypes
import functools
import threading
import time
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Runs as it is: allocates, names, or asks, and launches nothing.
NATIVE = {
    "aten::_coalesced_", "aten::_indices", "aten::_local_scalar_dense", "aten::_nnz", "aten::_pin_memory",
    "aten::_resize_output_", "aten::_sparse_coo_tensor_with_dims", "aten::_sparse_coo_tensor_with_dims_and_tensors",
    "aten::_unsafe_view", "aten::_values", "aten::dense_dim", "aten::detach", "aten::empty", "aten::empty_like",
    "aten::empty_strided", "aten::is_coalesced", "aten::is_pinned", "aten::is_same_size", "aten::lift",
    "aten::lift_fresh", "aten::new_empty", "aten::new_empty_strided", "aten::record_stream", "aten::resize_",
    "aten::resize_as_", "aten::set_", "aten::sparse_dim", "aten::unsafe_chunk", "aten::unsafe_split",
    "aten::unsafe_split_with_sizes",
}  # fmt: skip
PLAIN = {"Tensor", "Parameter", "Buffer"}
RANGES_MAX = 512  # of one tensor whose bytes do not lie together


class Bytes(ctypes.Structure):
    _fields_ = [("address", ctypes.c_uint64), ("bytes", ctypes.c_size_t)]


class Fake:
    """The fake's functions (fake_gpu.h)."""

    def __init__(self):
        library = ctypes.CDLL("libcuda.so.1")
        self._begin = library.fake_gpu_kernel_begin
        self._end = library.fake_gpu_kernel_end
        self._alias = library.fake_gpu_alias
        self._begin.restype = self._alias.restype = ctypes.c_void_p
        ranges = [ctypes.POINTER(Bytes), ctypes.c_size_t]
        self._begin.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p, *ranges, *ranges]
        self._end.argtypes = [ctypes.c_void_p]
        self._alias.argtypes = [ctypes.c_uint64]
        library.fake_gpu_violations.restype = ctypes.c_uint64
        self.violations = library.fake_gpu_violations

    def kernel(self, name, device, reads, writes):
        return Kernel(self, name, device, reads, writes)

    def begin(self, name, device, stream, reads, writes):
        return self._begin(name.encode(), device, stream, array_of(reads), len(reads), array_of(writes), len(writes))

    def end(self, kernel):
        self._end(kernel)

    def alias(self, address):
        return self._alias(address)


class Kernel:
    """While it lasts, the calling thread is a kernel on the device's current stream that uses these tensors."""

    def __init__(self, fake, name, device, reads, writes):
        self.fake, self.name, self.device = fake, name, device
        self.reads = [one for tensor in reads for one in ranges_of(tensor)]
        self.writes = [one for tensor in writes for one in ranges_of(tensor)]

    def __enter__(self):
        stream = torch.cuda.current_stream(self.device).cuda_stream
        self.handle = self.fake.begin(self.name, self.device.index, stream, self.reads, self.writes)
        if not self.handle:
            raise RuntimeError(f"{self.name} was not launched on the fake GPU")

    def __exit__(self, *_):
        self.fake.end(self.handle)


def array_of(ranges):
    return (Bytes * len(ranges))(*ranges)


def ranges_of(tensor):
    """[(address, bytes)] of a strided tensor: each run of bytes that lie together; one for all where there are many."""
    if tensor.numel() == 0:
        return []
    item = tensor.element_size()
    dims = sorted((stride, size) for size, stride in zip(tensor.shape, tensor.stride()) if size > 1 and stride > 0)
    run, extent, starts = item, item, [tensor.data_ptr()]
    for stride, size in dims:
        extent += (size - 1) * stride * item
        if len(starts) == 1 and stride * item <= run:
            run = max(run, (size - 1) * stride * item + run)
        elif len(starts) * size <= RANGES_MAX:
            starts = [start + i * stride * item for start in starts for i in range(size)]
        else:
            starts = None
            break
    if starts is None:
        extent = item + sum((size - 1) * stride * item for stride, size in dims)
        return [(tensor.data_ptr(), extent)]
    return [(start, run) for start in starts]


def mapped(function, value):
    """The same lists, tuples and dictionaries, with what `function` makes of all else."""
    if isinstance(value, (list, tuple)):
        return type(value)([mapped(function, each) for each in value])
    if isinstance(value, dict):
        return {key: mapped(function, each) for key, each in value.items()}
    return function(value)


def on_devices(value):
    """The tensors on devices in lists, tuples and dictionaries."""
    found = []
    mapped(lambda each: found.append(each) if is_cuda(each) else None, value)
    return found


def is_cuda(value):
    return isinstance(value, torch.Tensor) and value.is_cuda


def parts_of(tensor):
    """The strided tensors that a tensor is made of."""
    return [tensor._indices(), tensor._values()] if tensor.layout == torch.sparse_coo else [tensor]


def sparse(parts, like):
    """A tensor of these indices and values, and otherwise as the other."""
    return torch.sparse_coo_tensor(*parts, like.shape, is_coalesced=like.is_coalesced(), check_invariants=False)


# What prints tensors switches modes off.
tensor_text = torch._tensor_str._tensor_str


def tensor_text_on_host(tensor, indent):
    if tensor.is_cuda:
        with OnFakeGpu():
            tensor = tensor.detach().cpu()
    return tensor_text(tensor, indent)


torch._tensor_str._tensor_str = tensor_text_on_host


def in_threads(context):
    """Threads that start from now on run within a context() of their own."""
    start = threading.Thread.start

    @functools.wraps(start)
    def start_within(thread):
        run = thread.run

        def run_within():
            with context():
                run()

        thread.run = run_within
        start(thread)

    threading.Thread.start = start_within


def let_autograd_rest():
    """Returns when torch's autograd threads have slept for 10 ms, or after a second.

    After backward() such a thread still drops the mode that was in force, which takes the GIL. Python ends threads that
    want it at exit, and torch aborts the process when that happens in a destructor.
    """

    def switches():
        found = []
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(FileNotFoundError):  # it has ended
                if "autograd" in (task / "comm").read_text():
                    found += [line for line in (task / "status").read_text().splitlines() if "ctxt_switches" in line]
        return found

    before = switches()
    for _ in range(100):
        time.sleep(0.01)
        now = switches()
        if now == before:
            return
        before = now


atexit.register(let_autograd_rest)


class OnFakeGpu(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.fake = Fake()
        self.counts = {}  # operations that were computed here
        self._twins = {}  # generators of the CPU for those of devices

    def __enter__(self):
        # Implementations of other libraries are chosen above this mode, and have no counterpart on CPUs.
        torch.backends.cudnn.enabled = False
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_cudnn_sdp(False)
        return super().__enter__()

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # to skip it, torch would import it, which takes two seconds

    @classmethod
    def everywhere(cls):
        mode = cls()
        mode.__enter__()
        in_threads(cls)
        return mode

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        own = {each.__name__ for each in types} - PLAIN
        if own - {"FakeTensor"}:
            return NotImplemented  # what a DTensor, say, makes of it comes here again
        if own or "c10d" in func.namespace:
            return func(*args, **(kwargs or {}))  # nobody computes it, or a process group does
        with torch._C.DisableTorchFunction():  # a default device is not meant for what is computed here
            return self._dispatch(func, args, kwargs or {})

    def _dispatch(self, func, args, kwargs):
        schema = func._schema
        on_device = on_devices((args, kwargs))
        target = kwargs.get("device")
        makes = target is not None and torch.device(target).type == "cuda"
        if not on_device and not makes:
            return func(*args, **kwargs)
        if schema.name == "aten::copy_":
            return self._copy_(*args, **kwargs)
        if schema.name == "aten::_to_copy":
            return self._to_copy(*args, **kwargs)
        if schema.name == "aten::clone" and args[0].layout == torch.strided:
            return self._clone(*args, **kwargs)
        is_view = any(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns)
        # What calls a process group is no kernel: NCCL's are the library's own.
        if schema.name in NATIVE or is_view or func.namespace == "c10d":
            return func(*args, **kwargs)
        device = on_device[0].device if on_device else torch.device(target)
        if device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        self.counts[schema.name] = self.counts.get(schema.name, 0) + 1
        return self._compute(func, args, kwargs, on_device, device, "cpu" if makes else None)

    # ---- what kernels do

    def _compute(self, func, args, kwargs, on_device, device, target):
        written = self._written(func, args, kwargs)
        tensors = {id(value): value for value in on_device}
        aliases = {key: self._alias(value) for key, value in tensors.items()}
        reads = [part for key, value in tensors.items() if key not in written for part in parts_of(value)]
        writes = [part for key, value in tensors.items() if key in written for part in parts_of(value)]

        def down(value):
            if isinstance(value, torch.Generator) and value.device.type == "cuda":
                return self._twin(value)
            return aliases.get(id(value), value)

        cpu_args, cpu_kwargs = mapped(down, (args, kwargs))
        if target:
            cpu_kwargs["device"] = target
        with self.fake.kernel(func._schema.name, device, reads, writes):
            result = func(*cpu_args, **cpu_kwargs)
        for key in written & set(tensors):
            self._take_resized(tensors[key], aliases[key])
        originals = {id(alias): tensors[key] for key, alias in aliases.items()}

        def up(value):
            if not isinstance(value, torch.Tensor):
                return value
            return originals[id(value)] if id(value) in originals else self._lift(value, device, func._schema.name)

        return mapped(up, result)

    def _written(self, func, args, kwargs):
        """Ids of the tensors on devices that the operation writes to."""
        found = []
        for index, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                found += on_devices(args[index] if index < len(args) else kwargs.get(argument.name))
        return {id(each) for each in found}

    def _alias(self, tensor):
        """The tensor's bytes as a tensor of the CPU. One without any may be about to grow, and is of its own."""
        if tensor.layout == torch.sparse_coo:
            parts = [self._alias(part) for part in parts_of(tensor)]
            return sparse(parts, tensor)
        if tensor.layout != torch.strided:
            raise NotImplementedError(f"{tensor.layout} on a fake GPU")
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        if size == 0:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
        start = self.fake.alias(storage.data_ptr())
        memory = torch.frombuffer((ctypes.c_char * size).from_address(start), dtype=torch.uint8).untyped_storage()
        alias = torch.empty(0, dtype=tensor.dtype, device="cpu")
        alias.set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())
        if tensor.is_conj():
            alias = alias.conj()
        return alias._neg_view() if tensor.is_neg() else alias

    def _take_resized(self, tensor, alias):
        if tensor.layout == torch.sparse_coo:
            raise NotImplementedError("a sparse tensor that is changed in place, on a fake GPU")
        if tensor.shape != alias.shape:
            tensor.resize_(alias.shape)
            self._copy_(tensor, alias)

    def _lift(self, value, device, name):
        """A result of the CPU, as the kernel would have left it on the device."""
        if value.layout == torch.sparse_coo:
            parts = [self._lift(part, device, name) for part in parts_of(value)]
            return sparse(parts, value)
        dense = torch.ops.aten.is_non_overlapping_and_dense(value)
        strides = value.stride() if dense else torch.empty(value.shape, device="meta").stride()
        result = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=device)
        with self.fake.kernel(name, device, [], [result]):
            self._alias(result).copy_(value)
        return result

    def _twin(self, generator):
        key = (generator.device.index, generator.initial_seed())
        if key not in self._twins:
            self._twins[key] = torch.Generator().manual_seed(generator.initial_seed())
        return self._twins[key]

    # ---- copies: kernels where bytes are rearranged or converted, the fake's copies from one memory to another

    def _copy_(self, to, source, non_blocking=False):
        if to.layout == torch.sparse_coo:
            raise NotImplementedError("a copy into a sparse tensor, on a fake GPU")
        if source.layout == torch.sparse_coo:
            source = torch.ops.aten.to_dense(source) if not source.is_cuda else self._dense(source)
        if self._is_plain(to, source):
            return torch.ops.aten.copy_.default(to, source, non_blocking)
        if to.device == source.device:
            self._rearrange(to, source)
            return to
        there = self._plain_like(source, to)  # as torch does it: dtype and order at the source, then the bytes
        here = to if self._is_plain(to, there) else torch.empty(to.shape, dtype=to.dtype, device=to.device)
        torch.ops.aten.copy_.default(here, there, non_blocking)
        if here is not to:
            self._rearrange(to, here)
        return to

    def _is_plain(self, to, source):
        """May bytes be copied as they are?"""
        return (
            to.dtype == source.dtype
            and to.shape == source.shape
            and to.is_contiguous()
            and source.is_contiguous()
            and to.is_conj() == source.is_conj()
            and to.is_neg() == source.is_neg()
        )

    def _plain_like(self, source, to):
        if source.dtype == to.dtype and source.shape == to.shape and source.is_contiguous() and not source.is_conj():
            return source
        plain = torch.empty(to.shape, dtype=to.dtype, device=source.device)
        self._rearrange(plain, source)
        return plain

    def _rearrange(self, to, source):
        if not to.is_cuda:
            to.copy_(source)
            return
        with self.fake.kernel("aten::copy_", to.device, [source], [to]):
            self._alias(to).copy_(self._alias(source))

    def _dense(self, source):
        return self._compute(torch.ops.aten._to_dense.default, (source,), {}, [source], source.device, None)

    def _to_copy(self, source, *, dtype=None, layout=None, device=None, pin_memory=None, non_blocking=False,
                 memory_format=None):  # fmt: skip
        device = source.device if device is None else torch.device(device)
        if source.layout == torch.sparse_coo:
            parts = [
                self._to_copy(part, dtype=each, device=device, non_blocking=non_blocking)
                for part, each in zip(parts_of(source), (None, dtype))
            ]
            return sparse(parts, source)
        to = torch.empty_like(source, dtype=dtype, device=device, pin_memory=bool(pin_memory),
                              memory_format=memory_format or torch.preserve_format)  # fmt: skip
        return self._copy_(to, source, non_blocking)

    def _clone(self, source, *, memory_format=None):
        return self._copy_(torch.empty_like(source, memory_format=memory_format or torch.preserve_format), source)
