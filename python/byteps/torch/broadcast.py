"""Broadcasts: one rank's parameters, optimizer state or objects to all.

Every broadcast has a name of its own, numbered by call, so all ranks must make the same calls in the same order. The
tensors of one call travel together, in any order. Before, the ranks compare what they are about to broadcast, and all
of them raise when they differ.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Set, Tuple, Union

import torch

from byteps._core import errors, objects, session
from byteps._core.agreement import require_agreement
from byteps._core.exchange import encoded_name
from byteps._core.process_sets import ProcessSet, check_root, global_process_set, members_of
from byteps.torch import devices, exchange, pending

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]

Parameters = Union[Mapping[str, Any], Iterable[Tuple[str, Any]], Iterable[torch.Tensor]]


def broadcast_parameters(params: Parameters, root_rank: int = 0, prefix: str = "Parameter.") -> None:
    """Gives all ranks the root's values, in place. `params`: model.state_dict(), model.named_parameters(),
    model.parameters(), or a list of either kind. Buffers of any dtype are welcome; None entries are skipped. Each rank
    may have its tensors on another device."""
    root_rank = check_root(root_rank)
    named = _named_tensors(params)
    devices.check_all(named)
    require_agreement(
        [f"{name}: {_spec(tensor)}" for name, tensor in named], root_rank, "broadcast_parameters: parameters differ"
    )
    _broadcast_all(named, root_rank, prefix)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int = 0, model: Any = None, prefix: str = "Parameter."
) -> None:
    """Gives all ranks the options of the root's parameter groups (learning rate, ...) and the root's state, whatever
    they had before: also nothing, before the first step. The parameters themselves are not broadcast. `model` is
    accepted for Horovod's scripts; the original BytePS has `prefix` in its place, and a str there is that."""
    if isinstance(model, str):
        prefix = model
    elif model is not None and not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"broadcast_optimizer_state: the third argument is {model!r}: it is Horovod's model, a torch.nn.Module, or "
            "the prefix of the original BytePS, a str. Write model= or prefix="
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    root_rank = check_root(root_rank)
    groups = optimizer.param_groups
    require_agreement(
        [f"group {i}, parameter {j}: {_spec(p)}" for i, g in enumerate(groups) for j, p in enumerate(g["params"])],
        root_rank,
        "broadcast_optimizer_state: the optimizers' parameters differ",
    )
    parameters = [p for group in groups for p in group["params"]]
    devices.check_all((str(index), p) for index, p in enumerate(parameters))
    indices = {id(p): index for index, p in enumerate(parameters)}
    here: Dict[str, Any] = {
        "groups": [{key: value for key, value in group.items() if key != "params"} for group in groups],
        # Keyed by the parameter's index; what is not about a parameter, by its own key.
        "state": {
            ("parameter", indices[id(key)]) if isinstance(key, torch.Tensor) else ("key", key): value
            for key, value in optimizer.state.items()
        },
    }
    is_root = session.job().rank == root_rank
    skeleton, tensors = _take_tensors_out(here)
    skeleton = broadcast_object(skeleton, root_rank, "optimizer")
    if not is_root:
        here, tensors = _filled(skeleton, here, groups)
    _broadcast_all([(str(index), tensor) for index, tensor in enumerate(tensors)], root_rank, f"{prefix}optimizer.")
    if is_root:
        return
    for group, options in zip(groups, here["groups"]):
        group.update(options)
    optimizer.state.clear()
    for (kind, key), value in here["state"].items():
        optimizer.state[parameters[key] if kind == "parameter" else key] = value


