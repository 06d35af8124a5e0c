"""push_pull: the sum or average of a tensor over all workers.

A tensor is its name: what belongs together has the same name on all ranks, and the same shape and dtype. Unnamed
operations are numbered in the order of the calls, which must then be the same on all ranks. Any number of operations
may be under way at once, started in any order on each rank.

From *_async until synchronize() the tensor belongs to BytePS: do not write to it, nor read it when it is in place.
`version` is accepted for compatibility and has no effect. Larger `priority` goes first.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any, Dict, Optional, Tuple, Type

import torch

from byteps._core import abi, errors, session
from byteps._core.client import Job, encoded_name
from byteps._core.session import (
    barrier,
    get_pushpull_speed,
    init,
    local_rank,
    local_size,
    metrics,
    rank,
    resume,
    shutdown,
    size,
    suspend,
)
from byteps.torch.compression import Compression, Compressor

__all__ = [
    "barrier",
    "byteps_torch_set_num_grads",
    "declare",
    "get_pushpull_speed",
    "init",
    "local_rank",
    "local_size",
    "metrics",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_group_sync_inplace",
    "push_pull_inplace",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
    "synchronize",
]

_ELEMENT_KINDS = {
    torch.float32: abi.FLOAT32,
    torch.float64: abi.FLOAT64,
    torch.float16: abi.FLOAT16,
    torch.uint8: abi.UINT8,
    torch.int32: abi.INT32,
    torch.int8: abi.INT8,
    torch.int64: abi.INT64,
    torch.bfloat16: abi.BFLOAT16,
    torch.bool: abi.BOOL,
}
# Tells autograd that a tensor has been written to, as every in-place operation of torch does.
_increment_version = getattr(torch.autograd.graph, "increment_version", None)


class _Operation:
    """One push_pull under way. It keeps the memory alive until the core has given it back."""

    __slots__ = ("buffer", "core_handle", "job", "output", "source")

    def __init__(self, job: Job, source: torch.Tensor, buffer: torch.Tensor, output: torch.Tensor) -> None:
        self.job = job
        self.core_handle = 0  # 0: not submitted yet
        self.source = source  # read by the core
        self.buffer = buffer  # written by the core; contiguous
        self.output = output  # gets the buffer's values in finish(), unless it is the buffer

    def finish(self) -> torch.Tensor:
        if self.buffer is not self.output:
            with torch.no_grad():
                self.output.copy_(self.buffer)
        else:
            note_written(self.output)
        return self.output


_handles = itertools.count(1)  # grows for the life of the process, so that no old handle is mistaken for a new one
_operations: Dict[int, _Operation] = {}
session.on_leave(_operations.clear)


def push_pull_async(
    tensor: torch.Tensor, average: bool = True, name: Optional[str] = None, version: int = 0, priority: int = 0
) -> int:
    """Starts the sum (or average) of `tensor` over all workers; a handle for poll() and synchronize(), which returns
    the result in a new tensor."""
    _check_dense_on_cpu(tensor)
    output = torch.empty(tensor.shape, dtype=tensor.dtype)
    return start(tensor, output, _operation(tensor, average), name, priority)


def push_pull_async_inplace(
    tensor: torch.Tensor, average: bool = True, name: Optional[str] = None, version: int = 0, priority: int = 0
) -> int:
    """push_pull_async whose result lands in `tensor`, which synchronize() returns."""
    return start(tensor, tensor, _operation(tensor, average), name, priority)


def push_pull_inplace(
    tensor: torch.Tensor, average: bool = True, name: Optional[str] = None, version: int = 0, priority: int = 0
) -> torch.Tensor:
    """Sums (or averages) `tensor` over all workers in place; returns it."""
    return synchronize(push_pull_async_inplace(tensor, average, name, version, priority))


def push_pull(
    tensor: torch.Tensor,
    average: bool = True,
    name: Optional[str] = None,
    version: int = 0,
    priority: int = 0,
    compression: Type[Compressor] = Compression.none,
) -> torch.Tensor:
    """The sum (or average) of `tensor` over all workers, in a new tensor. Differentiable: the gradient of a sum is the
    sum of the gradients, so all ranks must run backward through it."""
    compressed, context = compression.compress(tensor)
    summed = _PushPull.apply(compressed, average, name, version, priority)
    return compression.decompress(summed, context)


class _PushPull(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, average: bool, name: Optional[str], version: int, priority: int
    ) -> torch.Tensor:
        ctx.average = average
        ctx.version = version
        ctx.priority = priority
        # Backward runs in an order of autograd's choice, so its name is fixed here.
        ctx.name = session.current().unique_name("push_pull.noname") if name is None else name
        ctx.backward_count = 0 if name is None else None
        handle = push_pull_async(tensor, average, name, version, priority)
        return synchronize(handle)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Tuple[Optional[torch.Tensor], ...]:
        name = f"{ctx.name}.backward"
        once = ctx.backward_count is not None
        if once:
            name = f"{name}.{ctx.backward_count}"
            ctx.backward_count += 1
        output = torch.empty(gradient.shape, dtype=gradient.dtype)
        operation = _operation(gradient, ctx.average)
        return synchronize(start(gradient, output, operation, name, ctx.priority, once)), None, None, None, None


_group_lock = threading.Lock()
_group_size = 0
_group_count = 0


def byteps_torch_set_num_grads(num_grads: int) -> int:
    """How many push_pull_group_sync_inplace make one step."""
    global _group_size, _group_count
    if num_grads < 1:
        raise ValueError(f"num_grads is {num_grads}: it must be at least 1")
    with _group_lock:
        _group_size, _group_count = num_grads, 0
    return 0


def push_pull_group_sync_inplace(
    tensor: torch.Tensor, average: bool = True, name: Optional[str] = None, version: int = 0, priority: int = 0
) -> Tuple[int, int]:
    """push_pull_async_inplace that counts: (handle, number of this tensor within the step). The number is num_grads
    (byteps_torch_set_num_grads) for the last one of a step; then it begins at 1 again."""
    global _group_count
    handle = push_pull_async_inplace(tensor, average, name, version, priority)
    with _group_lock:
        _group_count += 1
        count = _group_count
        if count == _group_size:
            _group_count = 0
    return handle, count


def poll(handle: int) -> bool:
    """True when synchronize() would not block. ValueError for an unknown handle."""
    operation = _find(handle)
    return operation.job.poll(operation.core_handle)


def synchronize(handle: int) -> torch.Tensor:
    """Waits and returns the result; the handle is used up. Other Python threads run meanwhile. Raises what the
    operation failed with; ValueError for an unknown handle."""
    operation = _find(handle)
    try:
        operation.job.wait(operation.core_handle)
    except errors.BytePSError:
        _operations.pop(handle, None)
        raise
    # Any other exception is from a signal handler: the operation is still under way and keeps its memory.
    _operations.pop(handle, None)
    return operation.finish()


def declare(name: str) -> int:
    """Accepted for compatibility: names need no declaration, nor any order of it. Returns 0."""
    session.current()
    encoded_name(name)
    return 0


# For the other modules of this package.


def start(
    tensor: torch.Tensor,
    output: torch.Tensor,
    operation: int,
    name: Optional[str],
    priority: int = 0,
    once: bool = False,
) -> int:
    """Starts `operation` on `tensor`, the result for `output`: a fresh contiguous tensor, or `tensor` itself."""
    current = session.current()
    if name is not None:
        encoded_name(name)  # before anything is noted or made
    kind = _element_kind(tensor)
    if output is tensor:
        check_no_overlap(tensor)
    source = tensor
    if not tensor.is_contiguous() or tensor.is_neg():
        source = tensor.detach().resolve_neg().contiguous()
    buffer = source if output is tensor else output
    if name is None:
        name, once = current.unique_name("push_pull.noname"), True
    return _submit(
        _Operation(current.job, source, buffer, output), kind, tensor.shape, operation, name, 0, priority, once
    )


def start_broadcast(tensor: torch.Tensor, root: int, name: str, once: bool = True) -> int:
    """Starts the broadcast of `root`'s values into every other rank's `tensor`. Any dtype: bytes are copied. `once`:
    `name` is unique."""
    current = session.current()
    _check_dense_on_cpu(tensor)
    check_no_overlap(tensor)
    kind, shape = _ELEMENT_KINDS.get(tensor.dtype, abi.UINT8), tensor.shape
    if tensor.dtype not in _ELEMENT_KINDS:
        shape = torch.Size((*shape, tensor.element_size()))
    buffer = tensor
    if not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
        buffer = tensor.detach().resolve_neg().resolve_conj().contiguous()
    entry = _Operation(current.job, buffer, buffer, tensor)
    return _submit(entry, kind, shape, abi.BROADCAST, name, root, 0, once)


def note_written(tensor: torch.Tensor) -> None:
    """Tells autograd that a result has landed in `tensor`."""
    if _increment_version is not None and not tensor.is_inference():
        _increment_version(tensor)


def check_no_overlap(tensor: torch.Tensor) -> None:
    """A result cannot land in a tensor whose elements share memory; torch would say so only after the exchange."""
    if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape)):
        raise ValueError(
            "several elements of the tensor share one place in memory (expand() makes such tensors), so no result can "
            "land in it: use tensor.clone()"
        )


def _submit(
    entry: _Operation, kind: int, shape: torch.Size, operation: int, name: str, root: int, priority: int, once: bool
) -> int:
    handle = next(_handles)
    # Noted before it is submitted: an exception from a signal handler in between must not free the memory.
    _operations[handle] = entry
    try:
        entry.core_handle = entry.job.push_pull(
            "byteps." + name,
            kind,
            entry.source.data_ptr(),
            entry.buffer.data_ptr(),
            shape.numel(),
            operation,
            root,
            priority,
            once,
            shape,
        )
    except errors.BytePSError:
        del _operations[handle]
        raise
    return handle


def _find(handle: int) -> _Operation:
    session.current()
    operation = _operations.get(handle)
    if operation is None:
        raise ValueError(
            f"handle {handle!r} is not known: it was not created by push_pull, or has been synchronized already, "
            "or shutdown() has ended it"
        )
    return operation


def _operation(tensor: torch.Tensor, average: bool) -> int:
    if not average:
        return abi.SUM
    if tensor.dtype == torch.bool:
        raise ValueError("the average of a bool tensor is not defined; average=False gives the logical or")
    return abi.AVERAGE


def _element_kind(tensor: torch.Tensor) -> int:
    _check_dense_on_cpu(tensor)
    kind = _ELEMENT_KINDS.get(tensor.dtype)
    if kind is None:
        supported = ", ".join(str(dtype).replace("torch.", "") for dtype in _ELEMENT_KINDS)
        raise ValueError(f"Tensor type {tensor.dtype} is not supported. These are: {supported}.")
    return kind


def _check_dense_on_cpu(tensor: torch.Tensor) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"expected a torch.Tensor, got {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise ValueError(f"Tensor is required to be dense, not {tensor.layout}; use tensor.to_dense()")
    if tensor.device.type != "cpu":
        raise ValueError(
            f"the tensor is on device '{tensor.device}', but this version of BytePS is CPU-only: "
            "move it with tensor.cpu() first"
        )
