"""Settings as they are written: ``name=value`` on the command line, keywords in Python.

Written as Hydra's (``env=cheetah-run reg=spectral reg.coef=1e-3``): a group chooses one of the things that the package,
or a plug, offers by name, and ``group.setting`` is an argument of its constructor.
"""

import os
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException

from rl_plasticity.configs.commands import GROUPS, presets
from rl_plasticity.configs.kinds import KINDS
from rl_plasticity.errors import SettingsError, shown
from rl_plasticity.paths import expanded
from rl_plasticity.settings import item_of

PATHS = ("out", "resume", "data.root")  # settings that are taken as they are written


class Given(NamedTuple):
    """One setting that was asked for."""

    name: str
    value: Any
    text: str  # as it was written


def parse(argument: str) -> Given:
    """The name and the value of ``name=value``.

    Raises:
        SettingsError: it cannot be read.
    """
    if path := parse_path(argument):
        return path
    wrong = f"cannot read {shown(argument)}: settings are written name=value"
    override = _override(argument, wrong)
    if override.is_sweep_override():
        require_no_list(argument)
        raise SettingsError(f"{shown(argument)} names several values, one run takes one; for a run of each add -m")
    if override.is_add() or override.is_delete() or override.is_force_add() or override.package:
        raise SettingsError(wrong)
    return Given(override.key_or_group, override.value(), argument)


def require_no_list(argument: str) -> None:
    """Raises SettingsError, with what to write, where ``name=value,value`` was probably meant to be one value."""
    name, _, values = argument.partition("=")
    if name == "seeds":
        first, *others = values.split(",")
        raise SettingsError(
            f"{shown(argument)}: seeds is how many there are, seeds={len(others) + 1}, and the first is seed={first}"
        )
    group, setting = name.partition(".")[0], name.rpartition(".")[2]
    choices = [KINDS[group].settings(choice) for choice in (*KINDS[group].names, "")] if group in KINDS else []
    takes_list = name == "plugins" or any(map(item_of, (k for c in choices if setting in c for k in c[setting].kinds)))
    if takes_list and "[" not in values:
        raise SettingsError(f"{shown(argument)}: {name} is a list, {name}=[{values}]")


def parse_path(argument: str) -> Given | None:
    """A setting of `PATHS` with the path as it was written, whatever characters it has; None for others."""
    name, equals, path = argument.partition("=")
    if name in ("out", "resume") and equals and not path:
        raise SettingsError(f"{name} needs a value: {name}=FOLDER")
    if name not in PATHS or not equals or (name == "data.root" and path == "null"):
        return None
    return Given(name, str(expanded(path)), argument)


def each(kind: type[Any], argument: str) -> list[str]:
    """The arguments that a sweep takes in turn for this one: ``seed=0,1``, ``seed=range(0,10)``, ``reg=glob(w*)``.

    Raises:
        SettingsError: it cannot be read, or names no value.
    """
    name = argument.partition("=")[0]
    if parse_path(argument):
        return [argument]
    override = _override(
        argument, f"cannot read {shown(argument)}: settings are written name=value or name=value,value"
    )
    if not override.is_sweep_override():
        return [argument]
    if override.is_discrete_sweep() and (name != "seeds" or "=0," in argument):  # numbers of seeds may be swept
        require_no_list(argument)
    value = override.value()
    if isinstance(value, Glob):
        choices = presets(kind) if name == "preset" else KINDS[name].names if name in GROUPS[kind] else []
        values = list(value.filter(sorted(choices)))
    elif override.is_discrete_sweep():
        values = list(override.sweep_string_iterator())
    else:
        raise SettingsError(f"{shown(argument)}: expected values or range() or glob(), which can be counted")
    if not values:
        raise SettingsError(f"{shown(argument)} names no value")
    return [f"{name}={member}" for member in values]


def from_python(settings: Mapping[str, Any]) -> list[Given]:
    """Keywords as the settings that they ask for: ``reg="spectral"``, ``reg={"name": "spectral", "coef": 1e-3}``."""
    given = []
    for name, value in settings.items():
        if name in KINDS and isinstance(value, Mapping):
            for n, v in flat_values(value, f"{name}."):
                v = list(v) if isinstance(v, tuple) else v
                given.append(Given(name if n == f"{name}.name" else n, v, f"{n}={v}"))
        else:
            value = list(value) if isinstance(value, tuple) else value
            value = os.fspath(value) if isinstance(value, os.PathLike) else value
            given.append(Given(name, value, f"{name}={value}"))
    return given


def flat_values(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings as pairs of a dotted name and a value: ``{"reg": {"coef": 1}}`` has ``("reg.coef", 1)``."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat_values(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def as_written(value: Any) -> str:
    """A value as the command line takes it."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(as_written, value))}]"
    if isinstance(value, float):
        return f"{value:g}"
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else "null" if value is None else str(value)


# ------------------------------------------------------------------------------------------------------------------


def _override(argument: str, wrong: str) -> Override:
    """Raises SettingsError that says `wrong` if hydra cannot read it."""
    try:
        return _parsed(argument)
    except (HydraException, ValueError) as error:  # an integer of thousands of digits
        raise SettingsError(wrong) from error


@cache  # the runs of a sweep are asked for in the same few words
def _parsed(argument: str) -> Override:
    return _parser().parse_override(argument)


@cache
def _parser() -> OverridesParser:
    return OverridesParser.create()
