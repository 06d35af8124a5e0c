"""Exchanges with the servers, as a primitive of JAX.

On concrete arrays they run at once (direct.py). In jit they become one custom call, whose handler (src/bridge/jax.cc)
submits the tensor and gives XLA a future: everything that does not need the result, or its memory, goes on. XLA
gives the input's and the output's own memory, so nothing is copied here.

Invariants
 1. An exchange is never dropped, also when nobody uses its result: a rank that dropped it would leave the others
    waiting. To JAX and to XLA it has a side effect.
 2. Two uses of a name in one compiled program would be started in an order of XLA's choice, another one on each rank.
    So each use but the first gets a name of its own: "name#2", "name#3", in the order of the program, which is the same
    on all ranks.
 3. Sum, average and broadcast are linear: the derivative of each is an exchange of the same kind, and its
    transpose too. Their names are made from the exchange's own.
 4. All operations are by element, so a batch (vmap) is exchanged as one larger tensor.
 5. A sum is in place: had its result memory of its own, XLA would give that of the operand, which is still travelling,
    to a later gradient, and that would wait. Gathers and what has a root are not in place: the copies that XLA adds
    for it are not the same on all ranks, and could let ranks wait for each other.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Dict, List, Optional, Sequence, Tuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from byteps._core import abi, bridge, elements, session
from byteps._core.client import Job
from byteps._core.exchange import Exchange, encoded_name
from byteps.jax import direct
from byteps.jax.direct import Named, result_shape

TARGET = "byteps_exchange"

_LINEAR = (abi.SUM, abi.AVERAGE, abi.BROADCAST)
_OPERATIONS = {abi.MIN: "Min", abi.MAX: "Max", abi.PRODUCT: "Product"}


def exchange(x: jax.Array, name: str, what: Exchange) -> jax.Array:
    """The result, of x's shape and dtype. In jit a tracer, else concrete. ValueError: the dtype, the name."""
    return exchange_together([x], [(name, what)])[0]


def exchange_together(arrays: Sequence[jax.Array], exchanges: Sequence[Named]) -> List[jax.Array]:
    """Several that are started at the same time, in jit too, and whose results come together: for those of one
    collective, which other ranks may have in another order."""
    session.current()
    load()
    for x, (name, what) in zip(arrays, exchanges):
        encoded_name(name)
        elements.kind(np.dtype(x.dtype), what.operation)
    return _exchange_p.bind(*arrays, exchanges=tuple(exchanges)) if arrays else []


_loaded: List[object] = []  # the shim, for the life of the process


def load(one_at_a_time: bool = False) -> None:
    """Makes the custom call known to XLA, once. one_at_a_time: compiled functions do not overlap in this process, so it
    is an error when two exchanges of one name do. ImportError: libbyteps_jax.so is missing or cannot be loaded."""
    if not _loaded:
        shim = bridge.load("jax")
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(shim.library.byteps_exchange), platform="cpu")
        session.attach(_Programs())
        _loaded.append(shim)
        shim.library.byteps_one_at_a_time(int(one_at_a_time))


class _Programs:
    """Compiled functions know the rank, the size and the numbers of unnamed exchanges of the job that they were made
    in. In the next job, whoever joins it, they are compiled again."""

    def __init__(self) -> None:
        self._has_served = False

    def attach(self, job: Job) -> None:
        del job
        if self._has_served:
            jax.clear_caches()
        self._has_served = True

    def detach(self) -> None:
        """Nothing to do."""

    def finish(self) -> None:
        """Nothing to do."""


def is_staged(x: Any) -> bool:
    """True while jit (or scan, ...) traces a program, also for an x that is a constant of it."""
    return isinstance(x, jax.core.Tracer) or isinstance(jnp.zeros(()), jax.core.Tracer)


# ---- the primitive

_exchange_p = Primitive("byteps_exchange")
_exchange_p.multiple_results = True


def _run(*arrays: jax.Array, exchanges: Tuple[Named, ...]) -> List[jax.Array]:
    return [jnp.asarray(result) for result in direct.run_all(zip(arrays, exchanges))]


def _abstract(*arrays: Any, exchanges: Tuple[Named, ...]) -> Tuple[List[Any], Any]:
    results = [
        x.update(shape=result_shape(x.shape, what), weak_type=False) for x, (_, what) in zip(arrays, exchanges)
    ]
    return results, _side_effect()


@functools.cache
def _side_effect() -> Any:
    """The effect of a custom call with a side effect. JAX has no public name for it."""
    call = jax.ffi.ffi_call(TARGET, jax.ShapeDtypeStruct((), np.float32), has_side_effect=True)
    return jax.make_jaxpr(call)(np.float32(0)).effects


_call = jax.ffi.ffi_lowering(TARGET, has_side_effect=True)
_call_in_place = jax.ffi.ffi_lowering(TARGET, has_side_effect=True, operand_output_aliases={0: 0})


