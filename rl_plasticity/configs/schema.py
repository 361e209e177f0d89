"""What a run can be told, checked before anything is made: unknown names, wrong types, values out of range.

Command-line settings are Hydra's (``env=cheetah-run reg=spectral reg.coef=1e-3``), with two short forms of ours:
``env=NAME`` for ``env.name=NAME``, and ``reg=spectral+l2`` for several regularizers in a chain, whose settings are
``reg.l2.coef=...``. A list trains all its members side by side in one process, each with every seed:
``reg=[none,spectral,swr]``, ``reg.coef=[1e-5,1e-4]``, ``reset.every_updates=[1000,10000]``.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_type_hints

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rl_plasticity.errors import SettingsError, nearest

FOLDER = Path(__file__).parent
Settings = TypeVar("Settings")
FREE = ("reg", "reset", "task", "net", "optimizer")  # groups whose settings differ from choice to choice


class Is(NamedTuple):
    """What a setting must be, in words and as a test."""

    expected: str
    test: Callable[[Any], bool]


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


Count = Annotated[int, Is("an integer from 1 up", lambda v: _whole(v) and v >= 1)]
Natural = Annotated[int, Is("an integer from 0 up", lambda v: _whole(v) and v >= 0)]
NonNegative = Annotated[float, Is("a number from 0 up", lambda v: _number(v) and v >= 0)]
Positive = Annotated[float, Is("a number above 0", lambda v: _number(v) and v > 0)]
Fraction = Annotated[float, Is("a number from 0 to 1", lambda v: _number(v) and 0 <= v <= 1)]
MaybeNatural = Annotated[int | None, Is("an integer from 0 up or null", lambda v: v is None or (_whole(v) and v >= 0))]
MaybeCount = Annotated[int | None, Is("an integer from 1 up or null", lambda v: v is None or (_whole(v) and v >= 1))]
Maybe = Annotated[float | None, Is("a number or null", lambda v: v is None or _number(v))]
MaybePositive = Annotated[float | None, Is("a number above 0 or null", lambda v: v is None or (_number(v) and v > 0))]
Flag = Annotated[bool, Is("true or false", lambda v: isinstance(v, bool))]
AutoFlag = Annotated[bool | str, Is("true, false or auto", lambda v: isinstance(v, bool) or v == "auto")]
AutoCount = Annotated[int | str, Is("an integer from 1 up or auto", lambda v: v == "auto" or (_whole(v) and v >= 1))]
Widths = Annotated[
    list[int],
    Is(
        "a list of integers from 1 up",
        lambda v: isinstance(v, list) and v != [] and all(_whole(n) and n > 0 for n in v),
    ),
]
Word = Annotated[str, Is("a word", lambda v: isinstance(v, str))]
MaybeWord = Annotated[str | None, Is("a path or null", lambda v: v is None or isinstance(v, str))]
Camera = Annotated[
    int | str | None, Is("a number from -1 up, a name or null", lambda v: v is None or isinstance(v, str) or _whole(v))
]
Device = Annotated[str, Is("auto, cpu or cuda", lambda v: v in ("auto", "cpu", "cuda"))]
Logger = Annotated[str, Is("tensorboard or wandb", lambda v: v in ("tensorboard", "wandb"))]
Group = Annotated[dict[str, Any], Is("a group with a name", lambda v: isinstance(v, dict) and "name" in v)]


@dataclass
class Env:
    name: Word
    action_repeat: Count
    workers: Flag
    timeout_seconds: MaybePositive


@dataclass
class Agent:
    name: Word
    hidden: Widths
    layer_norm: Flag
    num_critics: Count
    lr: NonNegative
    discount: Fraction
    tau: Fraction
    init_alpha: Positive
    target_entropy: Maybe


@dataclass
class Train:
    env: Env
    reg: Group
    reset: Group
    agent: Agent
    preset: Word
    seed: Natural
    seeds: Count
    total_env_steps: Count
    replay_ratio: NonNegative
    random_env_steps: Natural
    buffer_size: Count
    batch_size: Count
    eval_every_env_steps: Count
    eval_episodes: Count
    checkpoint_every_env_steps: Count
    log_every_updates: Count
    measure_every_updates: Natural
    device: Device
    threads: AutoCount
    compile: AutoFlag
    logger: Logger
    out: Word
    resume: MaybeWord


@dataclass
class DataSet:
    name: Word
    root: MaybeWord
    train_size: MaybeCount
    validation: Natural
    augment: Flag


@dataclass
class Supervised:
    task: Group
    data: DataSet
    net: Group
    optimizer: Group
    reg: Group
    reset: Group
    preset: Word
    seed: Natural
    seeds: Count
    num_tasks: MaybeCount
    epochs_per_task: Count
    batch_size: Count
    lr: NonNegative
    eval_every_epochs: Count
    checkpoint_every_epochs: Count
    log_every_updates: Count
    measure_every_updates: Natural
    device: Device
    threads: AutoCount
    compile: AutoFlag
    logger: Logger
    out: Word
    resume: MaybeWord


@dataclass
class Evaluate:
    episodes: MaybeCount
    checkpoint: MaybeNatural
    seed: MaybeNatural
    run: MaybeNatural
    evaluation_seed: MaybeNatural
    deterministic: Flag
    device: Device
    out: MaybeWord


@dataclass
class Watch(Evaluate):
    camera: Camera
    width: MaybeCount
    height: MaybeCount


GROUPS: dict[type[Any], tuple[str, ...]] = {
    Evaluate: (),
    Watch: (),
    Train: ("env", "reg", "reset", "agent", "preset"),
    Supervised: ("task", "data", "net", "optimizer", "reg", "reset", "preset"),
}


def load(kind: type[Settings], arguments: Sequence[str]) -> Settings:
    """The settings of this `kind` that command-line `arguments` ask for.

    Raises:
        SettingsError: with one line that says what is wrong, what was expected and the nearest valid name.
    """
    choices: list[str] = []
    keys: list[tuple[str, Any]] = []
    reg: str | list[str] | None = None
    given: set[str] = set()
    for argument in arguments:
        name, value = parse(argument)  # e.g. "reg", "spectral"
        if name in given:
            raise SettingsError(f"{name} is given twice")
        given.add(name)
        if name not in GROUPS[kind]:
            keys.append((name, value))
        elif name == "env" and value not in _options(kind, "env"):
            keys.append(("env.name", value))
        elif name == "reg" and (isinstance(value, list) or "+" in str(value)):
            reg = value
        else:
            _check_option(kind, name, value)
            choices.append(f"{_folder(kind, name)}={value}")
    config = _compose(kind, choices)
    if reg is not None:
        config.reg = _several(kind, reg)
    known = _flat(config)
    for name, value in keys:
        if name not in known:
            if name.partition(".")[0] in ("reg", "reset") and "." in name and len(config[name.partition(".")[0]]) == 1:
                raise SettingsError(f"{name}: {name.partition('.')[0]}=none has no settings")
            settable = [k for k in known if k == "env.name" or not k.endswith(".name")]
            raise SettingsError(f"unknown setting {name!r}{nearest(name, [*GROUPS[kind], *settable])}")
        _set(config, name, value)
    if kind is Supervised and "reset.every_updates" in known and not any(n.startswith("reset.every") for n in given):
        # Where there are tasks, interventions come with them unless told otherwise.
        config.reset.every_updates, config.reset.every_tasks = None, 1
    return check(kind, config)


def load_saved(kind: type[Settings], path: Path) -> Settings:
    """The settings saved in a run's ``config.yaml``, checked like any others."""
    try:
        config = OmegaConf.load(path)
    except Exception as error:  # missing, unreadable, not YAML
        raise SettingsError(f"cannot read {path}: {str(error).splitlines()[0]}") from error
    if not isinstance(config, DictConfig):
        raise SettingsError(f"{path} holds no settings")
    return check(kind, config)


