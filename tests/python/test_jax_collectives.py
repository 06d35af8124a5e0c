"""Reductions, process sets, broadcasts and gathers of byteps.jax, inside and outside of jit, against numpy."""

import interrupted
import numpy as np
import pytest

pytest.importorskip("jax")

import jax_jobs as fixtures

job, job2, job3, jax_jobs = fixtures.job, fixtures.job2, fixtures.job3, fixtures.jax_jobs


def both(function):
    """Outside and inside of jit."""
    import jax

    return (("now", lambda *args: function("now", *args)), ("jit", jax.jit(lambda *args: function("jit", *args))))


def operations():
    import jax.numpy as jnp

    import byteps.jax as bps

    rank, size = bps.rank(), bps.size()
    x = jnp.asarray([rank + 1.0, -rank, 3.0])
    everything = np.stack([np.asarray([one + 1.0, -one, 3.0]) for one in range(size)])
    for op, wanted in (
        (bps.Average, everything.mean(0)),
        (bps.Sum, everything.sum(0)),
        (bps.Min, everything.min(0)),
        (bps.Max, everything.max(0)),
        (bps.Product, everything.prod(0)),
        ("Max", everything.max(0)),
    ):
        for mode, run in both(lambda mode, x: bps.push_pull(x, op=op, name=f"{op}.{mode}")):
            np.testing.assert_allclose(run(x), wanted, err_msg=f"{op} {mode}", rtol=1e-6)
    flags = jnp.asarray([rank == 0, True])
    np.testing.assert_array_equal(bps.push_pull(flags, op=bps.Min), [size == 1, True])
    np.testing.assert_array_equal(bps.push_pull(flags, op=bps.Max), [True, True])
    for mode, run in both(
        lambda mode, x: bps.push_pull(x, op=bps.Sum, prescale_factor=0.5, postscale_factor=3.0, name=f"scaled.{mode}")
    ):
        np.testing.assert_allclose(run(x), 1.5 * everything.sum(0), rtol=1e-6)


def test_every_operation_and_factor(job):
    job.run(operations)


def uneven():
    """Rank r has r + 1 batches, and makes so many calls without a name."""
    import jax
    import jax.numpy as jnp
    import optax

    import byteps.jax as bps

    rank, size = bps.rank(), bps.size()
    optimizer = bps.distributed(optax.sgd(1.0), name="uneven")

    @jax.jit
    def step(weight):
        updates, _ = optimizer.update(jax.grad(lambda w: w.sum())(weight), optimizer.init(weight), weight)
        return optax.apply_updates(weight, updates)

    weight = jnp.zeros(2)
    for _ in range(rank + 1):
        weight = step(weight)
        bps.push_pull(jnp.ones(3))
    last = bps.join()
    assert last == size - 1
    assert float(weight[0]) == pytest.approx(-sum((size - batch) / size for batch in range(rank + 1)))
    weight = step(bps.broadcast_parameters(weight, last))
    assert float(bps.push_pull(jnp.ones(1), op=bps.Sum)[0]) == size
    assert bps.allgather(jnp.asarray([rank])).tolist() == list(range(size))
    with pytest.raises(ValueError, match="inside jit"):
        jax.jit(lambda: bps.join())()
    assert bps.is_initialized() and not bps.mpi_built() and bps.cross_size() * bps.local_size() == size
    return weight.tolist()


def test_ranks_may_have_different_numbers_of_batches(job3):
    results = job3.run(uneven)
    assert results == [results[0]] * 3


def scatter_much():
    import jax.numpy as jnp

    import byteps.jax as bps

    return bps.reducescatter(jnp.ones(interrupted.ELEMENTS), op=bps.Sum)


def reduce_much():
    import jax.numpy as jnp

    import byteps.jax as bps

    return bps.push_pull_tree([jnp.ones(interrupted.ELEMENTS)] * 2, name="interrupted")


@pytest.mark.parametrize("call", [scatter_much, reduce_much])
def test_ctrl_c_frees_nothing_that_is_still_written_to(job2, call):
    interrupted.check(job2, call)


