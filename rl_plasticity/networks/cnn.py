"""A small convolutional network for many runs at once: one grouped convolution serves them all.

Between layers, tensors are ``[runs, batch, channels, height, width]``. Inside, convolution, BatchNorm and pooling see
``[batch, runs * channels, height, width]``; from the first convolution on, to go back and forth moves no memory (with
CReLU it does).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_plasticity.errors import SettingsError
from rl_plasticity.networks.activations import Activation, make_activation
from rl_plasticity.networks.mlp import StackedLinear
from rl_plasticity.seeding import derive
from rl_plasticity.settings import checked


def _fold(images: Tensor) -> Tensor:
    """``[runs, batch, c, h, w] -> [batch, runs * c, h, w]``."""
    return images.transpose(0, 1).flatten(1, 2)


def _unfold(folded: Tensor, runs: int) -> Tensor:
    """``[batch, runs * c, h, w] -> [runs, batch, c, h, w]``."""
    return torch.unflatten(folded, 1, (runs, -1)).transpose(0, 1)


class StackedConv2d(nn.Conv2d):
    """``nn.Conv2d`` of stride 1 for each run: ``[runs, batch, in, h, w] -> [runs, batch, out, h, w]``.

    Zero padding keeps the size, for odd kernels. The weight ``[runs, out, in, kh, kw]`` is orthogonal as a matrix
    out x (in*kh*kw), with gain sqrt(2), drawn for each run from its own seed; the bias ``[runs, out]`` is zero.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, seeds: Sequence[int]) -> None:
        # On "meta" nothing is drawn from the global random state.
        super().__init__(in_channels, out_channels, kernel_size, padding=kernel_size // 2, device="meta")
        self.weight = nn.Parameter(torch.empty(len(seeds), *self.weight.shape))
        self.bias = nn.Parameter(torch.zeros(len(seeds), out_channels))
        for weight, seed in zip(self.weight, seeds, strict=True):
            generator = torch.Generator().manual_seed(seed)
            nn.init.orthogonal_(weight, gain=math.sqrt(2), generator=generator)

    def forward(self, input: Tensor) -> Tensor:
        assert self.bias is not None
        runs = self.bias.shape[0]
        kernels, bias = self.weight.flatten(0, 1), self.bias.flatten()  # [runs * out, in, kh, kw], [runs * out]
        return _unfold(F.conv2d(_fold(input), kernels, bias, padding=self.padding, groups=runs), runs)


class StackedBatchNorm2d(nn.BatchNorm2d):
    """``nn.BatchNorm2d`` for each run: ``[runs, batch, n, h, w] -> [runs, batch, n, h, w]``.

    Gain, shift, running mean and running variance are ``[runs, n]``, the count of batches ``[runs]``. Each run is
    normalized by its own batch's statistics in training mode, by its own running ones in evaluation mode.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, features: int, runs: int) -> None:
        super().__init__(features)
        self.weight = nn.Parameter(torch.ones(runs, features))
        self.bias = nn.Parameter(torch.zeros(runs, features))
        self.running_mean, self.running_var = torch.zeros(runs, features), torch.ones(runs, features)
        self.num_batches_tracked = torch.zeros(runs, dtype=torch.int64)

    def forward(self, input: Tensor) -> Tensor:
        if self.training:
            self.num_batches_tracked.add_(1)
        statistics = self.running_mean.flatten(), self.running_var.flatten()  # views: updated in place
        gain, shift = self.weight.flatten(), self.bias.flatten()
        assert self.momentum is not None
        normal = F.batch_norm(_fold(input), *statistics, gain, shift, self.training, self.momentum, self.eps)
        return _unfold(normal, self.weight.shape[0])


class StackedMaxPool2d(nn.MaxPool2d):
    """``nn.MaxPool2d`` for each run: ``[runs, batch, n, h, w] -> [runs, batch, n, h // size, w // size]``."""

    def forward(self, input: Tensor) -> Tensor:
        return _unfold(super().forward(_fold(input)), input.shape[0])


class CNN(nn.Sequential):
    """Two 5x5 convolutions of 16 channels and 100 hidden units: ``[runs, batch, c, h, w] -> [runs, batch, classes]``.

    Source: Oh et al. (2024), Appendix D.1, "CNN" and "CNN-BN". Where it is silent, ours: zero padding that keeps the
    size (so that 8 x 8 digits work), max-pooling by 2 after each convolution's activation, one hidden fully connected
    layer of 100 before a linear head, and the initial weights.

    Args:
        shape: (channels, height, width) of an image.
        seeds: one for each run.
        batch_norm: BatchNorm between convolution and activation.
        activation: as for `MLP`.

    Raises:
        SettingsError: a shape other than three numbers with height and width of at least 4; an unknown activation.
    """

    @checked
    def __init__(
        self,
        shape: Sequence[int],
        num_classes: int,
        seeds: Sequence[int],
        batch_norm: bool = False,
        activation: Activation = "relu",
    ) -> None:
        if len(shape) != 3 or min(shape[1:]) < 4:
            raise SettingsError(f"shape must be (channels, height, width) with sides of at least 4, got {tuple(shape)}")
        runs, (channels, height, width) = len(seeds), shape

        def layer_seeds(depth: int) -> list[int]:
            return [derive(seed, depth) for seed in seeds]

        modules: list[nn.Module] = []
        for depth in range(2):
            modules.append(StackedConv2d(channels, 16, 5, layer_seeds(depth)))
            if batch_norm:
                modules.append(StackedBatchNorm2d(16, runs))
            non_linearity, factor = make_activation(activation, dim=2)
            modules += [non_linearity, StackedMaxPool2d(2)]
            channels = 16 * factor
        non_linearity, factor = make_activation(activation, dim=2)
        flat = channels * (height // 4) * (width // 4)
        modules += [nn.Flatten(2), StackedLinear(flat, 100, layer_seeds(2)), non_linearity]
        modules.append(StackedLinear(100 * factor, num_classes, layer_seeds(3)))
        super().__init__(*modules)
