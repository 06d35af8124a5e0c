"""onebit, topk, randomk and dithering through a job: what every layer gets is what part_codecs.py, a dull model in
numpy, computes for two workers and a server, round after round, also from a checkpoint."""

import copy
import importlib.util
import os

import numpy as np
import pytest
from cluster import Cluster
from part_codecs import Codec

try:
    import torch
    from torch import nn

    import byteps.torch as bps
except ImportError:
    torch = nn = bps = None  # in a worker with MXNet

COUNT = 3 * 65536 // 4 + 77  # elements, above BYTEPS_MIN_COMPRESS_BYTES; one part
SMALL = 1000
# What a compressor is called with, and how the model is: numbers without a seed follow from names, which differ.
KINDS = {
    "onebit": (("onebit", dict(scaling=True)), dict(kind="onebit", scaling=True)),
    "signs": (("onebit", dict(scaling=False)), dict(kind="onebit")),
    "topk": (("topk", dict(k=0.1)), dict(kind="topk", k=0.1)),
    "some": (("topk", dict(k=100)), dict(kind="topk", k=100)),
    "randomk": (("randomk", dict(k=0.1, seed=2020)), dict(kind="randomk", k=0.1, seed=2020)),
    "linear": (("dithering", dict(k=4, seed=7)), dict(kind="dithering", k=4, seed=7)),
    "natural": (
        ("dithering", dict(k=4, partition="natural", normalize="l2", seed=7)),
        dict(kind="dithering", k=4, natural=True, l2=True, seed=7),
    ),
}


def skip_without(framework, fixture=""):
    """It is not imported here: TensorFlow and torch._dynamo in one process crash."""
    if fixture != "mxnet_job2" and importlib.util.find_spec(framework) is None:
        pytest.skip(f"there is no {framework}")


def values_of(rank, seed=0, count=COUNT):
    return np.random.default_rng(100 * seed + rank).standard_normal(count).astype(np.float32)


class Model:
    """Two workers, or as many, and a server, of one part."""

    def __init__(self, options, ef=False, mu=None, workers=2):
        options = {**options, "ef": ef, "where": (0, 0, 0)}  # numbers that follow from that are for no such test
        self.workers = [Codec(**options, mu=mu) for _ in range(workers)]
        self.server = Codec(**options)

    def average(self, gradients, rate=None, members=None):
        decoded = [worker.code(gradient, rate) for worker, gradient in zip(self.workers, gradients)]
        total = decoded[0].copy()
        for each in decoded[1:]:
            total += each
        mean = total / np.float32(members or len(decoded))
        return mean if self.server.kind == "randomk" else self.server.code(mean)

    def of_seed(self, seed, rate=None):
        return self.average([values_of(rank, seed) for rank in range(len(self.workers))], rate)


def with_momentum_alone(gradients, mu, momentum):
    """Of tensors that are too small to be coded: their average, and what they keep."""
    results = []
    for index, gradient in enumerate(gradients):
        momentum[index] = np.float32(mu) * momentum[index] + gradient
        results.append(gradient + np.float32(mu) * momentum[index])
    return (results[0] + results[1]) / np.float32(2)


# ---- one call


def by_torch(name, method, options):
    mine = torch.tensor(values_of(bps.rank(), seed=3))
    return bps.push_pull(mine, name=name, compression=getattr(bps.Compression, method)(**options)).numpy(force=True)


def by_jax(name, method, options):
    import byteps.jax as layer

    compression = getattr(layer.Compression, method)(**options)
    return np.asarray(layer.push_pull(values_of(layer.rank(), seed=3), name=name, compression=compression))


def by_tensorflow(name, method, options):
    import tensorflow as tf

    import byteps.tensorflow as layer

    compression = getattr(layer.Compression, method)(**options)
    return layer.push_pull(tf.constant(values_of(layer.rank(), seed=3)), name=name, compression=compression).numpy()


def by_keras(name, method, options):
    import byteps.keras as layer

    compression = getattr(layer.Compression, method)(**options)
    return layer.allreduce(values_of(layer.rank(), seed=3), name=name, compression=compression)


def by_mxnet(name, method, options):
    import mxnet as mx

    import byteps.mxnet as layer

    mine = mx.nd.array(values_of(layer.rank(), seed=3))
    return layer.push_pull(mine, name=name, compression=getattr(layer.Compression, method)(**options)).asnumpy()


