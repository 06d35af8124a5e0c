"""One exchange of one tensor: what push_pull, allreduce and broadcasts start."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import torch

from byteps._core import abi, errors, session
from byteps._core.client import Job
from byteps._core.compression import NoneCompressor, coded
from byteps._core.exchange import PREFIX, Exchange
from byteps._core.process_sets import scoped
from byteps.torch import devices, pending, tensors
from byteps.torch.residuals import NOTHING, Kept, Residuals

__all__: List[str] = []

# Tells autograd that a tensor has been written to, as every in-place operation of torch does.
_increment_version = getattr(torch.autograd.graph, "increment_version", None)


class Running(pending.Pending):
    """`source` is read by the core, `buffer` is written by it, `output` gets the buffer's values at the end unless it
    is the buffer. Source and buffer are contiguous."""

    ended = False
    kept: Kept = NOTHING  # read and written by the core, too

    def __init__(self, job: Job, source: torch.Tensor, buffer: torch.Tensor, output: torch.Tensor) -> None:
        self.job = job
        self.core_handle = 0  # 0: not submitted yet
        self.source = source
        self.buffer = buffer
        self.output = output
        # Who writes to tensor.data, or resizes it, meanwhile: the core still works on this memory.
        self._memory = source.untyped_storage()
        self._memory_of_buffer = self._memory if buffer is source else buffer.untyped_storage()

    def poll(self) -> bool:
        return self.job.poll(self.core_handle)

    def wait(self) -> torch.Tensor:
        try:
            self.job.wait(self.core_handle)
        except errors.BytePSError:
            self.ended = True
            raise
        self.ended = True
        devices.used_here(self.buffer, self.output)
        if self.buffer is not self.output:
            with torch.no_grad():
                self.output.copy_(self.buffer)
        else:
            note_written(self.output)
        return self.output


def start(
    tensor: torch.Tensor,
    output: torch.Tensor,
    what: Exchange,
    name: Optional[str],
    compression: Any = NoneCompressor,
    kept: Kept = NOTHING,
) -> int:
    """Starts the exchange of `tensor`, the result for `output`: a fresh contiguous tensor, or `tensor` itself. `name`:
    scoped() to the members; without one the exchange is numbered. `compression`: a cast has been made already.
    `kept`: what a compressor asks for that keeps something."""
    current = session.current()
    kind, shape = tensors.travels_as(tensor, what.operation)
    what = coded(what, compression)
    source = tensors.plain_to_land(tensor) if output is tensor else tensors.plain(tensor)
    buffer = source if output is tensor else output
    if name is None:
        name, what = current.unique_name(scoped("push_pull.noname", what.members)), what._replace(once=True)
    entry = Running(current.job, source, buffer, output)
    entry.kept = kept
    call = what.tensor(name, kind, shape, prefix=PREFIX)
    kept.give_to(call)
    return _submit(entry, call)


class Repeated:
    """Exchanges in place under one lasting name, as of a gradient in each step: as long as the tensors are alike, what
    the core is told is made once, but for their addresses. One is under way at a time."""

    def __init__(self, what: Exchange, name: str, compression: Any = NoneCompressor) -> None:
        self.what = coded(what, compression)
        self.name = name
        self._alike: Optional[tuple] = None
        self._call = abi.Tensor()

    def start(
        self, tensor: torch.Tensor, residuals: Optional[Residuals] = None, rate: Optional[float] = None
    ) -> int:
        """start() of `tensor` for itself. `residuals`: where what a compressor asks for is kept. `rate`: see there."""
        alike = (type(tensor), tensor.dtype, tensor.shape, tensor.layout, tensor.device)
        if alike != self._alike:
            kind, shape = tensors.travels_as(tensor, self.what.operation)
            self._call = self.what.tensor(self.name, kind, shape, prefix=PREFIX)
            self._alike = alike
        source = tensors.plain_to_land(tensor)
        entry = Running(session.job(), source, source, tensor)
        if residuals is not None:
            entry.kept = residuals.kept(self.name, source, rate)
            entry.kept.give_to(self._call)
        return _submit(entry, self._call)


def start_broadcast(
    tensor: torch.Tensor, root: int, name: str, once: bool = True, members: Tuple[int, ...] = ()
) -> int:
    """Starts the broadcast of `root`'s values into every other rank's `tensor`. Any dtype: elements are copied.
    `once`: `name` is unique."""
    current = session.current()
    what = Exchange(abi.BROADCAST, root=root, members=members, once=once)
    kind, shape = tensors.travels_as(tensor, what.operation)
    buffer = tensors.plain_to_land(tensor)
    return _submit(Running(current.job, buffer, buffer, tensor), what.tensor(name, kind, shape, prefix=PREFIX))


def note_written(tensor: torch.Tensor) -> None:
    """Tells autograd that the core has written to the tensor."""
    if _increment_version is not None and not tensor.is_inference():
        _increment_version(tensor)


def _submit(entry: Running, call: abi.Tensor) -> int:
    """`call` says all but where the memory is."""
    buffer = entry.buffer
    call.output = buffer.data_ptr()
    call.input = call.output if entry.source is buffer else entry.source.data_ptr()
    if buffer.is_cuda:
        call.memory, call.device, call.stream = devices.place_of(buffer)
    handle = pending.note(entry)
    try:
        entry.core_handle = entry.job.submit(call)
    except errors.BytePSError:
        pending.forget(handle)
        raise
    return handle
