"""A small convolutional network for many runs at once: one grouped convolution serves them all.

Between layers, tensors are ``[runs, batch, channels, height, width]``. Inside, convolution, BatchNorm and pooling see
``[batch, runs * channels, height, width]``; from the first convolution on, to go back and forth moves no memory (with
CReLU it does).
"""

import math
from collections.abc import Sequence
from itertools import count
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_plasticity.errors import SettingsError
from rl_plasticity.networks.activations import Activation, make_activation
from rl_plasticity.networks.mlp import Init, StackedLayerNorm, StackedLinear, draw_, initial_gain
from rl_plasticity.seeding import derived
from rl_plasticity.settings import Setting, checked

Channels = Annotated[int, Setting("channels of both convolutions", least=1)]
Widths = Annotated[Sequence[int], Setting("widths of the hidden fully connected layers", least=1)]


def _fold(images: Tensor) -> Tensor:
    """``[runs, batch, c, h, w] -> [batch, runs * c, h, w]``."""
    return images.transpose(0, 1).flatten(1, 2)


def _unfold(folded: Tensor, runs: int) -> Tensor:
    """``[batch, runs * c, h, w] -> [runs, batch, c, h, w]``."""
    return torch.unflatten(folded, 1, (runs, -1)).transpose(0, 1)


