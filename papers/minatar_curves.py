"""Returns of deep Q-networks on MinAtar beside the published curves: ``python -m papers.minatar_curves FILE.csv``.

The file has returns read off the figure of Young and Tian (2019); `low` and `high` are the ends of the line's width
there. As in that figure, a return is the mean of the last 100 training episodes of a run. The table has the means over
our seeds, with Student's 95 % interval. With --runs, it first writes the returns of these runs to ``returns.csv``
beside the file, where those of other games stay, and draws ``figure.png``.
"""

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rl_plasticity import SettingsError
from rl_plasticity.comparison import plotting
from rl_plasticity.comparison.loading import Run, read
from rl_plasticity.comparison.table import mean
from rl_plasticity.runs.folder import find

EPISODES = 100
PUBLISHED, OURS = ("env", "env_step", "return", "low", "high"), ("env", "seed", "env_step", "return")
Lines = list[dict[str, str]]


def last_episodes(run: Run, steps: Sequence[int]) -> list[float]:
    """The mean return of the last 100 training episodes that had ended by each env step.

    It is NaN where there are fewer, and where the run has not come so far.
    """
    curve = run.curves["train/return"]
    totals = np.concatenate([[0.0], np.cumsum(curve.values)])
    ended = np.searchsorted(curve.steps, steps, side="right")
    means = (totals[ended] - totals[np.maximum(ended - EPISODES, 0)]) / EPISODES
    reached = max(int(curve.steps[-1]) for curve in run.curves.values())
    values: list[float] = np.where((ended >= EPISODES) & (np.array(steps) <= reached), means, np.nan).tolist()
    return values


def table(published: Lines, ours: Lines) -> list[str]:
    """The lines of a Markdown table: for each game and env step both returns."""
    rows = ["| game | env steps | published | ours |", "|---|---|---|---|"]
    for line in published:
        returns = _returns(ours, line)
        game, step = line["env"].removeprefix("minatar:"), f"{int(line['env_step']):,}".replace(",", " ")
        theirs = f"{line['return']} ({line['low']} to {line['high']})"
        estimate = mean([np.array(returns)], enough=2)
        between = " [{:.1f}, {:.1f}]".format(*estimate.interval) if estimate.interval else ""
        rows.append(f"| {game} | {step} | {theirs} | {f'{estimate.value:.1f}{between}' if estimate.n else 'no run'} |")
    return rows


def draw(published: Lines, ours: Lines) -> Figure:
    """One panel for each game: the mean of our seeds with the range between them, and the published returns."""
    games = [*dict.fromkeys(line["env"] for line in published)]
    with matplotlib.rc_context(plotting.STYLE):
        figure, grid = plotting.panels(len(games), len(games), plotting.PAGE)
        for axes, game in zip(grid, games, strict=True):
            theirs = [line for line in published if line["env"] == game]
            columns = ("env_step", "return", "low", "high")
            at, value, low, high = (np.array([float(line[name]) for line in theirs]) for name in columns)
            seeds = [_returns(ours, line) for line in theirs]
            means, band = np.array([np.mean(of) for of in seeds]), np.array([[min(of), max(of)] for of in seeds]).T
            plotting.line(axes, at, means, (band[0], band[1]), color=plotting.PALETTE[0])
            axes.errorbar(at, value, (value - low, high - value), fmt="o", color="black", ms=3, capsize=2)
            axes.set_ylim(0)
            axes.set_title(game.removeprefix("minatar:").replace("_", " "))
            axes.set_xlabel("env step")
            plotting.count_steps(axes, of_tasks=False)
        grid[0].set_ylabel("return, last 100 episodes")
        look = {"published": Line2D([], [], color="black", marker="o", ms=3, ls="")}
        plotting.legend(figure, look | {"here, mean and range of seeds": Line2D([], [], color=plotting.PALETTE[0])})
    return figure


def of_runs(published: Lines, folder: Path) -> Lines:
    """The returns of all runs of published games below a folder, at the published env steps.

    Raises:
        SettingsError: there is no such folder, a run cannot be read, or none is of a published game.
    """
    runs = [run for one in find([folder]) for run in read(one) if "train/return" in run.curves]
    lines = []
    for run in runs:
        env = run.settings["env.name"]
        steps = [line["env_step"] for line in published if line["env"] == env]
        for step, value in zip(steps, last_episodes(run, [int(step) for step in steps]), strict=True):
            lines.append({"env": env, "seed": str(run.seed), "env_step": step, "return": str(value)})
    if not lines:
        raise SettingsError(f"no run below {folder} has env={' or '.join(dict.fromkeys(p['env'] for p in published))}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="take the returns from these runs")
    given = parser.parse_args()
    kept = given.file.with_name("returns.csv")
    try:
        published = _read(given.file, PUBLISHED)
        ours = _read(kept, OURS) if kept.exists() else []
        if given.runs:
            found = of_runs(published, given.runs)
            ours = [line for line in ours if line["env"] not in {one["env"] for one in found}] + found
        if missing := [line for line in published if not _returns(ours, line)]:
            where = "{env} at env step {env_step}".format(**missing[0])
            raise SettingsError(f"{kept} has no return of {where}: --runs FOLDER takes it from runs")
        if given.runs:
            figure = draw(published, ours)
            with kept.open("w", newline="") as file:
                lines = csv.DictWriter(file, OURS, lineterminator="\n")
                lines.writeheader()
                lines.writerows(ours)
            figure.savefig(given.file.with_name("figure.png"), dpi=200)
        print("\n".join(table(published, ours)))
    except (OSError, ValueError) as error:
        parser.error(str(error))


def _returns(ours: Lines, line: dict[str, str]) -> list[float]:
    """Our seeds' returns at a line's game and env step."""
    return [float(o["return"]) for o in ours if (o["env"], o["env_step"]) == (line["env"], line["env_step"])]


def _read(path: Path, columns: Sequence[str]) -> Lines:
    with path.open(newline="") as file:
        lines = [*csv.DictReader(file)]
    if not lines or not {*columns} <= lines[0].keys():
        raise SettingsError(f"{path} needs lines with the columns {', '.join(columns)}")
    return lines


if __name__ == "__main__":
    main()
