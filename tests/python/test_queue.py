"""Ends of exchanges that are reported to a queue, in batches."""

from __future__ import annotations

import ctypes

import pytest
from cluster import Cluster


@pytest.fixture(scope="module")
def pair():
    with Cluster(workers=2) as cluster:
        yield cluster


def many_on_a_queue(count):
    from byteps._core import abi, session

    job = session.job()
    queue = job.make_queue()
    buffers = [(ctypes.c_int64 * 3)(*[job.rank + 1] * 3) for _ in range(count)]
    for tag, buffer in enumerate(buffers):
        address = ctypes.addressof(buffer)
        job.push_pull(f"queued.{tag}", abi.INT64, address, address, 3, abi.SUM, queue=queue, tag=tag)
    ended = []
    while len(ended) < count:
        ended += queue.take()
    assert all(error is None for _, error in ended)
    assert sorted(tag for tag, _ in ended) == list(range(count))
    return {value for buffer in buffers for value in buffer}


def test_every_exchange_is_reported_once_and_its_sum_is_there(pair):
    assert pair.run(many_on_a_queue, 500) == [{3}, {3}]


def sizes_that_differ():
    from byteps._core import abi, session

    job = session.job()
    queue = job.make_queue()
    count = 3 + job.rank
    buffer = (ctypes.c_int64 * count)()
    address = ctypes.addressof(buffer)
    job.push_pull("differing", abi.INT64, address, address, count, abi.SUM, queue=queue, tag=9)
    ended = []
    while not ended:
        ended += queue.take()
    return [(tag, type(error).__name__, str(error)) for tag, error in ended]


def test_a_failure_is_reported_with_its_text_on_every_rank(pair):
    for ended in pair.run(sizes_that_differ):
        [(tag, kind, text)] = ended
        assert (tag, kind) == (9, "MismatchError")
        assert "differing" in text and "worker 0" in text and "worker 1" in text


def leave_with_one_under_way():
    from byteps._core import abi, session

    job = session.job()
    queue = job.make_queue()
    buffer = (ctypes.c_int64 * 3)()
    address = ctypes.addressof(buffer)
    if job.rank == 0:  # the other rank never pushes it
        job.push_pull("alone", abi.INT64, address, address, 3, abi.SUM, queue=queue, tag=4)
    job.leave(final=True)
    reports = []
    while True:
        ended = queue.take()
        if ended is None:
            return [(tag, type(error).__name__) for tag, error in reports]
        reports += ended


def test_leaving_reports_what_was_under_way_and_ends_the_queue():
    with Cluster(workers=2) as cluster:
        assert cluster.run(leave_with_one_under_way) == [[(4, "CancelledError")], []]
