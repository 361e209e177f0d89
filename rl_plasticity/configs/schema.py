"""What each command can be told, read from the constructors that use it, and checked before anything is made.

Command-line settings are written as Hydra's (``env=cheetah-run reg=spectral reg.coef=1e-3``): a group chooses one of
the things that the package, or a plug, offers by name, and ``group.setting`` is an argument of its constructor. Short
forms of ours: ``env=NAME`` for ``env.name=NAME``, and ``reg=spectral+l2`` for several regularizers in a chain, whose
settings are ``reg.l2.coef=...``. A list trains all its members side by side in one process, each with every seed:
``reg=[none,spectral,swr]``, ``reset=[none,periodic]``, ``reg.coef=[1e-5,1e-4]``, ``reset.every_updates=[1000,10000]``.
A preset is a set of such settings, which come before those of the command line (`presets`).
"""

import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rl_plasticity import plugins
from rl_plasticity.agents import AGENTS
from rl_plasticity.configs import presets as files
from rl_plasticity.envs import Envs
from rl_plasticity.errors import SettingsError, nearest, shown
from rl_plasticity.interventions import INTERVENTIONS
from rl_plasticity.networks import NETWORKS, make_network
from rl_plasticity.optimizers import OPTIMIZERS
from rl_plasticity.paths import expanded
from rl_plasticity.plugins import Plugins
from rl_plasticity.regularizers import REGULARIZERS, Windowed, require_window
from rl_plasticity.settings import Declared, Setting, is_list, settings_of
from rl_plasticity.tasks import DATA, TASKS
from rl_plasticity.tasks import load as load_data

Settings = TypeVar("Settings")
Group = dict[str, Any]  # the name of what was chosen, and its settings
PATHS = ("out", "resume", "data.root")  # settings that are taken as they are written
SIDE_BY_SIDE = {"reg": "regularizers", "reset": "interventions"}  # groups that, as their settings, may be lists
# What earlier versions did that did not have a setting, by the choice, or the group of the command, that has it.
_CNN = {"net.channels": 16, "net.widths": [100], "net.padding": True, "net.init": "orthogonal"}
BEFORE: dict[str, dict[str, Any]] = {
    "agent=sac": {"agent.init": "orthogonal", "agent.temperature_loss": "alpha"},
    "net=mlp": {"net.init": "orthogonal"},
    "net=cnn": _CNN,
    "net=cnn_bn": _CNN,
    "net=vgg16": {"net.hidden_layers": 2},
    "net=vgg16_bn": {"net.hidden_layers": 2},
    "net=resnet18": {"net.norm": "batch", "net.activation": "relu"},
    "net=wrn28_10": {"net.norm_after_every_conv": False},
    "net=vit_tiny": {"net.activation": "gelu"},
    "env": {
        "precision": "float32",
        "bfloat16_from": None,
        "overlap": False,
        "prime_updates": 0,
        "prime_after_env_steps": 100,
        "on_change": "keep",
        "env.sequence": [],
        "env.switch_every_env_steps": None,
        "env.changes": [],
        "env.shift_std": 1.0,
        "env.dynamics_factor": 2.0,
    },
    "task": {
        "precision": "float32",
        "bfloat16_from": None,
        "data.validation_from": "test",
        "measure_every_epochs": None,
        "measure_tasks": False,
        "measure_steps": False,
        "measure_channels": None,
        "measure_span_images": 0,
    },
}

Threads = Annotated[int | Literal["auto"], Setting("of torch", least=1, most=1024, belongs_to="machine")]
Device = Annotated[Literal["auto", "cpu", "cuda"], Setting("where the tensors live", belongs_to="machine")]
Compile = Annotated[bool | Literal["auto"], Setting("auto: where it pays for itself", belongs_to="machine")]
Precision = Annotated[
    Literal["float32", "bfloat16", "tf32", "auto"],
    Setting("what large matrix products read; auto: bfloat16 where the machine has units for it"),
]
From = Annotated[
    int | None,
    Setting("least width of layers that read bfloat16; null: measured at the start", least=1, belongs_to="machine"),
]
Logger = Annotated[
    Literal["tensorboard", "wandb"],
    Setting("wandb: Weights & Biases as well; offline unless you are logged in there", belongs_to="machine"),
]
Out = Annotated[str, Setting("the run's folder; auto: results/ and a short name", belongs_to="machine")]
Resume = Annotated[str | None, Setting("a run's folder: continue it", belongs_to="machine")]
LogEvery = Annotated[int, Setting(least=1, belongs_to="watched")]
First = Annotated[int, Setting("of the first run", least=0)]
Runs = Annotated[int, Setting("how many runs train at once, with consecutive seeds", least=1)]