def _is_in_place(exchanges: Sequence[Named]) -> bool:
    """Invariant 5."""
    (_, what), *others = exchanges
    return not others and what.operation in (abi.SUM, abi.AVERAGE) and not what.root_only


def _lower(context: Any, *arrays: Any, exchanges: Tuple[Named, ...]) -> Any:
    session.job().has_native_work = True  # programs run behind the caller's back
    kinds = [elements.kind(aval.dtype, what.operation) for aval, (_, what) in zip(context.avals_in, exchanges)]
    # A program may run again, so it uses no name only once.
    packed = [what._replace(once=False).packed(kind) for (kind, _), (_, what) in zip(kinds, exchanges)]
    call = _call_in_place if _is_in_place(exchanges) else _call
    return call(
        context,
        *arrays,
        names="\0".join("byteps." + _name_in_program(context.module_context, name) for name, _ in exchanges),
        widths=np.array([width for _, width in kinds], np.int64),
        exchanges=" ".join(packed),
    )


def _refuse(context: Any, *_: Any, exchanges: Tuple[Named, ...]) -> Any:
    """When a program is compiled, so before it has started anything for which other ranks would wait."""
    subject = f"the program that exchanges '{exchanges[0][0]}'"
    raise ValueError(direct.NOT_ON_CPU.format(subject=subject, device=", ".join(context.module_context.platforms)))


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


def _derivative(primals: Sequence[Any], tangents: Sequence[Any], *, exchanges: Tuple[Named, ...]) -> Tuple[Any, Any]:
    results = _exchange_p.bind(*primals, exchanges=exchanges)
    live = [index for index, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]
    derivatives = [
        ad.Zero(tangent.aval.update(shape=result.shape)) if isinstance(tangent, ad.Zero) else None
        for tangent, result in zip(tangents, results)
    ]
    for name, what in (exchanges[index] for index in live):
        if what.operation not in _LINEAR or what.root_only:
            raise NotImplementedError(
                f"'{name}' with op={_OPERATIONS.get(what.operation, 'Sum')} has no gradient; push_pull with "
                "op=Sum and op=Average has, or use jax.lax.stop_gradient on its input"
            )
    if live:
        renamed = tuple((name + _TANGENT, what.without_memory()) for name, what in (exchanges[i] for i in live))
        for index, value in zip(live, _exchange_p.bind(*(tangents[index] for index in live), exchanges=renamed)):
            derivatives[index] = value
    return results, derivatives


_TANGENT, _GRADIENT = ".tangent", ".gradient"


def _transpose(cotangents: Sequence[Any], *inputs: Any, exchanges: Tuple[Named, ...]) -> List[Any]:
    results = [ad.Zero(x.aval) for x in inputs]
    live = [index for index, cotangent in enumerate(cotangents) if not isinstance(cotangent, ad.Zero)]
    if not live:
        return results
    backs = tuple(_backwards(*exchanges[index]) for index in live)
    back = _exchange_p.bind(*(cotangents[index] for index in live), exchanges=backs)
    for index, value in zip(live, back):
        (_, what), aval = exchanges[index], inputs[index].aval
        is_elsewhere = what.operation == abi.BROADCAST and session.job().rank != what.root
        results[index] = jnp.zeros(aval.shape, aval.dtype) if is_elsewhere else value
    return results


def _backwards(name: str, what: Exchange) -> Named:
    """The way of the cotangents: those of a broadcast all go to its root."""
    back = (name[: -len(_TANGENT)] if name.endswith(_TANGENT) else name) + _GRADIENT
    what = what.without_memory()
    return back, what._replace(operation=abi.SUM, root_only=True) if what.operation == abi.BROADCAST else what


def _batch(arrays: Sequence[Any], dimensions: Sequence[Any], *, exchanges: Tuple[Named, ...]) -> Tuple[Any, Any]:
    """The batch goes last: the first dimension may shrink."""
    is_mapped = [dimension is not None for dimension in dimensions]
    moved = [
        jnp.moveaxis(x, dimension, -1) if mapped else x for x, dimension, mapped in zip(arrays, dimensions, is_mapped)
    ]
    results = _exchange_p.bind(*moved, exchanges=exchanges)
    return results, [x.ndim - 1 if mapped else None for x, mapped in zip(moved, is_mapped)]


_exchange_p.def_impl(_run)
_exchange_p.def_effectful_abstract_eval(_abstract)
# Newer versions of JAX would lower equal uses in one program only once, and call that twice (invariant 2).
_newer = {"cacheable": False} if "cacheable" in inspect.signature(mlir.register_lowering).parameters else {}
mlir.register_lowering(_exchange_p, _lower, platform="cpu", **_newer)
mlir.register_lowering(_exchange_p, _refuse, **_newer)  # all others
ad.primitive_jvps[_exchange_p] = _derivative
ad.primitive_transposes[_exchange_p] = _transpose
batching.primitive_batchers[_exchange_p] = _batch
