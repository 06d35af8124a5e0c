"""DistributedOptimizer: any torch optimizer, with gradients averaged over all workers before each step.

One parameter's way: backward accumulates its gradient; the hook counts the passes and, after the last one, starts its
exchange; step() waits for all of them (gradients.py) and calls the wrapped optimizer's own step().
"""

from __future__ import annotations

import warnings
from collections import Counter
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple, Type, Union

import torch

from byteps._core import abi, reduction
from byteps._core.compression import feeds_back
from byteps._core.mixed import Wrapped
from byteps._core.process_sets import ProcessSet, global_process_set
from byteps._core.recipes import check_recipe, number_of
from byteps._core.reduction import Average, ReduceOp
from byteps.torch import residuals
from byteps.torch.compression import Compression, Compressor
from byteps.torch.gradients import Gradients, Slot

__all__ = ["DistributedOptimizer"]


def DistributedOptimizer(  # the name users know
    optimizer: torch.optim.Optimizer,
    named_parameters: Optional[Iterable[Tuple[str, torch.nn.Parameter]]] = None,
    compression: Type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: Union[ReduceOp, str] = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    name: Optional[str] = None,
    compression_params: Optional[Dict[str, Any]] = None,
) -> torch.optim.Optimizer:
    """An optimizer of the same class that averages gradients over all workers before each step. It shares parameter
    groups and state with `optimizer`, which should not be used any more.

    named_parameters: model.named_parameters(), in the order of the layers: the first ones, which the next forward pass
        needs first, travel first. All parameters of the optimizer are among them. Without it, the order within the
        optimizer's groups counts. All ranks must have the same names.
    compression: one of Compression: what travels (docs/compression.md). With error feedback, as of
        Compression.int8(error_feedback=True), state_dict() has what this rank carries to the next step, too.
    backward_passes_per_step: so many backward passes are accumulated locally, as a sum, before the gradients travel.
    op: Average or Sum.
    gradient_predivide_factor: for compatibility. Sums are made in 32 bits or more, so that no gradient needs to be
        divided before; the average is the same.
    num_groups, groups: for compatibility; every gradient leaves as soon as it is ready.
    sparse_as_dense: sparse gradients (torch.nn.Embedding(..., sparse=True)) travel as dense ones. Otherwise their
        indices and values do. The optimizer gets a sparse average in both cases.
    process_set: the ranks that average together. On a rank that is not in it, the optimizer works alone.
    name: stands before the names of gradients. None: optimizers with equal names of parameters are told apart by the
        order in which they are made, which must be the same on all ranks. With a name of your own, a later optimizer
        may have it again, so that servers need no new memory.
    compression_params: instead of `compression`, as the original says it: {"compressor": "topk", "k": 0.01}.
    """
    distributed = with_base(_DistributedOptimizer, optimizer)
    meaning = checked_meaning(op, gradient_predivide_factor)
    check_groups(groups if groups is not None else num_groups)
    gradients = Gradients(compression, sparse_as_dense, titled(name), meaning, process_set, compression_params)
    distributed._attach(optimizer, named_parameters, gradients, backward_passes_per_step)
    return distributed


def checked_meaning(op: Union[ReduceOp, str], gradient_predivide_factor: float) -> reduction.Reduction:
    meaning = reduction.resolve(op)
    if meaning.operation not in (abi.AVERAGE, abi.SUM):
        raise ValueError(f"op is {op}: gradients are combined by Average or Sum")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor goes with op=Average only")
    return meaning


def titled(name: Optional[str]) -> str:
    """The title of Gradients for an optimizer of this name."""
    if name is not None and (not isinstance(name, str) or not name):
        raise ValueError(f"name is {name!r}: it must be a str that is not empty")
    return f"{name}." if name else ""


def check_groups(groups: Any) -> None:
    if isinstance(groups, int) and not isinstance(groups, bool) and groups >= 0:
        return
    if isinstance(groups, (list, tuple)) and all(isinstance(group, (list, tuple)) for group in groups):
        if all(isinstance(p, torch.Tensor) for group in groups for p in group):
            return
    raise ValueError(f"groups is {groups!r}: it must be a number of groups, 0 or more, or a list of lists of tensors")


def with_base(base: type, optimizer: torch.optim.Optimizer) -> Any:
    """A copy of `optimizer`, whose class has the same name and `base` before its own; _attach() comes next."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "DistributedOptimizer does not support torch.optim.LBFGS: it evaluates the loss several times within one "
            "step, as often as its line search on this rank's data asks for. Use a first-order optimizer."
        )
    if isinstance(optimizer, _DistributedOptimizer):
        raise ValueError("the optimizer is a DistributedOptimizer already; wrap it once")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(f"expected a torch.optim.Optimizer, got {type(optimizer).__name__}")
    kind: Any = type(optimizer.__class__.__name__, (base, optimizer.__class__), {})
    distributed = kind.__new__(kind)
    # A learning rate scheduler replaces `step` in the instance it is made for; that one bypasses us.
    distributed.__dict__.update((key, value) for key, value in vars(optimizer).items() if key != "step")
    return distributed


def without_hooks(step: Any) -> None:
    """torch wraps step() for its own hooks; the wrapped class's step, called by this one, has them."""
    step.hooked = True


