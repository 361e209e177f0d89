"""Studies: the runs behind each figure and table, described by data in the folder ``studies``.

A file there describes a paper. It lists methods once, by the labels in the paper's legends, and has one entry for each
figure and table::

    methods: {none: reg=none, L2: reg=l2, ...}
    studies:
      figure-2:
        shows: one line
        where: section 5.1
        command: supervised                  # train, or a script of the repository with its arguments in `settings`
        settings: task=pixel_permutation preset=spectral-svhn,spectral-cifar10 seed=range(0,10)   # as for a sweep
        methods: [none, L2]                  # labels, or a mapping like the one above for other methods
        draw: ...                            # see `layout`
        pages:                               # comparison pages by their folder; by default one page of all runs
          primed: {where: {prime_updates: 30000}, baseline: none}
        small: {settings: ..., methods: ..., draw: ...}      # takes minutes; missing entries are as above
      figure-9: {shows: one line, where: section 5.1, comes_with: figure-2}     # drawn by figure-2, in its folder

``costs.csv`` beside the files has the cost of each version.

A method's settings follow the study's, and the user's settings come last; of several values for one name, the last
counts. Beside ``methods`` a file may have settings that depend on others of a run, where these do not name them::

    depends:
      preset=swr-mnist reg=l2|l2_init task=continual_full: reg.coef=1e-4
"""

import csv
import itertools
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from rl_plasticity import SettingsError
from rl_plasticity.errors import nearest

if TYPE_CHECKING:
    from rl_plasticity.sweeps.sweep import Run

REPOSITORY = Path(__file__).parents[1]
FOLDER = Path(__file__).parent / "studies"


class Cost(NamedTuple):
    """The cost of one version of a study: a row of ``costs.csv``.

    Args:
        runs: number of processes; 0 for a script.
        run_updates: updates of all runs; a process that trains five seeds makes five at a time.
        hours: CPU hours of all runs from start to end, from a record; None if there is no record.
        by_clock: whether the record is of an earlier version and the hours are by the clock.
        machine: the machine on which the hours were recorded.
    """

    runs: int
    run_updates: int
    hours: float | None
    by_clock: bool
    machine: str


@dataclass(frozen=True)
class Study:
    """A figure or a table, in its whole or small version.

    Args:
        name: for example ``spectral/figure-2``.
        shows: one line that says what it shows.
        where: the section of the paper, or for a study of ours what has its results; empty if nothing has them yet.
        command: ``train``, ``supervised`` or a script.
        settings: arguments of all runs, or of the script.
        methods: arguments of each method, by its label in the paper.
        depends: arguments of the runs that have all those of the condition, unless they have others.
        needs: for a script: the options that must be given, each with a description.
        draw: the layout of the figure, see `layout`.
        pages: comparison pages by their folder's name: `where`, settings that select whole folders, and arguments of
            `compare`: the label of the `baseline`, a `metric`.
    """

    name: str
    shows: str
    where: str
    command: str
    settings: Sequence[str]
    methods: Mapping[str, Sequence[str]]
    draw: Mapping[str, Any]
    pages: Mapping[str, Mapping[str, Any]]
    depends: Mapping[str, Sequence[str]]
    needs: Mapping[str, str]
    small: bool

    @property
    def is_script(self) -> bool:
        return self.command.endswith(".py")

    @property
    def script(self) -> Path:
        """The script's file."""
        return REPOSITORY / self.command

    @property
    def makes(self) -> Any:
        """The command that trains."""
        from rl_plasticity import supervised, train  # imported here, because listing studies needs no torch

        return {"train": train.command, "supervised": supervised.command}[self.command]

    @property
    def cost(self) -> Cost:
        """The recorded cost, as far as it is known without a measurement."""
        return _costs()[self.name, "small" if self.small else "whole"]

    def arguments(self, given: Sequence[str] = ()) -> dict[str, list[str]]:
        """The arguments of each method, followed by the `given` ones.

        ``seeds=3`` sets the number of seeds in any case, also where each seed trains in its own process.
        """
        named = set(map(_name, self.settings))
        one_by_one = "seed" in named and "seeds" not in named  # networks without a runs axis
        seeds = [f"seed=range(0,{a.removeprefix('seeds=')})" for a in given if a.startswith("seeds=") and one_by_one]
        given = [*(a for a in given if not (seeds and a.startswith("seeds="))), *seeds]
        return {label: _last_of_each([*self.settings, *of_method, *given]) for label, of_method in self.methods.items()}

    def sweeps(self, given: Sequence[str] = ()) -> dict[str, list[list[str]]]:
        """The arguments of each method's sweeps: one for each combination of values that others depend on."""
        from rl_plasticity.configs.written import each

        conditions = {tuple(tuple(part.split("=")) for part in c.split()): own for c, own in self.depends.items()}
        decisive = {name for condition in conditions for name, _ in condition}
        found: dict[str, list[list[str]]] = {}
        for label, arguments in self.arguments(given).items():
            apart = {}
            for combination in itertools.product(*(each(a) if _name(a) in decisive else [a] for a in arguments)):
                values = dict(a.split("=", 1) for a in combination)
                holding = [own for c, own in conditions.items() if all(values.get(n) in v.split("|") for n, v in c)]
                apart[combination] = [*itertools.chain(*holding)]
            if not any(apart.values()):
                apart = {tuple(arguments): []}
            found[label] = [_last_of_each([*own, *combination]) for combination, own in apart.items()]
        return found

    def runs(self, out: Path, given: Sequence[str] = ()) -> dict[str, "list[Run]"]:
        """The runs of each method, in folders below `out`.

        Raises:
            SettingsError: a setting is invalid, or makes the runs of a label those of another method.
        """
        from rl_plasticity.sweeps import sweep

        found: dict[str, list[Run]] = {}
        for label, sweeps in self.sweeps(given).items():
            try:
                found[label] = [run for own in sweeps for run in sweep.runs(self.makes.kind, [*own, f"out={out}"])]
            except SettingsError as error:
                raise SettingsError(f"of {self.name}, {label}: {error}") from error
        if others := [a for a in given if _name(a) != "seeds"]:
            self._require_true_labels(found, others)
        return found

    def _require_true_labels(self, runs: Mapping[str, Sequence["Run"]], given: Sequence[str]) -> None:
        """Raises SettingsError if a label, as the figure shows it, would not say what its runs are.

        They must choose what they chose without the `given` settings, and be no other label's. A value in the label
        itself must be theirs: ``l2 1e-4``.
        """

        choices = {"reg", "reset", *(_name(a) for of_method in self.methods.values() for a in of_method)}
        asked, own = dict(a.split("=", 1) for a in given), self.runs(Path(), ["seeds=1"])
        seen: dict[str, str] = {}

        def chosen(of_method: Iterable["Run"]) -> set[tuple[Any, ...]]:
            return {tuple(run.settings.flat.get(f"{name}.name") for name in sorted(choices)) for run in of_method}

        for label, of_method in runs.items():
            named = [a.split("=", 1) for a in self.methods[label] if a.partition("=")[2] in label.split()]
            others = {seen.setdefault(str(run.settings.flat), label) for run in of_method} - {label}
            if others or chosen(of_method) != chosen(own[label]) or any(asked.get(n, v) != v for n, v in named):
                said = (
                    f"{label!r} would be that of {min(others)!r}" if others else f"{label!r} would be another method's"
                )
                raise SettingsError(f"{self.name}: with {shlex.join(given)} the line {said}; leave that setting out")


