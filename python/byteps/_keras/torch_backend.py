"""Keras on torch: gradients are averaged by byteps.torch, all of them at once.

A gradient that is None on this rank only is pushed as zeros, and one that is None on all ranks stays None: a bit per
variable travels with them, as in byteps.torch.DistributedOptimizer.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

import torch

from byteps._core import abi, errors, session
from byteps._core.reduction import Average
from byteps._keras.exchange import Exchange, Slot, scaled
from byteps.torch import Compression, ops

__all__ = ["Compression", "push_pull", "when"]


def push_pull(slots: Sequence[Slot], exchange: Exchange) -> List[Optional[torch.Tensor]]:
    """The combined gradients, in the order of `slots`. Blocks until all are there."""
    if session.job().server_count == 0:
        return scaled([slot.gradient for slot in slots], exchange.factor)
    with torch.no_grad():
        return _together(slots, exchange)


def _together(slots: Sequence[Slot], exchange: Exchange) -> List[Optional[torch.Tensor]]:
    average = exchange.op == Average
    name = session.current().lasting_name(f"Gradients.{exchange.title}.present", len(slots))
    present = torch.tensor([slot.gradient is not None for slot in slots])
    presence = ops.start(present, present, abi.SUM, name, 1)
    pending = []
    for slot in slots:
        gradient = _dense(slot) if exchange.predivide == 1.0 else _dense(slot) / exchange.predivide
        tensor, context = exchange.compression.compress(gradient)
        pending.append((ops.push_pull_async(tensor, average, slot.name, priority=slot.priority), context))
    results: List[Optional[torch.Tensor]] = []
    failure: Optional[Exception] = None
    for handle, context in pending:  # every one is waited for, also when one has failed
        try:
            result = exchange.compression.decompress(ops.synchronize(handle), context)
            results.append(result if exchange.predivide == 1.0 else result * exchange.predivide)
        except errors.BytePSError as error:
            failure = failure or error
    try:
        ops.synchronize(presence)
    except errors.BytePSError as error:
        failure = failure or error
    if failure is not None:
        raise failure
    return scaled([result if bit else None for result, bit in zip(results, present.tolist())], exchange.factor)


def when(condition: Any, combine: Any, gradients: List[Any]) -> List[Any]:
    """combine(gradients) if the condition holds, else `gradients`. Here Keras asks only when it does hold."""
    del condition
    return combine(gradients)


def _dense(slot: Slot) -> torch.Tensor:
    gradient = slot.gradient
    if gradient is None:
        value = slot.variable.value
        return torch.zeros(value.shape, dtype=value.dtype)
    return gradient.to_dense() if gradient.layout != torch.strided else gradient
