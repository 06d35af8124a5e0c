"""What workers do in the tests of byteps.keras's functions of values, and of what it refuses."""

import interrupted
import ml_dtypes  # noqa: F401 - tells numpy of bfloat16
import numpy as np
from keras_models import as_tensor, distance, keras_and_bps, make_model


class _OnGpu:
    """As torch's CUDA tensors present themselves."""

    class device:
        type = "cuda"

    dtype = "torch.float32"
    is_on_host = False

    def __init__(self, value):
        self._value = np.float32(value)

    def numpy(self):
        if not self.is_on_host:
            raise TypeError("can't convert cuda:0 device type tensor to numpy.")
        return self._value

    def cpu(self):
        copy = _OnGpu(self._value)
        copy.is_on_host = True
        return copy


def values():
    keras, bps = keras_and_bps()
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
        "scaled": bps.allreduce(np.float32([rank, 1]), "scaled", None, 0.5, 4.0, bps.Sum).tolist(),
        "half": bps.allreduce(np.float32([1 / 3]), "half", op=bps.Max, compression=bps.Compression.fp16).tolist(),
        "brain": bps.allreduce(np.float64([1 / 3]), op=bps.Max, compression=bps.Compression.bf16).tolist(),
        "short integers": bps.push_pull(np.int16([rank, 1]), "short", average=False).tolist(),
        "gathered": bps.allgather(np.full((rank, 2), rank, "float64")).tolist(),
        "gathered numbers": bps.allgather(rank, "ranks").tolist(),
        "empty": bps.push_pull(np.zeros((0, 3), "float32"), "empty").shape,
        "bool": bps.push_pull(np.array([rank == 0, False]), "bool", average=False).tolist(),
        "strided": bps.push_pull(np.arange(6.0).reshape(2, 3).T + rank, "strided").tolist(),
        "broadcast": sent.tolist(),
        "on a GPU": float(bps.push_pull(_OnGpu(rank), "on a GPU", average=False)),
        "complex": bps.broadcast(np.array([1j * rank]), bps.size() - 1).tolist(),
    }


DTYPES = "float16 float32 float64 uint8 uint16 uint32 uint64 int8 int16 int32 int64 bool bfloat16".split()
SHAPES = [(), (5,), (0, 3), (2, 3), (2, 1, 3), (2, 3, 1, 2)]


def sums_of_every_dtype():
    """Arrays and the framework's tensors, three times under the same names, against numpy's."""
    keras, bps = keras_and_bps()
    ranks = np.arange(1, bps.size() + 1)
    for dtype, shape in ((dtype, shape) for dtype in DTYPES for shape in SHAPES):
        mine = np.full(shape, bps.rank() + 1).astype(dtype)
        total = np.full(shape, True if dtype == "bool" else ranks.sum()).astype(dtype)
        for _ in range(3):
            summed = bps.push_pull(mine, f"{dtype}{shape}", average=False)
            assert summed.dtype == dtype and summed.shape == shape and (summed == total).all(), (dtype, shape, summed)
        assert (bps.broadcast(mine, bps.size() - 1) == np.full(shape, ranks[-1]).astype(dtype)).all()
        if dtype in ("float32", "bfloat16"):
            tensor = bps.push_pull(as_tensor(keras, mine), f"tensor {dtype} {shape}")
            tensor = tensor.float() if hasattr(tensor, "float") else tensor
            numbers = np.asarray(tensor.numpy() if hasattr(tensor, "numpy") else tensor).astype("float32")
            np.testing.assert_allclose(numbers, np.full(shape, ranks.mean()), rtol=1e-6)


def broadcast_of_a_model():
    _, bps = keras_and_bps()
    model = make_model(seed=20 + bps.rank())
    bps.broadcast_global_variables(bps.size() - 1, model)
    return distance(model.get_weights(), make_model(seed=20 + bps.size() - 1).get_weights())


def broadcast_of_other_models():
    _, bps = keras_and_bps()
    bps.broadcast_variables(make_model(units=4 + bps.rank()).weights, 0)


def sum_of_much():
    _, bps = keras_and_bps()
    return bps.push_pull(np.ones(interrupted.ELEMENTS, np.float32))


def broadcast_of_much():
    _, bps = keras_and_bps()
    return bps.broadcast(np.ones(interrupted.ELEMENTS, np.float32), 1)


# ---- wrong arguments


def messages_of_errors():
    """By case: the message of the ValueError that it raises."""
    keras, bps = keras_and_bps()
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
        "compressor": lambda: bps.allreduce(1.0, compression="fp16"),
        "warmup": lambda: bps.callbacks.LearningRateWarmupCallback(warmup_epochs=0),
    }
    found = {}
    for name, case in cases.items():
        try:
            case()
        except ValueError as error:
            found[name] = str(error)
    return found
