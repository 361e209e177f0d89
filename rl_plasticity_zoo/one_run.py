"""What networks without a runs axis share."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from rl_plasticity import SettingsError
from rl_plasticity.networks import gain_of


@contextmanager
def one_run(name: str, seeds: Sequence[int]) -> Iterator[None]:
    """Draw from the only seed inside, and restore the global random state at the end."""
    if len(seeds) != 1:
        raise SettingsError(f"{name} has no runs axis: train one run per process (seeds=1), got {len(seeds)} seeds")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seeds[0])
        yield


def side_of(shape: Sequence[int]) -> int:
    """The side of square images (channels, side, side)."""
    if len(shape) != 3 or shape[1] != shape[2]:
        raise SettingsError(f"shape must be (channels, side, side), got {tuple(shape)}")
    return shape[1]


@torch.no_grad()
def fit_gain_(weight: Tensor, activation: str) -> None:
    """Change a weight that was drawn with ReLU's gain to the gain of the activation."""
    weight.mul_(gain_of(activation) / math.sqrt(2))
