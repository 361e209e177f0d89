"""One environment: a DeepMind Control task, a MinAtar game, or any Gymnasium task.

An episode is a function of (seed, episode number, actions), because every reset passes its own seed. So the saved state
of an environment is its episode number and the actions since the reset. Playing them again restores it bit for bit,
whatever hidden state the simulator has.
"""

import ctypes.util
import difflib
import importlib
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_plasticity import plugins
from rl_plasticity.envs.continual import KINDS, Changing, image_of, levels_of
from rl_plasticity.envs.minatar import GAMES, TIME_LIMIT, MinAtar
from rl_plasticity.envs.spaces import UNUSUAL, Env, action_at, actions_of, is_real, name_of, number_of, size_of
from rl_plasticity.errors import SettingsError, first_line, nearest, warn
from rl_plasticity.seeds import derive
from rl_plasticity.settings import Setting
from rl_plasticity.step import Spaces

Floats = NDArray[np.float32]
NOTHING: Mapping[str, Any] = MappingProxyType({})
LONGEST = 1000  # simulator steps of an episode, where a task has no time limit
NOT_FOR_RUNS = ("Autoreset", "HumanRendering", "NormalizeObservation", "NormalizeReward", "RecordVideo")


class Control(gym.Wrapper[Floats, Floats, Any, Any]):
    """An environment with flat float32 observations, actions in [-1, 1] or an index, and episodes that can be replayed.

    Observations of whole numbers are divided by the largest, so they are in [0, 1] (see `Spaces`).

    A step that raises a physics error, or returns a number that is not finite, truncates its episode with a warning. It
    gives no reward, and the last good observation.

    Args:
        env: an environment with observations that are vectors, and actions that are discrete or in a bounded
            one-dimensional box. Of a box of integers, each has an equal share of [-1, 1].
        seed: seed of this environment. A seed derived from it and n resets episode number n.
        action_repeat: simulator steps with each action. Rewards are summed.
        switch_every_env_steps: after this many steps the episode is truncated, and a `Changing` environment changes;
            None: never.

    Attributes:
        change: the number of the change for the next episodes. Set it if none comes by itself.

    Raises:
        ValueError: the task has other observations or actions, or the action repeat is below 1.
    """

    def __init__(self, env: Env, seed: int, action_repeat: int = 1, switch_every_env_steps: int | None = None) -> None:
        super().__init__(env)
        self.envs = env.envs if isinstance(env, Changing) else [env]  # of each task
        actions = actions_of(env)
        if action_repeat < 1:
            raise ValueError(f"action_repeat must be at least 1, got {action_repeat}")
        self.actions_of_task = actions
        number = int(actions.n) if isinstance(actions, spaces.Discrete) else None
        shape: tuple[int, ...] = (1,) if number else actions.shape or ()
        self.seed, self.action_repeat, self.episode = seed, action_repeat, 0
        self.switch_every_env_steps, self.steps, self.change = switch_every_env_steps, 0, 0
        size = size_of(env)
        levels = levels_of(self.envs[0].observation_space)
        self.spaces = Spaces(image_of(env.observation_space) or (size,), shape[0], number, levels)
        self.observation_space = spaces.Box(-math.inf, math.inf, (size,), np.float32)
        low, high = (0.0, float(number - 1)) if number else (-1.0, 1.0)
        self.action_space = spaces.Box(low, high, shape, np.float32)
        self.actions: list[Floats] = []
        self.obs: Floats = np.zeros(size, np.float32)
        self.saved: dict[str, Any] = {}

    @property
    def notes(self) -> list[str]:
        """What is flattened, rescaled or cut off, in words."""
        notes, actions = [], self.actions_of_task
        seen = [env.observation_space for env in self.envs]
        is_other = all(space.shape != self.spaces.obs_shape for space in seen)
        if is_other and not name_of(self.envs[0]).startswith("dm_control/"):  # all of these are dictionaries
            notes.append(f"observations ({type(seen[0]).__name__}) are flattened to {self.spaces.obs_dim} numbers")
        if self.spaces.levels not in (None, 1):
            notes.append(f"observations are divided by {self.spaces.levels}")
        if isinstance(actions, spaces.Box) and not (is_real(actions) and {*actions.low, *-actions.high} == {-1}):
            low, high = float(actions.low.min()), float(actions.high.max())
            unusual = ", an unusual range: [-1, 1] is usual" if max(-low, high) >= UNUSUAL else ""
            kind = "" if is_real(actions) else "the integers of "
            notes.append(f"actions in [-1, 1] are rescaled to {kind}[{low:g}, {high:g}]{unusual}")
        if any(isinstance(env, Cap) for env in self.envs):
            notes.append(
                f"episodes have no limit of their own and end after {LONGEST} steps, or env.max_episode_steps=N"
            )
        return notes

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Floats, dict[str, Any]]:
        """Start the next episode and return its first observation. A `seed` is refused: episodes have their own."""
        if seed is not None:
            raise ValueError("this environment seeds each episode itself")
        self.episode += 1
        self.actions = []
        if self.switch_every_env_steps is not None:
            self.change = self.steps // self.switch_every_env_steps
        if isinstance(self.env, Changing):
            self.env.change_to(self.change)
        # dm_control takes seeds below 2^32
        obs, _ = self.env.reset(seed=derive(self.seed, self.episode) % 2**32, options=options)
        self.obs = self._flat(obs)
        return self.obs, {}

    def step(self, action: Floats) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        is_last = self.switch_every_env_steps is not None and self.steps % self.switch_every_env_steps == 0
        reward, terminated, truncated = self._repeat(action)
        return self.obs, reward, terminated, truncated or (is_last and not terminated), {}

    def _repeat(self, action: Floats) -> tuple[float, bool, bool]:
        """Make the simulator steps of an env step: the reward, and whether the episode terminated or was truncated."""
        self.actions.append(np.array(action, np.float32))
        meant = self._meant(action)
        total, terminated, truncated = 0.0, False, False
        for _ in range(self.action_repeat):
            try:
                obs, reward, terminated, truncated, _ = self.env.step(meant)
            except Exception as error:
                if type(error).__name__ != "PhysicsError":  # dm_control's; not imported for Gymnasium tasks
                    raise
                return self._broken(total, f"the simulation became unstable: {error}")
            flat, number = self._flat(obs), number_of(reward)
            if not (np.isfinite(flat).all() and math.isfinite(number)):
                return self._broken(total, "an observation or a reward is not finite")
            self.obs, total = flat, total + number
            if terminated or truncated:
                break
        return total, bool(terminated), bool(truncated)

    def _meant(self, action: Floats) -> Any:
        """The action as the task takes it."""
        space = self.actions_of_task
        if isinstance(space, spaces.Discrete):
            return int(space.start) + int(action[0])
        exact: Any = action if is_real(space) else action.astype(np.float64)
        return action_at(space, (np.clip(exact, -1, 1) + 1) / 2)

    def _broken(self, reward: float, why: str) -> tuple[float, bool, bool]:
        warn(f"episode {self.episode} (seed {self.seed}) ended early: {why}")
        return reward, False, True

    def _flat(self, obs: Any) -> Floats:
        flat = np.asarray(spaces.flatten(self.env.observation_space, obs), np.float32)
        return flat if self.spaces.levels in (None, 1) else flat / np.float32(self.spaces.levels)

    def state(self) -> dict[str, Any]:
        """Seed, episode number, actions since the reset ``[steps, act_dim]``, newest observation, all steps."""
        actions = np.array(self.actions, np.float32).reshape(-1, self.spaces.act_dim)
        return {"seed": self.seed, "episode": self.episode, "actions": actions, "obs": self.obs, "steps": self.steps}

    def restore(self) -> Floats:
        """Play the episode of the state in `saved` up to where it was, and return the newest observation.

        Raises:
            ValueError: the replay ends at another observation. The simulator is another version, or the environment
                draws numbers that do not come from the seed.
        """
        state = self.saved
        self.episode = state["episode"] - 1
        self.steps = state["steps"] - len(state["actions"])
        self.reset()
        for action in np.asarray(state["actions"]):
            self.step(action)
        if not np.array_equal(self.obs, state["obs"]):
            raise ValueError(
                f"replaying episode {self.episode} (seed {self.seed}) ended at another observation than was saved. "
                "The simulator is another version, or the environment draws numbers that reset(seed=...) does not seed "
                "(it seeds self.np_random)"
            )
        return self.obs


