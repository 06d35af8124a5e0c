"""What error feedback carries from one step to the next (docs/compression.md): it is kept here, beside the gradients of
an optimizer or a model, and goes into the optimizer's state_dict() under a key of its own."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Optional

import torch

from byteps._core.residuals import KEY, is_of_this_place, place

__all__: List[str] = ["KEY"]


class Residuals:
    """By the name of the exchange: float32, in host memory, flat."""

    def __init__(self) -> None:
        self.tensors: Dict[str, torch.Tensor] = {}

    def of(self, name: str, element_count: int) -> torch.Tensor:
        """Zeros at first, and when the number of elements is another one."""
        known = self.tensors.get(name)
        if known is None or known.numel() != element_count:
            known = self.tensors[name] = torch.zeros(element_count, dtype=torch.float32, device="cpu")
        return known

    def state(self) -> Dict[str, Any]:
        """To be saved. The tensors are those that go on; torch.save() copies them."""
        return {"place": place(), "residuals": dict(self.tensors)}

    def norm(self) -> float:
        """Of all elements."""
        norms = [torch.linalg.vector_norm(each, dtype=torch.float64).item() for each in self.tensors.values()]
        return math.hypot(*norms)

    def load(self, saved: Optional[Dict[str, Any]]) -> None:
        """What state() gave. That of another place: see is_of_this_place()."""
        self.tensors.clear()
        if is_of_this_place(saved, stacklevel=4):
            assert saved is not None
            self.tensors.update((name, each.clone()) for name, each in saved["residuals"].items())
