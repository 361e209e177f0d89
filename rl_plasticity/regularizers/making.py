"""Every regularizer by its name, and the one function that makes them."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from rl_plasticity.errors import SettingsError, choose
from rl_plasticity.regularizers.base import GIVEN, Regularizer
from rl_plasticity.regularizers.windowed import Windowed
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
    from_update: int = 0,
    until_update: int | None = None,
    **settings: Any,
) -> Regularizer:
    """The regularizer called `name` for `net`, with its settings by keyword.

    Args:
        example: real inputs for one call of the network, where it cannot be read without: a tensor, a tuple of
            arguments or a mapping of named ones.
        heads, roles, only: see `rl_plasticity.structure.read`.
        structure: what `read` gave, instead of these.
        from_update, until_update: the updates in which it is switched on, see `Windowed`; all by default.

    Raises:
        SettingsError: an unknown name or setting (the nearest valid one is named), or a setting out of range.
        ValueError: the network has nothing that the method can act on, or what it must know cannot be read.
    """
    if name not in REGULARIZERS and "+" in name:
        raise SettingsError(f"{name!r}: several regularizers are one as Chain(net, make_regularizer(...), ...)")
    make = choose(REGULARIZERS, name, settings, "regularizer")
    if structure is None and not (example is None and heads is None and roles is None and only is None):
        structure = read(net, example, heads=heads, roles=roles, only=only)
    token = GIVEN.set(None if structure is None else (net, structure))
    try:
        regularizer = make(net)
    finally:
        GIVEN.reset(token)
    if structure is not None:
        regularizer.structure = dataclasses.replace(structure, example=None)  # which nothing needs any longer
    if (from_update, until_update) == (0, None):
        return regularizer
    return Windowed(net, regularizer, from_update, until_update)


REGULARIZERS: dict[str, type[Regularizer]] = {}
"""What ``reg=`` chooses from, each called as ``kind(net, **settings)``."""
