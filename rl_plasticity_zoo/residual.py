"""Residual networks for reinforcement learning, many runs at once: SimBa, BRO's and, on the hypersphere, SimbaV2's."""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_plasticity.networks import Activation, StackedLayerNorm, StackedLinear, gain_of, make_activation
from rl_plasticity.seeding import derived

EXPANSION = 4  # of a block's hidden layer


class SimbaBlock(nn.Module):
    """x + contract(act(expand(LayerNorm(x)))), four times as wide inside: ``[runs, batch, n] -> [runs, batch, n]``.

    Weights are normal with variance gain^2 / fan_in, the gain the activation's (for ReLU its square is 2), cut off at
    two standard deviations; biases are zero.
    """

    def __init__(self, width: int, seeds: Sequence[int], activation: Activation = "relu") -> None:
        super().__init__()
        non_linearity, factor = make_activation(activation, runs=len(seeds))
        gain, inside = gain_of(activation), EXPANSION * width
        self.norm = StackedLayerNorm(width, len(seeds))
        self.expand = StackedLinear(width, inside, derived(seeds, 0), gain, normal=True)
        self.activation = non_linearity
        self.contract = StackedLinear(factor * inside, width, derived(seeds, 1), gain, normal=True)

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = input + self.contract(self.activation(self.expand(self.norm(input))))
        return output


class Simba(nn.Sequential):
    """A linear layer, residual blocks, LayerNorm and a linear head: ``[runs, batch, in] -> [runs, batch, out]``.

    First layer and head are orthogonal with gain 1. Observations are meant to be normalized (`ObservationNorm`).

    Source: Lee et al. (2024), "SimBa: Simplicity Bias for Scaling Up Parameters in Deep Reinforcement Learning", arXiv
    2410.09754, as in their code (github.com/SonyResearch/simba, scale_rl/networks/layers.py). Deviations: LayerNorm's
    eps is 1e-5, torch's; their weight decay is ``reg=weight_decay reg.coef=1e-2``, at their learning rate of 1e-4.

    Args:
        seeds: one for each run.
        width, blocks: theirs are 128 and 1 for an actor, 512 and 2 for a critic.
    """

    normalizes_obs = squashes_log_std = True

    def __init__(
        self,
        inputs: int,
        outputs: int,
        seeds: Sequence[int],
        width: int,
        blocks: int,
        activation: Activation = "relu",
    ) -> None:
        super().__init__(
            StackedLinear(inputs, width, derived(seeds, 0), gain=1.0),
            *(SimbaBlock(width, derived(seeds, 1 + i), activation) for i in range(blocks)),
            StackedLayerNorm(width, len(seeds)),
            StackedLinear(width, outputs, derived(seeds, 1 + blocks), gain=1.0),
        )


class BroBlock(nn.Module):
    """x + norm(second(relu(norm(first(x))))), as wide inside: ``[runs, batch, n] -> [runs, batch, n]``."""

    def __init__(self, width: int, seeds: Sequence[int]) -> None:
        super().__init__()
        self.inside = nn.Sequential(
            StackedLinear(width, width, derived(seeds, 0)),
            StackedLayerNorm(width, len(seeds)),
            nn.ReLU(),
            StackedLinear(width, width, derived(seeds, 1)),
            StackedLayerNorm(width, len(seeds)),
        )

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = input + self.inside(input)
        return output


class Bro(nn.Sequential):
    """BroNet: linear layer, LayerNorm, ReLU, residual blocks (`BroBlock`) and a linear head.

    ``[runs, batch, in] -> [runs, batch, out]``. All weights are orthogonal with gain sqrt(2); biases are zero.

    Source: Nauman et al. (2024), "Bigger, Regularized, Optimistic", arXiv 2405.16158, as in their code
    (github.com/naumix/BiggerRegularizedOptimistic, jaxrl/networks/common.py). Deviation: LayerNorm's eps is 1e-5,
    torch's.

    Args:
        seeds: one for each run.
        width, blocks: theirs are 256 and 1 for an actor, 512 and 2 for a critic.
    """

    def __init__(self, inputs: int, outputs: int, seeds: Sequence[int], width: int, blocks: int) -> None:
        super().__init__(
            StackedLinear(inputs, width, derived(seeds, 0)),
            StackedLayerNorm(width, len(seeds)),
            nn.ReLU(),
            *(BroBlock(width, derived(seeds, 1 + i)) for i in range(blocks)),
            StackedLinear(width, outputs, derived(seeds, 1 + blocks)),
        )


