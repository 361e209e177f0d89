"""Settings that were asked for, or saved, as the dataclass of a command: checked before anything is made.

Short forms of ours, besides Hydra's own: ``env=NAME`` for ``env.name=NAME``, and ``reg=spectral+l2`` for several
regularizers in a chain, whose settings are ``reg.l2.coef=...``. A list trains all its members side by side in one
process, each with every seed: ``reg=[none,spectral,swr]``, ``reset=[none,periodic]``, ``reg.coef=[1e-5,1e-4]``,
``reset.every_updates=[1000,10000]``; in a list of names ``all`` stands for those that are not in it. With
``reg=spectral``, ``reg.spectral.coef`` is the full name of ``reg.coef``. A preset is a set of such settings, which come
before those of the command line (`presets`).
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import cache
from typing import Any, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rl_plasticity import plugins
from rl_plasticity.configs import presets as files
from rl_plasticity.configs.before import up_to_date
from rl_plasticity.configs.commands import (
    DEFAULT_PRESET,
    EACH_TASK,
    GROUPS,
    LEFT_OUT,
    SIDE_BY_SIDE,
    Group,
    Supervised,
    Train,
    called,
    presets,
)
from rl_plasticity.configs.elsewhere import ELSEWHERE
from rl_plasticity.configs.kinds import KINDS
from rl_plasticity.configs.written import Given, as_written, flat_values, parse, require_no_list
from rl_plasticity.errors import SettingsError, nearest, shown
from rl_plasticity.settings import Declared, Setting, item_of, settings_of

Settings = TypeVar("Settings")
ALL = "all"  # in a list of regularizers or interventions


def load(kind: type[Settings], asked: Iterable[str | Given]) -> Settings:
    """The settings of this `kind` that command-line arguments, or what `from_python` made of keywords, ask for.

    Raises:
        SettingsError: with one line that says what is wrong, what was expected and the nearest valid name.
    """
    given: dict[str, Any] = {}
    for argument in asked:
        name, value, _ = parse(argument) if isinstance(argument, str) else argument
        if name in given:
            raise SettingsError(f"{name} is given twice")
        given[name] = value
    _require_modules(given.get("plugins", []))
    if kind in DEFAULT_PRESET:
        load_plugs(given.pop("plugins", []))
        given |= {group: _with_all(group, given[group]) for group in SIDE_BY_SIDE if group in given}
        given = _with_preset(kind, given)
    sequence = _words(given.get("env.sequence"))
    if kind is Train and sequence:
        given.setdefault("env", sequence[0])
    groups = {group: chosen(group, given.pop(group, KINDS[group].default), kind) for group in GROUPS[kind]}
    for env in (str(groups["env"]["name"].default), *sequence) if kind is Train else ():
        if module := plugins.module_of(env):
            plugins.load_one(module, f"env {env!r}")  # it is named as any plug is
    if kind is Supervised:  # where there are tasks, interventions come with them unless told otherwise
        for prefix, tree in members("reset", groups["reset"]):
            if "every_updates" in tree and not any(name.startswith(f"{prefix}.every") for name in given):
                given |= {f"{prefix}.{name}": value for name, value in EACH_TASK.items()}
    declared = settings_of(kind) | declared_in(groups)
    for name in given:
        if name not in declared and name != "preset":
            raise _unknown(kind, name, declared, groups)
    return _typed(kind, _resolved({name: d.default for name, d in declared.items()}, given), declared, groups)


def _words(value: Any) -> list[str]:
    """The words in a list; none in what is no list. That it is one of words alone is checked later."""
    return [one for one in value if isinstance(one, str)] if isinstance(value, list | tuple) else []


def load_plugs(named: Any) -> None:
    """Load the plugs that the setting ``plugins`` names.

    Raises:
        SettingsError: it is no list of names, or one cannot be imported.
    """
    plugins.load(settings_of(plugins.load)["plugins"].checked("plugins", named))


def _require_modules(named: Any) -> None:
    """Raises SettingsError, with what to write, where ``plugins`` names one module without a list, or a file."""
    names = named if isinstance(named, list | tuple) else [named]
    if all(isinstance(name, str) for name in names):
        modules = f"[{','.join(map(plugins.as_module, names))}]"
        if modules != as_written(named):
            raise SettingsError(f"plugins={as_written(named)}: it is a list of modules, plugins={modules}")


def load_plugs_of(arguments: Iterable[str]) -> None:
    """Load the installed plugs and those that these arguments name, before any of the others is looked at.

    Raises:
        SettingsError: see `load_plugs`.
    """
    plugins.load()
    for argument in arguments:
        if argument.startswith("plugins="):
            named = parse(argument).value
            _require_modules(named)
            load_plugs(named)


def load_saved(kind: type[Settings], saved: Mapping[str, Any]) -> Settings:
    """Saved settings (`RunFolder.settings`), checked like any others.

    Raises:
        SettingsError: a setting is missing, unknown or out of range.
    """
    groups = {}
    for other in (Train, Supervised):
        if all(group in saved for group in GROUPS[other]) and not all(group in saved for group in GROUPS[kind]):
            needed, found = (f"rl_plasticity.{k.__name__.lower()}" for k in (kind, other))
            raise SettingsError(f"a run of {needed} is needed; this is one of {found}")
    for group in GROUPS[kind]:
        choice = saved.get(group)
        if choice is None:
            raise SettingsError(f"the setting {group!r} is missing")
        if not isinstance(choice, dict) or "name" not in choice:
            raise SettingsError(f"{group} must be a group with a name, got {shown(choice)}")
        groups[group] = chosen(group, choice_of(choice), kind)
        for name in (str(choice["name"]), *_words(choice.get("sequence"))) if group == "env" else ():
            if (module := plugins.module_of(name)) and module not in plugins.loaded:
                raise SettingsError(f"env {name!r}: no saved settings load the module {module!r}")
    declared = settings_of(kind) | declared_in(groups)
    values = up_to_date(dict(flat_values(saved)))
    values = {name: value for name, value in values.items() if name == "env.name" or not name.endswith(".name")}
    for name in values:
        if name not in declared and name != "preset":
            raise SettingsError(f"unknown setting {shown(name)}{nearest(name, declared)}")
    # What makes no other run of it may be younger than the run.
    values = {name: d.default for name, d in declared.items() if d.setting.belongs_to == "machine"} | values
    for name in (*declared, "preset"):
        if name not in values:
            raise SettingsError(f"the setting {name!r} is missing")
    return _typed(kind, values, declared, groups)


def dump(settings: Train | Supervised) -> str:
    """The settings as YAML; `load_saved` reads it back."""
    return OmegaConf.to_yaml(OmegaConf.create(asdict(settings)))


def marked(kind: Any, belongs_to: str) -> tuple[str, ...]:
    """The names of the settings of a command that belong to the ``machine`` or to what is ``watched``."""
    return _marked(kind, belongs_to)


@cache  # it is asked of every run of a sweep
def _marked(kind: Any, belongs_to: str) -> tuple[str, ...]:
    groups = {group: chosen(group, KINDS[group].default) for group in GROUPS[kind]}
    return tuple(
        name for name, d in (settings_of(kind) | declared_in(groups)).items() if d.setting.belongs_to == belongs_to
    )


def without_machine(kind: type[Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of a command's settings, flat, those that make one run another: that do not belong to the machine."""
    machine = marked(kind, "machine")
    return {name: value for name, value in up_to_date(dict(flat_values(settings))).items() if name not in machine}


