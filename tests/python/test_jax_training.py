"""Training with byteps.jax: the optimizer, the examples, overlap, failures."""

import functools
import re
import time

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("optax")

import jax_jobs as fixtures
from cluster import JAX, Cluster, launch

job, job2, job3, jax_jobs = fixtures.job, fixtures.job2, fixtures.job3, fixtures.jax_jobs


def linear_model_in_float64():
    """The same steps distributed and alone; the largest difference."""
    import jax
    import jax.numpy as jnp
    import optax

    import byteps.jax as bps

    jax.config.update("jax_enable_x64", True)
    rank, size = bps.rank(), bps.size()
    generator = np.random.default_rng(0)
    inputs, targets = generator.standard_normal((8, 12, 5)), generator.standard_normal((8, 12))
    params = {"w": jnp.zeros(5), "b": jnp.zeros(())}

    def loss(params, x, y):
        return ((x @ params["w"] + params["b"] - y) ** 2).mean()

    def train(optimizer, share, jit):
        @jit
        def step(params, state, x, y):
            updates, state = optimizer.update(jax.grad(loss)(params, x, y), state, params)
            return optax.apply_updates(params, updates), state

        trained, state = params, optimizer.init(params)
        for x, y in zip(inputs, targets):
            trained, state = step(trained, state, x[share], y[share])
        return trained

    adam = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.1))
    for mode, jit, inner, passes in (
        ("jit", jax.jit, adam, 1),
        ("jit", jax.jit, adam, 2),
        ("now", lambda function: function, optax.sgd(0.1), 1),
    ):
        wanted = train(optax.MultiSteps(inner, passes).gradient_transformation(), slice(None), jax.jit)
        optimizer = bps.distributed(inner, name=f"{mode}.{passes}", backward_passes_per_step=passes)
        got = train(optimizer, slice(rank, None, size), jit)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted)):
            np.testing.assert_allclose(a, b, rtol=1e-6)
    jax.config.update("jax_enable_x64", False)


def test_parameters_are_those_of_a_single_process(job2):
    job2.run(linear_model_in_float64)


def two_models_in_one_step():
    import jax
    import jax.numpy as jnp
    import optax

    import byteps.jax as bps

    first, second = bps.distributed(optax.sgd(1.0)), bps.distributed(optax.sgd(1.0))

    @jax.jit
    def step(a, b):
        return first.update(a, first.init(a))[0], second.update(b, second.init(b))[0]

    a, b = step({"w": jnp.full(3, float(bps.rank()))}, {"w": jnp.full(3, 10.0 * bps.rank())})
    mean = (bps.size() - 1) / 2
    np.testing.assert_allclose(a["w"], np.full(3, -mean))
    np.testing.assert_allclose(b["w"], np.full(3, -10 * mean))


def two_models_in_turn():
    """Two programs, each with its own model, called one after another without waiting."""
    import jax
    import jax.numpy as jnp
    import optax

    import byteps.jax as bps

    optimizers = [bps.distributed(optax.sgd(1.0)) for _ in range(2)]
    steps = [jax.jit(lambda x, o=optimizer: o.update(x, o.init(x))[0]) for optimizer in optimizers]
    results = [step(jnp.full(4, 10.0**i * bps.rank() + n)) for n in range(5) for i, step in enumerate(steps)]
    mean = (bps.size() - 1) / 2
    wanted = [np.full(4, -(10.0**i * mean + n)) for n in range(5) for i in range(2)]
    np.testing.assert_allclose(results, wanted, rtol=1e-6)


def test_two_equal_models_in_turn_are_kept_apart(job2):
    job2.run(two_models_in_turn)


def test_two_equal_models_are_kept_apart(job2):
    job2.run(two_models_in_one_step)


def exchanges_of_a_step():
    """Those of a compiled step, as XLA prints them."""
    import jax
    import jax.numpy as jnp
    import optax

    import byteps.jax as bps

    params = [jnp.ones((64, 64)) for _ in range(6)]
    optimizer = bps.distributed(optax.adam(1e-3), name="in.place")

    def loss(params, x):
        for weight in params:
            x = jnp.tanh(x @ weight)
        return x.sum()

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, x):
        updates, state = optimizer.update(jax.grad(loss)(params, x), state, params)
        return optax.apply_updates(params, updates), state

    text = step.lower(params, optimizer.init(params), jnp.ones((8, 64))).compile().as_text()
    return [line for line in text.splitlines() if 'custom_call_target="byteps_exchange"' in line]


def test_sums_of_gradients_are_in_place_and_need_no_copy(job2):
    for calls in job2.run(exchanges_of_a_step):
        assert len(calls) == 6
        for call in calls:
            assert "output_to_operand_aliasing={{}: (0, {})}" in call
            assert not re.search(r"custom-call\([^)]*%copy", call)


