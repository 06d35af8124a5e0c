"""Horovod's allgather, alltoall and reducescatter, and Python objects. The shapes of their results depend on what
other ranks have, so they wait for it: the result is there when they return. Names as for push_pull."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple, TypeVar, Union

import mxnet as mx
from mxnet.base import MXNetError
from mxnet.ndarray import NDArray

from byteps._core import collectives, errors, objects, session
from byteps._core.exchange import Exchange
from byteps._core.process_sets import ProcessSet, check_root, global_process_set, members_of, named
from byteps._core.reduction import Average, ReduceOp
from byteps.mxnet import engine
from byteps.mxnet.ops import prepare

__all__ = [
    "allgather",
    "allgather_object",
    "alltoall",
    "broadcast_object",
    "grouped_allgather",
    "grouped_reducescatter",
    "reducescatter",
]

T = TypeVar("T")


def allgather(
    tensor: NDArray,
    name: Optional[str] = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray:
    """The tensors of all ranks, one after another along the first dimension, in which alone they may differ."""
    return grouped_allgather([tensor], name, priority, process_set)[0]


def grouped_allgather(
    tensors: Sequence[NDArray],
    name: Optional[str] = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> List[NDArray]:
    """allgather() of each, all at once."""
    outputs: List[_Output] = []
    plans = []
    for wire_name, once, members, tensor in _each("allgather", tensors, name, process_set):
        rows, rest = _rows(tensor)
        outputs.append(_Output(tensor, rest))
        plans.append(
            collectives.allgather(
                session.job(), wire_name, rows, outputs[-1].allocate, members, priority=priority, once=once
            )
        )
    _run(plans, tensors, outputs)
    return [output.array for output in outputs]


def alltoall(
    tensor: NDArray,
    splits: Union[NDArray, Sequence[int], None] = None,
    name: Optional[str] = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Union[NDArray, Tuple[NDArray, NDArray]]:
    """Rank i of the process set gets splits[i] rows of `tensor`, in the order of the ranks; what came from all ranks,
    in the order of theirs. Without splits all get as many. With them, (result, how many rows came from each rank)."""
    ((wire_name, once, members, tensor),) = _each("alltoall", [tensor], name, process_set)
    rows, rest = _rows(tensor)
    output = _Output(tensor, rest)
    if splits is None:
        parts = process_set.size()
        if rows.count % parts:
            raise ValueError(
                f"alltoall without splits: the first dimension is {rows.count}, which {parts} ranks cannot share evenly"
            )
        counts = [rows.count // parts] * parts
    else:
        counts = [int(count) for count in (splits.asnumpy() if isinstance(splits, NDArray) else splits)]
    plan = collectives.alltoall(
        session.job(), wire_name, rows, counts, output.allocate, members, priority=priority, once=once
    )
    (received,) = _run([plan], tensor, output)
    if splits is None:
        return output.array
    return output.array, mx.nd.array(received, dtype="int32")


def reducescatter(
    tensor: NDArray,
    op: ReduceOp = Average,
    name: Optional[str] = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> NDArray:
    """This rank's share of the reduction of `tensor`: its rows are divided as evenly as can be, the first ranks get one
    more."""
    return grouped_reducescatter([tensor], op, name, priority, process_set, prescale_factor, postscale_factor)[0]


def grouped_reducescatter(
    tensors: Sequence[NDArray],
    op: ReduceOp = Average,
    name: Optional[str] = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> List[NDArray]:
    """reducescatter() of each, all at once."""
    prepared = [prepare(tensor, op, None, prescale_factor, postscale_factor) for tensor in tensors]
    scaled = [tensor for tensor, _ in prepared]
    outputs: List[NDArray] = []
    plans = []
    each = _each("reducescatter", scaled, name, process_set)
    for (wire_name, once, members, tensor), (_, reduction) in zip(each, prepared):
        rows, rest = _rows(tensor)
        output = _Output(tensor, rest)
        address = output.allocate(collectives.scattered_counts(rows.count, process_set.size())[process_set.rank()])
        what = Exchange(*reduction, members=members, priority=priority, once=once)
        plans.append(collectives.reducescatter(session.job(), wire_name, rows, address, what))
        outputs.append(output.array)
    _run(plans, scaled, outputs)
    return outputs


def broadcast_object(
    obj: Any, root_rank: int = 0, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The root's object, pickled on its way, on all ranks of the process set. The others' `obj` does not matter."""
    members = members_of(process_set)
    return objects.broadcast_object(obj, check_root(root_rank, members), name, members)


def allgather_object(
    obj: Any, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> List[Any]:
    """The objects of all ranks of the process set, pickled on their way, in the order of the ranks."""
    return objects.allgather_object(obj, name, members_of(process_set))


class _Output:
    """Makes the result when its number of rows is known."""

    def __init__(self, like: NDArray, rest: Tuple[int, ...]) -> None:
        self._like = like
        self._rest = rest
        self.array: NDArray = None

    def allocate(self, rows: int) -> int:
        shape = (rows, *self._rest)
        if 0 in shape:
            with mx.util.np_shape(True):  # elsewhere 0 is a dimension that is not known
                self.array = engine.empty(shape, self._like)
            return 0
        self.array = engine.empty(shape, self._like)
        return engine.address(self.array)


def _rows(tensor: NDArray) -> Tuple[collectives.Rows, Tuple[int, ...]]:
    """The array in memory, as rows, and the shape of a row. A scalar is a row."""
    kind = engine.element_kind(tensor)
    shape = tensor.shape or (1,)
    rest = tuple(shape[1:])
    address = engine.address(tensor) if 0 not in shape else 0
    return collectives.Rows(kind, address, shape[0], rest), rest


def _each(
    what: str, tensors: Sequence[NDArray], name: Optional[str], process_set: ProcessSet
) -> List[Tuple[str, bool, Tuple[int, ...], NDArray]]:
    """(name for the core, whether it is used once, members, tensor) of each."""
    members = members_of(process_set)
    base, once = named(name, what, members)
    names = [base] if len(tensors) == 1 else [f"{base}.{index}" for index in range(len(tensors))]
    return [("byteps." + one, once, members, tensor) for one, tensor in zip(names, tensors)]


def _run(plans: "Sequence[collectives.Plan[T]]", *memory: object) -> List[T]:
    """Their results; what an exchange failed with as MXNetError, as everywhere in MXNet. `memory`: the arrays that they
    read and write."""
    try:
        return collectives.run_all(session.job(), plans, *memory)
    except errors.InvalidArgumentError:
        raise  # the call is wrong
    except errors.BytePSError as error:
        raise MXNetError(str(error)) from error
