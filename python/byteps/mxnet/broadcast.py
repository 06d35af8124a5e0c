"""Broadcasts: one rank's parameters to all.

Every broadcast has a name of its own, numbered by call, so all ranks must make the same calls in the same order. The
arrays of one call travel together, in any order.
"""

from __future__ import annotations

import functools
import types
from typing import Any, Callable, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from mxnet.gluon.parameter import DeferredInitializationError, Parameter, ParameterDict
from mxnet.ndarray import NDArray

from byteps._core import abi, session
from byteps._core.client import encoded_name
from byteps._core.process_sets import ProcessSet, global_process_set, members_of, scoped
from byteps.mxnet import engine
from byteps.mxnet.ops import check_root

__all__ = ["broadcast_parameters"]

Parameters = Union[Mapping[str, Any], ParameterDict, Iterable[Any]]


def broadcast_parameters(
    params: Parameters,
    root_rank: int = 0,
    prefix: Optional[str] = "Parameter.",
    process_set: ProcessSet = global_process_set,
) -> None:
    """Gives all ranks the root's values, in place, and returns when they are there. `params`:

    - a dict of names to NDArrays, as Module.get_params() returns two, or to gluon Parameters;
    - net.collect_params();
    - a list of Parameters, of NDArrays, or of (name, Parameter or NDArray).

    Only the ranks of `process_set` call it. A Parameter whose initialization is deferred gets the root's values when it
    is initialized, in the first forward pass; that all ranks must run then. Raises ValueError for what is no parameter,
    MXNetError when ranks disagree."""
    check_root(root_rank, process_set)
    members = members_of(process_set)
    call = session.current().unique_name(scoped("call", members))
    arrays: List[NDArray] = []
    for name, param in _named(params):
        start = functools.partial(
            start_broadcast, root_rank=root_rank, name=f"{prefix or ''}{name}@{call}", members=members
        )
        if isinstance(param, NDArray):
            arrays += start([param])
        else:
            arrays += when_initialized(param, start)
    engine.wait(arrays)


def when_initialized(param: Parameter, start: Callable[[List[NDArray]], List[NDArray]]) -> List[NDArray]:
    """start(param.list_data()) if the parameter is initialized; otherwise that happens, and is waited for, as soon as
    it is, and the result is []."""
    try:
        return start(param.list_data())
    except DeferredInitializationError:
        pass
    initialize = param._init_impl

    @functools.wraps(initialize)
    def initialize_and_broadcast(self: Parameter, *args: Any, **kwargs: Any) -> None:
        self.__dict__.pop("_init_impl", None)  # once
        initialize(*args, **kwargs)
        engine.wait(start(self.list_data()))

    param._init_impl = types.MethodType(initialize_and_broadcast, param)
    return []


def start_broadcast(
    copies: List[NDArray], root_rank: int, name: str, priority: int = 0, members: Sequence[int] = ()
) -> List[NDArray]:
    """Starts a broadcast into the first of the array's copies on this worker, and from there into the others."""
    first = copies[0]
    engine.push(first, abi.BROADCAST, name, root=root_rank, priority=priority, once=True, members=members)
    for other in copies[1:]:
        first.copyto(other)
    return copies


def _named(params: Parameters) -> List[Tuple[str, Any]]:
    """Name and parameter, in the same order on all ranks."""
    if isinstance(params, (Mapping, ParameterDict)):
        items = sorted(params.items())
    elif isinstance(params, (str, bytes, NDArray)) or not isinstance(params, Iterable):
        raise ValueError(
            f"invalid params of type {type(params).__name__}: expected net.collect_params(), a dict of names to "
            "NDArrays, or a list of them"
        )
    else:
        items = [
            item if isinstance(item, tuple) and len(item) == 2 else (str(index), item)
            for index, item in enumerate(params)
        ]
    for name, param in items:
        if not isinstance(param, (NDArray, Parameter)):
            raise ValueError(f"'{name}' is a {type(param).__name__}, not an NDArray or a gluon Parameter")
        encoded_name(str(name))
    names = [str(name) for name, _ in items]
    duplicates = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if duplicates:
        raise ValueError("names must be unique. Found duplicates: " + ", ".join(duplicates))
    return [(str(name), param) for name, param in items]