def operands_that_are_still_needed():
    """A sum is in place: what else reads its operand must find it as it was."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import byteps.jax as bps

    size = bps.size()
    mine = jnp.arange(6.0) + 10 * bps.rank()
    whole = np.arange(6.0) * size + 10 * size * (size - 1) / 2

    @jax.jit
    def step(x, kept):
        y = x * 2
        one, other = bps.push_pull(y, False, name="needed.one"), bps.push_pull(y, False, name="needed.other")
        lifted = jax.vmap(lambda row: bps.push_pull(row, False, name="needed.rows"))(jnp.stack([y, x]))
        chosen = jax.lax.cond(y[0] >= 0, lambda: one + y, lambda: other - y)

        def body(carry, _):
            summed = bps.push_pull(carry, False, name="needed.loop")
            return carry, summed + carry

        carried, rows = jax.lax.scan(body, y, None, length=3)
        slope = jax.grad(lambda x: (bps.push_pull(x, False, name="needed.slope") * x).sum())(kept)
        return one, other, y, chosen, lifted, carried, rows, slope, kept

    one, other, y, chosen, lifted, carried, rows, slope, kept = step(mine, mine)
    np.testing.assert_array_equal(one, 2 * whole)
    np.testing.assert_array_equal(other, 2 * whole)
    np.testing.assert_array_equal(y, 2 * mine)
    np.testing.assert_array_equal(chosen, 2 * whole + 2 * mine)
    np.testing.assert_array_equal(lifted, np.stack([2 * whole, whole]))
    np.testing.assert_array_equal(carried, 2 * mine)
    np.testing.assert_array_equal(rows, np.stack([2 * whole + 2 * mine] * 3))
    np.testing.assert_array_equal(slope, 2 * whole)  # the sum, and the sum of what all multiply it with
    np.testing.assert_array_equal(kept, mine)


def test_what_else_needs_the_operand_of_a_sum_finds_it_as_it_was(job3):
    job3.run(operands_that_are_still_needed)


def test_digits_are_learned_as_in_a_single_process():
    output = launch("examples/jax/train_digits.py", "--epochs", 15)  # compiled as users compile it
    result = re.search(r"DIGITS accuracy=(\S+) difference=(\S+)", output)
    assert float(result[1]) >= 0.97 and float(result[2]) < 1e-9


# ---- failures


def mismatch(kind):
    import jax
    import jax.numpy as jnp

    import byteps.jax as bps

    rank = bps.rank()
    x = jnp.ones(3 + rank if kind == "shape" else 3, jnp.int32 if rank and kind == "dtype" else jnp.float32)
    if kind == "complex":
        x = jnp.ones(3, jnp.complex64) if rank else jnp.ones((3, 2))
    others = [jnp.full(1000, index) for index in range(20)]

    @jax.jit
    def program(x, others):  # in the midst of others, which end well
        results = [bps.push_pull(one, name=f"{kind}.{index}") for index, one in enumerate(others)]
        return results, bps.push_pull(x, average=not (rank and kind == "operation"), name=f"{kind}.wrong")

    jax.block_until_ready(program(x, others))


def float8s():
    import jax.numpy as jnp

    import byteps.jax as bps

    bps.broadcast(jnp.zeros(4, jnp.float8_e5m2 if bps.rank() else jnp.float8_e4m3fn), name="float8s")


def still_works():
    import jax
    import jax.numpy as jnp

    import byteps.jax as bps

    return float(jax.jit(lambda x: bps.push_pull(x, False, name="after.failures"))(jnp.ones(3))[0])


def test_ranks_that_disagree_get_jaxs_exception_with_our_text(job3):
    for kind in ("shape", "dtype", "operation", "complex"):
        for failure in job3.failures(mismatch, kind):
            assert failure is not None and "RuntimeError" in failure.bases, failure
            assert f'tensor "byteps.{kind}.wrong" differs between ranks' in failure.text
    assert "complex64 as float32" in failure.text
    for failure in job3.failures(float8s):
        assert "float8_e4m3fn" in failure.text and "float8_e5m2" in failure.text
    assert job3.run(still_works) == [3.0] * 3


def wait_for_a_peer(rank_that_dies):
    import os

    import jax
    import jax.numpy as jnp

    import byteps.jax as bps

    if bps.rank() == rank_that_dies:
        os._exit(3)
    jax.block_until_ready(jax.jit(lambda x: bps.push_pull(x, name="lonely"))(jnp.ones(3)))


def test_a_dead_peer_ends_a_compiled_program_with_its_name():
    with Cluster(2, layer="byteps.jax", environ={**JAX, "BYTEPS_FAILURE_TIMEOUT_MS": "2000"}) as cluster:
        for worker in cluster.workers:
            worker.tell(wait_for_a_peer, (1,), {})
        tag, error = cluster.workers[0].receive(time.monotonic() + 60)
        assert tag == "error" and "JaxRuntimeError" == error.kind and "worker 1" in error.text, error
        cluster.broken = True


def use_after_shutdown():
    import jax
    import jax.numpy as jnp

    import byteps.jax as bps

    program = jax.jit(lambda x: bps.push_pull(x, False, name="before.and.after"))
    first = float(program(jnp.ones(2))[0])
    bps.shutdown()
    texts = []
    for call in (lambda: program(jnp.ones(2)), lambda: bps.push_pull(jnp.ones(2))):
        try:
            jax.block_until_ready(call())
        except (RuntimeError, ValueError) as error:
            texts.append(str(error))
    bps.init()
    return first, texts, float(program(jnp.ones(2))[0])


def test_a_compiled_program_outlives_the_job_and_serves_the_next():
    with Cluster(2, layer="byteps.jax", environ=JAX) as cluster:
        for first, texts, again in cluster.run(use_after_shutdown):
            assert (first, again) == (2.0, 2.0)
            assert len(texts) == 2 and all("BytePS has not been initialized; use bps.init()." in text for text in texts)
