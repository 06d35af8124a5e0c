"""CrossBarrier: a step that no layer waits for but its own.

    import byteps.torch.cross_barrier as bps

    optimizer = bps.CrossBarrier(model, optimizer, named_parameters=model.named_parameters())

step() returns at once, while gradients are still on their way. In the next forward pass each layer waits for the sums
of its own parameters only and lets the optimizer step on them, so that the first layers compute while gradients of
the last ones travel (Peng et al., "A generic communication scheduler for distributed DNN training acceleration", SOSP
2019). The result is the same as DistributedOptimizer's, for any optimizer whose step on one parameter does not look at
the others: all of torch.optim but LBFGS.

Invariants
 1. A parameter's step uses the options (learning rate, ...) that were set when step() was called.
 2. Before a module's forward runs, the steps of its own parameters are done; before one that is in evaluation mode or
    makes no gradients, those of all; also before state_dict() of model and optimizer.
 3. A gradient made with a parameter whose step was still to come is an error that names it.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple, Type

import torch

from byteps.torch import (
    Compression,
    broadcast_optimizer_state,
    broadcast_parameters,
    byteps_push_pull,
    init,
    leader,
    local_rank,
    local_size,
    poll,
    rank,
    shutdown,
    size,
    synchronize,
)
from byteps.torch.compression import Compressor
from byteps.torch.gradients import Gradients, Slot
from byteps.torch.optimizer import _DistributedOptimizer, with_base

__all__ = [
    "Compression",
    "CrossBarrier",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "byteps_push_pull",
    "init",
    "leader",
    "local_rank",
    "local_size",
    "poll",
    "rank",
    "shutdown",
    "size",
    "synchronize",
]


def CrossBarrier(  # the name users know
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    named_parameters: Optional[Iterable[Tuple[str, torch.nn.Parameter]]] = None,
    compression: Type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    num_steps: int = 10**6,
    compression_params: Optional[Dict[str, Any]] = None,
) -> torch.optim.Optimizer:
    """An optimizer of the same class for `model`; the arguments are those of DistributedOptimizer.

    Parameters are up to date after synchronize(): call it before you read them otherwise than through model(...) or
    state_dict(). Clip gradients between synchronize() and a step() within skip_synchronize(), as there; such a
    step waits for all. Hooks on steps of the optimizer do not run. Steps that are still to come when the job is left
    (suspend(), shutdown()) are lost: call synchronize() before.

    num_steps: the step of this number, the last one, waits for all.
    """
    if not isinstance(model, torch.nn.Module):
        raise ValueError(f"CrossBarrier: expected a torch.nn.Module first, got {type(model).__name__}")
    crossing = with_base(_CrossBarrier, optimizer)
    named = model.named_parameters() if named_parameters is None else named_parameters
    all_named = named_parameters is not None
    gradients = Gradients(compression, compression_params=compression_params)
    crossing._attach(optimizer, named, gradients, backward_passes_per_step, all_named)
    crossing._attach_model(model, num_steps)
    return crossing


class _CrossBarrier(_DistributedOptimizer):
    """Mixed in before the wrapped optimizer's class."""

    def _attach_model(self, model: torch.nn.Module, num_steps: int) -> None:
        self._steps_left = num_steps
        self._pending: Dict[Slot, None] = {}  # step() was called, their own step is still to come; in order
        self._has_new = False  # backward has made gradients since the last step()
        self._options: List[Dict[str, Any]] = []  # per parameter group, as of the last step()
        self._zeroed: Optional[bool] = None  # set_to_none of a zero_grad() since the last step()
        self._lone: Dict[Slot, _LoneOptimizer] = {}
        slots = {id(slot.parameter): slot for slot in self._gradients.slots}
        for module in model.modules():
            own = [slots[id(p)] for p in _read_by(module) if id(p) in slots]
            if own:
                module.register_forward_pre_hook(lambda module, _, own=own: self._before_forward(module, own))
        model.register_forward_pre_hook(lambda module, _: self._before_forward(module, []))
        model.register_state_dict_pre_hook(lambda *_: self._take_pending())

    # ---- what users call

    def step(self, closure: Optional[Callable[[], Any]] = None, **kwargs: Any) -> Any:
        """Begins the step; see above."""
        if kwargs or self._synchronized or not self._should_synchronize or not self._gradients.travel:
            self._take_pending()
            return super().step(closure, **kwargs)
        self._tell_scheduler_of_original()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._take_pending()  # of layers that did not take part in the last forward pass
        self._hook_what_needs_it()
        self._gradients.begin()
        if self._gradients.lack_some:
            self._gradients.settle()  # other ranks may wait for what this one pushes then
        self._options = _copied_options(self.param_groups, self._options)
        self._zeroed = None
        self._pending = dict.fromkeys(self._gradients.slots)
        self._restart_passes()
        self._synchronized = self._has_new = False
        self._steps_left -= 1
        if self._steps_left <= 0:
            self._take_pending()
        return loss

    step.hooked = True  # type: ignore[attr-defined]

    def synchronize(self) -> None:
        """Waits until all parameters are up to date; after backward(), until all gradients are averaged."""
        self._take_pending()
        if self._has_new:
            super().synchronize()
            self._has_new = False

    def zero_grad(self, set_to_none: bool = True) -> None:
        if not self._pending:
            super().zero_grad(set_to_none)
            return
        self._zeroed = set_to_none  # each gradient after its step
        for slot in self._gradients.slots:
            if slot not in self._pending:
                _zero(slot.parameter, set_to_none)

    def state_dict(self) -> Dict[str, Any]:
        self._take_pending()
        return super().state_dict()

    def residual_norm(self) -> float:
        self._take_pending()
        return super().residual_norm()

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        self._take_pending()
        super().load_state_dict(state_dict)

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        raise ValueError("CrossBarrier takes no parameter groups later: add them to the optimizer that you wrap")

    # ---- one parameter's step

    def _before_forward(self, module: torch.nn.Module, own: List[Slot]) -> None:
        if not self._pending:
            return
        if not module.training or not torch.is_grad_enabled():
            self._take_pending()
            return
        for slot in own:
            if slot in self._pending:
                self._take(slot)

    def _take_pending(self) -> None:
        """Every one is taken, also when one has failed; then the first failure is raised."""
        failure: Optional[Exception] = None
        while self._pending:
            try:
                self._take(next(iter(self._pending)))
            except Exception as error:  # of the exchange, or of the optimizer's own step
                failure = failure or error
        if failure is not None:
            raise failure

    def _take(self, slot: Slot) -> None:
        failure: Optional[Exception] = None
        try:
            self._gradients.settle()
        except Exception as error:
            failure = error
        parameter = slot.parameter
        is_dropped = parameter.grad is None and slot.grad is not None  # by model.zero_grad()
        if is_dropped:
            parameter.grad = slot.grad
        failure = self._gradients.wait(slot) or failure
        self._pending.pop(slot, None)  # gone already when another thread has left the job
        if failure is not None:
            raise failure
        if parameter.grad is not None:
            if slot not in self._lone:
                self._lone[slot] = _LoneOptimizer(self, self._original, slot.parameter)
            self._lone[slot].step(self._options)
        if is_dropped or self._zeroed is not None:
            _zero(parameter, is_dropped or bool(self._zeroed))

    def _abandoned(self) -> None:
        super()._abandoned()
        self._pending.clear()
        self._has_new, self._zeroed = False, None

    def _make_hook(self, slot: Slot) -> Callable[[torch.Tensor], None]:
        hook = super()._make_hook(slot)

        def checked_hook(parameter: torch.Tensor) -> None:
            if slot in self._pending:
                raise RuntimeError(
                    f"{slot.name}: the parameter was used before its step was done, because the forward of the module "
                    "that owns it did not run. Call optimizer.synchronize() before the forward pass"
                )
            self._has_new = True
            hook(parameter)

        return checked_hook


