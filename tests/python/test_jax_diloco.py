"""byteps.jax.diloco: what all ranks have in common is that of a dull model, coded or in fragments, and goes on from a
checkpoint."""

import numpy as np
import pytest

pytest.importorskip("jax")

import jax_jobs as fixtures

job2, jax_jobs = fixtures.job2, fixtures.jax_jobs

STEPS = 12


def parameters():
    import jax.numpy as jnp

    generator = np.random.default_rng(3)
    tree = {"first": {"w": (5, 4), "b": (4,)}, "second": [(4, 3), (3,)]}
    import jax

    return jax.tree_util.tree_map(
        lambda shape: jnp.asarray(generator.standard_normal(shape), jnp.float32),
        tree,
        is_leaf=lambda each: isinstance(each, tuple),
    )


def inner_step(params, rank, step):
    """One of training, which depends on the rank: exact in float32."""
    import jax

    generator = np.random.default_rng(1000 * rank + step)
    return jax.tree_util.tree_map(
        lambda each: each - np.float32(0.125) * generator.integers(-4, 5, each.shape).astype(np.float32), params
    )


def leaves_of(params):
    import jax

    return [np.asarray(each) for each in jax.tree_util.tree_leaves(params)]


def trained(steps=STEPS, stop=None, **options):
    """Its parameters after so many steps; at `stop` state and parameters go through bytes, as with a checkpoint."""
    import pickle

    import byteps.jax as bps

    outer = bps.diloco(name=f"diloco {sorted(options)} {stop}", **options)
    params = bps.broadcast_parameters(parameters(), root_rank=0)
    state = outer.init(params)
    for step in range(steps):
        params, state = outer.update(inner_step(params, bps.rank(), step), state)
        if step == stop:
            params, state = pickle.loads(pickle.dumps((params, state)))
    return leaves_of(params), [np.asarray(each) for each in state.theta]


def dull(sync_every, lr=0.7, momentum=0.9, nesterov=True, parts=((0, 1, 2, 3),), steps=STEPS):
    """The parameters of both ranks."""
    both = [leaves_of(parameters()) for _ in range(2)]
    theta = leaves_of(parameters())
    moments = [np.zeros_like(each) for each in theta]
    apart = sync_every // len(parts)
    for step in range(1, steps + 1):
        both = [leaves_of(inner_step(params, rank, step - 1)) for rank, params in enumerate(both)]
        for part, places in enumerate(parts):
            if step % sync_every != (part + 1) * apart % sync_every:
                continue
            for i in places:
                delta = (theta[i] - both[0][i] + theta[i] - both[1][i]) / 2
                moments[i] = momentum * moments[i] + delta
                theta[i] = theta[i] - lr * (delta + momentum * moments[i] if nesterov else moments[i])
                both[0][i] = both[1][i] = theta[i]
    return both


@pytest.mark.parametrize(
    "options, of_dull",
    [
        ({"sync_every": 4}, {"sync_every": 4}),
        ({"sync_every": 3, "outer_lr": 1.0, "outer_momentum": 0.0}, {"sync_every": 3, "lr": 1.0, "momentum": 0.0}),
        ({"sync_every": 6, "nesterov": False}, {"sync_every": 6, "nesterov": False}),
        ({"sync_every": 4, "fragments": 2}, {"sync_every": 4, "parts": ((0, 1), (2, 3))}),
    ],
)
def test_parameters_are_those_of_a_dull_model(job2, options, of_dull):
    found = job2.run(lambda: trained(**options)[0])
    for mine, expected in zip(found, dull(**of_dull)):
        for one, other in zip(mine, expected):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


def test_what_is_coded_is_in_common_all_the_same_bit_for_bit(job2):
    def train():
        import byteps.jax as bps

        return trained(steps=44, sync_every=4, compression=bps.Compression.int4(error_feedback=True))

    (mine, theta), (other, theirs) = job2.run(train)
    for one, two in zip(mine + theta, other + theirs):
        np.testing.assert_array_equal(one, two)


def test_it_goes_on_from_a_checkpoint_as_if_nothing_had_been(job2):
    whole = job2.run(lambda: trained(sync_every=4, fragments=2)[0])
    parted = job2.run(lambda: trained(sync_every=4, fragments=2, stop=5)[0])
    for mine, other in zip(whole, parted):
        for one, two in zip(mine, other):
            np.testing.assert_array_equal(one, two)


def test_parameters_that_differ_are_an_error_on_all_ranks(job2):
    def begin():
        import byteps.jax as bps

        params = parameters()
        params["first"]["b"] = params["first"]["b"] + bps.rank()
        with pytest.raises(ValueError, match="DiLoCo: the parameters differ(.|\n)*broadcast_parameters"):
            bps.diloco(sync_every=4).init(params)

    job2.run(begin)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"sync_every": 0}, "sync_every is 0"),
        ({"sync_every": 5, "fragments": 2}, "make it a multiple"),
        ({"sync_every": 8, "fragments": 8}, "there are 4 parameters"),
        ({"sync_every": 4, "outer_momentum": 2}, "outer_momentum is 2"),
    ],
)
def test_what_cannot_be_is_named(job2, options, words):
    def begin():
        import byteps.jax as bps

        with pytest.raises(ValueError, match=words):
            bps.diloco(**options).init(parameters())

    job2.run(begin)


def test_momentum_of_a_compressor_is_refused(job2):
    def begin():
        import byteps.jax as bps

        with pytest.raises(ValueError, match="the momentum of DiLoCo is outer_momentum"):
            bps.diloco(sync_every=4, compression=bps.Compression.topk(k=0.5, momentum=0.9))

    job2.run(begin)


def test_integers_and_doubles_are_refused_by_their_path(job2):
    def begin():
        import byteps.jax as bps

        with pytest.raises(ValueError, match=r"\['count'\] is of int32"):
            bps.diloco(sync_every=4).init({"count": np.arange(3, dtype=np.int32)})

    job2.run(begin)
