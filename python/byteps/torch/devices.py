"""Where tensors are, and the streams of their devices.

The core touches a tensor on a device when all work has ended that its caller had put on one stream (Place.stream), and
an exchange has ended when its result is there, so that any stream may use it. What is left to this package:

 1. The stream is the current one of the tensor's device when the exchange is submitted: what makes the tensor is there.
 2. What goes on in a thread of ours, where other streams are current, goes on along a Line: after all that the caller
    had put on its stream, and not after what it puts there later, which may wait for this.
 3. Memory belongs to the stream on which it was allocated. Who uses it on another says so (used_here), or it would be
    given to somebody else too early.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

import torch

from byteps._core import abi, session
from byteps._core.exchange import HOST, Place

__all__: List[str] = []


def cuda_built() -> bool:
    """Whether tensors may be on CUDA devices: as this torch may have them there. Nothing of byteps is built for it, and
    the driver is loaded when the first one comes."""
    return torch.version.cuda is not None


def check_device(device: torch.device, subject: str = "the tensor", remedy: str = "move it with tensor.cpu()") -> None:
    """ValueError, which begins with `subject`, for a device from which nothing can be exchanged. `remedy`: what helps
    on one that others can compute with."""
    if device.type == "cpu":
        return
    if device.type == "meta":
        raise ValueError(
            f"{subject} is on device 'meta', where nothing has values: make it on the CPU or a GPU "
            "(model.to_empty(device='cpu'), torch.empty_like(tensor, device='cpu')) and give it values first"
        )
    if device.type != "cuda":
        raise ValueError(
            f"{subject} is on device '{device}', but BytePS takes tensors of the CPU and of CUDA devices only: {remedy}"
        )
    if torch.version.hip is not None:
        raise ValueError(
            f"{subject} is on device '{device}' of a torch for ROCm {torch.version.hip}, but AMD GPUs are not "
            f"supported yet: {remedy}"
        )
    session.check_not_forked()  # before torch says that CUDA cannot be used there, as if another start were all


class OneDevice:
    """The GPU of a model: the tensors of one process may be on one, and on the CPU."""

    def __init__(self) -> None:
        self._device: Optional[torch.device] = None

    def add(self, name: str, tensor: torch.Tensor, kind: str = "parameter") -> None:
        """ValueError: the tensor is on another GPU than those before, or where nothing can be exchanged.
        UnsupportedError: the core has no driver for the GPU."""
        remedy = "move the model with model.cpu()"
        if kind == "parameter":
            remedy += " before its parameters are given to the optimizer"
        check_device(tensor.device, f"the {kind} {name!r}", remedy)
        if not tensor.is_cuda or tensor.device == self._device:
            return
        if self._device is not None:
            raise ValueError(
                f"the {kind} {name!r} is on device '{tensor.device}', others are on '{self._device}': the model of a "
                f"process is on one GPU. Move it with model.to('{self._device}'), and start one process for each GPU, "
                "as with bpslaunch and torch.cuda.set_device(bps.local_rank())"
            )
        job = session.job()
        if not job.is_alone:
            job.use_device(abi.CUDA_MEMORY, tensor.device.index)
        self._device = tensor.device


def check_all(named: Iterable[Tuple[str, torch.Tensor]], kind: str = "tensor") -> None:
    """OneDevice.add() of all."""
    one = OneDevice()
    for name, tensor in named:
        one.add(name, tensor, kind)


def place_of(tensor: torch.Tensor) -> Place:
    """For an exchange that is submitted now, by this thread."""
    if not tensor.is_cuda:
        return HOST
    return _place(torch.cuda.current_stream(tensor.device))


def cuda_devices(value: Any) -> List[torch.device]:
    """Those of the tensors in a tensor, or in lists of lists of them."""
    if isinstance(value, torch.Tensor):
        return [value.device] if value.is_cuda else []
    found: Dict[torch.device, None] = {}

    def visit(each: Any) -> None:
        if isinstance(each, torch.Tensor):
            if each.is_cuda:
                found[each.device] = None
        elif isinstance(each, (list, tuple)):
            for one in each:
                visit(one)

    visit(value)
    return list(found)


def used_here(*tensors: torch.Tensor) -> None:
    """Work on them has been put on this thread's current stream, or will be by who gets them from it."""
    for tensor in tensors:
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))


# Those without a Line. The last one is taken first: what is allocated on a stream is kept for it when it is free again.
_spare_streams: Dict[torch.device, List[torch.cuda.Stream]] = {}


class Line:
    """What is put on the devices within here(), in any thread, comes after all that the thread which made the Line had
    put on its current streams by then. After join(), what a thread puts on its own comes after what is on the Line."""

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self._streams: List[torch.cuda.Stream] = []
        for device in devices:
            current = torch.cuda.current_stream(device)
            _refuse_capture(device)
            stream = _spare_stream(device)
            stream.wait_stream(current)
            self._streams.append(stream)

    def __del__(self, spare: "Dict[torch.device, List[torch.cuda.Stream]]" = _spare_streams) -> None:
        for stream in self._streams:
            spare.setdefault(stream.device, []).append(stream)

    @contextmanager
    def here(self) -> Iterator[None]:
        with ExitStack() as entered:
            for stream in self._streams:
                entered.enter_context(torch.cuda.stream(stream))
            yield

    def join(self) -> None:
        for stream in self._streams:
            torch.cuda.current_stream(stream.device).wait_stream(stream)

    @property
    def place(self) -> Place:
        """Of a tensor on the one device of the Line; on the host where it has none."""
        return _place(self._streams[0]) if self._streams else HOST


def _spare_stream(device: torch.device) -> torch.cuda.Stream:
    try:
        return _spare_streams[device].pop()
    except (KeyError, IndexError):
        return torch.cuda.Stream(device)


def _place(stream: torch.cuda.Stream) -> Place:
    return Place(abi.CUDA_MEMORY, stream.device.index, stream.cuda_stream)


def _refuse_capture(device: torch.device) -> None:
    with torch.cuda.device(device):
        if torch.cuda.is_current_stream_capturing():
            raise ValueError(
                f"a CUDA graph is being captured on the current stream of '{device}': an exchange cannot be part of "
                "it, since it goes through the host. Make the exchange outside of the capture"
            )
