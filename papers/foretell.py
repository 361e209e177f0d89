"""Find the measures that predict whether an agent stays bad: ``python -m papers.foretell FOLDER --at 3500``.

It takes every finished run of ``train`` below FOLDER (of the priming study, for example). From each run it takes:

- the critic's plasticity metrics at one early env step;
- Q's mean and overestimation at the nearest step up to that one;
- the mean return over the second half of the run.

``--write FILE.csv`` keeps these numbers, one line per run; such a file can be given in place of FOLDER.

It prints Spearman's rank correlation of each measure with the return, with ranks taken within each task. With
``--within agent.layer_norm prime_updates``, ranks are also taken within each value of these settings. With ``--where
prime_updates=30000``, only runs with this setting count. Brackets show the 95 % percentile interval of 10 000 bootstrap
samples of whole groups. Runs that differ only in the seed are no independent evidence of what a method does. There is
no interval for few groups.

A correlation says that a measure could be used to sort runs; it does not say that the measure is the cause.
"""

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from rl_plasticity import SettingsError
from rl_plasticity.comparison.groups import IGNORED, differing
from rl_plasticity.comparison.loading import Run, read
from rl_plasticity.errors import nearest
from rl_plasticity.metrics.statistics import value_at
from rl_plasticity.runs.folder import find
from rl_plasticity.runs.names import short

OTHERS = ("q_mean", "q_overestimation")
COLUMNS = ("folder", "seed", "at", "return")
RESAMPLES = 10_000
FEW = 5  # least number of groups for an interval
SMALLEST = 1e-9  # a smaller sum of squared ranks is rounding error of equal ranks
Array = NDArray[np.float64]


class Seen(NamedTuple):
    """One run: its settings that differ from other runs', the return to come, and the measures at one env step."""

    folder: str
    seed: int
    at: int
    settings: Mapping[str, str]
    outcome: float
    measures: Mapping[str, float]


def runs_below(folder: Path) -> list[Run]:
    """All finished runs below a folder."""
    runs = []
    for one in find([folder]):
        with suppress(SettingsError):  # a run without numbers yet
            runs += [run for run in read(one) if run.kind == "train"]
    ends = [run.curves["eval/return"].steps[-1] if "eval/return" in run.curves else 0 for run in runs]
    return [run for run, end in zip(runs, ends, strict=True) if end == run.settings["total_env_steps"]]


def seen(runs: Sequence[Run], at: int) -> list[Seen]:
    """The measures of each run at this env step."""
    own = [name for name in differing([run.settings for run in runs]) if name not in IGNORED]
    names = dict.fromkeys(n for run in runs for n in run.curves if n.startswith("critic/") and n.count("/") == 1)
    return [
        Seen(
            run.folder.path.name,
            run.seed,
            at,
            {name: short(run.settings[name]) for name in dict.fromkeys(["env.name", *own]) if name in run.settings},
            outcome(run),
            {name: measured(run, name, at) for name in (*names, *OTHERS)},
        )
        for run in runs
    ]


def outcome(run: Run) -> float:
    """The mean return over the second half of a run; -inf if it is not a number."""
    steps, values = run.curves["eval/return"]
    mean = float(values[steps > run.settings["total_env_steps"] / 2].mean())
    return float("-inf") if np.isnan(mean) else mean


def measured(run: Run, name: str, at: int) -> float:
    """A metric's last value up to this env step; NaN if it was not measured.

    A value that is not a number counts as infinite, the largest of all.
    """
    curve = run.curves.get(name)
    if curve is None or curve.steps[0] > at:
        return float("nan")
    value = float(value_at(curve.steps, curve.values, np.array([at]))[0])
    return float("inf") if np.isnan(value) else value


def write(runs: Sequence[Seen], path: Path) -> None:
    """Write one line per run to a new file; missing values are left empty."""
    names = [*COLUMNS, *dict.fromkeys(name for run in runs for name in run.settings), *runs[0].measures]
    with path.open("x", newline="") as file:
        lines = csv.DictWriter(file, names, lineterminator="\n")
        lines.writeheader()
        for run in runs:
            start = {"folder": run.folder, "seed": run.seed, "at": run.at, "return": repr(run.outcome)}
            numbers = {name: repr(value) for name, value in run.measures.items() if not np.isnan(value)}
            lines.writerow({**start, **run.settings, **numbers})


def written(path: Path) -> list[Seen]:
    """Read a file that `write` wrote.

    Raises:
        ValueError: the file is not one that `write` wrote.
    """
    with path.open(newline="") as file:
        lines = [*csv.DictReader(file)]
    if not lines or not set(COLUMNS) <= lines[0].keys():
        raise ValueError(f"{path} is no file that --write made")
    runs = []
    for line in lines:
        measures = {n: float(v or "nan") for n, v in line.items() if n.startswith("critic/") or n in OTHERS}
        settings = {n: v for n, v in line.items() if n not in measures and n not in COLUMNS and v}
        runs.append(Seen(line["folder"], int(line["seed"]), int(line["at"]), settings, float(line["return"]), measures))
    return runs


def chosen(runs: Sequence[Seen], where: Sequence[str]) -> list[Seen]:
    """The runs that have all these settings, given as ``name=value`` like on a command line.

    Raises:
        SettingsError: no run has one of them.
    """
    for one in where:
        name, _, text = one.partition("=")
        value = short(_value(text))
        there = dict.fromkeys(run.settings.get(name, "") for run in runs)
        if value not in there:
            raise SettingsError(f"no run has {one}; there are {', '.join(filter(None, there))}{nearest(value, there)}")
        runs = [run for run in runs if run.settings.get(name) == value]
    return [*runs]


