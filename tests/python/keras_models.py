"""What workers train in the tests of byteps.keras, with the Keras that their environment says."""

import hashlib
import os

import numpy as np

BATCH = 12  # of the whole job; divisible by 1, 2 and 3


def keras_and_bps():
    """The Keras in use and its layer of byteps: that of the worker's KERAS_BACKEND, or tf_keras."""
    if os.environ.get("TF_USE_LEGACY_KERAS"):
        import tf_keras as keras

        import byteps.tensorflow.keras as bps
    else:
        import keras

        import byteps.keras as bps
    return keras, bps


def samples(rows=48):
    random = np.random.RandomState(0)
    x = random.rand(rows, 8).astype("float32")
    return x, np.sin(x.sum(1, keepdims=True)).astype("float32")


def share(array, rank, size, batch=BATCH):
    """This rank's rows: of each batch of the job, every size-th row."""
    return np.concatenate([array[at : at + batch][rank::size] for at in range(0, len(array), batch)])


def make_model(seed=1, units=4):
    keras, _ = keras_and_bps()
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(units, activation="tanh"), keras.layers.Dense(1)]
    return keras.Sequential([keras.layers.Input((8,)), *layers])


def make_optimizer(kind, **settings):
    keras, _ = keras_and_bps()
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


_trained_alone = {}


def fit_alone(model, optimizer, x, y, batch, epochs=2):
    """fit() in one process: rank 0 does it for all ranks, and once for all tests that begin with the same."""
    _, bps = keras_and_bps()
    begin = hashlib.sha256(b"".join(array.tobytes() for array in [x, y, *model.get_weights()])).hexdigest()
    kinds = [layer.compute_dtype for layer in model.layers]
    case = (begin, type(optimizer).__name__, str(optimizer.get_config()), batch, epochs, str(kinds))
    if case not in _trained_alone:
        if bps.rank() == 0:
            fit(model, optimizer, x, y, batch, epochs)
        _trained_alone[case] = bps.broadcast_object(model.get_weights() if bps.rank() == 0 else None, 0)
    model.set_weights(_trained_alone[case])


def distance(ours, reference):
    return max(float(np.abs(a - b).max()) for a, b in zip(ours, reference))


def as_tensor(keras, array):
    if hasattr(keras, "ops"):
        return keras.ops.convert_to_tensor(array)
    import tensorflow as tf

    return tf.convert_to_tensor(array)


def as_numbers(tensor):
    """Of a tensor or a variable."""
    return np.asarray(tensor.detach() if hasattr(tensor, "detach") else tensor)


def new_variable(keras, array):
    if hasattr(keras, "Variable"):
        return keras.Variable(array)
    import tensorflow as tf

    return tf.Variable(array)


def apply_gradients(keras, optimizer, grads, variables):
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
