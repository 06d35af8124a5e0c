"""The process group, as torch sees it.

Names of exchanges are torch.<group's token>.<number of the collective>[.<label>]: equal on all members, because they
make the same calls in the same order, and used once. The token is new for each group, so that one that is
made anew never meets the names of an older one.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from datetime import timedelta
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from torch._C._distributed_c10d import ProcessGroup as _TorchProcessGroup

from byteps._core import errors
from byteps.torch.backend import exchange, joining, work
from byteps.torch.backend.collectives import Collectives, _check_dense, _list
from byteps.torch.backend.exchange import Exchange, Landings, Members, readable
from byteps.torch.backend.work import Work

# What Dynamo must not trace into: it would take our own frames for the model's.
_OPAQUE = (
    "allreduce allreduce_coalesced reduce reduce_scatter _reduce_scatter_base reduce_scatter_single "
    "reduce_scatter_tensor_coalesced reduce_scatter_single_coalesced broadcast allgather allgather_coalesced "
    "_allgather_base all_gather_single allgather_into_tensor_coalesced all_gather_single_coalesced gather scatter "
    "alltoall alltoall_base all_to_all_single barrier send recv"
).split()


class ProcessGroup(Collectives, _TorchProcessGroup):
    """Made by torch.distributed.init_process_group("byteps") and new_group(). One thread at a time calls it, as with
    torch's own groups; the works that it returns may be waited for by others."""

    def __init__(self, place: joining.Place, rank: int, size: int, timeout: Optional[timedelta]) -> None:
        super().__init__(rank, size)
        self.members = Members(place.job, place.job_ranks, rank)
        self._place = place
        self._timeout_s = work.default_timeout_s(timeout)
        self._title = ""
        self._description = ""
        self._numbers = itertools.count()
        self._transfers: Dict[Tuple[int, int, int], Iterator[int]] = defaultdict(itertools.count)
        self._lock = threading.Lock()

    # ---- what torch asks about it

    def rank(self) -> int:
        return self.members.rank

    def size(self) -> int:
        return self.members.size

    def getRank(self) -> int:
        return self.members.rank

    def getSize(self) -> int:
        return self.members.size

    def name(self) -> str:
        return "byteps"

    def getBackendName(self) -> str:
        return "byteps"

    def _get_backend_name(self) -> str:
        return "byteps"

    @property
    def group_name(self) -> str:
        return self._title

    def _set_group_name(self, name: str) -> None:
        self._title = name

    def getGroupName(self) -> str:
        return self._title

    def setGroupName(self, name: str) -> None:
        self._title = name

    @property
    def group_desc(self) -> str:
        return self._description

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    @property
    def _device_types(self) -> List[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> "ProcessGroup":
        return self

    @property
    def supports_splitting(self) -> bool:
        return False

    @property
    def supports_coalescing(self) -> bool:
        return False

    def get_group_store(self) -> Any:
        return self._place.store

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout_s = work.default_timeout_s(timeout)

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _has_hooks(self) -> bool:
        return False

    def shutdown(self) -> None:
        """destroy_process_group(). The group for which a job was made leaves it; what is under way then ends with
        CancelledError."""
        self._place.release()

    def abort(self) -> None:
        self._place.release()

    # ---- one member to another

    def send(self, tensors: Any, target: int, tag: int = 0) -> Work:
        """Meets the target's recv of the same tag; several of them in their order."""
        tensor = _list(tensors)[0]
        _check_dense("send", tensor)
        piece = exchange.transfer(self.members.rank, target, readable(tensor), None)
        return self._launch_transfer("send", piece, target, tag, Landings(), [tensor])

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Work:
        tensor = _list(tensors)[0]
        _check_dense("recv", tensor)
        landings = Landings()
        piece = exchange.transfer(source, self.members.rank, None, landings.place(tensor))
        return self._launch_transfer("recv", piece, source, tag, landings, [tensor])

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        raise NotImplementedError("recv from any rank is not supported by the backend 'byteps': name the source")

    def _launch_transfer(
        self, what: str, piece: Exchange, other: int, tag: int, landings: Landings, result: List[torch.Tensor]
    ) -> Work:
        rank = self.members.rank
        if other == rank or not 0 <= other < self.members.size:
            raise ValueError(f"{what}: rank {other} is not another member of this group of {self.members.size}")
        source, target = (rank, other) if what == "send" else (other, rank)
        number = next(self._transfers[(source, target, tag)])
        name = f"torch.{self._place.token}.{source}-{target}.{tag}.{number}"
        title = f"{what} {number} with tag {tag} from rank {source} to rank {target} of group '{self._title}'"
        return self._submit([piece._replace(label="")], name, title, landings, result, direct=False)

    # ---- all together

    def _launch(
        self, what: str, exchanges: Sequence[Exchange], landings: Landings, result: Any, opts: Any
    ) -> Work:
        direct = getattr(opts, "asyncOp", True) is False  # the caller waits at once
        number = next(self._numbers)
        title = f"{what} {number} of group '{self._title}'"
        return self._submit(exchanges, f"torch.{self._place.token}.{number}", title, landings, result, direct)

    def _submit(
        self,
        exchanges: Sequence[Exchange],
        name: str,
        title: str,
        landings: Landings,
        result: Any,
        direct: bool,
    ) -> Work:
        started = Work(self.members.job, title, self._timeout_s, landings.finish, result)
        several = len(exchanges) > 1
        named = [
            (piece, f"{name}.{piece.label or index}" if several or piece.label else name)
            for index, piece in enumerate(exchanges)
        ]
        work.start(started, named, self.members, direct)
        return started


def create(store: Any, rank: int, size: int, timeout: Optional[timedelta]) -> ProcessGroup:
    """What torch calls for a new group, on each of its members; they meet in `store`."""
    _hide_from_dynamo()
    return ProcessGroup(joining.join(store, rank, size, timeout), rank, size, timeout)


def _hide_from_dynamo() -> None:
    """Here and not at import: it loads Dynamo."""
    if "_hidden" in ProcessGroup.__dict__:
        return
    for name in _OPAQUE:
        setattr(ProcessGroup, name, torch.compiler.disable(getattr(ProcessGroup, name)))
    ProcessGroup._hidden = True  # type: ignore[attr-defined]