def window_in_epochs(
    updates_after: Callable[[int], int],
    from_epoch: Annotated[int, Setting("the method begins after so many epochs of the whole run", least=0)] = 0,
    until_epoch: Annotated[int | None, Setting("and ends after so many; null: never", least=1)] = None,
) -> dict[str, int | None]:
    """A regularizer's window in updates (`Windowed`), of one in epochs; `updates_after` so many epochs.

    Raises:
        SettingsError: it ends before it begins.
    """
    require_window("epoch", from_epoch, until_epoch)
    until_update = None if until_epoch is None else updates_after(until_epoch)
    return {"from_update": updates_after(from_epoch), "until_update": until_update}


@dataclass(frozen=True, kw_only=True)
class Train:
    """Settings of ``rl_plasticity.train``; the defaults are those of Lewandowski et al. (2024), Appendix B."""

    env: Group
    reg: Group
    reset: Group
    agent: Group
    preset: str
    seed: First = 0
    seeds: Runs = 1
    total_env_steps: Annotated[int, Setting("of each run", least=1)] = 1_000_000
    replay_ratio: Annotated[float, Setting("updates per env step", least=0)] = 16.0
    random_env_steps: Annotated[int, Setting("uniformly random actions first", least=0)] = 10_000
    prime_updates: Annotated[int, Setting("so many at once on the first transitions (heavy priming)", least=0)] = 0
    prime_after_env_steps: Annotated[int, Setting("when there are so many transitions", least=1)] = 100
    buffer_size: Annotated[int, Setting("transitions of each run", least=1)] = 1_000_000
    on_change: Annotated[Literal["keep", "clear"], Setting("the replay buffer when the task changes")] = "keep"
    batch_size: Annotated[int, Setting("transitions in an update", least=1)] = 256
    eval_every_env_steps: Annotated[int, Setting(least=1, belongs_to="watched")] = 10_000
    eval_episodes: Annotated[int, Setting("in an evaluation", least=1)] = 10
    checkpoint_every_env_steps: Annotated[int, Setting(least=1, belongs_to="watched")] = 50_000
    log_every_updates: LogEvery = 16_000
    measure_every_updates: Annotated[
        int, Setting("plasticity metrics on frozen transitions; 0: never", least=0, belongs_to="watched")
    ] = 16_000
    device: Device = "auto"
    threads: Threads = "auto"
    compile: Compile = "auto"
    precision: Precision = "float32"
    bfloat16_from: From = None
    logger: Logger = "tensorboard"
    overlap: Annotated[bool, Setting("updates beside the env step, without its transition: for GPUs")] = False
    allow_lost_rows: Annotated[
        bool,
        Setting("resume without the transitions of a damaged file; they are counted first", belongs_to="machine"),
    ] = False
    out: Out = "auto"
    resume: Resume = None


def updates_after(learning_steps: int, replay_ratio: float) -> int:
    """Updates that were made after so many env steps of learning, which begins after the random ones."""
    return max(0, math.floor(learning_steps * replay_ratio + 1e-6))  # 1300 * 0.7 is 910


