"""What workers do in the tests of byteps.keras's callbacks, and of saving and loading."""

import os
import tempfile

import numpy as np
from keras_models import BATCH, distance, fit, keras_and_bps, make_model, make_optimizer, samples, share


def weights_after_broadcast():
    """Weights, velocities and iterations on all ranks after the first batch, having begun with others."""
    keras, bps = keras_and_bps()
    x, y = samples()
    model = make_model(seed=10 + bps.rank())
    optimizer = make_optimizer("nesterov")
    if bps.rank() == 0:  # as if it came from a checkpoint
        fit(model, optimizer, x, y, BATCH, 1)
    optimizer = bps.DistributedOptimizer(optimizer)
    callback = bps.callbacks.BroadcastGlobalVariablesCallback(0)
    fit(model, optimizer, x[:BATCH], y[:BATCH], BATCH, 1, [callback])
    return [np.array(w) for w in model.get_weights()], [np.array(v) for v in optimizer.variables]


def weights_with_local_ones():
    """((whether the two local weights are this rank's own, whether they are rank 0's), how far the others are from rank
    0's) after a broadcast."""
    _, bps = keras_and_bps()
    model, root = make_model(seed=10 + bps.rank()), make_model(seed=10)
    own = [np.array(weight) for weight in model.get_weights()]
    callback = bps.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[model.weights[0]])
    callback.register_local_var(model.weights[1])
    callback.set_model(model)
    callback.on_train_batch_end(0)
    after, roots = model.get_weights(), root.get_weights()
    is_own = distance(after[:2], own[:2]) == 0
    return (is_own, distance(after[:2], roots[:2]) == 0), float(distance(after[2:], roots[2:]))


class _Rates:
    """Notes the rate of each batch."""

    def __new__(cls):
        keras, _ = keras_and_bps()

        class Rates(keras.callbacks.Callback):
            seen = None

            def on_train_batch_end(self, batch, logs=None):
                self.seen = [*(self.seen or ()), float(np.asarray(self.model.optimizer.learning_rate.numpy()))]

        return Rates()


def rates_of_warmup(warmup_epochs=2, steps=4, epochs=3):
    keras, bps = keras_and_bps()
    x, y = samples(BATCH * steps)
    rates = _Rates()
    warmup = bps.callbacks.LearningRateWarmupCallback(warmup_epochs=warmup_epochs, initial_lr=0.6, verbose=1)
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(0.6))
    history = fit(make_model(), optimizer, x, y, BATCH, epochs, [warmup, rates])
    return rates.seen, history.history["lr"]


def rates_of_schedule():
    keras, bps = keras_and_bps()
    x, y = samples(BATCH * 2)
    rates = _Rates()
    first = bps.callbacks.LearningRateScheduleCallback(multiplier=lambda epoch: 0.5**epoch, end_epoch=3)
    second = bps.callbacks.LearningRateScheduleCallback(multiplier=1e-2, start_epoch=4, initial_lr=1.0)
    fit(make_model(), keras.optimizers.SGD(0.4), x, y, BATCH, 5, [first, second, rates])
    return rates.seen


def momentum_correction(correct):
    """Training whose rate falls to a tenth in the middle: (weights, what the paper's formula gives)."""
    keras, bps = keras_and_bps()
    x, y = samples(BATCH)
    callback = bps.callbacks.LearningRateScheduleCallback(
        multiplier=lambda epoch: 1.0 if epoch < 2 else 0.1, momentum_correction=correct
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
    keras, bps = keras_and_bps()
    x, y = samples()

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
    _, bps = keras_and_bps()
    callback = bps.callbacks.MetricAverageCallback()
    callback.on_epoch_end(0, {"loss": 1.0, "accuracy" if bps.rank() == 0 else "auc": 0.5})


def logs_of_other_number():
    _, bps = keras_and_bps()
    callback = bps.callbacks.MetricAverageCallback()
    callback.on_epoch_end(0, {"loss": 1.0, **({"val_loss": 2.0} if bps.rank() == 0 else {})})


def weights_after_uneven_epochs():
    """Rank r has 12 r + 12 rows; logs and weights after two epochs."""
    _, bps = keras_and_bps()
    x, y = samples()
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


# ---- saving


def saved_and_loaded():
    """Trains, saves, loads, trains on: (difference from a training without interruption, names of classes)."""
    keras, bps = keras_and_bps()
    x, y = samples()
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
    names = type(plain.optimizer).__name__, type(loaded.optimizer).__name__, int(plain.optimizer.iterations.numpy())
    return distance(loaded.get_weights(), through.get_weights()), names


def _is_distributed(optimizer):
    return any(kind.__name__ == "Distributed" for kind in type(optimizer).__mro__)


def own_optimizers_saved():
    """Optimizer classes of the user's own: one that is registered for saving, one that is not."""
    keras, bps = keras_and_bps()

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