def check(kind: type[Settings], config: DictConfig) -> Settings:
    """`config` as typed settings.

    Raises:
        SettingsError: a missing or unknown setting, a wrong type, a value out of range.
    """
    try:
        plain = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise SettingsError(f"the settings cannot be read: {str(error).splitlines()[0]}") from error
    return _typed(kind, plain)


def dump(settings: Train | Supervised) -> str:
    """The settings as YAML; `load_saved` reads it back."""
    return OmegaConf.to_yaml(OmegaConf.create(asdict(settings)))


def describe(kind: type[Any]) -> str:
    """All groups with their options and all settings with their defaults, for ``--help``."""
    said = {"env": "NAME, a DeepMind Control task (cheetah-run) or a Gymnasium one (gym:Pendulum-v1)"}
    lines = [f"  {g}={said.get(g) or '|'.join(_options(kind, g))}" for g in GROUPS[kind]]
    settings = (FOLDER / f"{kind.__name__.lower()}.yaml").read_text().partition("\n\n")[2].splitlines()
    nested = {Train: ("env", "agent"), Supervised: ("data",)}
    for group in nested.get(kind, ()):
        file = FOLDER / group / {"env": "control.yaml", "agent": "sac.yaml", "data": "digits.yaml"}[group]
        settings += [f"{group}:", *(f"  {line}" for line in file.read_text().splitlines())]
    groups = ["Groups:", *lines, ""] if lines else []
    choices = [line for group in GROUPS[kind] if group in FREE for line in _settings_of_choices(kind, group)]
    choices = ["Settings of a choice:", *choices, ""] if choices else []
    return "\n".join([*groups, *choices, "Settings:", *(f"  {line}" for line in settings)])