class Cap(gym.wrappers.TimeLimit):
    """The time limit of a task that has none."""


def task_names() -> list[str]:
    """The short names of all DeepMind Control tasks (``cheetah-run``, ...)."""
    no_display = not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    if no_display and ctypes.util.find_library("EGL"):  # a task (quadruped-escape) draws its terrain while it trains
        os.environ.setdefault("MUJOCO_GL", "egl")  # read when dm_control is imported
    if os.environ.get("MUJOCO_GL") == "egl":
        with suppress(ImportError):  # Mesa's EGL and triton, which CUDA builds of torch import, each have an LLVM:
            import triton  # noqa: F401  loaded after Mesa's it crashes the process
    with _quiet():
        from dm_control.suite import ALL_TASKS
    return sorted(f"{domain}-{task}" for domain, task in ALL_TASKS)


def check_name(name: str) -> None:
    """Import the module of ``gym:MODULE:ID``, and check that a task of that name exists.

    Raises:
        SettingsError: no such task (the message has the nearest names), or the module cannot be imported.
    """
    prefix = "gym:"
    if module := plugins.module_of(name):
        plugins.load_one(module, f"env {name!r}")
        prefix = f"gym:{module}:"
    task = name.removeprefix(prefix)
    others = [*(f"minatar:{game}" for game in GAMES), *(prefix + one for one in gym.registry)]
    if name in others or name in (known := [*task_names(), *others]):
        return
    space = task.rpartition("/")[0]
    if space and not any(one.startswith(f"{space}/") for one in gym.registry):
        needed = f"install its package, and name the module that does: env=gym:MODULE:{task}"
        ale = ", for ALE pip install ale-py and gym:ale_py:ALE/Pong-v5"
        raise SettingsError(f"unknown env {name!r}: no imported module registers {space}/; {needed}{ale}")
    nearest_ones = ", ".join(difflib.get_close_matches(name, known, n=3, cutoff=0.3))
    raise SettingsError(f"unknown env {name!r}; nearest: {nearest_ones} (or minatar:NAME, gym:NAME, gym:MODULE:NAME)")