def arguments_of(group: Mapping[str, Any]) -> Group:
    """What a chosen group's constructor is given: its settings without the name of the choice."""
    return {setting: value for setting, value in group.items() if setting != "name"}


def choice_of(group: Mapping[str, Any]) -> Any:
    """What a group chose, as it is written on the command line."""
    chosen = [name for name in group if name != "name"]
    if group["name"] == "chain":
        return "+".join(chosen)
    return chosen if group["name"] == "side_by_side" else group["name"]


def members(name: str, group: Group) -> list[tuple[str, Group]]:
    """What trains side by side in the group called `name`, each after the prefix of its settings: itself, or all."""
    if group["name"] != "side_by_side":
        return [(name, group)]
    return [(f"{name}.{member}", settings) for member, settings in group.items() if member != "name"]


def several(group: Mapping[str, Any], name: str) -> Iterator[tuple[str, list[Any], Declared]]:
    """The settings of a chosen group whose value is a list of values side by side: dotted name, list, declaration.

    Args:
        name: the group's: ``reg``.
    """
    declared = declared_in({name: chosen(name, choice_of(group))})
    for setting, value in flat_values(group, f"{name}."):
        if setting in declared and isinstance(value, list) and not declared[setting].accepts(value):
            yield setting, value, declared[setting]


