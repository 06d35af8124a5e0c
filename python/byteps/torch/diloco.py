"""DiLoCo: each rank trains by itself for many steps, and what they have learned is averaged (Douillard et al. 2023,
arXiv 2311.08105; streamed in fragments: Douillard et al. 2025, arXiv 2501.18512). For lines that are slow, or long.

    theta    the parameters that all ranks have in common, the same bits everywhere
    every sync_every steps, of each rank's own parameters p:
        delta = the average of theta - p          a gradient of many steps
        m     = outer_momentum * m + delta        the outer optimizer is SGD, as torch has it
        theta = theta - outer_lr * (delta + outer_momentum * m)     nesterov; else: * m
        p     = theta

Fragments: the parameters in so many pieces, each with a time of its own within sync_every steps, so that the line is
used all the while. A fragment's delta may travel for fragment_sync_delay steps while training goes on; then p becomes
(1 - fragment_update_alpha) * theta + fragment_update_alpha * p. theta and m are in float32, in host memory.
"""

from __future__ import annotations

import ctypes
import hashlib
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple, Type

import torch

from byteps._core import abi, errors, session
from byteps._core.agreement import require_agreement
from byteps._core.choices import gradient_compression
from byteps._core.client import Job
from byteps._core.compression import Coded, NoneCompressor, momentum_of, packed
from byteps._core.exchange import Exchange
from byteps._core.local_steps import ROUNDS_PER_CHECK, Outer, Rounds, cut
from byteps._core.mixed import Wrapped
from byteps._core.process_sets import ProcessSet, global_process_set, is_member, members_of, scoped
from byteps.torch import exchange, pending
from byteps.torch.compression import Compression, Compressor, float32_count
from byteps.torch.optimizer import titled, with_base, without_hooks
from byteps.torch.powersgd import PowerSGD
from byteps.torch.residuals import Residuals

__all__ = ["DiLoCo"]

KEY = "byteps.DiLoCo"  # of what is saved with an optimizer


def DiLoCo(  # the name users know
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[Tuple[str, torch.nn.Parameter]],
    sync_every: int,
    outer_lr: float = 0.7,
    outer_momentum: float = 0.9,
    nesterov: bool = True,
    fragments: int = 1,
    fragment_sync_delay: int = 0,
    fragment_update_alpha: float = 0.0,
    compression: Type[Compressor] = Compression.none,
    process_set: ProcessSet = global_process_set,
    name: Optional[str] = None,
) -> torch.optim.Optimizer:
    """An optimizer of the same class as `optimizer`, the inner one, whose step() is a step of this rank alone; every
    sync_every of them the ranks come together. It shares parameter groups and state with `optimizer`, which should not
    be used any more. All ranks make the same number of steps, and begin with the same parameters (broadcast_parameters
    before this).

    named_parameters: model.named_parameters(), the same names on all ranks. Only what requires gradients is exchanged.
    sync_every: steps from one exchange of a parameter to the next.
    outer_lr, outer_momentum, nesterov: of the outer optimizer. With less than a hundred or so exchanges in a whole
        training a momentum of 0.9 is too much; 0.5 is not.
    fragments: so many pieces, of about the same size. sync_every is a multiple of it.
    fragment_sync_delay: steps that a fragment's exchange may take beside training, below sync_every. 0: step() waits.
    fragment_update_alpha: how much of a rank's own parameters stays when the exchange ends, from 0 to 1.
    compression: of what travels (docs/compression.md): Compression.int4(error_feedback=True) for slow lines.
    process_set: the ranks that train together. On a rank that is not in it nothing is exchanged.
    name: stands before the names of what travels, see DistributedOptimizer.

    state_dict() has theta, m, the number of steps and this rank's residuals, too. It waits for what is under way, so
    all ranks call it at the same step."""
    diloco = with_base(_DiLoCo, optimizer)
    outer = _Outer(outer_lr, outer_momentum, nesterov, fragment_update_alpha)
    rounds = Rounds(sync_every, fragments, fragment_sync_delay)
    chosen = gradient_compression(compression, Compression, process_set=process_set)
    diloco._begin(list(named_parameters), _Exchanges(chosen, process_set, titled(name)), rounds, outer)
    return diloco


class _Outer(Outer):
    """In torch."""

    def step(self, theta: torch.Tensor, momentum: torch.Tensor, delta: torch.Tensor) -> None:
        """`delta` is changed, too."""
        momentum.mul_(self.momentum).add_(delta)
        theta.sub_(delta.add_(momentum, alpha=self.momentum) if self.nesterov else momentum, alpha=self.lr)

    def update(self, parameter: torch.Tensor, theta: torch.Tensor) -> None:
        if self.alpha == 0:
            parameter.copy_(theta)
        else:
            own = parameter.to("cpu", torch.float32)
            parameter.copy_(torch.lerp(theta, own, self.alpha))


