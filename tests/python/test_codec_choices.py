"""What scripts may ask for of onebit, topk, randomk and dithering, how the original's dictionary says it, and which
optimizers do not go with it, in every layer that sees one."""

import importlib.util
import re
import warnings

import pytest

from byteps._core import abi
from byteps._core.choices import Codes, of_declaration, of_params
from byteps._core.exchange import Codec


def skip_without(framework, fixture=""):
    """It is not imported here: TensorFlow and torch._dynamo in one process crash."""
    if fixture != "mxnet_job2" and importlib.util.find_spec(framework) is None:
        pytest.skip(f"there is no {framework}")


def all_of(compression):
    return compression.format, compression.codec, compression.error_feedback, compression.momentum


def test_each_compressor_says_what_it_is_to_be():
    scaled, feedback = abi.CODEC_SCALING, abi.CODEC_ERROR_FEEDBACK
    assert all_of(Codes.onebit()) == (abi.FORMAT_ONEBIT, Codec(flags=scaled), False, None)
    assert all_of(Codes.onebit(scaling=False)) == (abi.FORMAT_ONEBIT, Codec(), False, None)
    assert all_of(Codes.topk(0.01, error_feedback=True)) == (abi.FORMAT_TOPK, Codec(0.01, 0, feedback), True, None)
    seeded = Codec(8.0, 7, abi.CODEC_SEEDED)
    assert all_of(Codes.randomk(8, seed=7, momentum=0.9)) == (abi.FORMAT_RANDOMK, seeded, False, 0.9)
    assert all_of(Codes.dithering(4)) == (abi.FORMAT_DITHERING, Codec(4.0), False, None)
    flags = abi.CODEC_NATURAL | abi.CODEC_L2
    assert Codes.dithering(4, partition="natural", normalize="l2").codec == Codec(4.0, 0, flags)


