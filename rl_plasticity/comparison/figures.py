"""Figures of a comparison, fit for a paper: one colour for each group everywhere.

With more than
`COLOURED` groups only the baseline and the best have one; the others are grey lines behind them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from rl_plasticity.comparison import plotting, steps
from rl_plasticity.comparison.groups import Group, identity, is_number, labels
from rl_plasticity.comparison.loading import Run
from rl_plasticity.comparison.plotting import (
    BAND,
    COLUMN,
    PAGE,
    PALETTE,
    STYLE,
    columns_of_legend,
    count_steps,
    cycled,
    label_rows,
    mark_strengths,
    say_why_empty,
    some,
    take_literally,
)
from rl_plasticity.comparison.summary import FEW, Comparison, Row
from rl_plasticity.metrics import statistics
from rl_plasticity.runs.names import MetricName

COLOURED = 1 + len(PALETTE)
GREY = "#b8b8b8"
FEW_POINTS = 8  # a line through so few is not how the metric went
THIN = 200  # steps of the line of one run
FIRST = ("sigma1", "weight_norm", "gradient_norm", "q_overestimation")  # of the metrics, as in the papers


class Curve(NamedTuple):
    """The mean of a group over its runs at some steps ``[n]``, and its interval (NaN of few seeds); `place`: `Look`."""

    place: int
    steps: NDArray[np.int64]
    means: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


class Drawn(NamedTuple):
    """A figure, the name of its file, a sentence that says what it shows, and the curves in each of its panels.

    What was drawn of the group at place 3 among a comparison's rows has the gid ``group3``, its name in a legend
    ``key3``.
    """

    name: str
    title: str
    figure: Figure
    caption: str
    curves: Mapping[Axes, Sequence[Curve]] = {}


class Look(NamedTuple):
    colour: str
    style: str
    order: int  # what is drawn later lies above
    place: int  # of the group among the comparison's rows

    @property
    def gid(self) -> str:
        return f"group{self.place}"


def draw(comparison: Comparison, whole: bool = True) -> Iterator[Drawn]:
    """The figures that the runs have numbers for, one after the other; not `whole`: only how they perform."""
    with matplotlib.rc_context(STYLE):
        for drawn in _drawn(comparison, _looks(comparison), whole):
            take_literally(drawn.figure)
            yield drawn


def colours(comparison: Comparison) -> list[str]:
    """Of the group of each of the comparison's rows."""
    looks = _looks(comparison)
    return [looks[row.group.label].colour for row in comparison.rows]


# ------------------------------------------------------------------------------------------------------------------


def _drawn(c: Comparison, looks: Mapping[str, Look], whole: bool) -> Iterator[Drawn]:
    if c.unit != "task" or max(c.at.values()) > 1:  # a single task has a curve over updates
        yield _learning_curves(c, looks)
    yield _final(c, looks)
    yield from _over_training(c, looks)
    if not whole:
        return
    if min(row.seeds for row in c.rows) > 1 and any(row.diverged < sum(map(len, row.final)) for row in c.rows):
        yield _profiles(c, looks)
        if c.baseline is not None and len(c.rows) > 1:
            yield _improvement(c, looks)
    yield from _sensitivity(c)
    for i, choice in enumerate(_of_choices(c)):
        for drawn in _sensitivity(choice):
            name = f"sensitivity_of_the_choice{f'_{i + 1}' if i else ''}"
            yield drawn._replace(name=name, title="Sensitivity to what was chosen")
    yield from _metrics(c, looks)


def for_page(comparison: Comparison, drawn: Drawn) -> Drawn:
    """The figure as a page shows it, which is wider than a column of a paper: a single panel of learning curves."""
    if drawn.name != "learning_curves" or drawn.figure.get_figwidth() > COLUMN:
        return drawn
    with matplotlib.rc_context(STYLE):
        wide = _learning_curves(comparison, _looks(comparison), PAGE)
        take_literally(wide.figure)
        return wide