def load(name: str, small: bool = False) -> Study:
    """Load the study called ``paper/figure``.

    Raises:
        SettingsError: there is no such study.
    """
    paper, _, which = name.partition("/")
    if name not in names():
        raise SettingsError(f"unknown figure or table {name!r}{nearest(name.lower(), names())}")
    tree = _read(paper)
    entry = dict(tree["studies"][which])
    if "comes_with" in entry:
        other = load(f"{paper}/{entry['comes_with']}", small)
        return replace(other, shows=entry["shows"], where=entry["where"])
    version = entry.pop("small", {})
    entry |= version if small else {}
    methods = entry.get("methods", [])
    if not isinstance(methods, dict):
        methods = {label: tree["methods"][label] for label in methods}
    return Study(
        name=name,
        shows=entry["shows"],
        where=entry.get("where", ""),
        command=entry["command"],
        settings=shlex.split(entry.get("settings", "")),
        methods={label: shlex.split(text) for label, text in methods.items()},
        draw=entry.get("draw", {}),
        pages=entry.get("pages", {"comparison": {}}),
        depends={condition: shlex.split(text) for condition, text in tree.get("depends", {}).items()},
        needs=entry.get("needs", {}),
        small=small,
    )


@cache
def names() -> list[str]:
    """The names of all studies, paper by paper, in the order of the files."""
    papers = sorted(path.stem for path in FOLDER.glob("*.yaml"))
    return [f"{paper}/{which}" for paper in papers for which in _read(paper)["studies"]]


# ------------------------------------------------------------------------------------------------------------------


@cache
def _read(paper: str) -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load((FOLDER / f"{paper}.yaml").read_text("utf-8"))
    return tree


@cache
def _costs() -> dict[tuple[str, str], Cost]:
    with (FOLDER / "costs.csv").open(newline="") as file:
        return {
            (row["study"], row["version"]): Cost(
                runs=int(row["runs"]),
                run_updates=int(row["run_updates"]),
                hours=float(row["hours"]) if row["hours"] else None,
                by_clock=row["hours_by"] == "clock",
                machine=row["machine"],
            )
            for row in csv.DictReader(file)
        }


def _last_of_each(arguments: Iterable[str]) -> list[str]:
    """The last argument for each setting, in the position of the first."""
    kept: dict[str, str] = {}
    for argument in arguments:
        kept[_name(argument)] = argument
    return [*kept.values()]


def _name(argument: str) -> str:
    return argument.partition("=")[0]
