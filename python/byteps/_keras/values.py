"""push_pull, allgather and broadcast of values: of metrics, of variables, of whatever numpy can make an array of.

They work on each backend of Keras alike, block until they are done, and are for use outside of compiled functions. A
value is its name, as everywhere in byteps; without a name, calls are numbered, and must be the same on all ranks.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from byteps._core import abi, collectives, elements, errors, objects, session
from byteps._core.agreement import require_agreement
from byteps._core.compression import Coded, NoneCompressor, checked_stateless, coded, is_coded
from byteps._core.exchange import PREFIX, Exchange
from byteps._core.process_sets import ProcessSet, check_root, members_of
from byteps._core.reduction import Average, ReduceOp, op_of, resolve


def push_pull(
    value: Any,
    name: Optional[str] = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: Any = NoneCompressor,
) -> np.ndarray:
    """The average (or sum, ...) of `value` over all workers, multiplied by both factors: an array of its shape.
    Averages of integers are float64, so that the average of 1 and 2 is 1.5. compression: what travels."""
    meaning = resolve(op, None, prescale_factor, postscale_factor)
    array = _reducible(value, meaning.operation)
    dtype = array.dtype
    checked_stateless(compression)
    if not is_coded(compression, meaning.operation, array.size if dtype == np.float32 else 0):
        array = array.astype(_wire_dtype(dtype, compression), copy=False)
    result = np.empty(array.shape, array.dtype)
    wire_name, once = _name(name, "push_pull")
    what = coded(Exchange(*meaning, once=once), compression)
    _finish([_start(array, result, what, wire_name)])
    return result.astype(dtype, copy=False)


def allreduce(
    value: Any,
    name: Optional[str],
    average: Optional[bool],
    prescale_factor: float,
    postscale_factor: float,
    op: Optional[ReduceOp],
    compression: Any,
) -> np.ndarray:
    """push_pull() with Horovod's arguments."""
    if op is None:
        op = op_of(average)
    elif average is not None:
        raise ValueError("op and average were both given: average is the older name of op, give op alone")
    return push_pull(value, name, op, prescale_factor, postscale_factor, compression)


def allgather(value: Any, name: Optional[str] = None) -> np.ndarray:
    """The rows of all ranks, one after another; their numbers may differ. A number is a row."""
    array = np.atleast_1d(_array(value))
    results: List[np.ndarray] = []

    def allocate(count: int) -> int:
        results.append(np.empty((count, *array.shape[1:]), array.dtype))
        return results[0].ctypes.data

    wire_name, once = _name(name, "allgather")
    rows = _rows(array, abi.BROADCAST)
    job = session.job()
    collectives.run(job, collectives.allgather(job, "byteps." + wire_name, rows, allocate, once=once), array)
    return results[0]


def reducescatter(value: Any, name: Optional[str] = None, op: ReduceOp = Average) -> np.ndarray:
    """push_pull(), of whose rows each rank gets its share: as even as can be, the first ranks one more."""
    meaning = resolve(op)
    array = np.atleast_1d(_reducible(value, meaning.operation))
    job = session.job()
    result = np.empty((collectives.scattered_counts(len(array), job.size)[job.rank], *array.shape[1:]), array.dtype)
    wire_name, once = _name(name, "reducescatter")
    rows, what = _rows(array, meaning.operation), Exchange(*meaning, once=once)
    plan = collectives.reducescatter(job, "byteps." + wire_name, rows, result.ctypes.data, what)
    collectives.run(job, plan, array, result)
    return result


def broadcast_object(
    obj: Any, root_rank: int = 0, name: Optional[str] = None, process_set: Optional[ProcessSet] = None
) -> Any:
    """The root's object on all ranks (on the root `obj` itself), pickled. The others' `obj` does not matter."""
    members = members_of(process_set)
    return objects.broadcast_object(obj, check_root(root_rank, members), name, members)


def allgather_object(obj: Any, name: Optional[str] = None, process_set: Optional[ProcessSet] = None) -> List[Any]:
    """The objects of all ranks, in the order of ranks, pickled."""
    return objects.allgather_object(obj, name, members_of(process_set))


def broadcast(value: Any, root_rank: int, name: Optional[str] = None) -> np.ndarray:
    """The root's `value`, on all ranks. Each rank gives a value of the same shape and dtype."""
    root_rank = check_root(root_rank)
    array = np.array(_array(value))
    wire_name, once = _name(name, "broadcast")
    _finish([_start(array, array, Exchange(abi.BROADCAST, root=root_rank, once=once), wire_name)])
    return array


def broadcast_variables(variables: Sequence[Any], root_rank: int) -> None:
    """Every rank's variables get the root's values; all of them travel at once. ValueError on all ranks when they have
    other variables than the root."""
    root_rank = check_root(root_rank)
    variables = list(variables)
    arrays = [np.array(_array(variable)) for variable in variables]
    specs = [f"{array.dtype}{list(array.shape)}" for array in arrays]
    remedy = "Build the same model on all ranks before this call"
    require_agreement(specs, root_rank, "broadcast_variables: variables differ", remedy=remedy)
    call = session.current().unique_name("keras.broadcast")
    names = [f"{call}.{index}" for index in range(len(variables))]  # ranks may have other paths for what is the same
    what = Exchange(abi.BROADCAST, root=root_rank, once=True)
    _finish([_start(array, array, what, name) for array, name in zip(arrays, names)])
    if session.job().rank != root_rank:
        for variable, array in zip(variables, arrays):
            variable.assign(array)


def _wire_dtype(dtype: np.dtype, compression: Any) -> Any:
    """In which an array of this dtype travels. The compressors are those of the frameworks, and values are numpy's."""
    if compression is NoneCompressor or isinstance(compression, Coded):
        return dtype
    wanted = str(getattr(compression, "wire_dtype", ""))
    if "float16" not in wanted:
        raise ValueError(f"compression is {compression!r}: use Compression.none, .fp16 or .bf16")
    wire = "bfloat16" if "bfloat16" in wanted else "float16"
    return wire if dtype in (np.dtype(np.float32), np.dtype(np.float64)) else dtype


def _reducible(value: Any, operation: int) -> np.ndarray:
    array = _array(value)
    return array.astype(np.float64) if operation == abi.AVERAGE and array.dtype.kind in "iub" else array


def _rows(array: np.ndarray, operation: int) -> collectives.Rows:
    kind, width = elements.kind(array.dtype, operation)
    return collectives.Rows(kind, array.ctypes.data, len(array), elements.row_shape(array.shape, width))


def _array(value: Any) -> np.ndarray:
    """The value as an array that is contiguous and keeps its shape. Of framework tensors and variables too."""
    to_numpy = getattr(value, "numpy", None)
    try:
        if callable(to_numpy):
            if getattr(value, "requires_grad", False):
                value = value.detach()
            if getattr(getattr(value, "device", None), "type", "cpu") not in ("cpu", "meta"):  # of torch, on a GPU
                value = value.cpu()
            if str(getattr(value, "dtype", "")) == "torch.bfloat16":  # for which torch knows no dtype of numpy
                array = np.asarray(value.float().numpy()).astype("bfloat16")
            else:
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


def _start(source: np.ndarray, result: np.ndarray, what: Exchange, name: str) -> _Pending:
    kind, width = elements.kind(source.dtype, what.operation)
    shape = source.shape if width == 1 else (*source.shape, width)
    job = session.job()
    tensor = what.tensor(name, kind, shape, source.ctypes.data, result.ctypes.data, PREFIX)
    _kept[id(result)] = (source, result)
    try:
        handle = job.submit(tensor)
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
