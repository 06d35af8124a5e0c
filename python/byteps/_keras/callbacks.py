"""What the callbacks do, for any Keras: each class here is mixed in before that Keras's own Callback.

The learning rates follow "Accurate, Large Minibatch SGD" (Goyal et al., arXiv 1706.02677): §2.2 for the warmup, §3 for
the momentum correction. The velocity of SGD in Keras contains the learning rate, v = momentum * v - rate * gradient; so
when the rate changes, v is multiplied once by new rate / old rate.
"""

from __future__ import annotations

import hashlib
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Union

import numpy as np

from byteps._core import session
from byteps._core.mixed import Wrapped
from byteps._core.process_sets import check_root
from byteps._core.reduction import Sum
from byteps._keras import values

Multiplier = Union[float, Callable[[float], float]]


class BroadcastGlobalVariables(Wrapped):
    """Gives the model's weights and the optimizer's variables of `root_rank` to all ranks, after the first batch of
    fit(): only then all of them exist. Put it first in the list of callbacks.

    root_rank: whose values count.
    device: accepted for compatibility.
    local_variables: what stays each rank's own.
    """

    def __init__(self, root_rank: int = 0, device: str = "", local_variables: Optional[Iterable[Any]] = None) -> None:
        super().__init__()
        del device
        self.root_rank = root_rank
        self.broadcast_done = False
        self._local = list(local_variables or ())

    def register_local_var(self, variable: Any) -> None:
        """The variable stays each rank's own."""
        self._local.append(variable)

    def on_train_begin(self, logs: Optional[Dict[str, Any]] = None) -> None:
        check_root(self.root_rank)

    def on_train_batch_end(self, batch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        if self.broadcast_done:
            return
        local = {id(variable) for variable in self._local}
        shared = [variable for variable in state_of(self.model) if id(variable) not in local]
        values.broadcast_variables(shared, self.root_rank)
        self.broadcast_done = True


def state_of(model: Any) -> List[Any]:
    """Weights of the model, then the optimizer's variables. Not the seeds of random layers: each rank has its own."""
    variables = list(model.weights)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        own = optimizer.variables
        variables += list(own() if callable(own) and not isinstance(own, list) else own)
    return variables


class Join(Wrapped):
    """For ranks with different numbers of batches in an epoch: one that has had its last is not waited for, and counts
    as zero in the averages of the others. When all have had theirs, every rank gets the weights and the optimizer's
    variables of the rank that was last. Each rank needs a batch. Put it after BroadcastGlobalVariablesCallback, before
    all others that compare ranks."""

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        values.broadcast_variables(state_of(self.model), session.current().finish_inputs())


class MetricAverage(Wrapped):
    """Averages the logs of each epoch over all ranks, each rank counting the same. Put it before callbacks that read
    them: ReduceLROnPlateau, EarlyStopping, ModelCheckpoint, TensorBoard.

    device: accepted for compatibility.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        del device

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        if logs:
            average_logs(logs)


def average_logs(logs: Dict[str, Any]) -> None:
    """In place; what is no number stays. ValueError on all ranks when the metrics have other names elsewhere."""
    names = sorted(name for name, value in logs.items() if np.ndim(value) == 0 and np.isreal(value))
    digest = float(int.from_bytes(hashlib.sha256("\n".join(names).encode()).digest()[:3], "little"))
    sent = np.array([1.0, digest, *(float(logs[name]) for name in names)], np.float64)
    # Padded, so that ranks with other numbers of metrics can tell each other.
    padded = np.zeros(-(-len(sent) // 32) * 32)
    padded[: len(sent)] = sent
    summed = values.push_pull(padded, f"metrics.{len(padded)}", Sum)
    there = summed[0]  # a rank may be lost
    if summed[1] != digest * there:
        raise ValueError(
            f"the metrics have other names on other ranks; here they are {', '.join(names)}. Compile the model with "
            "the same metrics on all ranks, and give all of them validation data or none"
        )
    for name, total in zip(names, summed[2:]):
        logs[name] = float(total / there)


def refuse_positional(owner: object, given: Sequence[Any], *orders: str) -> None:
    """TypeError when arguments were given by place where their order differs from one library to the other. `orders`:
    "<whose>: <names in that order>" each; the message says what the arguments would have been in them."""
    if not given:
        return
    title = type(owner).__name__
    spellings = []
    for order in orders:
        whose, names = order.split(": ")
        meant = [f"{name}={value!r}" for name, value in zip(names.split(), given)]
        spellings.append(f"{title}({', '.join(meant)}) as in {whose}")
    raise TypeError(f"{title}: give its arguments by name, {' or '.join(spellings)}")


class LearningRateSchedule(Wrapped):
    """In epochs start_epoch <= epoch < end_epoch, the learning rate is initial_lr * multiplier(epoch). Arguments are
    given by name, because Horovod and the original BytePS have them in different orders.

    multiplier: a number, or a function of the epoch (a float when staircase is False).
    end_epoch: None: until the end.
    staircase: the rate changes at the beginning of epochs only; else at each batch. A number as multiplier means True.
    momentum_correction: the velocity of optimizers with momentum follows the rate.
    steps_per_epoch: needed when staircase is False and Keras does not know it.
    initial_lr: None: the optimizer's rate at the beginning of fit().
    """

    def __init__(
        self,
        *positional: Any,
        multiplier: Optional[Multiplier] = None,
        start_epoch: int = 0,
        end_epoch: Optional[int] = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: Optional[int] = None,
        initial_lr: Optional[float] = None,
    ) -> None:
        refuse_positional(
            self,
            positional,
            "Horovod: initial_lr multiplier start_epoch end_epoch staircase momentum_correction steps_per_epoch",
            "BytePS: multiplier start_epoch end_epoch staircase momentum_correction steps_per_epoch initial_lr",
        )
        super().__init__()
        if multiplier is None:
            raise TypeError(f"{type(self).__name__} needs multiplier=: a number, or a function of the epoch")
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            constant = float(multiplier)
            self.multiplier = lambda epoch: constant
            staircase = True
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.initial_lr = initial_lr
        self.current_epoch = 0

    def on_train_begin(self, logs: Optional[Dict[str, Any]] = None) -> None:
        if self.initial_lr is None:
            self.initial_lr = self._rate()
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self._detected_steps()

    def on_epoch_begin(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        if self.current_epoch < self.start_epoch:
            return
        if self.end_epoch is not None and self.current_epoch >= self.end_epoch:
            return
        if self.staircase and batch == 0:
            self._adjust(self.current_epoch)
        elif not self.staircase:
            assert self.steps_per_epoch is not None  # since on_train_begin()
            self._adjust(self.current_epoch + batch / self.steps_per_epoch)

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        if logs is not None:
            logs["lr"] = self._rate()  # as in Horovod; Keras's own callbacks say learning_rate

    def _adjust(self, epoch: float) -> None:
        assert self.initial_lr is not None  # since on_train_begin()
        old = self._rate()
        new = float(self.initial_lr * self.multiplier(epoch))
        if new == old:
            return
        optimizer = self.model.optimizer
        try:
            optimizer.learning_rate = new
        except TypeError as error:
            raise ValueError(
                "the optimizer has a LearningRateSchedule, which this callback cannot change: give the optimizer a "
                "number as its learning_rate"
            ) from error
        if self.momentum_correction and old > 0:
            for velocity in velocities_of(optimizer):
                velocity.assign(velocity * (new / old))

    def _rate(self) -> float:
        rate = self.model.optimizer.learning_rate
        return float(rate.numpy() if hasattr(rate, "numpy") else np.asarray(rate))

    def _detected_steps(self) -> int:
        params = self.params or {}
        steps = params.get("steps")
        if not steps and params.get("samples") and params.get("batch_size"):
            steps = params["samples"] // params["batch_size"]
        if not steps:
            raise ValueError(
                f"Keras does not know the number of batches of an epoch: give {type(self).__name__} steps_per_epoch"
            )
        return int(steps)


def velocities_of(optimizer: Any) -> List[Any]:
    """The variables that hold momentum * velocity - rate * gradient: those of SGD and RMSprop with momentum."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    if not _positive(getattr(optimizer, "momentum", None)):
        return []
    kept = getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None)
    if kept is None and hasattr(optimizer, "get_slot_names") and "momentum" in optimizer.get_slot_names():
        kept = [v for v in optimizer.variables() if v.name.split(":")[0].endswith("/momentum")]  # tf_keras legacy
    return [velocity for velocity in kept or [] if velocity is not None]