def make_env(
    name: str,
    seed: int,
    action_repeat: Annotated[int, Setting("simulator steps per action", least=1)] = 1,
    render: Mapping[str, Any] = NOTHING,
    *,
    sequence: Annotated[
        Sequence[str], Setting("tasks to train on in turn, env first; the first one follows the last")
    ] = (),
    switch_every_env_steps: Annotated[
        int | None, Setting("env steps per task, before the next task or the next change", least=1)
    ] = None,
    changes: Annotated[Sequence[str], Setting(f"random changes that make each new task: {', '.join(KINDS)}")] = (),
    shift_std: Annotated[float, Setting("standard deviation of observation_shift", least=0)] = 1.0,
    dynamics_factor: Annotated[
        float, Setting("largest factor by which gravity, friction, masses and motor strengths change", least=1)
    ] = 2.0,
    max_episode_steps: Annotated[
        int | None,
        Setting("simulator steps per episode; null: the task's own limit, or 1000 if it has none", least=1),
    ] = None,
    wrappers: Annotated[
        Sequence[str],
        Setting(
            "wrappers, innermost first: MODULE:CLASS or a class of gymnasium.wrappers; env.kwargs.NAME=VALUE "
            "and env.kwargs.CLASS.NAME=VALUE set arguments of the environment and of a wrapper"
        ),
    ] = (),
    kwargs: Mapping[str, Any] = NOTHING,
    change_seed: int = 0,
) -> Control:
    """One environment: a DeepMind Control task's short name, ``minatar:`` and a game, or ``gym:`` and a Gymnasium id.

    The id may name the module that registers it: ``gym:my_module:Id-v0``.

    Args:
        render: arguments of ``gym.make``: ``render_mode``, and others of the task's pictures.
        kwargs: arguments of the task, and of a wrapper by the name of its class: ``{"StickyAction": {...}}``.
        wrappers: ``module:Class``, or a class of ``gymnasium.wrappers``, from the innermost to the outermost.
        max_episode_steps: simulator steps after which an episode is truncated; None: the task's own limit, or `LONGEST`
            if it has none.
        sequence: names of tasks that follow each other, in place of `name`.
        switch_every_env_steps: see `Control`.
        changes, change_seed, shift_std, dynamics_factor: see `Changing`.

    Raises:
        ValueError: an unknown name (the message has the nearest ones), a task or wrapper that cannot be made, a task
            with other actions than discrete ones or bounded continuous ones, or see `Changing`.
    """
    envs = [_made(one, seed, render, dict(kwargs), wrappers, max_episode_steps) for one in sequence or (name,)]
    env = envs[0]
    if sequence or changes:
        env = Changing(envs, changes, change_seed, shift_std=shift_std, dynamics_factor=dynamics_factor)
    return Control(env, seed, action_repeat, switch_every_env_steps)


