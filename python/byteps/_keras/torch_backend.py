"""Keras on torch: gradients are averaged by byteps.torch.

Keras's trainer calls optimizer.scale_loss() right before the backward pass and apply() after it. In between each
gradient is pushed as soon as backward has made it (a hook of its parameter); the others are pushed by apply().

Invariants
 1. From one apply() to the next every rank pushes each variable's gradient once, whether early or late. A gradient that
    is None on this rank is pushed as zeros.
 2. Two bits per variable travel with them, combined by "or": whether a rank has a gradient, and whether a rank's is
    another one than it had pushed (clipped, or added to, since). What is None on all ranks stays None. What has changed
    on any rank is pushed once more by all of them, and from then on nothing is pushed early.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from byteps._core import abi, errors, session
from byteps._core.compression import check_element, feeds_back, momentum_of, packed, with_memory
from byteps._core.exchange import Exchange
from byteps._core.process_sets import members_of, scoped
from byteps._core.reduction import resolve
from byteps._core.residuals import HostMemory
from byteps._keras.exchange import GradientExchange, Slot, scaled
from byteps.torch import exchange as exchanges
from byteps.torch import pending
from byteps.torch.compression import Compression, float32_count
from byteps.torch.residuals import NOTHING, Kept

__all__ = ["Compression", "before_backward", "push_pull", "scaled", "when"]

_residuals = HostMemory()


@torch.compiler.disable  # for compile(jit_compile=True): what compiles the training step leaves it as it is
def push_pull(slots: Sequence[Slot], exchange: GradientExchange) -> List[Optional[torch.Tensor]]:
    """The combined gradients, in the order of `slots`. Blocks until all are there."""
    if _is_alone(exchange):
        return scaled([slot.gradient for slot in slots], exchange.factor)
    with torch.no_grad():
        return _gradients_of(exchange).combine(slots)


@torch.compiler.disable
def before_backward(exchange: GradientExchange) -> None:
    """The gradients that come now are those of the next push_pull()."""
    if not _is_alone(exchange):
        _gradients_of(exchange).expect()


def when(condition: Any, combine: Any, gradients: List[Any]) -> List[Any]:
    """combine(gradients) if the condition holds, else `gradients`. Here Keras asks only when it does hold."""
    del condition
    return combine(gradients)


def _is_alone(exchange: GradientExchange) -> bool:
    """Nothing is to be done with gradients."""
    return session.job().is_alone and momentum_of(exchange.compression) is None


def _gradients_of(exchange: GradientExchange) -> "_Gradients":
    if exchange.of_backend is None:
        exchange.of_backend = _Gradients(exchange)
    return exchange.of_backend


class _Pushed(NamedTuple):
    """A gradient under way."""

    handle: int
    context: Any  # of its compression
    gradient: Optional[torch.Tensor]  # what it was made of; None: zeros
    version: int  # of that tensor, when it was pushed


class _Gradients:
    """Those of one optimizer. A variable's key is its id: the slots of the last combine() keep the variables."""

    def __init__(self, exchange: GradientExchange) -> None:
        self._exchange = exchange
        self._job: Any = None
        self._slots: Dict[int, Slot] = {}  # of the last combine(), without gradients
        self._pushed: Dict[int, _Pushed] = {}
        self._hooked: Dict[int, torch.Tensor] = {}  # the parameter that has our hook
        self._is_expecting = False
        # What is pushed once more counts once more in momentum, so with that nothing is pushed early.
        self._may_be_early = momentum_of(exchange.compression) is None

    def expect(self) -> None:
        """From now on what backward makes for the variables of the last combine() is pushed."""
        self._join()
        self._is_expecting = self._may_be_early
        if not self._is_expecting:
            return
        for key, slot in self._slots.items():
            parameter = slot.variable.value
            if self._hooked.get(key) is not parameter and parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(_hook(weakref.ref(self), key))
                self._hooked[key] = parameter

    def push_early(self, key: int, parameter: torch.Tensor) -> None:
        """Backward has made the parameter's gradient."""
        if self._is_expecting and key in self._slots and key not in self._pushed and self._hooked[key] is parameter:
            with torch.no_grad():
                self._push(key, self._slots[key]._replace(gradient=parameter.grad))

    def combine(self, given: Sequence[Slot]) -> List[Optional[torch.Tensor]]:
        """The combined gradients, in the order of `given`."""
        self._join()
        slots = {id(slot.variable): slot for slot in given}
        everything = {**self._slots, **slots} if self._is_expecting else slots  # others may have pushed these early
        self._is_expecting = False
        self._slots = {key: slot._replace(gradient=None) for key, slot in slots.items()}
        for key, slot in everything.items():
            if key not in self._pushed:
                self._push(key, slot)
        bits = self._of_all([(slot.gradient is not None, self._has_changed(key, slot)) for key, slot in slots.items()])
        results: Dict[int, torch.Tensor] = {}
        failures = [self._take(key, results) for key in everything]
        changed = [key for key, (_, has_changed) in zip(slots, bits) if has_changed]
        for key in changed:
            self._may_be_early = False
            self._push(key, slots[key])
        failures += [self._take(key, results) for key in changed]
        for failure in failures:
            if failure is not None:
                raise failure
        combined = [results[key] if is_there else None for key, (is_there, _) in zip(slots, bits)]
        return scaled(combined, self._exchange.factor)

    # ---- inside

    def _join(self) -> None:
        """What was under way in a job that was left is gone."""
        if self._job is not session.job():
            self._job = session.job()
            self._pushed.clear()

    def _push(self, key: int, slot: Slot) -> None:
        what = self._exchange
        gradient = _dense(slot) if what.predivide == 1.0 else _dense(slot) / what.predivide
        meaning = resolve(what.op)
        tensor, context = packed(what.compression, gradient, meaning.operation, float32_count(gradient))
        members = members_of(what.process_set)
        output = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        exchange = Exchange(*meaning, members=members, priority=slot.priority)
        name = scoped(slot.name, members)
        check_element(what.compression, name, gradient.dtype)
        with_memory(exchange, name, what.compression, lambda: _residuals)  # notes that it has some
        kept = _kept(name, tensor, what.compression)
        handle = exchanges.start(tensor, output, exchange, name, what.compression, kept)
        version = 0 if slot.gradient is None else slot.gradient._version
        self._pushed[key] = _Pushed(handle, context, slot.gradient, version)

    def _has_changed(self, key: int, slot: Slot) -> bool:
        pushed = self._pushed[key]
        if pushed.gradient is not slot.gradient:
            return True
        return slot.gradient is not None and slot.gradient._version != pushed.version

    def _take(self, key: int, results: Dict[int, torch.Tensor]) -> Optional[Exception]:
        """Waits for a result; what it failed with is returned, so that every one is waited for."""
        pushed = self._pushed.pop(key)
        try:
            result = self._exchange.compression.decompress(pending.synchronize(pushed.handle), pushed.context)
        except errors.BytePSError as error:
            return error
        results[key] = result if self._exchange.predivide == 1.0 else result * self._exchange.predivide
        return None

    def _of_all(self, bits: Sequence[Tuple[bool, bool]]) -> List[List[bool]]:
        """The "or" of all ranks' bits. Raises at once when ranks have different numbers of variables: some of their
        gradients would never come."""
        members = members_of(self._exchange.process_set)
        name = scoped(f"Gradients.{self._exchange.title}.present", members)
        name = session.current().lasting_name(name, len(bits))
        tensor = torch.tensor(bits, dtype=torch.bool, device="cpu")
        what = Exchange(abi.SUM, members=members, priority=1)
        return pending.synchronize(exchanges.start(tensor, tensor, what, name)).tolist()


