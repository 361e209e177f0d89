"""Checks given or saved settings, and makes the dataclass of a command from them.

Settings are one flat dict, from the command line to ``config.yaml``: ``{"reg.name": "spectral", "reg.coef": 1e-3}``.

- ``reg=spectral+l2`` is a chain; its settings are ``reg.l2.coef=...``.
- A list trains its members side by side in one process, each with every seed: ``reg=[none,spectral]``,
  ``reg.coef=[1e-5,1e-4]``, ``reset.every_updates=[1000,10000]``.
- With ``reg=spectral``, ``reg.spectral.coef`` is the full name of ``reg.coef``.
- A preset is a set of settings. Those of the command line override them (`presets`).
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import yaml

from rl_plasticity import plugins
from rl_plasticity.configs import presets as files
from rl_plasticity.configs.commands import (
    DEFAULT_PRESET,
    EACH_TASK,
    GROUPS,
    OPTIONAL,
    SIDE_BY_SIDE,
    Group,
    RunSettings,
    Several,
    Supervised,
    Train,
    as_arguments,
    called,
    own_settings,
    parts_of,
    presets,
)
from rl_plasticity.configs.gone import GONE, unknown
from rl_plasticity.configs.kinds import KINDS
from rl_plasticity.configs.written import Given, as_written, by_name, flat_values, nested, parse
from rl_plasticity.errors import SettingsError, shown
from rl_plasticity.settings import Declared, item_of, settings_of

Settings = TypeVar("Settings")


def load(kind: type[Settings], asked: Iterable[str | Given], base: RunSettings | None = None) -> Settings:
    """Settings of this `kind` from command-line arguments, or from the result of `from_python`.

    Args:
        base: settings in place of those of a preset. A given choice replaces a whole group of them, by that choice's
            defaults.

    Raises:
        SettingsError: one line that says what is wrong, what was expected and the nearest valid name.
    """
    given = by_name(asked)
    load_plugs(given.pop("plugins", []))
    start: dict[str, Any] = {}
    if base:
        start = {n: v for n, v in base.flat.items() if n.partition(".")[0] not in given}
    elif kind in DEFAULT_PRESET:
        if kind is Train and given.get("agent") in files.agents_of_papers():  # the agents of papers are presets
            given.setdefault("preset", given.pop("agent"))
        start["preset"] = given.pop("preset", DEFAULT_PRESET[kind])
        if start["preset"] not in presets(kind):
            raise unknown("preset", start["preset"], presets(kind), f"preset={start['preset']}")
        own = files.settings_of(called(kind), start["preset"])
        start |= {f"{n}.name" if n in GROUPS[kind] else n: v for n, v in own.items()}
    if sequence := given.get("env.sequence") if kind is Train and not base else None:
        given.setdefault("env", sequence[0])
    names = {g: given.pop(g, start.get(f"{g}.name", KINDS[g].default)) for g in GROUPS[kind]}
    for env in (names["env"], *(given.get("env.sequence") or ())) if kind is Train else ():
        if module := plugins.module_of(str(env)):
            plugins.load_one(module, f"env {env!r}")  # the user names it, like any plug
    full = {**start, **given}
    declared = own_settings(kind)
    for group, name in names.items():
        inner = KINDS[group].inner[0]
        declared |= declared_of(kind, group, name, full.get(f"{group}.{inner}", full.get(f"{group}.{name}.{inner}")))
    values = {name: one.default for name, one in declared.items()}
    for name in [n for n in values if n.startswith("reset.") and kind is Supervised]:  # with the tasks, by default
        group, _, last = name.rpartition(".")
        mine = (f"{group}.every", f"reset.{names['reset']}.every")
        if last in EACH_TASK and not any(n.startswith(mine) for n in given):
            values[name] = EACH_TASK[last]
    applied = {d: start[n] for d in declared for n in (d, _full(d, names)) if n in start}
    for name, value in given.items():
        group, _, rest = name.partition(".")
        short = f"{group}.{rest.removeprefix(f'{names[group]}.')}" if group in names else name
        if short not in declared:
            raise _unknown(kind, name, declared, names)
        if short in given and short != name:
            raise SettingsError(f"{short} is given twice")
        applied[short] = value
    return _made(kind, names, declared, {**values, "preset": start.get("preset"), **applied})


def load_plugs(named: Any) -> None:
    """Load the installed plugs, and those in the setting ``plugins``.

    Raises:
        SettingsError: the value is no list of modules, or a module cannot be imported.
    """
    names = named if isinstance(named, list | tuple) else [named]
    if all(isinstance(name, str) for name in names):
        modules = f"[{','.join(map(plugins.as_module, names))}]"
        if modules != as_written(named):
            raise SettingsError(f"plugins={as_written(named)}: it is a list of modules, plugins={modules}")
    plugins.load(settings_of(plugins.load)["plugins"].checked("plugins", named))


def load_plugs_of(arguments: Iterable[str]) -> None:
    """Load the plugs that these arguments name, before other arguments are read; raises as `load_plugs`."""
    load_plugs([])
    for argument in arguments:
        if argument.startswith("plugins="):
            load_plugs(parse(argument).value)


def load_saved(kind: type[Settings], saved: Mapping[str, Any]) -> Settings:
    """Settings of this `kind` from saved ones (`RunFolder.settings`), checked like any others.

    Raises:
        SettingsError: a setting is missing, unknown or out of range.
    """
    values = dict(flat_values(saved))
    names, declared = {}, own_settings(kind)
    for group in GROUPS[kind]:
        if f"{group}.name" not in values:
            raise SettingsError(f"{group}.name is missing: these are no settings of rl_plasticity.{called(kind)}")
        names[group] = values.pop(f"{group}.name")
        declared |= declared_of(kind, group, names[group], values.get(f"{group}.{KINDS[group].inner[0]}"))
    for name in values:
        if name not in declared and name != "preset":
            raise unknown("setting", name, declared)
    for env in (names["env"], *(values.get("env.sequence") or ())) if kind is Train else ():
        if (module := plugins.module_of(str(env))) and module not in plugins.loaded:
            raise SettingsError(f"env {env!r}: no saved settings load the module {module!r}")
    # A setting of the machine may be newer than the run: it does not make another run of it.
    optional = {*OPTIONAL, *(name for name, d in declared.items() if d.setting.belongs_to == "machine")}
    for name in (*declared, "preset"):
        if name not in values and name not in optional:
            raise SettingsError(f"the setting {name!r} is missing")
    return _made(kind, names, declared, {name: d.default for name, d in declared.items()} | values)


def dump(settings: Train | Supervised) -> str:
    """The settings as YAML; `load_saved` reads it back."""
    text: str = yaml.safe_dump(nested(settings.flat), sort_keys=False, allow_unicode=True)
    return text


def marked(kind: Any, belongs_to: str) -> tuple[str, ...]:
    """The names of a command's settings with this ``belongs_to``: ``machine`` or ``watched``."""
    declared = own_settings(kind)
    for group in GROUPS[kind]:
        declared |= declared_of(kind, group, KINDS[group].default)
    return tuple(name for name, d in declared.items() if d.setting.belongs_to == belongs_to)


