"""What workers do in the tests of byteps.keras, on the backend that their KERAS_BACKEND says.

Each function runs on all ranks and returns what the test looks at. Keras is imported in the workers only.
"""

import os
import tempfile
import warnings

import interrupted
import numpy as np

BATCH = 12  # of the whole job; divisible by 1, 2 and 3


def _imports():
    """The Keras in use and its layer of byteps: that of the worker's KERAS_BACKEND, or tf_keras."""
    if os.environ.get("TF_USE_LEGACY_KERAS"):
        import tf_keras as keras

        import byteps.tensorflow.keras as bps
    else:
        import keras

        import byteps.keras as bps
    return keras, bps


def _data(rows=48):
    random = np.random.RandomState(0)
    x = random.rand(rows, 8).astype("float32")
    return x, np.sin(x.sum(1, keepdims=True)).astype("float32")


def share(array, rank, size, batch=BATCH):
    """This rank's rows: of each batch of the job, every size-th row."""
    return np.concatenate([array[at : at + batch][rank::size] for at in range(0, len(array), batch)])


def make_model(seed=1, units=4):
    keras, _ = _imports()
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(units, activation="tanh"), keras.layers.Dense(1)]
    return keras.Sequential([keras.layers.Input((8,)), *layers])


def make_optimizer(kind, **settings):
    keras, _ = _imports()
    made = {
        "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.3, **settings),
        "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01, **settings),
        "plain": lambda: keras.optimizers.SGD(0.1, **settings),
        "adam": lambda: keras.optimizers.Adam(0.05, global_clipnorm=0.5, **settings),
        "legacy": lambda: keras.optimizers.legacy.SGD(0.1, momentum=0.9, **settings),  # of tf_keras
    }
    return made[kind]()


def fit(model, optimizer, x, y, batch, epochs=2, callbacks=(), **options):
    model.compile(optimizer=optimizer, loss="mse", **options)
    return model.fit(x, y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks))


def _difference(ours, reference):
    return max(float(np.abs(a - b).max()) for a, b in zip(ours, reference))


