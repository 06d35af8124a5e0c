"""Keras on JAX: gradients are averaged by byteps.jax in the compiled training step, each as soon as it is computed."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence

import jax
import jax.numpy as jnp

from byteps._core.compression import check_element, packed, with_memory
from byteps._core.exchange import Exchange
from byteps._core.process_sets import members_of, scoped
from byteps._core.reduction import resolve
from byteps._keras.exchange import GradientExchange, Slot, scaled
from byteps.jax import Compression, direct
from byteps.jax.direct import Named
from byteps.jax.ops import exchange_all

__all__ = ["Compression", "before_backward", "push_pull", "scaled", "when"]


def push_pull(slots: Sequence[Slot], exchange: GradientExchange) -> List[Optional[jax.Array]]:
    """The combined gradients, in the order of `slots`; None stays None."""
    present = [slot for slot in slots if slot.gradient is not None]
    members = members_of(exchange.process_set)
    what = Exchange(*resolve(exchange.op), members=members)
    gradients = [slot.gradient for slot in present]
    gradients = scaled(gradients, 1.0 / exchange.predivide)
    counts = [each.size if each.dtype == jnp.float32 else 0 for each in gradients]
    sent = [packed(exchange.compression, each, what.operation, count) for each, count in zip(gradients, counts)]
    exchanges = [_named(slot, what, exchange) for slot in present]
    received = exchange_all((array, one) for (array, _), one in zip(sent, exchanges))
    factor = exchange.factor * exchange.predivide
    results = [exchange.compression.decompress(array, context) for array, (_, context) in zip(received, sent)]
    ordered = iter(scaled(results, factor))
    return [None if slot.gradient is None else next(ordered) for slot in slots]


def _named(slot: Slot, what: Exchange, exchange: GradientExchange) -> Named:
    name = scoped(slot.name, what.members)
    check_element(exchange.compression, name, slot.gradient.dtype)
    what = what._replace(priority=slot.priority)
    return name, with_memory(what, name, exchange.compression, direct.library)


def before_backward(exchange: GradientExchange) -> None:
    """Nothing to do: push_pull() is part of the compiled step."""
    del exchange


def when(condition: Any, combine: Callable[[List[Any]], List[Any]], gradients: List[Any]) -> List[Any]:
    """combine(gradients) if the condition holds, else `gradients`."""
    return jax.lax.cond(condition, combine, list, gradients)
