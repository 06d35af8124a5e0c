"""push_pull inside and outside of jit, in jobs of 1 to 3 workers: results are compared with numpy's."""

import random

import numpy as np
import pytest

pytest.importorskip("jax")

import jax_jobs as fixtures
from counted import pushed_and_pulled
from forked import heard_in_child

job, job2, job3, jax_jobs = fixtures.job, fixtures.job2, fixtures.job3, fixtures.jax_jobs

DTYPES = (
    "float32 float64 float16 bfloat16 uint8 uint16 uint32 uint64 int8 int16 int32 int64 bool complex64 complex128"
).split()
SHAPES = [(), (3, 0, 2), (7,), (2, 3, 4, 5), (70001,)]


def values(rank, shape, dtype):
    """What `rank` has: small integers, so that every sum is exact in every dtype."""
    import jax.numpy as jnp

    generator = np.random.default_rng(rank)
    low = 0 if dtype.startswith(("uint", "bool")) else -8
    whole = generator.integers(low, 2 if dtype == "bool" else 9, shape)
    if dtype.startswith("complex"):
        whole = whole + 1j * generator.integers(-8, 9, shape)
    return np.asarray(whole).astype(jnp.dtype(dtype))


def expected(size, shape, dtype, average):
    everything = [values(rank, shape, dtype) for rank in range(size)]
    if dtype == "bool":
        return np.logical_or.reduce(everything)
    wide = np.complex128 if dtype.startswith("complex") else np.float64
    total = np.sum([one.astype(wide) for one in everything], axis=0)
    if average:
        total = np.trunc(total / size) if "int" in dtype else total / size
    return total.astype(everything[0].dtype)


def check(result, wanted):
    result = np.asarray(result)
    assert result.dtype == wanted.dtype and result.shape == wanted.shape, (result.dtype, result.shape, wanted.shape)
    np.testing.assert_allclose(result.astype(np.complex128), wanted.astype(np.complex128), rtol=2e-2 if
                               wanted.dtype.itemsize == 2 else 1e-6)


def every_dtype_and_shape(x64, shapes):
    import jax
    import jax.numpy as jnp

    import byteps.jax as bps

    jax.config.update("jax_enable_x64", x64)
    rank, size = bps.rank(), bps.size()
    cases = [
        (shape, dtype, average)
        for dtype in DTYPES
        for shape in shapes
        for average in ((False,) if dtype == "bool" else (False, True))
        if x64 or not dtype.endswith(("64", "128")) or dtype == "complex64"
    ]
    mine = [jnp.asarray(values(rank, shape, dtype)) for shape, dtype, _ in cases]
    wanted = [expected(size, *case) for case in cases]

    @jax.jit
    def all_at_once(arrays):  # several hundred under way in one program
        return [
            bps.push_pull(array, average, name=f"jit.{dtype}.{shape}.{average}")
            for array, (shape, dtype, average) in zip(arrays, cases)
        ]

    for result, right in zip(all_at_once(mine), wanted):
        check(result, right)
    handles = [
        bps.push_pull_async(array, average, name=f"now.{dtype}.{shape}.{average}")
        for array, (shape, dtype, average) in zip(mine, cases)
    ]
    for handle, right in zip(handles, wanted):
        check(bps.synchronize(handle), right)
    for array, (shape, dtype, _) in zip(mine, cases):
        check(array, values(rank, shape, dtype))  # not touched
    jax.config.update("jax_enable_x64", False)


def test_every_dtype_in_every_shape_is_summed_and_averaged(job):
    job.run(every_dtype_and_shape, True, SHAPES)


def test_the_dtypes_without_x64(job2):
    job2.run(every_dtype_and_shape, False, [(2, 3)])


def a_part_of_several_frames():
    import jax
    import jax.numpy as jnp

    import byteps.jax as bps

    mine = jnp.asarray(values(bps.rank(), (3_000_001,), "float32"))
    wanted = expected(bps.size(), (3_000_001,), "float32", False)
    check(jax.jit(lambda x: bps.push_pull(x, False, name="large"))(mine), wanted)
    check(bps.push_pull(mine, False, name="large.now"), wanted)


def test_an_array_of_several_parts_is_summed(job3):
    job3.run(a_part_of_several_frames)


def started_in_any_order(seed):
    import jax
    import jax.numpy as jnp

    import byteps.jax as bps

    names = list(range(64))
    random.Random(seed).shuffle(names)
    program = jax.jit(lambda x: {name: bps.push_pull(x * name, False, name=f"order.{name}") for name in names})
    for _ in range(3):
        results = program(jnp.ones(100))
        assert all((np.asarray(results[name]) == name * bps.size()).all() for name in names)