class _LoneOptimizer:
    """The wrapped optimizer for one parameter. It shares the state; options are copied when the user changes them."""

    def __init__(self, owner: _CrossBarrier, original: torch.optim.Optimizer, parameter: torch.Tensor) -> None:
        groups = owner.param_groups
        self._owner = owner
        self._index = next(
            index for index, group in enumerate(groups) if any(p is parameter for p in group["params"])
        )
        self._seen: Dict[str, Any] = {}
        self._group: Dict[str, Any] = {"params": [parameter]}
        kind: Any = type(original)
        self._optimizer = kind.__new__(kind)
        self._optimizer.__dict__.update((key, value) for key, value in vars(original).items() if key != "step")
        self._optimizer.param_groups = [self._group]
        for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
            setattr(self._optimizer, hooks, type(getattr(original, hooks))())

    def step(self, options: List[Dict[str, Any]]) -> None:
        for key, value in options[self._index].items():
            # What the optimizer itself keeps in its group (a count of steps) stays.
            if key not in self._seen or self._seen[key] is not value:
                self._group[key] = self._seen[key] = value
        self._optimizer.state = self._owner.state
        self._optimizer.step()


def _read_by(module: torch.nn.Module) -> Iterable[torch.nn.Parameter]:
    """The parameters that the module's own forward may read. One that has parameters of its own may read those of its
    children too, without calling them (torch.nn.MultiheadAttention does)."""
    if next(module.parameters(recurse=False), None) is not None:
        return module.parameters()
    return _listed(module)


def _listed(module: torch.nn.Module) -> Iterable[torch.nn.Parameter]:
    """Those in lists and dictionaries of the module, which have no forward."""
    for child in module.children():
        if isinstance(child, (torch.nn.ParameterList, torch.nn.ParameterDict)):
            yield from child.parameters()
        elif isinstance(child, (torch.nn.ModuleList, torch.nn.ModuleDict)):
            yield from _listed(child)


def _copied_options(groups: List[Dict[str, Any]], former: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """What is as it was keeps its identity. Tensors (a learning rate) are copied, for users change them in place."""
    copies = []
    for index, group in enumerate(groups):
        known = former[index] if former else {}
        copy = {}
        for key, value in group.items():
            if isinstance(value, torch.Tensor):
                old = known.get(key)
                value = old if isinstance(old, torch.Tensor) and torch.equal(old, value) else value.clone()
            if key != "params":
                copy[key] = value
        copies.append(copy)
    return copies


def _zero(parameter: torch.Tensor, set_to_none: bool) -> None:
    if parameter.grad is None:
        return
    if set_to_none:
        parameter.grad = None
    else:
        parameter.grad = torch.zeros_like(parameter.grad)
