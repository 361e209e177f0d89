"""The text of ``--help``: the common settings, or the settings that the user names."""

import re
import textwrap
from collections.abc import Sequence
from typing import Any

from rl_plasticity import plugins
from rl_plasticity.configs import presets as files
from rl_plasticity.configs.commands import (
    DEFAULT_PRESET,
    EACH_TASK,
    GROUPS,
    Supervised,
    Train,
    called,
    own_settings,
    presets,
)
from rl_plasticity.configs.kinds import KINDS
from rl_plasticity.configs.schema import chosen, names_of
from rl_plasticity.configs.written import as_written
from rl_plasticity.errors import SettingsError, nearest, shown
from rl_plasticity.settings import Declared, settings_of

# The settings that ``--help`` of a training command shows: those that most people set.
FIRST: dict[type[Any], dict[str, tuple[str, ...]]] = {
    Train: {
        "Common": ("env", "reg", "reset", "preset", "seeds", "total_env_steps", "out", "resume", "from"),
        "Agent": ("replay_ratio", "batch_size", "agent.hidden", "agent.layer_norm", "agent.lr"),
        "Environment": ("env.action_repeat", "env.switch_every_env_steps"),
        "Machine": ("device", "threads"),
    },
    Supervised: {
        "Common": ("task", "data", "net", "reg", "reset", "preset", "seeds", "out", "resume", "from"),
        "Training": ("num_tasks", "epochs_per_task", "batch_size", "optimizer", "lr"),
        "Machine": ("device", "threads"),
    },
}


def describe(kind: type[Any], asked: Sequence[str], width: int) -> str:
    """The text of ``--help`` with these other arguments, in lines of this width.

    Without any: the settings that most people set. ``all``: everything. ``reg`` or ``reg=spectral``: the settings of
    that group or choice. Any other setting: its line. A command with few settings shows them all.

    Raises:
        SettingsError: an unknown name.
    """
    if kind not in FIRST or "all" in asked:
        text = everything(kind)
    elif names := [a for a in asked if a.partition("=")[0] not in ("plugins", "preset")]:
        text = "\n\n".join(_asked(kind, *name.partition("=")[::2]) for name in names)
    else:
        text = _first(kind)
    return "\n".join(_wrapped(line, width) for line in text.split("\n"))


def _first(kind: type[Any]) -> str:
    lines = []
    for heading, names in FIRST[kind].items():
        lines += [f"{heading}:", *(_line(kind, name) for name in names), ""]
    for more, words in {
        "all": "every setting, what presets set",
        "reg": "the settings of every regularizer",
        "reg=spectral": "those of one choice",
    }.items():
        lines.append(f"  {f'--help {more}':34} {words}")
    return "\n".join(lines)


def _asked(kind: type[Any], name: str, choice: str) -> str:
    """The text about a group, one of its choices, or a setting."""
    group = name.partition(".")[0]
    if group not in GROUPS[kind]:
        return _line(kind, name)
    if choice and name == group != "env":
        chosen(group, choice, kind)  # or an error that names the nearest
        return "\n".join([f"{group}={choice}", *_of_choice(kind, group, choice), *_of_any(kind, group)])
    lines = [_line(kind, group), *_of_group(kind, group)]
    return "\n".join(line for line in lines if name == group or line.startswith(f"    {name}=")) or _line(kind, name)


def _line(kind: type[Any], name: str) -> str:
    """The line of a group or a setting, with its default."""
    if name in GROUPS[kind]:
        choices = ", ".join(names_of(name))
        if name == "env":
            choices = (
                "task of DeepMind Control (cheetah-run), MinAtar (minatar:breakout) or Gymnasium (gym:Pendulum-v1)"
            )
        return f"  {f'{name}={KINDS[name].default}':34} {choices}"
    if name == "preset":
        return f"  {f'preset={DEFAULT_PRESET[kind]}':34} {', '.join(presets(kind))}"
    group, dot, _ = name.partition(".")
    there = own_settings(kind) | settings_of(plugins.load)
    if dot and group in GROUPS[kind]:
        there = {f"{group}.{n}": d for n, d in chosen(group, KINDS[group].default, kind).settings.items()}
    if name not in there:
        raise SettingsError(f"unknown setting {shown(name)}{nearest(name, [*there, *GROUPS[kind], 'preset', 'all'])}")
    return _described(name, there[name])


def everything(kind: type[Any]) -> str:
    """All groups with their choices, the presets, and all settings with their defaults."""
    lines: list[str] = []
    if GROUPS[kind]:
        lines.append("Groups, each with its default and what there is:")
        lines += [_line(kind, name) for name in (*GROUPS[kind], "preset")]
        lines += ["", "  reg=spectral+l2 chains regularizers. A list trains its members side by side, each with"]
        lines += ["  every seed: reg=[none,spectral], reg.coef=[1e-5,1e-4], reset=[none,periodic], whose"]
        lines += ["  settings are reset.periodic.every_updates=...; reg=[all] is every one of them"]
        lines += ["", "What a preset sets; what you give besides has the last word:"]
        lines += files.described(called(kind), as_written)
        lines += ["", "Settings of a choice, each with its default:"]
        lines += [line for group in GROUPS[kind] for line in _of_group(kind, group)]
        lines.append("")
    lines.append("Settings, each with its default:")
    every = own_settings(kind) | settings_of(plugins.load)
    return "\n".join([*lines, *(_described(name, declared) for name, declared in every.items())])


def _of_group(kind: type[Any], group: str) -> list[str]:
    """The settings of every choice of a group."""
    lines = []
    for choice in KINDS[group].names:
        own = _of_choice(kind, group, choice)
        lines += [f"  {group}={choice}", *own] if own else []
    return lines + _of_any(kind, group)


def _common(kind: type[Any], group: str) -> dict[str, Declared]:
    return {n: d for n, d in KINDS[group].shared().items() if n != "render"}


def _of_any(kind: type[Any], group: str) -> list[str]:
    lines = [f"  {_described(f'{group}.{name}', d)}" for name, d in _common(kind, group).items()]
    return [f"  {group}, any", *lines] if lines else []


def _of_choice(kind: type[Any], group: str, choice: str) -> list[str]:
    """The settings of one choice, without those that every choice has."""
    common = _common(kind, group)
    settings = chosen(group, choice, kind).flat(group)
    settings = {n: d for n, d in settings.items() if n.rpartition(".")[2] not in common}
    if kind is Supervised and "reset.every_tasks" in settings:
        for name, value in EACH_TASK.items():
            settings[f"reset.{name}"] = settings[f"reset.{name}"]._replace(default=value)
    lines = [f"  {_described(name, d)}" for name, d in settings.items()]
    for other in KINDS[group].inner_names(choice)[1:]:
        lines.append(f"  {group}={choice} {group}.{KINDS[group].inner[0]}={other}")
        theirs = chosen(group, choice, kind, other).flat(group)
        lines += [f"  {_described(name, d)}" for name, d in theirs.items() if name not in settings]
    return lines


def _wrapped(line: str, width: int) -> str:
    """A setting's line; if it is too long, its words are wrapped below each other."""
    setting = re.match(r" +[\w.]+=\S* +", line)
    if len(line) <= width or not setting:
        return line
    words = textwrap.wrap(line[setting.end() :], width - setting.end(), break_on_hyphens=False)
    return setting[0] + ("\n" + " " * setting.end()).join(words)


def _described(name: str, declared: Declared) -> str:
    words = f"{declared.setting.help} ({declared.expected})" if declared.setting.help else declared.expected
    return f"  {f'{name}={as_written(declared.default)}':34} {words}"