class _Piece:
    """A parameter, what all have of it in common, and its exchange."""

    def __init__(self, name: str, parameter: torch.nn.Parameter) -> None:
        self.name = name
        self.parameter = parameter
        with torch.no_grad():
            self.theta = parameter.detach().to("cpu", torch.float32, copy=True).contiguous()
        self.momentum = torch.zeros_like(self.theta)
        self.delta = torch.empty_like(self.theta)
        self.exchange: Optional[exchange.Repeated] = None  # of the job that it was made in
        self.handle: Optional[int] = None
        self.context: Any = None


class _Fragment:
    def __init__(self, pieces: List[_Piece]) -> None:
        self.pieces = pieces
        self.begun_at = 0  # the step; 0: nothing is under way
        self.rounds = 0  # that have ended


class _Exchanges:
    """How deltas travel."""

    def __init__(self, compression: Any, process_set: ProcessSet, title: str) -> None:
        if isinstance(compression, PowerSGD):
            raise ValueError(f"compression is {compression!r}: DiLoCo has Compression.none, .fp16, .bf16, .int8, .int4")
        if momentum_of(compression) is not None:
            raise ValueError(f"compression is {compression!r}: the momentum of DiLoCo is outer_momentum")
        self._compression = compression
        self._casts = compression is not NoneCompressor and not isinstance(compression, Coded)
        self._feeds_back = isinstance(compression, Coded) and compression.error_feedback
        self._process_set = process_set
        self._title = title
        self._job: Optional[Job] = None
        self.members: Tuple[int, ...] = ()
        self.is_member = False
        self.residuals = Residuals(compression)

    @property
    def feeds_back(self) -> bool:
        return self._feeds_back and self.is_member

    def enter_job(self, fragments: List[_Fragment]) -> None:
        """What was under way in the job before is not there any more."""
        job = session.job()
        if self._job is job:
            return
        self.is_member = is_member(self._process_set)
        self.members = members_of(self._process_set) if self.is_member else ()
        for place, fragment in enumerate(fragments):
            fragment.begun_at = 0
            for piece in fragment.pieces:
                piece.handle = None
                piece.exchange = self._exchange(piece, -place) if self.is_member else None
        self._job = job

    def _exchange(self, piece: _Piece, priority: int) -> exchange.Repeated:
        meaning = (self, tuple(piece.theta.shape))
        name = session.current().lasting_name(scoped(f"DiLoCo.{self._title}{piece.name}", self.members), meaning)
        what = Exchange(abi.AVERAGE, members=self.members, priority=priority)
        return exchange.Repeated(what, name, self._compression)

    def start(self, piece: _Piece) -> None:
        assert piece.exchange is not None
        with torch.no_grad():
            torch.sub(piece.theta, piece.parameter.detach().to("cpu", torch.float32), out=piece.delta)
            sent = piece.delta
            if self._casts:
                sent, piece.context = packed(self._compression, sent, abi.AVERAGE, float32_count(sent))
        piece.handle = piece.exchange.start(sent, self.residuals if self._feeds_back else None)

    def finish(self, piece: _Piece) -> torch.Tensor:
        handle, piece.handle = piece.handle, None
        assert handle is not None
        average = pending.synchronize(handle)
        return self._compression.decompress(average, piece.context) if self._casts else average


