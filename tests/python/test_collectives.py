"""Plans over exchanges: what every rank gets, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from cluster import Cluster


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

    rows = collectives.Rows(abi.FLOAT64, mine.ctypes.data, len(mine), columns)
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
        assert "worker 2 (float64, shape" in failure.text


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
