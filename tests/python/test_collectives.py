"""Plans over exchanges: what every rank gets, against numpy."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from cluster import Cluster
from counted import pushed_and_pulled

from byteps._core.exchange import Exchange


@pytest.fixture(scope="module", params=[1, 3], ids=lambda workers: f"{workers} workers")
def cluster(request):
    with Cluster(workers=request.param, layer="byteps._core.session") as made:
        yield made


def block_of(rank, columns=3):
    """rank + 1 rows: every rank another number of them; rank 1 has none."""
    count = 0 if rank == 1 else rank + 1
    return np.arange(count * columns, dtype=np.float64).reshape(count, columns) + 100 * rank


def gather(columns):
    import numpy as np

    from byteps._core import abi, collectives, session

    job = session.job()
    mine = np.ascontiguousarray(block_of(job.rank, columns))
    made = []

    def allocate(count):
        made.append(np.full((count, columns), -1.0))
        return made[0].ctypes.data

    rows = collectives.Rows(abi.FLOAT64, mine.ctypes.data, len(mine), (columns,))
    counts = collectives.run(job, collectives.allgather(job, session.current().unique_name("g"), rows, allocate))
    return counts, made[0]


@pytest.mark.parametrize("columns", [3, 5000])
def test_allgather_gives_all_rows_in_the_order_of_ranks_to_every_rank(cluster, columns):
    blocks = [block_of(rank, columns) for rank in range(cluster.size)]
    for counts, gathered in cluster.run(gather, columns):
        assert counts == [len(block) for block in blocks]
        np.testing.assert_array_equal(gathered, np.concatenate(blocks))


def gather_of_other_rows():
    from byteps._core import session

    return gather(4 if session.rank() == 2 else 3)


def test_rows_of_other_lengths_fail_on_every_rank(cluster):
    if cluster.size == 1:
        pytest.skip("one rank agrees with itself")
    for failure in cluster.failures(gather_of_other_rows):
        assert failure is not None and failure.kind == "MismatchError"
        assert "worker 2 (float64, shape 3x4)" in failure.text


def collective_of(what, shapes):
    """On a rank's shape of `shapes`; the others have the last one."""
    import numpy as np

    from byteps._core import abi, collectives, session

    job = session.job()
    shape = shapes[min(job.rank, len(shapes) - 1)]
    mine = np.ones(shape, np.float32)
    rows = collectives.Rows(abi.FLOAT32, mine.ctypes.data, shape[0], shape[1:])
    output = np.zeros(1 << 20, np.float32)
    name = session.current().unique_name(what)
    if what == "allgather":
        plan = collectives.allgather(job, name, rows, lambda count: output.ctypes.data)
    elif what == "reducescatter":
        plan = collectives.reducescatter(job, name, rows, output.ctypes.data, Exchange(abi.SUM))
    else:
        splits = [shape[0] // job.size] * job.size
        plan = collectives.alltoall(job, name, rows, splits, lambda count: output.ctypes.data)
    collectives.run(job, plan)


@pytest.mark.parametrize(
    "what, shapes",
    [
        ("reducescatter", [(17, 1311), (17, 23, 57)]),  # as many elements in a row
        ("reducescatter", [(2, 4), (3, 4)]),  # with 3 ranks the last one gets none, or one
        ("reducescatter", [(0, 4), (6, 4)]),
        ("reducescatter", [(6, 0), (6, 4)]),
        ("reducescatter", [(0, 4), (0, 5)]),
        ("allgather", [(2, 4, 3), (2, 12)]),
        ("allgather", [(0, 4, 3), (5, 12)]),
        ("allgather", [(5, 0), (5, 4)]),
        ("allgather", [(0, 4), (0, 5)]),
        ("alltoall", [(6, 4, 3), (6, 12)]),
        ("alltoall", [(0, 4, 3), (6, 12)]),
        ("alltoall", [(6, 0), (6, 4)]),
        ("alltoall", [(0, 4), (0, 5)]),
    ],
    ids=str,
)
def test_other_shapes_fail_on_every_rank(cluster, what, shapes):
    if cluster.size == 1:
        pytest.skip("one rank agrees with itself")
    for failure in cluster.failures(collective_of, what, shapes):
        assert failure is not None and failure.kind == "MismatchError"
        assert "differs between ranks: worker " in failure.text and "(float32, shape " in failure.text


@pytest.mark.parametrize("what", ["reducescatter", "allgather", "alltoall"])
@pytest.mark.parametrize("shape", [(0, 4), (6, 0), (6, 2, 2), (6,)], ids=str)
def test_equal_shapes_are_welcome_also_without_elements(cluster, what, shape):
    cluster.run(collective_of, what, [shape])


def trade_objects():
    from byteps._core import objects, session

    rank = session.rank()
    everyone = objects.allgather_object({"rank": rank, "blob": b"x" * rank * 1000})
    return everyone, objects.broadcast_object(("from", rank) if rank == 0 else None)


def test_objects_of_all_ranks_reach_all_ranks(cluster):
    expected = [{"rank": rank, "blob": b"x" * rank * 1000} for rank in range(cluster.size)]
    for everyone, roots in cluster.run(trade_objects):
        assert everyone == expected
        assert roots == ("from", 0)


def trade_what_cannot_be_pickled(culprit):
    from byteps._core import objects, session

    class Stubborn:
        def __reduce__(self):
            raise TypeError("I stay here")

    objects.allgather_object(Stubborn() if session.rank() == culprit else 1)


def test_an_object_that_cannot_be_pickled_is_named_on_every_rank(cluster):
    culprit = cluster.size - 1
    failures = cluster.failures(trade_what_cannot_be_pickled, culprit)
    assert failures[culprit].kind == "TypeError" and "I stay here" in failures[culprit].text
    for failure in failures[:culprit]:
        assert failure.kind == "BytePSError"
        assert f"rank {culprit} could not pickle its object: TypeError: I stay here" in failure.text


def ragged_tables():
    from byteps._core import collectives, session

    job = session.job()
    return collectives.run(job, collectives.tables(job, "tables", [job.rank, 7]))


def test_tables_tell_every_rank_the_numbers_of_all(cluster):
    assert cluster.run(ragged_tables) == [[[rank, 7] for rank in range(cluster.size)]] * cluster.size


class JobThatRefuses:
    """Starts a few exchanges, then refuses one, and remembers for which it was waited."""

    rank, size = 0, 3

    def __init__(self, refused):
        self.started, self.refused, self.waited = 0, refused, []

    def submit(self, tensor):
        self.started += 1
        if self.started == self.refused:
            raise ValueError("refused")
        return self.started

    def wait(self, handle):
        self.waited.append(handle)


def test_what_was_started_ends_before_a_refusal_is_raised():
    from byteps._core import abi, collectives

    job = JobThatRefuses(refused=3)
    rows = collectives.Rows(abi.FLOAT32, 4096, 6, (2,))
    with pytest.raises(ValueError, match="refused"):
        collectives.run(job, collectives.reducescatter(job, "x", rows, 4096, Exchange(abi.SUM)))
    assert job.waited == [1, 2]


class JobThatIsInterrupted(JobThatRefuses):
    def wait(self, handle):
        raise KeyboardInterrupt


def test_memory_of_an_interrupted_wait_is_kept_until_the_job_is_left(monkeypatch):
    from byteps._core import abi, collectives, session

    monkeypatch.delenv("DMLC_NUM_WORKER", raising=False)
    session.init()
    try:
        memory = type("Memory", (), {})()
        alive = weakref.ref(memory)
        rows = collectives.Rows(abi.FLOAT32, 4096, 6, (2,))
        job = JobThatIsInterrupted(refused=0)
        with pytest.raises(KeyboardInterrupt):
            collectives.run(job, collectives.reducescatter(job, "x", rows, 4096, Exchange(abi.SUM)), memory)
        del memory
        gc.collect()
        assert alive() is not None
    finally:
        session.shutdown()
    gc.collect()
    assert alive() is None


def scatter(row_count, columns, operation_name):
    import numpy as np

    from byteps._core import abi, collectives, session

    job = session.job()
    mine = np.arange(row_count * columns, dtype=np.float32).reshape(row_count, columns) * (job.rank + 1)
    share = collectives.scattered_counts(row_count, job.size)[job.rank]
    output = np.full((share, columns), -1, np.float32)
    rows = collectives.Rows(abi.FLOAT32, mine.ctypes.data, row_count, (columns,))
    name = session.current().unique_name("scatter")
    operation = getattr(abi, operation_name)
    plan = collectives.reducescatter(job, name, rows, output.ctypes.data, Exchange(operation))
    assert collectives.run(job, plan) == share
    return output


@pytest.mark.parametrize("row_count, columns", [(7, 3), (2, 40_000), (0, 3)])
def test_reducescatter_gives_each_rank_its_share_of_the_sum(cluster, row_count, columns):
    whole = np.arange(row_count * columns, dtype=np.float32).reshape(row_count, columns)
    factor = sum(range(1, cluster.size + 1))
    shares = cluster.run(scatter, row_count, columns, "SUM")
    np.testing.assert_array_equal(np.concatenate(shares), whole * factor)
    assert [len(share) for share in shares] == sorted((len(share) for share in shares), reverse=True)


def test_reducescatter_with_another_operation(cluster):
    shares = cluster.run(scatter, 5, 2, "MAX")
    np.testing.assert_array_equal(np.concatenate(shares), np.arange(10, dtype=np.float32).reshape(5, 2) * cluster.size)


def trade(splits_by_rank, columns):
    import numpy as np

    from byteps._core import abi, collectives, session

    job = session.job()
    splits = splits_by_rank[job.rank]
    mine = np.arange(sum(splits) * columns, dtype=np.int16).reshape(-1, columns) + 1000 * job.rank
    made = []

    def allocate(count):
        made.append(np.full((count, columns), -1, np.int16))
        return made[0].ctypes.data

    rows = collectives.Rows(abi.INT16, mine.ctypes.data, len(mine), (columns,))
    plan = collectives.alltoall(job, session.current().unique_name("trade"), rows, splits, allocate)
    return collectives.run(job, plan), made[0], mine


def test_alltoall_brings_each_block_to_its_rank(cluster):
    size = cluster.size
    splits = [[(rank + other) % 3 for other in range(size)] for rank in range(size)]
    results = cluster.run(trade, splits, 2)
    sent = [np.split(mine, np.cumsum(splits[rank])[:-1]) for rank, (_, _, mine) in enumerate(results)]
    for rank, (received_splits, received, _) in enumerate(results):
        assert received_splits == [splits[other][rank] for other in range(size)]
        np.testing.assert_array_equal(received, np.concatenate([sent[other][rank] for other in range(size)]))


def trade_too_little():
    trade([[5, 1], [1, 1], [0, 0, -1]], 2)


def test_splits_that_do_not_fit_are_refused(cluster):
    if cluster.size == 3:
        for failure in cluster.failures(trade_too_little):
            assert "must be 3 numbers of rows" in failure.text


def bytes_of(kind, block_bytes):
    """(pushed, pulled) by a collective whose blocks, one for each rank or pair of ranks, are so large."""
    import numpy as np

    from byteps._core import abi, collectives, session

    job = session.job()
    rank, size = job.rank, job.size
    source = np.full(block_bytes * size, rank, np.uint8)
    result = np.full(block_bytes * size, 255, np.uint8)
    name = session.current().unique_name("bytes")
    every = [block_bytes] * size
    block = collectives.Rows(abi.UINT8, source.ctypes.data, block_bytes, ())
    blocks = block._replace(count=block_bytes * size)
    addresses = source.ctypes.data, result.ctypes.data

    def broadcast():
        yield [job.push_pull(name, abi.UINT8, *addresses, block_bytes, abi.BROADCAST, root=size - 1)]

    plan = {
        "broadcast": broadcast,
        "allgather": lambda: collectives.allgather(job, name, block, lambda _: result.ctypes.data, counts=every),
        "alltoall": lambda: collectives.alltoall(
            job, name, blocks, every, lambda _: result.ctypes.data, received_splits=every
        ),
        "reducescatter": lambda: collectives.reducescatter(job, name, blocks, result.ctypes.data, Exchange(abi.MAX)),
    }[kind]
    session.barrier()
    before = pushed_and_pulled(session.metrics())
    collectives.run(job, plan(), source, result)
    session.barrier()  # when the worker's thread has published what it counted
    after = pushed_and_pulled(session.metrics())
    if kind in ("broadcast", "reducescatter"):
        assert (result[:block_bytes] == size - 1).all() and (result[block_bytes:] == 255).all()
    else:
        np.testing.assert_array_equal(result, np.repeat(np.arange(size), block_bytes))
    return after[0] - before[0], after[1] - before[1]


@pytest.mark.parametrize("block_bytes", [1000, 3_000_001])
def test_each_block_is_pushed_once_and_comes_once_to_who_receives_it(cluster, block_bytes):
    size = cluster.size
    roots = [(0, 1)] * (size - 1) + [(1, 0)]
    for kind, bounds in {
        "broadcast": roots,
        "allgather": [(1, size - 1)] * size,
        "alltoall": [(size - 1, size - 1)] * size,
        "reducescatter": [(size, 1)] * size,
    }.items():
        moved = cluster.run(bytes_of, kind, block_bytes)
        assert moved == [(pushed * block_bytes, pulled * block_bytes) for pushed, pulled in bounds], kind


def pass_on():
    """Rank 0 sends to rank 2, and nobody else takes part."""
    import numpy as np

    from byteps._core import abi, collectives, session

    job = session.job()
    values = np.arange(50_000, dtype=np.float64) * (job.rank + 1)
    rows = collectives.Rows(abi.FLOAT64, values.ctypes.data, len(values), ())
    if job.rank == 0:
        collectives.run(job, collectives.send(job, "letter", rows, to=2))
    if job.rank == 2:
        collectives.run(job, collectives.receive(job, "letter", rows, source=0))
    return float(values[-1])


def test_a_message_needs_only_its_two_ranks(cluster):
    if cluster.size == 3:
        assert cluster.run(pass_on) == [49_999.0, 2 * 49_999.0, 49_999.0]


def gather_among(ranks):
    import numpy as np

    from byteps._core import abi, collectives, process_sets, session

    job = session.job()
    if job.rank not in ranks:
        return None
    members = process_sets.members_of(process_sets.ProcessSet(ranks))
    mine = np.full((job.rank + 1, 2), job.rank, np.float32)
    made = []

    def allocate(count):
        made.append(np.empty((count, 2), np.float32))
        return made[0].ctypes.data

    rows = collectives.Rows(abi.FLOAT32, mine.ctypes.data, len(mine), (2,))
    name = process_sets.scoped("among", members)
    collectives.run(job, collectives.allgather(job, name, rows, allocate, members))
    return made[0]


def test_a_process_set_gathers_without_the_others(cluster):
    if cluster.size == 3:
        first, none, last = cluster.run(gather_among, [0, 2])
        assert none is None
        np.testing.assert_array_equal(first, np.repeat([0, 2], [1, 3])[:, None] * np.ones((1, 2)))
        np.testing.assert_array_equal(first, last)