def calls(call, kinds):
    """By names of their own: the numbers of a seed run on with each use of one."""
    return [call(f"{call.__name__}.{kind}", *KINDS[kind][0]) for kind in kinds]


LAYERS = {
    "torch": (by_torch, "job2"),
    "jax": (by_jax, "job2"),
    "tensorflow": (by_tensorflow, "tf_job2"),
    "keras": (by_keras, "tf_job2"),
    "mxnet": (by_mxnet, "mxnet_job2"),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_every_framework_gets_what_the_model_computes(layer, request):
    call, fixture = LAYERS[layer]
    skip_without(layer, fixture)
    expected = [Model(KINDS[kind][1]).of_seed(3) for kind in KINDS]
    for results in request.getfixturevalue(fixture).run(calls, call, list(KINDS)):
        for kind, result, wanted in zip(KINDS, results, expected):
            np.testing.assert_array_equal(result, wanted, err_msg=kind)


def unseeded():
    import byteps.torch as layer

    mine = torch.tensor(values_of(layer.rank()))
    results = []
    for kind in (layer.Compression.randomk(0.1), layer.Compression.dithering(4)):
        rounds = [layer.push_pull(mine, name=f"unseeded.{kind}", compression=kind) for _ in range(2)]
        results.append([each.numpy(force=True) for each in rounds])
    return results


def test_without_a_seed_all_ranks_draw_alike_and_each_round_anew(job2):
    first, second = job2.run(unseeded)
    np.testing.assert_array_equal(first, second)
    (places, others), (dithered, again) = first
    assert 0.08 * COUNT < (places != 0).sum() <= 0.1 * COUNT
    assert ((places != 0) != (others != 0)).sum() > 0.1 * COUNT
    assert (dithered != again).any()
    mean = (values_of(0) + values_of(1)) / 2
    assert np.abs((dithered + again) / 2 - mean).mean() < np.abs(mean).max() / 4


def what_travels():
    """Bytes of tensors and of what was sent for them, of each kind."""
    mine = torch.tensor(values_of(bps.rank()))
    ratios = {}
    for kind, ((method, options), _) in KINDS.items():
        before = bps.metrics()
        bps.push_pull(mine, name=f"travels.{kind}", compression=getattr(bps.Compression, method)(**options))
        after = bps.metrics()
        ratios[kind] = (after.pushed_bytes - before.pushed_bytes) / (after.pushed_wire_bytes - before.pushed_wire_bytes)
    return ratios


def test_fewer_bytes_travel(job2):
    for ratios in job2.run(what_travels):
        assert ratios["onebit"] > 28 and ratios["signs"] > 28
        assert ratios["topk"] > 4.9 and ratios["some"] > 200 and ratios["randomk"] > 9.8
        assert ratios["linear"] > 7 and ratios["natural"] > 7


def test_one_rank_with_servers_codes_as_two_do(job1):
    """BYTEPS_FORCE_DISTRIBUTED=1: for those who try out on one machine what training does on many."""
    (results,) = job1.run(calls, by_torch, list(KINDS))
    for kind, result in zip(KINDS, results):
        np.testing.assert_array_equal(result, Model(KINDS[kind][1], workers=1).of_seed(3), err_msg=kind)
    (ratios,) = job1.run(what_travels)
    assert ratios["onebit"] > 28 and ratios["some"] > 200


def int8_alone():
    mine = torch.tensor(values_of(bps.rank()))
    before = bps.metrics()
    result = bps.push_pull(mine, name="int8 alone", compression=bps.Compression.int8)
    after = bps.metrics()
    assert (after.pushed_bytes - before.pushed_bytes) / (after.pushed_wire_bytes - before.pushed_wire_bytes) > 3.8
    return (result - mine).abs().max().item()


def test_one_rank_with_servers_codes_in_8_bits(job1):
    (error,) = job1.run(int8_alone)
    assert 0 < error < 0.1


# ---- several steps: error feedback and momentum, in every framework


def stepping_of_jax(layer, compression, title):
    import jax
    import jax.numpy as jnp
    import optax

    optimizer = layer.distributed(optax.sgd(1.0), name=title, compression=compression)
    state = optimizer.init({"v": jnp.zeros(COUNT), "w": jnp.zeros(SMALL)})
    compiled = jax.jit(lambda gradients: optimizer.update(gradients, state)[0])

    def step(index, large, small):
        run = compiled if index % 2 else lambda gradients: optimizer.update(gradients, state)[0]
        updates = run({"v": jnp.asarray(large), "w": jnp.asarray(small)})
        return -np.asarray(updates["v"]), -np.asarray(updates["w"])

    return step


def stepping_of_tensorflow(layer, compression, title):
    import tensorflow as tf

    variables = [tf.Variable(tf.zeros(COUNT), name=f"{title}/v"), tf.Variable(tf.zeros(SMALL), name=f"{title}/w")]

    def run(*gradients):
        return layer.reduce_gradients(list(gradients), variables, compression=compression, prefix=title)

    graph, compiled = tf.function(run), tf.function(run, jit_compile=True)

    def step(index, large, small):
        given = tf.constant(large), tf.constant(small)
        return [result.numpy() for result in (run, graph, compiled)[index % 3](*given)]

    return step


def stepping_of_keras(layer, compression, title):
    import keras

    optimizer = layer.DistributedOptimizer(keras.optimizers.SGD(1.0), name=title, compression=compression)
    variables = [keras.Variable(np.zeros(COUNT, np.float32), name="v"), keras.Variable(np.zeros(SMALL, np.float32))]

    def step(index, large, small):
        del index
        for variable in variables:
            variable.assign(np.zeros(variable.shape, np.float32))
        optimizer.apply([keras.ops.convert_to_tensor(each) for each in (large, small)], variables)
        return [-keras.ops.convert_to_numpy(variable.value) for variable in variables]

    return step


def stepping_of_mxnet(layer, compression, title):
    import mxnet as mx

    del title
    optimizer = layer.DistributedOptimizer(mx.optimizer.SGD(learning_rate=1.0), compression=compression)

    def step(index, large, small):
        del index
        results = []
        for number, gradient in enumerate((large, small)):
            weight = mx.nd.zeros(gradient.shape)
            optimizer.update(number, weight, mx.nd.array(gradient), None)
            results.append(-weight.asnumpy())
        return results

    return step


def stepping_of_torch(layer, compression, title):
    parameters = [nn.Parameter(torch.zeros(COUNT)), nn.Parameter(torch.zeros(SMALL))]
    optimizer = layer.DistributedOptimizer(
        torch.optim.SGD(parameters, lr=1.0), list(zip("vw", parameters)), compression, name=title
    )

    def step(index, large, small):
        del index
        for parameter, gradient in zip(parameters, (large, small)):
            parameter.grad = torch.tensor(gradient)
        optimizer.step()
        return [parameter.grad.numpy(force=True).copy() for parameter in parameters]

    step.save = lambda: copy.deepcopy(optimizer.state_dict())
    step.load = optimizer.load_state_dict
    return step


STEPPING = {
    "torch": (stepping_of_torch, "job2"),
    "jax": (stepping_of_jax, "job2"),
    "tensorflow": (stepping_of_tensorflow, "tf_job2"),
    "keras": (stepping_of_keras, "tf_job2"),
    "mxnet": (stepping_of_mxnet, "mxnet_job2"),
}


def steps(make, module, kind, feeds_back, mu):
    """Four; and the last two once more, from a checkpoint after the first two."""
    layer = importlib.import_module(f"byteps.{module}")
    method, options = KINDS[kind][0]
    compression = getattr(layer.Compression, method)(**options, error_feedback=feeds_back, momentum=mu)
    step = make(layer, compression, f"{kind}.{feeds_back}.{mu}")
    save, load = getattr(step, "save", compression.state), getattr(step, "load", compression.load_state)
    mine = [(values_of(layer.rank(), seed), values_of(layer.rank(), seed, SMALL)) for seed in range(4)]
    results = [step(index, *mine[index]) for index in (0, 1)]
    saved = copy.deepcopy(save())
    results += [step(index, *mine[index]) for index in (2, 3)]
    load(saved)
    return results + [step(index, *mine[index]) for index in (2, 3)]


def expected_steps(options, feeds_back, mu):
    model, momentum = Model(options, feeds_back, mu), [np.zeros(SMALL, np.float32)] * 2
    results = []
    for position, seed in enumerate((0, 1, 2, 3, 2, 3)):
        if position == 2:
            kept = copy.deepcopy([(each.residual, each.momentum) for each in model.workers]), list(momentum)
        if position == 4:  # what servers keep is not in a checkpoint, nor are the numbers of a seed
            for worker, (worker.residual, worker.momentum) in zip(model.workers, kept[0]):
                pass
            momentum = kept[1]
        small = [values_of(rank, seed, SMALL) for rank in (0, 1)]
        plain = (small[0] + small[1]) / np.float32(2)
        results.append((model.of_seed(seed), plain if mu is None else with_momentum_alone(small, mu, momentum)))
    return results


CASES = [("onebit", True, None), ("onebit", True, 0.9), ("topk", True, 0.9), ("randomk", True, None)]
CASES += [("linear", False, 0.9), ("natural", True, 0.5)]


@pytest.mark.parametrize("layer", STEPPING)
def test_error_feedback_and_momentum_are_those_of_the_model_in_every_framework(layer, request):
    make, fixture = STEPPING[layer]
    skip_without(layer, fixture)
    job = request.getfixturevalue(fixture)
    for kind, feeds_back, mu in CASES:
        expected = expected_steps(KINDS[kind][1], feeds_back, mu)
        for results in job.run(steps, make, layer, kind, feeds_back, mu):
            for position, (result, wanted) in enumerate(zip(results, expected)):
                for mine, its in zip(result, wanted):
                    np.testing.assert_array_equal(mine, its, err_msg=f"{kind} {feeds_back} {mu}, step {position}")


# ---- learning rates


def steps_of_changing_rates():
    """With onebit, whose residual is large, in torch."""
    parameter = nn.Parameter(torch.zeros(COUNT))
    other = nn.Parameter(torch.zeros(COUNT))
    groups = [{"params": [parameter]}, {"params": [other], "lr": 1.0}]
    compression = bps.Compression.onebit(error_feedback=True)
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(groups, lr=RATES[0]), [("x", parameter), ("y", other)], compression, name="rates"
    )
    results = []
    for seed, rate in enumerate(RATES):
        optimizer.param_groups[0]["lr"] = rate
        for each in (parameter, other):
            each.grad = torch.tensor(values_of(bps.rank(), seed))
        if seed == 2:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # which has the last rate
            optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        results.append((parameter.grad.numpy(force=True).copy(), other.grad.numpy(force=True).copy()))
    return results


