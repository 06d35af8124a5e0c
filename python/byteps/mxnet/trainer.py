"""DistributedTrainer: gluon.Trainer whose gradients are averaged over all workers."""

from __future__ import annotations

import functools
from typing import Any, Dict, List, Optional, Union

import mxnet as mx
from mxnet.ndarray import NDArray

from byteps._core import session
from byteps._core.agreement import require_agreement
from byteps._core.choices import gradient_compression, wants_momentum
from byteps._core.process_sets import ProcessSet, check_root, global_process_set, scoped
from byteps.mxnet.broadcast import check_device, finish, start_broadcast, when_initialized
from byteps.mxnet.compression import Compression, Compressor
from byteps.mxnet.optimizer import DistributedOptimizer, Gradients, check_optimizer

__all__ = ["DistributedTrainer"]


class DistributedTrainer(mx.gluon.Trainer):
    """A gluon.Trainer that averages gradients over all workers in each step. Everything else is as in gluon.Trainer.

    All workers get the parameters of `root_rank` twice: when the trainer is made (those of deferred initialization when
    they are initialized), so that the first gradients are of the same parameters, and in the first step, so that
    values which only the root has loaded in between reach all.

    params: net.collect_params(), a dict of Parameters, or a list of them. All ranks must have the same, in the same
        order (a dict's is that of its sorted names).
    optimizer, optimizer_params: as for gluon.Trainer. Not a DistributedOptimizer: that would average twice.
    root_rank: whose parameters all get; one of the process set.
    compression_params: how gradients travel, as in the original: {"compressor": "onebit", "ef": "vanilla",
        "momentum": "nesterov"}, {"fp16": True}, ... (docs/compression.md). With momentum, which gradients have before
        they are coded, that of optimizer_params is taken, and the optimizer has none; and with onebit their weight
        decay, which then has momentum of its own here.
    compression: instead of it, one of Compression.
    gradient_predivide_factor, num_groups: for compatibility, as in DistributedOptimizer.
    prefix: what the names of gradients begin with. None: every trainer has names of its own, by the order in which
        trainers are used. With a prefix, a later trainer for the same parameters may have it again, so that servers
        need no new memory.
    process_set: the ranks that train together. On a rank that is not in it, the trainer works alone.
    batch_size of step(): of this worker's batch. Gradients are divided by it and averaged over the workers, so the
        result is that of one process with all the workers' batches together.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Union[str, mx.optimizer.Optimizer],
        optimizer_params: Optional[Dict[str, Any]] = None,
        root_rank: int = 0,
        compression_params: Optional[Dict[str, Any]] = None,
        compression: Compressor = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: Optional[str] = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if hasattr(root_rank, "compress"):
            raise TypeError(
                "DistributedTrainer: the fourth argument is root_rank, as in the original BytePS; write compression= "
                "for Horovod's, and root_rank= for the other"
            )
        root_rank = check_root(root_rank, process_set.ranks)
        if isinstance(optimizer, DistributedOptimizer):
            raise ValueError("DistributedTrainer averages gradients itself: give it the plain optimizer")
        if isinstance(params, tuple):
            params = list(params)
        optimizer_params = dict(optimizer_params or {})
        self._weight_decay: Optional[_WeightDecay] = None
        mu = None
        if compression_params and wants_momentum(compression_params):
            mu = _taken_momentum(optimizer_params, compression_params)
            if compression_params["compressor"] == "onebit" and optimizer_params.get("wd"):
                self._weight_decay = _WeightDecay(mu or 0.0, optimizer_params.pop("wd"))
        compression = gradient_compression(compression, Compression, compression_params, mu, process_set)
        self._gradients = Gradients(compression, gradient_predivide_factor, num_groups, process_set, prefix)
        self._factor: Optional[float] = None  # within step(): what gradients are multiplied by
        self._root_rank = root_rank
        super().__init__(params, optimizer, optimizer_params, kvstore=None)
        check_optimizer(self._optimizer, self._gradients.compression)
        if self._contains_sparse_weight or self._contains_sparse_grad:
            sparse = [p.name for p in self._params if p._stype != "default" or p._grad_stype != "default"]
            raise ValueError(
                f"parameters with sparse weights or gradients are not supported: {', '.join(sparse)}; make them dense, "
                "for example gluon.nn.Embedding(..., sparse_grad=False)"
            )
        if self._gradients.travel:
            for param in self._params:
                check_device(param.name, param)
            numbered = [f"parameter {index}" for index in range(len(self._params))]  # their names may differ
            require_agreement(numbered, root_rank, "DistributedTrainer: parameters differ", self._gradients.members)
        self._broadcast_params()

    def _init_kvstore(self) -> None:
        """There is none: the gradients travel in _allreduce_grads()."""
        self._update_on_kvstore = False
        self._kv_initialized = True

    def _init_params(self) -> None:
        """Before the first step."""
        self._broadcast_params()
        self._params_to_init: List[Any] = []

    def _broadcast_params(self) -> None:
        if not self._gradients.travel:
            return
        members = self._gradients.members
        call = session.current().unique_name(scoped("trainer", members))
        started: List[List[NDArray]] = []
        for index, param in enumerate(self._params):
            start = functools.partial(
                start_broadcast,
                root_rank=self._root_rank,
                name=f"parameter_{index}@{call}",
                priority=-index,
                members=members,
            )
            started.append(when_initialized(param, start))
        finish(started, members)

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """As that of gluon.Trainer. What a compressor keeps from step to step is of gradients as they are used: divided
        by the batch before they are coded, as in the original."""
        if getattr(self._gradients.compression, "is_of_parts", False) and self._gradients.travel:
            self._factor = self._scale / batch_size
        try:
            super().step(batch_size, ignore_stale_grad)
        finally:
            self._factor = None

    def compression_state(self) -> Dict[str, Any]:
        """What a compressor keeps on this rank, to be saved beside save_states(): Compression's state()."""
        state = self._gradients.compression.state()
        return state if self._weight_decay is None else {**state, "weight_decay": self._weight_decay.state()}

    def load_compression_state(self, saved: Optional[Dict[str, Any]]) -> None:
        """What compression_state() gave on the same rank, between two steps."""
        self._gradients.compression.load_state(saved)
        if self._weight_decay is not None:
            self._weight_decay.load((saved or {}).get("weight_decay", {}))

    def _allreduce_grads(self) -> None:
        if not self._gradients.travel and len(self._contexts) == 1:
            return
        rate = self.learning_rate if self._gradients.heed_rates else None
        for index, param in enumerate(self._params):
            if param.grad_req != "null":
                gradients = param.list_grad()
                if self._factor is not None:
                    for gradient in gradients:
                        gradient *= self._factor
                self._gradients.push(index, gradients, rate)
        if self._factor is not None:
            self._optimizer.rescale_grad = 1.0

    def _update(self, ignore_stale_grad: bool = False) -> None:
        if self._weight_decay is not None:
            for index, param in enumerate(self._params):
                if param.grad_req != "null":
                    self._weight_decay.add(index, param, self._optimizer.rescale_grad)
        super()._update(ignore_stale_grad)


