"""What environments give and agents learn from. It needs no torch: nor do processes that hold environments alone."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


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