def wrong_arguments():
    import jax
    import jax.numpy as jnp

    import byteps.jax as bps

    x = jnp.ones(2)
    for message, call in (
        ("Adasum", lambda: bps.push_pull(x, op=bps.Adasum)),
        ("both given", lambda: bps.push_pull(x, average=True, op=bps.Sum)),
        ("op is 'Mean'", lambda: bps.push_pull(x, op="Mean")),
        ("go with Sum and Average only", lambda: bps.push_pull(x, op=bps.Max, prescale_factor=2.0)),
        ("average of a bool", lambda: bps.push_pull(x > 0)),
        ("float8_e4m3fn is not supported", lambda: bps.push_pull(x.astype(jnp.float8_e4m3fn))),
        ("complex64 is not supported", lambda: bps.push_pull(x.astype(jnp.complex64), op=bps.Min)),
        ("less than a byte", lambda: bps.broadcast(x.astype(jnp.int4))),
        ("NUL", lambda: bps.push_pull(x, name="a\0b")),
        ("root_rank is 3", lambda: bps.broadcast(x, root_rank=3)),
        ("is not in the process set", lambda: bps.push_pull(x, process_set=bps.ProcessSet([1 - bps.rank()]))),
        ("push_pull_async() inside jit", lambda: jax.jit(lambda: bps.push_pull_async(x))()),
        ("with splits inside jit", lambda: jax.jit(lambda: bps.alltoall(x, [1, 1]))()),
        ("3 rows among 2 ranks", lambda: bps.alltoall(jnp.ones(3))),
        ("use broadcast_object", lambda: bps.broadcast_parameters({"a": "text"})),
        ("has no gradient", lambda: jax.grad(lambda x: bps.push_pull(x, op=bps.Max, name="max.grad").sum())(x)),
    ):
        for run in (call, jax.jit(call)) if "jit" not in message else (call,):
            with pytest.raises((ValueError, NotImplementedError)) as caught:
                run()
            assert message in str(caught.value), (message, caught.value)
    handle = bps.push_pull_async(x)
    np.testing.assert_allclose(bps.synchronize(handle), x)
    for call in (bps.synchronize, bps.poll):
        with pytest.raises(ValueError, match="used once"):
            call(handle)
    with pytest.raises(ValueError, match="expected a handle"):
        bps.synchronize(3)
    return True


def test_wrong_arguments_are_told_before_anything_travels(job2):
    assert job2.run(wrong_arguments) == [True, True]


def process_sets():
    import jax.numpy as jnp

    import byteps.jax as bps

    rank = bps.rank()
    pair, other = bps.ProcessSet([0, 2]), bps.ProcessSet([1, 2])
    for mode, run in both(
        lambda mode, x: [
            bps.push_pull(x, name=f"same.{mode}", process_set=one) for one in (pair, other) if one.included()
        ]
    ):
        results = run(jnp.full(3, float(rank)))
        wanted = {0: [1.0], 1: [1.5], 2: [1.0, 1.5]}[rank]
        assert [float(result[0]) for result in results] == wanted, mode
    if pair.included():
        assert bps.broadcast_object({"from": rank}, root_rank=2, process_set=pair) == {"from": 2}
        np.testing.assert_allclose(bps.allgather(jnp.asarray([rank]), process_set=pair), [0, 2])
        np.testing.assert_allclose(bps.broadcast(jnp.asarray([rank]), root_rank=2, process_set=pair), [2])


def test_process_sets_do_not_disturb_each_other(job3):
    job3.run(process_sets)


def broadcasts():
    import jax
    import jax.numpy as jnp

    import byteps.jax as bps

    rank, size = bps.rank(), bps.size()
    for root in range(size):
        nan = jnp.full(3, jnp.nan if rank != root else 7.0)
        for mode, run in both(lambda mode, x: bps.broadcast(x, root, name=f"b.{mode}.{root}")):
            np.testing.assert_allclose(run(nan), [7.0] * 3, err_msg=mode)
    for dtype in (jnp.float8_e4m3fn, jnp.complex64, jnp.bool_, jnp.uint16):
        x = jnp.asarray([rank, 1, 0]).astype(dtype)
        for _, run in both(lambda mode, x: bps.broadcast(x, 0, name=f"d.{mode}.{x.dtype}")):
            assert run(x).dtype == dtype
            np.testing.assert_array_equal(np.asarray(run(x)), np.asarray(jnp.asarray([0, 1, 0]).astype(dtype)))

    def loss(x):  # of all ranks: (rank + 1) * sum of root 0's x
        return (bps.broadcast(x, 0, name="b.grad") * (rank + 1)).sum()

    wanted = size * (size + 1) / 2 if rank == 0 else 0
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(jnp.ones(2)), [wanted] * 2)