def _learning_curves(c: Comparison, looks: Mapping[str, Look], width: float | None = None) -> Drawn:
    figure, panels = plotting.panels(len(c.at), min(3, len(c.at)), width, height=1.9 if width is None else 2.6)
    what = "at the end of each task" if c.unit == "task" else f"over {c.unit}s"
    caption = f"{c.metric} {what}: {_band(c)}.{_without_diverged(c)}"
    dotted = " Groups are compared at the dotted line, where the shortest run ends."
    curves = {}
    for axes, (task, at) in zip(panels, c.at.items(), strict=True):
        groups = [row.group for row in c.rows if task in row.group.tasks]
        curves[axes] = [one for g in groups for one in _curve(axes, c, g, g.tasks[task], c.metric, looks)]
        if any(run.curves[c.metric].steps[-1] > at for g in groups for run in g.tasks[task]):
            axes.axvline(at, color="#888888", lw=0.8, ls=(0, (1, 2)), zorder=0)
            caption = caption.removesuffix(dotted) + dotted
        axes.set_xlabel(_axis_of_steps(c.unit))
        axes.set_title(task if len(c.at) > 1 else "")
        say_why_empty(axes)
        _format_axes(axes, c.metric)
    panels[0].set_ylabel(_metric_label(c))
    _legend(figure, c, looks)
    return Drawn("learning_curves", "Learning curves", figure, caption, curves)


def _final(c: Comparison, looks: Mapping[str, Look]) -> Drawn:
    figure = Figure(figsize=(COLUMN, 0.6 + 0.28 * len(c.rows)))
    axes = figure.subplots()
    for y, row in enumerate(c.rows):
        look = looks[row.group.label]
        points = np.concatenate(row.final)
        points = points[np.isfinite(points)]
        if math.isfinite(row["mean"].value):
            (bar,) = axes.barh(y, row["mean"].value, height=0.62, color=look.colour, alpha=0.45, linewidth=0)
            bar.set_gid(look.gid)
        if row["mean"].interval:
            axes.plot(row["mean"].interval, [y, y], color="black", lw=1, gid=look.gid)
        spread = np.linspace(-0.2, 0.2, len(points)) if len(points) > 1 else np.zeros(len(points))
        axes.scatter(
            points, y + spread, s=7, color=look.colour, edgecolors="white", linewidths=0.3, zorder=3, gid=look.gid
        )
    diverged = [f" ({row.diverged} not finite)" if row.diverged else "" for row in c.rows]
    label_rows(axes, [row.label + more for row, more in zip(c.rows, diverged, strict=True)])
    axes.set_xlabel(_metric_label(c))
    caption = f"{c.metric} at {c.where}: mean (bar){_interval(c, ' (line)')}; each run is a point."
    caption += _without_diverged(c)
    return Drawn("final_performance", "Final performance", figure, caption)


def _profiles(c: Comparison, looks: Mapping[str, Look]) -> Drawn:
    figure, (axes,) = plotting.panels(1, 1)
    scores = np.concatenate([s for row in c.rows for s in row.final])
    scores = scores[np.isfinite(scores)]
    margin = 0.03 * (np.ptp(scores) or 1)
    thresholds = np.linspace(scores.min() - margin, scores.max() + margin, 201)
    rng = np.random.default_rng(0)
    for row in c.rows:
        look = looks[row.group.label]
        final = [statistics.worst(c.sign * s) for s in row.final]  # worse than every threshold
        profile = statistics.performance_profile(final, c.sign * thresholds)
        axes.plot(thresholds, profile, color=look.colour, ls=look.style, zorder=look.order, gid=look.gid)
        if look.colour != GREY and row.seeds >= FEW:
            drawn = [s[rng.integers(len(s), size=(2000, len(s)))] for s in final]
            low, high = np.quantile(statistics.performance_profile(drawn, c.sign * thresholds), [0.025, 0.975], axis=0)
            axes.fill_between(thresholds, low, high, color=look.colour, alpha=BAND / 2, lw=0, gid=look.gid)
    axes.set_xlabel(f"threshold of {_metric_label(c)}")
    side = "above" if c.better == "higher" else "below"
    axes.set_ylabel(f"share of runs {side} it")
    axes.set_ylim(-0.02, 1.02)
    _legend(figure, c, looks)
    caption = (
        f"Performance profiles: the share of runs whose {c.metric} at {c.where} is {side} a "
        f"threshold{', with pointwise 95 % bootstrap intervals ' + _from_few(c) if _have_intervals(c) else ''}."
    )
    return Drawn("performance_profiles", "Performance profiles", figure, caption)


