"""DiLoCo for trees of parameters: each rank trains by itself for many steps, and what they have learned is averaged.
What is computed, and why, is in byteps/torch/diloco.py; here a round is waited for, and theta and m are in float32,
numpy's, in the state."""

from __future__ import annotations

import hashlib
from typing import Any, Callable, List, NamedTuple, Tuple, Type

import jax
import jax.numpy as jnp
import numpy as np

from byteps._core import session
from byteps._core.agreement import require_agreement
from byteps._core.choices import gradient_compression
from byteps._core.compression import Compressor, momentum_of
from byteps._core.local_steps import ROUNDS_PER_CHECK, Outer, Rounds, cut
from byteps._core.process_sets import ProcessSet, global_process_set, is_member, members_of, scoped
from byteps.jax.compression import Compression
from byteps.jax.ops import push_pull_tree

__all__ = ["DiLoCoState", "diloco"]


class DiLoCoState(NamedTuple):
    """A tree, for checkpoints: the same on all ranks."""

    steps: int
    theta: Tuple[np.ndarray, ...]  # what all ranks have in common, by leaf
    momentum: Tuple[np.ndarray, ...]


class LocalSteps(NamedTuple):
    init: Callable[[Any], DiLoCoState]
    update: Callable[[Any, DiLoCoState], Tuple[Any, DiLoCoState]]


def diloco(
    sync_every: int,
    outer_lr: float = 0.7,
    outer_momentum: float = 0.9,
    nesterov: bool = True,
    fragments: int = 1,
    compression: Type[Compressor] = Compression.none,
    process_set: ProcessSet = global_process_set,
    name: str = "DiLoCo",
) -> LocalSteps:
    """Two functions, to be called outside of jit:

        outer = bps.diloco(sync_every=50)
        state = outer.init(params)                        # the same parameters on all ranks
        for batch in batches:
            params, inner = step(params, inner, batch)    # of this rank alone, in jit
            params, state = outer.update(params, state)   # what is due of the exchange

    All ranks call update() as often. `params`: a tree of floating point arrays, in float32 or less. The arguments: see
    byteps.torch.DiLoCo; of `compression` not powersgd, and none with momentum. Residuals of error feedback are the
    compressor's. ValueError on all ranks: what they have in common differs. BytePSError: an exchange failed; the
    parameters and the state from before it are still good."""
    rounds = Rounds(sync_every, fragments)
    outer = Outer(outer_lr, outer_momentum, nesterov)
    chosen = gradient_compression(compression, Compression, process_set=process_set)
    if momentum_of(chosen) is not None:
        raise ValueError(f"compression is {chosen!r}: the momentum of DiLoCo is outer_momentum")
    return _LocalSteps(rounds, outer, chosen, process_set, name).functions()


class _LocalSteps:
    def __init__(self, rounds: Rounds, outer: Outer, compression: Any, process_set: ProcessSet, name: str) -> None:
        self._rounds, self._outer, self._compression = rounds, outer, compression
        self._process_set, self._name = process_set, name

    def functions(self) -> LocalSteps:
        return LocalSteps(self._init, self._update)

    def _init(self, params: Any) -> DiLoCoState:
        paths, leaves, _ = _flattened(params)
        theta = tuple(np.array(leaf, dtype=np.float32) for leaf in leaves)
        cut([each.size for each in theta], self._rounds.fragments)  # whether there are as many
        self._require_equal(paths, theta, "DiLoCo: the parameters differ")
        return DiLoCoState(0, theta, tuple(np.zeros_like(each) for each in theta))

    def _update(self, params: Any, state: DiLoCoState) -> Tuple[Any, DiLoCoState]:
        steps = int(state.steps) + 1
        due = [each for each in range(self._rounds.fragments) if self._rounds.begins(each, steps)]
        if not due or not is_member(self._process_set):
            return params, state._replace(steps=steps)
        paths, leaves, structure = _flattened(params)
        if [leaf.shape for leaf in leaves] != [each.shape for each in state.theta]:
            raise ValueError("the parameters have other shapes than those that init() got")
        theta, momentum = list(state.theta), list(state.momentum)
        parts = cut([each.size for each in theta], self._rounds.fragments)
        places = [place for fragment in due for place in parts[fragment]]
        deltas = {paths[place]: theta[place] - np.asarray(leaves[place], dtype=np.float32) for place in places}
        averages = self._averaged(deltas, structure, leaves)
        for place in places:
            leaf = leaves[place]
            theta[place], momentum[place] = self._stepped(theta[place], momentum[place], averages[paths[place]])
            leaves[place] = jnp.asarray(theta[place], dtype=leaf.dtype)
        if -(-steps // self._rounds.sync_every) % ROUNDS_PER_CHECK == 1:
            common = [theta[place] for place in places]
            text = f"DiLoCo: what all have in common differs after {steps} steps"
            self._require_equal([paths[place] for place in places], common, text)
        return structure.unflatten(leaves), DiLoCoState(steps, tuple(theta), tuple(momentum))

    def _averaged(self, deltas: Any, structure: Any, leaves: List[Any]) -> Any:
        meaning = (structure, tuple((str(leaf.dtype), leaf.shape) for leaf in leaves), self._compression)
        name = session.current().lasting_name(scoped(self._name, members_of(self._process_set)), meaning)
        averages = push_pull_tree(
            deltas, True, name, compression=self._compression, process_set=self._process_set
        )
        return {path: np.asarray(each) for path, each in averages.items()}

    def _stepped(self, theta: np.ndarray, momentum: np.ndarray, delta: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """In numpy, element by element: the same bits on all machines."""
        momentum = np.float32(self._outer.momentum) * momentum + delta
        step = delta + np.float32(self._outer.momentum) * momentum if self._outer.nesterov else momentum
        return theta - np.float32(self._outer.lr) * step, momentum

    def _require_equal(self, paths: List[str], theta: Any, what: str) -> None:
        if not is_member(self._process_set):
            return
        members = members_of(self._process_set)
        digest = hashlib.sha256()
        for path, each in zip(paths, theta):
            digest.update(f"{path} {each.shape}".encode())
            digest.update(np.ascontiguousarray(each).tobytes())
        require_agreement(
            [digest.hexdigest()],
            members[0] if members else session.leader(),
            what,
            members,
            "Begin with params = bps.broadcast_parameters(params, root_rank=0), or load one checkpoint on all ranks",
        )


def _flattened(params: Any) -> Tuple[List[str], List[Any], Any]:
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    paths = [jax.tree_util.keystr(path) for path, _ in leaves]
    arrays = [jnp.asarray(leaf) for _, leaf in leaves]
    for path, array in zip(paths, arrays):
        if isinstance(array, jax.core.Tracer):
            raise ValueError("DiLoCo's functions are called outside of jit")
        if not jnp.issubdtype(array.dtype, jnp.floating) or array.dtype.itemsize > 4:
            raise ValueError(f"{path} is of {array.dtype}: DiLoCo takes floating point of 32 bits or less")
    return paths, arrays, structure
