"""The games of MinAtar as Gymnasium environments."""

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_plasticity.errors import SettingsError

GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
TIME_LIMIT = 5000  # env steps; ours, because the games have none
Image = NDArray[np.bool_]


class MinAtar(gym.Env[Image, np.int64]):
    """A game of MinAtar: observations are images of bool ``[channels, 10, 10]``, actions one of six.

    With probability 0.1 the last action is repeated in place of the new one, and games become harder as they go on, as
    published. An episode is a function of its seed and its actions: after a reset with a seed there is no last action
    of the episode before, which the package's own environment would repeat.

    Source: Young and Tian (2019), "MinAtar: An Atari-Inspired Testbed for Thorough and Reproducible Reinforcement
    Learning Experiments", arXiv 1903.03176.
    """

    _step_limit = TIME_LIMIT  # as dm_control calls it
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  gymnasium's own form

    def __init__(self, game: str, render_mode: str | None = None, **kwargs: Any) -> None:
        try:
            from minatar import Environment
        except ImportError as error:
            raise SettingsError(f'env=minatar:{game} needs minatar: pip install "rl_plasticity[minatar]"') from error
        self.game, self.render_mode = Environment(game, **kwargs), render_mode
        height, width, channels = self.game.state_shape()
        box: Any = gym.spaces.Box
        self.observation_space = box(0, 1, (channels, height, width), np.bool_)
        self.action_space = gym.spaces.Discrete(self.game.num_actions())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Image, dict[str, Any]]:
        if seed is not None:
            self.game.seed(seed)
            self.game.last_action = 0
        self.game.reset()
        return self._image(), {}

    def step(self, action: Any) -> tuple[Image, float, bool, bool, dict[str, Any]]:
        reward, ended = self.game.act(action)
        return self._image(), float(reward), bool(ended), False, {}

    def render(self) -> NDArray[np.uint8]:
        """The picture, 40 pixels a cell. Each channel has a color; where several are set, the last one is shown."""
        from matplotlib import colormaps

        image = self._image()
        colors = colormaps["viridis"](np.linspace(0, 1, len(image) + 1))[:, :3]
        shown = (image * np.arange(1, len(image) + 1)[:, None, None]).max(0)
        return np.kron(np.round(255 * colors[shown]), np.ones((40, 40, 1))).astype(np.uint8)

    def _image(self) -> Image:
        return np.ascontiguousarray(self.game.state().transpose(2, 0, 1))
