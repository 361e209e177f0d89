"""What an optimizer keeps of the weights it trains. A trial shows it: an optimizer like it trains a parameter."""

import inspect
import math
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from rl_plasticity.seeding import random_states_kept

STEPS = 6  # with gradients; then at least twice as many without any, as copies are looked up every few steps
LONGEST = 100  # steps without gradients
RATE = 1e-6  # so that what moves the small parameter without a gradient is not the step, but a copy
FAR = 0.05  # of the way back


class Kept(NamedTuple):
    """What an optimizer keeps for each parameter.

    Attributes:
        kinds: of each state of the parameter's shape, by name.
        undoes: whether it brings back weights that somebody else changed.
        follows: whether such weights stay if moments become zero there and copies change alike.
    """

    kinds: Mapping[str, Literal["moment", "copy", "other"]]  # a moment is zero at first
    undoes: bool
    follows: bool


def wrapped(optimizer: Any) -> list[Any]:
    """The optimizer and those that it wraps; the innermost comes last."""
    inner = _inside(optimizer)
    return [optimizer, *(wrapped(inner) if inner is not None else ())]


def _inside(optimizer: Any) -> torch.optim.Optimizer | None:
    """The optimizer that this one wraps: an attribute of any name that trains all that this one trains."""
    for found in (getattr(optimizer, "optimizer", None), *getattr(optimizer, "__dict__", {}).values()):
        if (
            isinstance(found, torch.optim.Optimizer)
            and found is not optimizer
            and _trained(optimizer) <= _trained(found)
        ):
            return found
    return None


def _trained(optimizer: Any) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def states_of(optimizer: Any, parameter: Tensor) -> dict[str, Any]:
    """What the optimizer and those that it wraps keep for a parameter, by name."""
    return {k: v for one in wrapped(optimizer) for k, v in getattr(one, "state", {}).get(parameter, {}).items()}


def kept(optimizer: Any, parameter: Tensor) -> Kept | None:
    """What `optimizer` keeps for `parameter`; None if another one of its kind cannot be made, or cannot be tried."""
    held = [any(p is parameter for p in group["params"]) for group in optimizer.param_groups]
    if not any(held):
        return None
    known = _KNOWN.setdefault(optimizer, {})
    key = held.index(True), parameter.ndim, parameter.dtype, parameter.device
    if key not in known:
        known[key] = None
        for one in wrapped(optimizer):  # a wrapper of a library may need what is not known here
            with suppress(Exception), random_states_kept([parameter]), torch.enable_grad():
                known[key] = _tried(one, key[0], parameter)
                break
    return known[key]


def undoing(optimizers: Sequence[Any], net: nn.Module) -> str | None:
    """The name of an optimizer that brings back weights of `net` that other code changes, or None."""
    for optimizer in optimizers:
        for parameter in net.parameters():
            if (known := kept(optimizer, parameter)) is not None and known.undoes:
                return type(optimizer).__name__
    return None


_KNOWN: "weakref.WeakKeyDictionary[Any, dict[Any, Kept | None]]" = weakref.WeakKeyDictionary()


def _tried(optimizer: Any, number: int, parameter: Tensor) -> Kept:
    shape = [4, 3, 3, 3, 3][: max(1, parameter.ndim)]  # a single number's moments would look like counts

    def wave(phase: float) -> Tensor:
        return torch.sin(torch.arange(math.prod(shape)) * 1.7 + phase).reshape(shape).to(parameter)

    def trained(gradients: Sequence[Tensor], rate: float = RATE) -> tuple[nn.Parameter, Any]:
        small = nn.Parameter(wave(0.3) + 2)
        trial, _ = _like(optimizer, number, small, rate)
        for gradient in gradients:
            _step(trial, small, gradient)
        return small, trial

    waves, changed, new = [wave(i) for i in range(STEPS)], torch.arange(shape[0]) % 2 == 0, -wave(0.9) - 2
    first = _states(*trained([wave(0) * 0], 1.0))
    small, trial = trained(waves)
    old, states = small.detach().clone(), _states(small, trial)
    kinds = {name: _kind(state, first.get(name), old) for name, state in states.items() if state.shape == old.shape}

    @torch.no_grad()
    def change_(told: bool) -> bool:
        """Change some of the entries of `small`, and tell whether they move back."""
        small[changed] = new[changed]
        for name, state in _states(small, trial).items() if told else ():
            if kinds.get(name) in ("moment", "copy"):
                state[changed] = new[changed].to(state) if kinds[name] == "copy" else 0
        for _ in range(_like(optimizer, number, small, RATE)[1]):
            _step(trial, small, wave(0) * 0)
        if callable(evaluate := getattr(trial, "eval", None)):  # some then show an average of the weights
            evaluate()
        return not bool(((small - new)[changed].abs() <= FAR * (old - new)[changed].abs()).all())  # or not a number

    undoes = change_(told=False)
    small, trial = trained(waves)
    return Kept(kinds, undoes, not change_(told=True))


def _states(small: Tensor, trial: Any) -> dict[str, Tensor]:
    return {name: state for name, state in states_of(trial, small).items() if isinstance(state, Tensor)}


def _kind(state: Tensor, first: Tensor | None, parameter: Tensor) -> Literal["moment", "copy", "other"]:
    """The kind of a state, from its value after a step without a gradient (`first`) and after some with gradients."""
    if torch.allclose(state.to(parameter), parameter, rtol=0.02):
        return "copy"
    is_zero = first is not None and first.is_floating_point() and bool((first.abs() < 1e-5).all())
    return "moment" if is_zero else "other"


def _like(optimizer: Any, number: int, small: nn.Parameter, rate: float) -> tuple[Any, int]:
    """An optimizer of the same class and settings that trains `small`, and the number of steps to watch it."""
    inner = _inside(optimizer)
    names = [*inspect.signature(type(optimizer).__init__).parameters][2:]
    own = {name: value for name, value in vars(optimizer).items() if name in names}
    group = {n: v for n, v in optimizer.param_groups[number].items() if n in names or isinstance(v, bool | str)}
    settings = {**getattr(optimizer, "defaults", {}), **group, **own}
    settings |= {name: 0.0 for name in settings if name == "weight_decay"}
    if "lr" in settings:
        settings["lr"] = rate + 0 * settings["lr"]
    given = {name: value for name, value in settings.items() if name in names}
    steps = 2 * max([STEPS, *(v for v in given.values() if type(v) is int and v <= LONGEST // 2)])
    if inner is not None:
        wrapped, its_steps = _like(inner, number, small, rate)
        trial, steps = type(optimizer)(wrapped, **given), max(steps, its_steps)
    else:
        trial = type(optimizer)([settings | {"params": [small]}], **given)
    if callable(train := getattr(trial, "train", None)):
        train()
    return trial, steps


def _step(trial: Any, small: nn.Parameter, gradient: Tensor) -> None:
    def closure() -> Tensor:
        small.grad = gradient.clone()
        return (small.detach() * gradient).sum()

    closure()
    try:
        trial.step()
    except Exception:  # some take no step without it
        trial.step(closure)