RATES = [0.1, 0.1, 0.05, 0.2]


def test_what_was_left_counts_as_much_as_it_did_when_the_learning_rate_changes(job2):
    models = [Model(dict(kind="onebit", scaling=True), ef=True) for _ in range(2)]
    expected = []
    for seed, rate in enumerate(RATES):
        changing = models[0]
        decoded = [worker.code(values_of(rank, seed), rate) for rank, worker in enumerate(changing.workers)]
        # Of the residual at the server nobody says a rate.
        expected.append((changing.server.code((decoded[0] + decoded[1]) / np.float32(2)), models[1].of_seed(seed)))
    for results in job2.run(steps_of_changing_rates):
        for result, wanted in zip(results, expected):
            np.testing.assert_array_equal(result[0], wanted[0])
            np.testing.assert_array_equal(result[1], wanted[1])


# ---- MXNet as the original's scripts use it

BATCH, WD = 4, 0.01


def script_of_the_original(compression_params, wd):
    """Parameters after each of four steps of its trainer, and from a checkpoint after two the others."""
    import mxnet as mx
    from mxnet import autograd, gluon

    import byteps.mxnet as layer

    params = gluon.ParameterDict()
    for name, count in (("large", COUNT), ("small", SMALL)):
        params.get(name, shape=(count,), init="zeros")
    params.initialize()
    given = {"learning_rate": 0.5, "momentum": 0.9, **({"wd": wd} if wd else {})}
    trainer = layer.DistributedTrainer(params, "sgd", given, compression_params=compression_params)
    assert given["momentum"] == 0.9 and trainer._optimizer.momentum == 0 and trainer._optimizer.wd == 0
    arrays = [params.get(name).data() for name in ("large", "small")]

    def step(index):
        trainer.set_learning_rate(0.5 if index < 2 else 0.25)
        gradients = [mx.nd.array(values_of(layer.rank(), index, array.size)) for array in arrays]
        with autograd.record():
            loss = sum((array * gradient).sum() for array, gradient in zip(arrays, gradients))
        loss.backward()
        trainer.step(BATCH)
        return [array.asnumpy() for array in arrays]

    results = [step(index) for index in (0, 1)]
    saved, weights = copy.deepcopy(trainer.compression_state()), results[1]
    results += [step(index) for index in (2, 3)]
    trainer.load_compression_state(saved)
    for array, weight in zip(arrays, weights):
        array[:] = weight
    return results + [step(index) for index in (2, 3)]