def test_ranks_may_have_their_operations_in_different_orders(job3):
    job3.run_each([(started_in_any_order, (rank,), {}) for rank in range(3)])


# ---- names


def same_name_three_times():
    import jax
    import jax.numpy as jnp

    import byteps.jax as bps

    x = jnp.arange(4.0) + bps.rank()
    total = 4.0 * jnp.arange(4) * 0 + sum(np.arange(4.0) + rank for rank in range(bps.size()))

    @jax.jit
    def program(x):  # different values under one name
        return [bps.push_pull(x * factor, False, name="twice") for factor in (1, 10, 100)]

    for _ in range(5):
        for result, factor in zip(program(x), (1, 10, 100)):
            np.testing.assert_allclose(result, total * factor)

    def body(carry, _):
        return bps.push_pull(carry, name="scanned") + 1, bps.push_pull(carry, False, name="unused.but.exchanged")[0]

    carry, _ = jax.jit(lambda x: jax.lax.scan(body, x, None, length=4, unroll=2))(x)
    np.testing.assert_allclose(carry, total / bps.size() + 4)
    unnamed = jax.jit(lambda x: bps.push_pull(x) + bps.push_pull(x * 2))
    np.testing.assert_allclose(unnamed(x), 3 * total / bps.size(), rtol=1e-6)
    np.testing.assert_allclose(bps.push_pull(x, False), total)
    np.testing.assert_allclose(bps.push_pull(2 * x, False), 2 * total)


def test_one_name_used_several_times_in_a_program_is_kept_apart(job3):
    job3.run(same_name_three_times)


# ---- transformations


def gradients():
    import jax
    import jax.numpy as jnp

    import byteps.jax as bps

    rank, size = bps.rank(), bps.size()
    x = jnp.arange(3.0) + rank
    total = sum(np.arange(3.0) + one for one in range(size))

    def loss(x, name):  # of all ranks: sum over ranks of sum(total**2), so each x has size * 2 * total
        return (bps.push_pull(x, False, name=name) ** 2).sum()

    wanted = size * 2 * total
    np.testing.assert_allclose(jax.grad(loss)(x, "eager"), wanted)
    np.testing.assert_allclose(jax.jit(jax.grad(loss), static_argnums=1)(x, "jit"), wanted)
    np.testing.assert_allclose(jax.grad(jax.jit(loss, static_argnums=1))(x, "of_jit"), wanted)
    _, tangent = jax.jit(lambda x: jax.jvp(lambda x: loss(x, "forward"), (x,), (jnp.ones(3),)))(x)
    np.testing.assert_allclose(tangent, (2 * total * size).sum())
    np.testing.assert_allclose(
        jax.jit(jax.hessian(lambda x: loss(x, "hessian")))(x), 2 * size * size * np.eye(3)
    )
    averaged = jax.jit(jax.grad(lambda x: (bps.push_pull(x, name="mean") * (rank + 1)).sum()))(x)
    np.testing.assert_allclose(averaged, np.full(3, (size + 1) / 2))
    compressed = jax.jit(jax.grad(lambda x: bps.push_pull(x, False, name="c", compression=bps.Compression.bf16).sum()))
    np.testing.assert_allclose(compressed(x), np.full(3, size))


def test_the_gradient_of_a_sum_is_the_sum_of_the_gradients(job3):
    job3.run(gradients)


def batched():
    import jax
    import jax.numpy as jnp

    import byteps.jax as bps

    x = jnp.arange(12.0).reshape(3, 4) + bps.rank()
    wanted = sum(np.arange(12.0).reshape(3, 4) + rank for rank in range(bps.size()))
    for axis in (0, 1):
        summed = jax.vmap(lambda v: bps.push_pull(v, False, name=f"batch.{axis}"), axis, axis)
        np.testing.assert_allclose(jax.jit(summed)(x), wanted)
        np.testing.assert_allclose(summed(x), wanted)
    squares = jax.vmap(jax.grad(lambda v: (bps.push_pull(v, False, name="batch.grad") ** 2).sum()))
    np.testing.assert_allclose(jax.jit(squares)(x), 2 * wanted * bps.size())


def test_a_batch_of_vmap_is_exchanged_as_one_array(job2):
    job2.run(batched)


