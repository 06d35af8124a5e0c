"""push_pull of what hypothesis draws, which a Python that has only torch may lack."""

import pytest
import torch
from test_push_pull import DTYPES, check, expected, values

import byteps.torch as bps

hypothesis = pytest.importorskip("hypothesis")
st = pytest.importorskip("hypothesis.strategies")


def drawn_batch(batch):
    rank, size = bps.rank(), bps.size()
    started = []
    for index, (shape, dtype_index, average, inplace) in enumerate(batch):
        dtype = DTYPES[dtype_index]
        average = average and dtype != torch.bool
        mine = values(rank, shape, dtype, index)
        start = bps.push_pull_async_inplace if inplace else bps.push_pull_async
        started.append((start(mine, average), expected(size, shape, dtype, average, index)))
    if rank % 2:
        started.reverse()
    for handle, wanted in started:
        check(bps.synchronize(handle), wanted)


SHAPE = st.lists(st.integers(0, 9), max_size=4).map(tuple) | st.tuples(st.integers(0, 40_000))
BATCH = st.lists(st.tuples(SHAPE, st.integers(0, len(DTYPES) - 1), st.booleans(), st.booleans()), max_size=12)


@hypothesis.settings(
    max_examples=30, deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
@hypothesis.given(batch=BATCH)
def test_any_batch_of_tensors_is_summed(job2, batch):
    job2.run(drawn_batch, batch)
