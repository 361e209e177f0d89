"""ViT-tiny, one run at a time."""

import math
from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor, nn

from rl_plasticity import Setting, SettingsError
from rl_plasticity.networks import Activation, make_activation
from rl_plasticity_zoo.one_run import one_run, side_of

WIDTH, DEPTH, HEADS = 192, 12, 3


class Block(nn.Module):
    """x + attention(norm x), then x + mlp(norm x): ``[batch, tokens, width] -> [batch, tokens, width]``."""

    def __init__(self, activation: Activation) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH, eps=1e-6)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.norm2 = nn.LayerNorm(WIDTH, eps=1e-6)
        non_linearity, factor = make_activation(activation)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), non_linearity, nn.Linear(factor * 4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        normal = self.norm1(x)
        x = x + self.attention(normal, normal, normal, need_weights=False)[0]
        output: Tensor = x + self.mlp(self.norm2(x))
        return output


class VisionTransformer(nn.Module):
    """Patches, a class token and learned positions, pre-norm blocks, a linear head on the class token."""

    def __init__(
        self,
        num_classes: int,
        image_size: int,
        patch: int,
        channels: int,
        activation: Activation,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, WIDTH, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.position = nn.Parameter(torch.zeros(1, (image_size // patch) ** 2 + 1, WIDTH))
        self.blocks = nn.Sequential(*(Block(activation) for _ in range(DEPTH)))
        self.norm = nn.LayerNorm(WIDTH, eps=1e-6)
        self.head = nn.Linear(WIDTH, num_classes)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                nn.init.trunc_normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        nn.init.trunc_normal_(self.head.weight, std=1 / math.sqrt(WIDTH))

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).mT  # [batch, patches, width]
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.position
        output: Tensor = self.head(self.norm(self.blocks(x))[:, 0])
        return output


def vit_tiny(
    shape: Sequence[int],
    num_classes: int,
    seeds: Sequence[int],
    patch: Annotated[int, Setting("side length of the square patches in pixels", least=1)] = 4,
    activation: Activation = "gelu",
) -> VisionTransformer:
    """Vision transformer of width 192, 12 blocks and 3 heads, no dropout: ``[batch, c, s, s] -> [batch, classes]``.

    Source: Dosovitskiy et al. (2021), Figure 1, in the size "tiny" of Touvron et al. (2021), Table 1. Where they are
    silent: initial weights are normal with standard deviation 0.02 (the convolution that cuts the patches, token
    and positions included), the head's 1 / sqrt(width) (with 0.02 its outputs start at 0.2 or less), biases zero.

    Args:
        activation: in the blocks' MLPs; "crelu" and "deep_fourier" double the inputs of their second layer.

    Raises:
        SettingsError: a patch that does not divide the images' side.
    """
    side = side_of(shape)
    if patch < 1 or side % patch:
        raise SettingsError(f"patch must divide the images' side, got {patch} and {side}")
    with one_run("vit_tiny", seeds):
        return VisionTransformer(num_classes, side, patch, shape[0], activation)