def _value(text: str) -> object:
    """A number, a truth value or null as JSON writes it; any other text unchanged."""
    try:
        value: object = json.loads(text)
    except ValueError:
        return text
    return value


def ranks(values: Array, strata: Sequence[object]) -> Array:
    """Ranks within each stratum, from -1 to 1."""
    result = np.empty(len(values))
    for stratum in dict.fromkeys(strata):
        here = np.array([other == stratum for other in strata])
        n = here.sum()
        result[here] = (2 * rankdata(values[here]) - n - 1) / n
    return result


def correlation(x: Array, y: Array) -> float:
    """Pearson's correlation of ranks; NaN if one of them is constant."""
    x, y = x - x.mean(), y - y.mean()
    size = np.sqrt((x**2).sum() * (y**2).sum())
    return float((x * y).sum() / size) if size else float("nan")


def interval(
    x: Array, y: Array, groups: Mapping[object, list[int]], rng: np.random.Generator
) -> tuple[float, float] | None:
    """The 95 % interval of the correlation, from bootstrap samples of whole groups; None for few groups.

    Sums over the runs of each group are enough to compute the correlation of a sample.
    """
    if len(groups) < FEW:
        return None
    of_runs = np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=-1)
    of_groups = np.array([of_runs[members].sum(0) for members in groups.values()])
    samples = rng.integers(len(of_groups), size=(RESAMPLES, len(of_groups)))
    n, sx, sy, sxx, syy, sxy = of_groups[samples].sum(1).T
    of_x, of_y = sxx - sx**2 / n, syy - sy**2 / n
    varied = (of_x > SMALLEST) & (of_y > SMALLEST)
    found = (sxy - sx * sy / n)[varied] / np.sqrt(of_x[varied] * of_y[varied])
    low, high = np.percentile(found, [2.5, 97.5])
    return float(low), float(high)


def table(runs: Sequence[Seen], within: Sequence[str]) -> list[tuple[str, float, tuple[float, float] | None]]:
    """The correlation of each measure with the return, with its interval, strongest first."""
    strata = [tuple(run.settings.get(name) for name in ("env.name", *within)) for run in runs]
    groups: dict[object, list[int]] = defaultdict(list)
    for i, run in enumerate(runs):
        groups[tuple(sorted(run.settings.items()))].append(i)
    y = ranks(np.array([run.outcome for run in runs]), strata)
    rows = []
    for name in runs[0].measures:
        values = np.array([run.measures[name] for run in runs])
        if np.isnan(values).any():
            continue
        x = ranks(values, strata)
        rho = correlation(x, y)
        if np.isfinite(rho):
            rows.append((name, rho, interval(x, y, groups, np.random.default_rng(0))))
    return sorted(rows, key=lambda row: -abs(row[1]))


def text(runs: Sequence[Seen], within: Sequence[str]) -> str:
    """The table in Markdown, after a line that describes the runs.

    Raises:
        SettingsError: no measure that varies was measured in all runs.
    """
    rows = table(runs, within)
    if not rows:
        raise SettingsError(f"nothing that varies was measured in all {len(runs)} runs by env step {runs[0].at}")
    lines = [f"{len(runs)} runs, measured at env step {runs[0].at}", ""]
    lines += ["| measure | rank correlation with the return to come |", "|---|---|"]
    for name, rho, ends in rows:
        between = f" [{ends[0]:+.2f}, {ends[1]:+.2f}]" if ends else ""
        lines.append(f"| `{name}` | {rho:+.2f}{between} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of runs, or a file written by --write")
    parser.add_argument("--at", type=int, help="the env step of the measurement, 3500 by default")
    parser.add_argument("--write", type=Path, metavar="FILE.csv", help="new file for each run's numbers")
    parser.add_argument("--within", nargs="+", default=[], metavar="SETTING")
    parser.add_argument("--where", nargs="+", default=[], metavar="SETTING=VALUE")
    options = parser.parse_args()
    try:
        printed = run(options.folder, options.at, options.write, options.within, options.where)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(printed)


def run(
    folder: Path,
    at: int | None,
    to: Path | None,
    within: Sequence[str],
    where: Sequence[str],
) -> str:
    """Run the command with these options; returns the text to print.

    Raises:
        ValueError, OSError: an option is invalid.
    """
    if to and (to.exists() or not to.parent.is_dir()):
        raise SettingsError(f"{to} {'exists' if to.exists() else 'lies in no folder that there is'}")
    if folder.is_file():
        runs = written(folder)
        if at not in (None, runs[0].at):
            raise SettingsError(f"{folder} is of env step {runs[0].at}, not {at}")
    else:
        finished = runs_below(folder)
        if not finished:
            raise SettingsError(f"no finished run of train below {folder}")
        runs = seen(finished, 3500 if at is None else at)
    known = {name for one in runs for name in one.settings}
    for name in (*within, *(one.partition("=")[0] for one in where)):
        if name not in known:
            raise SettingsError(f"the runs differ in {', '.join(sorted(known))}, not in {name}{nearest(name, known)}")
    result = text(chosen(runs, where), within)
    if to:
        write(runs, to)
    return result


if __name__ == "__main__":
    main()