def _settings_of_choices(kind: type[Any], group: str) -> Iterator[str]:
    for choice in _options(kind, group):
        config = OmegaConf.to_container(OmegaConf.load(FOLDER / group / f"{choice}.yaml"))
        assert isinstance(config, dict)
        own = [
            f"{group}.{key!s}={json.dumps(value)}".replace('"', "") for key, value in config.items() if key != "name"
        ]
        if own:
            yield "  " + f"{group}={choice}".ljust(23) + " ".join(own)


# ------------------------------------------------------------------------------------------------------------------


def parse(argument: str) -> tuple[str, Any]:
    """The name and the value of ``name=value``."""
    name, equals, path = argument.partition("=")
    if name in ("out", "resume") and equals:  # paths as the user wrote them, whatever characters they have
        return name, str(Path(path).expanduser())
    wrong = f"cannot read {argument!r}: settings are written name=value"
    try:
        override = OverridesParser.create().parse_override(argument)
    except HydraException as error:
        raise SettingsError(wrong) from error
    if override.is_sweep_override():
        raise SettingsError(f"{argument!r} names several values, one run takes one; for a run of each add -m")
    if override.is_add() or override.is_delete() or override.is_force_add() or override.package:
        raise SettingsError(wrong)
    return override.key_or_group, override.value()


def each(kind: type[Any], argument: str) -> list[str]:
    """The arguments that a sweep takes in turn for this one: ``seed=0,1``, ``seed=range(0,10)``, ``reg=glob(w*)``.

    Raises:
        SettingsError: it cannot be read, or names no value.
    """
    name = argument.partition("=")[0]
    if name in ("out", "resume"):
        return [argument]
    try:
        override = OverridesParser.create().parse_override(argument)
    except HydraException as error:
        raise SettingsError(f"cannot read {argument!r}: settings are written name=value or name=value,value") from error
    if not override.is_sweep_override():
        return [argument]
    value = override.value()
    if isinstance(value, Glob):
        values = list(value.filter(_options(kind, name))) if name in GROUPS[kind] else []
    elif override.is_discrete_sweep():
        values = list(override.sweep_string_iterator())
    else:
        raise SettingsError(f"{argument!r}: expected values or range() or glob(), which can be counted")
    if not values:
        raise SettingsError(f"{argument!r} names no value")
    return [f"{name}={one}" for one in values]


def _folder(kind: type[Any], group: str) -> str:
    """Where a group's files are; each command has its own presets."""
    return f"preset/{kind.__name__.lower()}" if group == "preset" else group


def _options(kind: type[Any], group: str) -> list[str]:
    return sorted(path.stem for path in (FOLDER / _folder(kind, group)).glob("*.yaml"))


