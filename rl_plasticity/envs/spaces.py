"""What a task must give and take: observations that are vectors, actions in a range, rewards that are numbers."""

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_plasticity.errors import shown

Env = gym.Env[Any, Any]
VECTORS = spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
MOST = 2**24  # integers that the random actions, which are float32 numbers in [-1, 1], can all reach
WIDEST = 1e12  # range of real actions: a wider one stands for no range at all
UNUSUAL = 100  # the size of actions from which on a line says so


def actions_of(env: Env) -> spaces.Box | spaces.Discrete:
    """The space of an environment's actions.

    Raises:
        ValueError: they are neither discrete nor one-dimensional, in a range of at most `WIDEST` or of `MOST` integers.
    """
    space = env.action_space
    if isinstance(space, spaces.Box) and len(space.shape) == 1 and space.shape[0] and space.is_bounded():
        if width_of(space).max() <= (min(WIDEST, float(np.finfo(space.dtype).max)) if is_real(space) else MOST):
            return space
        bounds = f"{float(space.low.min()):g} to {float(space.high.max()):g}"
        raise ValueError(f"{name_of(env)} has actions from {bounds}, too wide a range: [-1, 1] is usual")
    if isinstance(space, spaces.Discrete) and space.n <= MOST:
        return space
    raise ValueError(f"a task with discrete or bounded continuous actions is needed, {name_of(env)} has {space}")


def size_of(env: Env) -> int:
    """The number of numbers in an environment's observation.

    Raises:
        ValueError: a part of it is no vector of a fixed length, or it has no number, or too many.
    """
    space = env.observation_space
    parts = dict(_parts(space))
    if bad := [path for path, part in parts.items() if not isinstance(part, VECTORS)]:
        others = {str(key) for key, *_ in filter(None, parts)} - {str(key) for key, *_ in filter(None, bad)}
        helps = "a wrapper must make numbers of it, env.wrappers=[MODULE:CLASS]"
        if others and isinstance(space, spaces.Dict | spaces.Tuple):
            keys = f"env.kwargs.FilterObservation.filter_keys=[{','.join(sorted(others))}]"
            helps = f"leave it out, env.wrappers=[gymnasium.wrappers:FilterObservation] {keys}"
        where = "".join(f"[{key!r}]" for key in bad[0])
        raise ValueError(
            f"{name_of(env)}: its observation{where}, {parts[bad[0]]}, is not a vector of numbers; {helps}"
        )
    sizes = [spaces.flatdim(part) for part in parts.values()]
    size = spaces.flatdim(space) if all(sizes) else 0
    if not 0 < size <= MOST:
        raise ValueError(
            f"{name_of(env)} has observations, or a part of them, of {size} numbers: 1 to {MOST} are possible"
        )
    return size


def is_real(space: gym.Space[Any]) -> bool:
    """Whether a space holds real numbers; others are integers, or truths."""
    return np.issubdtype(space.dtype, np.floating)


def width_of(space: spaces.Box) -> Any:
    """The upper bounds less the lower ones, exact for integers."""
    return np.subtract(space.high, space.low, dtype=np.longdouble)


def action_at(space: spaces.Box, part: Any) -> Any:
    """The action at fractions of its range, from 0 to 1. Every integer of a range has an equal share of them."""
    if is_real(space):
        return np.clip(space.low + part * (space.high - space.low), space.low, space.high).astype(space.dtype)
    number = np.minimum(np.floor(part * (width_of(space) + 1)), width_of(space)).astype(np.int64)
    return space.low + number.astype(space.dtype)  # of int8, say, both wrap around: to the right integer


def part_of(space: spaces.Box, action: Any) -> Any:
    """The fractions of its range at which an action is, from 0 to 1."""
    low: Any = space.low if is_real(space) else space.low.astype(np.longdouble)
    return (action - low) / np.maximum(space.high - low, np.finfo(low.dtype).tiny)


def number_of(reward: Any) -> float:
    """A reward as a number.

    Raises:
        ValueError: it is not one number.
    """
    array = np.asarray(reward)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise ValueError(f"a reward must be one number, got {shown(reward)}")
    return float(array.item())


def name_of(env: Env) -> str:
    """An environment's id, or the name of its class."""
    return env.spec.id if env.spec else type(env.unwrapped).__name__


def _parts(space: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The innermost spaces, each with the keys that lead to it."""
    inside = getattr(space, "spaces", None)
    if not inside:
        yield path, space
        return
    for key in inside if isinstance(inside, dict) else range(len(inside)):
        yield from _parts(inside[key], (*path, key))
