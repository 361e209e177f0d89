"""Norm layers and dropout, and running statistics of observations and rewards."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_plasticity.networks import StackedBatchNorm2d
from rl_plasticity.seeding import derived, uniform_at


class MeanOnlyBatchNorm2d(nn.Module):
    """y = x - mean(x) + shift: ``[batch, n, h, w] -> [batch, n, h, w]``, each channel's mean over batch and pixels.

    In evaluation mode the running mean, as in ``nn.BatchNorm2d``. It has no gain and lets the scale through, so to
    regularizers it is no norm layer but a shift: SWR scales it as a bias, `spectral` draws it to zero, and what
    rescales single units before it, as WRS, changes the function.

    Source: Salimans and Kingma (2016), arXiv 1602.07868, section 4; with bounded weight normalization in Hoffer et al.
    (2018) and in Liu et al. (2021), Fig. 6b.
    """

    layer_role = "shift"
    running_mean: Tensor

    def __init__(self, features: int, momentum: float = 0.1) -> None:
        super().__init__()
        self.momentum = momentum
        self.bias = nn.Parameter(torch.empty(features))
        self.register_buffer("running_mean", torch.empty(features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Shift and running mean are zero."""
        nn.init.zeros_(self.bias)
        self.running_mean.zero_()

    def forward(self, input: Tensor) -> Tensor:
        mean = self.running_mean
        if self.training:
            mean = input.mean((0, 2, 3))
            self.running_mean.lerp_(mean.detach(), self.momentum)
        return input - (mean - self.bias)[:, None, None]


class StackedBatchNorm(StackedBatchNorm2d):
    """``nn.BatchNorm1d`` for each run: ``[runs, batch, n]`` to the same; gain, shift and statistics are ``[runs, n]``.

    y = gain * (x - mean) / sqrt(variance + eps) + shift, with mean and (biased) variance of the batch when called with
    ``training=True``, and with running ones otherwise. Only calls with ``training=True`` move the running statistics,
    by the share `momentum`. The module's own mode has no effect: an agent's update decides at each call.

    Unlike in torch, the running variance is biased too, as in flax, which XQC's code uses.
    """

    layer_role = "norm"
    takes_training = True
    momentum: float

    def __init__(self, features: int, runs: int, eps: float = 1e-5, momentum: float = 0.01) -> None:
        super().__init__(features, runs)
        self.eps, self.momentum = eps, momentum

    def forward(self, input: Tensor, training: bool = False) -> Tensor:
        mean, variance = self.running_mean, self.running_var
        if training:
            variance, mean = torch.var_mean(input, 1, correction=0)
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(variance, self.momentum)
                self.num_batches_tracked.add_(1)
        scale = self.weight * (variance + self.eps).rsqrt()
        return torch.addcmul(self.bias.unsqueeze(1), input - mean.unsqueeze(1), scale.unsqueeze(1))


