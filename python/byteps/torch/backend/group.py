"""The process group, as torch sees it.

Names of exchanges are torch.<group's token>.<number of the collective>[.<label>]: equal on all members, because they
make the same calls in the same order, and used once. The token is new for each group, so that one that is
made anew never meets the names of an older one. Those of a collective that a future's callback starts have the name of
that future's collective before their number (futures.py).
"""

from __future__ import annotations

import functools
import itertools
import sys
import time
from collections import defaultdict
from datetime import timedelta
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from torch._C._distributed_c10d import ProcessGroup as _TorchProcessGroup

from byteps._core import abi, errors
from byteps._core.reduction import Reduction
from byteps.torch.backend import exchange, futures, joining, work
from byteps.torch.backend.collectives import Collectives, _check_dense, _list
from byteps.torch.backend.exchange import Landings, Members, Piece, readable
from byteps.torch.backend.futures import Lineage
from byteps.torch.backend.work import Work

# What Dynamo must not trace into: it would take our own frames for the model's.
_OPAQUE = (
    "allreduce allreduce_coalesced reduce reduce_scatter _reduce_scatter_base reduce_scatter_single "
    "reduce_scatter_tensor_coalesced reduce_scatter_single_coalesced broadcast allgather allgather_coalesced "
    "_allgather_base all_gather_single allgather_into_tensor_coalesced all_gather_single_coalesced gather scatter "
    "alltoall alltoall_base all_to_all_single barrier send recv"
).split()


def _opaque(method: Callable[..., Any]) -> Callable[..., Any]:
    """Dynamo steps over it. Who compiles loads Dynamo: by us it would be most of what init_process_group() takes."""
    of_dynamo: List[Callable[..., Any]] = []

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return method(*args, **kwargs)
        if not of_dynamo:
            of_dynamo.append(torch.compiler.disable(method))
        return of_dynamo[0](*args, **kwargs)

    return call


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
        self._monitored = itertools.count()
        self._is_aborted = False

    # ---- what torch asks about it

    def rank(self) -> int:
        return self.members.rank

    def size(self) -> int:
        return self.members.size

    def getRank(self) -> int:
        return self.members.rank

    def getSize(self) -> int:
        """For torch's C++: DistributedDataParallel asks in each backward pass, and divides by it what it sums up."""
        return self.members.left

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
        return [torch.device("cpu"), torch.device("cuda")]

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
        """Whoever waits here for a collective of this group gets CancelledError, and so does each further call. Other
        members are not told. The memory of what was under way is the core's until the others have called it too, or the
        job is left. The group for which a job was made leaves it."""
        self._is_aborted = True
        work.give_up_all(self, f"group '{self._title}' was aborted")
        self._place.release()

    # ---- one member to another

    def send(self, tensors: Any, target: int, tag: int = 0) -> Work:
        """Meets the target's recv of the same tag; several of them in their order."""
        tensor = _list(tensors)[0]
        _check_dense("send", tensor)
        self._check_other("send", target)
        piece = exchange.transfer(self.members, self.members.rank, target, readable(tensor), None)
        return self._launch_transfer("send", piece, target, tag, Landings(), [tensor])

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Work:
        tensor = _list(tensors)[0]
        _check_dense("recv", tensor)
        self._check_other("recv", source)
        landings = Landings()
        piece = exchange.transfer(self.members, source, self.members.rank, None, landings.place(tensor))
        return self._launch_transfer("recv", piece, source, tag, landings, [tensor])

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        raise NotImplementedError("recv from any rank is not supported by the backend 'byteps': name the source")

    def _launch_transfer(
        self, what: str, piece: Piece, other: int, tag: int, landings: Landings, result: List[torch.Tensor]
    ) -> Work:
        rank = self.members.rank
        source, target = (rank, other) if what == "send" else (other, rank)
        number = next(self._transfers[(source, target, tag)])
        lineage = Lineage(
            f"torch.{self._place.token}.{source}-{target}.{tag}.{number}",
            f"{what} {number} with tag {tag} from rank {source} to rank {target} of group '{self._title}'",
        )
        return self._submit([piece._replace(label="")], lineage, landings, result, self._timeout_s, direct=False)

    def _check_other(self, what: str, other: int) -> None:
        if other == self.members.rank or not 0 <= other < self.members.size:
            raise ValueError(f"{what}: rank {other} is not another member of this group of {self.members.size}")

    # ---- all together

    def barrier(self, opts: Any = None, timeout: Any = None) -> Work:
        token = torch.ones(1, dtype=torch.uint8, device=_barrier_device(opts))
        piece = exchange.reduction(self.members, token, Reduction(abi.SUM))
        return self._launch("barrier", [piece], Landings(), [], opts, timeout)

    def monitored_barrier(self, timeout: Optional[timedelta] = None, wait_all_ranks: bool = False) -> None:
        """barrier() that says who has not come. Rank 0 waits for the others, and they for its answer; it names the
        first that is late, with wait_all_ranks all of them."""
        timeout_s = work.timeout_s_of(timeout, None) or self._timeout_s
        deadline_s = time.monotonic() + timeout_s
        number = next(self._monitored)
        if self.members.rank != 0:
            self._monitor("arrival", self.members.rank, 0, number).wait()
            self._monitor("answer", 0, self.members.rank, number).wait(timedelta(seconds=timeout_s))
            return
        others = range(1, self.members.size)
        arrivals = {other: self._monitor("arrival", other, 0, number) for other in others}
        late = []
        for other, arrival in arrivals.items():
            try:
                arrival.wait(timedelta(seconds=max(0.001, deadline_s - time.monotonic())))
            except errors.TimedOutError:
                late.append(other)
                if not wait_all_ranks:
                    break
        if late:
            ranks = ", ".join(map(str, late))
            raise errors.TimedOutError(
                f"monitored_barrier {number} of group '{self._title}': rank {ranks} did not come within {timeout_s:g} s"
            )
        for answer in [self._monitor("answer", 0, other, number) for other in others]:
            answer.wait()

    def _monitor(self, what: str, source: int, target: int, number: int) -> Work:
        token = torch.ones(1, dtype=torch.uint8, device="cpu")
        sends = source == self.members.rank
        piece = exchange.transfer(self.members, source, target, token if sends else None, None if sends else token)
        lineage = Lineage(
            f"torch.{self._place.token}.monitored.{number}.{what}.{source}-{target}",
            f"monitored_barrier {number} of group '{self._title}'",
        )
        return self._submit([piece._replace(label="")], lineage, Landings(), [], self._timeout_s, direct=False)

    # ---- inside

    def _launch(
        self,
        what: str,
        exchanges: Sequence[Piece],
        landings: Landings,
        result: Any,
        opts: Any,
        timeout: Optional[timedelta] = None,
    ) -> Work:
        direct = getattr(opts, "asyncOp", True) is False  # the caller waits at once
        timeout_s = work.timeout_s_of(timeout, opts) or self._timeout_s
        return self._submit(exchanges, self._lineage(what), landings, result, timeout_s, direct)

    def _lineage(self, what: str) -> Lineage:
        token = self._place.token
        parent = futures.running()
        if parent is None:
            number = next(self._numbers)
            return Lineage(f"torch.{token}.{number}", f"{what} {number} of group '{self._title}'")
        number = parent.next_number(token)
        return Lineage(
            f"torch.{token}.({parent.name}).{number}",
            f"{what} {number} of group '{self._title}' in a callback of {parent.title}",
        )

    def _submit(
        self,
        exchanges: Sequence[Piece],
        lineage: Lineage,
        landings: Landings,
        result: Any,
        timeout_s: float,
        direct: bool,
    ) -> Work:
        landings.check_one_device(lineage.title, exchanges)
        if self._is_aborted:
            raise errors.CancelledError(f"{lineage.title}: the group was aborted")
        started = Work(self.members.job, self, lineage, timeout_s, landings.finish, result)
        several = len(exchanges) > 1
        named = [
            (piece, f"{lineage.name}.{piece.label or index}" if several or piece.label else lineage.name)
            for index, piece in enumerate(exchanges)
        ]
        work.start(started, named, direct)
        return started


