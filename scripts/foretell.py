"""Which measure foretells that an agent will stay bad: ``python scripts/foretell.py FOLDER --at 3500``.

Of every run below FOLDER (the priming study's, say) it takes each plasticity metric of the critic at one early env
step, Q's mean and overestimation at the nearest step up to there, and the mean return over the second half of the run.
``--write FILE.csv`` keeps these numbers, a line for each run; such a file can stand in FOLDER's place.

Printed are Spearman's rank correlations of each measure with the return, ranks taken within each task, and, by
``--within agent.layer_norm,prime_updates``, within each value of these settings too; ``--where prime_updates=30000``
takes the runs alone that have this setting. In brackets the 95 % percentile interval of 10 000 bootstrap samples of
whole groups (runs that differ in the seed alone are no independent evidence of what a method does).

A correlation says that a measure could be used to sort runs; it does not say that the measure is the cause.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from rl_plasticity.comparison.groups import IGNORED, differing, short
from rl_plasticity.comparison.loading import Run, read
from rl_plasticity.errors import SettingsError, nearest
from rl_plasticity.metrics.statistics import value_at
from rl_plasticity.runs.folder import RunFolder

OTHERS = ("q_mean", "q_overestimation")
RESAMPLES = 10_000
Array = NDArray[np.float64]


class Seen(NamedTuple):
    """A run as it is taken here: its settings that differ from others', the return to come, the measures."""

    folder: str
    seed: int
    settings: Mapping[str, str]
    outcome: float
    measures: Mapping[str, float]


def runs_below(folder: Path) -> list[Run]:
    """All runs that have come to their end."""
    runs = []
    for config in sorted(folder.rglob("config.yaml")):
        with suppress(SettingsError):  # it has written no numbers yet
            runs += read(RunFolder(config.parent))
    ends = [run.curves["eval/return"].steps[-1] if "eval/return" in run.curves else 0 for run in runs]
    return [run for run, end in zip(runs, ends, strict=True) if end == run.settings["total_env_steps"]]


def seen(runs: Sequence[Run], at: int) -> list[Seen]:
    """Each run's measures at this env step."""
    own = [name for name in differing([run.settings for run in runs]) if name not in IGNORED]
    names = dict.fromkeys(n for run in runs for n in run.curves if n.startswith("critic/") and n.count("/") == 1)
    return [
        Seen(
            run.folder.path.name,
            run.seed,
            {name: short(run.settings[name]) for name in dict.fromkeys(["env.name", *own]) if name in run.settings},
            outcome(run),
            {name: measured(run, name, at) for name in (*names, *OTHERS)},
        )
        for run in runs
    ]


def outcome(run: Run) -> float:
    """The mean return over the second half."""
    steps, values = run.curves["eval/return"]
    return float(values[steps > run.settings["total_env_steps"] / 2].mean())


def measured(run: Run, name: str, at: int) -> float:
    """A metric's last value up to this env step, what is not a number as the largest; NaN if it was not measured."""
    curve = run.curves.get(name)
    if curve is None or curve.steps[0] > at:
        return float("nan")
    value = float(value_at(curve.steps, curve.values, np.array([at]))[0])
    return float("inf") if np.isnan(value) else value


def write(runs: Sequence[Seen], path: Path) -> None:
    """A line for each run; what it has no value of is left empty."""
    own = [*dict.fromkeys(name for run in runs for name in run.settings)]
    measures = [name for name in runs[0].measures if all(not np.isnan(run.measures[name]) for run in runs)]
    with path.open("x", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["folder", "seed", *own, "return", *measures])
        for run in runs:
            numbers = [f"{value:.6g}" for value in (run.outcome, *(run.measures[name] for name in measures))]
            lines.writerow([run.folder, run.seed, *(run.settings.get(name, "") for name in own), *numbers])


