"""A figure or a table: which runs it takes, and how many of them there are. Data, in ``studies``.

A file there is a paper. It names methods once, by the labels of the paper's legends, and has an entry for each figure
and table::

    methods: {none: reg=none, L2: reg=l2, ...}
    studies:
      figure-2:
        shows: one line
        where: section 5.1
        command: supervised                  # train, or a script of the repository with its arguments in `settings`
        settings: task=pixel_permutation preset=spectral-svhn,spectral-cifar10 seed=range(0,10)   # as a sweep's
        methods: [none, L2]                  # labels, or a mapping like the one above for methods of its own
        draw: ...                            # see `layout`
        pages:                               # comparison pages by their folder; without it one of all
          primed: {where: {prime_updates: 30000}, baseline: none}
        small: {settings: ..., methods: ..., draw: ...}      # in minutes; what it does not name is as above
      figure-9: {shows: one line, where: section 5.1, comes_with: figure-2}     # drawn by another one, in its folder

``costs.csv`` beside the files has what each version takes.

A method's settings come after the study's, and those that somebody gives come last; of one name the last counts.
"""

import csv
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from omegaconf import OmegaConf

from rl_plasticity import SettingsError
from rl_plasticity.errors import nearest

if TYPE_CHECKING:
    from rl_plasticity.sweeps.sweep import Run

REPOSITORY = Path(__file__).parents[1]
FOLDER = Path(__file__).parent / "studies"


class Cost(NamedTuple):
    """What a version of a study takes: a row of ``costs.csv``.

    Args:
        runs: how many processes; 0 of a script.
        run_updates: updates of all runs; a process that trains five seeds makes five at once.
        hours: CPU hours of all runs from start to end, as a record has them; None if there is no record.
        by_clock: whether the record is of an earlier version and the hours are by the clock.
        machine: whose hours they are.
    """

    runs: int
    run_updates: int
    hours: float | None
    by_clock: bool
    machine: str


@dataclass(frozen=True)
class Study:
    """A figure or a table, whole or small.

    Args:
        name: ``spectral/figure-2``.
        shows: one line.
        where: the paper's section.
        command: ``train``, ``supervised`` or a script.
        settings: arguments of all runs, or of the script.
        methods: arguments of each method, by its label in the paper.
        needs: of a script: options that must be given, and what each is.
        draw: how the figure looks.
        pages: comparison pages by their folder's name: `where`, settings that whole folders have, and the
            label of the `baseline`.
    """

    name: str
    shows: str
    where: str
    command: str
    settings: Sequence[str]
    methods: Mapping[str, Sequence[str]]
    draw: Mapping[str, Any]
    pages: Mapping[str, Mapping[str, Any]]
    needs: Mapping[str, str]
    small: bool

    @property
    def is_script(self) -> bool:
        return self.command.endswith(".py")

    @property
    def script(self) -> Path:
        """Its file."""
        return REPOSITORY / self.command

    @property
    def makes(self) -> Any:
        """The command that trains."""
        from rl_plasticity import supervised, train  # not to list studies, which takes no torch

        return {"train": train.command, "supervised": supervised.command}[self.command]

    @property
    def cost(self) -> Cost:
        """What it takes, as far as that is known without a measurement."""
        return _costs()[self.name, "small" if self.small else "whole"]

    def arguments(self, given: Sequence[str] = ()) -> dict[str, list[str]]:
        """What each method's sweep is given, with what is given besides; ``seeds=3`` says how many in any case."""
        one_by_one = any(a.startswith("seed=") for a in self.settings)  # networks without a runs axis
        seeds = [f"seed=range(0,{a.removeprefix('seeds=')})" for a in given if a.startswith("seeds=") and one_by_one]
        given = [*(a for a in given if not (seeds and a.startswith("seeds="))), *seeds]
        return {label: _last_of_each([*self.settings, *of_method, *given]) for label, of_method in self.methods.items()}

    def runs(self, out: Path, given: Sequence[str] = ()) -> dict[str, "list[Run]"]:
        """The runs of each method, in folders below `out`.

        Raises:
            SettingsError: bad settings.
        """
        from rl_plasticity.sweeps import sweep

        taken: set[Path] = set()
        found: dict[str, list[Run]] = {}
        for label, arguments in self.arguments(given).items():
            try:
                found[label] = sweep.runs(self.makes.kind, [*arguments, f"out={out}"], taken)
            except SettingsError as error:
                raise SettingsError(f"of {self.name}, {label}: {error}") from error
            taken |= {run.folder for run in found[label]}
        return found


def load(name: str, small: bool = False) -> Study:
    """The study called ``paper/figure``.

    Raises:
        SettingsError: there is none.
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
        where=entry["where"],
        command=entry["command"],
        settings=shlex.split(entry.get("settings", "")),
        methods={label: shlex.split(text) for label, text in methods.items()},
        draw=entry.get("draw", {}),
        pages=entry.get("pages", {"comparison": {}}),
        needs=entry.get("needs", {}),
        small=small,
    )


@cache
def names() -> list[str]:
    """All studies, paper by paper in the files' order."""
    papers = sorted(path.stem for path in FOLDER.glob("*.yaml"))
    return [f"{paper}/{which}" for paper in papers for which in _read(paper)["studies"]]


# ------------------------------------------------------------------------------------------------------------------


@cache
def _read(paper: str) -> dict[str, Any]:
    tree = OmegaConf.to_container(OmegaConf.load(FOLDER / f"{paper}.yaml"))
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


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
    """Of several arguments for one setting the last, in the place of the first."""
    kept: dict[str, str] = {}
    for argument in arguments:
        kept[argument.partition("=")[0]] = argument
    return [*kept.values()]