def _positive(momentum: Any) -> bool:
    try:
        return float(momentum) > 0
    except (TypeError, ValueError):
        return False


class LearningRateWarmup(LearningRateSchedule):
    """The learning rate grows batch by batch from initial_lr / size() to initial_lr over `warmup_epochs` epochs:
    initial_lr / size * ((size - 1) / warmup_epochs * epoch + 1).

    initial_lr: the rate for the whole job, usually that of one worker times size(). None: the optimizer's.
    verbose: 1: rank 0 says when it has finished.
    """

    def __init__(
        self,
        *positional: Any,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: Optional[int] = None,
        verbose: int = 0,
        initial_lr: Optional[float] = None,
    ) -> None:
        refuse_positional(
            self,
            positional,
            "Horovod: initial_lr warmup_epochs momentum_correction steps_per_epoch verbose",
            "BytePS: warmup_epochs momentum_correction steps_per_epoch verbose initial_lr",
        )

        def multiplier(epoch: float) -> float:
            assert self.steps_per_epoch is not None  # since on_train_begin()
            size = session.job().size
            epoch += 1.0 / self.steps_per_epoch  # so that the last batch of an epoch has a round number
            return 1.0 / size * (epoch * (size - 1) / warmup_epochs + 1)

        if warmup_epochs <= 0:
            raise ValueError(f"warmup_epochs is {warmup_epochs}: it must be at least 1")
        super().__init__(
            multiplier=multiplier,
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
            initial_lr=initial_lr,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        super().on_epoch_end(epoch, logs)
        if epoch + 1 == self.end_epoch and self.verbose > 0 and session.job().rank == 0:
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {self._rate():g}.")


class BestModelCheckpoint(Wrapped):
    """ModelCheckpoint(save_best_only=True): put it after MetricAverageCallback, and give it to one rank's fit(). All
    arguments are given by name, because Horovod's begin with monitor and Keras's with filepath, which is needed."""

    def __init__(self, *positional: Any, **options: Any) -> None:
        refuse_positional(
            self, positional, "Keras: filepath monitor verbose", "Horovod: monitor verbose mode save_freq"
        )
        options.setdefault("save_best_only", True)
        super().__init__(**options)