def _improvement(c: Comparison, looks: Mapping[str, Look]) -> Drawn:
    found = [(row, estimate) for row in c.rows if (estimate := row.get("improvement"))]
    figure = Figure(figsize=(COLUMN, 0.6 + 0.28 * len(found)))
    axes = figure.subplots()
    for y, (row, estimate) in enumerate(found):
        look = looks[row.group.label]
        if estimate.interval:
            band: dict[str, Any] = {"lw": 5, "alpha": 0.4, "solid_capstyle": "butt"}
            axes.plot(estimate.interval, [y, y], color=look.colour, gid=look.gid, **band)
        axes.plot(estimate.value, y, "o", color=look.colour, ms=4, gid=look.gid)
    axes.axvline(0.5, color="#888888", lw=0.6, ls=(0, (1, 2)), zorder=0)
    axes.set_xlim(-0.03, 1.03)
    label_rows(axes, [row.group.label for row, _ in found])
    assert c.baseline is not None
    axes.set_xlabel(f"P(better than {c.baseline.label})")
    caption = (
        f"Probability that a run of the group has a {c.better} {c.metric} at {c.where} than one of {c.baseline.label}"
        f"{', with 95 % stratified bootstrap intervals ' + _from_few(c) if _have_intervals(c) else ''}. "
        "At 0.5 neither is better."
    )
    return Drawn("probability_of_improvement", "Probability of improvement", figure, caption)


def _of_choices(c: Comparison) -> list[Comparison]:
    """The candidates of all choices that were made by the same metric at the same step, together."""
    together: dict[tuple[str, str], Comparison] = {}
    for choice in c.candidates:
        same = together.setdefault((choice.metric, choice.where), replace(choice, rows=()))
        together[choice.metric, choice.where] = replace(same, rows=[*same.rows, *choice.rows])
    return [*together.values()]


def _sensitivity(c: Comparison) -> Iterator[Drawn]:
    """Against each number in which two groups or more differ, and in nothing else (spectral paper, Figures 4 and 5)."""
    shown = {name: families for name in _numbers(c) if (families := _families(c, name))}
    if not shown:
        return
    figure, panels = plotting.panels(len(shown), min(2, len(shown)), sharey="row")
    lines_of_legend = []
    for axes, (name, families) in zip(panels, shown.items(), strict=True):
        _strengths(axes, c, name, families)
        texts = [str(line.get_label()) for line in axes.lines]
        columns = columns_of_legend(texts, figure.get_figwidth() / min(2, len(panels)))
        lines_of_legend.append(math.ceil(len(texts) / columns))
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.2, handlelength=1.4)
    per_row = [max(lines_of_legend[i : i + 2]) for i in range(0, len(panels), 2)]
    figure.set_figheight(figure.get_figheight() + 0.17 * sum(max(0, lines - 2) for lines in per_row))
    panels[0].set_ylabel(_metric_label(c))
    caption = (
        f"{c.metric} at {c.where} of groups that differ only in the setting on the axis: mean{_interval(c)}. "
        "A value of 0 has no place on a logarithmic axis and is left out. Colours are of this figure only."
    )
    yield Drawn("sensitivity", "Sensitivity to settings", figure, caption)