def control_flow():
    import jax
    import jax.numpy as jnp

    import byteps.jax as bps

    x = jnp.ones(3) * bps.rank()
    mean = (bps.size() - 1) / 2
    looped = jax.jit(lambda x: jax.lax.while_loop(lambda c: c[0] < 10, lambda c: bps.push_pull(c, name="w") + 4, x))
    np.testing.assert_allclose(looped(x + 1), (mean + 1 + 4 * -(-(9 - mean) // 4)) * np.ones(3))
    chosen = jax.jit(lambda p, x: jax.lax.cond(p, lambda x: bps.push_pull(x, name="c"), lambda x: -x, x))
    np.testing.assert_allclose(chosen(True, x), mean * np.ones(3))
    np.testing.assert_allclose(chosen(False, x), -x)
    constant = np.full(3, bps.rank() + 1.0, np.float32)  # not traced, but of the program
    program = jax.jit(lambda: bps.push_pull(constant, False, name="constant"))
    bps.barrier()  # the counters are told once per turn of the worker
    finished = bps.metrics().finished_operations
    assert [float(program()[0]) for _ in range(3)] == [bps.size() * (bps.size() + 1) / 2] * 3
    bps.barrier()
    assert bps.metrics().finished_operations == finished + 3


def test_loops_branches_and_constants(job2):
    job2.run(control_flow)


# ---- forks


def forked_child():
    """The compiled program calls no Python: its custom call refuses."""
    import jax
    import jax.numpy as jnp

    import byteps.jax as bps

    program = jax.jit(lambda x: bps.push_pull(x, False, name="forked"))
    x = jnp.ones(3)
    program(x).block_until_ready()
    heard = heard_in_child(lambda: program(x).block_until_ready())
    assert "this process was forked from a member of a job and is none itself" in heard, heard
    np.testing.assert_array_equal(program(x), [bps.size()] * 3)


class OnGpu:
    """As an array of JAX on a GPU presents itself."""

    class Device:
        platform = "gpu"

        def __str__(self):
            return "cuda:0"

    shape, dtype, ndim = (3,), np.dtype("float32"), 1

    def devices(self):
        return {self.Device()}


def arrays_on_a_gpu():
    import jax
    import jax.numpy as jnp

    import byteps.jax as bps
    from byteps.jax import direct, gather
    from byteps.jax.exchange import Exchange

    before = bps.metrics().finished_operations
    what = Exchange(0)
    for call in (
        lambda: direct.start(OnGpu(), "gpu", what),
        lambda: direct.run_all([(np.ones(3), ("cpu", what)), (OnGpu(), ("gpu", what))]),
        lambda: gather._Memory(OnGpu()),
    ):
        with pytest.raises(ValueError, match="the array is on device 'cuda:0'.*JAX_PLATFORMS=cpu"):
            call()
    program = jax.jit(lambda x: bps.push_pull(x, False, name="compiled for a GPU")).trace(jnp.ones(3))
    with pytest.raises(ValueError, match="the program that exchanges 'compiled for a GPU' is on device 'cuda'.*=cpu"):
        program.lower(lowering_platforms=("cuda",))
    assert bps.metrics().finished_operations == before
    program.lower().compile()


def test_what_is_on_a_gpu_is_refused_before_anything_travels(job2):
    job2.run(arrays_on_a_gpu)


def test_a_compiled_program_is_refused_in_a_forked_child(job2):
    job2.run(forked_child)


# ---- trees and compression


def tree():
    import jax
    import jax.numpy as jnp

    import byteps.jax as bps

    rank, size = bps.rank(), bps.size()
    dense = [jnp.full((3,), rank, jnp.float32), jnp.full((2, 2), 2 * rank, jnp.bfloat16)]
    mine = {"dense": dense, "none": None, "a": rank}
    mean = (size - 1) / 2
    for reduce in (lambda t: bps.push_pull_tree(t, name="now"), jax.jit(lambda t: bps.push_pull_tree(t, name="jit"))):
        result = reduce(mine)
        assert result["none"] is None and jax.tree.structure(result) == jax.tree.structure(mine)
        assert result["dense"][1].dtype == jnp.bfloat16
        np.testing.assert_allclose(result["dense"][0], np.full(3, mean))
        np.testing.assert_allclose(np.asarray(result["dense"][1], np.float32), np.full((2, 2), 2 * mean))
        assert int(result["a"]) == int(mean // 1)
    assert bps.push_pull_tree({}) == {}
    bps.barrier()
    before = pushed_and_pulled(bps.metrics())[0]
    halved = bps.push_pull_tree([jnp.full(1000, rank + 0.5)], compression=bps.Compression.fp16, name="half")
    np.testing.assert_allclose(halved[0], np.full(1000, mean + 0.5))
    bps.barrier()
    assert halved[0].dtype == jnp.float32 and pushed_and_pulled(bps.metrics())[0] - before == 2000


def test_a_tree_is_averaged_with_one_call(job3):
    job3.run(tree)
