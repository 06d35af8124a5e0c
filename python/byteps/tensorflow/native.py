"""libbyteps_tensorflow.so: the op BytepsPushPull, loaded into TensorFlow at the first use.

    push_pull(tensors, names, exchange) -> results

adds one op that exchanges a list of tensors. Which exchanges these are stands in its attributes (Exchange.packed()).
"""

from __future__ import annotations

import ctypes
import functools
import threading
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any, List, Optional, Sequence

import tensorflow as tf

from byteps._core import bridge, client, session
from byteps._core.exchange import Exchange

OP_NAME = "BytepsPushPull"


_lock = threading.Lock()
_module: Any = None
_shim: Optional[bridge.Bridge] = None


def push_pull(
    tensors: Sequence[tf.Tensor], names: Sequence[str], exchange: Exchange, priorities: Sequence[int] = ()
) -> List[tf.Tensor]:
    """One op that starts all exchanges at once and ends with the last one. Exchange.once: each run of the op has a
    number of its own after its names, and may have shapes of its own."""
    op = _loaded().byteps_push_pull
    exchanges = [_packed(exchange, priority) for priority in priorities or [0] * len(tensors)]
    # TensorFlow keeps what it has made of eager ops, and takes two for equal whose long strings (about 80 characters
    # and more) differ in the middle only. Numbers it compares as they are.
    key = hash((*names, *exchanges)) if tf.executing_eagerly() else 0
    with session.job().native_wait() if tf.executing_eagerly() else nullcontext():
        results = op(
            tensors=list(tensors),
            tensor_names=["byteps." + name for name in names],
            exchanges=exchanges,
            key=key,
        )
    return list(results)


@functools.lru_cache(maxsize=4096)
def _packed(exchange: Exchange, priority: int) -> str:
    return exchange._replace(priority=priority).packed()


def exchange_of(op: tf.Operation) -> Exchange:
    """What push_pull() was given when it made the op, but for what is one tensor's own."""
    return Exchange.unpacked(tf.compat.as_str(op.get_attr("exchanges")[0]))._replace(priority=0).without_memory()


def names_of(op: tf.Operation) -> List[str]:
    return [tf.compat.as_str(name)[len("byteps.") :] for name in op.get_attr("tensor_names")]


def register_xla() -> str:
    """Makes the custom call known to TensorFlow's XLA. "" or why there is none."""
    return str(library().byteps_tensorflow_register_xla().decode())


def library() -> Any:
    """The shim, for calls of its functions."""
    _loaded()
    assert _shim is not None
    return _shim.library


def _loaded() -> Any:
    global _module, _shim
    if _module is not None:
        return _module
    with _lock:
        if _module is None:
            # First by TensorFlow, which notes what ops a library brings when it is loaded for the first time.
            module = tf.load_op_library(str(Path(client.library().path).with_name("libbyteps_tensorflow.so")))
            _shim = bridge.load("tensorflow")
            for function in (_shim.library.byteps_tensorflow_problem, _shim.library.byteps_tensorflow_register_xla):
                function.restype, function.argtypes = ctypes.c_char_p, []
            problem = _shim.library.byteps_tensorflow_problem().decode()
            if problem:
                raise ImportError(f"byteps.tensorflow cannot be used with TensorFlow {tf.__version__}: {problem}")
            _let_ops_overlap()
            numbers = _Numbers(_shim)
            session.attach(numbers)
            session.on_new_inputs(numbers.restart)
            _module = module
    return _module


class _Numbers:
    """The numbers of Exchange.once begin at 0 with each job, and anew when all ranks have joined (join())."""

    def __init__(self, shim: bridge.Bridge) -> None:
        self.restart = shim.library.byteps_tensorflow_restart_numbers
        self.restart.restype, self.restart.argtypes = None, [ctypes.c_uint64]

    def attach(self, job: client.Job) -> None:
        del job
        self.restart(0)

    def detach(self) -> None:
        """Nothing to do."""

    def finish(self) -> None:
        """Nothing to do."""


def _let_ops_overlap() -> None:
    """In a tf.function, a stateful op waits for the one before, unless TensorFlow knows its kind as one whose order
    does not matter, and which must run all the same, used or not, because other ranks wait for it. The list is not
    public."""
    try:
        from tensorflow.python.framework import auto_control_deps as deps

        deps.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS = deps.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS | {OP_NAME}
    except (ImportError, AttributeError, TypeError) as error:
        warnings.warn(
            f"byteps: TensorFlow {tf.__version__} does not let operations of a tf.function overlap ({error}); results "
            "are right, but gradients travel one after another",
            stacklevel=2,
        )
