"""Distributions of the return over evenly spaced atoms, which categorical critics learn by cross-entropy."""

import math
from typing import Literal

import torch
from torch import Tensor

from rl_plasticity import Batch

Projection = Literal["c51", "two_hot", "hl_gauss"]
SMOOTHING = 0.75  # HL-Gauss's standard deviation, in gaps between atoms


def expected(logits: Tensor, support: Tensor) -> Tensor:
    """The mean return: ``[..., atoms] -> [...]``."""
    return logits.softmax(-1) @ support


def two_hot(values: Tensor, support: Tensor) -> Tensor:
    """The distribution on the two atoms next to each value whose mean it is: ``[...] -> [..., atoms]``.

    Values beyond the support's ends count as its ends.
    """
    gap = support[1] - support[0]
    values = values.clamp(support[0], support[-1]).unsqueeze(-1)
    return (1 - (values - support).abs() / gap).clamp(min=0)


def hl_gauss(values: Tensor, support: Tensor) -> Tensor:
    """The normal distribution around each value, cut off and in bins around the atoms: ``[...] -> [..., atoms]``.

    p_i is proportional to Phi((z_i + gap/2 - y) / sigma) - Phi((z_i - gap/2 - y) / sigma), sigma = 0.75 gap. Values
    beyond the support's ends count as its ends.

    Source: Farebrother et al. (2024), "Stop Regressing: Training Value Functions via Classification for Scalable Deep
    RL", arXiv 2403.03950, section 3.1, with their ratio of sigma and gap. There the range's ends are edges of bins;
    here they are atoms, half a gap further inside.
    """
    gap = support[1] - support[0]
    values = values.clamp(support[0], support[-1]).unsqueeze(-1)
    edges = torch.cat([support - gap / 2, support[-1:] + gap / 2])
    below = torch.special.erf((edges - values) / (SMOOTHING * gap * math.sqrt(2)))
    inside: Tensor = below.diff(dim=-1) / (below[..., -1:] - below[..., :1])
    return inside


def projected(batch: Batch, next_probs: Tensor, support: Tensor, cost: Tensor | float = 0.0) -> Tensor:
    """The distribution of r + discount * (z - cost) on the atoms of the support, ``[runs, batch, atoms]``.

    Each atom's probability goes to the two nearest atoms in proportion to its nearness (Bellemare et al. 2017,
    Algorithm 1).

    Args:
        next_probs: probabilities ``[runs, batch, atoms]`` in the next state.
        support: the atoms z, evenly spaced.
        cost: ``[runs, batch]``; in soft actor-critic alpha log pi(a'|s').
    """
    shift = batch.reward - batch.discount * cost
    moved = shift.unsqueeze(-1) + batch.discount.unsqueeze(-1) * support
    nearness = two_hot(moved, support)  # [runs, batch, from, to]
    return (next_probs.unsqueeze(-1) * nearness).sum(-2)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """-sum over atoms of target log softmax(logits): ``[..., atoms] -> [...]``."""
    return -(target * logits.log_softmax(-1)).sum(-1)
