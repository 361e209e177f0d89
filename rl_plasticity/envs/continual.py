"""Tasks that change: several in turn, or one whose observations, actions, rewards or physics change at random.

A change depends only on a run's seed and the change's number. So all methods meet the same changes, in training and in
evaluation. Change number 0 leaves the task as it is.
"""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_plasticity.seeds import derive

Kind = Literal[
    "observation_permutation",
    "observation_shift",
    "action_permutation",
    "action_flip",
    "reward_flip",
    "dynamics",
    "channel_permutation",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
Array = NDArray[Any]


def actions_of(env: gym.Env[Any, Any]) -> gym.spaces.Box | gym.spaces.Discrete:
    """The space of an environment's actions.

    Raises:
        ValueError: the actions are neither discrete nor continuous, bounded and one-dimensional.
    """
    space = env.action_space
    if isinstance(space, gym.spaces.Box) and len(space.shape) == 1 and space.is_bounded():
        return space
    if isinstance(space, gym.spaces.Discrete):
        return space
    raise ValueError(f"a task with discrete or bounded continuous actions is needed, {_name(env)} has {space}")


class Changing(gym.Wrapper[Any, Any, Any, Any]):
    """One of several environments with the same spaces, as the present change shows it.

    Observations are flat float64 vectors o, actions a fractions of their range, from 0 to 1. Of n discrete actions,
    number i is the fraction i / (n - 1).

    - observation_permutation: o[p], p a random permutation. action_permutation likewise; of discrete actions, which of
      them each one is.
    - channel_permutation: the channels of an image are permuted, its pixels are not.
    - observation_shift: o + `shift_std` z, z standard normal, one number for each observation.
    - action_flip: 1 - a for a random half of the actions (at least one).
    - reward_flip: -r at every other change.
    - dynamics: gravity, sliding friction of all geoms, masses with inertias of all bodies, and strengths of all
      actuators (gain and bias) times `dynamics_factor`^u, each with its own u, uniform in [-1, 1]. MuJoCo only.

    Args:
        envs: shown in turn, the next one at each change.
        kinds: the kinds of changes, each with new draws at each change.
            In a sequence of images of one size, missing channels are zeros.
        seed: seed of the draws.

    Raises:
        ValueError: the spaces differ, there is no MuJoCo model for ``dynamics``, no image for ``channel_permutation``,
            or no real numbers for ``observation_shift``.
    """

    def __init__(
        self,
        envs: Sequence[gym.Env[Any, Any]],
        kinds: Sequence[Kind],
        seed: int,
        shift_std: float,
        dynamics_factor: float,
    ) -> None:
        super().__init__(envs[0])
        self.envs, self.kinds, self.seed = envs, kinds, seed
        self.shift_std, self.dynamics_factor = shift_std, dynamics_factor
        for env in envs:
            actions_of(env)
            if (_without_channels(env), env.action_space) != (_without_channels(envs[0]), envs[0].action_space):
                raise ValueError(f"tasks in sequence need the same spaces: {_sizes(envs[0])}, and {_sizes(env)}")
        widest = max(envs, key=lambda env: gym.spaces.flatdim(env.observation_space)).observation_space
        self.image, self.size = image_of(widest), gym.spaces.flatdim(widest)
        if "channel_permutation" in kinds and self.image is None:
            raise ValueError(f"env.changes=[channel_permutation] needs images, {_name(envs[0])} has {widest}")
        if "observation_shift" in kinds and levels_of(widest):
            raise ValueError(f"env.changes=[observation_shift] needs real numbers, {_name(envs[0])} has {widest}")
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (self.size,), np.float64)
        self.models = [_Model(env) for env in envs] if "dynamics" in kinds else []
        self.change_to(0)

    def change_to(self, number: int) -> None:
        """Apply change `number`, from the next reset on."""
        which = number % len(self.envs)
        self.env = self.envs[which]
        obs, actions = self.size, actions_of(self.env)
        act = int(actions.n) if isinstance(actions, gym.spaces.Discrete) else actions.shape[0]
        self.order, self.offset, self.sign = np.arange(obs), np.zeros(obs), 1.0
        self.act_order, self.flipped = np.arange(act), np.zeros(act, bool)
        factors = np.ones(4)
        if number:
            draw = {kind: np.random.default_rng(derive(self.seed, number, i)) for i, kind in enumerate(KINDS)}
            if "observation_permutation" in self.kinds:
                self.order = draw["observation_permutation"].permutation(obs)
            if "channel_permutation" in self.kinds and self.image:
                channels = draw["channel_permutation"].permutation(self.image[0])
                self.order = self.order.reshape(self.image)[channels].ravel()
            if "observation_shift" in self.kinds:
                self.offset = self.shift_std * draw["observation_shift"].standard_normal(obs)
            if "action_permutation" in self.kinds:
                self.act_order = draw["action_permutation"].permutation(act)
            if "action_flip" in self.kinds:
                discrete = isinstance(actions, gym.spaces.Discrete)
                self.flipped[draw["action_flip"].permutation(act)[: act if discrete else max(1, act // 2)]] = True
            if "reward_flip" in self.kinds and number % 2:
                self.sign = -1.0
            factors = self.dynamics_factor ** draw["dynamics"].uniform(-1, 1, 4)
        if self.models:
            self.models[which].scale(*factors)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._seen(obs), info

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        space = actions_of(self.env)
        if isinstance(space, gym.spaces.Discrete):
            index = self.act_order[int(action) - int(space.start)]
            meant: Any = int(space.start + (space.n - 1 - index if self.flipped[0] else index))
        else:
            low, high = space.low, space.high
            part = ((action - low) / (high - low))[self.act_order]
            meant = (low + np.where(self.flipped, 1 - part, part) * (high - low)).astype(action.dtype)
        obs, reward, terminated, truncated, info = self.env.step(meant)
        return self._seen(obs), self.sign * float(reward), terminated, truncated, info

    def _seen(self, obs: Any) -> Array:
        flat = np.asarray(gym.spaces.flatten(self.env.observation_space, obs), np.float64)
        if len(flat) < self.size:  # channels that another task of the sequence has
            flat = np.pad(flat, (0, self.size - len(flat)))
        return np.asarray(flat[self.order] + self.offset)

    def close(self) -> None:
        for env in self.envs:
            env.close()


def image_of(space: gym.Space[Any]) -> tuple[int, int, int] | None:
    """The shape of an observation that is an image, (channels, height, width); None for other observations."""
    if isinstance(space, gym.spaces.Box) and len(space.shape) == 3:
        channels, height, width = space.shape
        return channels, height, width
    return None


def levels_of(space: gym.Space[Any]) -> int | None:
    """The largest value of observations that are whole numbers: 255 for uint8, 1 for bool; None for other ones."""
    return {"uint8": 255, "bool": 1}.get(str(space.dtype)) if isinstance(space, gym.spaces.Box) else None


def _without_channels(env: gym.Env[Any, Any]) -> Any:
    """What the observations of tasks in sequence must share: of images, type, height and width."""
    space = env.observation_space
    return (space.dtype, image[1:]) if (image := image_of(space)) else space


def _sizes(env: gym.Env[Any, Any]) -> str:
    sizes = gym.spaces.flatdim(env.observation_space), gym.spaces.flatdim(env.action_space)
    return f"{_name(env)} has {sizes[0]} observations and {sizes[1]} actions"


def _name(env: gym.Env[Any, Any]) -> str:
    return env.spec.id if env.spec else type(env.unwrapped).__name__


class _Model:
    """The physical constants of a MuJoCo environment of DeepMind Control or Gymnasium."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        inner: Any = env.unwrapped
        physics = getattr(inner, "physics", None)
        m: Any = physics.model.ptr if physics is not None else getattr(inner, "model", None)
        if not hasattr(m, "opt"):
            raise ValueError(f"env.changes=[dynamics] needs a task with MuJoCo physics, {_name(env)} has none")
        self.model, self.data = m, physics.data.ptr if physics is not None else inner.data
        self.gravity, self.friction = m.opt.gravity.copy(), m.geom_friction[:, 0].copy()
        self.mass, self.inertia = m.body_mass.copy(), m.body_inertia.copy()
        self.gain, self.bias = m.actuator_gainprm.copy(), m.actuator_biasprm.copy()

    def scale(self, gravity: float, friction: float, mass: float, strength: float) -> None:
        """Set the constants to these multiples of their first values."""
        import mujoco

        m = self.model
        m.opt.gravity[:] = gravity * self.gravity
        m.geom_friction[:, 0] = friction * self.friction
        m.body_mass[:], m.body_inertia[:] = mass * self.mass, mass * self.inertia
        m.actuator_gainprm[:], m.actuator_biasprm[:] = strength * self.gain, strength * self.bias
        mujoco.mj_setConst(m, self.data)  # updates the constants that depend on the masses
