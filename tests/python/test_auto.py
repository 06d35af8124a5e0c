"""Compression.auto: what is chosen, by all ranks alike, once in a job."""

import contextlib
import importlib.util
import os
import re

import pytest
from cluster import Cluster

from byteps._core import auto, session
from byteps._core.auto import Trial, choose, words

try:
    import torch

    import byteps.torch as bps
except ImportError:
    torch = bps = None  # in a worker with MXNet


@pytest.fixture(scope="module")
def apart():
    """Two workers, each on a machine of its own."""
    with Cluster(hosts=(1, 1)) as job:
        yield job


def trials(none, bf16, int8, int4, cpu=(1, 1, 1, 1)):
    return [Trial(*each) for each in zip(("none", "bf16", "int8", "int4"), (none, bf16, int8, int4), cpu)]


def test_the_mildest_is_chosen_that_is_clearly_faster_than_milder_ones():
    assert choose(trials(100, 52, 28, 16)) == "int4"
    assert choose(trials(100, 52, 28, 22)) == "int8"
    assert choose(trials(100, 60, 50, 46)) == "bf16"
    assert choose(trials(100, 90, 70, 60)) == "int8", "that of 16 bits is not worth it, that of 8 is"
    assert choose(trials(100, 80, 78, 76)) == "none"


def test_nothing_is_chosen_that_takes_processors_which_training_would_miss():
    assert choose(trials(100, 52, 28, 16, cpu=(10, 9, 11, 12))) == "bf16"
    assert choose(trials(100, 52, 28, 16, cpu=(10, 11, 11, 10))) == "int4"


def test_it_says_what_and_why():
    said = words("int8", 4_194_304, trials(0.1, 0.052, 0.028, 0.022, cpu=(0.01, 0.01, 0.01, 0.01)))
    assert said.startswith("byteps: compression auto is int8: gradients of 4.2 MB take none 100 ms (processor 10 ms), ")
    assert "here; it is the mildest with less than 0.75 of milder ones' time, and no more processor time" in said
    assert "here; no other takes less than 0.75 of that time" in words("none", 4_194_304, trials(1, 1, 1, 1))


def test_ranks_that_do_not_all_ask_for_it_are_told_by_its_name():
    def train():
        optimizer_of("some", compression=bps.Compression.auto if bps.rank() == 0 else bps.Compression.none)
        bps.push_pull(torch.zeros(3), name="something else")

    with contextlib.closing(Cluster(hosts=(1, 1)).__enter__()) as job:  # it does not end well
        for failure in job.failures(train):
            assert "all workers wait" in str(failure) and "BYTEPS_COMPRESSION=auto" in str(failure), failure


def optimizer_of(name, **options):
    model = torch.nn.Linear(300, 300)
    return model, bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), name=name, **options
    )


def played(rank, slower):
    """The line and the processors of a rank are played: `slower` has the bytes of each format at this rank."""
    count = []

    def exchange(self, format, feeds):
        count.append(format)
        return 0.06 * slower[format], 0.001

    real, auto._Bench._exchange = auto._Bench._exchange, exchange
    return count, lambda: setattr(auto._Bench, "_exchange", real)


def test_ranks_that_measure_different_lines_make_one_choice_and_only_once(apart):
    def train():
        plain, float16, int8, int4 = 0, 2, 3, 4
        # Of rank 0 alone int4 is the best. Rank 1, whose cable is another, sees no gain beyond int8.
        mine = [{plain: 1, float16: 0.6, int8: 0.3, int4: 0.1}, {plain: 1, float16: 0.6, int8: 0.3, int4: 0.29}]
        count, restore = played(bps.rank(), mine[bps.rank()])
        try:
            model, optimizer = optimizer_of("first", compression=bps.Compression.auto)
            assert optimizer._gradients.compression == bps.Compression.int8
            tried = len(count)
            os.environ["BYTEPS_COMPRESSION"] = "auto"
            _, second = optimizer_of("second")
            assert second._gradients.compression == bps.Compression.int8
            assert len(count) == tried > 4, "in a job the choice is made once"
        finally:
            os.environ.pop("BYTEPS_COMPRESSION", None)
            restore()
        before = bps.metrics()
        model(torch.ones(2, 300)).sum().backward()
        optimizer.step()
        after = bps.metrics()
        pushed = after.pushed_bytes - before.pushed_bytes
        return pushed / (after.pushed_wire_bytes - before.pushed_wire_bytes)

    assert all(ratio > 3.5 for ratio in apart.run(train))