class _WeightDecay:
    """Of parameters whose gradients have had their momentum before they were coded: weight decay has its own, the same
    on all ranks, m = mu * (m + wd * x), and wd * x + m is added to the gradient."""

    def __init__(self, mu: float, wd: float) -> None:
        self._mu, self._wd = mu, wd
        self._momentum: Dict[int, List[NDArray]] = {}  # by the index of the parameter, one per device
        self._loaded: Dict[int, Any] = {}

    def add(self, index: int, param: Any, rescale: float) -> None:
        """To the gradients, which the optimizer multiplies by `rescale`."""
        values = param.list_data()
        if index not in self._momentum:
            loaded = self._loaded.pop(index, None)
            self._momentum[index] = [
                mx.nd.zeros_like(x) if loaded is None else mx.nd.array(loaded, ctx=x.context) for x in values
            ]
        for x, gradient, momentum in zip(values, param.list_grad(), self._momentum[index]):
            decay = x * (self._wd * param.wd_mult)
            momentum += decay
            momentum *= self._mu
            gradient += (decay + momentum) / rescale

    def state(self) -> Dict[int, Any]:
        return {**self._loaded, **{index: kept[0].asnumpy() for index, kept in self._momentum.items()}}

    def load(self, saved: Dict[int, Any]) -> None:
        self._momentum, self._loaded = {}, dict(saved)


def _taken_momentum(optimizer_params: Dict[str, Any], compression_params: Dict[str, Any]) -> Optional[float]:
    """The compressor's, which the optimizer is not to have. None: nobody has said it."""
    mu, given = optimizer_params.pop("momentum", None), compression_params.get("momentum_mu")
    if mu is not None and given is not None:
        raise ValueError(
            "momentum is in optimizer_params, and momentum_mu in compression_params: give one of them, as gradients "
            "have momentum once"
        )
    return given if mu is None else mu