def _kept(name: str, tensor: torch.Tensor, compression: Any) -> Kept:
    """What a compressor keeps of it. (A gradient that is pushed once more, for it has changed, begins with what the
    push in vain has left.)"""
    if tensor.dtype != torch.float32 or not tensor.numel():
        return NOTHING
    kept, mu = NOTHING, momentum_of(compression)
    if feeds_back(compression):
        kept = kept._replace(residual=torch.from_numpy(_residuals.of(name, tensor.numel())))
    if mu is not None:
        kept = kept._replace(momentum=torch.from_numpy(_residuals.momentum_of(name, tensor.numel())), mu=mu)
    return kept


def _hook(reference: "weakref.ref[_Gradients]", key: int) -> Callable[[torch.Tensor], None]:
    """Parameters outlive optimizers, so it holds none."""

    @torch.compiler.disable
    def hook(parameter: torch.Tensor) -> None:
        gradients = reference()
        if gradients is not None:
            gradients.push_early(key, parameter)

    return hook


def _dense(slot: Slot) -> torch.Tensor:
    gradient = slot.gradient
    if gradient is None:
        value = slot.variable.value
        return torch.zeros(value.shape, dtype=value.dtype, device=value.device)
    return gradient.to_dense() if gradient.layout != torch.strided else gradient