def differences_from_one_process(kinds, epochs=2, compile_options=None, **options):
    """By optimizer: how far the weights of a distributed training are from one process with the whole batches."""
    _, bps = _imports()
    x, y = _data()
    rank, size = bps.rank(), bps.size()
    found = {}
    for kind in kinds:
        reference = make_model()
        fit(reference, make_optimizer(kind), x, y, BATCH, epochs)
        model = make_model()
        optimizer = bps.DistributedOptimizer(make_optimizer(kind), **options)
        parts = share(x, rank, size), share(y, rank, size)
        fit(model, optimizer, *parts, BATCH // size, epochs, **(compile_options or {}))
        assert _difference(make_model().get_weights(), reference.get_weights()) > 0.01  # it has learnt something
        found[kind] = _difference(model.get_weights(), reference.get_weights())
    return found


def differences_with_compression():
    """Of fp16 and bf16, whose gradients travel in 16 bits."""
    _, bps = _imports()
    kinds = bps.Compression.fp16, bps.Compression.bf16
    return [differences_from_one_process(["plain"], compression=kind)["plain"] for kind in kinds]


def difference_with_accumulation(average):
    """Two passes per step: the sum of two batches' gradients, as a rate twice as large makes of their mean."""
    _, bps = _imports()
    x, y = _data()
    rank, size = bps.rank(), bps.size()
    reference = make_model()
    plain = make_optimizer("plain", gradient_accumulation_steps=2)
    plain.learning_rate = 0.1 if average else 0.2
    fit(reference, plain, x, y, BATCH)
    model = make_model()
    options = dict(backward_passes_per_step=2, average_aggregated_gradients=average)
    optimizer = bps.DistributedOptimizer(make_optimizer("plain"), **options)
    before = bps.metrics().finished_operations
    fit(model, optimizer, share(x, rank, size), share(y, rank, size), BATCH // size)
    pushed = bps.metrics().finished_operations - before
    return _difference(model.get_weights(), reference.get_weights()), pushed


def differences_of_two_passes_in_keras_2():
    """backward_passes_per_step=2 with SGD, new and legacy, beside one process with batches of twice the size."""
    _, bps = _imports()
    x, y = _data()
    rank, size = bps.rank(), bps.size()
    found = []
    for kind in ("plain", "legacy"):
        reference = make_model()
        fit(reference, make_optimizer(kind), x, y, 2 * BATCH)
        model = make_model()
        options = dict(backward_passes_per_step=2, average_aggregated_gradients=True)
        optimizer = bps.DistributedOptimizer(make_optimizer(kind), **options)
        fit(model, optimizer, share(x, rank, size), share(y, rank, size), BATCH // size)
        found.append(_difference(model.get_weights(), reference.get_weights()))
    return found


def difference_with_embedding(as_dense):
    keras, bps = _imports()
    tokens = np.arange(48 * 3).reshape(48, 3) * 7 % 11
    labels = np.sin(tokens.sum(1, keepdims=True)).astype("float32")

    def make():
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Embedding(11, 4), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
        return keras.Sequential([keras.layers.Input((3,), dtype="int32"), *layers])

    reference, model = make(), make()
    fit(reference, keras.optimizers.SGD(0.5), tokens, labels, BATCH)
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(0.5), sparse_as_dense=as_dense)
    parts = share(tokens, bps.rank(), bps.size()), share(labels, bps.rank(), bps.size())
    fit(model, optimizer, *parts, BATCH // bps.size())
    return _difference(model.get_weights(), reference.get_weights())


def weights_after_sum_of_gradients():
    """One step with op=Sum, from gradients that are rank + 1 everywhere: by how much each weight changed."""
    keras, bps = _imports()
    model = make_model()
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(0.5), op=bps.Sum)
    before = model.get_weights()
    ones = [keras.ops.ones(v.shape) * (bps.rank() + 1.0) for v in model.trainable_variables]
    optimizer.apply(ones, model.trainable_variables)
    changes = [(old - new).ravel() for old, new in zip(before, model.get_weights())]
    return sorted({round(float(value), 5) for value in np.concatenate(changes)})


def weights_with_other_models_before():
    """Rank 1 has made models that others have not, so its layers have other numbers."""
    keras, bps = _imports()
    if bps.rank() == 1:
        make_model(), make_model()
        bps.DistributedOptimizer(make_optimizer("adam"))
    return differences_from_one_process(["plain"])["plain"]


def differences_of_two_models_in_turn():
    """Two equal models, each with an optimizer, learn in turn; how far each is from one process."""
    _, bps = _imports()
    x, y = _data(BATCH)
    rank, size = bps.rank(), bps.size()
    pairs = []
    for sign in (1, -1):
        model, alone = make_model(), make_model()
        model.compile(optimizer=bps.DistributedOptimizer(make_optimizer("sgd")), loss="mse")
        alone.compile(optimizer=make_optimizer("sgd"), loss="mse")
        pairs.append((model, alone, sign * y))
    for _ in range(3):
        for model, alone, wanted in pairs:
            model.train_on_batch(share(x, rank, size), share(wanted, rank, size))
            alone.train_on_batch(x, wanted)
    return [_difference(model.get_weights(), alone.get_weights()) for model, alone, _ in pairs]


def sum_of_much():
    _, bps = _imports()
    return bps.push_pull(np.ones(interrupted.ELEMENTS, np.float32))


def broadcast_of_much():
    _, bps = _imports()
    return bps.broadcast(np.ones(interrupted.ELEMENTS, np.float32), 1)


def error_of_mismatch():
    """The models have different layers."""
    _, bps = _imports()
    x, y = _data()
    optimizer = bps.DistributedOptimizer(make_optimizer("plain"), name=f"mismatch{bps.size()}")
    model = make_model(units=4 + bps.rank())
    fit(model, optimizer, x, y, BATCH, 1)
    model.get_weights()  # JAX raises where a value is needed


# ---- callbacks


def weights_after_broadcast():
    """Weights, velocities and iterations on all ranks after the first batch, having begun with others."""
    keras, bps = _imports()
    x, y = _data()
    model = make_model(seed=10 + bps.rank())
    optimizer = make_optimizer("nesterov")
    if bps.rank() == 0:  # as if it came from a checkpoint
        fit(model, optimizer, x, y, BATCH, 1)
    optimizer = bps.DistributedOptimizer(optimizer)
    callback = bps.callbacks.BroadcastGlobalVariablesCallback(0)
    fit(model, optimizer, x[:BATCH], y[:BATCH], BATCH, 1, [callback])
    return [np.array(w) for w in model.get_weights()], [np.array(v) for v in optimizer.variables]


class _Rates:
    """Notes the rate of each batch."""

    def __new__(cls):
        keras, _ = _imports()

        class Rates(keras.callbacks.Callback):
            seen = None

            def on_train_batch_end(self, batch, logs=None):
                self.seen = [*(self.seen or ()), float(np.asarray(self.model.optimizer.learning_rate.numpy()))]

        return Rates()


def rates_of_warmup(warmup_epochs=2, steps=4, epochs=3):
    keras, bps = _imports()
    x, y = _data(BATCH * steps)
    rates = _Rates()
    warmup = bps.callbacks.LearningRateWarmupCallback(warmup_epochs=warmup_epochs, initial_lr=0.6, verbose=1)
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(0.6))
    history = fit(make_model(), optimizer, x, y, BATCH, epochs, [warmup, rates])
    return rates.seen, history.history["lr"]


def rates_of_schedule():
    keras, bps = _imports()
    x, y = _data(BATCH * 2)
    rates = _Rates()
    first = bps.callbacks.LearningRateScheduleCallback(lambda epoch: 0.5**epoch, end_epoch=3)
    second = bps.callbacks.LearningRateScheduleCallback(1e-2, start_epoch=4, initial_lr=1.0)
    fit(make_model(), keras.optimizers.SGD(0.4), x, y, BATCH, 5, [first, second, rates])
    return rates.seen


def momentum_correction(correct):
    """Training whose rate falls to a tenth in the middle: (weights, what the paper's formula gives)."""
    keras, bps = _imports()
    x, y = _data(BATCH)
    callback = bps.callbacks.LearningRateScheduleCallback(
        lambda epoch: 1.0 if epoch < 2 else 0.1, momentum_correction=correct
    )
    inputs = keras.layers.Input((8,))
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Model(inputs, layer(inputs))
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9))
    fit(model, optimizer, x, y, BATCH, 4, [callback])
    w, v, rate = np.zeros((8, 1)), np.zeros((8, 1)), 0.05
    for step in range(4):
        now = 0.05 if step < 2 else 0.005
        v, rate = v * (now / rate if correct else 1.0), now
        v = 0.9 * v - rate * 2 * x.T.astype("float64") @ (x @ w - y) / len(x)
        w = w + v
    return np.asarray(model.get_weights()[0], "float64"), w


