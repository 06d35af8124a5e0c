"""Exchanges as operations of MXNet's dependency engine, through libbyteps_mxnet.so.

push() returns at once. The engine starts the exchange when all that was to write to the array before is done, and lets
what comes later wait for it: `push(gradient)` followed by an update of the weight with it needs no synchronization. An
exchange that fails raises MXNetError, with our message, where somebody next waits for the array.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from ctypes import POINTER, Structure, byref, c_int, c_int64, c_void_p, cast
from typing import List, Optional, Sequence

from mxnet.base import _LIB, MXNetError, NDArrayHandle, check_call
from mxnet.context import Context
from mxnet.ndarray import NDArray

from byteps._core import abi, bridge, elements, session
from byteps._core.client import SLICE_NS, Job
from byteps._core.exchange import PREFIX, Exchange

__all__ = ["address", "check_context", "drain", "element_kind", "empty", "push", "wait"]

# By MXNet's numbers of dtypes (mshadow's TypeFlag).
_ELEMENT_KINDS = {
    0: abi.FLOAT32,
    1: abi.FLOAT64,
    2: abi.FLOAT16,
    3: abi.UINT8,
    4: abi.INT32,
    5: abi.INT8,
    6: abi.INT64,
    7: abi.BOOL,
    12: abi.BFLOAT16,
}
_SUPPORTED = "float32, float64, float16, bfloat16, uint8, int8, int32, int64, bool"


class _Functions(Structure):
    """byteps_mxnet_functions of src/bridge/mxnet.cc: addresses out of libmxnet.so."""

    _fields_ = [
        (name, c_void_p) for name in ("push_async", "copy_handle", "free_handle", "to_dlpack", "last_error", "reorder")
    ]


def _functions() -> _Functions:
    names = ["MXEnginePushAsyncND", "MXShallowCopyNDArray", "MXNDArrayFree", "MXNDArrayToDLPack", "MXGetLastError"]
    missing = [name for name in names if not hasattr(_LIB, name)]
    if missing:
        raise ImportError(f"this MXNet has no {', '.join(missing)}: byteps.mxnet needs MXNet 1.9")
    names.append("_ZNK5mxnet7NDArray20Reorder2DefaultAsyncEv")  # only where MXNet was built with oneDNN
    return _Functions(*(cast(getattr(_LIB, name), c_void_p) if hasattr(_LIB, name) else None for name in names))


_shim: Optional[ctypes.CDLL] = None  # loaded at the first use
_owner = 0  # the process that loaded it


class _LetFinish:
    """Before the job is left, what is on its way may arrive: other ranks may need it, also when this one ends without
    having looked at the result."""

    def attach(self, job: Job) -> None:
        pass

    def detach(self) -> None:
        if getattr(sys, "last_value", None) is not None:
            return  # an exception ends the process: others would wait with it
        try:
            drain()
        except KeyboardInterrupt:
            pass  # leave at once

    def finish(self) -> None:
        pass


def library() -> ctypes.CDLL:
    """The shim, for calls of its functions."""
    return _loaded()


def _loaded() -> ctypes.CDLL:
    global _shim, _owner
    if _shim is None:
        session.attach(_LetFinish())  # before the bridge, so that it is detached first
        shim = bridge.load("mxnet").library
        shim.byteps_mxnet_use.argtypes = [POINTER(_Functions)]
        shim.byteps_mxnet_use.restype = None
        shim.byteps_mxnet_push_pull.argtypes = [c_void_p, c_void_p, POINTER(abi.Tensor)]
        shim.byteps_mxnet_drain.argtypes = [c_int64]
        shim.byteps_mxnet_use(byref(_functions()))
        _shim, _owner = shim, os.getpid()
    return _shim


def push(output: NDArray, what: Exchange, name: str, input: Optional[NDArray] = None) -> None:
    """Pushes the exchange `byteps.<name>` onto the engine: from `input`, or `output` itself when None, into `output`,
    which have the same shape and dtype. Returns at once. What has a larger priority goes first in the engine, too.
    ValueError: an array that cannot travel."""
    job = session.job()
    if not job.is_live:  # in a forked child the native part must not be entered
        job.call_with_pointer(lambda _: None)
    kind = element_kind(output)
    elements.check_operation(kind, what.operation, "array")
    tensor = what.tensor(name, kind, output.shape, prefix=PREFIX)
    check_call(_loaded().byteps_mxnet_push_pull(input.handle if input is not None else None, output.handle, tensor))


def wait(arrays: Sequence[NDArray]) -> None:
    """Returns when all operations on `arrays` are done, whatever else is under way. Raises the first MXNetError, when
    all are done. Ctrl-C works meanwhile: another thread is in MXNet's own wait, which knows no signals."""
    failures: List[MXNetError] = []

    def wait_for_each() -> None:
        for array in arrays:
            try:
                array.wait_to_read()
            except MXNetError as error:
                failures.append(error)

    waiting = threading.Thread(target=wait_for_each, name="byteps wait", daemon=True)
    waiting.start()

    def is_over(timeout_s: float = 0.0) -> bool:
        waiting.join(timeout_s)
        return not waiting.is_alive()

    session.job().wait_elsewhere(is_over, is_over)
    if failures:
        raise failures[0]


def drain() -> None:
    """Returns when no exchange of this process is under way any more, well or not."""
    while _shim is not None and _owner == os.getpid() and _shim.byteps_mxnet_drain(SLICE_NS) == abi.AGAIN:
        pass  # Python runs its signal handlers here


def empty(shape: Sequence[int], like: NDArray) -> NDArray:
    """A new array of the dtype of `like`, also bfloat16, which mx.nd.empty() cannot make; its memory is made when it is
    first written to."""
    element_kind(like)
    handle = NDArrayHandle()
    dimensions = (c_int64 * len(shape))(*shape)
    cpu, first, delayed = 1, 0, 1
    check_call(_LIB.MXNDArrayCreateEx64(dimensions, len(shape), cpu, first, delayed, _dtype(like), byref(handle)))
    return type(like)(handle)


def address(array: NDArray) -> int:
    """Where its elements are, when all that was to write to it is done. Valid while the array lives and MXNet does not
    compute with it. Blocks."""
    pointer = c_void_p()
    array.wait_to_read()
    check_call(_LIB.MXNDArrayGetData(array.handle, byref(pointer)))
    return pointer.value or 0


def element_kind(array: NDArray) -> int:
    """The core's number of the array's dtype. ValueError: what cannot travel, and what to do instead."""
    if not isinstance(array, NDArray):
        raise ValueError(f"expected an mxnet NDArray, got {type(array).__name__}")
    if array.stype != "default":
        raise ValueError(f"the array is sparse ({array.stype}): use array.tostype('default') first")
    check_context(array.context)
    kind = _ELEMENT_KINDS.get(_dtype(array))
    if kind is None:
        raise ValueError(f"arrays of dtype {array.dtype} are not supported. These are: {_SUPPORTED}")
    return kind


def check_context(context: Context, subject: str = "the array") -> None:
    """ValueError, which begins with `subject`: arrays there are not in the CPU's memory."""
    if context.device_type not in ("cpu", "cpu_pinned", "cpu_shared"):
        raise ValueError(
            f"{subject} is on device '{context}', but in this version exchanges of MXNet are made from the CPU's "
            "memory: use array.as_in_context(mx.cpu()), and ctx=mx.cpu() for parameters"
        )


def _dtype(array: NDArray) -> int:
    """MXNet's number of it."""
    number = c_int()
    check_call(_LIB.MXNDArrayGetDType(array.handle, byref(number)))
    return number.value
