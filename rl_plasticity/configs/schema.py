"""Checks given or saved settings, and makes the dataclass of a command from them.

- ``reg=spectral+l2`` is a chain; its settings are ``reg.l2.coef=...``.
- A list trains its members side by side in one process, each with every seed: ``reg=[none,spectral]``,
  ``reg.coef=[1e-5,1e-4]``, ``reset.every_updates=[1000,10000]``. In a list of names ``all`` is every other name.
- With ``reg=spectral``, ``reg.spectral.coef`` is the full name of ``reg.coef``.
- A preset is a set of settings. Those of the command line override them (`presets`).
- ``${name}`` stands for the value of the setting of that name.
"""

import re
import sys
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from omegaconf import OmegaConf

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
    presets,
)
from rl_plasticity.configs.elsewhere import ELSEWHERE
from rl_plasticity.configs.kinds import KINDS
from rl_plasticity.configs.written import Given, as_written, by_name, flat_values, parse, require_no_list
from rl_plasticity.errors import SettingsError, nearest, shown
from rl_plasticity.settings import Declared, Setting, item_of, settings_of

Settings = TypeVar("Settings")
Groups = Mapping[str, Group]  # with a `Declared` for each setting, until there are values
ALL = "all"  # in a list of regularizers or interventions
REFERENCE = re.compile(r"\$\{([^}]*)\}?")


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
    groups: Groups = {}
    values: dict[str, Any] = {}
    typed = [*given]
    if kind is Train:
        _take_agent_as_preset_(given)
    if kind in DEFAULT_PRESET:
        preset = given.pop("preset", base.preset if base else DEFAULT_PRESET[kind])
        if preset not in presets(kind):
            raise SettingsError(f"unknown preset {shown(preset)}{nearest(preset, presets(kind))}")
        choices = {group: _with_all(group, given.pop(group)) for group in GROUPS[kind] if group in given}
        sequence = _words(given.get("env.sequence"))
        if kind is Train and sequence and not base:
            choices.setdefault("env", sequence[0])
        groups, values = _chosen(kind, preset, choices, given) if base is None else _based(kind, base, choices, given)
        typed = [*given]
        given = _in_short(given, groups)
        for env in (groups["env"].name, *sequence) if kind is Train else ():
            if module := plugins.module_of(env):
                plugins.load_one(module, f"env {env!r}")  # the user names it, like any plug
    declared = _declared(kind, groups)
    for name, as_typed in zip(given, typed, strict=True):
        if name not in declared:
            raise _unknown(kind, name, as_typed, declared, groups)
    values = _with_references(_with_defaults(kind, groups, values | given))
    return _made(kind, groups, _checked(declared, values))


def _take_agent_as_preset_(given: dict[str, Any]) -> None:
    """``agent=xqc`` is ``preset=xqc``: the agents of papers are presets, unless a plug has an agent of the name."""
    name = given.get("agent")
    if name in files.agents_of_papers() and name not in KINDS["agent"].names:
        del given["agent"]
        if (other := given.setdefault("preset", name)) != name:
            raise SettingsError(f"agent={name} is preset={name}, beside which preset={other} cannot be: choose one")


def usual(
    kind: type[Settings], preset: str, choices: Mapping[str, Any], given: Mapping[str, Any] | None = None
) -> Settings:
    """The unchecked settings of a preset, with these choices in place of its own.

    Args:
        given: settings. Those that make an inner choice (`Kind.inner`) decide which settings exist.
    """
    groups, values = _chosen(kind, preset, choices, given or {})
    return _made(kind, groups, _with_defaults(kind, groups, values))


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
    for other in (Train, Supervised):
        if all(group in saved for group in GROUPS[other]) and not all(group in saved for group in GROUPS[kind]):
            raise SettingsError(
                f"a run of rl_plasticity.{called(kind)} is needed; this is one of rl_plasticity.{called(other)}"
            )
    groups = {}
    for group in GROUPS[kind]:
        choice = saved.get(group)
        if not isinstance(choice, dict) or "name" not in choice:
            raise SettingsError(f"{group} must be a group with a name, got {shown(choice)}")
        groups[group] = chosen(group, _choice_of(choice), kind, choice.get(KINDS[group].inner[0]))
        for name in (groups[group].name, *_words(choice.get("sequence"))) if group == "env" else ():
            if (module := plugins.module_of(name)) and module not in plugins.loaded:
                raise SettingsError(f"env {name!r}: no saved settings load the module {module!r}")
    declared = _declared(kind, groups)
    values = {name: value for name, value in flat_values(saved) if not name.endswith(".name")}
    for name in values:
        if name not in declared and name != "preset":
            raise SettingsError(f"unknown setting {shown(name)}{nearest(name, declared)}")
    # A setting of the machine may be newer than the run: it does not make another run of it.
    optional = {*OPTIONAL, *(name for name, d in declared.items() if d.setting.belongs_to == "machine")}
    values = {name: d.default for name, d in declared.items() if name in optional} | values
    for name in (*declared, "preset"):
        if name not in values:
            raise SettingsError(f"the setting {name!r} is missing")
    return _made(kind, groups, _checked(declared, values))