def test_what_means_the_same_is_equal_and_is_written_as_it_was_asked_for():
    assert Codes.topk(k=0.01) == Codes.topk(0.01) and hash(Codes.topk(k=0.01)) == hash(Codes.topk(0.01))
    kinds = [Codes.topk(0.01), Codes.topk(0.02), Codes.topk(0.01, error_feedback=True), Codes.topk(0.01, momentum=0.5)]
    kinds += [Codes.randomk(0.01), Codes.randomk(0.01, seed=1), Codes.randomk(0.01, seed=2), Codes.int8]
    assert len(set(kinds)) == len(kinds)
    text = "Compression.randomk(k=0.01, seed=7, error_feedback=True, momentum=0.9)"
    assert repr(Codes.randomk(0.01, 7, True, 0.9)) == text
    assert repr(Codes.onebit(False)) == "Compression.onebit(scaling=False)"
    text = "Compression.dithering(k=4, partition='natural', normalize='l2')"
    assert repr(Codes.dithering(4, "natural", "l2")) == text


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: Codes.onebit(scaling=1), "scaling is 1: it must be True or False"),
        (lambda: Codes.onebit(error_feedback="vanilla"), "error_feedback is 'vanilla': it must be True or False"),
        (lambda: Codes.onebit(momentum=1.0), "momentum is 1.0: it must be None, or a number of at least 0 and below 1"),
        (lambda: Codes.onebit(momentum="nesterov"), "momentum is 'nesterov'"),
        (lambda: Codes.topk(0), "k is 0: for topk it is above 0, either the share of the elements that travels, 0.5"),
        (lambda: Codes.topk(0.6), "k is 0.6: for topk"),
        (lambda: Codes.topk(2.5), "or a whole number of elements of each part"),
        (lambda: Codes.topk(True), "k is True"),
        (lambda: Codes.randomk(float("nan")), "k is nan: for randomk it is above 0"),
        (lambda: Codes.randomk(0.1, seed=0), "seed is 0: it must be None, or a whole number from 1 to 2^64 - 1"),
        (lambda: Codes.randomk(0.1, seed=2**64), "from 1 to 2^64 - 1"),
        (lambda: Codes.dithering(0), "k is 0: for dithering with partition='linear' it is 1 to 8388608 levels"),
        (lambda: Codes.dithering(2.0), "k is 2.0"),
        (lambda: Codes.dithering(25, "natural"), "with partition='natural' it is 1 to 24 levels"),
        (lambda: Codes.dithering(4, partition="log"), "partition is 'log': it must be 'linear' or 'natural'"),
        (lambda: Codes.dithering(4, normalize=2), "normalize is 2: it must be 'max' or 'l2'"),
    ],
)
def test_what_cannot_be_says_which_argument_it_is_and_what_it_may_be(make, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        make()


@pytest.mark.parametrize(
    "params, wanted",
    [
        ({"compressor": "onebit"}, lambda: Codes.onebit(scaling=False)),
        ({"compressor": "onebit", "scaling": True, "ef": "vanilla"}, lambda: Codes.onebit(True, error_feedback=True)),
        (
            {"compressor": "onebit", "ef": "vanilla", "momentum": "nesterov", "momentum_mu": 0.9},
            lambda: Codes.onebit(False, True, 0.9),
        ),
        ({"compressor": "topk", "k": 0.01, "scaling": True}, lambda: Codes.topk(0.01)),
        ({"compressor": "randomk", "k": 8, "seed": 2020}, lambda: Codes.randomk(8, 2020)),
        (
            {"compressor": "dithering", "k": 4, "partition": "natural", "normalize": "l2", "seed": 1},
            lambda: Codes.dithering(4, "natural", "l2", 1),
        ),
        # All that a command line has, most of it empty.
        (
            {"compressor": "onebit", "ef": "", "momentum": None, "scaling": False, "k": 1, "seed": None, "fp16": False},
            lambda: Codes.onebit(False),
        ),
        ({"compressor": "", "ef": "", "k": None}, lambda: None),
        ({"fp16": True}, lambda: None),
    ],
)
def test_the_dictionary_of_the_original_means_what_it_did(params, wanted):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert of_params(params) == wanted()


def test_momentum_is_the_optimizers_where_the_original_takes_it_from_there():
    assert of_params({"compressor": "topk", "k": 1, "momentum": "nesterov"}, 0.8) == Codes.topk(1, momentum=0.8)
    with pytest.raises(ValueError, match="has 'momentum' and no 'momentum_mu': give the momentum, as 0.9"):
        of_params({"compressor": "topk", "k": 1, "momentum": "nesterov"})


@pytest.mark.parametrize(
    "params, text",
    [
        ("onebit", "compression_params is 'onebit': it must be a dict"),
        ({"compresor": "onebit"}, "compression_params has compresor: its keys are compressor, ef, momentum, "),
        ({"compressor": "onebits"}, "compressor is 'onebits': it must be 'onebit' or 'topk' or 'randomk' or "),
        ({"compressor": "onebit", "ef": "full"}, "ef is 'full': it must be 'vanilla'"),
        ({"compressor": "onebit", "momentum": 0.9}, "momentum is 0.9: it must be 'nesterov'"),
        ({"compressor": "topk"}, "compression_params has no 'k', which topk needs"),
        ({"compressor": "topk", "k": 0.9}, "k is 0.9: for topk"),
        ({"compressor": "dithering", "k": 4, "partition": "log"}, "partition is 'log'"),
        ({"compressor": "randomk", "k": 4, "seed": -1}, "seed is -1"),
    ],
)
def test_what_is_wrong_with_the_dictionary_is_said(params, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        of_params(params)


def test_without_a_compressor_the_rest_has_no_effect_and_a_warning_says_so():
    with pytest.warns(UserWarning, match="compression_params has no 'compressor': nothing is coded"):
        assert of_params({"ef": "vanilla", "momentum": "nesterov"}) is None


def test_a_declaration_of_the_original_may_be_text():
    given = {
        "byteps_compressor_type": "OneBit",
        "byteps_compressor_onebit_scaling": "True",
        "byteps_ef_type": "vanilla",
        "byteps_momentum_type": "nesterov",
        "byteps_momentum_mu": "0.9",
    }
    assert of_declaration("x", given) == Codes.onebit(True, True, 0.9)
    dithering = {"byteps_compressor_type": "dithering", "byteps_compressor_k": "4", "byteps_seed": "7"}
    flags = {"byteps_dithering_partition": 1, "byteps_dithering_normalize": "1"}
    assert of_declaration("x", {**dithering, **flags}) == Codes.dithering(4, "natural", "l2", 7)
    assert of_declaration("x", {"byteps_compressor_type": "topk", "byteps_compressor_k": "0.1"}) == Codes.topk(0.1)
    assert of_declaration("x", {}) is None
    with pytest.raises(ValueError, match="'x'.* has compressor_type: it takes byteps_compressor_type, "):
        of_declaration("x", {"compressor_type": "onebit"})
    with pytest.raises(ValueError, match="k is 'many': it must be a number"):
        of_declaration("x", {"byteps_compressor_type": "topk", "byteps_compressor_k": "many"})


def test_a_function_that_was_not_called_is_no_compressor(alone):
    import torch

    with pytest.raises(ValueError, match=re.escape("compression is the function topk: call it, as Compression.topk(")):
        alone.push_pull(torch.zeros(4), compression=alone.Compression.topk)
    with pytest.raises(ValueError, match=re.escape("compression and compression_params were both given")):
        optimizer_of_torch(alone, {}, alone.Compression.int8, compression_params={"compressor": "onebit"})
    with pytest.raises(ValueError, match="Compression.topk\\(k=1, momentum=0.5\\): momentum is kept by an optimizer"):
        alone.push_pull(torch.zeros(4), compression=alone.Compression.topk(1, momentum=0.5))
    with pytest.raises(ValueError, match="of_params|its keys are"):
        alone.Compression.of_params({"k2": 1})
    assert alone.Compression.of_params({"fp16": True}) is alone.Compression.fp16


# ---- which optimizers go with them


def optimizer_of_torch(layer, options, *compression, kind="SGD", **more):
    import torch

    parameter = torch.nn.Parameter(torch.zeros(4))
    optimizer = getattr(torch.optim, kind)([parameter], lr=0.1, **options)
    return layer.DistributedOptimizer(optimizer, [("x", parameter)], *compression, **more)


def optimizer_of_keras(layer, options, compression, kind="SGD"):
    import keras

    return layer.DistributedOptimizer(getattr(keras.optimizers, kind)(0.1, **options), compression=compression)


def optimizer_of_tensorflow(layer, options, compression, kind="SGD"):
    import tensorflow as tf

    kinds = {"SGD": "MomentumOptimizer" if options else "GradientDescentOptimizer", "Adam": "AdamOptimizer"}
    optimizer = getattr(tf.compat.v1.train, kinds[kind])(0.1, **options)
    return layer.DistributedOptimizer(optimizer, compression=compression)


def optimizer_of_jax(layer, options, compression, kind="SGD"):
    import jax.numpy as jnp
    import optax

    optimizer = layer.distributed(getattr(optax, kind.lower())(0.1, **options), compression=compression)
    return optimizer.init({"x": jnp.zeros(4)})


def optimizer_of_mxnet(layer, options, compression, kind="SGD"):
    import mxnet as mx

    return layer.DistributedOptimizer(mx.optimizer.create(kind, learning_rate=0.1, **options), compression=compression)


def trainer_of_mxnet(layer, options, compression, kind="SGD"):
    import mxnet as mx

    net = mx.gluon.nn.Dense(2, in_units=2)
    net.initialize()
    options = {"learning_rate": 0.1, **options}
    return layer.DistributedTrainer(net.collect_params(), kind.lower(), options, compression=compression)


OPTIMIZERS = {
    "torch": (optimizer_of_torch, "byteps.torch", "job2"),
    "jax": (optimizer_of_jax, "byteps.jax", "job2"),
    "tensorflow": (optimizer_of_tensorflow, "byteps.tensorflow", "tf_job2"),
    "keras": (optimizer_of_keras, "byteps.keras", "tf_job2"),
    "mxnet": (optimizer_of_mxnet, "byteps.mxnet", "mxnet_job2"),
    "trainer": (trainer_of_mxnet, "byteps.mxnet", "mxnet_job2"),
}


def rules(make, module):
    import os

    layer = importlib.import_module(module)
    choices = layer.Compression
    delaying = [choices.onebit(error_feedback=True), choices.topk(0.1, error_feedback=True)]
    delaying.append(choices.randomk(0.1, error_feedback=True))
    remedy = "momentum adds up what error feedback sends late.*Compression.int8.*BYTEPS_ALLOW_MOMENTUM_WITH_ERROR_FEED"
    for compression in delaying:
        with pytest.raises(ValueError, match=remedy):
            make(layer, {"momentum": 0.9}, compression)
    with pytest.raises(ValueError, match="gradients would have momentum twice"):
        make(layer, {"momentum": 0.9}, choices.dithering(4, momentum=0.9))
    with pytest.warns(UserWarning, match="goes with SGD without momentum: .* keeps something of gradients itself"):
        make(layer, {}, delaying[1], kind="Adam")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        make(layer, {}, delaying[1])
        make(layer, {"momentum": 0.9}, choices.topk(0.1))
        make(layer, {"momentum": 0.9}, choices.dithering(4, error_feedback=True))
        make(layer, {"momentum": 0.9}, choices.int4(error_feedback=True))
        make(layer, {}, choices.onebit(error_feedback=True, momentum=0.9))
        make(layer, {}, choices.onebit(), kind="Adam")
        os.environ["BYTEPS_ALLOW_MOMENTUM_WITH_ERROR_FEEDBACK"] = "1"
        try:
            make(layer, {"momentum": 0.9}, delaying[1])
        finally:
            del os.environ["BYTEPS_ALLOW_MOMENTUM_WITH_ERROR_FEEDBACK"]


@pytest.mark.parametrize("layer", OPTIMIZERS)
def test_error_feedback_that_delays_does_not_go_with_an_optimizer_that_has_momentum(layer, request):
    make, module, fixture = OPTIMIZERS[layer]
    skip_without(module.split(".")[1], fixture)
    request.getfixturevalue(fixture).run(rules, make, module)


def test_groups_that_come_later_are_looked_at_too(alone):
    import torch

    optimizer = optimizer_of_torch(alone, {}, alone.Compression.topk(0.1, error_feedback=True))
    with pytest.raises(ValueError, match="SGD has momentum=0.5"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))], "momentum": 0.5})
    with pytest.raises(ValueError, match=re.escape("BYTEPS_ALLOW_MOMENTUM_WITH_ERROR_FEEDBACK='yes' is not valid")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BYTEPS_ALLOW_MOMENTUM_WITH_ERROR_FEEDBACK", "yes")
            optimizer_of_torch(alone, {"momentum": 0.9}, alone.Compression.topk(0.1, error_feedback=True))


def test_gradients_that_would_lose_their_momentum_are_refused(alone):
    import torch

    parameter = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
    compression = alone.Compression.topk(0.1, momentum=0.9)
    with pytest.raises(ValueError, match="x: the gradient is of torch.float64, and .*use gradients in float32, or mom"):
        alone.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.1), [("x", parameter)], compression)