def test_broadcasts_of_every_root_and_dtype(job):
    job.run(broadcasts)


def gathers():
    import jax
    import jax.numpy as jnp

    import byteps.jax as bps

    rank, size = bps.rank(), bps.size()
    total = sum(range(size))
    for _, run in both(lambda mode, x: bps.allgather(x, name=f"g.{mode}")):
        result = run(jnp.full((2, 3), rank))
        np.testing.assert_array_equal(result, np.repeat(np.arange(size), 2)[:, None] * np.ones((1, 3)))
    ragged = bps.allgather(jnp.full((rank, 2), rank), name="ragged")
    np.testing.assert_array_equal(ragged, np.concatenate([np.full((one, 2), one) for one in range(size)]))
    np.testing.assert_array_equal(bps.allgather(jnp.float32(rank)), np.arange(size))
    rows = jnp.arange(7.0)[:, None] * jnp.ones(2) + rank
    mine = np.array_split(np.arange(7.0)[:, None] * np.ones(2) * size + total, size)[rank]
    for _, run in both(lambda mode, x: bps.reducescatter(x, op=bps.Sum, name=f"r.{mode}")):
        np.testing.assert_allclose(run(rows), mine)
    for _, run in both(lambda mode, x: bps.reducescatter(x, name=f"ra.{mode}")):
        np.testing.assert_allclose(run(rows), mine / size, rtol=1e-6)
    parts = jnp.arange(2.0 * size) + 100 * rank
    wanted = np.concatenate([100 * one + np.arange(2.0) + 2 * rank for one in range(size)])
    for _, run in both(lambda mode, x: bps.alltoall(x, name=f"a.{mode}")):
        np.testing.assert_allclose(run(parts), wanted)
    sent = [rank + to for to in range(size)]
    got, counts = bps.alltoall(jnp.concatenate([jnp.full(n, 10 * rank + to) for to, n in enumerate(sent)]), sent)
    np.testing.assert_array_equal(counts, [rank + source for source in range(size)])
    np.testing.assert_array_equal(
        got, np.concatenate([np.full(rank + source, 10 * source + rank) for source in range(size)])
    )

    weights = jnp.arange(2.0 * size) + rank  # of the gathered rows

    def loss(x):
        gathered = bps.allgather(x, name="g.grad")
        scattered = bps.reducescatter(gathered[:-1] * weights[:-1], op=bps.Average, name="r.grad")
        return (scattered * (rank + 1)).sum() + (bps.alltoall(gathered, name="a.grad") * weights).sum()

    gradient = jax.jit(jax.grad(loss))(jnp.ones(2))
    owner = np.repeat(np.arange(size), [len(part) for part in np.array_split(np.arange(2 * size - 1), size)])
    all_weights = np.arange(2.0 * size) + np.arange(size)[:, None]  # [rank, row]
    back = np.zeros(2 * size)
    back[:-1] = (all_weights[:, :-1] * (owner + 1) / size).sum(0)
    for source in range(size):
        for to in range(size):
            back[2 * to : 2 * to + 2] += all_weights[to, 2 * source : 2 * source + 2]
    np.testing.assert_allclose(gradient, back[2 * rank : 2 * rank + 2], rtol=1e-5)
    batch = jax.jit(jax.vmap(lambda x: bps.reducescatter(x, op=bps.Sum, name="r.batch")))(rows.T)
    np.testing.assert_allclose(batch, mine.T)
    batch = jax.jit(jax.vmap(lambda x: bps.allgather(x, name="g.batch")))(jnp.full((3, 1), rank))
    np.testing.assert_allclose(batch, np.arange(size) * np.ones((3, 1)))


def test_gathers_scatters_and_their_gradients(job):
    job.run(gathers)


def _same_function(kept=[]):  # for the life of the process
    import jax

    import byteps.jax as bps

    if not kept:
        kept.append(jax.jit(lambda x: bps.alltoall(bps.allgather(x), name="compiled")))
    return kept[0]


