"""byteps.tensorflow: tapes, optimizers, variables, hooks. Functions run in the workers, which have TensorFlow."""

import sys

import numpy as np
import pytest
from cluster import without_servers
from place import ROOT

if "tensorflow" in sys.modules:
    import tensorflow as tf

    import byteps.tensorflow as bps

    v1 = tf.compat.v1

MODES = ["eager", "graph", "xla"]


def regression(count):
    """Inputs and targets, the same each time."""
    inputs = np.random.RandomState(0).rand(count, 4).astype("float32")
    return inputs, inputs @ np.array([[1.0], [-2.0], [3.0], [0.5]], "float32")


def share(array, size=None):
    return tf.constant(array if size == 1 else array[bps.rank() :: bps.size()])


def train_with_tape(mode, steps, alone=False):
    """Weights after `steps` of gradient descent, on this rank's share or `alone` on everything."""
    inputs, targets = (share(array, 1 if alone else None) for array in regression(24))
    start = 0.0 if alone or bps.rank() == 0 else 7.0
    variables = [tf.Variable(tf.fill([4, 1], start), name="kernel"), tf.Variable([start], name="bias")]
    if not alone:
        bps.broadcast_variables(variables, root_rank=0)

    def gradients():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.matmul(inputs, variables[0]) + variables[1] - targets) ** 2)
        if not alone:
            tape = bps.DistributedGradientTape(tape)
        return tape.gradient(loss, variables)

    function = gradients if mode == "eager" else tf.function(gradients, jit_compile=mode == "xla")
    for _ in range(steps):
        for variable, gradient in zip(variables, function()):
            variable.assign_sub(0.1 * gradient)
    return [variable.numpy() for variable in variables]


def check_training(mode):
    for ours, theirs in zip(train_with_tape(mode, 8), train_with_tape("eager", 8, alone=True)):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6)


def test_training_with_the_tape_is_training_in_one_process(tf_job):
    for mode in MODES if tf_job.size == 2 else ["graph"]:
        tf_job.run(check_training, mode)


def test_training_with_the_tape_needs_no_servers(tf_job2):
    tf_job2.run(without_servers, check_training, "graph")


def check_models_made_before(mode):
    """Rank 1 has made Keras models that rank 0 has not, so its layers have other numbers; two equal models learn."""
    import keras

    def made():
        return keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])

    if bps.rank() == 1:
        made(), made()
    models = [made(), made()]
    assert len(set(bps.allgather_object(models[0].layers[0].name))) == 2
    for model in models:
        for weight in model.trainable_variables:
            weight.assign(tf.ones_like(weight))

    def gradients(model, factor):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(tf.ones([1, 4]) * (bps.rank() + 1.0))) * factor
        return bps.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)

    def both():
        return gradients(models[0], 1.0), gradients(models[1], 10.0)

    function = both if mode == "eager" else tf.function(both)
    for found, factor in zip(function(), (1.0, 10.0)):
        for gradient, value in zip(found, (1.5, 1.0, 7.0, 1.0)):
            np.testing.assert_allclose(gradient, np.full(gradient.shape, value * factor), rtol=1e-6)


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_ranks_may_have_made_other_keras_models_before(tf_job2, mode):
    tf_job2.run(check_models_made_before, mode)


def check_nested_sources():
    x = {"a": tf.Variable(2.0 * (bps.rank() + 1)), "b": [tf.Variable(1.0), tf.Variable(5.0)]}
    with tf.GradientTape(persistent=True) as tape:
        loss = x["a"] ** 2 + x["b"][0]
    tape = bps.DistributedGradientTape(tape, op=bps.Sum)
    found = tape.gradient(loss, x)
    assert found["a"].numpy() == 12.0 and found["b"][0].numpy() == 2.0 and found["b"][1] is None
    assert tape.gradient(loss, x["a"]).numpy() == 12.0
    local = bps.DistributedGradientTape(tape, op=bps.Sum) if not hasattr(tape, "_byteps_local") else tape
    local.register_local_source(x["a"])
    assert local.gradient(loss, x["a"]).numpy() == 4.0 * (bps.rank() + 1) / 2


def test_sources_may_be_nested_unconnected_and_local(tf_job2):
    tf_job2.run(check_nested_sources)


def check_local_layers():
    import keras

    import byteps.keras as keras_bps

    layers = [keras.layers.Dense(1, kernel_initializer="ones", use_bias=False) for _ in range(2)]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layers[1](layers[0](tf.fill([1, 1], 1.0 + bps.rank()))))
    tape = bps.PartialDistributedGradientTape(tape, local_layers=layers[:1], op=bps.Sum)
    own, summed = tape.gradient(loss, [layer.kernel for layer in layers])
    assert own.numpy() == (1.0 + bps.rank()) / 2 and summed.numpy() == 3.0
    optimizer = keras_bps.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=layers[:1])
    optimizer.apply([tf.fill([1, 1], 1.0 + bps.rank())] * 2, [layer.kernel for layer in layers])
    assert float(layers[0].kernel[0, 0]) == 1 - (1.0 + bps.rank()) / 2 and float(layers[1].kernel[0, 0]) == 1 - 1.5
    with pytest.raises(ValueError, match="must be layers"):
        keras_bps.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=[1])


