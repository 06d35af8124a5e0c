"""Gradients: those of a set of parameters, averaged over the workers. DistributedOptimizer, DistributedDataParallel and
CrossBarrier are about when each step happens; what happens is here.

One gradient's way: push() starts its exchange, in place. When this rank has nothing more to give, begin() pushes what
was left over and starts a small exchange that says who has what. settle() takes its answer. wait() takes one
gradient's result, finish() does all of it.

Invariants
 1. All ranks push the same parameters: those that have a gradient on some rank. The others push zeros for them, as soon
    as settle() has told them.
 2. A parameter to which no rank gave a gradient keeps grad None, and the optimizer skips it, as it would on one worker.
 3. While a gradient is under way nobody else may write to it, or put another in its place; what shows this (torch's
    version counter, another tensor, another memory) is an error. A gradient that is dropped stays dropped.
 4. A parameter travels sparse when all ranks that have a gradient for it have a sparse one of rows, and sparse_as_dense
    is not asked for; otherwise dense. The first ones are pushed in settle(). A sparse gradient that travels
    dense becomes a sparse average, unless settle() finds only then that other ranks have a dense one.
 5. What is under way when the job is left is lost, and its gradient becomes None: some of its elements may be averaged
    already. In the next job everything begins anew; names keep the numbers that told them apart.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Type

import torch

from byteps._core import abi, errors, session
from byteps._core.choices import gradient_compression
from byteps._core.client import Job
from byteps._core.compression import Coded, check_element, momentum_of, packed
from byteps._core.exchange import Exchange, encoded_name
from byteps._core.process_sets import ProcessSet, global_process_set, is_member, members_of, scoped
from byteps._core.reduction import Reduction
from byteps.torch import devices, exchange, pending, sparse
from byteps.torch.compression import Compression, Compressor, NoneCompressor, float32_count
from byteps.torch.powersgd import Factors, PowerSGD
from byteps.torch.residuals import Residuals

__all__: List[str] = []

# What a rank has for a parameter: a dense gradient, a sparse one that travels so, a sparse one that travels dense.
_DENSE, _SPARSE, _AS_DENSE = 0, 1, 2


class Slot:
    """What is known of one parameter."""

    __slots__ = (
        "context",
        "exchange",
        "factors",
        "grad",
        "grad_address",
        "grad_version",
        "handle",
        "has_left",
        "hook",
        "name",
        "number",
        "parameter",
        "passes_left",
        "priority",
        "sparse_dim",
        "title",
    )

    def __init__(self, parameter: torch.Tensor, title: str, priority: int) -> None:
        self.parameter = parameter
        self.title = title
        self.number = ""  # what tells it from others of the same title
        self.name = title  # on the wire, in the present job
        self.priority = priority
        self.hook: Any = None  # the owner's
        self.passes_left = 1  # the owner's
        self.exchange: Any = None  # an exchange.Repeated, of the dense gradient, in the present job
        self.factors: Optional[Factors] = None  # where it travels as two thin matrices
        self.has_left = False  # the first of them is under way
        # While an exchange is under way:
        self.handle: Optional[int] = None
        self.context: Any = None
        self.grad: Optional[torch.Tensor] = None  # parameter.grad at the push; None: it had none
        self.grad_version = 0
        self.grad_address = 0
        self.sparse_dim = 0  # above 0: the average becomes sparse, with so many sparse dimensions

    def keep(self, grad: Optional[torch.Tensor]) -> None:
        """Notes parameter.grad as it is pushed."""
        self.grad = grad
        if grad is not None:
            self.grad_version, self.grad_address = grad._version, _address(grad)

    def is_changed(self, slots: List[Slot]) -> bool:
        """Whether somebody else has written to what was pushed, or put another gradient in its place. Of gradients that
        are views of one buffer, in these slots, only the latter is known: they count writes together, autograd's and
        ours to the others too."""
        if self.grad is None:
            return False
        now = self.parameter.grad
        if (now is not None and now is not self.grad) or _address(self.grad) != self.grad_address:
            return True
        return self.grad._version != self.grad_version and not self._shares_buffer(slots)

    def _shares_buffer(self, slots: List[Slot]) -> bool:
        buffer = self.grad._base if self.grad is not None else None
        others = (slot.parameter.grad for slot in slots if slot is not self)
        return buffer is not None and any(other is not None and other._base is buffer for other in others)


class Gradients:
    """`slots` are in the order in which the next forward pass needs them: the first ones travel first."""

    def __init__(
        self,
        compression: Type[Compressor],
        sparse_as_dense: bool = False,
        title: str = "",
        meaning: Reduction = Reduction(abi.AVERAGE, 0.0),
        process_set: ProcessSet = global_process_set,
        compression_params: Optional[Dict[str, Any]] = None,
    ) -> None:
        """`title` comes before all names. Without one the names are told from those of others that are equal, by the
        order in which they are made: gradients of two optimizers may be under way at once, and in another order on
        each rank. On ranks that are not in `process_set` nothing travels."""
        self.slots: List[Slot] = []
        self._title = title
        self._owner: object = title or object()
        self._meaning = meaning
        self._process_set = process_set
        self.compression: Any = gradient_compression(
            compression, Compression, compression_params, process_set=process_set
        )
        # Casts are made here, codes by the core.
        self._casts = self.compression is not NoneCompressor and not isinstance(self.compression, (Coded, PowerSGD))
        self._codes_keep = isinstance(self.compression, Coded) and self.compression.residuals is not None
        self.residuals = Residuals(self.compression)
        # The learning rate of a parameter's next step, where the owner knows it.
        self.rate_of: Callable[[torch.Tensor], Optional[float]] = lambda parameter: None
        self._sparse_as_dense = sparse_as_dense
        self._by_parameter: Dict[int, Slot] = {}
        self._device = devices.OneDevice()
        self._presence: Optional[int] = None  # handle; from begin() to settle()
        self._job: Optional[Job] = None  # in which the next three and the slots' names hold
        self._is_member = False
        self._travel = False
        self._members: Tuple[int, ...] = ()
        self.when_abandoned: Callable[[], None] = lambda: None  # the owner's; runs after the job was left
        self._enter_job()
        _living.add(self)

    def add(self, parameter: torch.Tensor, name: str) -> Slot:
        """The slot of `parameter`, which is new here. The wire name is Gradient.<title><name>, with a number when that
        stands for another owner's, or another shape, dtype or compression already. ValueError, UnsupportedError: its
        device."""
        encoded_name(name)
        check_element(self.compression, name, parameter.dtype)
        self._enter_job()
        self._device.add(name, parameter)
        slot = Slot(parameter, f"Gradient.{self._title}{name}", -len(self.slots))
        self._give_name(slot)
        self.slots.append(slot)
        self._by_parameter[id(parameter)] = slot
        return slot

    def has(self, parameter: torch.Tensor) -> bool:
        return id(parameter) in self._by_parameter

    @property
    def keeps_something(self) -> bool:
        """From one step to the next."""
        return self._codes_keep or isinstance(self.compression, PowerSGD)

    @property
    def travel(self) -> bool:
        """False in a job of one, but for the momentum of a compressor, and on a rank that is not in the process set:
        there nothing is exchanged."""
        self._enter_job()
        return self._travel

    # ---- from job to job

    def _enter_job(self) -> None:
        job = session.job()
        if self._job is job:
            return
        self._is_member = is_member(self._process_set)
        self._members = members_of(self._process_set) if self._is_member else ()
        for slot in self.slots:
            self._give_name(slot)
        self._travel = self._is_member and not (job.is_alone and momentum_of(self.compression) is None)
        self._job = job

    def _give_name(self, slot: Slot) -> None:
        name = scoped(slot.title, self._members) + slot.number
        slot.name = name
        if self._is_member:  # others must not use up a name that those outside know nothing of
            spec = (self._owner, slot.parameter.dtype, tuple(slot.parameter.shape), self.compression, self._meaning)
            slot.name = session.current().lasting_name(name, spec)
            slot.number += slot.name[len(name) :]
        what = Exchange(*self._meaning, members=self._members, priority=slot.priority)
        slot.exchange = exchange.Repeated(what, slot.name, self.compression)
        if isinstance(self.compression, PowerSGD) and self.compression.takes(slot.parameter):
            slot.factors = Factors(self.compression, slot.parameter, what, slot.name)

    def _abandon(self) -> None:
        for slot in self.slots:
            if slot.handle is not None:
                if slot.parameter.grad is slot.grad:
                    slot.parameter.grad = None
                if slot.factors is not None:
                    slot.factors.begin_anew(self.residuals)
                self._forget(slot)
        self._presence = None
        self.when_abandoned()

    # ---- pushing

    def push(self, slot: Slot) -> None:
        """Starts the exchange of the slot's gradient as it is now."""
        grad = slot.parameter.grad
        slot.keep(grad)
        if grad is None:
            grad = torch.zeros(slot.parameter.shape, dtype=slot.parameter.dtype, device=slot.parameter.device)
        if grad.layout != torch.strided:
            if not self._sparse_as_dense and _has_sparse_rows(grad):
                slot.grad = None
                return  # settle() pushes it
            if grad.layout == torch.sparse_coo:
                slot.sparse_dim, grad = grad.sparse_dim(), grad.to_dense()
            else:
                grad = slot.parameter.grad = grad.to_dense()
                slot.keep(grad)
        self._start(slot, grad)

    def begin(self) -> None:
        """Pushes the gradients that are there and not under way, and tells the other ranks which these are."""
        if not self.travel:
            return
        for slot in self.slots:
            if slot.handle is None and slot.parameter.grad is not None and slot.parameter.requires_grad:
                self.push(slot)
        rows = [[False] * 3 for _ in self.slots]  # to set elements of a tensor would take longer than all else here
        for row, slot in zip(rows, self.slots):
            if slot.handle is not None:
                row[_AS_DENSE if slot.sparse_dim else _DENSE] = True
            elif slot.parameter.grad is not None and slot.parameter.requires_grad:
                row[_SPARSE] = True
        present = torch.tensor(rows, dtype=torch.bool, device="cpu").view(-1, 3)
        name = scoped(f"Gradients.{self._title}present", self._members)
        name = session.current().lasting_name(name, (self._owner, len(self.slots)))
        # Before all gradients: it is tiny, and all of them are needed anyway.
        what = Exchange(abi.SUM, members=self._members, priority=1)
        self._presence = exchange.start(present, present, what, name)

    def settle(self) -> None:
        """Waits until all ranks have begun, and pushes what only others have, and what is sparse."""
        presence = self._presence
        if presence is None:
            return
        try:
            present = pending.synchronize(presence)
        except (errors.BytePSError, ValueError):
            self._presence = None
            raise
        self._presence = None
        for slot, (is_dense, is_sparse, is_as_dense) in zip(self.slots, present.tolist()):
            if slot.handle is not None:
                continue
            grad = slot.parameter.grad
            if is_dense or is_as_dense:
                if grad is not None and slot.parameter.requires_grad:
                    slot.parameter.grad = grad.to_dense()
                self.push(slot)
                slot.sparse_dim = 0 if is_dense else 1
            elif is_sparse:
                self._push_sparse(slot)

    @property
    def lack_some(self) -> bool:
        """True when this rank may have to push more in settle()."""
        return any(slot.handle is None for slot in self.slots)

    def _start(self, slot: Slot, grad: torch.Tensor) -> None:
        if slot.factors is not None:
            slot.handle, slot.has_left = slot.factors.start(grad, self.residuals), True
            return
        if self._casts:
            with torch.no_grad():
                grad, slot.context = packed(self.compression, grad, self._meaning.operation, float32_count(grad))
        if self._codes_keep:
            slot.handle = slot.exchange.start(grad, self.residuals, self.rate_of(slot.parameter))
        else:
            slot.handle = slot.exchange.start(grad)

    def _push_sparse(self, slot: Slot) -> None:
        """The gradient's rows, or none when this rank has no gradient."""
        parameter = slot.parameter
        check_element(self.compression, slot.name, parameter.dtype, is_dense=False)
        grad = parameter.grad if parameter.requires_grad else None
        slot.keep(grad)
        if grad is None:
            where = parameter.device
            indices, rows = torch.zeros(1, 0, dtype=torch.int64, device=where), parameter.detach()[:0]
            grad = torch.sparse_coo_tensor(indices, rows, parameter.shape, device=where, check_invariants=False)
        slot.handle = sparse.start(grad, self._meaning, slot.name, self._members)

    # ---- taking results

    def finish(self) -> None:
        """Waits until all gradients are averaged; raises the first failure when all have ended."""
        finish([self])

    def advance(self, slot: Slot) -> Optional[Exception]:
        """Where the slot's gradient is two matrices, waits for the first and starts the second; what it failed with is
        returned."""
        if slot.factors is None or slot.handle is None or not slot.has_left:
            return None
        slot.has_left = False
        try:
            slot.handle = slot.factors.advance(slot.handle)
        except (errors.BytePSError, ValueError) as error:
            slot.factors.begin_anew(self.residuals)
            self._forget(slot)
            return error
        return None

    def wait(self, slot: Slot) -> Optional[Exception]:
        """Waits for the slot's result and puts it into parameter.grad; what it failed with is returned."""
        failure = self.advance(slot)
        handle = slot.handle
        if handle is None:
            return failure
        changed = slot.is_changed(self.slots)
        try:
            result = pending.synchronize(handle)
        except (errors.BytePSError, ValueError) as error:  # the latter when another thread leaves the job
            failure = error
            if slot.factors is not None:
                slot.factors.begin_anew(self.residuals)
        else:
            if slot.factors is not None:
                result = slot.factors.finish(result, self.residuals, None if changed else slot.parameter.grad)
            if changed:
                failure = RuntimeError(_CHANGED.format(name=slot.name))
            else:
                self._take(slot, result)
        self._forget(slot)
        return failure

    @staticmethod
    def _forget(slot: Slot) -> None:
        """Nothing of it is under way any more."""
        slot.handle = slot.grad = slot.context = None
        slot.has_left = False
        slot.sparse_dim = 0

    def _take(self, slot: Slot, result: torch.Tensor) -> None:
        parameter = slot.parameter
        if result is parameter.grad and not self._casts:
            return
        if result.layout != torch.strided:
            if parameter.grad is not None or slot.grad is None and parameter.requires_grad:
                parameter.grad = result
            return
        with torch.no_grad():
            averaged = self.compression.decompress(result, slot.context)
            if parameter.grad is averaged:
                return
            if slot.sparse_dim:
                averaged = averaged.to_sparse(slot.sparse_dim)
                if parameter.grad is not None:
                    parameter.grad = averaged
                    return
            if parameter.grad is not None:
                parameter.grad.copy_(averaged)
            elif slot.grad is None and parameter.requires_grad:  # other ranks had a gradient
                parameter.grad = averaged
            # Otherwise the user dropped it after backward (model.zero_grad()): it stays dropped.

    @property
    def under_way(self) -> bool:
        return any(slot.handle is not None for slot in self.slots)


