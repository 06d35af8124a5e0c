"""What error feedback and momentum before a code carry from one step to the next (docs/compression.md), where a bridge
keeps it by the names of tensors (src/bridge/residuals.h); and to whom it belongs, which checkpoints are asked for."""

from __future__ import annotations

import ctypes
import math
import warnings
from typing import Any, Dict, List, Optional, Tuple

from byteps._core import session
from byteps._core.exchange import PREFIX, encoded_name

KEY = "byteps"  # of what is saved with an optimizer


class Residuals:
    """Those of the tensors that one compressor was given for, and their momentum. They belong to the name of their
    tensor: a tape that is made in each step, with a compressor of its own, goes on with what the one before has left.

    feeds_back, has_momentum: which of the two there is."""

    def __init__(self, feeds_back: bool = True, has_momentum: bool = False) -> None:
        # By what they are called in a checkpoint, what stands before the name of a tensor where they are kept.
        self._kinds = {"residuals": b""} if feeds_back else {}
        if has_momentum:
            self._kinds["momentum"] = _MOMENTUM
        self._kept: Dict[str, Any] = {}  # by the name of the tensor, the library of the bridge that keeps them
        self._loaded: Dict[str, Dict[str, Any]] = {}  # by kind, of tensors that have not been used since
        self._is_loaded = False
        self.rates = Rates()

    def __reduce__(self) -> Tuple[Any, ...]:
        """For copies of whoever has it."""
        return Residuals, ("residuals" in self._kinds, "momentum" in self._kinds)

    @property
    def subject(self) -> str:
        return subject("residuals" in self._kinds, "momentum" in self._kinds)

    def note(self, name: str, library: Any) -> None:
        """A tensor of this name has them: whoever submits it says BY_NAME."""
        if name in self._kept:
            return
        self._kept[name] = library
        self._set_to_loaded(name)

    def state(self) -> Dict[str, Any]:
        """To be saved, between two steps: where this rank is, and a copy of each array that there is, by the name of
        its tensor."""
        saved: Dict[str, Any] = {"place": place(), "residuals": {}}
        for kind, prefix in self._kinds.items():
            kept = {name: _view(library, prefix + _key(name)) for name, library in self._kept.items()}
            copies = {name: each.copy() for name, each in kept.items() if each is not None}
            saved[kind] = {**self._loaded.get(kind, {}), **copies}
        return {**saved, "rates": dict(self.rates.last)} if self.rates.last else saved

    def norm(self) -> float:
        """Between two steps: of all residuals that state() would have."""
        views = {name: _view(library, _key(name)) for name, library in self._kept.items()}
        there = {name: each for name, each in views.items() if each is not None}
        arrays = {**self._loaded.get("residuals", {}), **there}
        return math.sqrt(sum(_square_sum(each.reshape(-1)) for each in arrays.values()))

    def load(self, saved: Optional[Dict[str, Any]]) -> None:
        """What state() gave, between two steps. That of another place: see is_of_this_place()."""
        import numpy as np  # torch does without

        self._loaded, self._is_loaded = {kind: {} for kind in self._kinds}, True
        self.rates.last.clear()
        if is_of_this_place(saved, self.subject, stacklevel=4):
            assert saved is not None
            for kind, loaded in self._loaded.items():
                loaded.update((name, np.array(each, np.float32)) for name, each in saved.get(kind, {}).items())
            self.rates.last.update(saved.get("rates", {}))
        for name in self._kept:  # compiled programs do not note it again
            self._set_to_loaded(name)

    def _set_to_loaded(self, name: str) -> None:
        if not self._is_loaded:
            return
        library = self._kept[name]
        for kind, prefix in self._kinds.items():
            library.byteps_bridge_drop_residual(prefix + _key(name))
            loaded = self._loaded[kind].pop(name, None)
            if loaded is not None:
                _address(library, prefix, name, loaded.size)
                view = _view(library, prefix + _key(name))
                assert view is not None
                view[:] = loaded.reshape(-1)