class WeightDecay:
    """As the original's: m = mu * (m + wd * x), and wd * x + m is added."""

    def __init__(self, count):
        self.momentum = np.zeros(count, np.float32)

    def of(self, x):
        self.momentum = np.float32(0.9) * (self.momentum + np.float32(WD) * x)
        return np.float32(WD) * x + self.momentum


def expected_of_script(wd):
    model = Model(dict(kind="onebit"), ef=True, mu=0.9)
    momentum = [np.zeros(SMALL, np.float32)] * 2
    weights = [np.zeros(COUNT, np.float32), np.zeros(SMALL, np.float32)]
    decay = [WeightDecay(COUNT), WeightDecay(SMALL)]
    results, kept = [], None
    for position, seed in enumerate((0, 1, 2, 3, 2, 3)):
        if position == 2:
            states = [(each.residual, each.momentum, each.rate) for each in model.workers]
            kept = copy.deepcopy((states, list(momentum), weights, [each.momentum for each in decay]))
        if position == 4:
            states, momentum, weights, decays = kept
            for worker, (residual, own, rate) in zip(model.workers, states):
                worker.residual, worker.momentum, worker.rate = residual, own, rate
            for each, own in zip(decay, decays):
                each.momentum = own
        rate = np.float32(0.5 if seed < 2 else 0.25)
        large = [values_of(rank, seed) / np.float32(BATCH) for rank in (0, 1)]
        decoded = [worker.code(gradient, float(rate)) for worker, gradient in zip(model.workers, large)]
        averages = [model.server.code((decoded[0] + decoded[1]) / np.float32(2))]
        small = [values_of(rank, seed, SMALL) / np.float32(BATCH) for rank in (0, 1)]
        averages.append(with_momentum_alone(small, 0.9, momentum))
        weights = [
            x - rate * (average + (each.of(x) if wd else 0)) for x, average, each in zip(weights, averages, decay)
        ]
        results.append(weights)
    return results


