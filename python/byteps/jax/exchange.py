"""One exchange with the servers, as a primitive of JAX.

On concrete arrays it runs at once (direct.py). In jit it becomes one custom call, whose handler (src/bridge/jax.cc)
submits the tensor and gives XLA a future: everything that does not need the result goes on, and any number are under
way. XLA gives the input's and the output's own memory, so nothing is copied.

Invariants
 1. An exchange is never dropped, also when nobody uses its result: a rank that dropped it would leave the others
    waiting. To JAX and to XLA it has a side effect.
 2. Two uses of a name in one compiled program would be started in an order of XLA's choice, another one on each rank.
    So each use but the first gets a name of its own: "name#2", "name#3", in the order of the program, which is the same
    on all ranks.
 3. Sum, average and broadcast are linear: the derivative of each is an exchange of the same kind, and its
    transpose too. Their names are made from the exchange's own.
 4. All operations are by element, so a batch (vmap) is exchanged as one larger tensor.
"""

from __future__ import annotations

import inspect
from typing import Any, Dict, List, Optional, Tuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from byteps._core import abi, bridge, session
from byteps._core.client import encoded_name
from byteps.jax import direct, elements
from byteps.jax.direct import Exchange, result_shape

TARGET = "byteps_exchange"

_LINEAR = (abi.SUM, abi.AVERAGE, abi.BROADCAST)
_OPERATIONS = {abi.MIN: "Min", abi.MAX: "Max", abi.PRODUCT: "Product"}


def exchange(x: jax.Array, what: Exchange) -> jax.Array:
    """The result, of x's shape and dtype. In jit a tracer, else concrete. ValueError: the dtype, the name."""
    encoded_name(what.name)
    session.current()
    load()
    elements.kind(x.dtype, what.operation)
    return _exchange_p.bind(x, what=what)


_loaded: List[object] = []  # the shim, for the life of the process


def load(one_at_a_time: bool = False) -> None:
    """Makes the custom call known to XLA, once. one_at_a_time: compiled functions do not overlap in this process, so it
    is an error when two exchanges of one name do. ImportError: libbyteps_jax.so is missing or cannot be loaded."""
    if not _loaded:
        shim = bridge.load("jax")
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(shim.library.byteps_exchange), platform="cpu")
        _loaded.append(shim)
        shim.library.byteps_one_at_a_time(int(one_at_a_time))


def is_staged(x: Any) -> bool:
    """True while jit (or scan, ...) traces a program, also for an x that is a constant of it."""
    return isinstance(x, jax.core.Tracer) or isinstance(jnp.zeros(()), jax.core.Tracer)


# ---- the primitive

_exchange_p = Primitive("byteps_exchange")


def _run(x: jax.Array, *, what: Exchange) -> jax.Array:
    return jnp.asarray(direct.start(x, what).wait())


def _abstract(x: Any, *, what: Exchange) -> Tuple[Any, Any]:
    return x.update(shape=result_shape(x.shape, what), weak_type=False), _side_effect()


def _side_effect(made: Dict[str, Any] = {}) -> Any:  # noqa: B006: made once
    """The effect of a custom call with a side effect. JAX has no public name for it."""
    if not made:
        call = jax.ffi.ffi_call(TARGET, jax.ShapeDtypeStruct((), np.float32), has_side_effect=True)
        made["effects"] = jax.make_jaxpr(call)(np.float32(0)).effects
    return made["effects"]


_call = jax.ffi.ffi_lowering(TARGET, has_side_effect=True)


def _lower(context: Any, x: Any, *, what: Exchange) -> Any:
    kind, width = elements.kind(context.avals_in[0].dtype, what.operation)
    return _call(
        context,
        x,
        name="byteps." + _name_in_program(context.module_context, what.name),
        kind=np.int64(kind),
        width=np.int64(width),
        operation=np.int64(what.operation),
        root=np.int64(what.root),
        priority=np.int64(what.priority),
        root_only=np.int64(what.root_only),
        scale=np.float64(what.scale),
        members=np.array(what.members, np.int64),
    )


class _Uses:
    """How often each name was used in one program (invariant 2)."""

    def __init__(self) -> None:
        self.counts: Dict[str, int] = {}


def _name_in_program(module: Any, name: str) -> str:
    uses: Optional[_Uses] = next((kept for kept in module.keepalives if isinstance(kept, _Uses)), None)
    if uses is None:
        uses = _Uses()
        module.add_keepalive(uses)
    count = uses.counts[name] = uses.counts.get(name, 0) + 1
    return name if count == 1 else f"{name}#{count}"


def _derivative(primals: Tuple[Any], tangents: Tuple[Any], *, what: Exchange) -> Tuple[Any, Any]:
    (x,), (tangent,) = primals, tangents
    out = _exchange_p.bind(x, what=what)
    if isinstance(tangent, ad.Zero):
        return out, ad.Zero.from_primal_value(out)
    if what.operation not in _LINEAR or what.root_only:
        raise NotImplementedError(
            f"'{what.name}' with op={_OPERATIONS.get(what.operation, 'Sum')} has no gradient; push_pull with op=Sum "
            "and op=Average has, or use jax.lax.stop_gradient on its input"
        )
    return out, _exchange_p.bind(tangent, what=what._replace(name=what.name + _TANGENT))


_TANGENT, _GRADIENT = ".tangent", ".gradient"


def _transpose(cotangent: Any, x: Any, *, what: Exchange) -> Tuple[Any]:
    if isinstance(cotangent, ad.Zero):
        return (ad.Zero(x.aval),)
    name = what.name[: -len(_TANGENT)] if what.name.endswith(_TANGENT) else what.name
    back = what._replace(name=name + _GRADIENT)
    if what.operation != abi.BROADCAST:
        return (_exchange_p.bind(cotangent, what=back),)
    # All ranks' cotangents go to the root.
    total = _exchange_p.bind(cotangent, what=back._replace(operation=abi.SUM, root_only=True))
    return (total if session.job().rank == what.root else jnp.zeros(x.aval.shape, x.aval.dtype),)


def _batch(arguments: Tuple[Any], dimensions: Tuple[int], *, what: Exchange) -> Tuple[Any, int]:
    """The batch goes last: the first dimension may shrink."""
    x = jnp.moveaxis(arguments[0], dimensions[0], -1)
    return _exchange_p.bind(x, what=what), x.ndim - 1


_exchange_p.def_impl(_run)
_exchange_p.def_effectful_abstract_eval(_abstract)
# Newer versions of JAX would lower equal uses in one program only once, and call that twice (invariant 2).
_newer = {"cacheable": False} if "cacheable" in inspect.signature(mlir.register_lowering).parameters else {}
mlir.register_lowering(_exchange_p, _lower, platform="cpu", **_newer)
ad.primitive_jvps[_exchange_p] = _derivative
ad.primitive_transposes[_exchange_p] = _transpose
batching.primitive_batchers[_exchange_p] = _batch
