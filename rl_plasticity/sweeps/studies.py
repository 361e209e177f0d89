"""The papers' figures and tables: which runs each takes, and how many of them there are. Data, in ``configs/study``.

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
        draw: ...                            # see `comparison.paper`
        pages:                               # comparison pages by their folder; without it one of all
          primed: {where: {prime_updates: 30000}, baseline: none}
        small: {settings: ..., methods: ..., draw: ...}      # in minutes; what it does not name is as above
      figure-9: {shows: one line, where: section 5.1, comes_with: figure-2}     # drawn by another one, in its folder

A method's settings come after the study's, and those that somebody gives come last; of one name the last counts.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rl_plasticity.configs.commands import Supervised, Train
from rl_plasticity.errors import SettingsError, nearest
from rl_plasticity.sweeps import sweep
from rl_plasticity.sweeps.sweep import Run

FOLDER = Path(__file__).parents[1] / "configs" / "study"
KINDS: dict[str, Any] = {"train": Train, "supervised": Supervised}


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
        return self.command not in KINDS

    def arguments(self, given: Sequence[str] = ()) -> dict[str, list[str]]:
        """What each method's sweep is given, with what is given besides; ``seeds=3`` says how many in any case."""
        one_by_one = any(a.startswith("seed=") for a in self.settings)  # networks without a runs axis
        seeds = [f"seed=range(0,{a.removeprefix('seeds=')})" for a in given if a.startswith("seeds=") and one_by_one]
        given = [*(a for a in given if not (seeds and a.startswith("seeds="))), *seeds]
        return {label: _last_of_each([*self.settings, *of_method, *given]) for label, of_method in self.methods.items()}

    def runs(self, out: Path, given: Sequence[str] = ()) -> dict[str, list[Run]]:
        """The runs of each method, in folders below `out`.

        Raises:
            SettingsError: bad settings.
        """
        taken: set[Path] = set()
        found: dict[str, list[Run]] = {}
        for label, arguments in self.arguments(given).items():
            try:
                found[label] = sweep.runs(KINDS[self.command], [*arguments, f"out={out}"], taken)
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
        of_paper = [other for other in names() if other.partition("/")[0] == paper.lower()]
        hint = f" (there are: {', '.join(of_paper)})" if of_paper else nearest(name, names())
        raise SettingsError(f"unknown figure or table {name!r}{hint}")
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


def _last_of_each(arguments: Iterable[str]) -> list[str]:
    """Of several arguments for one setting the last, in the place of the first."""
    kept: dict[str, str] = {}
    for argument in arguments:
        kept[argument.partition("=")[0]] = argument
    return [*kept.values()]
