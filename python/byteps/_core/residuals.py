"""What error feedback carries from one step to the next (docs/compression.md), where a bridge keeps it by the names of
tensors (src/bridge/residuals.h); and to whom it belongs, which checkpoints are asked for."""

from __future__ import annotations

import ctypes
import math
import warnings
from typing import Any, Dict, List, Optional, Tuple

from byteps._core import session
from byteps._core.exchange import PREFIX, encoded_name

KEY = "byteps"  # of what is saved with an optimizer


class Residuals:
    """Those of the tensors that one compressor was given for. A residual belongs to the name of its tensor: a tape that
    is made in each step, with a compressor of its own, goes on with what the one before has left."""

    def __init__(self) -> None:
        self._kept: Dict[str, Any] = {}  # by the name of the tensor, the library of the bridge that keeps its residual
        self._loaded: Optional[Dict[str, Any]] = None  # of tensors that have not been used since

    def __reduce__(self) -> Tuple[Any, ...]:
        """For copies of whoever has it."""
        return Residuals, ()

    def note(self, name: str, library: Any) -> None:
        """A tensor of this name has a residual: whoever submits it says RESIDUAL_BY_NAME."""
        if name in self._kept:
            return
        self._kept[name] = library
        self._set_to_loaded(name)

    def state(self) -> Dict[str, Any]:
        """To be saved, between two steps: where this rank is, and a copy of each residual that there is, by the name of
        its tensor."""
        copies = {name: each.copy() for name, each in self._views().items()}
        return {"place": place(), "residuals": {**(self._loaded or {}), **copies}}

    def norm(self) -> float:
        """Between two steps: of all elements that state() would have."""
        arrays = {**(self._loaded or {}), **self._views()}.values()
        return math.sqrt(sum(_square_sum(each.reshape(-1)) for each in arrays))

    def _views(self) -> Dict[str, Any]:
        """Those that there are."""
        kept = {name: _view(library, name) for name, library in self._kept.items()}
        return {name: each for name, each in kept.items() if each is not None}

    def load(self, saved: Optional[Dict[str, Any]]) -> None:
        """What state() gave, between two steps. That of another place: see is_of_this_place()."""
        import numpy as np  # torch does without

        self._loaded = {}
        if is_of_this_place(saved, stacklevel=4):
            assert saved is not None
            self._loaded.update((name, np.array(each, np.float32)) for name, each in saved["residuals"].items())
        for name in self._kept:  # compiled programs do not note it again
            self._set_to_loaded(name)

    def _set_to_loaded(self, name: str) -> None:
        if self._loaded is None:
            return
        library = self._kept[name]
        library.byteps_bridge_drop_residual(_key(name))
        loaded = self._loaded.pop(name, None)
        if loaded is not None:
            address_of(library, name, loaded.size)
            view = _view(library, name)
            assert view is not None
            view[:] = loaded.reshape(-1)


def _square_sum(elements: Any) -> float:
    """In double precision, without a copy of all."""
    import numpy as np

    return float(np.einsum("i,i", elements, elements, dtype=np.float64, casting="same_kind"))


def address_of(library: Any, name: str, element_count: int) -> int:
    """Where the residual of this tensor is, of so many elements: for who submits it without the bridge."""
    address = library.byteps_bridge_residual(_key(name), element_count)
    if not address:
        raise MemoryError(f"there is no memory for the residual of '{name}', of {element_count} elements")
    return int(address)


def _key(name: str) -> bytes:
    return PREFIX + encoded_name(name)


class HostMemory:
    """What keeps residuals where there is no bridge, with a bridge's functions."""

    def __init__(self) -> None:
        self.arrays: Dict[bytes, Any] = {}

    def of(self, name: str, element_count: int) -> Any:
        self.byteps_bridge_residual(_key(name), element_count)
        return self.arrays[_key(name)]

    def byteps_bridge_residual(self, key: bytes, element_count: int) -> int:
        if element_count and self.byteps_bridge_residual_elements(key) != element_count:
            import numpy as np

            self.arrays[key] = np.zeros(element_count, np.float32)
        return int(self.arrays[key].ctypes.data)

    def byteps_bridge_residual_elements(self, key: bytes) -> int:
        return self.arrays[key].size if key in self.arrays else 0

    def byteps_bridge_drop_residual(self, key: bytes) -> None:
        self.arrays.pop(key, None)


def _view(library: Any, name: str) -> Optional[Any]:
    """The residual itself; None: no operation has had it yet."""
    count = library.byteps_bridge_residual_elements(_key(name))
    if not count:
        return None
    import numpy as np

    memory = (ctypes.c_float * count).from_address(library.byteps_bridge_residual(_key(name), 0))
    return np.frombuffer(memory, np.float32)


def is_of_this_place(saved: Optional[Dict[str, Any]], stacklevel: int) -> bool:
    """What is saved of another rank, or of a job with its ranks on other machines, is what others have not sent yet:
    then all begin with zeros, with a warning, as they do when nothing was saved."""
    here = place()
    if saved is not None and _same(saved["place"]) == here:
        return True
    what = "has none" if saved is None else f"has that of {_words(_same(saved['place']))}"
    warnings.warn(
        f"error feedback begins with zeros: what is loaded {what}, and this is {_words(here)}. Save the optimizer on "
        "each rank to keep it",
        stacklevel=stacklevel,
    )
    return False


def place() -> Tuple[int, List[int]]:
    """The rank, and which machine each rank is on: who leads what on a machine follows from these."""
    current = session.current()
    return current.job.rank, list(current.job.machines)


def _same(saved: Any) -> Tuple[int, List[int]]:
    """As it was before it was written to a file."""
    rank, machines = saved
    return int(rank), [int(machine) for machine in machines]


def _words(where: Tuple[int, List[int]]) -> str:
    rank, machines = where
    return f"rank {rank} of {len(machines)} on {len(set(machines))} machines"
