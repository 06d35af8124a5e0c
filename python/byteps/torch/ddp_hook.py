"""A communication hook for torch's DistributedDataParallel: its buckets are averaged by BytePS, whatever backend the
process group has.

    bps.init()
    torch.distributed.init_process_group("gloo")
    model = DistributedDataParallel(model)
    model.register_comm_hook(bps.DDPHookState(compression=bps.Compression.fp16), bps.ddp_comm_hook)

A bucket leaves when the backward pass has filled it; one that holds earlier layers, which the next forward pass needs
first, passes others that wait.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, List, Optional, Type

import torch
from torch.futures import Future

from byteps._core import abi, session
from byteps._core.choices import gradient_compression
from byteps._core.compression import Coded, check_element, coded, packed
from byteps._core.reduction import Reduction
from byteps.torch import devices
from byteps.torch.compression import Compression, Compressor, float32_count
from byteps.torch.powersgd import PowerSGD
from byteps.torch.residuals import NOTHING, Kept, Residuals

__all__ = ["DDPHookState", "ddp_comm_hook"]

_TIMEOUT_S = 1800.0


class DDPHookState:
    """What belongs to one model: make one for each, on all ranks in the same order. `compression` is what travels, or
    `compression_params`, as of DistributedOptimizer."""

    def __init__(
        self,
        compression: Type[Compressor] = Compression.none,
        compression_params: Optional[Dict[str, Any]] = None,
    ) -> None:
        self.compression = gradient_compression(compression, Compression, compression_params)
        if isinstance(self.compression, PowerSGD):
            raise ValueError(
                f"compression is {self.compression!r}: torch has a hook of its own for it, powerSGD_hook of "
                "torch.distributed.algorithms.ddp_comm_hooks, which runs on the backend 'byteps'"
            )
        self._residuals = Residuals(self.compression)
        self._parameters: Dict[str, List[int]] = {}  # of each bucket of which something is kept
        self._name = "ddp"
        self._job: Callable[[], Any] = lambda: None  # in which the name holds; a weak reference, which can be copied
        if session.is_joined():
            self.wire_name()

    def wire_name(self) -> str:
        """What the buckets' names begin with: another one for each state of a job."""
        current = session.current()
        if self._job() is not current.job:
            self._name, self._job = current.lasting_name(self._name, self), weakref.ref(current.job)
        return self._name

    def residual_norm(self) -> float:
        """As that of DistributedOptimizer, when backward() has returned."""
        return self._residuals.norm()

    def _kept_of(self, name: str, bucket: Any, memory: torch.Tensor) -> Kept:
        """Of a coded bucket. DDP may arrange its buckets anew: then it begins with zeros."""
        check_element(self.compression, name, memory.dtype)
        if not (isinstance(self.compression, Coded) and self.compression.residuals is not None):
            return NOTHING
        parameters = [id(each) for each in bucket.parameters()]
        if self._parameters.setdefault(name, parameters) != parameters:
            self._parameters[name] = parameters
            self._residuals.drop(name)
        return self._residuals.kept(name, memory)


def ddp_comm_hook(state: DDPHookState, bucket: Any) -> Future[torch.Tensor]:
    """The average of a bucket over all workers of the job."""
    from byteps.torch.backend import exchange, futures, work

    if not isinstance(state, DDPHookState):
        raise TypeError(
            f"the state of ddp_comm_hook is {state!r}: write model.register_comm_hook(bps.DDPHookState(), "
            "bps.ddp_comm_hook), with a state for each model"
        )
    current = session.current()
    buffer = bucket.buffer()
    wire, context = packed(state.compression, buffer, abi.AVERAGE, float32_count(buffer))
    landings = exchange.Landings()
    memory = landings.place(wire, with_values=True)

    def finish() -> None:
        landings.finish()
        if wire is not buffer:
            devices.used_here(wire, buffer)
            buffer.copy_(state.compression.decompress(wire, context))

    index = bucket.index()
    # DDP arranges its buckets anew after the first step, so a number may come to mean another size.
    name = current.lasting_name(f"{state.wire_name()}.bucket.{index}", (memory.numel(), memory.dtype))
    members = exchange.Members(current.job, range(current.job.size), current.job.rank)
    piece = exchange.reduction(members, memory, Reduction(abi.AVERAGE), priority=index, once=False)
    what = coded(piece.what, state.compression)
    piece = piece._replace(what=what, kept=state._kept_of(name, bucket, memory))
    lineage = futures.Lineage(current.unique_name(f"{name}.step"), f"bucket {index} of DistributedDataParallel")
    started = work.Work(current.job, state, lineage, _TIMEOUT_S, finish, buffer)
    work.start(started, [(piece, f"byteps.{name}")])
    return started.get_future()


# register_comm_hook looks at these, and wants the classes themselves, not their names.
ddp_comm_hook.__annotations__ = {
    "state": DDPHookState,
    "bucket": torch.distributed.GradBucket,
    "return": Future[torch.Tensor],
}
