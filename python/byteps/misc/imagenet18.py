"""Training in 16 bits with parameters in 32, as the original's ImageNet example does it. For PyTorch.

    model = make_model().half()
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.1, momentum=0.9)
    optimizer = imagenet18.DistributedOptimizer(
        optimizer, half=True, model=model, fp16_params=list(model.parameters()), fp32_params=masters, loss_scale=1024
    )
    imagenet18.broadcast_parameters(model.state_dict(), root_rank=0)

    (loss * 1024).backward()
    optimizer.step()

With half=False it is byteps.torch.DistributedOptimizer. With torch.amp, whose parameters are in 32 bits, that one is
all that is needed.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Type

import torch

from byteps._core.mixed import Wrapped
from byteps.torch import Compression, broadcast_optimizer_state, broadcast_parameters
from byteps.torch import DistributedOptimizer as _TorchOptimizer
from byteps.torch.compression import Compressor
from byteps.torch.optimizer import with_base

__all__ = ["DistributedOptimizer", "broadcast_optimizer_state", "broadcast_parameters"]


def DistributedOptimizer(  # the name users know
    optimizer: torch.optim.Optimizer,
    named_parameters: Optional[Iterable[Tuple[str, torch.nn.Parameter]]] = None,
    compression: Type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    half: bool = False,
    model: Optional[torch.nn.Module] = None,
    fp16_params: Optional[Sequence[torch.Tensor]] = None,
    fp32_params: Optional[Sequence[torch.Tensor]] = None,
    loss_scale: float = 1024,
    compression_params: Optional[Dict[str, Any]] = None,
) -> torch.optim.Optimizer:
    """An optimizer of the same class that averages gradients over all workers before each step.

    half: the model computes in 16 bits, and `optimizer` updates copies of its parameters in 32. The gradients of
        `fp16_params` are averaged as soon as they are ready (summed in 32 bits, rounded once); step() divides them by
        `loss_scale`, gives them to `fp32_params`, the copies in the same order, and copies what they become back. The
        copies have the model's values at the first step.
    model: for the names of gradients, when named_parameters is not given.
    loss_scale: by what the loss was multiplied, so that small gradients do not vanish in 16 bits. A step with a
        gradient that is not finite on some rank is skipped on all of them.

    To clip, call optimizer.synchronize() after backward(), then change the gradients of `fp32_params`, then step().

    ValueError: a wrong argument. The others: see byteps.torch.DistributedOptimizer."""
    if named_parameters is None and model is not None:
        named_parameters = model.named_parameters()
    if not half:
        return _TorchOptimizer(
            optimizer,
            named_parameters,
            compression,
            backward_passes_per_step,
            compression_params=compression_params,
        )
    if fp16_params is None or fp32_params is None:
        raise ValueError("half=True needs fp16_params, the model's parameters, and fp32_params, copies in 32 bits")
    pairs = list(zip(fp16_params, fp32_params))
    if len(fp16_params) != len(fp32_params) or any(a.shape != b.shape for a, b in pairs):
        raise ValueError(
            f"fp16_params ({len(fp16_params)}) and fp32_params ({len(fp32_params)}) must be the same parameters, in "
            "the same order"
        )
    if not (isinstance(loss_scale, (int, float)) and 0 < loss_scale < math.inf):
        raise ValueError(f"loss_scale is {loss_scale!r}: it must be a number larger than 0")
    inner = torch.optim.SGD([a for a, _ in pairs], lr=0.0)
    averaging = DistributedOptimizer(
        inner, named_parameters, compression, backward_passes_per_step, compression_params=compression_params
    )
    distributed = with_base(_HalfOptimizer, optimizer)
    distributed._averaging, distributed._pairs, distributed._loss_scale = averaging, pairs, float(loss_scale)
    return distributed


class _HalfOptimizer(Wrapped):
    """Mixed in before the wrapped optimizer's class. `_averaging` never steps: it averages the gradients of 16 bits."""

    _averaging: Any
    _pairs: List[Tuple[torch.Tensor, torch.Tensor]]
    _loss_scale: float
    _begun = False
    _should_synchronize = True

    def synchronize(self) -> None:
        """Waits until all gradients are averaged, and gives them to the copies in 32 bits."""
        self._averaging.synchronize()
        for small, large in self._pairs:
            large.grad = None if small.grad is None else small.grad.to(large.dtype) / self._loss_scale

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it, step() does not synchronize. After synchronize() it does not either; scripts that are written for
        byteps.torch.DistributedOptimizer say it."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """synchronize(), if that was not called after backward(), the wrapped optimizer's step, and the model has its
        result."""
        if closure is not None:
            raise ValueError("step() with half=True takes no closure: call backward() before it")
        if not self._begun:  # the model may have been loaded or broadcast meanwhile
            self._begun = True
            for small, large in self._pairs:
                large.copy_(small)
        if self._should_synchronize and not self._averaging._synchronized:
            self.synchronize()
        self._averaging._synchronized = False
        result = None
        if all(large.grad is None or bool(large.grad.isfinite().all()) for _, large in self._pairs):
            result = super().step()
            for small, large in self._pairs:
                small.copy_(large)
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Of the model's parameters and of their copies."""
        self._averaging.zero_grad(set_to_none)
        super().zero_grad(set_to_none)
