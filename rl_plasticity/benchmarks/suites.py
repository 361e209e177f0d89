"""Suites: fixed and versioned sets of tasks, each with the rows of published methods, and the methods' settings.

A file ``NAME-VERSION.yaml`` beside this one describes a suite. It never changes: a change is another version. ::

    choosing: seed=1000 seeds=3         # the seeds that choose strength and learning rate
    test: seed=0 seeds=10               # the seeds that are scored
    tasks:
      random-labels:
        asks: what the task asks of a network
        command: supervised             # or train
        settings: task=random_labels    # as on the command line; a method's own settings come last
        lr: 1e-3,3e-3                   # the learning rates that are tried
        metric: task/train_accuracy     # the mean over its rows, or over the last ones
        last: 3
        also: {reset: reset.every_updates=null reset.every_tasks=1}
                                        # for methods with this setting, or ``reg=wrs``: these values. If the method
                                        # gives one of them, the others are null
        fresh: reset=periodic           # what scores 1; `none` scores 0
        minutes: 1.5                    # of CPU, for a method with three strengths

``methods.yaml`` has the settings of the published methods by name. ``NAME-VERSION.csv`` has their rows.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import yaml

from rl_plasticity import plugins
from rl_plasticity.configs.written import apart, by_name, each
from rl_plasticity.errors import SettingsError, nearest

if TYPE_CHECKING:
    from rl_plasticity.runs.command import Command
    from rl_plasticity.sweeps.sweep import Run

FOLDER = Path(__file__).parent
NAMES = ("quick-1", "standard-1", "gpu-1")  # the quickest first, older versions before newer ones
NONE, FRESH = "none", "fresh"  # the methods that score 0 and 1
CALLED = {  # settings of a method that both commands have, by their names there
    "train": {name: f"agent.{name}" for name in ("lr", "optimizer", "layer_norm", "injected_layers")},
    "supervised": {name: f"net.{name}" for name in ("layer_norm", "injected_layers")},
}
# What a method may set; the rest is the task's. So a file of somebody else's rows names no module to load: no plugins.
SETTINGS = ("reg", "reset", "agent", "net", "optimizer", "lr", "batch_size", "layer_norm", "injected_layers")
SIDE_BY_SIDE = ("reg.", "reset.")


@dataclass(frozen=True)
class Method:
    """A named set of settings. Several values of a setting, ``reg.coef=1e-4,1e-3``, are strengths to choose from.

    Raises:
        SettingsError: a setting is not the method's but the task's, or the run's.
    """

    name: str
    settings: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in self.by_name:
            if name.partition(".")[0] not in SETTINGS:
                raise SettingsError(f"{name} is not a setting of a method{nearest(name, SETTINGS)}")

    @property
    def by_name(self) -> dict[str, str]:
        return as_given(self.settings)


@dataclass(frozen=True, eq=False)
class Task:
    """A task of a suite. The arguments are the entries of the suite's file."""

    name: str
    suite: str
    choosing: str
    test: str
    asks: str
    command: str
    settings: str
    lr: str
    metric: str
    minutes: float
    fresh: str
    also: Mapping[str, str]
    last: int = 0
    counted_on: str = "one core"  # for the minutes

    @property
    def makes(self) -> "Command[Any, Any]":
        """The command that trains."""
        from rl_plasticity import supervised, train  # imported here, because a list of suites needs no torch

        return train.command if self.command == "train" else supervised.command

    @property
    def seeds(self) -> list[str]:
        """The seeds that are scored."""
        given = {name: int(value) for name, value in as_given(shlex.split(self.test)).items()}
        return [str(given["seed"] + i) for i in range(given["seeds"])]

    def own(self, method: Method) -> dict[str, str]:
        """A method's settings and the learning rates, by their names in the task's command."""
        called = CALLED[self.command]
        own = as_given(shlex.split(self.fresh)) if method.name == FRESH else method.by_name
        named = as_given(f"{called.get(name, name)}={value}" for name, value in own.items())
        return {called.get("lr", "lr"): self.lr} | named

    def runs(self, own: Mapping[str, str], out: Path, stage: Literal["choosing", "test"]) -> "list[Run]":
        """The runs that choose, or those that are scored, of a method with these settings of its `own`.

        Raises:
            SettingsError: a setting is bad.
        """
        from rl_plasticity.sweeps import sweep

        found = as_given(shlex.split(self.settings))
        for condition, more in self.also.items():
            if condition in [*(name for name in own if own[name] != "none"), *written(own)]:
                added = as_given(shlex.split(more))
                found |= dict.fromkeys(added, "null") if added.keys() & own.keys() else added
        found |= own
        found |= {name: f"[{own[name]}]" for name in side_by_side(own)}
        arguments = written(found | as_given(shlex.split(getattr(self, stage))))
        plugs = plugins.as_arguments(plugins.loaded)
        return sweep.runs(self.makes.kind, [*plugs, *arguments, f"out={out / self.name / stage}"])


class Suite(NamedTuple):
    """A suite, by its name and version: ``quick-1``."""

    name: str
    tasks: dict[str, Task]


def load(name: str) -> Suite:
    """The suite of this name; the newest version of it where the name has none: ``quick``.

    Raises:
        SettingsError: there is no such suite.
    """
    versions = [each for each in NAMES if name in (each, each.rpartition("-")[0])]
    if not versions:
        raise SettingsError(f"there is no suite {name!r}{nearest(name, NAMES)}")
    tree = yaml.safe_load((FOLDER / f"{versions[-1]}.yaml").read_text("utf-8"))
    tasks = tree.pop("tasks").items()
    return Suite(versions[-1], {task: Task(task, versions[-1], **tree, **entry) for task, entry in tasks})


def published() -> dict[str, Method]:
    """The published methods by name."""
    tree = yaml.safe_load((FOLDER / "methods.yaml").read_text("utf-8"))
    return {name: Method(name, shlex.split(text or "")) for name, text in tree.items()}


def as_given(arguments: Iterable[str]) -> dict[str, str]:
    """Settings by name, their values as they are written; a setting that is given twice is an error."""
    return by_name(arguments, apart)


def varied(own: Mapping[str, str]) -> list[str]:
    """The names of the settings that have several values to choose from."""
    return [argument.partition("=")[0] for argument in written(own) if len(each(argument)) > 1]


def side_by_side(own: Mapping[str, str]) -> list[str]:
    """The names of the settings whose values train in one process: a method's, but not a chain's, and no lists."""
    of_method = [name for name in varied(own) if name.startswith(SIDE_BY_SIDE) and "[" not in own[name]]
    return [name for name in of_method if "+" not in own.get(name.partition(".")[0], "")]


def written(settings: Mapping[str, str]) -> list[str]:
    """Settings as arguments, ``name=value``."""
    return [f"{name}={value}" for name, value in settings.items()]
