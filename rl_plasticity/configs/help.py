"""The text of ``--help``: the settings of the command, and of the choices that the user names."""

import textwrap
from collections.abc import Sequence
from typing import Any

from rl_plasticity.configs.commands import DEFAULT_PRESET, GROUPS, presets
from rl_plasticity.configs.kinds import KINDS
from rl_plasticity.configs.schema import declared_by, names_of
from rl_plasticity.configs.written import as_written
from rl_plasticity.settings import Declared


def describe(kind: type[Any], asked: Sequence[str], width: int) -> str:
    """The groups with their choices, and all settings with their defaults; those of the choices `asked` for or usual.

    Raises:
        SettingsError: an unknown choice.
    """
    chosen = {group: KINDS[group].default for group in GROUPS[kind]} | dict(a.split("=", 1) for a in asked if "=" in a)
    lines = [
        _line(group, chosen[group], ", ".join(names_of(group)) or "a task, gym:NAME or minatar:NAME", width)
        for group in GROUPS[kind]
    ]
    if kind in DEFAULT_PRESET:
        lines.append(_line("preset", DEFAULT_PRESET[kind], ", ".join(presets(kind)), width))
        lines += ["", "reg=spectral+l2 chains regularizers; reg=[none,spectral] trains its members side by side."]
        lines += ["--help reg=NAME shows the settings of another choice.", ""]
    declared = declared_by(kind, {group: chosen[group] for group in GROUPS[kind]})
    return "\n".join([*lines, *(_described(name, one, width) for name, one in declared.items())])


def _described(name: str, declared: Declared, width: int) -> str:
    words = f"{declared.setting.help} ({declared.expected})" if declared.setting.help else declared.expected
    return _line(name, as_written(declared.default), words, width)


def _line(name: str, value: str, words: str, width: int) -> str:
    wrapped = textwrap.wrap(words, max(20, width - 36), break_on_hyphens=False) or [""]
    return f"  {f'{name}={value}':33} " + f"\n{' ' * 36}".join(wrapped)