def _made(
    name: str, seed: int, render: Mapping[str, Any], kwargs: dict[str, Any], wrappers: Sequence[str], limit: int | None
) -> Env:
    """A task with its wrappers and a time limit."""
    check_name(name)
    try:
        kinds = [*map(wrapper_class, wrappers)]
        around = [partial(kind, **kwargs.get(kind.__name__, {})) for kind in kinds]
        for kind in kinds:  # one may be named twice
            kwargs.pop(kind.__name__, None)
        with _quiet():
            made = _task(name, seed, render, kwargs, limit)
            for wrap in around:
                made = wrap(made)
    except SettingsError:
        raise
    except Exception as error:  # whatever the task's author raises
        raise ValueError(f"{name} cannot be made: {first_line(error)}") from error
    image = image_of(made.observation_space)
    if name.startswith("gym:") and image is not None and image[2] < min(image[:2]):  # its channels come last
        made = channels_first(made)
    bare = made.unwrapped  # its own limit: an attribute of dm_control and MinAtar, and one of MiniGrid
    own = getattr(bare, "_step_limit", getattr(bare, "max_steps", None)) or math.inf
    if limit and limit > own and not name.startswith("minatar:"):
        raise SettingsError(f"env.max_episode_steps={limit} must be at most {own:g}, the limit of {name} itself")
    has_limit = (made.spec and made.spec.max_episode_steps) or own < math.inf
    return made if has_limit else Cap(made, LONGEST)


def _task(name: str, seed: int, render: Mapping[str, Any], kwargs: Mapping[str, Any], limit: int | None) -> Env:
    """A task as its own package makes it."""
    if name.startswith("minatar:"):
        game = MinAtar(name.removeprefix("minatar:"), **{**kwargs, **render})
        return gym.wrappers.TimeLimit(game, limit or TIME_LIMIT)
    make = partial(gym.make, disable_env_checker=True, max_episode_steps=limit)
    if name.startswith("gym:"):
        return make(name.removeprefix("gym:"), **{**kwargs, **render})
    import shimmy  # noqa: F401  registers them

    # some tasks (lqr) draw their model when they are made, so that needs a seed too
    return make(f"dm_control/{name}-v0", task_kwargs=dict(random=derive(seed, 0) % 2**32, **kwargs), **render)


def wrapper_class(word: str) -> Any:
    """The class of wrappers that ``module:Class`` names; without a module it is one of ``gymnasium.wrappers``.

    Raises:
        SettingsError: there is none, or it cannot be resumed.
    """
    module, _, name = word.rpartition(":")
    if module not in plugins.HARMLESS:
        plugins.load_one(module, f"env.wrappers {word!r}")
    found = vars(importlib.import_module(module or "gymnasium.wrappers"))
    kinds = {n: kind for n, kind in found.items() if isinstance(kind, type) and issubclass(kind, gym.Wrapper)}
    if name not in kinds:
        raise SettingsError(f"env.wrappers: unknown {word!r}{nearest(name, kinds)}")
    if kinds[name].__name__ in NOT_FOR_RUNS:
        raise SettingsError(
            f"env.wrappers: {name} is refused: it keeps what no checkpoint holds, or shows or writes pictures"
        )
    return kinds[name]


def channels_first(env: Env) -> Env:
    """The task with images ``[height, width, channels]`` as ``[channels, height, width]``."""
    space: Any = env.observation_space
    low, high = (np.moveaxis(bound, -1, 0) for bound in (space.low, space.high))
    box = spaces.Box(low, high, dtype=space.dtype)
    return gym.wrappers.TransformObservation(env, lambda image: np.moveaxis(image, -1, 0), box)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide complaints of the simulator that no user can act on: no display, deprecated words in its own files."""
    import absl.logging

    verbosity = absl.logging.get_verbosity()
    absl.logging.set_verbosity(absl.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        absl.logging.set_verbosity(verbosity)
