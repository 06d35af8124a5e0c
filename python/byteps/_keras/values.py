"""push_pull, allgather and broadcast of values: of metrics, of variables, of whatever numpy can make an array of.

They work on each backend of Keras alike, block until they are done, and are for use outside of compiled functions. A
value is its name, as everywhere in byteps; without a name, calls are numbered, and must be the same on all ranks.
"""

from __future__ import annotations

import hashlib
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from byteps._core import abi, collectives, errors, session
from byteps._core.reduction import Average, ReduceOp, resolve

_KINDS = {
    "float32": abi.FLOAT32,
    "float64": abi.FLOAT64,
    "float16": abi.FLOAT16,
    "uint8": abi.UINT8,
    "int32": abi.INT32,
    "int8": abi.INT8,
    "int64": abi.INT64,
    "bfloat16": abi.BFLOAT16,
    "int16": abi.INT16,
    "uint16": abi.UINT16,
    "uint32": abi.UINT32,
    "uint64": abi.UINT64,
    "bool": abi.BOOL,
}


def push_pull(value: Any, name: Optional[str] = None, op: ReduceOp = Average) -> np.ndarray:
    """The average (or sum, ...) of `value` over all workers: an array of its shape. Averages of integers are float64,
    so that the average of 1 and 2 is 1.5."""
    array = _array(value)
    operation = resolve(op).operation
    if operation == abi.AVERAGE and array.dtype.kind in "iub":
        array = array.astype(np.float64)
    result = np.empty(array.shape, array.dtype)
    wire_name, once = _name(name, "push_pull")
    _finish([_start(array, result, operation, wire_name, once)])
    return result


def allgather(value: Any, name: Optional[str] = None) -> np.ndarray:
    """The rows of all ranks, one after another; their numbers may differ. A number is a row."""
    array = np.atleast_1d(_array(value))
    kind, row_elements = _KINDS.get(array.dtype.name), int(np.prod(array.shape[1:], dtype=np.int64))
    if kind is None:
        kind, row_elements = abi.UINT8, row_elements * array.itemsize
    results: List[np.ndarray] = []

    def allocate(count: int) -> int:
        results.append(np.empty((count, *array.shape[1:]), array.dtype))
        return results[0].ctypes.data

    wire_name, once = _name(name, "allgather")
    rows = collectives.Rows(kind, array.ctypes.data, len(array), row_elements)
    job = session.job()
    collectives.run(job, collectives.allgather(job, "byteps." + wire_name, rows, allocate, once=once), array)
    return results[0]


def broadcast(value: Any, root_rank: int, name: Optional[str] = None) -> np.ndarray:
    """The root's `value`, on all ranks. Each rank gives a value of the same shape and dtype."""
    check_root(root_rank)
    array = np.array(_array(value))
    wire_name, once = _name(name, "broadcast")
    _finish([_start_broadcast(array, root_rank, wire_name, once)])
    return array


def broadcast_variables(variables: Sequence[Any], root_rank: int) -> None:
    """Every rank's variables get the root's values; all of them travel at once. ValueError on all ranks when they have
    other variables than the root."""
    check_root(root_rank)
    variables = list(variables)
    arrays = [np.array(_array(variable)) for variable in variables]
    require_agreement([f"{a.dtype}{list(a.shape)}" for a in arrays], root_rank, "the variables differ")
    call = session.current().unique_name("keras.broadcast")
    names = [f"{call}.{index}" for index in range(len(variables))]  # ranks may have other paths for what is the same
    _finish([_start_broadcast(array, root_rank, name, True) for array, name in zip(arrays, names)])
    if session.job().rank != root_rank:
        for variable, array in zip(variables, arrays):
            variable.assign(array)


def require_agreement(items: Sequence[str], root_rank: int, what: str) -> None:
    """ValueError on every rank unless all ranks give the same items in the same order. `what` begins the message."""
    current = session.current()
    digests = np.zeros(current.job.size, np.int64)
    digest = hashlib.sha256("\n".join(items).encode()).digest()
    digests[current.job.rank] = int.from_bytes(digest[:8], "little", signed=True)
    _finish([_start(digests, digests, abi.SUM, current.unique_name("keras.agreement"), True)])
    differing = [rank for rank, value in enumerate(digests) if value != digests[root_rank]]
    if differing:
        shown = "; ".join(items[:8]) + (f"; and {len(items) - 8} more" if len(items) > 8 else "")
        ranks = ", ".join(map(str, differing))
        raise ValueError(
            f"{what}: rank {ranks} disagrees with rank {root_rank}. Rank {current.job.rank} has {len(items)}: "
            f"{shown or 'none'}. Build the same model on all ranks before this call"
        )


