"""The settings of each command with their defaults, and the groups of choices that it takes."""

import keyword
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from rl_plasticity.settings import Declared, Setting, settings_of

# The groups whose choice may be a list that trains side by side, and whose settings may be such lists too.
SIDE_BY_SIDE = {"reg": "regularizers", "reset": "interventions"}

RunDevice = Annotated[Literal["auto", "cpu", "cuda"], Setting("device; auto: the run's own, or cpu without a GPU")]
Position = Annotated[
    int | None,
    Setting("index of the run in the folder, from 0, if several settings trained side by side", least=0),
]


class Several(list[Any]):
    """Several values of one setting of a regularizer or an intervention, each for its own runs."""


@dataclass(frozen=True)
class Group:
    """The choice from a group, with its settings as attributes: ``s.env.action_repeat``.

    Args:
        name: as it is written: ``spectral``, the chain ``spectral+l2``, or a list of those that train side by side.
        settings: arguments of the constructor; for a chain or a list by the member too, ``l2.coef``.
    """

    name: Any
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __getattr__(self, setting: str) -> Any:
        try:
            return vars(self)["settings"][setting]
        except KeyError:  # also while it is unpickled, when it has no settings yet
            raise AttributeError(f"no setting {setting!r}") from None

    @property
    def chained(self) -> list["Group"]:
        """The regularizers of a chain, each with its own settings; none for any other choice."""
        return self._each(members_of(self.name)) if isinstance(self.name, str) else []

    @property
    def side_by_side(self) -> list["Group"]:
        """The choices that train side by side: the members of a list, else the group itself."""
        return self._each(self.name) if isinstance(self.name, list) else [self]

    def _each(self, names: Sequence[str]) -> list["Group"]:
        settings = self.settings.items()
        return [Group(n, {k.removeprefix(f"{n}."): v for k, v in settings if k.startswith(f"{n}.")}) for n in names]


def members_of(choice: Any) -> list[str]:
    """The members of a list or a chain; none for a single choice."""
    if isinstance(choice, list):
        return choice
    return choice.split("+") if isinstance(choice, str) and "+" in choice else []


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The settings of both commands that train."""

    preset: str
    seed: Annotated[int, Setting("seed of the first run", least=0)] = 0
    seeds: Annotated[int, Setting("number of runs that train together, with consecutive seeds", least=1)] = 1
    batch_size: Annotated[int, Setting("transitions or images per update", least=1)] = 256
    log_every_updates: Annotated[
        int | Literal["auto"],
        Setting(
            "updates between logged losses and norms; auto: 1/60 of the run, at most 16000 (supervised: 500)",
            least=1,
            belongs_to="watched",
        ),
    ] = "auto"
    measure_every_updates: Annotated[
        int | Literal["auto"],
        Setting(
            "updates between measurements of plasticity (supervised: made at the end of a task); "
            "auto: 1/60 of the run, at most 16000 (supervised: 5000); 0: never",
            least=0,
            belongs_to="watched",
        ),
    ] = "auto"
    diagnose_every_updates: Annotated[
        int | None,
        Setting(
            "updates between trials of how much the networks learn compared with fresh ones; null: never",
            least=1,
            belongs_to="watched",
        ),
    ] = None
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        Setting(
            "device to train on; auto: CUDA if there is a GPU; CUDA_VISIBLE_DEVICES picks one of several",
            belongs_to="machine",
        ),
    ] = "auto"
    threads: Annotated[
        int | Literal["auto"],
        Setting(
            "CPU threads: several runs share them, a single run uses them inside torch; auto: 1 for a single run "
            "of stacked networks, else all cores",
            least=1,
            most=1024,
            belongs_to="machine",
        ),
    ] = "auto"
    compile: Annotated[
        bool | Literal["auto"], Setting("whether to compile the update; auto: if it saves time", belongs_to="machine")
    ] = "auto"
    precision: Annotated[
        Literal["float32", "bfloat16", "tf32", "auto"],
        Setting("number format for large matrix products; auto: bfloat16 if the hardware supports it"),
    ] = "float32"
    bfloat16_from: Annotated[
        int | None,
        Setting(
            "smallest width of a layer that uses bfloat16; null: measured at the start", least=1, belongs_to="machine"
        ),
    ] = None
    onednn_from: Annotated[
        int | None,
        Setting(
            "smallest width of a layer that uses oneDNN for float32 on a CPU; null: measured once per machine",
            least=1,
            belongs_to="machine",
        ),
    ] = None
    out: Annotated[
        str, Setting("folder of the run; auto: results/ and a name made of the settings", belongs_to="machine")
    ] = "auto"
    resume: Annotated[str | None, Setting("folder of the run to continue", belongs_to="machine")] = None
    from_: Annotated[str | None, Setting("folder of the run to branch from, at one of its checkpoints")] = None
    at: Annotated[
        int | None, Setting("env step or epoch of the checkpoint to branch from; null: the newest", least=0)
    ] = None
    reset_once_after_updates: Annotated[
        int | None,
        Setting("reset only once, after this many updates; in a branch, its parent's updates count too", least=1),
    ] = None

    @property
    def groups(self) -> dict[str, Group]:
        """The choice from each group, by the group's name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Group)}

    @property
    def flat(self) -> dict[str, Any]:
        """All settings by dotted name, as on the command line; those in `OPTIONAL` only where they are given."""
        values = {as_written_name(name): value for name, value in vars(self).items() if not isinstance(value, Group)}
        for name, group in self.groups.items():
            values |= {f"{name}.name": group.name} | {f"{name}.{key}": value for key, value in group.settings.items()}
        values = {name: value for name, value in values.items() if not (name in OPTIONAL and value in (None, []))}
        return {name: [*value] if isinstance(value, Several) else value for name, value in values.items()}


