"""Checks given or saved settings, and makes the dataclass of a command from them.

Settings are one flat dict, from the command line to ``config.yaml``: ``{"reg.name": "spectral", "reg.coef": 1e-3}``.

- ``reg=spectral+l2`` is a chain; its settings are ``reg.l2.coef=...``.
- A list trains its members side by side in one process, each with every seed: ``reg=[none,spectral]``,
  ``reg.coef=[1e-5,1e-4]``, ``reset.every_updates=[1000,10000]``.
- With ``reg=spectral``, ``reg.spectral.coef`` is the full name of ``reg.coef``.
- A preset is a set of settings. Those of the command line override them (`presets`).
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import yaml

from rl_plasticity import plugins
from rl_plasticity.configs import presets
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
    members_of,
    own_settings,
)
from rl_plasticity.configs.gone import GONE, as_gone, did_nothing, unknown
from rl_plasticity.configs.kinds import KINDS
from rl_plasticity.configs.written import Asked, as_written, by_name, flat_values, nested
from rl_plasticity.errors import SettingsError, in_short, nearest, shown
from rl_plasticity.settings import Declared, Setting, settings_of

Settings = TypeVar("Settings")
PLAIN = ("NoneType", "bool", "int", "float", "str", "list[bool]", "list[float]", "list[str]")
ARGUMENT = Declared(PLAIN, None, Setting("argument of the environment or of one of its wrappers"))


def load(kind: type[Settings], asked: Asked, base: RunSettings | None = None) -> Settings:
    """Settings of this `kind` from command-line arguments, or from the result of `from_python`.

    Args:
        base: settings in place of those of a preset. A given choice replaces a whole group of them, by that choice's
            defaults.

    Raises:
        SettingsError: one line that says what is wrong, what was expected and the nearest valid name.
    """
    given = by_name(asked)
    load_plugs(given.pop("plugins", []))
    if "plugin" in given:  # else what the plug would add is said to be unknown
        raise unknown("setting", "plugin", ["plugins"])
    start = _start(kind, given, base)
    names = {g: given.pop(g, start.get(f"{g}.name", KINDS[g].default)) for g in GROUPS[kind]}
    for module in _modules(names, given):
        plugins.load_one(module, f"env {names['env']!r}")  # the user names it, like any plug
    declared = declared_by(kind, names, {**start, **given})
    applied: dict[str, Any] = {}
    for name, value in start.items():  # a preset may set what its choices alone have
        applied |= dict.fromkeys((d for d in declared if name in (d, _full(d, names))), value)
    for name, value in given.items():
        meant = [name] if name in declared else [d for d in declared if name == _full(d, names)]
        if not meant:
            raise _unknown(kind, name, declared, names)
        if meant[0] in given and meant[0] != name:
            raise SettingsError(f"{meant[0]} is given twice")
        applied |= dict.fromkeys(meant, value)
    defaults: dict[str, Any] = {"preset": start.get("preset")}
    if kind is Supervised:  # with the tasks, unless one of an intervention's periods is given
        for name in declared:
            group, _, last = name.rpartition(".")
            if name.startswith("reset.") and last in EACH_TASK and not {f"{group}.{n}" for n in EACH_TASK} & {*applied}:
                defaults[name] = EACH_TASK[last]
    return _made(kind, names, declared, {**defaults, **applied})


def load_plugs(named: Any) -> None:
    """Load the installed plugs, and those in the setting ``plugins``.

    Raises:
        SettingsError: the value names no modules, or one cannot be imported.
    """
    names = settings_of(plugins.load)["plugins"].checked("plugins", [named] if isinstance(named, str) else named)
    plugins.load([*map(plugins.as_module, names)])


def load_saved(kind: type[Settings], saved: Mapping[str, Any]) -> Settings:
    """Settings of this `kind` from saved ones (`RunFolder.settings`), checked like any others.

    Raises:
        SettingsError: a setting is missing, unknown or out of range.
    """
    values = dict(flat_values(saved))
    for group in GROUPS[kind]:
        if f"{group}.name" not in values:
            raise SettingsError(
                f"{group}.name is missing: these are not the settings of a run of rl_plasticity.{called(kind)}"
            )
    names = {group: values.pop(f"{group}.name") for group in GROUPS[kind]}
    declared = declared_by(kind, names, values)
    went = {n for n, v in values.items() if did_nothing(n, v) and not (n in declared and declared[n].accepts(v))}
    values = {name: value for name, value in values.items() if name not in went}
    for name in values:
        if name not in declared and name != "preset":
            raise unknown("setting", name, declared, _went(kind, name, names))
    for module in _modules(names, values):
        if module not in plugins.loaded:
            raise SettingsError(f"env {names['env']!r}: saved settings never load a module, here {module!r}")
    # A setting of the machine may be newer than the run: it does not make another run of it.
    optional = {*OPTIONAL, *went, *(name for name, d in declared.items() if d.setting.belongs_to == "machine")}
    for name in (*declared, "preset"):
        if name not in values and name not in optional:
            raise SettingsError(f"the setting {name!r} is missing")
    return _made(kind, names, declared, values)


def dump(settings: Train | Supervised) -> str:
    """The settings as YAML; `load_saved` reads it back."""
    text: str = yaml.safe_dump(nested(settings.flat), sort_keys=False, allow_unicode=True)
    return text


def marked(kind: Any, *belongs_to: str) -> tuple[str, ...]:
    """The names of a command's settings with one of these ``belongs_to``: ``machine``, ``watched``."""
    declared = declared_by(kind, {group: KINDS[group].default for group in GROUPS[kind]}, {})
    return tuple(name for name, d in declared.items() if d.setting.belongs_to in belongs_to)


