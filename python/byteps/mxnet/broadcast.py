"""Broadcasts: one rank's parameters to all.

Every broadcast has a name of its own, numbered by call, so all ranks must make the same calls in the same order. The
arrays of one call travel together, in any order. A rank that has parameters of deferred initialization starts their
broadcasts in its first forward pass, and other ranks with their call: so no rank may wait in a call for what another
does later (finish()).
"""

from __future__ import annotations

import functools
import types
from typing import Any, Callable, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from mxnet.gluon.parameter import DeferredInitializationError, Parameter, ParameterDict
from mxnet.ndarray import NDArray

from byteps._core import abi, collectives, session
from byteps._core.agreement import require_agreement
from byteps._core.exchange import Exchange, encoded_name
from byteps._core.process_sets import ProcessSet, check_root, global_process_set, members_of, scoped
from byteps.mxnet import engine

__all__ = ["broadcast_parameters"]

Parameters = Union[Mapping[str, Any], ParameterDict, Iterable[Any]]


def broadcast_parameters(
    params: Parameters,
    root_rank: int = 0,
    prefix: Optional[str] = "Parameter.",
    process_set: ProcessSet = global_process_set,
) -> None:
    """Gives all ranks the root's values, in place. `params`, of the same names on all ranks:

    - a dict of names to NDArrays, as Module.get_params() returns two, or to gluon Parameters;
    - net.collect_params();
    - a list of Parameters, of NDArrays, or of (name, Parameter or NDArray).

    Only the ranks of `process_set` call it. Returns when the values are there. But a Parameter whose initialization is
    deferred gets them when it is initialized, in the first forward pass, which all ranks must run then; where a rank
    has such, nobody waits here, and the engine lets what uses a value wait for it. Raises ValueError for what is no
    parameter, and on all ranks when they have other names; MXNetError when ranks disagree about an array."""
    members = members_of(process_set)
    root_rank = check_root(root_rank, members)
    named = _named(params)
    for name, param in named:
        check_device(name, param)
    require_agreement([name for name, _ in named], root_rank, "broadcast_parameters: parameters differ", members)
    call = session.current().unique_name(scoped("call", members))
    started: List[List[NDArray]] = []
    for name, param in named:
        start = functools.partial(
            start_broadcast, root_rank=root_rank, name=f"{prefix or ''}{name}@{call}", members=members
        )
        started.append(start([param]) if isinstance(param, NDArray) else when_initialized(param, start))
    finish(started, members)


def check_device(name: str, param: Union[NDArray, Parameter]) -> None:
    """ValueError: its values are not in the CPU's memory, or will not be."""
    if isinstance(param, NDArray):
        engine.check_context(param.context, f"'{name}'")
        return
    try:
        contexts = param.list_ctx()
    except RuntimeError:
        return  # it has no values yet, and nobody has said where
    engine.check_context(contexts[0], f"the parameter '{name}'")


def finish(started: Sequence[List[NDArray]], members: Sequence[int]) -> None:
    """Waits for the broadcasts that were started, one list of copies for each parameter, unless one of the members has
    yet to initialize a parameter, for which the list is []. It does so in its first forward pass, and has other calls
    to make before that, which may need this rank."""
    current = session.current()
    name = current.unique_name(scoped("mxnet.deferred", tuple(members)))
    is_deferred = any(not copies for copies in started)
    job = current.job
    answers = collectives.run(job, collectives.tables(job, name, [is_deferred], members, once=True))
    if not any(answer for (answer,) in answers):
        engine.wait([array for copies in started for array in copies])


def when_initialized(param: Parameter, start: Callable[[List[NDArray]], List[NDArray]]) -> List[NDArray]:
    """start(param.list_data()) if the parameter is initialized; otherwise that happens as soon as it is, and the result
    is []. It is not waited for: other ranks may have initialized it before, and be at another broadcast now."""
    try:
        return start(param.list_data())
    except DeferredInitializationError:
        pass
    initialize = param._init_impl

    @functools.wraps(initialize)
    def initialize_and_broadcast(self: Parameter, *args: Any, **kwargs: Any) -> None:
        self.__dict__.pop("_init_impl", None)  # once
        initialize(*args, **kwargs)
        start(self.list_data())

    param._init_impl = types.MethodType(initialize_and_broadcast, param)
    return []


def start_broadcast(
    copies: List[NDArray], root_rank: int, name: str, priority: int = 0, members: Sequence[int] = ()
) -> List[NDArray]:
    """Starts a broadcast into the first of the array's copies on this worker, and from there into the others."""
    first = copies[0]
    what = Exchange(abi.BROADCAST, root=root_rank, members=tuple(members), priority=priority, once=True)
    engine.push(first, what, name)
    for other in copies[1:]:
        first.copyto(other)
    return copies


def _named(params: Parameters) -> List[Tuple[str, Any]]:
    """Name and parameter, in the same order on all ranks."""
    if isinstance(params, (Mapping, ParameterDict)):
        items = sorted(params.items(), key=lambda item: str(item[0]))  # keys may be of several types
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
