"""The text of ``--help``: the choices, and the settings with the values that the user's other arguments give them."""

import textwrap
from collections.abc import Sequence
from typing import Any

from rl_plasticity.configs import presets
from rl_plasticity.configs.commands import DEFAULT_PRESET, GROUPS, called
from rl_plasticity.configs.schema import declared_by, load, names_of
from rl_plasticity.configs.written import as_written, each


def describe(kind: type[Any], asked: Sequence[str], width: int) -> str:
    """The choices of each group, and all settings of the choices that `asked` makes, with their values.

    Raises:
        SettingsError: a bad setting.
    """
    lines: list[str] = []
    values: dict[str, Any] = {}
    names: dict[str, Any] = {}
    if kind in DEFAULT_PRESET:
        values = load(kind, [each(a)[0] for a in asked if "=" in a and not a.startswith("launcher")]).flat
        names = {group: values[f"{group}.name"] for group in GROUPS[kind]}
        valid = {group: names_of(group) or ["a task", "gym:NAME", "minatar:NAME"] for group in names}
        lines = [_line(group, names[group], ", ".join(valid[group]), width) for group in names]
        lines.append(_line("preset", values["preset"], ", ".join(presets.files(called(kind))), width))
        lines += ["", "reg=spectral+l2 uses both at once; reg=[none,spectral] trains a run of each, side by side."]
        lines += ["--help reg=NAME preset=NAME shows the settings of other choices and the values of a preset.", ""]
    for name, declared in declared_by(kind, names, values).items():
        words = f"{declared.setting.help} ({declared.expected})" if declared.setting.help else declared.expected
        lines.append(_line(name, values.get(name, declared.default), words, width))
    return "\n".join(lines)


def _line(name: str, value: Any, words: str, width: int) -> str:
    wrapped = textwrap.wrap(words, max(20, width - 36), break_on_hyphens=False) or [""]
    return f"  {f'{name}={as_written(value)}':33} " + f"\n{' ' * 36}".join(wrapped)
