"""push_pull and Horovod's allreduce and broadcast, all pushed onto MXNet's engine: they return at once.

An array is its name: what belongs together has the same name on all ranks, and the same shape and dtype. Unnamed
operations are numbered in the order of the calls, which must then be the same on all ranks. Any number may be under
way, pushed in any order on each rank. What goes wrong is raised as MXNetError where somebody next waits for the array.
Larger `priority` goes first. `version` is accepted for compatibility and has no effect.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
from mxnet.ndarray import NDArray

from byteps._core import abi, horovod, session
from byteps._core.choices import of_declaration
from byteps._core.compression import Coded, check_element, checked_stateless, packed, with_memory
from byteps._core.exchange import Exchange, encoded_name
from byteps._core.process_sets import ProcessSet, check_root, global_process_set, members_of, named
from byteps._core.reduction import ReduceOp, Reduction, resolve
from byteps.mxnet import engine
from byteps.mxnet.compression import Compression, Compressor, float32_count

__all__ = [
    "allreduce",
    "allreduce_",
    "broadcast",
    "broadcast_",
    "byteps_declare_tensor",
    "byteps_push_pull",
    "grouped_allreduce",
    "grouped_allreduce_",
    "join",
    "push_pull",
]

_INTEGERS = (np.uint8, np.int8, np.int32, np.int64)


def byteps_push_pull(
    tensor: NDArray, version: int = 0, priority: int = 0, name: Optional[str] = None, is_average: bool = True
) -> None:
    """Averages (or sums) `tensor` over all workers, in place; coded, if byteps_declare_tensor() has said how."""
    coded = _declared.get(name, Compression.none) if name is not None else Compression.none
    _reduce(tensor, None, resolve(average=is_average), "push_pull", name, priority, compression=coded)


_declared: Dict[str, Coded] = {}  # by the name of the tensor, for the life of the process


def byteps_declare_tensor(name: str, **kwargs: Any) -> None:
    """Names need no declaration, nor any order of it. But it may say, as in the original, how byteps_push_pull() of
    this name is coded from now on: byteps_compressor_type="topk", byteps_compressor_k=0.01,
    byteps_ef_type="vanilla", byteps_momentum_type="nesterov", byteps_momentum_mu=0.9, ... (docs/compression.md). The
    same on all ranks. ValueError: what it may not say."""
    session.current()
    encoded_name(name)
    chosen = of_declaration(name, kwargs)
    if chosen is not None and _declared.get(name) != chosen:
        _declared[name] = chosen


def push_pull(
    tensor: NDArray,
    average: bool = True,
    name: Optional[str] = None,
    version: int = 0,
    priority: int = 0,
    compression: Compressor = Compression.none,
) -> NDArray:
    """The average (or sum) of `tensor` over all workers, in a new array."""
    reduction = resolve(average=average)
    compressed, context = packed(checked_stateless(compression), tensor, reduction.operation, float32_count(tensor))
    output = engine.empty(compressed.shape, compressed)
    _reduce(output, compressed, reduction, "push_pull", name, priority, compression=compression)
    return compression.decompress(output, context)


def allreduce(
    tensor: NDArray,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: Optional[ReduceOp] = None,
) -> NDArray:
    """The reduction of `tensor` over the ranks of the process set, in a new array; without `op` and `average` the
    average."""
    tensor, reduction = prepare(tensor, op, average, prescale_factor, postscale_factor)
    output = engine.empty(tensor.shape, tensor)
    return _reduce(output, tensor, reduction, "allreduce", name, priority, process_set)


def allreduce_(
    tensor: NDArray,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: Optional[ReduceOp] = None,
) -> NDArray:
    """allreduce() in place; returns `tensor`."""
    scaled, reduction = prepare(tensor, op, average, prescale_factor, postscale_factor)
    return _reduce(tensor, None if scaled is tensor else scaled, reduction, "allreduce", name, priority, process_set)


def grouped_allreduce(
    tensors: Sequence[NDArray],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: Optional[ReduceOp] = None,
) -> List[NDArray]:
    """allreduce() of each; the arrays of a group of one name are numbered."""
    prepared = [prepare(tensor, op, average, prescale_factor, postscale_factor) for tensor in tensors]
    outputs = [engine.empty(tensor.shape, tensor) for tensor in tensors]
    return _reduce_group(outputs, prepared, name, priority, process_set)


def grouped_allreduce_(
    tensors: Sequence[NDArray],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: Optional[ReduceOp] = None,
) -> List[NDArray]:
    """grouped_allreduce() in place; returns the arrays."""
    prepared = [prepare(tensor, op, average, prescale_factor, postscale_factor) for tensor in tensors]
    inputs = [(None if scaled is tensor else scaled, how) for tensor, (scaled, how) in zip(tensors, prepared)]
    return _reduce_group(tensors, inputs, name, priority, process_set)


def broadcast(
    tensor: NDArray,
    root_rank: int,
    name: Optional[str] = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray:
    """The values that `tensor` has on `root_rank`, in a new array."""
    output = engine.empty(tensor.shape, tensor)
    return _broadcast(output, tensor, root_rank, name, priority, process_set)


def broadcast_(
    tensor: NDArray,
    root_rank: int,
    name: Optional[str] = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray:
    """broadcast() in place; returns `tensor`."""
    return _broadcast(tensor, None, root_rank, name, priority, process_set)


def join(device: int = -1) -> int:
    """This rank has no more inputs: until all ranks have called it, it contributes nothing to the sums and averages of
    the others. Returns the rank that called it last, on all ranks; that one has seen the most, so broadcast its
    parameters. Blocks, also until what was pushed before has arrived. `device` is for compatibility."""
    engine.drain()
    return horovod.join(device)


# ---- for the other modules of this package


def prepare(
    tensor: NDArray, op: Any, average: Optional[bool], prescale_factor: float, postscale_factor: float
) -> Tuple[NDArray, Reduction]:
    """What is reduced, and how. Integers are multiplied by the first factor here, on each rank, in float64 and towards
    zero, as Horovod does."""
    reduction = resolve(op, average, prescale_factor, postscale_factor)
    if prescale_factor == 1.0 or tensor.dtype not in _INTEGERS:
        return tensor, reduction
    scaled = (tensor.astype("float64") * prescale_factor).astype(tensor.dtype)
    return scaled, resolve(op, average, 1.0, postscale_factor)


def _reduce(
    output: NDArray,
    input: Optional[NDArray],
    reduction: Reduction,
    what: str,
    name: Optional[str],
    priority: int,
    process_set: ProcessSet = global_process_set,
    compression: Any = Compression.none,
) -> NDArray:
    members = members_of(process_set)
    wire_name, once = named(name, what, members)
    check_element(compression, wire_name, output.dtype)
    exchange = Exchange(*reduction, members=members, priority=priority, once=once)
    engine.push(output, with_memory(exchange, wire_name, compression, engine.library), wire_name, input)
    return output


def _broadcast(
    output: NDArray,
    input: Optional[NDArray],
    root_rank: int,
    name: Optional[str],
    priority: int,
    process_set: ProcessSet,
) -> NDArray:
    members = members_of(process_set)
    root_rank = check_root(root_rank, members)
    wire_name, once = named(name, "broadcast", members)
    what = Exchange(abi.BROADCAST, root=root_rank, members=members, priority=priority, once=once)
    engine.push(output, what, wire_name, input)
    return output


def _reduce_group(
    outputs: Sequence[NDArray],
    inputs: Sequence[Tuple[Optional[NDArray], Reduction]],
    name: Optional[str],
    priority: int,
    process_set: ProcessSet,
) -> List[NDArray]:
    return [
        _reduce(
            output, input, reduction, "grouped_allreduce", name and f"{name}.{index}", priority, process_set
        )
        for index, (output, (input, reduction)) in enumerate(zip(outputs, inputs))
    ]