@dataclass(frozen=True, kw_only=True)
class Supervised:
    """Settings of ``rl_plasticity.supervised``."""

    task: Group
    data: Group
    net: Group
    optimizer: Group
    reg: Group
    reset: Group
    preset: str
    seed: First = 0
    seeds: Runs = 1
    num_tasks: Annotated[int | None, Setting("null: the task sequence's own number", least=1)] = None
    epochs_per_task: Annotated[int, Setting("passes over the images of a task", least=1)] = 100
    batch_size: Annotated[int, Setting("images in an update", least=1)] = 256
    lr: Annotated[float, Setting("the optimizer's learning rate", least=0)] = 1e-3
    eval_every_epochs: Annotated[int, Setting("and at the end of each task", least=1, belongs_to="watched")] = 10
    checkpoint_every_epochs: Annotated[int, Setting(least=1, belongs_to="watched")] = 50
    log_every_updates: LogEvery = 500
    measure_every_updates: Annotated[
        int,
        Setting("plasticity metrics on frozen images, at the end of a task; 0: never", least=0, belongs_to="watched"),
    ] = 5000
    measure_every_epochs: Annotated[
        int | None, Setting("the same at the end of an epoch; null: as above", least=1, belongs_to="watched")
    ] = None
    measure_tasks: Annotated[
        bool, Setting("how far hidden activations move from task start to task start", belongs_to="watched")
    ] = False
    measure_steps: Annotated[
        bool, Setting("each layer's applied step over its weight, when updates are logged", belongs_to="watched")
    ] = False
    measure_channels: Annotated[
        int | str | None,
        Setting("a layer: the norm of each of its channels, at each measurement", belongs_to="watched"),
    ] = None
    measure_span_images: Annotated[
        int,
        Setting("shape of kernels in the span of their inputs from so many; 0: never", least=0, belongs_to="watched"),
    ] = 0
    device: Device = "auto"
    threads: Threads = "auto"
    compile: Compile = "auto"
    precision: Precision = "float32"
    bfloat16_from: From = None
    logger: Logger = "tensorboard"
    out: Out = "auto"
    resume: Resume = None


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Settings of ``rl_plasticity.evaluate``, besides the run's folder."""

    episodes: Annotated[int | None, Setting("of each run; null: the run's eval_episodes", least=1)] = None
    checkpoint: Annotated[int | None, Setting("env step of the checkpoint; null: the newest", least=0)] = None
    seed: Annotated[int | None, Setting("of the run to evaluate; null: all runs of the folder", least=0)] = None
    run: Annotated[
        int | None, Setting("its position in the folder, from 0, where several settings trained side by side", least=0)
    ] = None
    evaluation_seed: Annotated[
        int | None, Setting("of the start states; null: those of the run's own evaluation at this env step", least=0)
    ] = None
    deterministic: Annotated[bool, Setting("false: sampled actions")] = True
    device: Annotated[Literal["auto", "cpu", "cuda"], Setting("auto: the run's own, cpu if it is not here")] = "auto"
    out: Annotated[str | None, Setting("FILE.csv for each episode's return; null: only print")] = None
    plugins: Plugins = ()


@dataclass(frozen=True, kw_only=True)
class Watch(Evaluate):
    """Settings of ``rl_plasticity.watch``, besides the run's folder."""

    episodes: Annotated[
        int | None, Setting("one after another in one video; null: the run's eval_episodes", least=1)
    ] = 1
    seed: Annotated[int | None, Setting("of the run to watch; null: the folder's first", least=0)] = None
    run: Annotated[
        int | None, Setting("its position in the folder, from 0: needed where settings trained side by side", least=0)
    ] = None
    out: Annotated[str | None, Setting("FILE.mp4; null: video_STEP_seedN.mp4 in the run's folder")] = None
    camera: Annotated[
        int | str | None, Setting("number or name, -1: a free one; null: 0 (gym: tasks: their own)", least=-1)
    ] = None
    width: Annotated[int | None, Setting("pixels; null: 640 (gym: tasks: their own)", least=1, most=8192)] = None
    height: Annotated[int | None, Setting("pixels; null: 480 (gym: tasks: their own)", least=1, most=8192)] = None