def _strengths(axes: Axes, c: Comparison, name: str, families: Sequence[Sequence[Row]]) -> None:
    """A line for each family over the number called `name`, and one for the group without any method."""
    names = labels([{k: v for k, v in rows[0].group.settings.items() if k != name} for rows in families])
    for i, (label, rows) in enumerate(zip(names, families, strict=True)):
        x = [float(row.group.settings[name]) for row in rows]
        means, bands = ([row["mean"].value for row in rows], [row["mean"].interval for row in rows])
        band = np.array(bands).T if all(bands) else ()
        plotting.line(axes, np.array(x), np.array(means), band, marker="o", label=label, **cycled(i))
    plain = [r for r in c.rows if r.group.settings.get("reg.name") == r.group.settings.get("reset.name") == "none"]
    if len(plain) == 1 and not any(plain[0] in rows for rows in families):
        axes.axhline(plain[0]["mean"].value, color="black", lw=0.9, ls="--", label=plain[0].group.label)
    mark_strengths(axes, [float(row.group.settings[name]) for rows in families for row in rows])
    axes.set_xlabel(name)


def _over_training(c: Comparison, looks: Mapping[str, Look]) -> Iterator[Drawn]:
    """Accuracy, or return, as training goes on, with the borders of tasks (SWR paper, Figures 2 to 4)."""
    names = [name for name in _of_over_training(c) if _has(c, name)]
    what = "Accuracy" if "eval/return" not in names else "Return"
    for task in c.at if names else ():
        unit = c.unit_of(names[0])
        figure, panels = plotting.panels(len(names), 1, PAGE, height=1.6)
        curves = {}
        for axes, name in zip(panels, names, strict=True):
            curves[axes] = _metric_panel(axes, c, task, name, looks)
            axes.set_xlabel(unit)
            axes.set_ylabel(name)
        _legend(figure, c, looks)
        title = f"{what} over {unit}s"
        caption = f"{what} on the task at hand over {unit}s: {_band(c)}. Vertical lines: a new task."
        name = title.lower().replace(" ", "_")
        yield Drawn(_of_task(name, c, task), _of_task(title, c, task), figure, caption, curves)


def _metrics(c: Comparison, looks: Mapping[str, Look]) -> Iterator[Drawn]:
    """Everything else that was measured, a figure for each network (spectral paper, Figures 3 and 5)."""
    shown = {c.metric, *_of_over_training(c)}
    names = dict.fromkeys(n for row in c.rows for run in row.group.runs for n in run.curves if n not in shown)
    titles = {
        "critic": "Critic",
        "actor": "Actor",
        "net": "Network",
        "task": "By task",
        "eval": "Evaluation",
        "other": "Other metrics",
    }
    families: dict[str, list[str]] = {family: [] for family in titles}
    for name in names:
        of, _, layer = MetricName.parse(name)
        # A number that was measured once makes no curve, and one that is always 0 shows nothing.
        if not layer and _longest(c, name) > 1 and _is_ever_not_zero(c, name):
            families[of if of in titles else "other"].append(name)
    for family, members in families.items():
        members.sort(key=_priority)
        for task in c.at if members else ():
            columns = min(3, len(members))
            figure, panels = plotting.panels(len(members), columns, PAGE if columns > 1 else COLUMN, height=1.45)
            curves = {}
            for axes, name in zip(panels, members, strict=True):
                curves[axes] = _metric_panel(axes, c, task, name, looks)
                axes.set_title(name)
            for axes in panels[-columns:]:
                axes.set_xlabel(_axis_of_steps(c.unit_of(members[0])))
            _legend(figure, c, looks)
            caption = f"M{_band(c)[1:]}. An axis over more than two orders of magnitude is logarithmic."
            name, title = _of_task(f"metrics_{family}", c, task), _of_task(titles[family], c, task)
            yield Drawn(name, title, figure, caption, curves)


# ------------------------------------------------------------------------------------------------------------------


def _of_over_training(c: Comparison) -> list[str]:
    """The metrics of `_over_training`; a return that is compared at every step has learning curves already."""
    return ["eval/train_accuracy", "eval/test_accuracy", *(["eval/return"] if c.unit == "task" else [])]


def _longest(c: Comparison, name: str) -> int:
    runs = [run for row in c.rows for run in row.group.runs]
    return max(len(run.curves[name].steps) for run in runs if name in run.curves)


def _is_ever_not_zero(c: Comparison, name: str) -> bool:
    runs = [run for row in c.rows for run in row.group.runs]
    return any(run.curves[name].values.any() for run in runs if name in run.curves)