def independent_collectives():
    """In a small program XLA runs one call after another, in an order of its own."""
    import jax
    import jax.numpy as jnp

    import byteps.jax as bps

    rank, size = bps.rank(), bps.size()

    @jax.jit
    def run(x):
        parts = bps.alltoall(x, name="small.alltoall"), bps.reducescatter(x, op=bps.Sum, name="small.scatter")
        return *parts, bps.allgather(x[0], name="small.allgather"), bps.push_pull(x[1:], name="small.sum", op=bps.Sum)

    traded, share, gathered, summed = run(jnp.arange(float(size)) + 10 * rank)
    np.testing.assert_array_equal(traded, 10 * np.arange(size) + rank)
    np.testing.assert_array_equal(gathered, 10 * np.arange(size))
    total = np.arange(float(size)) * size + 10 * sum(range(size))
    np.testing.assert_array_equal(share, total[rank : rank + 1])
    np.testing.assert_array_equal(summed, total[1:])


def test_collectives_that_do_not_need_each_other_start_in_one_order_in_a_small_program(job3):
    job3.run(independent_collectives)


def compiled_before(shift):
    """In the job, and in one that another layer has joined, as another rank."""
    import jax.numpy as jnp

    from byteps._core import session

    rank, size = session.rank(), session.size()
    for _ in range(2):
        traded = _same_function()(jnp.float32(rank))
        np.testing.assert_array_equal(traded, [rank] * size)
        session.suspend()
        rank = (rank + shift) % size
        session.resume(size, 2, rank)


def test_compiled_functions_know_their_rank_in_the_next_job(job3):
    job3.run(compiled_before, 1)
    job3.run(compiled_before, 2)  # which brings each back to its own


def alone_in_a_set():
    import jax
    import jax.numpy as jnp
    import optax

    import byteps.jax as bps

    pair = bps.ProcessSet([0, 2])
    optimizer = bps.distributed(optax.sgd(1.0), process_set=pair)
    gradient = jnp.ones(2) * (bps.rank() + 1 if pair.included() else 5)
    updates, _ = jax.jit(lambda x: optimizer.update(x, optimizer.init(x)))(gradient)
    np.testing.assert_array_equal(updates, [-2.0 if pair.included() else -5.0] * 2)
    other = {"other": jnp.ones(3) * bps.rank()}
    everyone = bps.distributed(optax.sgd(1.0))
    np.testing.assert_array_equal(everyone.update(other, everyone.init(other))[0]["other"], [-1.0] * 3)


def test_a_rank_outside_of_the_process_set_trains_alone(job3):
    job3.run(alone_in_a_set)


def trees():
    import jax
    import jax.numpy as jnp

    import byteps.jax as bps

    rank = bps.rank()
    mine = {
        "w": [jnp.full((2, 3), rank, jnp.bfloat16), jnp.zeros((0, 4))],
        "double": np.full(2, rank + 1e-12),
        "count": rank,
        "flag": rank == 1,
        "rate": np.float64(rank / 3),
        "key": jax.random.key(rank),
        "nothing": None,
    }
    got = bps.broadcast_parameters(mine, root_rank=1)
    assert jax.tree.structure(got) == jax.tree.structure(mine)
    assert got["w"][0].dtype == jnp.bfloat16 and (np.asarray(got["w"][0], np.float32) == 1).all()
    assert isinstance(got["double"], np.ndarray) and (got["double"] == 1 + 1e-12).all()
    assert (got["count"], got["flag"], got["rate"]) == (1, True, 1 / 3) and type(got["count"]) is int
    assert (jax.random.key_data(got["key"]) == jax.random.key_data(jax.random.key(1))).all()
    inside = jax.jit(lambda tree: bps.broadcast_tree(tree, 1, name="inside"))({"a": jnp.full(3, rank), "b": rank})
    assert (np.asarray(inside["a"]) == 1).all() and int(inside["b"]) == 1
    assert bps.broadcast_object(("any", rank), root_rank=1) == ("any", 1)
    assert bps.allgather_object(rank * "x") == ["x" * one for one in range(bps.size())]


def test_trees_and_objects_are_broadcast(job3):
    job3.run(trees)


def differing_trees():
    import jax.numpy as jnp

    import byteps.jax as bps

    bps.broadcast_parameters({"a": jnp.ones(3 + (bps.rank() == 1)), "b": jnp.ones(2)})


def test_trees_that_differ_are_told_on_all_ranks_before_they_travel(job3):
    failures = job3.failures(differing_trees)
    assert [failure.kind for failure in failures] == ["ValueError"] * 3
    assert all("differ on rank 1 from those of root rank 0" in failure.text for failure in failures)
    assert "['a']: float32[4]" in failures[1].text