def declared_by(kind: type[Any], names: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Declared]:
    """All settings of a command with these choices, by their names.

    Args:
        values: of settings; some choose what other settings there are.

    Raises:
        SettingsError: there is no such choice; the nearest name is in the message.
    """
    declared = own_settings(kind)
    for group, name in names.items():
        inner = KINDS[group].inner[0]
        declared |= _declared_of(group, name, values.get(f"{group}.{inner}", values.get(f"{group}.{name}.{inner}")))
    arguments = [name for name in values if name.startswith("env.kwargs.") and "env" in names]
    for name in arguments:
        if any(other.startswith(f"{name}.") for other in arguments):
            raise SettingsError(f"{name} is given twice")
    return declared | dict.fromkeys(arguments, ARGUMENT)


def names_of(group: str) -> list[str]:
    """The names of a group's choices."""
    papers = presets.agents_of_papers() if group == "agent" else []
    return [*(["none"] if group == "reset" else []), *KINDS[group].names, *papers]


# ------------------------------------------------------------------------------------------------------------------


def _start(kind: type[Any], given: dict[str, Any], base: RunSettings | None) -> dict[str, Any]:
    """The settings that the given ones override, by name: those of `base`, or of a preset, which is taken from `given`.

    Raises:
        SettingsError: there is no such preset.
    """
    if base:
        return {name: value for name, value in base.flat.items() if name.partition(".")[0] not in given}
    if kind not in DEFAULT_PRESET:
        return {}
    if kind is Train and given.get("agent") in presets.agents_of_papers():
        if "preset" in given:
            raise SettingsError(
                f"agent={given['agent']} is a preset, and so is preset={given['preset']}: give only one"
            )
        given["preset"] = given.pop("agent")
    sequence = given.get("env.sequence")
    if sequence and isinstance(sequence, list):
        given.setdefault("env", sequence[0])
    preset = given.pop("preset", DEFAULT_PRESET[kind])
    if preset not in (valid := presets.files(called(kind))):
        raise unknown("preset", preset, valid, f"preset={preset}")
    own = presets.settings_of(called(kind), preset)
    # A method's or a network's settings are for the preset's choice, and not for another that is given.
    names: dict[str, Any] = {
        g: own.get(g, KINDS[g].default) for g in ("reg", "reset", "net", "optimizer") if g in GROUPS[kind]
    }
    named = {f"{n}.name" if n in GROUPS[kind] else _full(n, names): value for n, value in own.items()}
    return {"preset": preset} | named