def _looks(c: Comparison) -> dict[str, Look]:
    """Black for the baseline, a colour for the others; where there are too many, grey for all but the best."""
    baseline = c.baseline.label if c.baseline else None
    others = [row.group.label for row in c.rows if row.group.label != baseline]
    if len(c.rows) > COLOURED:
        best = sorted((r for r in c.rows if r.group.label != baseline), key=lambda r: -c.sign * r["iqm"].value)
        coloured = {row.group.label for row in best[: len(PALETTE) - 2]}
        others = [label for label in others if label in coloured]
    looks = {row.group.label: Look(GREY, "-", 1, i) for i, row in enumerate(c.rows)}
    for i, label in enumerate(others):
        looks[label] = looks[label]._replace(colour=PALETTE[i % len(PALETTE)], order=3)
    if baseline is not None:
        looks[baseline] = looks[baseline]._replace(colour="black", style="--", order=4)
    return looks


def _curve(
    axes: Axes, c: Comparison, g: Group, runs: Sequence[Run], metric: str, looks: Mapping[str, Look]
) -> list[Curve]:
    """Mean of a group's runs at the steps that all have, 500 at most, its interval, and each run as a thin line."""
    curves = [c.curve(run, metric) for run in runs if metric in run.curves]
    common = steps.shared(metric, curves) if curves else np.array([], np.int64)
    if not len(common):
        return []
    common = some(common, 500)
    look = looks[g.label]
    values = np.array([steps.at(curve, common) for curve in curves])
    means, low, high = statistics.mean_curve(values)
    marker = "o" if len(common) <= FEW_POINTS or (_is_of_tasks(metric) and len(common) <= 30) else ""
    few = len(values) < FEW  # whose interval is shown nowhere
    drawn: dict[str, Any] = {"color": look.colour, "gid": look.gid}
    band = () if few or look.colour == GREY else (low, high)
    plotting.line(axes, common, means, band, look.order, ls=look.style, marker=marker, **drawn)
    found = Curve(look.place, common, means, *((np.full_like(means, np.nan),) * 2 if few else (low, high)))
    if look.colour == GREY or len(values) == 1:
        return [found]
    thin = some(common, THIN)
    each = np.array([steps.at(curve, thin) for curve in curves])
    each = np.pad(np.where(np.isfinite(each), each, np.nan), ((0, 0), (0, 1)), constant_values=np.nan)
    of_all = np.tile([*thin, np.nan], len(each))  # one line with gaps: a line for each would take as long each
    axes.plot(of_all, each.ravel(), lw=0.5, alpha=0.45, zorder=look.order - 1, **drawn)
    return [found]


def _metric_panel(axes: Axes, c: Comparison, task: str, name: str, looks: Mapping[str, Look]) -> list[Curve]:
    curves = []
    for row in c.rows:
        curves += _curve(axes, c, row.group, row.group.tasks.get(task, ()), name, looks)
    borders = max((r.borders for row in c.rows for r in row.group.tasks.get(task, ())), key=len, default=np.array([]))
    if len(borders) <= 30 and not _is_of_tasks(name):
        for border in borders[:-1]:
            axes.axvline(border, color="#cccccc", lw=0.5, zorder=0)
    drawn = [np.asarray(line.get_ydata(), float) for line in axes.lines if len(np.atleast_1d(line.get_ydata())) > 2]
    values = np.concatenate(drawn) if drawn else np.array([])
    values = values[np.isfinite(values)]
    if len(values) and values.min() > 0 and values.max() / 100 > values.min():
        axes.set_yscale("log")
        axes.set_ylim(bottom=values.min() / 1.2)  # an interval may reach below 0, which has no place there
    say_why_empty(axes)
    _format_axes(axes, name)
    return curves


def _legend(figure: Figure, c: Comparison, looks: Mapping[str, Look]) -> None:
    """Below the panels, in as many columns as fit."""
    named = [row for row in c.rows if looks[row.group.label].colour != GREY]
    of = [looks[row.group.label] for row in named]
    handles = {row.label: Line2D([], [], color=o.colour, ls=o.style) for row, o in zip(named, of, strict=True)}
    if len(named) < len(c.rows):
        handles[f"{len(c.rows) - len(named)} others"] = Line2D([], [], color=GREY)
    drawn = plotting.legend(figure, handles)
    for look, handle, text in zip(of, drawn.legend_handles, drawn.texts, strict=False):
        for part in filter(None, (handle, text)):
            part.set_gid(f"key{look.place}")