for _name in _OPAQUE:
    setattr(ProcessGroup, _name, _opaque(getattr(ProcessGroup, _name)))


def _barrier_device(opts: Any) -> torch.device:
    """barrier(device_ids=[0]) comes after what that device has been given on its current stream, as NCCL's does."""
    chosen = getattr(opts, "device_ids", None)
    return torch.device("cuda", chosen[0]) if chosen else torch.device("cpu")


def create(name: str, store: Any, rank: int, size: int, timeout: Optional[timedelta]) -> ProcessGroup:
    """What torch calls for a new group of the backend `name`, ours, on each of its members; they meet in `store`."""
    _refuse_other_backends(name)
    return ProcessGroup(joining.join(store, rank, size, timeout), rank, size, timeout)


def _refuse_other_backends(own_name: str) -> None:
    """torch takes a group that is written in Python instead of all others that its backend string names, in silence.
    What it was asked for is known to its function that calls us, and to nobody else."""
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code.co_name != "_new_process_group_helper":
        frame = frame.f_back
    config = frame.f_locals.get("backend_config") if frame is not None else None
    wanted = dict(getattr(config, "device_backend_map", None) or {})
    others = {device: str(name) for device, name in wanted.items() if str(name) != own_name}
    if others:
        said = ", ".join(f"{device}:{name}" for device, name in others.items())
        other = next(iter(others.values()))
        raise ValueError(
            f"a group of the backend 'byteps' has no other backend beside it; torch would leave out {said}. Make two "
            f'groups: init_process_group("{other}"), then slow = new_group(backend="byteps") (or the other way round), '
            "and give each collective its group="
        )
