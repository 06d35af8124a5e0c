"""Calls of which each waits until all ranks have made it, for ranks that disagree about which is next (test_stalls.py).

LAYERS: by name, functions that each make a call under names that contain its own. The framework of a layer is imported
when its first call is made."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

from counted import pushed_and_pulled
from place import wait_for

from byteps._core import abi, collectives, driver, errors, objects, session
from byteps._core.collectives import Rows
from byteps._core.exchange import Exchange

Call = Callable[[], Any]
_kept: List[Any] = []  # memory of calls under way


def _floats(count: int) -> int:
    _kept.append((ctypes.c_float * count)(*[1.0] * count))
    return ctypes.addressof(_kept[-1])


def _rows(count: int = 4) -> Rows:
    return Rows(abi.FLOAT32, _floats(count), count, ())


def submit(name: str) -> int:
    address = _floats(8)
    return session.job().push_pull(name, abi.FLOAT32, address, address, 8, abi.SUM)


def single(name: str) -> None:
    session.job().wait(submit(name))


def _allgather(job: Any) -> Any:
    return collectives.allgather(job, "allgather", _rows(), _floats)


def _reducescatter(job: Any) -> Any:
    return collectives.reducescatter(job, "reducescatter", _rows(), _floats(4), Exchange(abi.SUM))


def _alltoall(job: Any) -> Any:
    return collectives.alltoall(job, "alltoall", _rows(), [2, 2], _floats)


def _run(plan: Callable[[Any], Any]) -> None:
    collectives.run(session.job(), plan(session.job()))


CORE: Dict[str, Call] = {
    "single": lambda: single("single"),
    "other": lambda: single("other"),
    "barrier": lambda: session.job().barrier(),
    "allgather": lambda: _run(_allgather),
    "reducescatter": lambda: _run(_reducescatter),
    "alltoall": lambda: _run(_alltoall),
    "broadcast_object": lambda: objects.broadcast_object("x", name="broadcast_object"),
    "allgather_object": lambda: objects.allgather_object("x", name="allgather_object"),
    # As a group of several has it: a thread of ours takes the steps.
    "driven": lambda: driver.start(lambda job: collectives.alltoall(job, "driven", _rows(), [2, 2], _floats)).wait(),
}


def _torch() -> Dict[str, Call]:
    import torch

    import byteps.torch as bps

    x = torch.ones(4)
    return {
        "push_pull": lambda: bps.push_pull(x, name="push_pull"),
        "grouped_allreduce": lambda: bps.grouped_allreduce([x, x], name="grouped_allreduce"),
        "allgather": lambda: bps.allgather(x, name="allgather"),
        "grouped_allgather": lambda: bps.grouped_allgather([x, x], name="grouped_allgather"),
        "alltoall": lambda: bps.alltoall(x, name="alltoall"),
        "reducescatter": lambda: bps.reducescatter(x, name="reducescatter"),
        "grouped_reducescatter": lambda: bps.grouped_reducescatter([x, x], name="grouped_reducescatter"),
        "broadcast": lambda: bps.broadcast(x, 0, name="broadcast"),
        "broadcast_object": lambda: bps.broadcast_object("x", name="broadcast_object"),
        "allgather_object": lambda: bps.allgather_object("x", name="allgather_object"),
        "barrier": bps.barrier,
    }


def _distributed() -> Dict[str, Call]:
    """Synchronous collectives, which wait in the core; those with async_op=True wait as plans do."""
    import datetime

    import torch
    import torch.distributed as dist

    import byteps.torch as bps

    rank, size = bps.rank(), bps.size()
    store = dist.FileStore(os.environ["TMPDIR"] + "/store", size)
    dist.init_process_group(
        "byteps", store=store, rank=rank, world_size=size, timeout=datetime.timedelta(minutes=30)
    )
    x = torch.ones(4)

    def gather(to: int) -> None:
        dist.gather(x, [torch.empty(4) for _ in range(size)] if rank == to else None, dst=to)

    return {
        "gather_to_0": lambda: gather(0),
        "gather_to_1": lambda: gather(1),
        "all_reduce": lambda: dist.all_reduce(x),
        "all_gather": lambda: dist.all_gather([torch.empty(4) for _ in range(size)], x),
    }


def _tensorflow() -> Dict[str, Call]:
    import tensorflow as tf

    import byteps.tensorflow as bps

    x = tf.ones([4])
    return {
        "push_pull": lambda: bps.push_pull(x, name="push_pull"),
        "broadcast": lambda: bps.broadcast(x, 0, name="broadcast"),
        "allgather": lambda: bps.allgather(x, name="allgather"),
        "barrier": lambda: session.job().barrier(),
        # Its op is TensorFlow's to run, and the caller is in a wait of TensorFlow's.
        "within_a_function": lambda: tf.function(lambda: bps.push_pull(x, name="within_a_function"))(),
    }


def _jax() -> Dict[str, Call]:
    import jax.numpy as jnp

    import byteps.jax as bps

    x = jnp.ones(4)
    return {
        "push_pull": lambda: bps.push_pull(x, name="push_pull"),
        "broadcast": lambda: bps.broadcast(x, 0, name="broadcast"),
        "allgather": lambda: bps.allgather(x, name="allgather"),
        "barrier": lambda: session.job().barrier(),
    }


def _keras() -> Dict[str, Call]:
    import byteps.keras as bps

    return {
        "push_pull": lambda: bps.push_pull([1.0, 2.0], "push_pull"),
        "broadcast": lambda: bps.broadcast([1.0, 2.0], 0, "broadcast"),
        "allgather": lambda: bps.allgather([1.0, 2.0], "allgather"),
        "barrier": lambda: session.job().barrier(),
    }


def _mxnet() -> Dict[str, Call]:
    import mxnet

    import byteps.mxnet as bps

    def push_pull() -> None:
        x = mxnet.nd.ones(4)
        bps.byteps_push_pull(x, name="push_pull")
        x.wait_to_read()

    return {"push_pull": push_pull, "barrier": lambda: session.job().barrier()}


LAYERS: Dict[str, Callable[[], Dict[str, Call]]] = {
    "core": lambda: CORE,
    "torch": _torch,
    "distributed": _distributed,
    "tensorflow": _tensorflow,
    "jax": _jax,
    "keras": _keras,
    "mxnet": _mxnet,
}


def outcome_of(layer: str, name: str) -> Tuple[float, Optional[str]]:
    """How long the call took, and what it failed with."""
    call = LAYERS[layer]()[name]
    begin_s = time.monotonic()
    text = None
    try:
        call()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    return time.monotonic() - begin_s, text


def outcome_of_join() -> Tuple[float, Optional[str]]:
    try:
        session.current().finish_inputs()
    except errors.BytePSError as error:
        return 0.0, str(error)
    return 0.0, None


def polls(name: str) -> str:
    """What it failed with. A thread that polls might do anything."""
    job, handle = session.job(), submit(name)
    while not job.poll(handle):
        time.sleep(0.01)
    try:
        job.wait(handle)
    except errors.BytePSError as error:
        return str(error)
    return "it ended well"


def computes() -> str:
    """Until the job has ended; why it did."""
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        try:
            session.job().wait(submit("alone"), 0.0)
        except errors.BytePSError as error:
            return str(error)
        time.sleep(0.1)
    return "the job goes on"


# ---- jobs that go on by themselves


def from_two_threads(order: str, pause_s: float) -> List[float]:
    """One thread submits the first at once, and the second when it has computed for a while; another waits for both."""
    handles: Dict[str, int] = {}
    begun = threading.Event()

    def compute() -> None:
        for place, name in enumerate(order):
            if place > 0:
                time.sleep(pause_s)
            handles[name] = submit(name)
            begun.set()

    thread = threading.Thread(target=compute)
    thread.start()
    begun.wait()
    session.job().wait(handles[order[0]])
    thread.join()
    session.job().wait(handles[order[1]])
    return [memory[0] for memory in _kept]


def from_a_thread_that_never_submitted(pause_s: float) -> None:
    """Rank 0 meets in a barrier, while a thread of its own computes what rank 1 waits for before it comes there."""
    job = session.job()
    if job.rank == 1:
        single("x")
        return job.barrier()

    def compute() -> None:
        time.sleep(pause_s)
        single("x")

    thread = threading.Thread(target=compute)
    thread.start()
    job.barrier()
    return thread.join()


def waits_that_give_up(pause_s: float) -> List[bool]:
    """Each rank waits a while for what the other only submits then. Who gives up later may get it in time after all."""
    job = session.job()
    mine, other = ("x", "y") if job.rank == 0 else ("y", "x")
    first = submit(mine)
    in_time = job.wait(first, pause_s)
    second = submit(other)
    return [in_time, job.wait(second), in_time or job.wait(first)]


def slow_callbacks(pause_s: float) -> None:
    """The thread that takes the steps of plans computes between two of them: rank 0 with one plan, while both wait."""
    job = session.job()

    def plan(name: str) -> Callable[[Any], Any]:
        def steps(driven: Any) -> Any:
            address = _floats(8)
            yield [driven.submit(Exchange(abi.SUM).tensor(name + "0", abi.FLOAT32, (8,), address, address))]
            time.sleep(pause_s)
            yield [driven.submit(Exchange(abi.SUM).tensor(name + "1", abi.FLOAT32, (8,), address, address))]

        return steps

    started = driver.start(plan("x"))
    if job.rank == 0:
        single("x1")  # what the other rank's plan comes to
    started.wait()
    if job.rank == 1:
        single("x1")


def contributes_and_leaves(pause_s: float) -> Optional[float]:
    """Rank 0 submits and leaves, rank 1 waits, rank 2 computes for longer than a worker that has left is waited for."""
    job = session.job()
    if job.rank == 2:
        time.sleep(pause_s)
    handle = submit("t")
    if job.rank == 0:
        while pushed_and_pulled(job.metrics())[0] == 0:  # it is on its way then
            time.sleep(0.01)
        session.shutdown()
        return None
    job.wait(handle)
    return float(_kept[-1][0])


def two_barriers_at_once(both: Path) -> List[Optional[str]]:
    """Rank 0 in two threads, the others in one after the other, once both of those wait: then there is `both`."""
    job = session.job()
    texts: List[Optional[str]] = [None, None]

    def meet(place: int) -> None:
        try:
            job.barrier()
        except errors.BytePSError as error:
            texts[place] = str(error)

    threads = [threading.Thread(target=meet, args=(place,)) for place in range(2)]
    if job.rank == 0:
        for thread in threads:
            thread.start()
        wait_for("both threads to be in their barriers", lambda: len(job._waiting) == 2)
        both.touch()
        for thread in threads:
            thread.join()
    else:
        wait_for("both threads of rank 0", both.exists)
        for place in range(2):
            meet(place)
    return texts


def slow_operation(pause_s: float) -> float:
    """Rank 0's engine computes for a while what it submits then; Python is in a barrier."""
    import mxnet

    import byteps.mxnet as bps

    class Slow(mxnet.operator.CustomOp):
        def forward(self, is_train: bool, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
            time.sleep(pause_s)
            self.assign(out_data[0], req[0], in_data[0])

    @mxnet.operator.register("slow")
    class SlowProperty(mxnet.operator.CustomOpProp):
        def create_operator(self, context: Any, shapes: Any, dtypes: Any) -> Slow:
            return Slow()

    x = mxnet.nd.ones(4)
    if bps.rank() == 0:
        x = mxnet.nd.Custom(x, op_type="slow")
    bps.byteps_push_pull(x, name="slow", is_average=False)
    if bps.rank() == 1:
        x.wait_to_read()
    session.job().barrier()
    return float(x.asnumpy()[0])