def _check_option(kind: type[Any], group: str, value: object) -> None:
    options = _options(kind, group)
    if value not in options:
        raise SettingsError(f"unknown {group} {value!r}{nearest(value, options)}")


def _compose(kind: type[Any], choices: list[str]) -> DictConfig:
    with initialize_config_dir(str(FOLDER.resolve()), version_base="1.3"):
        config = compose(kind.__name__.lower(), overrides=choices)
    OmegaConf.set_struct(config, False)
    return config


def _several(kind: type[Any], reg: str | list[str]) -> dict[str, Any]:
    """The group `reg` of a chain, ``spectral+l2``, or of a list of methods (which may be chains) side by side."""
    side_by_side = not isinstance(reg, str)
    parts = [str(part) for part in reg] if side_by_side else str(reg).split("+")
    if not parts or len(set(parts)) < len(parts):
        raise SettingsError(f"reg: expected different regularizers, got {reg}")
    found: dict[str, Any] = {"name": "side_by_side" if side_by_side else "chain"}
    for part in parts:
        if side_by_side and "+" in part:
            found[part] = _several(kind, part)
        else:
            _check_option(kind, "reg", part)
            found[part] = _compose(kind, [f"reg={part}"]).reg
    return found


def _flat(config: DictConfig, prefix: str = "") -> list[str]:
    found = []
    for key, value in config.items():
        name = prefix + str(key)
        found += _flat(value, f"{name}.") if isinstance(value, DictConfig) else [name]
    return found


def _set(config: DictConfig, name: str, value: object) -> None:
    default = OmegaConf.select(config, name)
    if name.endswith(".name") and name != "env.name":
        raise SettingsError(f"{name} cannot be set: choose with {name.partition('.')[0]}=")
    group = name.partition(".")[0]
    if group in ("reg", "reset") and isinstance(value, list):  # side by side
        if not value or len(set(map(str, value))) < len(value):
            raise SettingsError(f"{name}: expected different values, got {value}")
        value = [_like(name, one, default) for one in value]
    elif group in FREE and "." in name:  # typed by their defaults
        value = _like(name, value, default)
    try:
        OmegaConf.update(config, name, value)
        OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise SettingsError(f"{name}={value!r}: {str(error).splitlines()[0]}") from error


def _like(name: str, value: object, default: object) -> object:
    """`value` if it has the type of `default`."""
    if name.startswith("reset.every_"):
        expected, good = "an integer or null", value is None or _whole(value)
    elif isinstance(default, bool):
        expected, good = "true or false", isinstance(value, bool)
    elif isinstance(default, int):
        expected, good = "an integer", _whole(value)
    elif isinstance(default, str):
        expected, good = "a word", isinstance(value, str)
    elif isinstance(default, ListConfig):
        expected, good = "a list of integers", isinstance(value, list) and all(_whole(v) for v in value)
    elif default is None:
        expected, good = "a number or null", value is None or _number(value)
    else:
        expected, good = "a number", _number(value)
    if not good:
        raise SettingsError(f"{name} must be {expected}, got {value!r}")
    return value


def _typed(kind: type[Settings], plain: object, prefix: str = "") -> Settings:
    """`plain` as the dataclass `kind`, every field checked."""
    if not isinstance(plain, dict):
        raise SettingsError(f"{prefix.removesuffix('.')} must be a group of settings, got {plain!r}")
    hints = get_type_hints(kind, include_extras=True)
    for key in plain:
        if key not in hints:
            raise SettingsError(f"unknown setting {prefix + str(key)!r}{nearest(key, hints)}")
    values: dict[str, Any] = {}
    for key, hint in hints.items():
        name = prefix + key
        if key not in plain:
            raise SettingsError(f"the setting {name!r} is missing")
        value = plain[key]
        if is_dataclass(hint):
            values[key] = _typed(hint, value, f"{name}.")  # type: ignore[arg-type]
            continue
        rule = get_args(hint)[1]
        if not rule.test(value):
            raise SettingsError(f"{name} must be {rule.expected}, got {value!r}")
        values[key] = float(value) if get_args(hint)[0] is float else value
    return kind(**values)
