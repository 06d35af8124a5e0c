"""What error feedback and momentum before a code carry from one step to the next (docs/compression.md): it is kept
here, beside the gradients of an optimizer or a model, and goes into the optimizer's state_dict() under its own key."""

from __future__ import annotations

import math
from typing import Any, Dict, List, NamedTuple, Optional

import torch

from byteps._core import abi
from byteps._core.compression import feeds_back, momentum_of
from byteps._core.residuals import KEY, Rates, is_of_this_place, place, subject

__all__: List[str] = ["KEY"]


class Kept(NamedTuple):
    """Of one tensor, for one exchange, which reads and writes it."""

    residual: Optional[torch.Tensor] = None
    ratio: float = 0.0  # the residual is multiplied by it when it is added; 0: not
    momentum: Optional[torch.Tensor] = None
    mu: float = 0.0

    def give_to(self, call: abi.Tensor) -> None:
        if self.residual is not None:
            call.residual, call.residual_ratio = self.residual.data_ptr(), self.ratio
        if self.momentum is not None:
            call.momentum, call.momentum_mu = self.momentum.data_ptr(), self.mu


NOTHING = Kept()


class Residuals:
    """By the name of the exchange: float32, in host memory, flat."""

    def __init__(self, compression: Any = None) -> None:
        self._feeds_back, self._mu = feeds_back(compression), momentum_of(compression)
        self.tensors: Dict[str, torch.Tensor] = {}  # residuals
        self.momentum: Dict[str, torch.Tensor] = {}
        self.rates = Rates()

    def of(self, name: str, element_count: int) -> torch.Tensor:
        """The residual. Zeros at first, and when the number of elements is another one."""
        return _of(self.tensors, name, element_count)

    def kept(self, name: str, tensor: torch.Tensor, rate: Optional[float] = None) -> Kept:
        """What the compressor asks for of a tensor that is float32: others are not coded. `rate`: with which the
        optimizer takes the result, where that is known."""
        if tensor.dtype != torch.float32 or not tensor.numel():
            return NOTHING
        residual = self.of(name, tensor.numel()) if self._feeds_back else None
        ratio = self.rates.ratio(name, rate) if self._feeds_back else 0.0
        if self._mu is None:
            return Kept(residual, ratio)
        return Kept(residual, ratio, _of(self.momentum, name, tensor.numel()), self._mu)

    def drop(self, name: str) -> None:
        """It begins with zeros."""
        for kept in (self.tensors, self.momentum, self.rates.last):
            kept.pop(name, None)

    def state(self) -> Dict[str, Any]:
        """To be saved. The tensors are those that go on; torch.save() copies them."""
        state = {"place": place(), "residuals": dict(self.tensors)}
        if self._mu is not None:
            state["momentum"] = dict(self.momentum)
        return {**state, "rates": dict(self.rates.last)} if self.rates.last else state

    def norm(self) -> float:
        """Of all elements."""
        norms = [torch.linalg.vector_norm(each, dtype=torch.float64).item() for each in self.tensors.values()]
        return math.hypot(*norms)

    def load(self, saved: Optional[Dict[str, Any]]) -> None:
        """What state() gave. That of another place: see is_of_this_place()."""
        for kept in (self.tensors, self.momentum, self.rates.last):
            kept.clear()
        has_momentum = self._mu is not None
        if is_of_this_place(saved, subject(self._feeds_back or not has_momentum, has_momentum), stacklevel=4):
            assert saved is not None
            self.tensors.update((name, each.clone()) for name, each in saved["residuals"].items())
            self.momentum.update((name, each.clone()) for name, each in saved.get("momentum", {}).items())
            self.rates.last.update(saved.get("rates", {}))


def _of(kept: Dict[str, torch.Tensor], name: str, element_count: int) -> torch.Tensor:
    known = kept.get(name)
    if known is None or known.numel() != element_count:
        known = kept[name] = torch.zeros(element_count, dtype=torch.float32, device="cpu")
    return known
