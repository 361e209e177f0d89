"""What environments give and agents learn from. It needs no torch: nor do processes that hold environments alone."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Spaces(NamedTuple):
    """What an agent sees and does in one environment.

    Args:
        obs_shape: shape of an observation; an image has its channels first. Observations are handed on flat.
        act_dim: length of an action. It is 1 where actions are discrete: an action is then its index, as a number.
        num_actions: the number of discrete actions; None where actions are continuous, in [-1, 1].
        levels: the observations are multiples of 1 / levels, from 0 to 1: 255 for uint8, 1 for bool. None: any numbers.
    """

    obs_shape: tuple[int, ...]
    act_dim: int
    num_actions: int | None = None
    levels: int | None = None

    @property
    def obs_dim(self) -> int:
        """The number of numbers in an observation."""
        return math.prod(self.obs_shape)


class Step(NamedTuple):
    """What one step of every run's environment gave; all ``[runs, ...]``."""

    obs: NDArray[np.float32]  # where the environment goes on from: a new episode's first obs after an end
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    next_obs: NDArray[np.float32]  # what the action led to

    @property
    def ended(self) -> NDArray[np.bool_]:
        """Which episodes ended."""
        return self.terminated | self.truncated