def written(path: Path) -> list[Seen]:
    """What `write` wrote."""
    with path.open(newline="") as file:
        lines = [*csv.DictReader(file)]
    runs = []
    for line in lines:
        measures = {n: float(v) for n, v in line.items() if n.startswith("critic/") or n in OTHERS}
        rest = {n: v for n, v in line.items() if n not in measures and v}
        folder, seed, result = (rest.pop(name) for name in ("folder", "seed", "return"))
        runs.append(Seen(folder, int(seed), rest, float(result), measures))
    return runs


def ranks(values: Array, strata: Sequence[object]) -> Array:
    """Ranks within each stratum, from -1 to 1."""
    result = np.empty(len(values))
    for stratum in dict.fromkeys(strata):
        here = np.array([other == stratum for other in strata])
        n = here.sum()
        result[here] = (2 * rankdata(values[here]) - n - 1) / n
    return result


def correlation(x: Array, y: Array) -> float:
    """Pearson's, of ranks; NaN where one of them is constant."""
    x, y = x - x.mean(), y - y.mean()
    size = np.sqrt((x**2).sum() * (y**2).sum())
    return float((x * y).sum() / size) if size else float("nan")


def interval(x: Array, y: Array, groups: Mapping[object, list[int]], rng: np.random.Generator) -> tuple[float, float]:
    """Of the correlation, from samples of whole groups; a correlation needs sums over its runs alone."""
    of_runs = np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=-1)
    of_groups = np.array([of_runs[members].sum(0) for members in groups.values()])
    chosen = rng.integers(len(of_groups), size=(RESAMPLES, len(of_groups)))
    n, sx, sy, sxx, syy, sxy = of_groups[chosen].sum(1).T
    with np.errstate(invalid="ignore", divide="ignore"):  # a sample in which one of them is constant
        found = (sxy - sx * sy / n) / np.sqrt((sxx - sx**2 / n) * (syy - sy**2 / n))
    low, high = np.percentile(found[np.isfinite(found)], [2.5, 97.5])
    return float(low), float(high)


def table(runs: Sequence[Seen], within: Sequence[str]) -> list[tuple[str, float, float, float]]:
    """Each measure's correlation with the return and the interval, the strongest first."""
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
            rows.append((name, rho, *interval(x, y, groups, np.random.default_rng(0))))
    return sorted(rows, key=lambda row: -abs(row[1]))


def lines(rows: Sequence[tuple[str, float, float, float]]) -> list[str]:
    """The table's rows in Markdown."""
    return [f"| `{name}` | {rho:+.2f} [{low:+.2f}, {high:+.2f}] |" for name, rho, low, high in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="or a file that --write made")
    parser.add_argument("--at", type=int, default=3500, help="the env step of the measurement")
    parser.add_argument("--write", type=Path, metavar="FILE.csv", help="keep each run's numbers; it must be new")
    parser.add_argument("--within", default="", help="settings, with commas between them")
    parser.add_argument("--where", default="", help="settings and their values, with commas between them")
    options = parser.parse_args()
    if options.folder.is_file():
        runs = written(options.folder)
    else:
        finished = runs_below(options.folder)
        runs = seen(finished, options.at) if finished else []
    if not runs:
        parser.error(f"no finished run below {options.folder}")
    known = {name for run in runs for name in run.settings}
    within, where = ([*filter(None, text.split(","))] for text in (options.within, options.where))
    for name in (*within, *(one.partition("=")[0] for one in where)):
        if name not in known:
            parser.error(f"no runs differ in {name!r}{nearest(name, sorted(known))}")
    if options.write:
        if options.write.exists():
            parser.error(f"{options.write} exists")
        write(runs, options.write)
    runs = [run for run in runs if all(run.settings.get(n) == v for n, _, v in (one.partition("=") for one in where))]
    if not runs:
        parser.error(f"no finished run below {options.folder} has {options.where}")
    print(f"{len(runs)} runs\n")
    print("| measure | rank correlation with the return to come |\n|---|---|")
    print("\n".join(lines(table(runs, within))))


if __name__ == "__main__":
    main()
