"""push_pull within a function that XLA compiles (jit_compile=True): XLA has no kernel for the op, but takes a custom
call, written here as StableHLO text. Custom calls overlap as ops do. Shapes must be known when the function is traced.
"""

from __future__ import annotations

import functools

import tensorflow as tf

from byteps._core.errors import UnsupportedError
from byteps._core.exchange import Exchange
from byteps.tensorflow import native

_ELEMENT_TYPES = {
    tf.float32: "f32",
    tf.float64: "f64",
    tf.float16: "f16",
    tf.bfloat16: "bf16",
    tf.int8: "i8",
    tf.int16: "i16",
    tf.int32: "i32",
    tf.int64: "i64",
    tf.uint8: "ui8",
    tf.uint16: "ui16",
    tf.uint32: "ui32",
    tf.uint64: "ui64",
    tf.bool: "i1",
    tf.complex64: "complex<f32>",
    tf.complex128: "complex<f64>",
}
_VERSION = 9  # of XlaCallModule: StableHLO text and platforms


def is_compiling() -> bool:
    """Whether what is being traced will be compiled by XLA."""
    try:
        from tensorflow.python.ops import control_flow_util
    except ImportError:
        return False
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def push_pull(tensor: tf.Tensor, name: str, exchange: Exchange) -> tf.Tensor:
    """The exchange as a custom call. ValueError when the shape is not known, UnsupportedError when this TensorFlow's
    XLA takes no custom calls."""
    _require_support()
    if not tensor.shape.is_fully_defined():
        raise ValueError(
            f"{name}: the shape {tensor.shape} is not known when the function is traced, as jit_compile=True needs it; "
            "give the function an input_signature with all dimensions, or use jit_compile=False"
        )
    from tensorflow.compiler.tf2xla.python import xla

    module = _module_text(_type_text(tensor), name, exchange)
    results = xla.call_module(
        [tensor], version=_VERSION, module=module, Tout=[tensor.dtype], Sout=[tensor.shape], platforms=["CPU"]
    )
    return results[0]


@functools.cache
def _require_support() -> None:
    problem = native.register_xla()
    if problem:
        raise UnsupportedError(
            f"byteps cannot be used within jit_compile=True with TensorFlow {tf.__version__}: {problem}. Use "
            "jit_compile=False"
        )


def _type_text(tensor: tf.Tensor) -> str:
    element = _ELEMENT_TYPES.get(tensor.dtype)
    if element is None:
        raise ValueError(f"Tensor type {tensor.dtype.name} is not supported within jit_compile=True")
    return f"tensor<{''.join(f'{size}x' for size in tensor.shape)}{element}>"


def _module_text(type_text: str, name: str, exchange: Exchange) -> str:
    attributes = f"tensor_name = {_quoted('byteps.' + name)}, exchange = {_quoted(exchange.packed())}"
    return f"""module @byteps {{
  func.func public @main(%tensor: {type_text}) -> {type_text} {{
    %result = stablehlo.custom_call @byteps_push_pull(%tensor) {{
      api_version = 4 : i32, backend_config = {{{attributes}}}, has_side_effect = true
    }} : ({type_text}) -> {type_text}
    return %result : {type_text}
  }}
}}"""


def _quoted(text: str) -> str:
    """As a string of MLIR."""
    return '"' + "".join(chr(b) if 32 <= b < 127 and chr(b) not in '"\\' else f"\\{b:02X}" for b in text.encode()) + '"'
