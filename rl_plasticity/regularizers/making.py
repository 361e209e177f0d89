"""The table of regularizers by name, and the function that makes one from it."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_plasticity.errors import SettingsError, choose
from rl_plasticity.plugins import Choices
from rl_plasticity.regularizers.base import Regularizer, made
from rl_plasticity.settings import settings_of
from rl_plasticity.structure import Example, Structure, read


def make_regularizer(
    name: str,
    net: nn.Module,
    *,
    example: Example | None = None,
    heads: Sequence[str] | None = None,
    roles: Mapping[str, str] | None = None,
    only: Iterable[Tensor] | None = None,
    structure: Structure | None = None,
    **settings: Any,
) -> Regularizer:
    """Create the regularizer called `name` for `net`.

    Args:
        name: a key of `REGULARIZERS`, such as "spectral".
        net: the network to keep plastic.
        example: real inputs for one call of the network, for networks whose structure cannot be read without a call: a
            tensor, a tuple of arguments, or a mapping of named ones.
        heads, roles, only: see `rl_plasticity.structure.read`.
        structure: the result of `read`, instead of these.
        **settings: the method's own settings, such as ``coef=1e-4``.

    Raises:
        SettingsError: a name or setting is unknown (the nearest valid one is named), or a setting is out of range.
        ValueError: the network has nothing that the method can act on, or something it must know cannot be read.
    """
    if name not in REGULARIZERS and "+" in name:
        raise SettingsError(f"{name!r}: combine several regularizers with Chain(net, make_regularizer(...), ...)")
    make = choose(REGULARIZERS, name, settings, "regularizer")
    if structure is None and any(given is not None for given in (example, heads, roles, only)):
        structure = read(net, example, heads=heads, roles=roles, only=only)
    kind = make.func  # type: ignore[attr-defined]
    if not (isinstance(kind, type) and issubclass(kind, Regularizer)):
        raise SettingsError(f"REGULARIZERS[{name!r}] must be a subclass of Regularizer, got {kind!r}")
    regularizer: Regularizer = made(kind, structure, net, **make.keywords)  # type: ignore[attr-defined]
    regularizer.require_acting()
    declared = settings_of(kind).get("coef")
    coef = settings.get("coef", declared and declared.default)
    if coef is not None and torch.as_tensor(coef).any() and regularizer.penalizes and not regularizer.coef.any():
        name = type(regularizer).__name__
        raise SettingsError(f"{name} has strength 0 although coef is {coef}: call super().__init__(net, coef) in it")
    if regularizer.runs and not type(regularizer).__module__.startswith("rl_plasticity."):
        _require_runs_apart(regularizer, net)
    return regularizer


def _require_runs_apart(regularizer: Regularizer, net: nn.Module) -> None:
    """Raises SettingsError if a plug's penalty of one run depends on the weights of another."""
    if not regularizer.penalizes or regularizer.looks_at_data or regularizer.runs[0] < 2:
        return
    of_first = []
    for change in (0, 1):
        method, copied = copy.deepcopy((regularizer, net))
        with torch.no_grad():
            for p in copied.parameters():
                p[1:] += change
            of_first.append(method.penalty(copied)[0])
    # Both may be NaN: a run stops where it is not finite.
    if not torch.allclose(of_first[0], of_first[1], rtol=0, atol=0, equal_nan=True):
        kind = type(regularizer).__name__
        raise SettingsError(
            f"{kind}: the penalty of a run depends on the weights of another: reduce over a weight's last two axes, as "
            "torch.linalg.matrix_norm does"
        )


REGULARIZERS: Choices[type[Regularizer]] = Choices("REGULARIZERS")
"""Regularizer classes by the name that ``reg=`` takes; each is called as ``kind(net, **settings)``."""
