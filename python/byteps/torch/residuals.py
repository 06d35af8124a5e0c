"""What error feedback carries from one step to the next (docs/compression.md): it is kept here, beside the gradients of
an optimizer or a model, and goes into the optimizer's state_dict() under a key of its own."""

from __future__ import annotations

import warnings
from typing import Any, Dict, List, Optional, Tuple

import torch

from byteps._core import session

__all__: List[str] = []

KEY = "byteps"  # of a state_dict()


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
        return {"place": _place(), "residuals": dict(self.tensors)}

    def load(self, saved: Optional[Dict[str, Any]]) -> None:
        """What state() gave. That of another rank, or of a job with its ranks on other machines, is what others have
        not sent yet: then all begin with zeros, with a warning, as they do when nothing was saved."""
        self.tensors.clear()
        place = _place()
        if saved is not None and saved["place"] == place:
            self.tensors.update((name, each.clone()) for name, each in saved["residuals"].items())
            return
        what = "has none" if saved is None else f"has that of {_words(saved['place'])}"
        warnings.warn(
            f"error feedback begins with zeros: what is loaded {what}, and this is {_words(place)}. Save the optimizer "
            "on each rank to keep it",
            stacklevel=3,
        )


def _place() -> Tuple[int, List[int]]:
    """The rank, and which machine each rank is on: who leads what on a machine follows from these."""
    current = session.current()
    return current.job.rank, list(current.job.machines)


def _words(place: Tuple[int, List[int]]) -> str:
    rank, machines = place
    return f"rank {rank} of {len(machines)} on {len(set(machines))} machines"