@pytest.mark.parametrize("wd", [0, WD])
def test_scripts_of_the_original_train_as_the_model_says(mxnet_job2, wd):
    params = {"compressor": "onebit", "ef": "vanilla", "momentum": "nesterov"}
    expected = expected_of_script(wd)
    for results in mxnet_job2.run(script_of_the_original, params, wd):
        for result, wanted in zip(results, expected):
            for mine, its in zip(result, wanted):
                np.testing.assert_allclose(mine, its, rtol=2e-6, atol=2e-6)


def declared():
    import mxnet as mx

    import byteps.mxnet as layer

    given = {"byteps_compressor_type": "topk", "byteps_compressor_k": "0.1", "byteps_ef_type": "vanilla"}
    layer.byteps_declare_tensor("declared", **given)
    results = []
    for seed in range(3):
        array = mx.nd.array(values_of(layer.rank(), seed))
        layer.byteps_declare_tensor("declared")  # once more, as the original's kvstore does: that changes nothing
        layer.byteps_push_pull(array, name="declared", is_average=True)
        results.append(array.asnumpy())
    plain = mx.nd.array(values_of(layer.rank(), 0))
    layer.byteps_push_pull(plain, name="not declared")
    return results, plain.asnumpy()


def test_a_declaration_of_the_original_codes_what_is_pushed_by_its_name(mxnet_job2):
    model = Model(dict(kind="topk", k=0.1), ef=True)
    expected = [model.of_seed(seed) for seed in range(3)]
    for results, plain in mxnet_job2.run(declared):
        for result, wanted in zip(results, expected):
            np.testing.assert_array_equal(result, wanted)
        np.testing.assert_array_equal(plain, (values_of(0) + values_of(1)) / np.float32(2))


# ---- several workers of a machine, and none but one


@pytest.fixture(scope="module")
def together():
    """Two workers that sum in their machine first; that sum goes to servers."""
    with Cluster(workers=2, environ={"BYTEPS_LOCAL_REDUCE": "auto", "BYTEPS_FORCE_DISTRIBUTED": "1"}) as job:
        yield job


