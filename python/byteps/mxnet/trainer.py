"""DistributedTrainer: gluon.Trainer whose gradients are averaged over all workers."""

from __future__ import annotations

import functools
from typing import Any, Dict, List, Optional, Union

import mxnet as mx
from mxnet.ndarray import NDArray

from byteps._core import session
from byteps._core.agreement import require_agreement
from byteps._core.compression import gradient_compression
from byteps._core.process_sets import ProcessSet, check_root, global_process_set, scoped
from byteps.mxnet.broadcast import check_device, finish, start_broadcast, when_initialized
from byteps.mxnet.compression import Compression, Compressor
from byteps.mxnet.optimizer import DistributedOptimizer, Gradients

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
    compression_params: None, or {"fp16": True}: gradients travel in 16 bits.
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
        self._gradients = Gradients(
            gradient_compression(compression, Compression, compression_params, process_set),
            gradient_predivide_factor,
            num_groups,
            process_set,
            prefix,
        )
        self._root_rank = root_rank
        super().__init__(params, optimizer, optimizer_params, kvstore=None)
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

    def _allreduce_grads(self) -> None:
        if not self._gradients.travel and len(self._contexts) == 1:
            return
        for index, param in enumerate(self._params):
            if param.grad_req != "null":
                self._gradients.push(index, param.list_grad())
