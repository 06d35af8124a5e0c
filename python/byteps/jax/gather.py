"""broadcast, allgather, reducescatter and alltoall, inside and outside of jit.

Names as for push_pull (ops.py). Inside jit shapes are static, so there the ranks' arrays must have equal shapes;
outside, first dimensions may differ, and are told to all first. All ranks use the same of the two ways.

Bytes: nobody pushes or pulls more than the result needs. All are differentiable.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, List, Optional, Sequence, Tuple, Union

import jax
import jax.numpy as jnp
import numpy as np

from byteps._core import abi, collectives, elements, session
from byteps._core.exchange import Exchange
from byteps._core.process_sets import ProcessSet, check_root, members_of, named
from byteps._core.reduction import resolve
from byteps.jax import direct
from byteps.jax.direct import Named
from byteps.jax.exchange import exchange, exchange_together, is_staged
from byteps.jax.ops import Op

__all__ = ["allgather", "alltoall", "broadcast", "reducescatter"]


def broadcast(
    array: Any,
    root_rank: int = 0,
    name: Optional[str] = None,
    priority: int = 0,
    process_set: Optional[ProcessSet] = None,
) -> jax.Array:
    """The root's array, on all ranks. Any dtype; of the others' arrays only shape and dtype matter."""
    array = jnp.asarray(array)
    members = members_of(process_set)
    root_rank = check_root(root_rank, members)
    name, once = named(name, "broadcast", members)
    what = Exchange(abi.BROADCAST, root=root_rank, members=members, priority=priority, once=once)
    return exchange(array, name, what)


def allgather(
    array: Any, name: Optional[str] = None, priority: int = 0, process_set: Optional[ProcessSet] = None
) -> jax.Array:
    """The arrays of all ranks, joined along the first dimension in the order of ranks; a scalar counts as one row."""
    array = _with_rows(array)
    members = members_of(process_set)
    name, once = named(name, "allgather", members)
    if _is_traced(array):
        return _traced_allgather(array, name, members, priority)
    memory = _Memory(array)
    plan = collectives.allgather(
        session.job(), "byteps." + name, memory.rows, memory.allocate, members, priority=priority, once=once
    )
    collectives.run(session.job(), plan, memory)
    return memory.result()


def reducescatter(
    array: Any,
    name: Optional[str] = None,
    op: Op = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Optional[ProcessSet] = None,
) -> jax.Array:
    """The average (or what op says) over all ranks, of which each rank gets its rows: the first dimension is divided
    as evenly as can be, the first ranks get one more."""
    array = _with_rows(array)
    members = members_of(process_set)
    meaning = resolve(op, None, prescale_factor, postscale_factor)
    name, once = named(name, "reducescatter", members)
    what = Exchange(*meaning, root_only=True, members=members, priority=priority, once=once)
    if _is_traced(array):
        return _traced_reducescatter(array, name, what)
    memory = _Memory(array, what.operation)
    mine = collectives.scattered_counts(array.shape[0], len(_ranks(members)))[_ranks(members).index(session.rank())]
    plan = collectives.reducescatter(session.job(), "byteps." + name, memory.rows, memory.allocate(mine), what)
    collectives.run(session.job(), plan, memory)
    return memory.result()


def alltoall(
    array: Any,
    splits: Optional[Sequence[int]] = None,
    name: Optional[str] = None,
    priority: int = 0,
    process_set: Optional[ProcessSet] = None,
) -> Union[jax.Array, Tuple[jax.Array, jax.Array]]:
    """Sends splits[i] rows to rank i, in their order, and returns what the ranks have sent here, in the order of ranks.
    Without splits every rank gets equally many. With splits, which are for outside of jit, returns (rows, how many
    came from each rank)."""
    array = _with_rows(array)
    members = members_of(process_set)
    count = len(_ranks(members))
    if splits is None and array.shape[0] % count:
        raise ValueError(f"alltoall of {array.shape[0]} rows among {count} ranks: give splits, or rows for all alike")
    name, once = named(name, "alltoall", members)
    if _is_traced(array):
        if splits is not None:
            raise ValueError("alltoall() with splits inside jit: shapes are static there; use it outside, or no splits")
        return _traced_alltoall(array, name, members, priority)
    sent = [array.shape[0] // count] * count if splits is None else [int(one) for one in splits]
    memory = _Memory(array)
    plan = collectives.alltoall(
        session.job(), "byteps." + name, memory.rows, sent, memory.allocate, members, None, priority, once
    )
    received = collectives.run(session.job(), plan, memory)
    return memory.result() if splits is None else (memory.result(), jnp.asarray(received))


# ---- in jit: several exchanges; their derivatives are made of the same collectives


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _traced_allgather(array: jax.Array, name: str, members: Tuple[int, ...], priority: int) -> jax.Array:
    what = Exchange(abi.BROADCAST, members=members, priority=priority)
    blocks = [(f"{name}/{rank}", what._replace(root=rank)) for rank in _ranks(members)]
    return jnp.concatenate(exchange_together([array] * len(blocks), blocks))


def _allgather_back(
    name: str, members: Tuple[int, ...], priority: int, _: None, cotangent: jax.Array
) -> Tuple[jax.Array]:
    what = Exchange(abi.SUM, root_only=True, members=members, priority=priority)
    return (_traced_reducescatter(cotangent, f"{name}.gradient", what),)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _traced_reducescatter(array: jax.Array, name: str, what: Exchange) -> jax.Array:
    ranks = _ranks(what.members)
    counts = collectives.scattered_counts(array.shape[0], len(ranks))
    parts = jnp.split(array, list(itertools.accumulate(counts[:-1])))
    shares = [(f"{name}/{rank}", what._replace(root=rank)) for rank in ranks]
    return exchange_together(parts, shares)[ranks.index(session.rank())]


def _reducescatter_back(name: str, what: Exchange, row_count: int, cotangent: jax.Array) -> Tuple[jax.Array]:
    if what.operation not in (abi.SUM, abi.AVERAGE):
        raise NotImplementedError(f"reducescatter of '{name}' has a gradient with op=Sum and op=Average only")
    ranks = _ranks(what.members)
    factor = (what.scale or 1.0) / (len(ranks) if what.operation == abi.AVERAGE else 1)
    # Rows are of equal number but for one: all send as many as the first, which has the most.
    counts = collectives.scattered_counts(row_count, len(ranks))
    padding = [(0, counts[0] - cotangent.shape[0])] + [(0, 0)] * (cotangent.ndim - 1)
    gathered = _traced_allgather(
        jnp.pad(cotangent * factor, padding), f"{name}.gradient", what.members, what.priority
    )
    blocks = gathered.reshape(len(ranks), counts[0], *cotangent.shape[1:])
    return (jnp.concatenate([block[:count] for block, count in zip(blocks, counts)]),)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _traced_alltoall(array: jax.Array, name: str, members: Tuple[int, ...], priority: int) -> jax.Array:
    """The program has the same operands in the same places on all ranks, also for the part that stays here: XLA runs
    small programs one call after another, in an order that it makes of them, and that must be the same everywhere."""
    ranks, me = _ranks(members), session.rank()
    parts = jnp.split(array, len(ranks))
    others = [rank for rank in ranks if rank != me]
    outgoing = [_message(name, me, rank, priority) for rank in ranks]
    incoming = [_message(name, rank, me, priority) for rank in others]  # whose operands say the shape
    results = exchange_together(parts + parts[: len(others)], outgoing + incoming)
    received = dict(zip(others, results[len(ranks) :]))
    return jnp.concatenate([received.get(rank, result) for rank, result in zip(ranks, results)])


def _message(name: str, sender: int, receiver: int, priority: int) -> Named:
    pair = tuple(sorted({sender, receiver}))
    return f"{name}/{sender}>{receiver}", Exchange(abi.BROADCAST, root=sender, members=pair, priority=priority)


def _alltoall_back(
    name: str, members: Tuple[int, ...], priority: int, _: None, cotangent: jax.Array
) -> Tuple[jax.Array]:
    return (_traced_alltoall(cotangent, f"{name}.gradient", members, priority),)


_traced_allgather.defvjp(lambda array, *rest: (_traced_allgather(array, *rest), None), _allgather_back)
_traced_reducescatter.defvjp(
    lambda array, *rest: (_traced_reducescatter(array, *rest), array.shape[0]), _reducescatter_back
)
_traced_alltoall.defvjp(lambda array, *rest: (_traced_alltoall(array, *rest), None), _alltoall_back)


# ---- outside of jit: the plans of the core


class _Memory:
    """An array's rows for a plan, and the memory of its result."""

    def __init__(self, array: jax.Array, operation: int = abi.BROADCAST) -> None:
        direct.check_device(array)
        kind, width = elements.kind(array.dtype, operation)
        self._source = np.ascontiguousarray(array)
        self._result = direct.aligned((0, *array.shape[1:]), array.dtype)
        self.rows = collectives.Rows(
            kind, self._source.ctypes.data, array.shape[0], elements.row_shape(array.shape, width)
        )

    def allocate(self, row_count: int) -> int:
        self._result = direct.aligned((row_count, *self._source.shape[1:]), self._source.dtype)
        return self._result.ctypes.data

    def result(self) -> jax.Array:
        return jnp.asarray(self._result)


def _ranks(members: Tuple[int, ...]) -> List[int]:
    return list(members) if members else list(range(session.size()))


def _with_rows(array: Any) -> jax.Array:
    array = jnp.asarray(array)
    return array if array.ndim else array.reshape(1)


def _is_traced(array: jax.Array) -> bool:
    return isinstance(array, jax.core.Tracer) or is_staged(array)