def steps_in_torch(kind, feeds_back, mu, layer=None):
    layer = layer or bps
    method, options = KINDS[kind][0]
    compression = getattr(layer.Compression, method)(**options, error_feedback=feeds_back, momentum=mu)
    step = stepping_of_torch(layer, compression, f"steps.{kind}.{feeds_back}.{mu}")
    mine = [(values_of(layer.rank(), seed), values_of(layer.rank(), seed, SMALL)) for seed in range(3)]
    return [step(index, *each) for index, each in enumerate(mine)]


@pytest.mark.parametrize("kind, feeds_back, mu", CASES)
def test_the_sum_of_a_machine_is_coded_once(together, kind, feeds_back, mu):
    model = Model(KINDS[kind][1], feeds_back, mu, workers=1)
    expected = [model.average([values_of(0, seed) + values_of(1, seed)], members=2) for seed in range(3)]
    sums = [values_of(0, seed, SMALL) + values_of(1, seed, SMALL) for seed in range(3)]
    for results in together.run(steps_in_torch, kind, feeds_back, mu):
        momentum = np.zeros(SMALL, np.float32)
        for (large, small), wanted, total in zip(results, expected, sums):
            np.testing.assert_array_equal(large, wanted)
            momentum = np.float32(mu or 0) * momentum + total
            np.testing.assert_array_equal(small, (total + np.float32(mu or 0) * momentum) / np.float32(2))


def alone_or_without_servers():
    """Nothing is coded; momentum is there all the same, or training would differ."""
    (large, small), (more, less) = steps_in_torch("topk", True, 0.9)[:2]
    assert np.count_nonzero(large) == COUNT
    return large, small, more, less


def check_momentum(results, workers):
    for at, count in enumerate((COUNT, SMALL)):
        momentum = np.zeros(count, np.float32)
        for seed in (0, 1):
            total = np.sum([values_of(rank, seed, count) for rank in range(workers)], axis=0, dtype=np.float32)
            momentum = np.float32(0.9) * momentum + total
            wanted = (total + np.float32(0.9) * momentum) / np.float32(workers)
            np.testing.assert_allclose(results[2 * seed + at], wanted, rtol=2e-6, atol=2e-6)


def test_momentum_is_there_in_a_job_of_one(alone):
    check_momentum(alone_or_without_servers(), workers=1)


def test_momentum_is_there_where_a_machine_sums_without_servers():
    environ = {"BYTEPS_LOCAL_REDUCE": "auto", "BYTEPS_FORCE_DISTRIBUTED": "0"}
    with Cluster(workers=2, environ=environ) as job:
        for results in job.run(alone_or_without_servers):
            check_momentum(results, workers=2)


# ---- what is never coded


def broadcasts_and_collectives(store):
    from torch_group import ensure_group

    ensure_group(store)
    os.environ["BYTEPS_COMPRESSION"] = "int4"
    try:
        mine = torch.tensor(values_of(bps.rank()))
        before = bps.metrics()
        bps.broadcast(mine, 0, name="plain broadcast")
        bps.push_pull(mine, name="plain push_pull")
        bps.allreduce(mine, name="plain allreduce")
        bps.allgather(mine, name="plain allgather")
        bps.broadcast_parameters({"x": mine}, root_rank=0)
        torch.distributed.all_reduce(mine)
        torch.distributed.broadcast(mine, 0)
        after = bps.metrics()
    finally:
        del os.environ["BYTEPS_COMPRESSION"]
    return after.pushed_bytes - before.pushed_bytes, after.pushed_wire_bytes - before.pushed_wire_bytes


def test_broadcasts_and_calls_that_do_not_ask_for_it_are_never_coded(job2, tmp_path):
    for pushed, on_wire in job2.run(broadcasts_and_collectives, str(tmp_path / "store")):
        assert pushed == on_wire > 0


# ---- other ways to train with torch


