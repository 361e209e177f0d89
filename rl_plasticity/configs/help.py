"""What ``--help`` says of a command's settings."""

from typing import Any

from rl_plasticity import plugins
from rl_plasticity.configs import presets as files
from rl_plasticity.configs.commands import (
    DEFAULT_PRESET,
    EACH_TASK,
    GROUPS,
    LEFT_OUT,
    Supervised,
    called,
    presets,
)
from rl_plasticity.configs.kinds import KINDS
from rl_plasticity.configs.schema import chosen, names_of
from rl_plasticity.configs.written import as_written
from rl_plasticity.settings import Declared, settings_of


def describe(kind: type[Any]) -> str:
    """All groups with their choices, what presets set, and all settings with their defaults, for ``--help``."""
    lines: list[str] = []
    if GROUPS[kind]:
        lines.append("Groups, each with its default and what there is:")
        for group in GROUPS[kind]:
            choices = "|".join(names_of(group))
            if group == "env":
                choices = "NAME, of DeepMind Control (cheetah-run) or Gymnasium (gym:Pendulum-v1, gym:my_module:My-v0)"
            lines.append(f"  {f'{group}={KINDS[group].default}':34} {choices}")
        lines += [f"  {f'preset={DEFAULT_PRESET[kind]}':34} {'|'.join(presets(kind))}"]
        if "reg" in GROUPS[kind]:
            lines += ["", "  reg=spectral+l2 chains regularizers. A list trains its members side by side, each with"]
            lines += ["  every seed: reg=[none,spectral], reg.coef=[1e-5,1e-4], reset=[none,periodic], whose"]
            lines += ["  settings are reset.periodic.every_updates=...; reg=[all] is every one of them"]
        lines += ["", "What a preset sets; what you give besides has the last word:"]
        lines += files.described(called(kind), as_written)
        lines += ["", "Settings of a choice, each with its default:"]
        for group in GROUPS[kind]:
            left_out = ("env.render", *LEFT_OUT.get(kind, ()))
            common = {n: d for n, d in KINDS[group].shared().items() if f"{group}.{n}" not in left_out}
            for choice in KINDS[group].names:
                settings = chosen(group, choice, kind).flat(group)
                settings = {n: d for n, d in settings.items() if n.partition(".")[2] not in common}
                if kind is Supervised and "reset.every_tasks" in settings:
                    for name, value in EACH_TASK.items():
                        settings[f"reset.{name}"] = settings[f"reset.{name}"]._replace(default=value)
                if settings:
                    lines.append(f"  {group}={choice}")
                lines += [f"  {_described(name, d)}" for name, d in settings.items()]
                for other in KINDS[group].inner_names(choice)[1:]:
                    lines.append(f"  {group}={choice} {group}.{KINDS[group].inner[0]}={other}")
                    theirs = chosen(group, choice, kind, other).flat(group)
                    lines += [f"  {_described(name, d)}" for name, d in theirs.items() if name not in settings]
            if common:
                lines.append(f"  {group}, any")
            lines += [f"  {_described(f'{group}.{name}', d)}" for name, d in common.items()]
        lines.append("")
    lines.append("Settings, each with its default:")
    lines += [_described(name, declared) for name, declared in settings_of(kind).items()]
    lines += [_described(name, declared) for name, declared in settings_of(plugins.load).items()]
    return "\n".join(lines)


def _described(name: str, declared: Declared) -> str:
    words = f"{declared.setting.help} ({declared.expected})" if declared.setting.help else declared.expected
    return f"  {f'{name}={as_written(declared.default)}':34} {words}"