class _DistributedOptimizer(Wrapped):
    """Mixed in before the wrapped optimizer's class."""

    def _attach(
        self,
        original: torch.optim.Optimizer,
        named_parameters: Optional[Iterable[Tuple[str, torch.nn.Parameter]]],
        gradients: Gradients,
        passes: int,
        all_named: bool = True,
    ) -> None:
        """`all_named`: where there are named_parameters, all are to be among them."""
        self._original = original
        self._passes_per_step = _checked_passes(passes)
        self._should_synchronize = True
        self._synchronized = False
        self._groups: Dict[int, int] = {}  # the number of each parameter's group, by its id
        self._gradients = gradients
        self._check_recipe()
        if feeds_back(gradients.compression) and gradients.compression.is_of_parts:
            gradients.rate_of = self._rate_of
        names = _names_in_layer_order(named_parameters)
        in_groups = [p for group in self.param_groups for p in group["params"]]
        unnamed = _numbered_names(self.param_groups)
        wanted = {id(p) for p in in_groups if not self._is_left_out(p)}
        for parameter, name in names:
            if id(parameter) in wanted:
                self._add_slot(parameter, name)
        if named_parameters is not None and all_named:
            _check_all_named([p for p in in_groups if id(p) in wanted and not gradients.has(p)], unnamed)
        for parameter in in_groups:
            if id(parameter) in wanted and not self._gradients.has(parameter):
                self._add_slot(parameter, unnamed[id(parameter)])
        self._hook_what_needs_it()
        gradients.when_abandoned = self._abandoned

    # ---- what users call

    def synchronize(self) -> None:
        """Waits until all gradients are averaged. step() does this by itself; call it to work on averaged gradients,
        for example to clip them, and then step() within skip_synchronize()."""
        self._hook_what_needs_it()
        self._synchronized = False
        try:
            self._gradients.finish()
        finally:
            self._restart_passes()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it, step() does not synchronize: synchronize() has been called before.

        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
        """
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Another number of backward passes from now on; not while gradients are under way."""
        self._raise_if_under_way("set_backward_passes_per_step() was called")
        self._passes_per_step = _checked_passes(passes)
        self._restart_passes()

    def step(self, closure: Optional[Callable[[], Any]] = None, **kwargs: Any) -> Any:
        """Averages the gradients and updates the parameters. A closure is called as by the wrapped optimizer, and the
        gradients that it makes are averaged before they are used. What synchronize() has averaged is not averaged
        again, unless backward() or zero_grad() came after it."""
        self._tell_scheduler_of_original()
        if not self._should_synchronize:
            self._synchronized = False
            return self._step_here(closure, kwargs)
        if closure is None:
            if self._synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(): gradients are averaged already, and are not averaged again",
                    stacklevel=2,
                )
            else:
                self.synchronize()
            self._synchronized = False
            return self._step_here(None, kwargs)
        if self._is_under_way():
            self.synchronize()

        def averaged_closure() -> Any:
            loss = closure()
            if not self._synchronized:
                self.synchronize()
            return loss

        result = self._step_here(averaged_closure, kwargs)
        self._synchronized = False
        return result

    without_hooks(step)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        self._raise_if_under_way(
            "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
            "optimizer.synchronize()"
        )
        self._synchronized = False
        super().zero_grad(*args, **kwargs)

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        super().add_param_group(param_group)
        self._check_recipe()
        for parameter in self.param_groups[-1]["params"]:
            self._add_slot(parameter, _numbered_names(self.param_groups)[id(parameter)])
        self._hook_what_needs_it()

    def state_dict(self, *args: Any, **kwargs: Any) -> Dict[str, Any]:
        """That of the wrapped optimizer, and what a compressor keeps on this rank: residuals and momentum."""
        state = super().state_dict(*args, **kwargs)
        return {**state, residuals.KEY: self._gradients.residuals.state()} if self._keeps_something() else state

    def load_state_dict(self, state_dict: Dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """What state_dict() gave on the same rank; what a compressor kept on another one is not loaded, with a
        warning."""
        own = {key: each for key, each in state_dict.items() if key != residuals.KEY}
        super().load_state_dict(own, *args, **kwargs)
        if self._keeps_something():
            self._gradients.residuals.load(state_dict.get(residuals.KEY))

    def residual_norm(self) -> float:
        """Between two steps, with error feedback: the Euclidean norm of all that this rank carries to the next step, as
        in docs/compression.md; 0 without."""
        return self._gradients.residuals.norm()

    def _keeps_something(self) -> bool:
        return self._gradients.keeps_something and self._gradients.travel

    @staticmethod
    def find_duplicates(lst: Iterable[Any]) -> set:
        """The elements that occur more than once."""
        return {item for item, uses in Counter(lst).items() if uses > 1}

    # ---- hooks

    def _add_slot(self, parameter: torch.Tensor, name: str) -> None:
        self._gradients.add(parameter, name).passes_left = self._passes_per_step

    def _is_left_out(self, parameter: torch.Tensor) -> bool:
        """True for parameters whose gradients stay here."""
        return False

    def _hook_what_needs_it(self) -> None:
        """A frozen parameter can have no hook; it gets one when it is thawed."""
        for slot in self._gradients.slots:
            if slot.hook is None and slot.parameter.requires_grad:
                slot.hook = slot.parameter.register_post_accumulate_grad_hook(self._make_hook(slot))

    def _make_hook(self, slot: Slot) -> Callable[[torch.Tensor], None]:
        def hook(_: torch.Tensor) -> None:
            if slot.handle is not None or slot.passes_left <= 0:
                raise AssertionError(
                    f"{slot.name}: gradients were computed more than backward_passes_per_step "
                    f"({self._passes_per_step}) times before step() or synchronize(); increase "
                    "backward_passes_per_step to accumulate gradients locally"
                )
            self._synchronized = False
            slot.passes_left -= 1
            if slot.passes_left == 0 and self._gradients.travel:
                self._gradients.push(slot)

        return hook

    # ---- small things

    def _check_recipe(self) -> None:
        momentum = max(number_of(group.get("momentum")) for group in self.param_groups)
        kind = type(self._original)
        check_recipe(self._gradients.compression, kind.__name__, momentum, issubclass(kind, torch.optim.SGD))

    def _rate_of(self, parameter: torch.Tensor) -> float:
        """The learning rate of its next step."""
        if id(parameter) not in self._groups:
            self._groups = {id(p): index for index, group in enumerate(self.param_groups) for p in group["params"]}
        return float(self.param_groups[self._groups[id(parameter)]]["lr"])

    def _restart_passes(self) -> None:
        for slot in self._gradients.slots:
            slot.passes_left = self._passes_per_step

    def _abandoned(self) -> None:
        """The job was left, amid a step perhaps: the next backward pass begins a new one."""
        self._synchronized = False
        self._restart_passes()

    def _step_here(self, closure: Optional[Callable[[], Any]], kwargs: Dict[str, Any]) -> Any:
        if closure is None:
            return super().step(**kwargs)
        return super().step(closure, **kwargs)

    def _tell_scheduler_of_original(self) -> None:
        """A learning rate scheduler that was made for the original warns unless that has stepped before itself."""
        self._original._opt_called = True
        if hasattr(self._original, "_step_count"):  # older torch counts
            self._original._step_count += 1

    def _is_under_way(self) -> bool:
        """Some gradient is complete. Alone none travels, but what is wrong with two workers is wrong there too."""
        return any(slot.handle is not None or slot.passes_left <= 0 for slot in self._gradients.slots)

    def _raise_if_under_way(self, what: str) -> None:
        if self._is_under_way():
            raise AssertionError(f"{what}. This is prohibited: gradients are under way")


def _checked_passes(passes: int) -> int:
    if passes < 1:
        raise ValueError(f"backward_passes_per_step is {passes}: it must be at least 1")
    return passes


def _names_in_layer_order(
    named_parameters: Optional[Iterable[Tuple[str, torch.nn.Parameter]]],
) -> List[Tuple[torch.Tensor, str]]:
    named = list(named_parameters) if named_parameters is not None else []
    if any(not isinstance(item, tuple) or len(item) != 2 or not isinstance(item[0], str) for item in named):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
            "model.named_parameters()."
        )
    duplicates = _DistributedOptimizer.find_duplicates(name for name, _ in named)
    if duplicates:
        raise ValueError(
            "Parameter names in named_parameters must be unique. Found duplicates: " + ", ".join(sorted(duplicates))
        )
    by_parameter = {id(parameter): (parameter, name) for name, parameter in named}
    return list(by_parameter.values())


def _check_all_named(missing: List[torch.Tensor], names: Dict[int, str]) -> None:
    if missing:
        described = [f"{names[id(p)].removeprefix('push_pull.noname.')} {list(p.shape)}" for p in missing[:5]]
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise ValueError(
            "named_parameters was specified, but one or more parameters of the optimizer are not among them. By group, "
            f"index and shape: {', '.join(described)}{more}. Give the names of all of its models, or none"
        )


def _numbered_names(groups: List[Dict[str, Any]]) -> Dict[int, str]:
    return {
        id(parameter): f"push_pull.noname.{group_index}.{index}"
        for group_index, group in enumerate(groups)
        for index, parameter in enumerate(group["params"])
    }
