"""What workers do in the tests of byteps.keras, on the backend that their KERAS_BACKEND says.

Each function runs on all ranks and returns what the test looks at. Keras is imported in the workers only.
"""

import warnings

import numpy as np
from keras_models import (
    BATCH,
    apply_gradients,
    as_numbers,
    as_tensor,
    distance,
    fit,
    fit_alone,
    keras_and_bps,
    make_model,
    make_optimizer,
    new_variable,
    samples,
    share,
)


def differences_from_one_process(kinds, epochs=2, compile_options=None, **options):
    """By optimizer: how far the weights of a distributed training are from one process with the whole batches."""
    _, bps = keras_and_bps()
    x, y = samples()
    rank, size = bps.rank(), bps.size()
    found = {}
    for kind in kinds:
        reference = make_model()
        fit_alone(reference, make_optimizer(kind), x, y, BATCH, epochs)
        model = make_model()
        optimizer = bps.DistributedOptimizer(make_optimizer(kind), **options)
        parts = share(x, rank, size), share(y, rank, size)
        fit(model, optimizer, *parts, BATCH // size, epochs, **(compile_options or {}))
        assert distance(make_model().get_weights(), reference.get_weights()) > 0.01  # it has learnt something
        found[kind] = distance(model.get_weights(), reference.get_weights())
    return found


def differences_with_compression():
    """Of fp16 and bf16, whose gradients travel in 16 bits."""
    _, bps = keras_and_bps()
    kinds = bps.Compression.fp16, bps.Compression.bf16
    return [differences_from_one_process(["plain"], compression=kind)["plain"] for kind in kinds]


def difference_with_accumulation(average):
    """Two passes per step: the sum of two batches' gradients, as a rate twice as large makes of their mean. And how
    much is pushed each time that gradients travel: at 4 steps, or before Keras 3.5 at 8 passes."""
    _, bps = keras_and_bps()
    x, y = samples()
    rank, size = bps.rank(), bps.size()
    reference = make_model()
    plain = make_optimizer("plain", gradient_accumulation_steps=2)
    plain.learning_rate = 0.1 if average else 0.2
    fit_alone(reference, plain, x, y, BATCH)
    model = make_model()
    options = dict(backward_passes_per_step=2, average_aggregated_gradients=average)
    optimizer = bps.DistributedOptimizer(make_optimizer("plain"), **options)
    before = bps.metrics().finished_operations
    fit(model, optimizer, share(x, rank, size), share(y, rank, size), BATCH // size)
    difference = distance(model.get_weights(), reference.get_weights())  # on JAX, the last step is over only now
    pushed = bps.metrics().finished_operations - before
    return difference, pushed / (4 if hasattr(plain, "_iterations") else 8)


def differences_of_two_passes_in_keras_2():
    """backward_passes_per_step=2 with SGD, new and legacy, beside one process with batches of twice the size."""
    _, bps = keras_and_bps()
    x, y = samples()
    rank, size = bps.rank(), bps.size()
    found = []
    for kind in ("plain", "legacy"):
        reference = make_model()
        fit_alone(reference, make_optimizer(kind), x, y, 2 * BATCH)
        model = make_model()
        options = dict(backward_passes_per_step=2, average_aggregated_gradients=True)
        optimizer = bps.DistributedOptimizer(make_optimizer(kind), **options)
        fit(model, optimizer, share(x, rank, size), share(y, rank, size), BATCH // size)
        found.append(distance(model.get_weights(), reference.get_weights()))
    return found


def difference_with_embedding(as_dense):
    keras, bps = keras_and_bps()
    tokens = np.arange(48 * 3).reshape(48, 3) * 7 % 11
    labels = np.sin(tokens.sum(1, keepdims=True)).astype("float32")

    def make():
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Embedding(11, 4), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
        return keras.Sequential([keras.layers.Input((3,), dtype="int32"), *layers])

    reference, model = make(), make()
    fit_alone(reference, keras.optimizers.SGD(0.5), tokens, labels, BATCH)
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(0.5), sparse_as_dense=as_dense)
    parts = share(tokens, bps.rank(), bps.size()), share(labels, bps.rank(), bps.size())
    fit(model, optimizer, *parts, BATCH // bps.size())
    return distance(model.get_weights(), reference.get_weights())


def weights_after_sum_of_gradients():
    """One step with op=Sum, from gradients that are rank + 1 everywhere: by how much each weight changed."""
    keras, bps = keras_and_bps()
    model = make_model()
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(0.5), op=bps.Sum)
    before = model.get_weights()
    ones = [keras.ops.ones(v.shape) * (bps.rank() + 1.0) for v in model.trainable_variables]
    optimizer.apply(ones, model.trainable_variables)
    changes = [(old - new).ravel() for old, new in zip(before, model.get_weights())]
    return sorted({round(float(value), 5) for value in np.concatenate(changes)})


def weights_with_other_models_before():
    """Rank 1 has made models that others have not, so its layers have other numbers."""
    keras, bps = keras_and_bps()
    if bps.rank() == 1:
        make_model(), make_model()
        bps.DistributedOptimizer(make_optimizer("adam"))
    return differences_from_one_process(["plain"])["plain"]


def differences_of_two_models_in_turn():
    """Two equal models, each with an optimizer, learn in turn; how far each is from one process."""
    _, bps = keras_and_bps()
    x, y = samples(BATCH)
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
    return [distance(model.get_weights(), alone.get_weights()) for model, alone, _ in pairs]


def error_of_mismatch():
    """The models have different layers."""
    _, bps = keras_and_bps()
    x, y = samples()
    optimizer = bps.DistributedOptimizer(make_optimizer("plain"), name=f"mismatch{bps.size()}")
    model = make_model(units=4 + bps.rank())
    fit(model, optimizer, x, y, BATCH, 1)
    model.get_weights()  # JAX raises where a value is needed


def gradients_of_many_variables(count=150, times=3):
    """The averages of gradients that are all under way at once, by what SGD makes of them: errors at each step."""
    keras, bps = keras_and_bps()
    variables = [new_variable(keras, np.zeros((1 + index % 7, 3), "float32")) for index in range(count)]
    optimizer = bps.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build(variables)
    errors = []
    for step in range(1, times + 1):
        grads = [as_tensor(keras, np.full(v.shape, bps.rank() + i, "float32")) for i, v in enumerate(variables)]
        apply_gradients(keras, optimizer, grads, variables)
        mean = (bps.size() - 1) / 2
        now = [np.asarray(variable.numpy()) for variable in variables]
        errors.append(max(float(np.abs(value + step * (mean + i)).max()) for i, value in enumerate(now)))
    return errors


def difference_in_a_process_set(members):
    """As differences_from_one_process, by those ranks together; the others train alone."""
    _, bps = keras_and_bps()
    x, y = samples()
    reference, model = make_model(), make_model()
    fit(reference, make_optimizer("plain"), x, y, BATCH)  # at each rank: other backends begin with other weights
    options = dict(process_set=bps.ProcessSet(members), name="set")
    optimizer = bps.DistributedOptimizer(make_optimizer("plain"), **options)
    place, size = (members.index(bps.rank()), len(members)) if bps.rank() in members else (0, 1)
    fit(model, optimizer, share(x, place, size), share(y, place, size), BATCH // size)
    return distance(model.get_weights(), reference.get_weights())


def weights_with_a_local_layer():
    """Of two layers of one weight of 1, after a step with gradients of rank + 1; the first layer is local."""
    keras, bps = keras_and_bps()
    layers = [keras.layers.Dense(1, use_bias=False, kernel_initializer="ones") for _ in range(2)]
    keras.Sequential([keras.layers.Input((1,)), *layers])
    optimizer = bps.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=layers[:1])
    optimizer.build([layer.kernel for layer in layers])
    gradient = as_tensor(keras, np.full((1, 1), bps.rank() + 1.0, "float32"))
    apply_gradients(keras, optimizer, [gradient] * 2, [layer.kernel for layer in layers])
    return [float(as_numbers(layer.kernel)[0, 0]) for layer in layers]


# ---- the backward pass of torch


def numbers_under_way():
    """How many gradients had been pushed when apply() was called, by step, and the difference from one process."""
    _, bps = keras_and_bps()
    x, y = samples()
    reference, model = make_model(), make_model()
    fit_alone(reference, make_optimizer("sgd"), x, y, BATCH)
    optimizer = bps.DistributedOptimizer(make_optimizer("sgd"))
    apply, numbers = optimizer.apply, []

    def counting(grads, variables):
        numbers.append(len(optimizer._exchange.of_backend._pushed))
        apply(grads, variables)

    optimizer.apply = counting
    fit(model, optimizer, share(x, bps.rank(), bps.size()), share(y, bps.rank(), bps.size()), BATCH // bps.size())
    return numbers, distance(model.get_weights(), reference.get_weights())


def gradients_changed_on_one_rank(steps=4):
    """A training step of the user's own, in which the last rank doubles its gradients between backward and apply(), and
    uses all but the last variable's in the second step: how far the weights are from where they should be."""
    keras, bps = keras_and_bps()
    import torch

    x, y = (torch.as_tensor(part) for part in samples(BATCH))
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
    return distance(model.get_weights(), alone.get_weights())


def _backward(model, optimizer, x, y):
    model.zero_grad()
    loss = ((model(x, training=True) - y) ** 2).mean()
    (loss if optimizer is None else optimizer.scale_loss(loss)).backward()


def gradients_missing_on_one_rank():
    """Torch: rank 0 has no gradient for the first variable, no rank has one for the second: how far they moved."""
    keras, bps = keras_and_bps()
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


# ---- the loss scale


def mixed_float16_training():
    """(class of the optimizer, difference from one process)."""
    keras, bps = keras_and_bps()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        optimizer = bps.DistributedOptimizer(make_optimizer("plain"))
        found = differences_from_one_process(["plain"])
    finally:
        keras.config.set_dtype_policy("float32")
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer), found["plain"]


def steps_with_an_overflow_on_one_rank():
    """One gradient of the last rank is infinite: whether the step changed the weights, and the scales."""
    keras, bps = keras_and_bps()
    model = make_model()
    optimizer = bps.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)))
    before = model.get_weights()
    ones = [keras.ops.ones(v.shape) for v in model.trainable_variables]
    bad = [ones[0] * (np.inf if bps.rank() == bps.size() - 1 else 1.0), *ones[1:]]
    optimizer.build(model.trainable_variables)
    scales = [float(np.asarray(optimizer.dynamic_scale.numpy()))]
    apply_gradients(keras, optimizer, bad, model.trainable_variables)
    changed = distance(before, model.get_weights())
    scales.append(float(np.asarray(optimizer.dynamic_scale.numpy())))
    return changed, scales


def outer_loss_scale():
    keras, bps = keras_and_bps()
    keras.optimizers.LossScaleOptimizer(bps.DistributedOptimizer(keras.optimizers.SGD(0.1)))


# ---- digits


def digits_accuracy(epochs=8, batch=36):
    """Test accuracy on scikit-learn's digits after an ordinary fit() on this rank's share."""
    keras, bps = keras_and_bps()
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