def warn_of_unlike(s: Train | Supervised) -> None:
    """Warn, in one line, where the paper of the preset did not use what was chosen."""
    chosen = {group: choice_of(getattr(s, group)) for group in GROUPS[type(s)]}
    if unlike := files.unlike(called(type(s)), s.preset, chosen):
        warnings.warn(unlike, stacklevel=2)


def chosen(group: str, choice: Any, command: type[Any] | None = None) -> dict[str, Any]:
    """A tree of what a choice can be told: names of what was chosen, and declared settings (of all commands)."""
    kind = KINDS[group]
    if group == "env":
        return {"name": Declared(("str",), choice, Setting()), **kind.settings("")}
    if (group in SIDE_BY_SIDE and isinstance(choice, list)) or (
        group == "reg" and isinstance(choice, str) and "+" in choice
    ):
        return _several(group, choice, command)
    if choice == "none" and group == "reset":
        return {"name": "none"}
    if not isinstance(choice, str) or choice not in kind.names:
        others = [f"{other}={choice}" for other in SIDE_BY_SIDE if group in SIDE_BY_SIDE and choice in names_of(other)]
        hint = f"; did you mean {others[0]!r}?" if others else nearest(choice, names_of(group))
        raise SettingsError(f"unknown {group} {shown(choice)}{hint}")
    left_out = LEFT_OUT.get(command, ())
    return {"name": choice, **{n: d for n, d in kind.settings(choice).items() if f"{group}.{n}" not in left_out}}


def names_of(group: str) -> list[str]:
    """What a group chooses from, by name."""
    return [*(["none"] if group == "reset" else []), *KINDS[group].names]


def declared_in(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Declared]:
    """The declared settings of a tree by dotted name."""
    settings: dict[str, Declared] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            settings |= declared_in(value, f"{prefix}{key}.")
        elif isinstance(value, Declared):
            settings[prefix + key] = value
    return settings


# ------------------------------------------------------------------------------------------------------------------


def _with_all(group: str, choice: Any) -> Any:
    """The choice; in a list ``all`` becomes every name of the group that is not in it, in order."""
    if not isinstance(choice, list) or ALL not in choice:
        return choice
    at = choice.index(ALL)
    return [*choice[:at], *(name for name in names_of(group) if name not in choice), *choice[at + 1 :]]


