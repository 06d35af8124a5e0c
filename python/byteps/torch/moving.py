"""What collectives that move rows have in common: operations that are plans, memory for what comes, names."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import torch

from byteps._core import abi, collectives, driver, session
from byteps._core.collectives import Rows
from byteps._core.process_sets import scoped
from byteps.torch import devices, pending, tensors

__all__: List[str] = []

Members = Tuple[int, ...]


class Moving(pending.Pending):
    """A plan under way, its memory, and what makes the result of the plan's."""

    def __init__(self, keep: Any, finish: Callable[[Any], Any]) -> None:
        self._keep = keep
        self._finish = finish
        self._running: Union[driver.Driven, collectives.Running, None] = None

    def start(self, make_plan: Callable[[Any], Any], is_driven: bool) -> int:
        """`is_driven`: it goes on by itself. Otherwise while its caller waits for it, which costs no other thread, and
        the core knows for what this one waits."""
        handle = pending.note(self)
        try:
            if is_driven:
                self._running = driver.start(make_plan)
            else:
                job = session.job()
                self._running = collectives.Running(job, make_plan(job))
        except Exception:
            pending.forget(handle)
            raise
        return handle

    @property
    def ended(self) -> bool:
        return self._running is not None and self._running.ended

    def poll(self) -> bool:
        return self._running is not None and self._running.poll()

    def wait(self) -> Any:
        assert self._running is not None
        return self._finish(self._running.wait())


class Landing:
    """Memory for rows like those of `model`, made when their number is known, which may be in a thread of ours."""

    def __init__(self, model: torch.Tensor, line: devices.Line) -> None:
        self._model = model
        self._line = line
        self._tensor = model

    def allocate(self, row_count: int) -> int:
        with self._line.here():
            shape = (row_count, *self._model.shape[1:])
            self._tensor = torch.empty(shape, dtype=self._model.dtype, device=self._model.device)
        return self._tensor.data_ptr()

    def take(self) -> torch.Tensor:
        """The rows, when the plan is done; for the thread that waits."""
        devices.used_here(self._tensor)
        return self._tensor


def run_all(items: Sequence[Any], start: Callable[[Any, bool], int]) -> List[Any]:
    """The results of start(item, is_driven) for all items. Several are driven: they are under way at once."""
    driven = len(items) > 1
    return pending.synchronize(pending.group([start(item, driven) for item in items]))


def rows_of(tensor: torch.Tensor) -> Tuple[Rows, torch.Tensor, devices.Line]:
    """The tensor's rows; the tensor with them, which must live as long as they are used; and the Line of what a plan
    with several steps asks for later, in whatever thread."""
    source = tensors.plain(tensor)
    kind, shape = tensors.travels_as(source, abi.BROADCAST)
    if tensor.dim() == 0:
        source, shape = source.reshape(1), (1, *shape)
    line = devices.Line(devices.cuda_devices(source))
    return Rows(kind, source.data_ptr(), shape[0], tuple(shape[1:]), line.place), source, line


def title_of(kind: str, name: Optional[str]) -> str:
    return f"{kind}.{'noname' if name is None else name}"


def wire_name(title: str, members: Members) -> str:
    return "byteps." + session.current().unique_name(scoped(title, members))


def place_in(members: Members) -> int:
    """This rank's number among the members."""
    rank = session.rank()
    return members.index(rank) if members else rank
