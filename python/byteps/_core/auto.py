"""Compression.auto: how gradients travel is decided by a trial, when an optimizer is made (docs/compression.md).

All ranks exchange the same tensors at once, plain and in each format, and so long that the line decides: what is
measured has in it the line, the servers, the cores that all ranks of a machine share, and coding. All get the same
figures, the largest of any rank, and so the same choice: of the formats from the mildest on, one that takes less than
GAIN of the time of the last choice, and not more processor time than plain exchanges, for that is what training on the
same cores would miss.
"""

from __future__ import annotations

import array
import ctypes
import os
import statistics
import sys
import time
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from byteps._core import abi, collectives, session
from byteps._core.client import Job
from byteps._core.exchange import Exchange
from byteps._core.process_sets import scoped

__all__ = ["AUTO", "Auto", "Trial", "choice", "choose", "words"]

TENSORS = 8  # at once, so that they lie at several servers
FIRST_ELEMENTS = 1 << 15  # of each of them: 128 KiB
LAST_ELEMENTS = 1 << 19  # 2 MiB
LONG_ENOUGH_S = 0.05
GAIN = 0.75
REPEATS_MIN, REPEATS_MAX = 3, 15


class Auto:
    """The compressor that stands for the choice."""

    title = "auto"
    for_optimizers = True  # who is made once, on all ranks, and not call by call

    def compress(self, tensor: Any) -> Tuple[Any, Any]:
        raise TypeError(f"{self!r} is a choice that DistributedOptimizer makes")

    decompress = compress

    def __repr__(self) -> str:
        return "Compression.auto"


AUTO = Auto()


class Trial(NamedTuple):
    """Of one format: what an exchange of so many bytes of elements took, and of the processors at the busiest rank."""

    title: str
    seconds: float
    cpu_s: float


def choice(choices: Any, members: Sequence[int] = ()) -> Any:
    """One of `choices`, a layer's Compression, for gradients of `members`, () being all: of whom this rank is one, and
    all of whom call this. In a job it is the same from then on. ValueError where a run is to repeat bit for bit: on
    another line it may be another."""
    if os.environ.get("BYTEPS_DETERMINISTIC", "0") == "1":
        raise ValueError(
            f"compression is {AUTO!r}, which measures the line, and BYTEPS_DETERMINISTIC=1 asks for runs that repeat "
            "bit for bit: choose one, as Compression.int8"
        )
    current = session.current()
    if current.job.is_alone or len(members) == 1:
        return choices.none
    key = (AUTO, choices, tuple(members))
    if key not in current.decided:
        current.decided[key] = _decided(current, choices, tuple(members))
    return current.decided[key]


def _decided(current: session.Session, choices: Any, members: Tuple[int, ...]) -> Any:
    offered = {"none": (choices.none, abi.FORMAT_PLAIN, False)}
    if hasattr(choices, "bf16"):
        offered["bf16"] = (choices.bf16, abi.FORMAT_BFLOAT16, False)
    offered["int8"] = (choices.int8, abi.FORMAT_INT8, False)
    offered["int4"] = (choices.int4(error_feedback=True), abi.FORMAT_INT4, True)
    # What a rank is told whose other ranks do not ask for it.
    name = current.unique_name(scoped("BYTEPS_COMPRESSION=auto or Compression.auto", members))
    bench = _Bench(current.job, name, members)
    element_bytes, trials = bench.run({title: (format, feeds) for title, (_, format, feeds) in offered.items()})
    chosen = choose(trials)
    if current.job.rank == (min(members) if members else current.job.leader()):
        print(words(chosen, element_bytes, trials), file=sys.stderr, flush=True)
    return offered[chosen][0]


def choose(trials: Sequence[Trial]) -> str:
    """The title of the one that is worth it. The first is plain, and those behind it are from the mildest on."""
    plain = chosen = trials[0]
    for trial in trials[1:]:
        if trial.seconds < GAIN * chosen.seconds and trial.cpu_s <= plain.cpu_s:
            chosen = trial
    return chosen.title


