"""PartialDistributedOptimizer: some layers learn on each rank alone, from its own data."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Optional, Set, Tuple, Type, Union

import torch

from byteps._core.process_sets import ProcessSet, global_process_set
from byteps._core.reduction import Average, ReduceOp
from byteps.torch.compression import Compression, Compressor
from byteps.torch.gradients import Gradients
from byteps.torch.optimizer import _DistributedOptimizer, checked_meaning, titled, with_base

__all__ = ["PartialDistributedOptimizer"]

Layers = Union[torch.nn.Module, torch.Tensor, Iterable[Union[torch.nn.Module, torch.Tensor]], None]


def PartialDistributedOptimizer(  # the name users know
    optimizer: torch.optim.Optimizer,
    named_parameters: Optional[Iterable[Tuple[str, torch.nn.Parameter]]] = None,
    local_layers: Layers = None,
    scale_local_gradients: bool = True,
    compression: Type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: Union[ReduceOp, str] = Average,
    gradient_predivide_factor: float = 1.0,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    name: Optional[str] = None,
    compression_params: Optional[Dict[str, Any]] = None,
) -> torch.optim.Optimizer:
    """DistributedOptimizer that leaves the gradients of some layers on their rank.

    local_layers: a module, a parameter, or a list of them.
    scale_local_gradients: their gradients are divided by the number of ranks that average the others, so that a loss
        counts alike in both.
    """
    if isinstance(local_layers, (torch.nn.Module, torch.Tensor)):
        local_layers = [local_layers]
    partial = with_base(_PartialDistributedOptimizer, optimizer)
    partial._local = _parameters_of(local_layers or [])
    partial._scaled_among = process_set if scale_local_gradients else None
    meaning = checked_meaning(op, gradient_predivide_factor)
    gradients = Gradients(compression, sparse_as_dense, titled(name), meaning, process_set, compression_params)
    partial._attach(optimizer, named_parameters, gradients, backward_passes_per_step)
    return partial


class _PartialDistributedOptimizer(_DistributedOptimizer):
    """Mixed in before the wrapped optimizer's class."""

    _local: Set[int]
    _scaled_among: Optional[ProcessSet]

    def synchronize(self) -> None:
        super().synchronize()
        among = self._scaled_among
        if among is None or not among.included() or among.size() == 1:
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                if id(parameter) in self._local and parameter.grad is not None:
                    parameter.grad.div_(among.size())

    def _is_left_out(self, parameter: torch.Tensor) -> bool:
        return id(parameter) in self._local


def _parameters_of(layers: Iterable[Any]) -> Set[int]:
    found: List[torch.Tensor] = []
    for layer in layers:
        if isinstance(layer, torch.nn.Module):
            found += layer.parameters()
        elif isinstance(layer, torch.Tensor):
            found.append(layer)
        else:
            raise ValueError(f"local_layers: expected modules or parameters, got {type(layer).__name__}")
    return {id(parameter) for parameter in found}