def check_root(root_rank: Any) -> None:
    size = session.job().size
    if isinstance(root_rank, bool) or not isinstance(root_rank, (int, np.integer)) or not 0 <= root_rank < size:
        raise ValueError(f"root_rank is {root_rank!r}: it must be a rank, 0 to {size - 1}")


def _array(value: Any) -> np.ndarray:
    """The value as an array that is contiguous and keeps its shape. Of framework tensors and variables too."""
    to_numpy = getattr(value, "numpy", None)
    try:
        if callable(to_numpy):
            if getattr(value, "requires_grad", False):
                value = value.detach()
            array = np.asarray(value.numpy())
        else:
            array = np.asarray(value)
    except (NotImplementedError, AttributeError, TypeError) as error:
        raise ValueError(
            f"expected a value, got {type(value).__name__}, which has none yet: this function works outside of "
            "compiled functions; within them use byteps.tensorflow.push_pull or byteps.jax.push_pull"
        ) from error
    if array.dtype.kind in "OUS":
        raise ValueError(f"expected numbers, got {type(value).__name__} (dtype {array.dtype})")
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)



def _name(name: Optional[str], kind: str) -> Tuple[str, bool]:
    """The name on the wire, and whether it is used only once."""
    if name is not None:
        return f"keras.{kind}.{name}", False
    return session.current().unique_name(f"keras.{kind}.noname"), True


_Pending = Tuple[Any, int, np.ndarray, np.ndarray]
# What the core reads or writes, also after an exception from a signal handler (Ctrl-C) has ended our wait.
_kept: Dict[int, Any] = {}
session.on_leave(_kept.clear)


def _start(
    source: np.ndarray, result: np.ndarray, operation: int, name: str, once: bool, kind: Optional[int] = None
) -> _Pending:
    if kind is None:
        kind = _KINDS.get(source.dtype.name)
    if kind is None:
        raise ValueError(f"dtype {source.dtype} is not supported. These are: {', '.join(_KINDS)}")
    return _submit(source, result, operation, name, once, kind, source.shape, 0)


def _start_broadcast(array: np.ndarray, root_rank: int, name: str, once: bool) -> _Pending:
    """In place; dtypes that the core has no word for travel as bytes."""
    kind, shape = _KINDS.get(array.dtype.name), array.shape
    if kind is None:
        kind, shape = abi.UINT8, (*array.shape, array.itemsize)
    return _submit(array, array, abi.BROADCAST, name, once, kind, shape, int(root_rank))


def _submit(
    source: np.ndarray,
    result: np.ndarray,
    operation: int,
    name: str,
    once: bool,
    kind: int,
    shape: Tuple[int, ...],
    root: int,
) -> _Pending:
    job = session.job()
    count = int(np.prod(shape, dtype=np.int64))
    addresses = (source.ctypes.data, result.ctypes.data)
    _kept[id(result)] = (source, result)
    try:
        handle = job.push_pull("byteps." + name, kind, *addresses, count, operation, root, 0, once, shape)
    except errors.BytePSError:
        del _kept[id(result)]
        raise
    return job, handle, source, result


def _finish(pending: List[_Pending]) -> None:
    """Waits for all, also when one has failed; then raises the first failure."""
    failure: Optional[errors.BytePSError] = None
    for job, handle, _, result in pending:
        try:
            job.wait(handle)
        except errors.BytePSError as error:
            failure = failure or error
        _kept.pop(id(result), None)
    if failure is not None:
        raise failure


def as_given(value: Any, result: np.ndarray, convert: Callable[[np.ndarray], Any]) -> Any:
    """`result` as the caller would expect it: a number for a number, an array for an array or a list, a tensor
    (`convert`) for a tensor or a variable."""
    if isinstance(value, (bool, int, float, np.generic)):
        return result[()]
    if isinstance(value, (np.ndarray, list, tuple)):
        return result
    return convert(result)
