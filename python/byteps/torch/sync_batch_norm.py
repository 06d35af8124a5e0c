"""SyncBatchNorm: batch normalization over the batches of all workers.

Per channel, y = (x - mean) / sqrt(variance + eps) * weight + bias, with the mean and variance of all ranks' batches
together. Forward exchanges one vector: count, sums and sums of squares. Backward exchanges another: with
    x' = (x - mean) / deviation
    dx = (dx' - mean(dx') - x' * mean(dx' * x')) / deviation        (Ioffe and Szegedy 2015, section 3)
where the means are again over all ranks. Ranks may have batches of different sizes. Statistics are made in float64.
"""

from __future__ import annotations

from typing import Any, Tuple

import torch
from torch import nn
from torch.nn import functional as F

from byteps._core import abi, session
from byteps._core.exchange import Exchange
from byteps.torch import exchange, pending

__all__ = ["SyncBatchNorm", "convert_syncbn_model"]


class SyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    """In place of BatchNorm1d, 2d and 3d: input (N, C, ...). In training, all ranks must run forward and backward
    through it, and through several of them in the same order; in evaluation nothing is exchanged."""

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        if not self.training:
            of_batch = self.running_mean is None and self.running_var is None  # of this rank's own
            return F.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, of_batch, 0.0, self.eps
            )
        normalized, mean, variance, count = _Normalize.apply(input, self.eps, self._wire_name())
        if self.track_running_stats:
            self._track(mean, variance, count)
        if not self.affine:
            return normalized
        shape = (1, -1) + (1,) * (input.dim() - 2)
        result = normalized * self.weight.view(shape) + self.bias.view(shape)
        return result.to(input.dtype)

    def _wire_name(self) -> str:
        """The same on all ranks, which make their modules' first forward passes in the same order."""
        current = session.current()
        name, owner = self.__dict__.get("_name", (None, None))
        if owner is not current:
            name = current.unique_name("SyncBatchNorm")
            object.__setattr__(self, "_name", (name, current))
        return name

    def _track(self, mean: torch.Tensor, variance: torch.Tensor, count: int) -> None:
        self.num_batches_tracked.add_(1)
        share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (count / (count - 1))
        self.running_mean.mul_(1 - share).add_(mean.to(self.running_mean.dtype), alpha=share)
        self.running_var.mul_(1 - share).add_(unbiased.to(self.running_var.dtype), alpha=share)

    @classmethod
    def convert_sync_batchnorm(cls, module: nn.Module) -> nn.Module:
        """`module` with a SyncBatchNorm in place of each BatchNorm, which shares its parameters and buffers."""
        converted = module
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not isinstance(module, cls):
            converted = cls(
                module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats
            )
            converted._parameters.update(module._parameters)
            converted._buffers.update(module._buffers)
            converted.train(module.training)
        for name, child in module.named_children():
            converted.add_module(name, cls.convert_sync_batchnorm(child))
        return converted


def convert_syncbn_model(module: nn.Module) -> nn.Module:
    """SyncBatchNorm.convert_sync_batchnorm."""
    return SyncBatchNorm.convert_sync_batchnorm(module)


class _Normalize(torch.autograd.Function):
    """x to x'; also the mean, the variance and the number of values per channel, over all ranks."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, eps: float, name: str
    ) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
        channels = x.shape[1]
        values = x.detach().double()
        sums = torch.empty(2 * channels + 1, dtype=torch.float64, device=x.device)
        sums[0] = x.numel() // max(channels, 1)
        sums[1 : channels + 1] = _per_channel(values)
        sums[channels + 1 :] = _per_channel(values * values)
        sums = _sum_over_ranks(sums, name)
        count = int(sums[0])
        if count <= 1:
            raise ValueError(
                f"Expected more than 1 value per channel when training, over all ranks (input here {tuple(x.shape)})"
            )
        mean = sums[1 : channels + 1] / count
        variance = (sums[channels + 1 :] / count - mean * mean).clamp_(min=0)
        inverse = torch.rsqrt(variance + eps)
        normalized = ((values - _along(mean, x)) * _along(inverse, x)).to(x.dtype)
        ctx.save_for_backward(normalized, inverse)
        ctx.name, ctx.count = name, count
        ctx.mark_non_differentiable(mean, variance)
        return normalized, mean, variance, count

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *_: Any) -> Tuple[torch.Tensor, None, None]:
        normalized, inverse = ctx.saved_tensors
        channels = normalized.shape[1]
        slope, x = gradient.double(), normalized.double()
        means = torch.cat([_per_channel(slope), _per_channel(slope * x)])
        means = _sum_over_ranks(means, ctx.name + ".backward") / ctx.count
        result = slope - _along(means[:channels], x) - x * _along(means[channels:], x)
        return (result * _along(inverse, x)).to(gradient.dtype), None, None


def _per_channel(values: torch.Tensor) -> torch.Tensor:
    return values.sum(dim=[d for d in range(values.dim()) if d != 1])


def _along(channel_values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return channel_values.view((1, -1) + (1,) * (x.dim() - 2))


def _sum_over_ranks(values: torch.Tensor, name: str) -> torch.Tensor:
    what = Exchange(abi.SUM, priority=1)  # before all others: training waits for it
    return pending.synchronize(exchange.start(values, values, what, name))