def optimizers_of_keras_2():
    import tf_keras

    import byteps.tensorflow.keras as layer

    feedback = layer.Compression.topk(0.1, error_feedback=True)
    for module in (tf_keras.optimizers, tf_keras.optimizers.legacy):
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            layer.DistributedOptimizer(module.SGD(0.1), compression=feedback)
        with pytest.raises(ValueError, match="SGD has momentum=0.5"):
            layer.DistributedOptimizer(module.SGD(0.1, momentum=0.5), compression=feedback)
        with pytest.warns(UserWarning, match="Adam keeps something"):
            layer.DistributedOptimizer(module.Adam(0.1), compression=feedback)


def test_optimizers_of_keras_2_are_looked_at_too(tf_job2):
    skip_without("tf_keras")
    tf_job2.run(optimizers_of_keras_2)


def within_loss_scaling():
    import keras

    import byteps.keras as layer

    inner = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer = keras.optimizers.LossScaleOptimizer(inner)
    with pytest.raises(ValueError, match="SGD has momentum=0.9"):
        layer.DistributedOptimizer(optimizer, compression_params={"compressor": "onebit", "ef": "vanilla"})


def test_what_is_within_a_loss_scaling_optimizer_is_looked_at(tf_job2):
    skip_without("keras")
    tf_job2.run(within_loss_scaling)
