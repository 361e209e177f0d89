"""The table of regularizers by name, and the function that makes one from it."""

import copy
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_plasticity.errors import SettingsError, choose
from rl_plasticity.plugins import Choices
from rl_plasticity.regularizers.base import Regularizer
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
    if structure is None and not (example is None and heads is None and roles is None and only is None):
        structure = read(net, example, heads=heads, roles=roles, only=only)
    kind = make.func  # type: ignore[attr-defined]
    regularizer: Regularizer = kind.__new__(kind)
    regularizer.__dict__["structure"] = structure  # see the base class's constructor
    kind.__init__(regularizer, net, **make.keywords)  # type: ignore[attr-defined]
    regularizer.require_acting()
    _require_strength(regularizer, settings)
    if regularizer.runs and not type(regularizer).__module__.startswith("rl_plasticity."):
        _require_runs_apart(regularizer, net)
    if structure is not None:
        regularizer.structure = dataclasses.replace(structure, example=None)  # no longer needed
    return regularizer


def _require_runs_apart(regularizer: Regularizer, net: nn.Module) -> None:
    """Raises SettingsError if a plug's penalty of one run depends on the weights of another."""
    if not regularizer.penalizes or regularizer.looks_at_data or regularizer.runs[0] < 2:
        return
    regularizer, net = copy.deepcopy((regularizer, net))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # at the first weights a gradient may be 0
        for p in net.parameters():
            p.mul_(1 + 0.1 * torch.randn(p.shape, generator=generator).to(p))
    with torch.enable_grad():
        penalty = regularizer.penalty(net)
        trained = [p for p in net.parameters() if p.requires_grad]
        found = torch.autograd.grad(penalty[0].sum(), trained, allow_unused=True) if penalty.requires_grad else []
    if any(g is not None and bool(g[1:].any()) for g in found):
        kind = type(regularizer).__name__
        raise SettingsError(
            f"{kind}: the penalty of a run depends on the weights of another: reduce over a weight's last two axes, as "
            "torch.linalg.matrix_norm does"
        )


def _require_strength(regularizer: Regularizer, settings: Mapping[str, Any]) -> None:
    """Raises SettingsError if the class takes a coef and has a term, but does not pass the coef on."""
    kind, declared = type(regularizer), settings_of(type(regularizer)).get("coef")
    if declared is None or not regularizer.penalizes or regularizer.coef.any():
        return
    coef = settings.get("coef", declared.default)
    if coef is not None and torch.as_tensor(coef).any() and kind.penalty is Regularizer.penalty:
        words = f"{kind.__name__} has strength 0 although coef is {coef}"
        raise SettingsError(f"{words}: its constructor must call super().__init__(net, coef)")


REGULARIZERS: Choices[type[Regularizer]] = Choices("REGULARIZERS")
"""Regularizer classes by the name that ``reg=`` takes; each is called as ``kind(net, **settings)``."""