class StackedConv2d(nn.Conv2d):
    """``nn.Conv2d`` of stride 1 for each run: ``[runs, batch, in, h, w] -> [runs, batch, out, h, w]``.

    Zero padding keeps the size, for odd kernels; without it kernel_size - 1 rows and columns are lost. The weight
    ``[runs, out, in, kh, kw]`` is orthogonal as a matrix out x (in*kh*kw), drawn for each run from its own seed; the
    bias ``[runs, out]`` is zero. Without a gain both are those of ``torch.nn.Conv2d``.

    Args:
        by_patches: multiply the kernels with a copy of all patches of the images. For a first layer and small images
            this is faster than a grouped convolution; for others it is up to four times slower.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        seeds: Sequence[int],
        padding: bool = True,
        gain: float | None = math.sqrt(2),
        by_patches: bool = False,
    ) -> None:
        # On "meta" nothing is drawn from the global random state.
        around = kernel_size // 2 if padding else 0
        super().__init__(in_channels, out_channels, kernel_size, padding=around, device="meta")
        self.weight = nn.Parameter(torch.empty(len(seeds), *self.weight.shape))
        self.bias = nn.Parameter(torch.zeros(len(seeds), out_channels))
        self.by_patches, self.around = by_patches, (around,) * 4  # left, right, top, bottom
        draw_(self.weight, self.bias, seeds, gain)

    def forward(self, input: Tensor) -> Tensor:
        assert self.bias is not None
        if self.by_patches:
            height, width = self.kernel_size
            patches = F.pad(input, self.around).unfold(-2, height, 1).unfold(-2, width, 1)
            size = patches.shape[3:5]  # of [runs, batch, in, h, w, kh, kw]
            columns = patches.permute(0, 1, 2, 5, 6, 3, 4).reshape(*input.shape[:2], -1, math.prod(size))
            output = self.weight.flatten(2).unsqueeze(1) @ columns + self.bias[:, None, :, None]
            return torch.unflatten(output, -1, size)
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
    """Two 5x5 convolutions, then fully connected layers: ``[runs, batch, c, h, w] -> [runs, batch, classes]``.

    By default "CNN" and "CNN-BN" of Oh et al. (2024), Appendix D.1: 16 channels and 100 hidden units. Where it is
    silent, ours: zero padding that keeps the size (so that 8 x 8 digits work), max-pooling by 2 after each
    convolution's activation, one hidden fully connected layer (section 4: "2 fully connected layers") before a linear
    head, and the initial weights.

    Args:
        shape: (channels, height, width) of an image.
        seeds: one for each run.
        batch_norm: BatchNorm between convolution and activation.
        activation: as for `MLP`.
        channels: of both convolutions.
        widths: of the hidden fully connected layers.
        padding: whether the convolutions keep the size.
        init: as for `MLP`.

    Raises:
        SettingsError: a shape other than three numbers, or with sides too small: 4 with padding, 16 without; an unknown
            activation or initialization.
    """

    @checked
    def __init__(
        self,
        shape: Sequence[int],
        num_classes: int,
        seeds: Sequence[int],
        batch_norm: bool = False,
        activation: Activation = "relu",
        channels: Channels = 16,
        widths: Widths = (100,),
        padding: Annotated[
            bool, Setting("whether to pad images with zeros, so that convolutions keep their size")
        ] = True,
        init: Init = "orthogonal",
    ) -> None:
        least = 4 if padding else 16
        if len(shape) != 3 or min(shape[1:]) < least:
            raise SettingsError(
                f"shape must be (channels, height, width) with sides of at least {least}, got {tuple(shape)}"
            )
        runs, (fan_in, *sides) = len(seeds), shape
        depths = count()  # each layer draws from a seed of its own

        def drawn(is_head: bool = False) -> tuple[list[int], float | None]:
            return derived(seeds, next(depths)), initial_gain(init, is_head, activation)

        modules: list[nn.Module] = []
        for _ in range(2):
            layer_seeds, gain = drawn()
            modules.append(StackedConv2d(fan_in, channels, 5, layer_seeds, padding, gain))
            if batch_norm:
                modules.append(StackedBatchNorm2d(channels, runs))
            non_linearity, factor = make_activation(activation, 2, runs)
            modules += [non_linearity, StackedMaxPool2d(2)]
            fan_in = channels * factor
            sides = [(side if padding else side - 4) // 2 for side in sides]
        modules.append(nn.Flatten(2))
        fan_in *= math.prod(sides)
        for width in widths:
            non_linearity, factor = make_activation(activation, 2, runs)
            modules += [StackedLinear(fan_in, width, *drawn()), non_linearity]
            fan_in = width * factor
        modules.append(StackedLinear(fan_in, num_classes, *drawn(is_head=True)))
        super().__init__(*modules)


class OneConvolution(nn.Sequential):
    """A convolution, linear layers and a head for flat images: ``[runs, batch, c * h * w] -> [runs, batch, out]``.

    Stride 1, no padding. By default the network of Young and Tian (2019), "MinAtar", arXiv 1903.03176, section 3, with
    other initial weights.

    Args:
        inputs: (channels, height, width) of an image.
        seeds: one for each run.
        role: "actor" or "critic", which makes no difference.
        layer_norm: LayerNorm over all outputs of a layer, before its activation.

    Raises:
        SettingsError: no images, or sides below the kernel's; an unknown activation or initialization.
    """

    takes_images = True

    @checked
    def __init__(
        self,
        inputs: int | Sequence[int],
        outputs: int,
        seeds: Sequence[int],
        role: str,
        *,
        channels: Annotated[int, Setting("channels of the convolution", least=1)] = 16,
        kernel_size: Annotated[int, Setting("side length of the convolution's kernel", least=1)] = 3,
        hidden: Annotated[Sequence[int], Setting("widths of the hidden linear layers", least=1)] = (128,),
        layer_norm: Annotated[bool, Setting("whether LayerNorm comes between each layer and its activation")] = False,
        activation: Activation = "relu",
        init: Init = "orthogonal",
    ) -> None:
        if isinstance(inputs, int) or len(inputs) != 3:
            raise SettingsError(
                f"network=cnn needs agent=dqn and images [channels, height, width], not observations of shape "
                f"{inputs}; choose network=mlp"
            )
        if min(inputs[1:]) < kernel_size:
            raise SettingsError(f"kernel_size={kernel_size} is larger than the image, {inputs[1]} x {inputs[2]}")
        runs, gain = len(seeds), initial_gain(init, False, activation)
        modules: list[nn.Module] = [
            nn.Unflatten(2, tuple(inputs)),
            StackedConv2d(inputs[0], channels, kernel_size, derived(seeds, 0), False, gain, by_patches=True),
        ]
        fan_in = channels * math.prod(side - kernel_size + 1 for side in inputs[1:])
        for depth, width in enumerate((*hidden, outputs), start=1):
            non_linearity, factor = make_activation(activation, 2 if depth == 1 and not layer_norm else -1, runs)
            modules += [*([StackedLayerNorm(fan_in, runs)] if layer_norm else []), non_linearity]
            is_head = depth == len(hidden) + 1
            head_gain = initial_gain(init, is_head, activation)
            modules.append(StackedLinear(factor * fan_in, width, derived(seeds, depth), head_gain))
            fan_in = width
        # A norm is over a whole image. Without one, the first activation's units are the channels, for redo and others.
        modules.insert(2 if layer_norm else 3, nn.Flatten(2))
        super().__init__(*modules)


def kumar_cnn(
    shape: Sequence[int],
    num_classes: int,
    seeds: Sequence[int],
    activation: Activation = "relu",
    channels: Channels = 16,
    widths: Widths = (100, 100),
    init: Init = "orthogonal",
) -> CNN:
    """The network of Kumar et al. (2023), for Continual ImageNet with 2 outputs: as `CNN`, for images of 16 and more.

    Two 5x5 convolutions of 16 channels, each followed by max-pooling, and two fully connected layers of 100 before the
    head. Source: "Maintaining Plasticity in Continual Learning via Regenerative Regularization", arXiv 2308.11958,
    Appendix A.1.3; their code (github.com/skumar9876/L2_Init, nets/cnn.py) says what the text does not: no padding,
    pooling by 2 behind the ReLU, torch's own initial weights (``init="torch"``; Appendix A.2.4 compares others). The
    default initialization here is that of the other networks: with torch's own the outputs start below 0.1. With
    concatenated ReLU they take 0.27 fewer units (A.1.3): ``channels=11, widths=[73, 73]``.
    """
    return CNN(shape, num_classes, seeds, False, activation, channels, widths, False, init)
