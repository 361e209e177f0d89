"""Figures of a comparison, fit for a paper. A group has the same color in all of them, and the baseline is black."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rl_plasticity.comparison import plotting
from rl_plasticity.comparison.groups import identity, is_number, labels
from rl_plasticity.comparison.plotting import PALETTE, STYLE
from rl_plasticity.comparison.table import FEW, Comparison, Row, at, shared
from rl_plasticity.metrics import statistics
from rl_plasticity.runs.names import MetricName

KINDS = ("critic", "actor", "net", "task", "eval")  # of metrics, each with its own figure
# Of the files.
NAMES = ("learning_curves", "final_performance", "sensitivity", *(f"metrics_{of}" for of in (*KINDS, "other")))


class Drawn(NamedTuple):
    """A figure, the name of its file, its title and its caption."""

    name: str
    title: str
    figure: Figure
    caption: str


Looks = Mapping[str, Mapping[str, Any]]  # of each group's label


def draw(c: Comparison) -> Iterator[Drawn]:
    """The figures that the runs have numbers for, one after the other."""
    with matplotlib.rc_context(STYLE):
        for drawn in _drawn(c, _looks(c)):
            plotting.take_literally(drawn.figure)
            yield drawn


def _drawn(c: Comparison, looks: Looks) -> Iterator[Drawn]:
    yield _panels(c, looks, [c.metric], "learning_curves", "Learning curves")
    yield _final(c, looks)
    yield from _sensitivity(c)
    members: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for row in c.rows for run in row.group.runs for name in run.curves):
        of, _, layer = MetricName.parse(name)
        curves = [run.curves[name] for row in c.rows for run in row.group.runs if name in run.curves]
        # A number that was measured once makes no curve, and one that is always 0 shows nothing.
        if name != c.metric and not layer and any(len(one.steps) > 1 and one.values.any() for one in curves):
            members.setdefault(of if of in KINDS else "other", []).append(name)
    for of, names in members.items():
        yield _panels(c, looks, sorted(names), f"metrics_{of}", f"Metrics: {of}")


def _looks(c: Comparison) -> Looks:
    """One look for each group; a baseline that is a method is black and dashed."""
    looks = plotting.looks([row.group.label for row in c.rows])
    if c.baseline is not None and looks[c.baseline.label]["color"] != "gray":
        looks[c.baseline.label] = {"color": "black", "ls": "--"}
    return looks


def _panels(c: Comparison, looks: Looks, metrics: Sequence[str], name: str, title: str) -> Drawn:
    """A panel for each metric and task, with the mean curve of each group and its interval."""
    of_panels = [(metric, task) for task in c.steps for metric in metrics]
    columns = min(3, len(of_panels))
    figure, panels = plotting.panels(len(of_panels), columns)
    for place, (axes, (metric, task)) in enumerate(zip(panels, of_panels, strict=True)):
        for row in c.rows:
            _curve(axes, c, row, metric, task, looks[row.group.label])
        low, high = axes.get_ylim()
        if metric != c.metric and low > 0 and high > 100 * low:
            axes.set_yscale("log")
        plotting.say_why_empty(axes)
        unit = c.rows[0].group.runs[0].unit(metric)
        plotting.count_steps(axes, unit == "task")
        axes.set_title(" ".join([metric] * (metric != c.metric) + [task] * (len(c.steps) > 1)))
        if place >= len(of_panels) - columns:
            axes.set_xlabel(unit if unit == "task" else f"{unit}s")
    if name == "learning_curves":
        panels[0].set_ylabel(c.metric)
    if len(c.rows) <= 2 * len(PALETTE):
        plotting.legend(figure, {row.name: Line2D([], [], **looks[row.group.label]) for row in c.rows})
    return Drawn(name, title, figure, f"{', '.join(metrics)}: mean over seeds{_intervals(c)}; each thin line is a run.")


def _curve(axes: Axes, c: Comparison, row: Row, metric: str, task: str, look: Mapping[str, Any]) -> None:
    """Draw the mean of a group's runs at the steps that all have, at most 500, its interval, and the runs."""
    curves = [run.curves[metric] for run in row.group.tasks[task] if metric in run.curves]
    common = shared(metric, curves) if curves else np.zeros(0, np.int64)
    if not len(common):
        return
    common = plotting.some(common, 500)
    runs = np.array([at(curve, common) for curve in curves])
    means, low, high = statistics.mean_curve(runs)
    band = (low, high) if len(runs) >= FEW else ()
    plotting.line(axes, common, means, band, 3, marker="o" if len(common) <= 8 else "", **look)
    if len(runs) > 1:
        axes.plot(common, np.where(np.isfinite(runs), runs, np.nan).T, lw=0.5, alpha=0.45, **look)