def test_gradients_of_local_layers_do_not_travel(tf_job2):
    tf_job2.run(check_local_layers)


def check_values_of_keras():
    import byteps.keras as keras_bps

    rank = bps.rank()
    assert keras_bps.reducescatter(np.arange(3.0) * (rank + 1), op=bps.Sum).tolist() == [[0, 3], [6]][rank]
    assert keras_bps.reducescatter([rank, 2 + rank], "integers").tolist() == [[0.5], [2.5]][rank]
    np.testing.assert_array_equal(keras_bps.reducescatter(tf.constant([1j, 2]) * (rank + 1)), [[1.5j], [3]][rank])
    assert keras_bps.push_pull(tf.constant([1.5, rank], tf.bfloat16)).numpy().tolist() == [1.5, 0.5]
    assert keras_bps.broadcast_object(rank, np.int64(1)) == 1 and keras_bps.allgather_object(rank) == [0, 1]


def test_values_of_keras_are_scattered_and_objects_travel(tf_job2):
    tf_job2.run(check_values_of_keras)


def check_outside_of_a_set():
    """Ranks 0 and 2 train together, rank 1 alone."""
    import keras

    pair, rank = bps.ProcessSet([0, 2]), bps.rank()
    wanted = 2.0 if pair.included() else rank + 1.0
    weight = tf.Variable([[0.0]], name="of_a_pair")
    for mode in MODES:

        def gradient():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(weight) * (rank + 1.0)
            return bps.DistributedGradientTape(tape, process_set=pair).gradient(loss, weight)

        function = gradient if mode == "eager" else tf.function(gradient, jit_compile=mode == "xla")
        np.testing.assert_array_equal(function(), [[wanted]], mode)
    plain = v1.train.GradientDescentOptimizer(1.0)
    for optimizer in (plain, keras.optimizers.SGD(1.0)):
        weight.assign([[0.0]])
        optimizer = bps.DistributedOptimizer(optimizer, process_set=pair)
        gradients = [(tf.fill([1, 1], rank + 1.0), weight)]
        if isinstance(optimizer, v1.train.Optimizer):
            gradients = optimizer.compute_gradients(lambda: weight * (rank + 1.0), [weight])
        optimizer.apply_gradients(gradients)
        np.testing.assert_array_equal(weight, [[-wanted]])
    with pytest.raises(ValueError, match="must be a ProcessSet"):
        bps.DistributedOptimizer(plain, process_set=[0, 2])
    assert bps.push_pull(tf.constant(1.0), op=bps.Sum).numpy() == 3.0


def test_a_rank_outside_of_the_process_set_trains_alone(tf_job3):
    tf_job3.run(check_outside_of_a_set)


def check_indexed_slices(mode, as_dense):
    table = tf.Variable(tf.zeros([5, 2]), name="table")
    rows = tf.constant([0, bps.rank() + 1])

    def gradient():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, rows)) * (bps.rank() + 1.0)
        tape = bps.DistributedGradientTape(tape, sparse_as_dense=as_dense)
        return tape.gradient(loss, table)

    function = gradient if mode == "eager" else tf.function(gradient, jit_compile=mode == "xla")
    for _ in range(2):
        found = function()
        assert isinstance(found, tf.IndexedSlices) == (mode != "xla" and not as_dense)
        dense = tf.convert_to_tensor(found).numpy()
        np.testing.assert_allclose(dense[:, 0], [1.5, 0.5, 1.0, 0.0, 0.0])


def test_gradients_of_embeddings_are_gathered_or_made_dense(tf_job2):
    for mode in MODES:
        for as_dense in (False, True):
            tf_job2.run(check_indexed_slices, mode, as_dense)


def check_v1_session(passes):
    inputs, targets = regression(24)
    with tf.Graph().as_default():
        x, y = v1.placeholder(tf.float32, [None, 4]), v1.placeholder(tf.float32, [None, 1])
        kernel = v1.get_variable("kernel", initializer=tf.fill([4, 1], 0.5 + bps.rank()))
        loss = tf.reduce_mean((tf.matmul(x, kernel) - y) ** 2)
        optimizer = bps.DistributedOptimizer(
            v1.train.MomentumOptimizer(0.1 / passes, 0.9), backward_passes_per_step=passes
        )
        train = optimizer.minimize(loss)
        assert optimizer.get_slot(kernel, "momentum") is not None
        hook = bps.BroadcastGlobalVariablesHook(0)
        with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            for _ in range(6):
                for part in range(passes):
                    mine = slice(bps.rank() * passes + part, None, bps.size() * passes)
                    session.run(train, {x: inputs[mine], y: targets[mine]})
            ours = session.run(kernel)
    weights, velocity = np.full([4, 1], 0.5, "float32"), 0.0
    for _ in range(6):
        velocity = 0.9 * velocity + 2 * inputs.T @ (inputs @ weights - targets) / len(inputs)
        weights = weights - 0.1 * velocity
    np.testing.assert_allclose(ours, weights, rtol=1e-4)


