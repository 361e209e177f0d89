"""Tasks that change: several in turn, or one whose observations, actions, rewards or physics change at random.

A change depends only on a run's seed and the change's number. So all methods meet the same changes, in training and in
evaluation. Change number 0 leaves the task as it is.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_plasticity.envs.spaces import (
    Env,
    action_at,
    actions_of,
    is_real,
    name_of,
    number_of,
    part_of,
    size_of,
    width_of,
)
from rl_plasticity.errors import SettingsError, nearest
from rl_plasticity.seeds import derive

KINDS = (
    "observation_permutation",
    "observation_shift",
    "action_permutation",
    "action_flip",
    "reward_flip",
    "dynamics",
    "channel_permutation",
)
Array = NDArray[Any]
# The attributes that a step of classic control reads, by class; times and limits stay.
CONSTANTS: Mapping[str, Sequence[str]] = {
    "CartPoleEnv": ("gravity", "masscart", "masspole", "length", "force_mag"),
    "PendulumEnv": ("g", "m", "l"),
    "AcrobotEnv": ("LINK_MASS_1", "LINK_MASS_2", "LINK_LENGTH_1", "LINK_COM_POS_1", "LINK_COM_POS_2", "LINK_MOI"),
    "MountainCarEnv": ("gravity", "force"),
    "Continuous_MountainCarEnv": ("power",),
}


class Changing(gym.Wrapper[Any, Any, Any, Any]):
    """A task that changes: each change draws another order of observations, other physics, and so on::

        env = Changing(gym.make("CartPole-v1"), ["observation_permutation"], switch_every_env_steps=10_000)

    Observations o are seen as a flat vector, continuous actions a as fractions of their range, from 0 to 1. Of n
    discrete actions, number i is the fraction i / (n - 1).

    - observation_permutation: o[p], p a random permutation. action_permutation likewise; of discrete actions, which of
      them each one is.
    - channel_permutation: the channels of an image ``[channels, height, width]`` are permuted, its pixels are not.
    - observation_shift: o + `shift_std` z, z standard normal, one number for each observation.
    - action_flip: 1 - a for a random half of the actions (at least one). Discrete actions are always flipped, and a
      single continuous one too: there nothing changes from the second change on.
    - reward_flip: -r at every other change.
    - dynamics: physical constants times `dynamics_factor`^u, each with its own u, uniform in [-1, 1]. In MuJoCo these
      are gravity, sliding friction of all geoms, masses with inertias of all bodies, and strengths of all actuators
      (gain and bias). Of Gymnasium's classic control tasks they are the attributes in `CONSTANTS`.

    The wrapper returns observations in the shape and type of the task's. It flattens dictionaries and other spaces that
    are no box. A shift makes whole numbers floating-point numbers.

    Args:
        env: the task, or several with the same spaces. They are shown in turn, the next one at each change.
            In a sequence of images of one size, missing channels are zeros.
        changes: the kinds of changes, each with new draws at each change.
        seed: seed of the draws. Environments with the same seed have the same changes.
        switch_every_env_steps: after this many steps the episode is truncated, and the next reset brings the next
            change; None: a change comes only when `change_to` is called.

    Attributes:
        change: the number of the present change; 0 is the task as it is.

    Raises:
        ValueError: an unknown change, spaces that differ, actions that are neither discrete nor bounded and
            one-dimensional, no physical constants for ``dynamics``, no image for ``channel_permutation``, no real
            numbers for ``observation_shift``, or `switch_every_env_steps` below 1.
    """

    def __init__(
        self,
        env: Env | Sequence[Env],
        changes: Sequence[str] = (),
        seed: int = 0,
        *,
        switch_every_env_steps: int | None = None,
        shift_std: float = 1.0,
        dynamics_factor: float = 2.0,
    ) -> None:
        envs = [env] if isinstance(env, gym.Env) else [*env]
        super().__init__(envs[0])
        for kind in changes:
            if kind not in KINDS:
                raise SettingsError(f"unknown env.changes {kind!r}{nearest(kind, KINDS)}")
        if switch_every_env_steps is not None and switch_every_env_steps < 1:
            raise ValueError(f"switch_every_env_steps must be at least 1, got {switch_every_env_steps}")
        self.envs, self.changes, self.seed = envs, changes, seed
        self.switch_every_env_steps, self.steps = switch_every_env_steps, 0
        self.shift_std, self.dynamics_factor = shift_std, dynamics_factor
        for one in envs:
            space = actions_of(one)
            whole = [space] if isinstance(space, spaces.Box) and not is_real(space) else []
            if "action_permutation" in changes and any(np.ptp(width_of(box)) for box in whole):
                needed = "env.changes=[action_permutation] needs actions with equally many integers"
                raise ValueError(f"{needed}, but {name_of(one)} has {space}")
            if (_without_channels(one), one.action_space) != (_without_channels(envs[0]), envs[0].action_space):
                has = [f"{name_of(e)} has {e.observation_space} and {e.action_space}" for e in (envs[0], one)]
                raise ValueError(f"tasks in sequence need the same spaces: {'; '.join(has)}")
        widest = max(envs, key=size_of).observation_space
        self.image, self.size = image_of(widest), spaces.flatdim(widest)
        if "channel_permutation" in changes and self.image is None:
            raise ValueError(f"env.changes=[channel_permutation] needs images, but {name_of(envs[0])} has {widest}")
        if "observation_shift" in changes and levels_of(widest):
            raise ValueError(f"env.changes=[observation_shift] needs real numbers, not {widest} of {name_of(envs[0])}")
        self.observation_space = _seen_space(widest, changes)
        self.physics = [_physics(one) for one in envs] if "dynamics" in changes else []
        self.change_to(0)

    def change_to(self, number: int) -> None:
        """Apply change `number`. A reset has to follow: a sequence shows another environment from then on."""
        self.change = number
        which = number % len(self.envs)
        self.env = self.envs[which]
        obs, actions = self.size, actions_of(self.env)
        self.actions = actions
        act = int(actions.n) if isinstance(actions, spaces.Discrete) else actions.shape[0]
        self.order, self.offset, self.sign = np.arange(obs), np.zeros(obs), 1.0
        self.act_order, self.flipped = np.arange(act), np.zeros(act, bool)
        number_of_constants, scale = self.physics[which] if self.physics else (0, None)
        factors = np.ones(number_of_constants)
        for i, kind in enumerate(KINDS):
            if not number or kind not in self.changes:
                continue
            draw = np.random.default_rng(derive(self.seed, number, i))
            match kind:
                case "observation_permutation":
                    self.order = draw.permutation(obs)
                case "observation_shift":
                    self.offset = self.shift_std * draw.standard_normal(obs)
                case "action_permutation":
                    self.act_order = draw.permutation(act)
                case "action_flip":
                    discrete = isinstance(actions, spaces.Discrete)
                    self.flipped[draw.permutation(act)[: act if discrete else max(1, act // 2)]] = True
                case "reward_flip":
                    self.sign = -1.0 if number % 2 else 1.0
                case "dynamics":
                    factors = self.dynamics_factor ** draw.uniform(-1, 1, len(factors))
                case "channel_permutation" if self.image:
                    self.order = self.order.reshape(self.image)[draw.permutation(self.image[0])].ravel()
        if scale:
            scale(*factors)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        if self.switch_every_env_steps is not None and self.steps // self.switch_every_env_steps != self.change:
            self.change_to(self.steps // self.switch_every_env_steps)
        obs, info = self.env.reset(seed=seed, options=options)
        return self._seen(obs), info

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        space = self.actions
        if isinstance(space, spaces.Discrete):
            index = self.act_order[int(action) - int(space.start)]
            meant: Any = int(space.start + (space.n - 1 - index if self.flipped[0] else index))
        else:
            part = part_of(space, action)[self.act_order]
            meant = action_at(space, np.where(self.flipped, 1 - part, part))
        obs, reward, terminated, truncated, info = self.env.step(meant)
        self.steps += 1
        is_last = self.switch_every_env_steps is not None and self.steps % self.switch_every_env_steps == 0
        truncated = truncated or (is_last and not terminated)
        return self._seen(obs), self.sign * number_of(reward), terminated, truncated, info

    def _seen(self, obs: Any) -> Array:
        flat = np.asarray(spaces.flatten(self.env.observation_space, obs), np.float64)
        if len(flat) < self.size:  # channels that another task of the sequence has
            flat = np.pad(flat, (0, self.size - len(flat)))
        seen: gym.Space[Any] = self.observation_space
        return np.asarray(flat[self.order] + self.offset).reshape(seen.shape).astype(seen.dtype)

    def close(self) -> None:
        for env in self.envs:
            env.close()


def image_of(space: gym.Space[Any]) -> tuple[int, int, int] | None:
    """The shape of an observation that is an image, (channels, height, width); None for other observations."""
    if isinstance(space, spaces.Box) and len(space.shape) == 3:
        channels, height, width = space.shape
        return channels, height, width
    return None


def levels_of(space: gym.Space[Any]) -> int | None:
    """The largest value of observations that are whole numbers: 255 for uint8, 1 for bool; None for other ones."""
    return {"uint8": 255, "bool": 1}.get(str(space.dtype)) if isinstance(space, spaces.Box) else None


def _seen_space(space: gym.Space[Any], changes: Sequence[str]) -> spaces.Box:
    """The space of the observations that a changing task returns, with one lower and one upper bound for all."""
    box: Any = spaces.flatten_space(space) if not isinstance(space, spaces.Box) else space
    if "observation_shift" in changes:
        return spaces.Box(-np.inf, np.inf, box.shape, np.result_type(box.dtype, np.float32).type)
    low, high = np.full_like(box.low, box.low.min()), np.full_like(box.high, box.high.max())
    return spaces.Box(low, high, dtype=box.dtype)


def _without_channels(env: Env) -> Any:
    """What the observations of tasks in sequence must share: of images, type, height and width."""
    space = env.observation_space
    return (space.dtype, image[1:]) if (image := image_of(space)) else space


def _physics(env: Env) -> tuple[int, Callable[..., None]]:
    """The number of an environment's physical constants, and a function that sets them to multiples of what they were.

    Raises:
        ValueError: the environment is neither of MuJoCo nor of classic control.
    """
    inner: Any = env.unwrapped
    physics = getattr(inner, "physics", None)
    model: Any = physics.model.ptr if physics is not None else getattr(inner, "model", None)
    if hasattr(model, "opt"):
        return 4, _scale_of_model(model, physics.data.ptr if physics is not None else inner.data)
    of = next((kind.__name__ for kind in type(inner).__mro__ if kind.__name__ in CONSTANTS), None)
    if of is None:
        known = "MuJoCo physics, or one of classic control"
        raise ValueError(f"env.changes=[dynamics] needs a task with {known}, and {name_of(env)} has neither")
    first = {name: getattr(inner, name) for name in CONSTANTS[of]}

    def scale(*factors: float) -> None:
        for factor, (name, value) in zip(factors, first.items(), strict=True):
            setattr(inner, name, float(factor * value))
        if "masspole" in first:  # the class computes these two from others
            inner.total_mass = inner.masspole + inner.masscart
            inner.polemass_length = inner.masspole * inner.length

    return len(first), scale


def _scale_of_model(model: Any, data: Any) -> Callable[[float, float, float, float], None]:
    """The function of `_physics` for a MuJoCo environment of DeepMind Control or Gymnasium."""
    friction, gains, biases = model.geom_friction[:, 0], model.actuator_gainprm, model.actuator_biasprm
    arrays = model.opt.gravity, friction, model.body_mass, model.body_inertia, gains, biases
    pairs = [(array, array.copy()) for array in arrays]

    def scale(gravity: float, friction: float, mass: float, strength: float) -> None:
        import mujoco

        factors = gravity, friction, mass, mass, strength, strength
        for factor, (array, first) in zip(factors, pairs, strict=True):
            array[:] = factor * first
        mujoco.mj_setConst(model, data)  # updates the constants that depend on the masses

    return scale