def _numbers(c: Comparison) -> list[str]:
    """Settings that are a number above 0 in two groups or more, and not the same."""
    names = dict.fromkeys(name for row in c.rows for name in row.group.settings)
    return [name for name in names if len({r.group.settings[name] for r in c.rows if _positive(r, name)}) > 1]


def _positive(row: Row, name: str) -> bool:
    value: Any = row.group.settings.get(name)
    return is_number(value) and value > 0


def _families(c: Comparison, name: str) -> list[list[Row]]:
    """The groups that differ in nothing but this number, by rising number; of two or more."""
    families: dict[Any, list[Row]] = {}
    for row in c.rows:
        if _positive(row, name):
            families.setdefault(identity(row.group.settings, [name]), []).append(row)
    return [
        sorted(rows, key=lambda row: float(row.group.settings[name])) for rows in families.values() if len(rows) > 1
    ]


def _has(c: Comparison, name: str) -> bool:
    return any(name in run.curves for row in c.rows for run in row.group.runs)


def _is_of_tasks(metric: str) -> bool:
    return MetricName.parse(metric).of == "task"


def _priority(name: str) -> tuple[int, str]:
    quantity = MetricName.parse(name).quantity
    return (FIRST.index(quantity) if quantity in FIRST else len(FIRST), name)


def _of_task(name: str, c: Comparison, task: str) -> str:
    if len(c.at) == 1:
        return name
    plain = "".join(ch if ch.isalnum() or ch in "-_" else "-" for ch in task)
    return f"{name}_{plain}" if name.islower() else f"{name}, {task}"


def _metric_label(c: Comparison) -> str:
    return f"{c.metric} / 1000" if c.scale != 1 else c.metric


def _axis_of_steps(unit: str) -> str:
    return {"env step": "env steps", "update": "updates", "task": "task"}[unit]


def _format_axes(axes: Axes, metric: str) -> None:
    """Steps as `count_steps` shows them; of an accuracy the whole range unless all of it is high."""
    count_steps(axes, _is_of_tasks(metric))
    if axes.get_yscale() == "linear":
        axes.ticklabel_format(axis="y", useOffset=False)
    if metric.endswith("accuracy"):
        lines = [np.asarray(line.get_ydata(), float) for line in axes.lines]
        lines = [y[np.isfinite(y)] for y in lines if len(y) > 2]  # two points: a border or a mark
        lowest = min((float(y.min()) for y in lines if len(y)), default=0.0)
        bottom = lowest - (1 - lowest) / 2 if lowest > 0.5 else 0.0
        axes.set_ylim(bottom, 1 + 0.03 * (1 - bottom))


def _seeds(c: Comparison) -> str:
    return f"{c.seeds} a group and task" if len(c.at) > 1 else f"{c.seeds} a group"


def _from_few(c: Comparison) -> str:
    return f"from {FEW} seeds on ({_seeds(c)})"


def _have_intervals(c: Comparison) -> bool:
    """Whether any group has enough seeds for one: a caption promises none that is not drawn."""
    return any(row.seeds >= FEW for row in c.rows)


def _interval(c: Comparison, shown_as: str = "") -> str:
    if not _have_intervals(c):
        return f", without an interval ({_seeds(c)}, fewer than {FEW})"
    return f" and 95 % Student's t interval{shown_as} of it {_from_few(c)}"


def _band(c: Comparison) -> str:
    interval = _interval(c).replace("and 95 %", "and pointwise 95 %")
    return f"mean over seeds{interval}" + ("; each run as a thin line" if any(r.seeds > 1 for r in c.rows) else "")


def _without_diverged(c: Comparison) -> str:
    return " Values that are not finite are left out." if any(row.diverged for row in c.rows) else ""