def words(chosen: str, element_bytes: int, trials: Sequence[Trial]) -> str:
    """What was chosen, and why."""
    took = ", ".join(f"{each.title} {_ms(each.seconds)} (processor {_ms(each.cpu_s)})" for each in trials)
    if chosen == trials[0].title:
        why = f"no other takes less than {GAIN} of that time, and no more processor time"
    else:
        why = f"it is the mildest with less than {GAIN} of milder ones' time, and no more processor time than plain"
    return f"byteps: compression auto is {chosen}: gradients of {element_bytes / 1e6:.1f} MB take {took} here; {why}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


class _Bench:
    """Exchanges of tensors of float32, of which `members` are the ranks."""

    def __init__(self, job: Job, name: str, members: Tuple[int, ...]) -> None:
        self._job = job
        self._name = name
        self._members = members
        self._count = 0  # of names
        self._elements = FIRST_ELEMENTS
        self._gradients = array.array("f", (((37 * place) % 19 - 9) / 10 for place in range(FIRST_ELEMENTS)))

    def run(self, formats: Dict[str, Tuple[int, bool]]) -> Tuple[int, List[Trial]]:
        """Of each, by title: its format, and whether it feeds back. Bytes of elements, and the trials."""
        seconds = self._all_of([self._exchange(abi.FORMAT_PLAIN, False)[0]])[0]
        while seconds < LONG_ENOUGH_S and self._elements < LAST_ELEMENTS:
            self._elements *= 2
            seconds = self._all_of([self._exchange(abi.FORMAT_PLAIN, False)[0]])[0]
        repeats = max(REPEATS_MIN, min(REPEATS_MAX, int(LONG_ENOUGH_S / seconds)))
        took: Dict[str, List[Tuple[float, float]]] = {title: [] for title in formats}
        for _ in range(repeats):  # in turns: what else the machines do changes
            for title, (format, feeds) in formats.items():
                took[title].append(self._exchange(format, feeds))
        medians = [statistics.median(each[index] for each in took[title]) for title in formats for index in (0, 1)]
        agreed = self._all_of(medians)
        trials = [Trial(title, *agreed[2 * place : 2 * place + 2]) for place, title in enumerate(formats)]
        return 4 * TENSORS * self._elements, trials

    def _exchange(self, format: int, feeds: bool) -> Tuple[float, float]:
        """Seconds, and those of this process's processors."""
        memory = [_memory(self._gradients, self._elements) for _ in range(TENSORS)]
        residuals = [_memory(array.array("f", [0]), self._elements) for _ in range(TENSORS if feeds else 0)]
        what = Exchange(abi.AVERAGE, members=self._members, once=True, format=format)

        def plan() -> "collectives.Plan[None]":
            addresses = [ctypes.addressof(each) for each in residuals] or TENSORS * [0]
            yield [
                self._submit(values, abi.FLOAT32, what._replace(residual=residual))
                for values, residual in zip(memory, addresses)
            ]

        self._all_of([0])  # begin together
        begun_s, cpu_begun_s = time.monotonic(), time.process_time()
        collectives.run(self._job, plan(), memory, residuals)
        return time.monotonic() - begun_s, time.process_time() - cpu_begun_s

    def _all_of(self, values: Sequence[float]) -> List[float]:
        """The largest at any member, of each."""
        memory = (ctypes.c_double * len(values))(*values)

        def plan() -> "collectives.Plan[None]":
            yield [self._submit(memory, abi.FLOAT64, Exchange(abi.MAX, members=self._members, once=True))]

        collectives.run(self._job, plan(), memory)
        return list(memory)

    def _submit(self, memory: Any, kind: int, what: Exchange) -> int:
        self._count += 1
        address = ctypes.addressof(memory)
        tensor = what.tensor(f"{self._name}.{self._count}", kind, (len(memory),), address, address)
        tensor.flags &= ~abi.CODED_WHERE_FIT
        return self._job.submit(tensor)


def _memory(block: "array.array[float]", elements: int) -> "ctypes.Array[ctypes.c_float]":
    values = block * (elements // len(block))
    return (ctypes.c_float * elements).from_buffer(values)
