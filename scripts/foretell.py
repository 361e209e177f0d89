"""Which measure foretells that an agent will stay bad: ``python scripts/foretell.py FOLDER --at 3500``.

Of every run below FOLDER (the priming study's, say) it takes each plasticity metric of the critic at one early env
step, Q's mean and overestimation at the nearest step up to there, and the mean return over the second half of the run.
Printed are Spearman's rank correlations of each measure with the return, ranks taken within each task, and, by
``--within agent.layer_norm,prime_updates``, within each value of these settings too. In brackets the 95 % percentile
interval of 10 000 bootstrap samples of whole groups (runs that differ in the seed alone are no independent evidence of
what a method does).

A correlation says that a measure could be used to sort runs; it does not say that the measure is the cause.
"""

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from rl_plasticity.comparison.loading import Run, read
from rl_plasticity.errors import SettingsError
from rl_plasticity.metrics.statistics import value_at
from rl_plasticity.runs.folder import RunFolder

OTHERS = ("q_mean", "q_overestimation")
RESAMPLES = 10_000
Array = NDArray[np.float64]


def runs_below(folder: Path) -> list[Run]:
    """All runs that have come to their end."""
    runs = []
    for config in sorted(folder.rglob("config.yaml")):
        with suppress(SettingsError):  # it has written no numbers yet
            runs += read(RunFolder(config.parent))
    ends = [run.curves["eval/return"].steps[-1] if "eval/return" in run.curves else 0 for run in runs]
    return [run for run, end in zip(runs, ends, strict=True) if end == run.settings["total_env_steps"]]


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
    """Of the correlation, from samples of whole groups."""
    members = [np.array(of_group) for of_group in groups.values()]
    found = []
    for _ in range(RESAMPLES):
        chosen = np.concatenate([members[i] for i in rng.integers(len(members), size=len(members))])
        found.append(correlation(x[chosen], y[chosen]))
    low, high = np.nanpercentile(found, [2.5, 97.5])
    return float(low), float(high)


def table(runs: Sequence[Run], at: int, within: Sequence[str]) -> list[tuple[str, float, float, float, int]]:
    """Each measure's correlation with the return, the interval and the number of runs, the strongest first."""
    strata = [tuple(str(run.settings.get(name)) for name in ("env.name", *within)) for run in runs]
    groups: dict[object, list[int]] = defaultdict(list)
    for i, run in enumerate(runs):
        groups[tuple(sorted((n, str(v)) for n, v in run.settings.items() if n not in ("seed", "out")))].append(i)
    names = dict.fromkeys(n for run in runs for n in run.curves if n.startswith("critic/") and n.count("/") == 1)
    y = ranks(np.array([outcome(run) for run in runs]), strata)
    rows = []
    for name in (*names, *OTHERS):
        values = np.array([measured(run, name, at) for run in runs])
        if np.isnan(values).any():
            continue
        x = ranks(values, strata)
        rho = correlation(x, y)
        if np.isfinite(rho):
            rows.append((name, rho, *interval(x, y, groups, np.random.default_rng(0)), len(runs)))
    return sorted(rows, key=lambda row: -abs(row[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--at", type=int, default=3500, help="the env step of the measurement")
    parser.add_argument("--within", default="", help="settings, with commas between them")
    options = parser.parse_args()
    runs = runs_below(options.folder)
    if not runs:
        parser.error(f"no finished run below {options.folder}")
    print(f"{len(runs)} runs, measured at env step {options.at}\n")
    print("| measure | rank correlation with the return to come |\n|---|---|")
    for name, rho, low, high, _ in table(runs, options.at, [*filter(None, options.within.split(","))]):
        print(f"| `{name}` | {rho:+.2f} [{low:+.2f}, {high:+.2f}] |")


if __name__ == "__main__":
    main()