def _modules(names: Mapping[str, Any], values: Mapping[str, Any]) -> list[str]:
    """The modules that the settings of an environment name."""
    of_env = {name.removeprefix("env."): value for name, value in values.items() if name.startswith("env.")}
    return plugins.modules_of({**of_env, "name": names.get("env")})


def _declared_of(group: str, choice: Any, inner: Any, prefix: str = "") -> dict[str, Declared]:
    """The settings of a choice by dotted name; for a list or a chain those of each member, ``reg.l2.coef``."""
    prefix = prefix or group
    members = members_of(choice) if group == "reg" or (group == "reset" and isinstance(choice, list)) else []
    of_list = isinstance(choice, list) and group in SIDE_BY_SIDE
    if (of_list and not members) or len({*map(str, members)}) < len(members):
        raise SettingsError(f"{group}: expected one or more different {SIDE_BY_SIDE[group]}, got {members}")
    if members:
        of_each = (_declared_of(group, one, inner, f"{prefix}.{one}") for one in members)
        return {name: declared for one in of_each for name, declared in one.items()}
    if group == "env" and not isinstance(choice, str):
        raise SettingsError(f"env must be a string, got {shown(choice)}")
    if group != "env" and not (isinstance(choice, str) and choice in names_of(group)):
        for other in SIDE_BY_SIDE if group in SIDE_BY_SIDE else ():
            if choice in names_of(other):
                raise SettingsError(f"unknown {group} {shown(choice)}; did you mean '{other}={choice}'?")
        own = "" if plugins.loaded else " (plugins=[my_module] loads your own)"
        raise unknown(group, choice, names_of(group), f"{group}={choice}", own)
    return {f"{prefix}.{n}": d for n, d in KINDS[group].settings(choice, inner).items()}


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
            checked[name] = Several(value)  # as written: it names the runs
            for member in value:
                d.checked(name, member)
        else:
            checked[name] = d.checked(name, value)
    return checked


def _made(
    kind: type[Settings], names: Mapping[str, Any], declared: Mapping[str, Declared], values: dict[str, Any]
) -> Settings:
    """The dataclass `kind` of these values, which are checked; a setting without one has its default."""
    checked = _checked(declared, {name: d.default for name, d in declared.items()} | values)
    groups = {
        group: Group(name, {n.removeprefix(f"{group}."): v for n, v in checked.items() if n.startswith(f"{group}.")})
        for group, name in names.items()
    }
    plain = {name: value for name, value in checked.items() if "." not in name and (name != "preset" or names)}
    return kind(**as_arguments(plain), **groups)


def _went(kind: type[Any], name: str, names: Mapping[str, Any]) -> str:
    """The key in `GONE` of a setting that this command, or one of these choices, had; empty if there is none."""
    keys = (f"{called(kind)} {name}", _full(name, names), as_gone(name), name.partition(".")[0])
    return next((key for key in keys if key in GONE), "")


def _unknown(kind: type[Any], name: str, declared: Mapping[str, Declared], names: Mapping[str, Any]) -> SettingsError:
    """The error about a setting that does not exist."""
    written = _went(kind, name, names)
    group, _, last = as_gone(name).rpartition(".")
    if each := [d for d in declared if group and d.startswith(f"{group}.") and d.endswith(f".{last}")]:
        return SettingsError(f"{name}: the settings of {group}={as_written(names[group])} are {' and '.join(each)}")
    valid = [*names, *declared, "preset", "plugins"]
    if not written and group in names:
        owners = [f"{group}={choice}" for choice in KINDS[group].names if last in KINDS[group].settings(choice)]
        hint = f"; it is a setting of {in_short(owners)}" if owners else nearest(name, valid)
        return SettingsError(f"{group}={as_written(names[group])} has no setting {name!r}{hint}")
    return unknown("setting", name, valid, written)