@dataclass(frozen=True, kw_only=True)
class Train(RunSettings):
    """Settings of ``rl_plasticity.train``; the defaults are those of Lewandowski et al. (2024), Appendix B."""

    env: Group
    reg: Group
    reset: Group
    agent: Group
    total_env_steps: Annotated[int, Setting("env steps of each run", least=1)] = 1_000_000
    replay_ratio: Annotated[float, Setting("updates per env step", least=0)] = 16.0
    random_env_steps: Annotated[int, Setting("env steps with random actions at the start", least=0)] = 10_000
    prime_updates: Annotated[int, Setting("updates made at once on the first transitions (heavy priming)", least=0)] = 0
    prime_after_env_steps: Annotated[int, Setting("transitions collected before priming", least=1)] = 100
    buffer_size: Annotated[int, Setting("transitions that each run's replay buffer keeps", least=1)] = 1_000_000
    on_change: Annotated[
        Literal["keep", "clear", "restart"],
        Setting(
            "at a change of task: keep the replay buffer, clear it, or clear it and restart exploration, beginning "
            "with random actions"
        ),
    ] = "keep"
    eval_every_env_steps: Annotated[
        int, Setting("env steps between two evaluations", least=1, belongs_to="watched")
    ] = 10_000
    eval_episodes: Annotated[int, Setting("episodes per evaluation; 0: no evaluation", least=0)] = 10
    checkpoint_every_env_steps: Annotated[
        int, Setting("env steps between two checkpoints", least=1, belongs_to="watched")
    ] = 50_000
    overlap: Annotated[bool, Setting("update during the env step, without its transition (for GPUs)")] = False