class Kind(NamedTuple):
    """What a group chooses from.

    Args:
        choices: the public dict.
        default: the choice that is taken unless another is named.
        common: functions whose settings all choices but `none` have besides their own.
        given: arguments that the command gives, which are no settings.
    """

    choices: Mapping[str, Callable[..., Any]]
    default: str
    common: tuple[Callable[..., Any], ...] = ()
    given: tuple[str, ...] = ()

    def shared(self) -> dict[str, Declared]:
        """The settings that all choices have besides their own."""
        return {name: declared for one in self.common for name, declared in settings_of(one, self.given).items()}

    def settings(self, choice: str) -> dict[str, Declared]:
        """Those of one choice."""
        common = self.shared() if choice != "none" else {}
        make = self.choices.get(choice)
        own = settings_of(make, self.given) if make else {}
        return {name: declared for name, declared in own.items() if name not in common} | common


KINDS: dict[str, Kind] = {
    "env": Kind({}, "cheetah-run", (Envs,), ("render", "change_seeds")),
    "reg": Kind(REGULARIZERS, "none", (Windowed, window_in_epochs)),
    "reset": Kind(INTERVENTIONS, "none"),
    "agent": Kind(AGENTS, "sac", given=("regularize", "device")),
    "task": Kind(TASKS, "random_labels", given=("num_tasks",)),
    "data": Kind(DATA, "digits", (load_data,)),
    "net": Kind(NETWORKS, "mlp", (make_network,)),
    "optimizer": Kind(OPTIMIZERS, "adam", given=("lr",)),
}
GROUPS: dict[type[Any], tuple[str, ...]] = {
    Evaluate: (),
    Watch: (),
    Train: ("env", "reg", "reset", "agent"),
    Supervised: ("task", "data", "net", "optimizer", "reg", "reset"),
}
# Settings that a command does not have: windows are in epochs where there are epochs, and in updates elsewhere.
LEFT_OUT: dict[type[Any] | None, tuple[str, ...]] = {
    Train: ("reg.from_epoch", "reg.until_epoch"),
    Supervised: ("reg.from_update", "reg.until_update"),
}
EACH_TASK = {"every_updates": None, "every_tasks": 1}  # when interventions come where there are tasks
DEFAULT_PRESET = {Train: "paper", Supervised: "none"}


class Given(NamedTuple):
    """One setting that was asked for."""

    name: str
    value: Any
    text: str  # as it was written


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
    if kind in DEFAULT_PRESET:
        load_plugs(given.pop("plugins", []))
        given = _with_preset(kind, given)
    sequence = _words(given.get("env.sequence"))
    if kind is Train and sequence:
        given.setdefault("env", sequence[0])
    groups = {group: _chosen(group, given.pop(group, KINDS[group].default), kind) for group in GROUPS[kind]}
    for env in (str(groups["env"]["name"].default), *sequence) if kind is Train else ():
        if module := plugins.module_of(env):
            plugins.load_one(module, f"env {env!r}")  # it is named as any plug is
    if kind is Supervised:  # where there are tasks, interventions come with them unless told otherwise
        for prefix, tree in members("reset", groups["reset"]):
            if "every_updates" in tree and not any(name.startswith(f"{prefix}.every") for name in given):
                given |= {f"{prefix}.{name}": value for name, value in EACH_TASK.items()}
    declared = settings_of(kind) | _flat(groups)
    for name in given:
        if name not in declared and name != "preset":
            raise _unknown(kind, name, declared, groups)
    values = {name: d.default for name, d in declared.items()} | given
    return _typed(kind, _resolved(values), declared, groups)


def _words(value: Any) -> list[str]:
    """The words in a list; none in what is no list. That it is one of words alone is checked later."""
    return [one for one in value if isinstance(one, str)] if isinstance(value, list | tuple) else []


def load_plugs(named: Any) -> None:
    """Load the plugs that the setting ``plugins`` names.

    Raises:
        SettingsError: it is no list of names, or one cannot be imported.
    """
    plugins.load(settings_of(plugins.load)["plugins"].checked("plugins", named))