def _final(c: Comparison, looks: Looks) -> Drawn:
    figure, (axes,) = plotting.panels(1, 1, height=0.6 + 0.28 * len(c.rows))
    plotting.label_rows(axes, [row.name for row in c.rows])
    for y, row in enumerate(c.rows):
        points = np.concatenate(row.final)
        points = points[np.isfinite(points)]
        color, (mean, interval, *_) = looks[row.group.label]["color"], row["mean"]
        axes.plot([mean] * 2, [y - 0.31, y + 0.31], color=color, lw=2.5)
        axes.plot(interval or (), [y] * len(interval or ()), color="black", lw=1)
        axes.scatter(points, y + np.linspace(-0.2, 0.2, len(points)), s=7, color=color, zorder=3)
    axes.set_xlabel(c.metric)
    caption = f"{c.metric} at {c.where}: mean (upright line){_intervals(c)}; each run is a point."
    return Drawn("final_performance", "Final performance", figure, caption)


def _sensitivity(c: Comparison) -> Iterator[Drawn]:
    """Scores against each number that groups differ in, and in nothing else (spectral paper, Figures 4 and 5)."""
    names = dict.fromkeys(name for row in c.rows for name in row.group.settings)
    shown = {name: families for name in names if (families := _families(c, name))}
    if not shown:
        return
    figure, panels = plotting.panels(
        len(shown), min(2, len(shown)), height=1.9 + 0.17 * max(map(len, shown.values())), sharey="row"
    )
    for axes, (name, families) in zip(panels, shown.items(), strict=True):
        without = [{k: v for k, v in rows[0].group.settings.items() if k != name} for rows in families]
        named = labels(without)
        looks = plotting.looks(named)
        for label, rows in zip(named, families, strict=True):
            x = [row.group.settings[name] for row in rows]
            low, high = np.array([row["mean"].interval or (np.nan, np.nan) for row in rows]).T
            means = np.array([row["mean"].value for row in rows])
            plotting.line(axes, np.array(x), means, (low, high), marker="o", label=label, **looks[label])
        plotting.mark_strengths(axes, [row.group.settings[name] for rows in families for row in rows])
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1))
        axes.set_xlabel(name)
    panels[0].set_ylabel(c.metric)
    caption = f"{c.metric} at {c.where} of groups that differ only in the setting on the axis: mean{_intervals(c)}."
    yield Drawn("sensitivity", "Sensitivity to settings", figure, caption)


def _families(c: Comparison, name: str) -> list[list[Row]]:
    """The groups that differ in nothing but this number, which is above 0, by rising number."""
    families: dict[Any, list[Row]] = {}
    have = [row for row in c.rows if is_number(value := row.group.settings.get(name, 0)) and value > 0]
    for row in sorted(have, key=lambda row: row.group.settings[name]):
        families.setdefault(identity(row.group.settings, [name]), []).append(row)
    return [rows for rows in families.values() if len(rows) > 1]


def _intervals(c: Comparison) -> str:
    """A clause that promises no interval that is not drawn."""
    return f" with 95 % Student's t intervals from {FEW} seeds on" if any(r.seeds >= FEW for r in c.rows) else ""