@dataclass(frozen=True, kw_only=True)
class Supervised(RunSettings):
    """Settings of ``rl_plasticity.supervised``."""

    task: Group
    data: Group
    net: Group
    optimizer: Group
    reg: Group
    reset: Group
    num_tasks: Annotated[int | None, Setting("number of tasks; null: the default of the sequence", least=1)] = None
    epochs_per_task: Annotated[int, Setting("passes over the images of each task", least=1)] = 100
    lr: Annotated[float, Setting("learning rate of the optimizer", least=0)] = 1e-3
    eval_every_epochs: Annotated[
        int,
        Setting("epochs between evaluations; each task also ends with one", least=1, belongs_to="watched"),
    ] = 10
    checkpoint_every_epochs: Annotated[int, Setting("epochs between checkpoints", least=1, belongs_to="watched")] = 50
    measure_every_epochs: Annotated[
        int | None,
        Setting("epochs between measurements; null: measure_every_updates decides", least=1, belongs_to="watched"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Settings of ``rl_plasticity.evaluate``, besides the run's folder."""

    episodes: Annotated[int | None, Setting("episodes per run; null: the run's eval_episodes, or 10", least=1)] = None
    checkpoint: Annotated[int | None, Setting("env step of the checkpoint to load; null: the newest", least=0)] = None
    seed: Annotated[
        int | None, Setting("seed of the run; null: all runs in the folder (watch: the first one)", least=0)
    ] = None
    run: Position = None
    evaluation_seed: Annotated[
        int | None,
        Setting("seed of the start states; null: the ones that the run's own evaluation had at this env step", least=0),
    ] = None
    deterministic: Annotated[bool, Setting("whether actions are deterministic; false: sampled")] = True
    device: RunDevice = "auto"
    out: Annotated[
        str | None,
        Setting(
            "FILE.csv for the return of each episode; null: only print (watch: FILE.mp4; null: video_STEP_seedN.mp4 in "
            "the run's folder)"
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Watch(Evaluate):
    """Settings of ``rl_plasticity.watch``, besides the run's folder."""

    episodes: Annotated[int | None, Setting("episodes in the video; null: the run's eval_episodes", least=1)] = 1
    camera: Annotated[
        int | str | None,
        Setting(
            "number or name of the camera; -1: a free camera; null: 0 (gym: and minatar: have their own)", least=-1
        ),
    ] = None
    width: Annotated[
        int | None, Setting("width in pixels; null: 640 (gym: and minatar: have their own)", least=1, most=8192)
    ] = None
    height: Annotated[
        int | None, Setting("height in pixels; null: 480 (gym: and minatar: have their own)", least=1, most=8192)
    ] = None


@dataclass(frozen=True, kw_only=True)
class Diagnose:
    """Settings of ``rl_plasticity.diagnose``, besides the run's folder."""

    checkpoint: Annotated[
        int | None, Setting("env step or epoch of the checkpoint; null: every one, up to a minute per network", least=0)
    ] = None
    network: Annotated[str | None, Setting("network to diagnose: critic or actor; null: all networks")] = None
    seed: Annotated[int | None, Setting("seed of the run; null: all runs in the folder", least=0)] = None
    run: Position = None
    repeats: Annotated[
        int, Setting("repeats, each with new fresh weights and targets; up to 3 times as many if undecided", least=2)
    ] = 3
    updates: Annotated[
        int | None, Setting("updates per trial; null: as many as a verdict needs, at most 2400", least=10)
    ] = None
    remedies: Annotated[bool, Setting("whether to try remedies at the newest checkpoint")] = True
    branch: Annotated[
        bool, Setting("whether to continue the run from the checkpoint with each remedy and compare the returns")
    ] = False
    branch_env_steps: Annotated[
        int | None, Setting("env steps of each branch; null: a tenth of the run's total_env_steps", least=1)
    ] = None
    branch_into: Annotated[Sequence[str], Setting("remedies to branch into; empty: all of them")] = ()
    device: RunDevice = "auto"
    out: Annotated[
        str | None,
        Setting("FILE.json for all reports; null: RUN/diagnosis.json (branch=true: a folder; null: RUN/branches/...)"),
    ] = None


GROUPS: dict[type[Any], tuple[str, ...]] = {
    Diagnose: (),
    Evaluate: (),
    Watch: (),
    Train: ("env", "reg", "reset", "agent"),
    Supervised: ("task", "data", "net", "optimizer", "reg", "reset"),
}
EACH_TASK = {"every_updates": None, "every_tasks": 1}  # the supervised defaults of an intervention's periods
DEFAULT_PRESET = {Train: "paper", Supervised: "none"}
BRANCH = ("from", "at")  # the settings that say where a run branched from another
ONCE = "reset_once_after_updates"
OPTIONAL = (*BRANCH, ONCE, "env.max_episode_steps", "env.wrappers")  # settings that most runs do not have


# The longest periods that ``auto`` chooses, in updates.
LONGEST: dict[type[Any], dict[str, int]] = {
    Train: {"log_every_updates": 16_000, "measure_every_updates": 16_000},
    Supervised: {"log_every_updates": 500, "measure_every_updates": 5000},
}


def restart_every(s: Train) -> int | None:
    """Env steps after which runs begin again with random actions; None: never."""
    return s.env.switch_every_env_steps if s.on_change == "restart" else None


def updates_by(s: Train, step: int) -> int:
    """Number of updates among the first `step` env steps, for ``replay_ratio`` of them per env step of learning."""
    every = restart_every(s)
    tasks, inside = divmod(step, every) if every else (0, step)
    learning = tasks * max(0, (every or 0) - s.random_env_steps) + max(0, inside - s.random_env_steps)
    return math.floor(learning * s.replay_ratio + 1e-6)  # 1300 * 0.7 is 910


def planned_updates(s: Train) -> int:
    """Number of updates of a run."""
    return s.prime_updates + updates_by(s, s.total_env_steps)


def period(updates: float, longest: int, least: int = 1, multiple_of: int = 1) -> int:
    """About a sixtieth of a number of updates, rounded to one digit and up to a multiple: 500 for 31 680 updates."""
    return math.ceil(max(least, min(longest, int(float(f"{updates / 60:.0e}")))) / multiple_of) * multiple_of


def own_settings(kind: type[Any]) -> dict[str, Declared]:
    """The settings of a command besides those of its groups, by their written names: ``from`` for ``from_``."""
    shared = vars(RunSettings)["__annotations__"]  # come last
    declared = sorted(settings_of(kind).items(), key=lambda item: item[0] in shared)
    return {as_written_name(name): one for name, one in declared}


def as_written_name(argument: str) -> str:
    """The name of a setting whose argument ends in an underscore because the name is a keyword of Python."""
    return argument.removesuffix("_")


def as_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by their written names as keyword arguments: ``from_`` for ``from``."""
    return {f"{name}_" if keyword.iskeyword(name) else name: value for name, value in values.items()}


def called(kind: type[Any]) -> str:
    """The name of the command that has these settings: ``train``."""
    return kind.__name__.lower()