def load_plugs_of(arguments: Iterable[str]) -> None:
    """Load the plugs that these arguments name, before any of the others is looked at.

    Raises:
        SettingsError: see `load_plugs`.
    """
    for argument in arguments:
        if argument.startswith("plugins="):
            load_plugs(parse(argument).value)


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
        groups[group] = _chosen(group, choice_of(choice), kind)
        for name in (str(choice["name"]), *_words(choice.get("sequence"))) if group == "env" else ():
            if (module := plugins.module_of(name)) and module not in plugins.loaded:
                raise SettingsError(f"env {name!r}: no saved settings load the module {module!r}")
    declared = settings_of(kind) | _flat(groups)
    values = up_to_date(dict(flat_values(saved)))
    values = {name: value for name, value in values.items() if name == "env.name" or not _is_name(name)}
    for name in values:
        if name not in declared and name != "preset":
            raise SettingsError(f"unknown setting {shown(name)}{nearest(name, declared)}")
    # What makes no other run of it may be younger than the run.
    values = {name: d.default for name, d in declared.items() if d.setting.belongs_to == "machine"} | values
    for name in (*declared, "preset"):
        if name not in values:
            raise SettingsError(f"the setting {name!r} is missing")
    return _typed(kind, values, declared, groups)


def up_to_date(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Flat settings that an earlier version may have saved, with the settings that there are now."""
    values = dict(saved)
    for choice, settings in BEFORE.items():
        group, _, name = choice.partition("=")
        chosen = values.get(f"{group}.name")
        values = settings | values if chosen is not None and name in ("", chosen) else values
    unit = "update" if "env.name" in values else "epoch"
    window: dict[str, Any] = {f"from_{unit}": 0, f"until_{unit}": None}
    for name, choice in saved.items():
        if not _is_name(name):
            continue
        since: dict[str, Any] = {}
        if name.startswith("reg.") and choice in REGULARIZERS and choice != "none":
            since = window | ({"of": "all"} if choice in ("l2", "weight_decay") else {})
        if name.startswith("reset.") and choice in INTERVENTIONS:  # reinforcement learning had no tasks
            since = {n: None for n in settings_of(INTERVENTIONS[choice]) if n == "every_tasks"}
        for setting, value in since.items():  # behind the others: the order of a chain's parts is its own
            values.setdefault(f"{name.removesuffix('name')}{setting}", value)
    return values


def dump(settings: Train | Supervised) -> str:
    """The settings as YAML; `load_saved` reads it back."""
    return OmegaConf.to_yaml(OmegaConf.create(asdict(settings)))


def marked(kind: Any, belongs_to: str) -> tuple[str, ...]:
    """The names of the settings of a command that belong to the ``machine`` or to what is ``watched``."""
    return _marked(kind, belongs_to)


@cache  # it is asked of every run of a sweep
def _marked(kind: Any, belongs_to: str) -> tuple[str, ...]:
    groups = {group: _chosen(group, KINDS[group].default) for group in GROUPS[kind]}
    return tuple(name for name, d in (settings_of(kind) | _flat(groups)).items() if d.setting.belongs_to == belongs_to)


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
    declared = _flat({name: _chosen(name, choice_of(group))})
    for setting, value in flat_values(group, f"{name}."):
        if setting in declared and isinstance(value, list) and not declared[setting].accepts(value):
            yield setting, value, declared[setting]


# --- help -----------------------------------------------------------------------------------------------------------


def describe(kind: type[Any]) -> str:
    """All groups with their choices, what presets set, and all settings with their defaults, for ``--help``."""
    lines: list[str] = []
    if GROUPS[kind]:
        lines.append("Groups, each with its default and what there is:")
        for group in GROUPS[kind]:
            choices = "|".join(_choices(group))
            if group == "env":
                choices = "NAME, of DeepMind Control (cheetah-run) or Gymnasium (gym:Pendulum-v1, gym:my_module:My-v0)"
            lines.append(f"  {f'{group}={KINDS[group].default}':34} {choices}")
        lines += [f"  {f'preset={DEFAULT_PRESET[kind]}':34} {'|'.join(presets(kind))}"]
        if "reg" in GROUPS[kind]:
            lines += ["", "  reg=spectral+l2 chains regularizers. A list trains its members side by side, each with"]
            lines += ["  every seed: reg=[none,spectral], reg.coef=[1e-5,1e-4], reset=[none,periodic], whose"]
            lines += ["  settings are reset.periodic.every_updates=..."]
        lines += ["", "What a preset sets; what you give besides has the last word:"]
        lines += files.described(_command(kind), as_written)
        lines += ["", "Settings of a choice, each with its default:"]
        for group in GROUPS[kind]:
            left_out = ("env.render", *LEFT_OUT.get(kind, ()))
            common = {n: d for n, d in KINDS[group].shared().items() if f"{group}.{n}" not in left_out}
            for choice in KINDS[group].choices:
                settings = _flat({group: _chosen(group, choice, kind)})
                settings = {n: d for n, d in settings.items() if n.partition(".")[2] not in common}
                if kind is Supervised and "reset.every_tasks" in settings:
                    for name, value in EACH_TASK.items():
                        settings[f"reset.{name}"] = settings[f"reset.{name}"]._replace(default=value)
                if settings:
                    lines.append(f"  {group}={choice}")
                lines += [f"  {_described(name, d)}" for name, d in settings.items()]
            if common:
                lines.append(f"  {group}, any")
            lines += [f"  {_described(f'{group}.{name}', d)}" for name, d in common.items()]
        lines.append("")
    lines.append("Settings, each with its default:")
    lines += [_described(name, declared) for name, declared in settings_of(kind).items()]
    if GROUPS[kind]:
        lines += [_described(name, declared) for name, declared in settings_of(plugins.load).items()]
    return "\n".join(lines)


def _choices(group: str) -> list[str]:
    return [*(["none"] if group == "reset" else []), *KINDS[group].choices]


def _described(name: str, declared: Declared) -> str:
    words = f"{declared.setting.help} ({declared.expected})" if declared.setting.help else declared.expected
    return f"  {f'{name}={as_written(declared.default)}':34} {words}"


def as_written(value: Any) -> str:
    """A value as the command line takes it."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(as_written, value))}]"
    if isinstance(value, float):
        return f"{value:g}"
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else "null" if value is None else str(value)


# --- the command line -----------------------------------------------------------------------------------------------


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
        raise SettingsError(f"{shown(argument)} names several values, one run takes one; for a run of each add -m")
    if override.is_add() or override.is_delete() or override.is_force_add() or override.package:
        raise SettingsError(wrong)
    return Given(override.key_or_group, override.value(), argument)


def parse_path(argument: str) -> Given | None:
    """A setting of `PATHS` with the path as it was written, whatever characters it has; None for others."""
    name, equals, path = argument.partition("=")
    if name in ("out", "resume") and equals and not path:
        raise SettingsError(f"{name} needs a value: {name}=FOLDER")
    if name not in PATHS or not equals or (name == "data.root" and path == "null"):
        return None
    return Given(name, str(expanded(path)), argument)


def _override(argument: str, wrong: str) -> Override:
    """Raises SettingsError that says `wrong` if hydra cannot read it."""
    try:
        return _parser().parse_override(argument)
    except (HydraException, ValueError) as error:  # an integer of thousands of digits
        raise SettingsError(wrong) from error


@cache
def _parser() -> OverridesParser:
    return OverridesParser.create()


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
    value = override.value()
    if isinstance(value, Glob):
        choices = presets(kind) if name == "preset" else KINDS[name].choices if name in GROUPS[kind] else {}
        values = list(value.filter(sorted(choices)))
    elif override.is_discrete_sweep():
        values = list(override.sweep_string_iterator())
    else:
        raise SettingsError(f"{shown(argument)}: expected values or range() or glob(), which can be counted")
    if not values:
        raise SettingsError(f"{shown(argument)} names no value")
    return [f"{name}={member}" for member in values]


def presets(kind: type[Any]) -> list[str]:
    """The names of a command's presets."""
    return files.names(_command(kind))


def warn_of_unlike(s: Train | Supervised) -> None:
    """Warn, in one line, where the paper of the preset did not use what was chosen."""
    chosen = {group: choice_of(getattr(s, group)) for group in GROUPS[type(s)]}
    if unlike := files.unlike(_command(type(s)), s.preset, chosen):
        warnings.warn(unlike, stacklevel=2)


# --- groups and their choices ---------------------------------------------------------------------------------------


def _command(kind: type[Any]) -> str:
    return kind.__name__.lower()


def _with_preset(kind: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The preset's settings, and over them those that were given."""
    name = given.get("preset", DEFAULT_PRESET[kind])
    if name not in presets(kind):
        raise SettingsError(f"unknown preset {shown(name)}{nearest(name, presets(kind))}")
    defaults = {group: KINDS[group].default for group in GROUPS[kind]}
    return {**files.settings(_command(kind), name, given, defaults), **given, "preset": name}


def _chosen(group: str, choice: Any, command: type[Any] | None = None) -> dict[str, Any]:
    """A tree of what a choice can be told: names of what was chosen, and declared settings (of all commands)."""
    kind = KINDS[group]
    if group == "env":
        return {"name": Declared((str,), choice, Setting()), **kind.settings("")}
    if (group in SIDE_BY_SIDE and isinstance(choice, list)) or (
        group == "reg" and isinstance(choice, str) and "+" in choice
    ):
        return _several(group, choice, command)
    if choice == "none" and group == "reset":
        return {"name": "none"}
    if not isinstance(choice, str) or choice not in kind.choices:
        raise SettingsError(f"unknown {group} {shown(choice)}{nearest(choice, _choices(group))}")
    left_out = LEFT_OUT.get(command, ())
    return {"name": choice, **{n: d for n, d in kind.settings(choice).items() if f"{group}.{n}" not in left_out}}


def _several(group: str, choice: str | list[Any], command: type[Any] | None) -> dict[str, Any]:
    """A group with several choices: the chain ``spectral+l2``, or a list (in which chains may be) side by side."""
    parts = [str(part) for part in choice] if isinstance(choice, list) else choice.split("+")
    if not parts or len(set(parts)) < len(parts):
        raise SettingsError(f"{group}: expected one or more different {SIDE_BY_SIDE[group]}, got {choice}")
    name = "side_by_side" if isinstance(choice, list) else "chain"
    return {"name": name, **{part: _chosen(group, part, command) for part in parts}}


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Declared]:
    """The declared settings of a tree by dotted name."""
    settings: dict[str, Declared] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            settings |= _flat(value, f"{prefix}{key}.")
        elif isinstance(value, Declared):
            settings[prefix + key] = value
    return settings


def flat_values(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat_values(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _is_name(name: str) -> bool:
    return name.endswith(".name")


def _unknown(kind: type[Any], name: str, declared: Mapping[str, Declared], groups: Mapping[str, Any]) -> SettingsError:
    group = name.partition(".")[0]
    if _is_name(name) and group in groups:
        return SettingsError(f"{name} cannot be set: choose with {group}=")
    if group in groups and "." in name and groups[group].keys() == {"name"}:
        return SettingsError(f"{name}: {group}={groups[group]['name']} has no settings")
    of_each = [d for d in declared if d.startswith(f"{group}.") and d.rpartition(".")[2] == name.rpartition(".")[2]]
    if group in groups and name.count(".") == 1 and len(of_each) > 1:
        return SettingsError(f"{name}: each of several has its own, {' and '.join(of_each)}")
    return SettingsError(f"unknown setting {shown(name)}{nearest(name, [*GROUPS[kind], *declared])}")


def _resolved(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with ``${name}`` replaced by what the setting of that name is."""
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *groups, last = name.split(".")
        inner = tree
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[last] = list(value) if isinstance(value, tuple) else value
    try:
        resolved = OmegaConf.to_container(OmegaConf.create(tree), resolve=True)
    except OmegaConfBaseException as error:
        wrong = next((f"{n}={shown(v)}" for n, v in values.items() if "${" in str(v)), "the settings")
        raise SettingsError(f"{wrong} cannot be read: {str(error).splitlines()[0]}") from error
    assert isinstance(resolved, dict)
    return dict(flat_values({str(key): value for key, value in resolved.items()}))


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
        elif isinstance(value, list) and not any(map(is_list, d.kinds)):
            values_of = ",".join(map(as_written, value))
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