@pytest.mark.parametrize("passes", [1, 3])
def test_a_v1_optimizer_in_a_monitored_session_trains_as_one_process_would(tf_job2, passes):
    tf_job2.run(check_v1_session, passes)


def check_v1_eager():
    weight = tf.Variable([2.0, 3.0])
    optimizer = bps.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), op=bps.Sum)
    optimizer.minimize(lambda: tf.reduce_sum(weight) * (bps.rank() + 1.0), var_list=[weight])
    np.testing.assert_allclose(weight.numpy(), [-1.0, 0.0])


def test_a_v1_optimizer_in_eager_code(tf_job2):
    tf_job2.run(check_v1_eager)


def check_a_late_gradient(function):
    """In the first pass the second weight has none."""
    weights = [tf.Variable(1.0), tf.Variable(1.0)]
    optimizer = bps.DistributedOptimizer(
        v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2, op=bps.Sum
    )

    def step(count):
        optimizer.apply_gradients(
            optimizer.compute_gradients(lambda: sum(weights[:count]) * (bps.rank() + 1.0), weights)
        )

    step = tf.function(step) if function else step
    for count in (1, 2, 1, 2) if function else (1, 2, 2, 1):
        step(count)
    assert [float(weight) for weight in weights] == [1 - 4 * 3.0, 1 - 2 * 3.0]


@pytest.mark.parametrize("function", [False, True], ids=["eager", "function"])
def test_a_gradient_may_be_there_only_from_a_later_pass_on(tf_job2, function):
    tf_job2.run(check_a_late_gradient, function)


def check_broadcast(mode):
    dtypes = ["float32", "int64", "bool", "bfloat16", "complex64"]
    variables = [tf.Variable(tf.cast(tf.fill([2, 2], bps.rank()), dtype)) for dtype in dtypes]
    if mode == "eager":
        bps.broadcast_variables(variables, root_rank=1)
    else:
        tf.function(lambda: bps.broadcast_variables(variables, root_rank=1))()
    for variable in variables:
        np.testing.assert_array_equal(variable.numpy().astype(complex), np.ones([2, 2]))
    assert bps.broadcast_object({"rank": bps.rank()}, 1) == {"rank": 1}
    assert bps.allgather_object(bps.rank()) == [0, 1]
    with pytest.raises(RuntimeError, match="eager"):
        bps.broadcast_global_variables(0)


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_variables_and_objects_of_the_root_reach_all(tf_job2, mode):
    tf_job2.run(check_broadcast, mode)
    tf_job2.run(without_servers, check_broadcast, mode)


def differing_variables():
    bps.broadcast_variables([tf.Variable([1.0] * (bps.rank() + 1), name="weights")], root_rank=0)


def test_ranks_with_other_variables_are_told_before_anything_travels(tf_job2):
    for rank, failure in enumerate(tf_job2.failures(differing_variables)):
        assert failure.kind == "ValueError" and "on rank 1" in failure.text
        assert ("Here lacking: weights:0: float32[1]" in failure.text) == (rank == 1)


def check_keras_optimizer():
    import keras

    wrapped = bps.DistributedOptimizer(keras.optimizers.SGD(0.25), compression=bps.Compression.fp16)
    return type(wrapped).__name__, isinstance(wrapped, keras.optimizers.SGD), float(wrapped.learning_rate)


@pytest.mark.skipif(
    not (ROOT / "python/byteps/_keras/tensorflow_backend.py").exists(), reason="byteps.keras has no such backend yet"
)
def test_an_optimizer_of_keras_is_wrapped_by_byteps_keras(tf_job2):
    for name, is_sgd, rate in tf_job2.run(check_keras_optimizer):
        assert "SGD" in name and is_sgd and rate == 0.25


def refusals():
    tape = bps.DistributedGradientTape(tf.GradientTape())
    optimizer = bps.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.1))
    texts = []
    for call in (
        lambda: bps.DistributedGradientTape(tape),
        lambda: bps.DistributedGradientTape(None),
        lambda: bps.DistributedOptimizer(optimizer),
        lambda: bps.DistributedOptimizer("sgd"),
        lambda: bps.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.1), backward_passes_per_step=0),
        lambda: bps.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.1), op="Adasum"),
    ):
        with pytest.raises(ValueError) as info:
            call()
        texts.append(str(info.value))
    return texts


def test_what_cannot_be_wrapped_is_refused(tf_job2):
    for texts in tf_job2.run(refusals):
        assert "wrap it once" in texts[0] and "tf.GradientTape" in texts[1] and "wrap it once" in texts[2]
        assert "DistributedGradientTape" in texts[3] and "at least 1" in texts[4] and "Adasum" in texts[5]