def gradients_of(layer, wrap, kind):
    """Of a model whose first layer is large, on two batches: as the wrapper leaves them, and how many times fewer bytes
    were sent."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
    method, options = KINDS[kind][0]
    compression = getattr(layer.Compression, method)(**options, error_feedback=True)
    call, optimizer = wrap(layer, model, compression)
    torch.manual_seed(layer.rank())
    before, found = layer.metrics(), []
    for _ in range(2):
        optimizer.zero_grad()
        call(torch.randn(16, 64)).square().sum().backward()
        optimizer.step()
        if wrap is by_cross_barrier:
            optimizer.synchronize()
        found.append([each.detach().clone() for each in model.parameters()])
    after = layer.metrics()
    pushed, on_wire = after.pushed_bytes - before.pushed_bytes, after.pushed_wire_bytes - before.pushed_wire_bytes
    return found, pushed / on_wire


def by_optimizer(layer, model, compression):
    sgd = torch.optim.SGD(model.parameters(), lr=1e-3)
    return model, layer.DistributedOptimizer(sgd, model.named_parameters(), compression, name="several ways")


def by_ddp(layer, model, compression):
    from byteps.torch.parallel import DistributedDataParallel

    return DistributedDataParallel(model, compression=compression), torch.optim.SGD(model.parameters(), lr=1e-3)


def by_cross_barrier(layer, model, compression):
    from byteps.torch.cross_barrier import CrossBarrier

    sgd = torch.optim.SGD(model.parameters(), lr=1e-3)
    return model, CrossBarrier(model, sgd, model.named_parameters(), compression)


def several_ways(kind):
    return [gradients_of(bps, wrap, kind) for wrap in (by_optimizer, by_ddp, by_cross_barrier)]


@pytest.mark.parametrize("kind", ["onebit", "randomk"])
def test_models_and_cross_barriers_code_as_optimizers_do(job2, kind):
    first, second = job2.run(several_ways, kind)
    for (mine, ratio), (its, _) in zip(first, second):
        assert ratio > 4
        for parameters, others, of_optimizer in zip(mine, its, first[0][0]):
            assert all(torch.equal(one, other) for one, other in zip(parameters, others))
            if kind == "onebit":  # numbers of a seed are alike, too, but begin for each name
                assert all(torch.equal(one, other) for one, other in zip(parameters, of_optimizer))


def buckets_of_torchs_ddp(store):
    from torch_group import ensure_group

    ensure_group(store)
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 512), nn.Linear(512, 10)))
    params = {"compressor": "topk", "k": 0.1, "ef": "vanilla", "momentum": "nesterov", "momentum_mu": 0.9}
    state = bps.DDPHookState(compression_params=params)
    model.register_comm_hook(state, bps.ddp_comm_hook)
    torch.manual_seed(bps.rank())
    before = bps.metrics()
    for _ in range(3):
        model.zero_grad()
        model(torch.randn(16, 64)).square().sum().backward()
    after = bps.metrics()
    kept = state._residuals
    assert all(each.any() for each in (*kept.tensors.values(), *kept.momentum.values())) and kept.tensors
    ratio = (after.pushed_bytes - before.pushed_bytes) / (after.pushed_wire_bytes - before.pushed_wire_bytes)
    return {name: each.grad.clone() for name, each in model.named_parameters()}, ratio


def test_the_hook_of_torchs_ddp_codes_too(job2, tmp_path):
    (first, ratio), (second, _) = job2.run(buckets_of_torchs_ddp, str(tmp_path / "store"))
    assert all(torch.equal(first[name], second[name]) for name in first) and ratio > 4


def of_another_rank():
    """Momentum and residuals of rank 0, which all load."""
    step = stepping_of_torch(bps, bps.Compression.topk(0.1, error_feedback=True, momentum=0.9), "of another rank")
    step(0, values_of(bps.rank()), values_of(bps.rank(), count=SMALL))
    saved = bps.broadcast_object(step.save(), root_rank=0)
    assert set(saved["byteps"]) == {"place", "residuals", "momentum", "rates"}
    if bps.rank() == 0:
        return step.load(saved)
    with pytest.warns(UserWarning, match="error feedback and momentum begin with zeros: what is loaded has"):
        step.load(saved)
    assert not step.save()["byteps"]["momentum"]


def test_momentum_of_another_rank_is_not_loaded(job2):
    job2.run(of_another_rank)


def disagreeing():
    from byteps._core import errors

    k = 0.1 if bps.rank() == 0 else 0.2
    with pytest.raises(errors.MismatchError) as raised:
        bps.push_pull(torch.zeros(COUNT), name="disagreed codec", compression=bps.Compression.topk(k))
    return str(raised.value)


def test_ranks_that_disagree_about_k_are_told_both(job2):
    for text in job2.run(disagreeing):
        assert "k = 0.1" in text and "k = 0.2" in text, text