_living: "weakref.WeakSet[Gradients]" = weakref.WeakSet()


def _abandon_all() -> None:
    for gradients in list(_living):
        gradients._abandon()


session.on_leave(_abandon_all)


def finish(together: Sequence[Gradients]) -> None:
    """finish() of several, which other ranks may finish in another order. Every handle is waited for, also when one has
    failed, so that the next step begins clean; then the first failure is raised."""
    failure: Optional[Exception] = None
    try:
        for gradients in together:
            gradients.begin()
        for gradients in together:
            gradients.settle()
    except (errors.BytePSError, ValueError) as error:
        failure = error
    for each in ("advance", "wait"):  # the second matrices of all travel together
        for gradients in together:
            for slot in gradients.slots:
                own_failure = getattr(gradients, each)(slot)
                failure = failure or own_failure
    if failure is not None:
        raise failure


_CHANGED = (
    "{name}: the gradient was changed or replaced between backward() and synchronize(), while it was being averaged. "
    "Call optimizer.synchronize() first, then change gradients (clipping, GradScaler.unscale_), then call step() "
    "within optimizer.skip_synchronize()"
)


def _address(grad: torch.Tensor) -> int:
    return grad.data_ptr() if grad.layout == torch.strided else 0


def _has_sparse_rows(grad: torch.Tensor) -> bool:
    """What torch's embeddings make; other sparse gradients travel as dense ones."""
    return grad.layout == torch.sparse_coo and grad.sparse_dim() == 1