def dump(settings: Train | Supervised) -> str:
    """The settings as YAML; `load_saved` reads it back."""
    return OmegaConf.to_yaml(OmegaConf.create(settings.saved))


def marked(kind: Any, belongs_to: str) -> tuple[str, ...]:
    """The names of a command's settings with this ``belongs_to``: ``machine`` or ``watched``."""
    groups = {group: chosen(group, KINDS[group].default) for group in GROUPS[kind]}
    return tuple(name for name, d in _declared(kind, groups).items() if d.setting.belongs_to == belongs_to)


def without_machine(kind: type[Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A command's saved settings, flat, without those of the machine, which do not make another run."""
    machine = marked(kind, "machine")
    return {name: value for name, value in flat_values(settings) if name not in machine}


def warn_of_unlike(s: Train | Supervised) -> None:
    """Say in one line what of its paper the preset leaves out, and warn if the paper did not use what is chosen."""
    table = files.table_of(called(type(s)), s.preset)
    if table.leaves_out:
        print(f"preset {s.preset} leaves out: {table.leaves_out}", file=sys.stderr)
    if unlike := table.unlike(s.preset, s.groups):
        warnings.warn(unlike, stacklevel=2)


def chosen(group: str, choice: Any, command: type[Any] | None = None, inner: Any = None) -> Group:
    """A choice with a `Declared` for each of its settings.

    Args:
        command: whose settings to take; None: those of all commands.
        inner: as in `Kind.settings`.

    Raises:
        SettingsError: there is no such choice; the nearest name is in the message.
    """
    kind = KINDS[group]
    if group == "env":
        return Group(Declared(("str",), "", Setting()).checked("env.name", choice), kind.settings(""))
    if group in SIDE_BY_SIDE and isinstance(choice, list):
        return Group("side_by_side", parts=_parts(group, [*map(str, choice)], command))
    if group == "reg" and isinstance(choice, str) and "+" in choice:
        return Group("chain", parts=_parts(group, choice.split("+"), command))
    if choice == "none" and group == "reset":
        return Group("none")
    if not isinstance(choice, str) or choice not in kind.names:
        others = [f"{other}={choice}" for other in SIDE_BY_SIDE if group in SIDE_BY_SIDE and choice in names_of(other)]
        of_papers = files.agents_of_papers() if group == "agent" else []
        hint = f"; did you mean {others[0]!r}?" if others else nearest(choice, [*names_of(group), *of_papers])
        hint += "" if others or plugins.loaded else " (plugins=[my_module] loads your own)"
        raise SettingsError(f"unknown {group} {shown(choice)}{hint}")
    return Group(choice, kind.settings(choice, inner))


def names_of(group: str) -> list[str]:
    """The names of a group's choices."""
    return [*(["none"] if group == "reset" else []), *KINDS[group].names]


# ------------------------------------------------------------------------------------------------------------------


def _words(value: Any) -> list[str]:
    """The words in a list; empty if it is no list. Later checks refuse a list that holds anything else."""
    return [one for one in value if isinstance(one, str)] if isinstance(value, list | tuple) else []


def _with_all(group: str, choice: Any) -> Any:
    """The choice, in which ``all`` in a list stands for every other name of the group, in order."""
    if group not in SIDE_BY_SIDE or not isinstance(choice, list) or ALL not in choice:
        return choice
    at = choice.index(ALL)
    return [*choice[:at], *(name for name in names_of(group) if name not in choice), *choice[at + 1 :]]


def _choice_of(saved: Mapping[str, Any]) -> Any:
    """The choice of a saved group, as it is written on the command line."""
    choices = [name for name in saved if name != "name"]
    return {"chain": "+".join(choices), "side_by_side": choices}.get(str(saved["name"]), saved["name"])


def _parts(group: str, choices: list[str], command: type[Any] | None) -> tuple[Group, ...]:
    if not choices or len(set(choices)) < len(choices):
        raise SettingsError(f"{group}: expected one or more different {SIDE_BY_SIDE[group]}, got {choices}")
    return tuple(chosen(group, choice, command) for choice in choices)


def _chosen(
    kind: type[Any], preset: str, choices: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[dict[str, Group], dict[str, Any]]:
    """The choice from each group (the command line's, the preset's or the default one), and the preset's settings."""
    table = files.table_of(called(kind), preset)
    by_default = {group: KINDS[group].default for group in GROUPS[kind]} | {**table.presets[preset]}
    groups = {}
    for group in GROUPS[kind]:
        choice, inner = choices.get(group, by_default[group]), KINDS[group].inner[0]
        named = [given.get(f"{group}.{name}") for name in (inner, f"{choice}.{inner}")]
        if choice == by_default[group]:  # the preset's settings hold
            named.append(table.presets[preset].get(f"{group}.{inner}"))
        groups[group] = chosen(group, choice, kind, next((name for name in named if name is not None), None))
    return groups, {"preset": preset, **table.settings_of(preset, groups, by_default)}


def _based(
    kind: type[Any], base: RunSettings, choices: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[dict[str, Group], dict[str, Any]]:
    """As `_chosen`, but what is not given is as in `base`."""
    kept = {n: v for n, v in flat_values(base.saved) if n.partition(".")[0] not in choices and not n.endswith(".name")}
    groups, _ = _chosen(kind, base.preset, {**base.choices, **choices}, {**kept, **given})
    declared = _declared(kind, groups)  # without settings of an inner choice that is no longer made
    return groups, {name: value for name, value in kept.items() if name in declared or name == "preset"}


def _in_short(given: Mapping[str, Any], groups: Groups) -> dict[str, Any]:
    """Settings by their short names where a single choice has the full one: ``reg.coef`` for ``reg.spectral.coef``."""
    short: dict[str, Any] = {}
    for name, value in given.items():
        group, _, rest = name.partition(".")
        if group in groups:
            name = f"{group}.{rest.removeprefix(f'{groups[group].choice}.')}"
        if name in short:
            raise SettingsError(f"{name} is given twice")
        short[name] = value
    return short


def _declared(kind: type[Any], groups: Groups) -> dict[str, Declared]:
    """All settings of the command and of these choices, by dotted name."""
    declared = own_settings(kind)
    for name, group in groups.items():
        declared |= group.flat(name)
    return declared


def _with_defaults(kind: type[Any], groups: Groups, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with the defaults of all other settings."""
    defaults = {name: declared.default for name, declared in _declared(kind, groups).items()}
    if kind is Supervised:  # interventions come with the tasks, unless a period is given
        for name in groups["reset"].flat("reset"):
            group, _, last = name.rpartition(".")
            if last in EACH_TASK and not any(given.startswith(f"{group}.every") for given in values):
                defaults[name] = EACH_TASK[last]
    return {n: list(value) if isinstance(value, tuple) else value for n, value in {**defaults, **values}.items()}


def _with_references(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with the value of the named setting in place of each ``${name}`` in text."""
    found = dict(values)
    for name, text in values.items():
        for reference in REFERENCE.finditer(text) if isinstance(text, str) else ():
            if reference[1] not in values:
                raise SettingsError(f"{name}={shown(text)}: there is no setting {reference[1]!r}")
            value = values[reference[1]]
            found[name] = value if reference[0] == text else found[name].replace(reference[0], as_written(value))
    return found


def _checked(declared: Mapping[str, Declared], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, each checked by its declaration; for a list of values side by side, each member is checked."""
    checked = dict(values)
    for name, d in declared.items():
        value = values[name]
        if isinstance(value, list) and name.partition(".")[0] in SIDE_BY_SIDE and not d.accepts(value):
            if not value or len(set(map(str, value))) < len(value):
                raise SettingsError(f"{name}: expected one or more different values, got {value}")
            for member in value:
                d.checked(name, member)
            checked[name] = Several(value, "Tensor" in d.kinds)  # as written: it names the runs
        elif isinstance(value, list) and not any(map(item_of, d.kinds)):
            values_of = ",".join(map(as_written, value))
            if name == "seeds":
                require_no_list(f"{name}={values_of}")
            raise SettingsError(
                f"{name} must be {d.expected}, got {shown(value)}; lists side by side are for reg and reset, a run of "
                f"each value is -m {name}={values_of}"
            )
        else:
            checked[name] = d.checked(name, value)
    return checked


def _made(kind: type[Settings], groups: Groups, values: Mapping[str, Any]) -> Settings:
    """The dataclass `kind` of these values."""
    plain = {name: value for name, value in values.items() if "." not in name}
    return kind(**as_arguments(plain), **{name: group.having(values, name) for name, group in groups.items()})


def _unknown(kind: type[Any], name: str, typed: str, declared: Mapping[str, Declared], groups: Groups) -> SettingsError:
    """The error about a setting that does not exist; `typed` is its name as the user wrote it."""
    group, last = name.partition(".")[0], name.rpartition(".")[2]
    if name.endswith(".name") and group in groups:
        return SettingsError(f"{name} cannot be set: choose with {group}=")
    part, dot, _ = name.partition(".")[2].partition(".")
    leaves = [leaf for _, leaf in groups[group].leaves(group)] if group in groups else []
    if dot and group in SIDE_BY_SIDE and part in KINDS[group].names and part not in leaves:
        return SettingsError(f"{typed}: {part} is not chosen, {group}={as_written(groups[group].choice)}")
    if group in groups and "." in name and not groups[group].flat(group):
        words = f"{name}: {group}={groups[group].choice} has no settings"
        hint = f"; of a sweep's runs that choose another, write {group}.NAME.{last}"
        return SettingsError(words + (hint if name.count(".") == 1 else ""))
    if group in groups and name.count(".") == 1:
        choice, inner = groups[group].name, KINDS[group].inner[0]
        with_it = [one for one in KINDS[group].inner_names(choice) if last in KINDS[group].settings(choice, one)]
        if with_it:
            return SettingsError(f"{name} is a setting of {group}.{inner}={' and '.join(with_it)}")
    of_each = [d for d in declared if d.startswith(f"{group}.") and d.rpartition(".")[2] == last]
    if group in groups and name.count(".") == 1 and len(of_each) > 1:
        return SettingsError(f"{name}: each of several has its own, {' and '.join(of_each)}")
    valid = [*GROUPS[kind], *declared]
    here = ELSEWHERE.get(kind, {}).get(name, "")
    hint = f"; did you mean {here!r}?" if here.partition("=")[0] in valid else ""
    commands = [other for other in DEFAULT_PRESET if kind in DEFAULT_PRESET and group in GROUPS[other]]
    if commands and group not in valid:
        hint = hint or f"; it is one of rl_plasticity.{called(commands[0])}"
    if not hint and not any(one.endswith(f".{name}") for one in declared):  # coef with reg=none
        of = [one for one in groups if any(name in KINDS[one].settings(choice) for choice in KINDS[one].names)]
        hint = f"; {of[0]}.{name} needs another {of[0]}= than {as_written(groups[of[0]].choice)}" if of else ""
    if typed != name:  # with the choice in its name, as in reg.spectral.coef
        valid = [typed.removesuffix(last) + one.removeprefix(f"{group}.") for one in valid if one.startswith(group)]
    own = [one for one in valid if "." in name and one.startswith(f"{group}.")]
    return SettingsError(f"unknown setting {shown(typed)}{hint or nearest(typed, own or valid)}")