def test_a_trial_on_this_machine_ends_with_one_choice_for_all(apart):
    def choose_anew():
        session.current().decided.clear()
        return repr(auto.choice(bps.Compression))

    first, second = apart.run(choose_anew)
    assert first == second


def test_what_cannot_be_is_an_error_that_says_what_to_do(apart):
    def train():
        os.environ["BYTEPS_DETERMINISTIC"] = "1"
        try:
            with pytest.raises(ValueError, match="BYTEPS_DETERMINISTIC=1 asks for runs that repeat bit for bit"):
                optimizer_of("third", compression=bps.Compression.auto)
        finally:
            del os.environ["BYTEPS_DETERMINISTIC"]
        with pytest.raises(ValueError, match=re.escape("Compression.auto: it is for optimizers")):
            bps.push_pull(torch.zeros(64, 64), compression=bps.Compression.auto)

    apart.run(train)


def scoped(layer, ranks):
    return {"process_set": layer.ProcessSet(ranks)} if ranks else {}


def by_jax(ranks=()):
    import optax

    import byteps.jax as layer

    layer.DistributedOptimizer(optax.sgd(0.1), compression=layer.Compression.auto, **scoped(layer, ranks))
    return layer.Compression


def by_tensorflow(ranks=()):
    import tensorflow as tf

    import byteps.tensorflow as layer

    variable = tf.Variable([1.0, 2.0])
    for _ in range(2):  # one is made in each step
        options = {"compression": layer.Compression.auto, **scoped(layer, ranks)}
        with layer.DistributedGradientTape(tf.GradientTape(), **options) as tape:
            loss = tf.reduce_sum(variable * variable)
        tape.gradient(loss, [variable])
    return layer.Compression


def by_keras(ranks=()):
    import keras

    import byteps.keras as layer

    options = {"compression": layer.Compression.auto, **scoped(layer, ranks)}
    layer.DistributedOptimizer(keras.optimizers.SGD(0.1), **options)
    return layer.Compression


def by_mxnet(ranks=()):
    import mxnet

    import byteps.mxnet as layer

    layer.DistributedOptimizer(mxnet.optimizer.SGD(), compression=layer.Compression.auto, **scoped(layer, ranks))
    return layer.Compression


LAYERS = {
    "jax": (by_jax, "job2"),
    "tensorflow": (by_tensorflow, "tf_job2"),
    "keras": (by_keras, "tf_job2"),
    "mxnet": (by_mxnet, "mxnet_job2"),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_only_the_ranks_of_a_process_set_choose(layer, request):
    use, fixture = LAYERS[layer]
    if fixture != "mxnet_job2" and not importlib.util.find_spec(layer):
        pytest.skip(f"{layer} is not installed")

    def make():
        session.current().decided.clear()
        use([0])
        return len(session.current().decided)

    assert request.getfixturevalue(fixture).run(make) == [0, 0], "one alone has nothing to try"


@pytest.mark.parametrize("layer", LAYERS)
def test_every_framework_chooses_once_and_all_ranks_the_same(layer, request):
    use, fixture = LAYERS[layer]
    if fixture != "mxnet_job2" and not importlib.util.find_spec(layer):  # imported are they by workers alone
        pytest.skip(f"{layer} is not installed")

    def make():
        session.current().decided.clear()
        choices = use()
        (chosen,) = session.current().decided.values()
        return [name for name in ("none", "bf16", "int8") if getattr(choices, name, None) == chosen] or ["int4"]

    first, second = request.getfixturevalue(fixture).run(make)
    assert first == second


def test_alone_nothing_is_tried(alone):
    _, optimizer = optimizer_of("alone", compression=bps.Compression.auto)
    assert optimizer._gradients.compression is bps.Compression.none