def broadcast_object(
    obj: Any, root_rank: int = 0, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The root's object, on all ranks (on the root `obj` itself). It is pickled, with cloudpickle when that is
    installed: members of one job trust each other. The others' `obj` does not matter."""
    members = members_of(process_set)
    root_rank = check_root(root_rank, members)
    return objects.broadcast_object(obj, root_rank, name, members)


def allgather_object(obj: Any, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> List[Any]:
    """The objects of all ranks, in the order of ranks."""
    return objects.allgather_object(obj, name, members_of(process_set))


# ---- tensors


def _named_tensors(params: Parameters) -> List[Tuple[str, torch.Tensor]]:
    if isinstance(params, Mapping):
        items: List[Any] = sorted(params.items(), key=lambda item: str(item[0]))  # keys may be of several types
    elif isinstance(params, (str, bytes, torch.Tensor, torch.nn.Module)) or not isinstance(params, Iterable):
        raise ValueError(
            f"invalid params of type {type(params).__name__}: expected model.state_dict(), model.named_parameters(), "
            "or a list of tensors"
        )
    else:
        items = [
            item if isinstance(item, tuple) and len(item) == 2 else (str(index), item)
            for index, item in enumerate(params)
        ]
    for name, tensor in items:
        if tensor is not None and not isinstance(tensor, torch.Tensor):
            raise ValueError(
                f"'{name}' is a {type(tensor).__name__}, not a tensor; use broadcast_object for other objects"
            )
        encoded_name(str(name))
    duplicates = sorted(name for name, uses in Counter(str(name) for name, _ in items).items() if uses > 1)
    if duplicates:
        raise ValueError("names must be unique. Found duplicates: " + ", ".join(duplicates))
    return [(str(name), tensor) for name, tensor in items if tensor is not None]


def _broadcast_all(named: List[Tuple[str, torch.Tensor]], root_rank: int, prefix: str) -> None:
    """All at once; every handle is waited for, also when one has failed."""
    call = session.current().unique_name("call")
    handles = [exchange.start_broadcast(tensor, root_rank, f"{prefix}{name}@{call}") for name, tensor in named]
    failure: Optional[Exception] = None
    for handle in handles:
        try:
            pending.synchronize(handle)
        except errors.BytePSError as error:
            failure = failure or error
    if failure is not None:
        raise failure


def _spec(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).replace('torch.', '')}{list(tensor.shape)}"


# ---- nested structures


class _TensorPlace:
    """Stands for a tensor in a structure that is pickled."""

    def __init__(self, dtype: torch.dtype, shape: Tuple[int, ...], is_on_host: bool) -> None:
        self.dtype = dtype
        self.shape = shape
        self.is_on_host = is_on_host  # on the root


def _take_tensors_out(value: Any) -> Tuple[Any, List[torch.Tensor]]:
    """A copy with places for tensors, and the tensors in their order."""
    tensors: List[torch.Tensor] = []

    def visit(leaf: Any, _: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        tensors.append(leaf)
        return _TensorPlace(leaf.dtype, tuple(leaf.shape), not leaf.is_cuda)

    return _copy(value, None, visit), tensors


class _Filling:
    """Copies of what the root has said, with tensors in their places. `tensors`: these, in their order."""

    def __init__(self) -> None:
        self.tensors: List[torch.Tensor] = []
        self._taken: Set[int] = set()

    def fill(self, skeleton: Any, former: Any, like: Optional[torch.Tensor]) -> Any:
        """That of `former` where it fits, so that others who hold it see the new values. But one tensor in one place
        only: two options that share a tensor here (lr and initial_lr) may differ on the root. New ones are where `like`
        is, a parameter; but a number (a count of steps) that the root has on the host is on the host."""

        def visit(leaf: Any, old: Any) -> Any:
            if not isinstance(leaf, _TensorPlace):
                return leaf
            fits = isinstance(old, torch.Tensor) and old.dtype == leaf.dtype and tuple(old.shape) == leaf.shape
            if not fits or id(old) in self._taken:
                is_number = leaf.is_on_host and leaf.shape == () and (like is None or like.dim() > 0)
                device = "cpu" if is_number or like is None else like.device
                old = torch.empty(leaf.shape, dtype=leaf.dtype, device=device)
            self._taken.add(id(old))
            self.tensors.append(old)
            return old

        return _copy(skeleton, former, visit)


def _filled(skeleton: Any, former: Any, groups: List[Dict[str, Any]]) -> Tuple[Any, List[torch.Tensor]]:
    """The root's options and state with tensors of this rank in their places, and these in the order of the root's."""
    filling = _Filling()
    parameters = [p for group in groups for p in group["params"]]
    likes = [next(iter(group["params"]), None) for group in groups]
    options = [
        filling.fill(given, old, like)
        for given, old, like in itertools.zip_longest(skeleton["groups"], former["groups"], likes)
        if given is not None
    ]
    state = {}
    for (kind, key), given in skeleton["state"].items():
        like = parameters[key] if kind == "parameter" else next(iter(parameters), None)
        state[(kind, key)] = filling.fill(given, former["state"].get((kind, key)), like)
    return {"groups": options, "state": state}, filling.tensors


def _copy(value: Any, former: Any, visit: Callable[[Any, Any], Any]) -> Any:
    """Copies dicts, lists and tuples, and calls visit(leaf, what `former` has in its place or None)."""
    if isinstance(value, dict):
        known = former if isinstance(former, dict) else {}
        copied: Dict[Any, Any] = {key: _copy(item, known.get(key), visit) for key, item in value.items()}
        return copied
    if type(value) in (list, tuple):
        olds = former if isinstance(former, (list, tuple)) and len(former) == len(value) else [None] * len(value)
        return type(value)(_copy(item, old, visit) for item, old in zip(value, olds))
    return visit(value, former)