class StackedRMSNorm(nn.RMSNorm):
    """x / sqrt(mean of x^2 + eps) over the last axis, times a gain ``[runs, n]``: ``[runs, batch, n]`` to the same."""

    layer_role = "norm"
    eps: float

    def __init__(self, features: int, runs: int, eps: float = 1e-6) -> None:
        super().__init__(features, eps, elementwise_affine=False)
        self.elementwise_affine = True
        self.weight = nn.Parameter(torch.ones(runs, features))

    def forward(self, input: Tensor) -> Tensor:
        return input * (input.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight.unsqueeze(1)


class StackedDropout(nn.Module):
    """Dropout for each run, when called with ``training=True``: ``[runs, batch, n]`` to the same.

    Each entry is 0 with probability `rate`, and otherwise divided by 1 - rate. The masks are functions of the run's
    seed and of the number of calls so far, which is saved. So a run has the same masks alone, among others and after a
    restart, in eager and in compiled code.

    Attributes:
        stream: another number gives other masks: that of a target network differs from its network's.
    """

    takes_training = True
    stream = 0
    key: Tensor
    calls: Tensor

    def __init__(self, rate: float, seeds: Sequence[int]) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("key", torch.tensor([seed & 0xFFFFFFFF for seed in derived(seeds, 0)]))
        self.register_buffer("calls", torch.zeros(len(seeds), dtype=torch.int64))

    def forward(self, input: Tensor, training: bool = False) -> Tensor:
        if not training:
            return input
        draws = uniform_at(self.key, input[0].numel(), self.stream, self.calls).view(input.shape)
        self.calls.add_(1)
        return torch.where(draws >= self.rate, input / (1 - self.rate), 0.0)


class TrainedSequential(nn.Sequential):
    """Modules in a row, each `called`."""

    takes_training = True

    def forward(self, input: Tensor, training: bool = False) -> Tensor:
        for module in self:
            input = called(module, input, training)
        return input


def called(module: nn.Module, input: Tensor, training: bool) -> Tensor:
    """The module's output. Modules with ``takes_training``, those with BatchNorm or dropout, are told if they train."""
    output: Tensor = module(input, training) if getattr(module, "takes_training", False) else module(input)
    return output


def _take_(value: Tensor, mean: Tensor, variance: Tensor, count: Tensor) -> None:
    """Take one more value of each run into a running mean, variance and number of values, in place."""
    total = count + 1
    from_mean = value - mean
    mean.add_(from_mean / total)
    variance.copy_((variance + from_mean.square() / total) * count / total)
    count.copy_(total)


class ObservationNorm(nn.Module):
    """(x - mean) / sqrt(variance + 1e-8) by running statistics of all observations so far: ``[runs, batch, n]``.

    Mean and variance are those of the observations that `observe_` was shown and, with a weight of 1e-4 observations,
    of a standard normal. They change by `observe_` alone, so evaluations and updates leave them as they are.

    Source: "RSNorm" of Lee et al. (2024), arXiv 2410.09754, as in their code (github.com/SonyResearch/simba).
    """

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, features: int, runs: int) -> None:
        super().__init__()
        for name, width, start in (("mean", features, 0.0), ("variance", features, 1.0), ("count", 1, 1e-4)):
            self.register_buffer(name, torch.full((runs, width), start, dtype=torch.float64))

    def forward(self, input: Tensor) -> Tensor:
        mean, deviation = self.mean.unsqueeze(1), (self.variance + 1e-8).sqrt().unsqueeze(1)
        return (input - mean.to(input.dtype)) / deviation.to(input.dtype)

    @torch.no_grad()
    def observe_(self, obs: Tensor) -> None:
        """Take one more observation of each run, ``[runs, n]``, into the statistics."""
        _take_(obs, self.mean, self.variance, self.count)


class RewardNorm(nn.Module):
    """Rewards divided by a running scale of the discounted return: ``[runs, batch]`` to the same.

    At each env step of training, in their order::

        G <- discount * G + r,      0 after the end of an episode
        scale = max(sqrt(variance of G + 1e-8), largest |G| / most)

    So no discounted return that was seen exceeds `most`, where a categorical critic's range ends.

    Source: Lee et al. (2025), SimbaV2, arXiv 2502.15280, as in their code (scale_rl/agents/wrappers/normalization.py),
    and FlashSAC's, which is equal; XQC's divides by the deviation alone. Deviation: in all three, G at the last step of
    an episode is its last reward alone, and this reward counts in the next episode's G. Here it belongs to its own.

    Args:
        discount: of one env step.
        most: the largest scaled return.
    """

    total: Tensor
    mean: Tensor
    variance: Tensor
    count: Tensor
    largest: Tensor

    def __init__(self, runs: int, discount: float, most: float) -> None:
        super().__init__()
        self.discount, self.most = discount, most
        for name, start in (("total", 0.0), ("mean", 0.0), ("variance", 1.0), ("count", 1e-4), ("largest", 0.0)):
            self.register_buffer(name, torch.full((runs,), start, dtype=torch.float64))

    @property
    def scale(self) -> Tensor:
        """What rewards are divided by, ``[runs]``."""
        return torch.maximum((self.variance + 1e-8).sqrt(), self.largest / self.most)

    def forward(self, reward: Tensor) -> Tensor:
        return reward / self.scale.to(reward.dtype).unsqueeze(1)

    @torch.no_grad()
    def observe_(self, reward: Tensor, ended: Tensor) -> None:
        """Take the rewards ``[runs]`` of an env step into the statistics; `ended`: its episode's last one."""
        self.total.mul_(self.discount).add_(reward.to(self.total))
        self.largest.copy_(torch.maximum(self.largest, self.total.abs()))
        _take_(self.total, self.mean, self.variance, self.count)
        self.total.masked_fill_(ended.to(self.total.device), 0.0)
