"""PowerSGD (Vogels, Karimireddy, Jaggi, NeurIPS 2019, arXiv 1905.13727, algorithms 1 and 2): a gradient that is a
matrix travels as two thin ones, whose product is the best that so few numbers can say of the average.

    M = gradient + residual     rows x columns; gradients of more dimensions are folded behind the first
    P = average of M Q          rows x rank; then its columns are made orthonormal, on each rank from the same bytes
    Q = average of M' P         columns x rank; the next step begins with it, each job with a random one
    gradient = P Q'             on all ranks; residual = M - P Q'

Two exchanges that follow each other. What is no matrix, and what would not be fewer numbers, travels as it is.
"""

from __future__ import annotations

import zlib
from typing import Any, List, Optional, Tuple

import torch

from byteps._core import abi
from byteps._core.exchange import Exchange
from byteps.torch import exchange, pending
from byteps.torch.residuals import Residuals

__all__: List[str] = []


class PowerSGD:
    """Compression.powersgd(rank=4): of a gradient of float32 so many singular directions travel; what they leave is
    added to the next one. For optimizers and DistributedDataParallel, which keep that.

    rank: 1 to 64 or so; each more costs as many numbers again."""

    for_optimizers = True  # which keep residuals

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, PowerSGD) and self.rank == other.rank

    def __hash__(self) -> int:
        return hash(self.rank)

    @property
    def title(self) -> str:
        return f"powersgd(rank={self.rank})"

    def __repr__(self) -> str:
        return f"Compression.{self.title}"

    # What is no matrix.
    @staticmethod
    def compress(tensor: torch.Tensor) -> Tuple[torch.Tensor, None]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: None) -> torch.Tensor:
        return tensor

    def takes(self, parameter: torch.Tensor) -> bool:
        """Whether two thin matrices are less than half of it."""
        if parameter.dim() < 2 or parameter.dtype != torch.float32 or parameter.numel() == 0:
            return False
        rows, columns = folded(parameter.shape)
        return rows * columns > 2 * self.rank * (rows + columns)


def powersgd(rank: int = 4) -> PowerSGD:
    """ValueError: no rank."""
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise ValueError(f"rank is {rank!r}: it must be a number of at least 1")
    return PowerSGD(rank)


def folded(shape: Any) -> Tuple[int, int]:
    """Rows and columns of a gradient."""
    rows = int(shape[0])
    return rows, torch.Size(shape).numel() // rows


class Factors:
    """Those of one parameter in one job. start(), then advance(), then finish(), once in each step.

    Q has to be the same on all ranks. So it is of a job, and not of checkpoints: ranks may load others, or none."""

    def __init__(self, choice: PowerSGD, parameter: torch.Tensor, what: Exchange, name: str) -> None:
        """ValueError: what is no average."""
        if what.operation != abi.AVERAGE:
            raise ValueError(f"{choice!r} averages: it cannot be used with op=Sum")
        self._shape = parameter.shape
        self._size = folded(parameter.shape)
        self._rank = min(choice.rank, *self._size)
        self._name = name
        self._exchanges = [exchange.Repeated(what, f"{name}#{factor}") for factor in "PQ"]
        self._matrix = self._left = torch.Tensor()  # from start() on; from advance() on
        self._right: Optional[torch.Tensor] = None  # of the step before

    def start(self, gradient: torch.Tensor, residuals: Residuals) -> int:
        """The handle of P. The gradient may be changed from now on."""
        size = self._size
        with torch.no_grad():
            # Fresh memory of this size costs more than the arithmetic: the sum is made where the residual is.
            self._matrix = residuals.of(self._name, size[0] * size[1]).view(size).to(gradient.device)
            self._matrix += gradient.detach().reshape(size)
            if self._right is None:
                self._right = self._random().to(gradient.device)
            return self._exchanges[0].start(self._matrix @ self._right)

    def advance(self, handle: int) -> int:
        """Waits for P; the handle of Q. BytePSError: as pending.synchronize()."""
        left = pending.synchronize(handle)
        with torch.no_grad():
            self._left = orthonormal(left)
            return self._exchanges[1].start(self._matrix.t() @ self._left)

    def finish(self, right: torch.Tensor, residuals: Residuals, gradient: Optional[torch.Tensor]) -> torch.Tensor:
        """The average: in `gradient`, if its memory is contiguous, else in a tensor of its shape. `right`: Q. All ranks
        call it when they have Q, whatever becomes of the average: they begin the next step with the same."""
        size = self._size
        with torch.no_grad():
            if gradient is None or gradient.layout != torch.strided or not gradient.is_contiguous():
                gradient = torch.empty(self._shape, dtype=torch.float32, device=right.device)
            torch.mm(self._left, right.t(), out=gradient.view(size))
            if right.isfinite().all():
                residual = self._matrix.addmm_(self._left, right.t(), alpha=-1)
                if residual.is_cuda:
                    residuals.of(self._name, residual.numel()).view(size).copy_(residual)
                self._right = right
            else:  # a gradient of some rank was not: its residual would be so for ever
                self.begin_anew(residuals)
        self._matrix = self._left = torch.Tensor()
        return gradient

    def begin_anew(self, residuals: Residuals) -> None:
        """With zeros, as after a failure: the gradient is in the residual already, and may come once more."""
        residuals.tensors.pop(self._name, None)
        self._right = None

    def _random(self) -> torch.Tensor:
        """A Q to begin with, the same on all ranks."""
        generator = torch.Generator().manual_seed(zlib.crc32(self._name.encode()))
        return torch.randn(self._size[1], self._rank, generator=generator)


def orthonormal(columns: torch.Tensor) -> torch.Tensor:
    """Gram-Schmidt, in double precision and twice, for columns that are nearly parallel. What depends on the columns
    before it becomes zeros. On the CPU: all ranks must get the same, and libraries of devices differ."""
    found = columns.detach().to("cpu", torch.float64)
    for index in range(found.shape[1]):
        column = found[:, index]
        before = found[:, :index]
        length = column.norm()
        for _ in range(2):
            column -= before @ (before.t() @ column)
        norm = column.norm()
        column /= norm if norm > 1e-9 * length else torch.inf
    return found.to(columns.device, torch.float32)