def averaged_logs():
    """The logs that callbacks behind MetricAverageCallback see, and the history."""
    keras, bps = _imports()
    x, y = _data()

    class Own(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["own"] = float(bps.rank())

    class Seen(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.logs = dict(logs)

    seen = Seen()
    callbacks = [Own(), bps.callbacks.MetricAverageCallback(), seen]
    history = fit(make_model(), make_optimizer("plain"), x * (bps.rank() + 1), y, BATCH, 1, callbacks)
    return seen.logs, {name: values[-1] for name, values in history.history.items()}


def logs_with_other_names():
    _, bps = _imports()
    callback = bps.callbacks.MetricAverageCallback()
    callback.on_epoch_end(0, {"loss": 1.0, "accuracy" if bps.rank() == 0 else "auc": 0.5})


def logs_of_other_number():
    _, bps = _imports()
    callback = bps.callbacks.MetricAverageCallback()
    callback.on_epoch_end(0, {"loss": 1.0, **({"val_loss": 2.0} if bps.rank() == 0 else {})})


# ---- saving


def saved_and_loaded():
    """Trains, saves, loads, trains on: (difference from a training without interruption, names of classes)."""
    keras, bps = _imports()
    x, y = _data()
    parts = share(x, bps.rank(), bps.size()), share(y, bps.rank(), bps.size())
    batch = BATCH // bps.size()
    through = make_model()
    fit(through, bps.DistributedOptimizer(make_optimizer("adam")), *parts, batch, 4)
    model = make_model()
    fit(model, bps.DistributedOptimizer(make_optimizer("adam")), *parts, batch, 2)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        plain = keras.models.load_model(path)
        loaded = bps.load_model(path)
    loaded.fit(*parts, batch_size=batch, epochs=2, shuffle=False, verbose=0)
    assert _is_distributed(loaded.optimizer) and not _is_distributed(plain.optimizer)
    names = type(plain.optimizer).__name__, type(loaded.optimizer).__name__, int(plain.optimizer.iterations)
    return _difference(loaded.get_weights(), through.get_weights()), names


def _is_distributed(optimizer):
    return any(kind.__name__ == "Distributed" for kind in type(optimizer).__mro__)


def own_optimizers_saved():
    """Optimizer classes of the user's own: one that is registered for saving, one that is not."""
    keras, bps = _imports()

    @keras.saving.register_keras_serializable("tests")
    class Registered(keras.optimizers.SGD):
        pass

    class Unregistered(keras.optimizers.SGD):
        pass

    found = []
    for kind, objects in ((Registered, None), (Unregistered, {"Unregistered": Unregistered})):
        model = make_model()
        model.compile(optimizer=bps.DistributedOptimizer(kind(0.25)), loss="mse")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.keras")
            model.save(path)
            plain = keras.models.load_model(path, custom_objects=objects)
            ours = bps.load_model(path, custom_optimizers=[kind])
        found.append((type(plain.optimizer) is kind, isinstance(ours.optimizer, kind)))
    return found


# ---- values


def values():
    keras, bps = _imports()
    rank = bps.rank()
    tensor = keras.ops.convert_to_tensor(np.full((2, 3), rank + 1.0, "float32"))
    averaged = bps.push_pull(tensor, "tensor")
    sent = bps.broadcast(np.array([np.nan if rank else 7.0, rank]), 0, "sent")
    return {
        "number": bps.push_pull(float(rank + 1), "number"),
        "integer": bps.push_pull(rank + 1, "integer"),
        "sum": bps.push_pull([rank, 1], "sum", average=False).tolist(),
        "tensor": keras.ops.convert_to_numpy(averaged).tolist(),
        "is tensor": keras.ops.is_tensor(averaged),
        "allreduce": float(bps.allreduce(np.float32(rank), op=bps.Sum)),
        "largest": float(bps.allreduce(np.float32(rank), op=bps.Max)),
        "short integers": bps.push_pull(np.int16([rank, 1]), "short", average=False).tolist(),
        "gathered": bps.allgather(np.full((rank, 2), rank, "float64")).tolist(),
        "gathered numbers": bps.allgather(rank, "ranks").tolist(),
        "empty": bps.push_pull(np.zeros((0, 3), "float32"), "empty").shape,
        "bool": bps.push_pull(np.array([rank == 0, False]), "bool", average=False).tolist(),
        "strided": bps.push_pull(np.arange(6.0).reshape(2, 3).T + rank, "strided").tolist(),
        "broadcast": sent.tolist(),
        "complex": bps.broadcast(np.array([1j * rank]), bps.size() - 1).tolist(),
    }


DTYPES = "float16 float32 float64 uint8 uint16 uint32 uint64 int8 int16 int32 int64 bool".split()
SHAPES = [(), (5,), (0, 3), (2, 3), (2, 1, 3), (2, 3, 1, 2)]


def sums_of_every_dtype():
    """Arrays and the framework's tensors, three times under the same names, against numpy's."""
    keras, bps = _imports()
    ranks = np.arange(1, bps.size() + 1)
    for dtype, shape in ((dtype, shape) for dtype in DTYPES for shape in SHAPES):
        mine = np.full(shape, bps.rank() + 1).astype(dtype)
        total = np.full(shape, True if dtype == "bool" else ranks.sum()).astype(dtype)
        for _ in range(3):
            summed = bps.push_pull(mine, f"{dtype}{shape}", average=False)
            assert summed.dtype == dtype and summed.shape == shape and (summed == total).all(), (dtype, shape, summed)
        assert (bps.broadcast(mine, bps.size() - 1) == np.full(shape, ranks[-1]).astype(dtype)).all()
        if dtype == "float32":
            tensor = bps.push_pull(_tensor(keras, mine), f"tensor {shape}")
            np.testing.assert_allclose(_numbers(tensor), np.full(shape, ranks.mean()), rtol=1e-6)


def _tensor(keras, array):
    if hasattr(keras, "ops"):
        return keras.ops.convert_to_tensor(array)
    import tensorflow as tf

    return tf.convert_to_tensor(array)


def _numbers(tensor):
    """Of a tensor or a variable."""
    return np.asarray(tensor.detach() if hasattr(tensor, "detach") else tensor)


def gradients_of_many_variables(count=150, times=3):
    """The averages of gradients that are all under way at once, by what SGD makes of them: errors at each step."""
    keras, bps = _imports()
    variables = [_variable(keras, np.zeros((1 + index % 7, 3), "float32")) for index in range(count)]
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build(variables)
    errors = []
    for step in range(1, times + 1):
        grads = [_tensor(keras, np.full(v.shape, bps.rank() + i, "float32")) for i, v in enumerate(variables)]
        _step(keras, optimizer, grads, variables)
        mean = (bps.size() - 1) / 2
        now = [np.asarray(variable.numpy()) for variable in variables]
        errors.append(max(float(np.abs(value + step * (mean + i)).max()) for i, value in enumerate(now)))
    return errors


def _variable(keras, array):
    if hasattr(keras, "Variable"):
        return keras.Variable(array)
    import tensorflow as tf

    return tf.Variable(array)


def difference_in_a_process_set(members):
    """As differences_from_one_process, by those ranks alone; None on the others."""
    _, bps = _imports()
    x, y = _data()
    if bps.rank() not in members:
        return None
    reference, model = make_model(), make_model()
    fit(reference, make_optimizer("plain"), x, y, BATCH)
    options = dict(process_set=bps.ProcessSet(members), name="set")
    optimizer = bps.DistributedOptimizer(make_optimizer("plain"), **options)
    place, size = members.index(bps.rank()), len(members)
    fit(model, optimizer, share(x, place, size), share(y, place, size), BATCH // size)
    return _difference(model.get_weights(), reference.get_weights())


def broadcast_of_a_model():
    _, bps = _imports()
    model = make_model(seed=20 + bps.rank())
    bps.broadcast_global_variables(bps.size() - 1, model)
    return _difference(model.get_weights(), make_model(seed=20 + bps.size() - 1).get_weights())


def broadcast_of_other_models():
    _, bps = _imports()
    bps.broadcast_variables(make_model(units=4 + bps.rank()).weights, 0)


# ---- the loss scale


def steps_with_an_overflow_on_one_rank():
    """One gradient of the last rank is infinite: whether the step changed the weights, and the scales."""
    keras, bps = _imports()
    model = make_model()
    optimizer = bps.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)))
    before = model.get_weights()
    ones = [keras.ops.ones(v.shape) for v in model.trainable_variables]
    bad = [ones[0] * (np.inf if bps.rank() == bps.size() - 1 else 1.0), *ones[1:]]
    optimizer.build(model.trainable_variables)
    scales = [float(np.asarray(optimizer.dynamic_scale.numpy()))]
    _step(keras, optimizer, bad, model.trainable_variables)
    changed = _difference(before, model.get_weights())
    scales.append(float(np.asarray(optimizer.dynamic_scale.numpy())))
    return changed, scales