def without_machine(kind: type[Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A command's flat settings without those of the machine, which do not make another run."""
    machine = marked(kind, "machine")
    return {name: value for name, value in settings.items() if name not in machine}


def declared_of(kind: type[Any], group: str, choice: Any, inner: Any = None, prefix: str = "") -> dict[str, Declared]:
    """The settings of a choice by dotted name; for a list or a chain those of each member, ``reg.l2.coef``.

    Raises:
        SettingsError: there is no such choice; the nearest name is in the message.
    """
    prefix = prefix or group
    parts = parts_of(choice) if group == "reg" or (group == "reset" and isinstance(choice, list)) else []
    of_list = isinstance(choice, list) and group in SIDE_BY_SIDE
    if (of_list and not parts) or len({*map(str, parts)}) < len(parts):
        raise SettingsError(f"{group}: expected one or more different {SIDE_BY_SIDE[group]}, got {parts}")
    if parts:
        of_each = (declared_of(kind, group, part, inner, f"{prefix}.{part}") for part in parts)
        return {name: one for of_part in of_each for name, one in of_part.items()}
    if group == "env" and not isinstance(choice, str):
        raise SettingsError(f"env must be a word, got {shown(choice)}")
    if group != "env" and not (isinstance(choice, str) and choice in names_of(group)):
        others = [f"{other}={choice}" for other in SIDE_BY_SIDE if group in SIDE_BY_SIDE and choice in names_of(other)]
        if others:
            raise SettingsError(f"unknown {group} {shown(choice)}; did you mean {others[0]!r}?")
        own = "" if plugins.loaded else " (plugins=[my_module] loads your own)"
        raise unknown(group, choice, names_of(group), f"{group}={choice}", own)
    return {f"{prefix}.{n}": d for n, d in KINDS[group].settings(choice, inner).items()}


def names_of(group: str) -> list[str]:
    """The names of a group's choices."""
    more = {"reset": ["none"], "agent": files.agents_of_papers()}.get(group, [])
    return [*more[: group == "reset"], *KINDS[group].names, *more[group == "reset" :]]


# ------------------------------------------------------------------------------------------------------------------


def _full(name: str, names: Mapping[str, Any]) -> str:
    """A setting's name with its choice: ``reg.l2.coef`` for ``reg.coef`` and for that of a chain in a list."""
    group, _, rest = name.partition(".")
    *members, last = rest.split(".")
    return name if group not in names else f"{group}.{members[-1] if members else names[group]}.{last}"


def _checked(declared: Mapping[str, Declared], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, each checked by its declaration; for a list of values side by side, each member is checked."""
    checked = dict(values)
    for name, d in declared.items():
        value = list(values[name]) if isinstance(values[name], tuple) else values[name]
        if isinstance(value, list) and name.partition(".")[0] in SIDE_BY_SIDE and not d.accepts(value):
            if not value or len(set(map(str, value))) < len(value):
                raise SettingsError(f"{name}: expected one or more different values, got {value}")
            checked[name] = Several(value, "Tensor" in d.kinds)  # as written: it names the runs
            for member in value:
                d.checked(name, member)
        elif isinstance(value, list) and not any(map(item_of, d.kinds)):
            hint = f"a run of each value is -m {name}={','.join(map(as_written, value))}"
            raise SettingsError(f"{name} must be {d.expected}, got {shown(value)}; {hint}")
        else:
            checked[name] = d.checked(name, value)
    return checked


def _made(
    kind: type[Settings], names: Mapping[str, Any], declared: Mapping[str, Declared], values: Mapping[str, Any]
) -> Settings:
    """The dataclass `kind` of these values, which are checked."""
    checked = _checked(declared, values)
    groups = {
        group: Group(name, {n.removeprefix(f"{group}."): v for n, v in checked.items() if n.startswith(f"{group}.")})
        for group, name in names.items()
    }
    plain = {name: value for name, value in checked.items() if "." not in name and (name != "preset" or names)}
    return kind(**as_arguments(plain), **groups)


def _unknown(kind: type[Any], name: str, declared: Mapping[str, Declared], names: Mapping[str, Any]) -> SettingsError:
    """The error about a setting that does not exist."""
    group, _, last = name.rpartition(".")
    group = group.partition(".")[0]
    gone = f"{group}.{last}" if group else name
    if each := [d for d in declared if group and d.startswith(f"{group}.") and d.endswith(f".{last}")]:
        return SettingsError(f"{name}: the choice {group}={as_written(names[group])} has {' and '.join(each)}")
    if gone not in GONE and group in names and not any(d.startswith(f"{group}.") for d in declared):
        return SettingsError(f"{name}: {group}={as_written(names[group])} has no settings")
    return unknown("setting", name, [*names, *declared, "preset"], gone)