class _DiLoCo(Wrapped):
    """Mixed in before the inner optimizer's class."""

    def _begin(
        self,
        named: List[Tuple[str, torch.nn.Parameter]],
        exchanges: _Exchanges,
        rounds: Rounds,
        outer: _Outer,
    ) -> None:
        self._exchanges, self._rounds, self._outer = exchanges, rounds, outer
        self._inner_steps = 0
        own = {id(parameter) for group in self.param_groups for parameter in group["params"]}
        pieces = [_Piece(name, parameter) for name, parameter in named if parameter.requires_grad]
        strangers = [piece.name for piece in pieces if id(piece.parameter) not in own]
        trained = sum(each.requires_grad for group in self.param_groups for each in group["params"])
        if strangers or len(pieces) < trained:
            named_ones = f", as {strangers[:5]}" if strangers else ""
            raise ValueError(
                f"named_parameters and the optimizer's parameters differ{named_ones}: give model.named_parameters() of "
                "the model whose parameters the optimizer has"
            )
        self._fragments = [_Fragment(part) for part in _parts(pieces, rounds.fragments)]
        exchanges.enter_job(self._fragments)
        self._require_equal(self._fragments, "DiLoCo: the parameters differ")

    # ---- what users call

    def step(self, closure: Optional[Callable[[], Any]] = None, **kwargs: Any) -> Any:
        """A step of the inner optimizer, and what is due of the outer one. BytePSError: an exchange failed, and that
        fragment's parameters stay as they are until its next one."""
        result = super().step(**kwargs) if closure is None else super().step(closure, **kwargs)
        self._inner_steps += 1
        self._exchanges.enter_job(self._fragments)
        if not self._exchanges.is_member:
            return result
        for place, fragment in enumerate(self._fragments):
            if self._rounds.begins(place, self._inner_steps):
                self._start(fragment)
        for fragment in self._fragments:
            if fragment.begun_at and self._inner_steps - fragment.begun_at >= self._rounds.delay:
                self._finish(fragment)
        return result

    without_hooks(step)

    def synchronize(self) -> None:
        """Waits for what is under way. On all ranks at the same step: after the last one, before an evaluation."""
        self._exchanges.enter_job(self._fragments)
        for fragment in self._fragments:
            if fragment.begun_at:
                self._finish(fragment)

    def state_dict(self, *args: Any, **kwargs: Any) -> Dict[str, Any]:
        self.synchronize()
        pieces = [piece for fragment in self._fragments for piece in fragment.pieces]
        own = {
            "steps": self._inner_steps,
            "rounds": [fragment.rounds for fragment in self._fragments],
            "theta": {piece.name: piece.theta for piece in pieces},
            "momentum": {piece.name: piece.momentum for piece in pieces},
            "residuals": self._exchanges.residuals.state() if self._exchanges.feeds_back else None,
        }
        return {**super().state_dict(*args, **kwargs), KEY: own}

    def load_state_dict(self, state_dict: Dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """What state_dict() gave; the model's parameters are loaded with the model. ValueError: it is none of DiLoCo,
        or one of other parameters. Residuals of another rank are not loaded, with a warning."""
        own = state_dict.get(KEY)
        pieces = {piece.name: piece for fragment in self._fragments for piece in fragment.pieces}
        if own is None or set(own["theta"]) != set(pieces):
            raise ValueError("the state to load is not that of a DiLoCo optimizer of these parameters")
        self.synchronize()
        super().load_state_dict({key: each for key, each in state_dict.items() if key != KEY}, *args, **kwargs)
        self._inner_steps = own["steps"]
        for fragment, rounds in zip(self._fragments, own["rounds"]):
            fragment.rounds = rounds
        for name, piece in pieces.items():
            piece.theta.copy_(own["theta"][name])
            piece.momentum.copy_(own["momentum"][name])
        if self._exchanges.feeds_back:
            self._exchanges.residuals.load(own["residuals"])

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        raise ValueError("a DiLoCo optimizer takes no further parameters: make another one of all of them")

    # ---- rounds

    def _start(self, fragment: _Fragment) -> None:
        fragment.begun_at = self._inner_steps
        for piece in fragment.pieces:
            self._exchanges.start(piece)

    def _finish(self, fragment: _Fragment) -> None:
        fragment.begun_at = 0
        averages: List[torch.Tensor] = []
        failure: Optional[Exception] = None
        for piece in fragment.pieces:
            if piece.handle is None:
                continue
            try:
                averages.append(self._exchanges.finish(piece))
            except (errors.BytePSError, ValueError) as error:
                failure = failure or error
        if failure is not None:
            raise failure
        fragment.rounds += 1
        with torch.no_grad():
            for piece, average in zip(fragment.pieces, averages):
                self._outer.step(piece.theta, piece.momentum, average)
                self._outer.update(piece.parameter, piece.theta)
        if fragment.rounds % ROUNDS_PER_CHECK == 1:
            self._require_equal([fragment], f"DiLoCo: what all have in common differs after {self._inner_steps} steps")

    def _require_equal(self, fragments: List[_Fragment], what: str) -> None:
        """ValueError on all ranks unless all have the same bits."""
        if not self._exchanges.is_member:
            return
        digest = hashlib.sha256()
        for fragment in fragments:
            for piece in fragment.pieces:
                digest.update(f"{piece.name} {list(piece.theta.shape)}".encode())
                digest.update((ctypes.c_char * (4 * piece.theta.numel())).from_address(piece.theta.data_ptr()))
        require_agreement(
            [digest.hexdigest()],
            self._exchanges.members[0] if self._exchanges.members else session.leader(),
            what,
            self._exchanges.members,
            "Begin with broadcast_parameters(model.state_dict(), root_rank=0), or load one checkpoint on all ranks",
        )


def _parts(pieces: List[_Piece], count: int) -> List[List[_Piece]]:
    return [[pieces[place] for place in part] for part in cut([piece.theta.numel() for piece in pieces], count)]