class Rates:
    """With which learning rate each tensor was coded last, where a layer knows it: so much counts what was left."""

    def __init__(self) -> None:
        self.last: Dict[str, float] = {}

    def ratio(self, name: str, rate: Optional[float]) -> float:
        """What is multiplied with what was left, now that the rate is this one; 0: nothing is."""
        if rate is None or not 0 < rate < math.inf:
            return 0.0
        before, self.last[name] = self.last.get(name, rate), rate
        return 0.0 if before == rate else before / rate


def _square_sum(elements: Any) -> float:
    """In double precision, without a copy of all."""
    import numpy as np

    return float(np.einsum("i,i", elements, elements, dtype=np.float64, casting="same_kind"))


def address_of(library: Any, name: str, element_count: int) -> int:
    """Where the residual of this tensor is, of so many elements: for who submits it without the bridge."""
    return _address(library, b"", name, element_count)


def address_of_momentum(library: Any, name: str, element_count: int) -> int:
    """The same of its momentum."""
    return _address(library, _MOMENTUM, name, element_count)


def _address(library: Any, prefix: bytes, name: str, element_count: int) -> int:
    address = library.byteps_bridge_residual(prefix + _key(name), element_count)
    if not address:
        raise MemoryError(f"there is no memory for what is kept of '{name}', of {element_count} elements")
    return int(address)


_MOMENTUM = b"momentum of "  # kMomentumPrefix (src/bridge/bridge.h)


def _key(name: str) -> bytes:
    return PREFIX + encoded_name(name)


class HostMemory:
    """What keeps residuals where there is no bridge, with a bridge's functions."""

    def __init__(self) -> None:
        self.arrays: Dict[bytes, Any] = {}

    def of(self, name: str, element_count: int) -> Any:
        """The residual."""
        return self._of(_key(name), element_count)

    def momentum_of(self, name: str, element_count: int) -> Any:
        return self._of(_MOMENTUM + _key(name), element_count)

    def _of(self, key: bytes, element_count: int) -> Any:
        self.byteps_bridge_residual(key, element_count)
        return self.arrays[key]

    def byteps_bridge_residual(self, key: bytes, element_count: int) -> int:
        if element_count and self.byteps_bridge_residual_elements(key) != element_count:
            import numpy as np

            self.arrays[key] = np.zeros(element_count, np.float32)
        return int(self.arrays[key].ctypes.data)

    def byteps_bridge_residual_elements(self, key: bytes) -> int:
        return self.arrays[key].size if key in self.arrays else 0

    def byteps_bridge_drop_residual(self, key: bytes) -> None:
        self.arrays.pop(key, None)


def _view(library: Any, key: bytes) -> Optional[Any]:
    """What is kept itself; None: no operation has had it yet."""
    count = library.byteps_bridge_residual_elements(key)
    if not count:
        return None
    import numpy as np

    memory = (ctypes.c_float * count).from_address(library.byteps_bridge_residual(key, 0))
    return np.frombuffer(memory, np.float32)


def subject(feeds_back: bool, has_momentum: bool) -> str:
    """What is kept, as the subject of a sentence that goes on with "zeros"."""
    if feeds_back and has_momentum:
        return "error feedback and momentum begin with"
    return "momentum begins with" if has_momentum else "error feedback begins with"


def is_of_this_place(saved: Optional[Dict[str, Any]], what_begins: str, stacklevel: int) -> bool:
    """What is saved of another rank, or of a job with its ranks on other machines, is what others have not sent yet:
    then all begin with zeros, with a warning, as they do when nothing was saved."""
    here = place()
    if saved is not None and _same(saved["place"]) == here:
        return True
    what = "has none" if saved is None else f"has that of {_words(_same(saved['place']))}"
    warnings.warn(
        f"{what_begins} zeros: what is loaded {what}, and this is {_words(here)}. Save the optimizer on "
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
