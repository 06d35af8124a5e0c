"""What DiLoCo is in every framework (byteps/torch/diloco.py, byteps/jax/diloco.py): when each fragment is exchanged,
which parameters it has, and what its arguments may be."""

from __future__ import annotations

import numbers
from typing import Any, List, Sequence

ROUNDS_PER_CHECK = 10  # of a fragment: so often the ranks compare what they have in common


class Outer:
    """The outer optimizer, which takes the average of what the ranks have learned for a gradient."""

    def __init__(self, lr: float, momentum: float, nesterov: bool, alpha: float = 0.0) -> None:
        _check_number("outer_lr", lr, 0, float("inf"))
        _check_number("outer_momentum", momentum, 0, 1)
        _check_number("fragment_update_alpha", alpha, 0, 1)
        self.lr, self.momentum, self.nesterov, self.alpha = lr, momentum, nesterov, alpha


class Rounds:
    """When each fragment is exchanged."""

    def __init__(self, sync_every: int, fragments: int, delay: int = 0) -> None:
        _check_count("sync_every", sync_every, 1)
        _check_count("fragments", fragments, 1)
        _check_count("fragment_sync_delay", delay, 0)
        if sync_every % fragments != 0:
            raise ValueError(
                f"sync_every is {sync_every} and fragments is {fragments}: each fragment has a time of its own within "
                "sync_every steps, so make it a multiple"
            )
        if delay >= sync_every:
            raise ValueError(
                f"fragment_sync_delay is {delay} and sync_every is {sync_every}: a fragment's exchange ends before its "
                "next one begins, so make it less"
            )
        self.sync_every, self.fragments, self.delay = sync_every, fragments, delay

    def begins(self, fragment: int, step: int) -> bool:
        """`step`: from 1. The last fragment's turn is that of a single one."""
        return step % self.sync_every == (fragment + 1) * (self.sync_every // self.fragments) % self.sync_every


def cut(sizes: Sequence[int], count: int) -> List[List[int]]:
    """Places of `sizes`, cut in their order, so that the largest of `count` parts is about as small as it can be."""
    if count > len(sizes):
        raise ValueError(f"fragments is {count}, and there are {len(sizes)} parameters")
    total = sum(sizes)
    parts: List[List[int]] = [[] for _ in range(count)]
    before = 0
    for place, size in enumerate(sizes):
        middle = before + size / 2
        wanted = min(count - 1, int(count * middle / total)) if total else 0
        # None is empty, and there is one for each that is left.
        filled = next((index for index in range(count) if not parts[index]), count)
        least = count - (len(sizes) - place)
        parts[max(min(wanted, filled), least)].append(place)
        before += size
    return parts


def _check_number(name: str, value: Any, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not least <= float(value) <= most:
        raise ValueError(f"{name} is {value!r}: it must be a number from {least} to {most}")


def _check_count(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} is {value!r}: it must be a number of at least {least}")