class Scaler(nn.Module):
    """A learned gain that begins at `init`: x * weight * init / start.

    The weight ``[runs, n]`` begins at `start`, which decides how far a step of the optimizer moves the gain.
    Regularizers leave it alone: `spectral` would draw a norm layer's gain to 1.
    """

    layer_role = "ignore"

    def __init__(self, features: int, runs: int, init: float, start: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((runs, features), start))
        self.factor = init / start

    def forward(self, input: Tensor) -> Tensor:
        return input * (self.weight * self.factor).unsqueeze(1)


class UnitLinear(StackedLinear):
    """A linear layer whose rows start with unit length."""

    def __init__(self, in_features: int, out_features: int, seeds: Sequence[int], bias: bool = False) -> None:
        super().__init__(in_features, out_features, seeds, gain=1.0, bias=bias)
        with torch.no_grad():
            self.weight.copy_(F.normalize(self.weight, dim=-1))


class HypersphereBlock(nn.Module):
    """l2(x + alpha (h - x)) with h = l2(contract(relu(scale(expand(x))))), four times as wide inside.

    l2(x) = x / |x| over the features of each example; alpha is a learned gain for each feature.

    Args:
        blocks: how many there are, of which alpha's start is 1 / (blocks + 1).
    """

    def __init__(self, width: int, blocks: int, seeds: Sequence[int]) -> None:
        super().__init__()
        inside, start = EXPANSION * width, math.sqrt(2 / (EXPANSION * width))
        self.expand = UnitLinear(width, inside, derived(seeds, 0))
        self.scale = Scaler(inside, len(seeds), start, start)
        self.activation = nn.ReLU()
        self.contract = UnitLinear(inside, width, derived(seeds, 1))
        self.alpha = Scaler(width, len(seeds), 1 / (blocks + 1), 1 / math.sqrt(width))

    def forward(self, input: Tensor) -> Tensor:
        hidden = _l2(self.contract(self.activation(self.scale(self.expand(input))) + 1e-8))
        return _l2(input + cast(Tensor, self.alpha(hidden - input)))


class Hypersphere(nn.Module):
    """SimbaV2's network, features and weights of unit length: ``[runs, batch, in] -> [runs, batch, out]``.

    l2(scale(linear(l2([x, 3])))), residual blocks (`HypersphereBlock`), and a head of two linear layers with a gain
    between them and no non-linearity; a bias is in the last one alone. It is meant to be trained with the regularizer
    `hypersphere`, which brings the rows back to unit length after every update, and on normalized observations.

    Source: Lee et al. (2025), "Hyperspherical Normalization for Scalable Deep Reinforcement Learning" (SimbaV2), arXiv
    2502.15280, as in their code (github.com/DAVIAN-Robotics/SimbaV2, scale_rl/agents/simbaV2). Deviations: the actor
    has one head for mean and log standard deviation (theirs two). What else belongs to their agent is in
    ``preset=simba_v2``.

    Args:
        seeds: one for each run.
        width, blocks: theirs are 128 and 1 for an actor, 512 and 2 for a critic.
    """

    normalizes_obs = squashes_log_std = True
    shift = 3.0  # the input that is always there, so that the size of the others is not lost

    def __init__(self, inputs: int, outputs: int, seeds: Sequence[int], width: int, blocks: int) -> None:
        super().__init__()
        runs, start = len(seeds), math.sqrt(2 / width)
        self.embed = UnitLinear(inputs + 1, width, derived(seeds, 0))
        self.scale = Scaler(width, runs, start, start)
        self.blocks = nn.Sequential(*(HypersphereBlock(width, blocks, derived(seeds, 1 + i)) for i in range(blocks)))
        self.before_head = UnitLinear(width, width, derived(seeds, 1 + blocks))
        self.head_scale = Scaler(width, runs, 1.0, 1.0)
        self.head = UnitLinear(width, outputs, derived(seeds, 2 + blocks), bias=True)

    def forward(self, input: Tensor) -> Tensor:
        shifted = torch.cat([input, torch.full_like(input[..., :1], self.shift)], dim=-1)
        x = self.blocks(_l2(self.scale(self.embed(_l2(shifted)))))
        output: Tensor = self.head(self.head_scale(self.before_head(x)))
        return output


def _l2(x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1, eps=1e-8)
