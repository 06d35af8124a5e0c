"""DistributedDataParallel: backward() ends when the gradients are averaged over all workers.

The hook of each parameter starts its exchange as soon as backward has made its gradient. The first hook of a backward
pass asks the autograd engine for a call at the end of that pass, which waits for all (gradients.py). Models that take
part in one pass end together, whatever the order in which they began.
"""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Type

import torch

from byteps._core import agreement, session
from byteps.torch import exchange, gradients, pending
from byteps.torch.broadcast import broadcast_parameters
from byteps.torch.compression import Compression, Compressor

__all__ = ["DistributedDataParallel"]


class DistributedDataParallel(torch.nn.Module):
    """Wraps `module`; call this instead of it. Parameters and buffers of rank 0 go to all at once; all ranks must make
    their DistributedDataParallels in the same order. Where a job goes on without rank 0, those of the lowest rank that
    is left.

    device_ids: for compatibility; None, or one device.
    broadcast_buffers: the buffers of rank 0 go to all before each forward pass in training mode.
    compression, compression_params: what travels, as of DistributedOptimizer. What a compressor keeps is not saved.
    sparse_as_dense: gradients of sparse embeddings travel as dense ones.

    Parameters that are not used need no flag, and the other arguments of torch's class have no effect: `module` stays
    as it is, and gradients keep their own memory.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: Optional[Sequence[Any]] = None,
        broadcast_buffers: bool = True,
        compression: Type[Compressor] = Compression.none,
        *,
        sparse_as_dense: bool = False,
        output_device: Any = None,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        bucket_cap_mb: Optional[float] = None,
        compression_params: Optional[Dict[str, Any]] = None,
    ) -> None:
        del output_device, find_unused_parameters, gradient_as_bucket_view, static_graph, bucket_cap_mb
        super().__init__()
        if not isinstance(module, torch.nn.Module):
            raise ValueError(f"expected a torch.nn.Module, got {type(module).__name__}")
        if device_ids is not None and len(device_ids) > 1:
            raise ValueError(
                f"device_ids is {list(device_ids)}: one process trains on one device, so it is None or has one"
            )
        self.module = module
        self.device_ids = device_ids
        self.broadcast_buffers = broadcast_buffers
        self.require_backward_grad_sync = True  # False within no_sync()
        self._averages = True  # as it was in the last forward pass
        self._under_way = False
        title = session.current().unique_name("ddp") + "."
        self._gradients = gradients.Gradients(
            compression, sparse_as_dense, title, compression_params=compression_params
        )
        for name, parameter in module.named_parameters():
            self._gradients.add(parameter, name)
        self._buffers_name = f"Buffers.{title}"
        self._root = 0  # until it is lost
        self._from_root(lambda root: broadcast_parameters(module.state_dict(), root, f"Parameter.{title}"))
        self._hook_what_needs_it()
        self._gradients.when_abandoned = _make_end(weakref.ref(self))

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            if self._under_way:
                raise RuntimeError(
                    "DistributedDataParallel: the last backward() failed before its gradients were averaged, so ranks "
                    "may differ now. Restart from a checkpoint"
                )
            self._hook_what_needs_it()
            self._averages = self.require_backward_grad_sync
            if self.training and self.broadcast_buffers and self._averages:
                self._broadcast_buffers()
        return self.module(*inputs, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it, forward and backward passes accumulate gradients; the next pass outside averages their sum."""
        former, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = former

    def synchronize(self) -> None:
        """For compatibility: when backward() has returned, gradients are averaged."""

    def residual_norm(self) -> float:
        """As that of DistributedOptimizer."""
        return self._gradients.residuals.norm()

    # ---- gradients

    def _hook_what_needs_it(self) -> None:
        """A frozen parameter can have no hook; it gets one when it is thawed."""
        for slot in self._gradients.slots:
            if slot.hook is None and slot.parameter.requires_grad:
                slot.hook = slot.parameter.register_post_accumulate_grad_hook(_make_hook(weakref.ref(self), slot))

    def _push(self, slot: gradients.Slot) -> None:
        if not self._averages or not self._gradients.travel:
            return
        if not self._under_way:
            self._under_way = True
            _end_with_this_pass(self)
        if slot.handle is not None:
            raise RuntimeError(
                f"{slot.name}: backward made this gradient twice in one pass. Checkpoints with use_reentrant=True do "
                "that to a parameter that is also used outside; pass use_reentrant=False"
            )
        self._gradients.push(slot)

    # ---- buffers

    def _from_root(self, broadcasts: Callable[[int], None]) -> None:
        self._root = agreement.with_root(self._root, f"byteps.{self._buffers_name}root", broadcasts)

    def _broadcast_buffers(self) -> None:
        """All buffers of one dtype travel as one tensor, also where a rank has some on its GPU and some not."""
        by_dtype: Dict[torch.dtype, List[torch.Tensor]] = {}
        for buffer in self.module.buffers():
            by_dtype.setdefault(buffer.dtype, []).append(buffer)
        if not session.job().is_alone and by_dtype:
            with torch.no_grad():
                self._from_root(lambda root: self._broadcast_from(root, by_dtype))

    def _broadcast_from(self, root: int, by_dtype: Dict[torch.dtype, List[torch.Tensor]]) -> None:
        """All ends are awaited, also after one that has failed."""
        under_way: List[int] = []
        for dtype, buffers in by_dtype.items():
            device = next((buffer.device for buffer in buffers if buffer.is_cuda), buffers[0].device)
            flat = torch.cat([buffer.reshape(-1).to(device) for buffer in buffers])
            name = session.current().lasting_name(f"{self._buffers_name}{dtype}", (len(flat), root))
            under_way.append(exchange.start_broadcast(flat, root, name, once=False))
        received = pending.synchronize(pending.group(under_way))
        if session.rank() == root:
            return
        for flat, buffers in zip(received, by_dtype.values()):
            sizes = [buffer.numel() for buffer in buffers]
            for buffer, values in zip(buffers, flat.split(sizes)):
                buffer.copy_(values.view(buffer.shape))

    # ---- copies

    def __getstate__(self) -> Dict[str, Any]:
        raise TypeError(
            "a DistributedDataParallel is bound to this process and its job, so it is neither copied nor pickled: "
            "copy or save its .module, or its state_dict()"
        )


def _make_hook(owner: "weakref.ref[DistributedDataParallel]", slot: gradients.Slot) -> Any:
    def hook(_: torch.Tensor) -> None:
        model = owner()
        if model is not None:  # the module may outlive its wrapper
            model._push(slot)

    return hook


def _make_end(owner: "weakref.ref[DistributedDataParallel]") -> Callable[[], None]:
    """For Gradients.when_abandoned: the job was left, amid a backward pass perhaps."""

    def end() -> None:
        model = owner()
        if model is not None:
            model._under_way = False

    return end


_passes: Dict[int, List[DistributedDataParallel]] = {}  # who takes part in the backward pass of this number


def _end_with_this_pass(model: DistributedDataParallel) -> None:
    number = torch._C._current_graph_task_id()
    if number not in _passes:
        _passes[number] = []
        torch.autograd.Variable._execution_engine.queue_callback(lambda: _end_pass(number))
    _passes[number].append(model)


def _end_pass(number: int) -> None:
    models = _passes.pop(number)
    try:
        gradients.finish([model._gradients for model in models])
    finally:
        for model in models:
            model._under_way = False