def _step(keras, optimizer, grads, variables):
    """As the backend's trainer makes it."""
    if not hasattr(keras, "ops"):
        return optimizer.apply_gradients(zip(grads, variables))
    if keras.backend.backend() != "jax":
        return optimizer.apply(grads, variables)
    import jax

    state = [v.value for v in optimizer.variables], grads, [v.value for v in variables]
    weights, own = jax.jit(optimizer.stateless_apply)(*state)
    for variable, value in zip([*variables, *optimizer.variables], [*weights, *own]):
        variable.assign(value)


def outer_loss_scale():
    keras, bps = _imports()
    keras.optimizers.LossScaleOptimizer(bps.DistributedOptimizer(keras.optimizers.SGD(0.1)))


def mixed_float16_training():
    """(class of the optimizer, difference from one process)."""
    keras, bps = _imports()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        optimizer = bps.DistributedOptimizer(make_optimizer("plain"))
        found = differences_from_one_process(["plain"])
    finally:
        keras.config.set_dtype_policy("float32")
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer), found["plain"]


# ---- digits


def digits_accuracy(epochs=8, batch=36):
    """Test accuracy on scikit-learn's digits after an ordinary fit() on this rank's share."""
    keras, bps = _imports()
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
    x, test_x, y, test_y = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
    keras.utils.set_random_seed(bps.rank())
    layers = [
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.Conv2D(64, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
    model = keras.Sequential([keras.layers.Input((8, 8, 1)), *layers])
    optimizer = bps.DistributedOptimizer(keras.optimizers.Adam(0.005))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    callbacks = [
        bps.callbacks.BroadcastGlobalVariablesCallback(0),
        bps.callbacks.MetricAverageCallback(),
        bps.callbacks.LearningRateWarmupCallback(warmup_epochs=1),
    ]
    rows = len(x) // batch * batch // bps.size()  # whole batches: one shape to compile
    mine = slice(bps.rank() * rows, (bps.rank() + 1) * rows)
    model.fit(x[mine], y[mine], batch_size=batch // bps.size(), epochs=epochs, callbacks=callbacks, verbose=0)
    return float(model.evaluate(test_x, test_y, verbose=0, batch_size=360)[1])


# ---- wrong arguments


def messages_of_errors():
    """By case: the message of the ValueError that it raises."""
    keras, bps = _imports()
    sgd = keras.optimizers.SGD
    wrap = bps.DistributedOptimizer
    cases = {
        "twice": lambda: wrap(wrap(sgd(0.1))),
        "no optimizer": lambda: wrap("sgd"),
        "adasum": lambda: wrap(sgd(0.1), op=bps.Adasum),
        "passes": lambda: wrap(sgd(0.1), backward_passes_per_step=0),
        "two accumulations": lambda: wrap(sgd(0.1, gradient_accumulation_steps=2), backward_passes_per_step=3),
        "predivide": lambda: wrap(sgd(0.1), op=bps.Sum, gradient_predivide_factor=2.0),
        "compression": lambda: wrap(sgd(0.1), compression="fp16"),
        "root": lambda: bps.broadcast(1.0, bps.size()),
        "text": lambda: bps.push_pull("text"),
        "option": lambda: bps.load_model("nowhere.keras", unknown=1),
        "warmup": lambda: bps.callbacks.LearningRateWarmupCallback(warmup_epochs=0),
    }
    found = {}
    for name, case in cases.items():
        try:
            case()
        except ValueError as error:
            found[name] = str(error)
    return found


def weights_after_uneven_epochs():
    """Rank r has 12 r + 12 rows; logs and weights after two epochs."""
    _, bps = _imports()
    x, y = _data()
    rows = 12 * (bps.rank() + 1)
    model = make_model(seed=bps.rank())
    callbacks = [
        bps.callbacks.BroadcastGlobalVariablesCallback(0),
        bps.callbacks.JoinCallback(),
        bps.callbacks.MetricAverageCallback(),
    ]
    optimizer = bps.DistributedOptimizer(make_optimizer("sgd"))
    history = fit(model, optimizer, x[:rows], y[:rows], 6, callbacks=callbacks)
    steps = int(np.asarray(optimizer.iterations))
    assert bps.allreduce(bps.rank(), op=bps.Sum) == sum(range(bps.size()))
    last = bps.join()
    return steps, 0 <= last < bps.size(), history.history["loss"], model.get_weights()


def gradients_missing_on_one_rank():
    """Torch: rank 0 has no gradient for the first variable, no rank has one for the second: how far they moved."""
    keras, bps = _imports()
    model = make_model()
    variables = model.trainable_variables
    before = model.get_weights()
    grads = [keras.ops.ones(v.shape) for v in variables]
    if bps.rank() == 0:
        grads[0] = None
    grads[1] = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bps.DistributedOptimizer(keras.optimizers.SGD(1.0)).apply(grads, variables)
    return [float((old - new).max()) for old, new in zip(before, model.get_weights())]


# ---- the backward pass of torch


def numbers_under_way():
    """How many gradients had been pushed when apply() was called, by step, and the difference from one process."""
    _, bps = _imports()
    x, y = _data()
    reference, model = make_model(), make_model()
    fit(reference, make_optimizer("sgd"), x, y, BATCH)
    optimizer = bps.DistributedOptimizer(make_optimizer("sgd"))
    apply, numbers = optimizer.apply, []

    def counting(grads, variables):
        numbers.append(len(optimizer._exchange.of_backend._pushed))
        apply(grads, variables)

    optimizer.apply = counting
    fit(model, optimizer, share(x, bps.rank(), bps.size()), share(y, bps.rank(), bps.size()), BATCH // bps.size())
    return numbers, _difference(model.get_weights(), reference.get_weights())


def gradients_changed_on_one_rank(steps=4):
    """A training step of the user's own, in which the last rank doubles its gradients between backward and apply(), and
    uses all but the last variable's in the second step: how far the weights are from where they should be."""
    keras, bps = _imports()
    import torch

    x, y = (torch.as_tensor(part) for part in _data(BATCH))
    model, alone = make_model(), make_model()
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(0.1))
    for step in range(steps):
        _backward(alone, None, x, y)
        own = [variable.value.grad for variable in alone.trainable_variables]
        variables = model.trainable_variables[: -1 if step == 1 else None]
        _backward(model, optimizer, x, y)
        if bps.rank() == bps.size() - 1 and step != 1:
            for variable in variables:
                variable.value.grad.mul_(2)
        with torch.no_grad():
            optimizer.apply([variable.value.grad for variable in variables], variables)
            factor = (bps.size() + (step != 1)) / bps.size()
            for variable, gradient in zip(alone.trainable_variables[: len(variables)], own):
                variable.value.sub_(0.1 * factor * gradient)
    return _difference(model.get_weights(), alone.get_weights())


def _backward(model, optimizer, x, y):
    model.zero_grad()
    loss = ((model(x, training=True) - y) ** 2).mean()
    (loss if optimizer is None else optimizer.scale_loss(loss)).backward()