def _with_preset(kind: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The preset's settings, and over them those that were given."""
    name = given.get("preset", DEFAULT_PRESET[kind])
    if name not in presets(kind):
        raise SettingsError(f"unknown preset {shown(name)}{nearest(name, presets(kind))}")
    defaults = {group: KINDS[group].default for group in GROUPS[kind]}
    preset = files.settings(called(kind), name, given, defaults)
    own: dict[str, Any] = {}
    for setting, value in given.items():
        group, _, rest = setting.partition(".")
        choice = given.get(group, preset.get(group, defaults.get(group)))
        if isinstance(choice, str) and rest.startswith(f"{choice}."):  # in full, as where several are chosen
            setting = f"{group}.{rest.removeprefix(f'{choice}.')}"
        if setting in own:
            raise SettingsError(f"{setting} is given twice")
        own[setting] = value
    return {**preset, **own, "preset": name}


def _several(group: str, choice: str | list[Any], command: type[Any] | None) -> dict[str, Any]:
    """A group with several choices: the chain ``spectral+l2``, or a list (in which chains may be) side by side."""
    parts = [str(part) for part in choice] if isinstance(choice, list) else choice.split("+")
    if not parts or len(set(parts)) < len(parts):
        raise SettingsError(f"{group}: expected one or more different {SIDE_BY_SIDE[group]}, got {choice}")
    name = "side_by_side" if isinstance(choice, list) else "chain"
    return {"name": name, **{part: chosen(group, part, command) for part in parts}}


def _unknown(kind: type[Any], name: str, declared: Mapping[str, Declared], groups: Mapping[str, Any]) -> SettingsError:
    group = name.partition(".")[0]
    if name.endswith(".name") and group in groups:
        return SettingsError(f"{name} cannot be set: choose with {group}=")
    if group in groups and "." in name and groups[group].keys() == {"name"}:
        words = f"{name}: {group}={groups[group]['name']} has no settings"
        hint = f"; of a sweep's runs that choose another, write {group}.NAME.{name.rpartition('.')[2]}"
        return SettingsError(words + (hint if name.count(".") == 1 else ""))
    of_each = [d for d in declared if d.startswith(f"{group}.") and d.rpartition(".")[2] == name.rpartition(".")[2]]
    if group in groups and name.count(".") == 1 and len(of_each) > 1:
        return SettingsError(f"{name}: each of several has its own, {' and '.join(of_each)}")
    valid = [*GROUPS[kind], *declared]
    here = ELSEWHERE.get(kind, {}).get(name, "")
    hint = f"; did you mean {here!r}?" if here.partition("=")[0] in valid else nearest(name, valid)
    return SettingsError(f"unknown setting {shown(name)}{hint}")


def _resolved(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults, and over them what was given, with ``${name}`` replaced by what the setting of that name is."""
    values = {n: list(v) if isinstance(v, tuple) else v for n, v in {**defaults, **given}.items()}
    tree: dict[str, Any] = {}
    for name in values if "${" in str(values) else given:  # of the defaults OmegaConf would take milliseconds
        *groups, last = name.split(".")
        inner = tree
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[last] = values[name]
    try:
        resolved = OmegaConf.to_container(OmegaConf.create(tree), resolve=True)
    except OmegaConfBaseException as error:
        wrong = next((f"{n}={shown(v)}" for n, v in values.items() if "${" in str(v)), "the settings")
        raise SettingsError(f"{wrong} cannot be read: {str(error).splitlines()[0]}") from error
    assert isinstance(resolved, dict)
    return dict(flat_values(values)) | dict(flat_values({str(key): value for key, value in resolved.items()}))


def _typed(
    kind: type[Settings], values: Mapping[str, Any], declared: Mapping[str, Declared], groups: Mapping[str, Any]
) -> Settings:
    """The settings as the dataclass `kind`, every value checked."""
    checked: dict[str, Any] = {}
    for name, d in declared.items():
        value = values.get(name, {} if d.default == {} else None)
        if isinstance(value, list) and name.partition(".")[0] in SIDE_BY_SIDE and not d.accepts(value):
            if not value or len(set(map(str, value))) < len(value):
                raise SettingsError(f"{name}: expected one or more different values, got {value}")
            for member in value:
                d.checked(name, member)
            checked[name] = value  # as written: it names the runs
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

    def filled(tree: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        group: dict[str, Any] = {}
        for key, value in tree.items():
            if isinstance(value, dict):
                group[key] = filled(value, f"{prefix}{key}.")
            else:
                group[key] = checked[prefix + key] if isinstance(value, Declared) else value
        return group

    plain = {name: value for name, value in checked.items() if "." not in name}
    plain |= {group: filled(tree, f"{group}.") for group, tree in groups.items()}
    if kind in DEFAULT_PRESET:
        plain["preset"] = values["preset"]
    return kind(**plain)


def checked_settings(make: type[Settings], given: Mapping[str, Any], prefix: str) -> Settings:
    """An instance of a dataclass that stands for itself (a launcher), from given settings and its defaults."""
    declared = settings_of(make)
    return make(**{name: declared[name].checked(prefix + name, value) for name, value in given.items()})
