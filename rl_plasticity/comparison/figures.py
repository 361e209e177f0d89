"""Figures of a comparison, fit for a paper. A group has the same color in all of them.

With more than `COLOURED` groups only the baseline and the best groups have a color. The others are grey lines behind
them.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from rl_plasticity.comparison import plotting, steps
from rl_plasticity.comparison.groups import identity, is_number, labels
from rl_plasticity.comparison.loading import Run
from rl_plasticity.comparison.plotting import BAND, COLUMN, PAGE, PALETTE, STYLE
from rl_plasticity.comparison.summary import FEW, Comparison, Row
from rl_plasticity.diagnosis.verdict import LOST, PLASTIC
from rl_plasticity.metrics import statistics
from rl_plasticity.runs.names import Curve, MetricName

COLOURED = 1 + len(PALETTE)
GREY = "#b8b8b8"
DOTTED = (0, (1, 2))
PUBLISHED = ("-", "--", "-.", ":")
FEW_POINTS = 8  # a line through so few is not how the metric went: each point is marked
THIN = 200  # the most steps of the thin line of a single run
FIRST = ("sigma1", "weight_norm", "gradient_norm", "q_overestimation")  # of the metrics, as in the papers
FAMILIES = {"critic": "Critic", "actor": "Actor", "net": "Network", "task": "By task", "eval": "Evaluation"}
OTHER = "other"
IN_WORDS = {
    "eval/return": "return",
    "task/return": "return at the end of the task",
    "task/train_accuracy": "task accuracy (training)",
    "task/test_accuracy": "task accuracy (test)",
    "eval/train_accuracy": "accuracy (training)",
    "eval/test_accuracy": "accuracy (test)",
    "trainability": "trainability (fresh: 1)",
}
"""Metrics as axes call them, by the whole name, or by the quantity for any network."""


class MeanCurve(NamedTuple):
    """The mean of a group's runs at some steps ``[n]``, and its interval, which is NaN where seeds are few.

    Args:
        place: the group's among the comparison's rows.
    """

    place: int
    steps: NDArray[np.int64]
    means: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


class Drawn(NamedTuple):
    """A figure, the name of its file, a caption, and the curves in each of its panels.

    The gid of whatever was drawn for the group at place 3 of a comparison's rows is ``group3``; that of its name in a
    legend is ``key3``.
    """

    name: str
    title: str
    figure: Figure
    caption: str
    curves: Mapping[Axes, Sequence[MeanCurve]] = {}


class Look(NamedTuple):
    """How a group is drawn.

    Args:
        order: what has a higher order lies above.
        place: the group's among the comparison's rows.
    """

    colour: str
    style: str
    order: int
    place: int

    @property
    def gid(self) -> str:
        return f"group{self.place}"


Rows = Sequence[tuple[Row, Look]]


def draw(comparison: Comparison, whole: bool = True) -> Iterator[Drawn]:
    """The figures that the runs have numbers for, one after the other.

    Args:
        whole: false: only the figures that show how the groups perform.
    """
    with matplotlib.rc_context(STYLE):
        for drawn in _drawn(comparison, _looks(comparison), whole):
            plotting.take_literally(drawn.figure)
            yield drawn


def in_words(metric: str) -> str:
    """A metric as axes call it: ``return``, ``critic trainability (fresh: 1)``; its name if there are no words."""
    of, quantity, layer = MetricName.parse(metric)
    if metric in IN_WORDS or quantity not in IN_WORDS or layer:
        return IN_WORDS.get(metric, metric)
    return f"{of} {IN_WORDS[quantity]}"


def colours(comparison: Comparison) -> list[str]:
    """The color of the group of each of the comparison's rows."""
    return [look.colour for _, look in _looks(comparison)]


def for_page(comparison: Comparison, drawn: Drawn) -> Drawn:
    """The figure as a page shows it: a single panel of learning curves is as wide as the page."""
    if drawn.name != "learning_curves" or drawn.figure.get_figwidth() > COLUMN:
        return drawn
    with matplotlib.rc_context(STYLE):
        wide = _learning_curves(comparison, _looks(comparison), PAGE)
        plotting.take_literally(wide.figure)
        return wide


# ------------------------------------------------------------------------------------------------------------------


def _drawn(c: Comparison, rows: Rows, whole: bool) -> Iterator[Drawn]:
    if c.unit != "task" or max(c.at.values()) > 1:  # a single task has a curve over updates
        yield _learning_curves(c, rows)
    yield _final(c, rows)
    yield from _over_training(c, rows)
    if not whole:
        return
    if min(row.seeds for row in c.rows) > 1 and any(np.isfinite(s).any() for row in c.rows for s in row.final):
        yield _profiles(c, rows)
        if c.baseline is not None and len(c.rows) > 1:
            yield _improvement(c, rows)
    yield from _trainability(c, rows)
    yield from _sensitivity(c)
    for i, choice in enumerate(_of_choices(c)):
        for drawn in _sensitivity(choice):
            name = f"sensitivity_of_the_choice{f'_{i + 1}' if i else ''}"
            yield drawn._replace(name=name, title="Sensitivity to what was chosen")
    yield from _metrics(c, rows)


def _looks(c: Comparison) -> Rows:
    """Black for the baseline and a color for the others; grey for all but the best where there are too many."""
    others = [place for place, row in enumerate(c.rows) if row.group is not c.baseline]
    if len(c.rows) > COLOURED:
        best = sorted(others, key=lambda place: -c.sign * c.rows[place]["iqm"].value)
        others = sorted(best[: len(PALETTE) - 2])
    looks = {place: Look(PALETTE[i % len(PALETTE)], "-", 3, place) for i, place in enumerate(others)}
    rest = [
        Look("black", "--", 4, place) if row.group is c.baseline else Look(GREY, "-", 1, place)
        for place, row in enumerate(c.rows)
    ]
    return [(row, looks.get(place, rest[place])) for place, row in enumerate(c.rows)]


def _learning_curves(c: Comparison, rows: Rows, width: float | None = None) -> Drawn:
    figure, panels = plotting.panels(len(c.at), min(3, len(c.at)), width, height=1.9 if width is None else 2.6)
    what = "at the end of each task" if c.unit == "task" else f"over {c.unit}s"
    cut = ""
    curves = {}
    for axes, (task, at) in zip(panels, c.at.items(), strict=True):
        curves[axes] = _curves(axes, c, rows, task, c.metric)
        _draw_published(axes, c, task)
        if any(run.curves[c.metric].steps[-1] > at for row in c.rows for run in row.group.tasks.get(task, ())):
            axes.axvline(at, color="#888888", lw=0.8, ls=DOTTED, zorder=0)
            cut = " Groups are compared at the dotted line, where the shortest run ends."
        axes.set_xlabel(_axis_of_steps(c.unit))
        axes.set_title(task if len(c.at) > 1 else "")
        plotting.say_why_empty(axes)
        _format_axes(axes, c.metric)
    panels[0].set_ylabel(_metric_label(c))
    if width is None:
        _legend(figure, rows)
    else:  # beside the curves, in the order of their ends
        ends = {curve.place: np.nan_to_num(curve.means[-1], nan=-np.inf) for curve in curves[panels[0]]}
        _legend(figure, sorted(rows, key=lambda one: -ends.get(one[1].place, -np.inf)), beside=True)
    others = " Grey: published means, with 95 % intervals from 5 seeds on." if c.published else ""
    caption = f"{c.metric} {what}: {_band(c)}.{_without_diverged(c)}{cut}{others}"
    return Drawn("learning_curves", "Learning curves", figure, caption, curves)


def _draw_published(axes: Axes, c: Comparison, task: str) -> None:
    """Draw the published curves of a task up to the end of ours, each named at its end."""
    ours = [run.curves[c.metric].steps[-1] for row in c.rows for run in row.group.tasks.get(task, ())]
    for place, one in enumerate(c.published):
        common = steps.shared(c.metric, one.curves) if one.task == task else np.array([], np.int64)
        common = common[common <= max(ours)]
        if not len(common):
            continue
        of_runs = c.scale * np.array([steps.at(curve, common) for curve in one.curves])
        means, low, high = statistics.mean_curve(of_runs)
        look: dict[str, Any] = {"color": "#707070", "ls": PUBLISHED[place % len(PUBLISHED)], "lw": 0.9}
        plotting.line(axes, common, means, (low, high) if len(of_runs) >= FEW else (), 1, marker="x", **look)
        axes.annotate(one.name, (common[-1], means[-1]), (2, 2), textcoords="offset points", fontsize=6, ha="right")


def _final(c: Comparison, rows: Rows) -> Drawn:
    figure, axes = _rows_of([row.name + (f" ({row.diverged} not finite)" if row.diverged else "") for row in c.rows])
    for y, (row, look) in enumerate(rows):
        points = np.concatenate(row.final)
        points = points[np.isfinite(points)]
        mean = row["mean"]
        if math.isfinite(mean.value):
            axes.plot([mean.value] * 2, [y - 0.31, y + 0.31], color=look.colour, lw=2.5, gid=look.gid)
        if mean.interval:
            axes.plot(mean.interval, [y, y], color="black", lw=1, gid=look.gid)
        spread = np.linspace(-0.2, 0.2, len(points)) if len(points) > 1 else np.zeros(len(points))
        axes.scatter(
            points, y + spread, s=7, color=look.colour, edgecolors="white", linewidths=0.3, zorder=3, gid=look.gid
        )
    axes.set_xlabel(_metric_label(c))
    intervals = _intervals(c, "its 95 % Student's t interval (level line)")
    caption = f"{c.metric} at {c.where}: mean (upright line){intervals}; each run is a point.{_without_diverged(c)}"
    return Drawn("final_performance", "Final performance", figure, caption)


def _profiles(c: Comparison, rows: Rows) -> Drawn:
    figure, (axes,) = plotting.panels(1, 1)
    scores = np.concatenate([s for row in c.rows for s in row.final])
    scores = scores[np.isfinite(scores)]
    margin = 0.03 * (np.ptp(scores) or 1)
    thresholds = np.linspace(scores.min() - margin, scores.max() + margin, 201)
    rng = np.random.default_rng(0)
    for row, look in rows:
        final = [statistics.worst(c.sign * s) for s in row.final]  # worse than every threshold
        profile = statistics.performance_profile(final, c.sign * thresholds)
        axes.plot(thresholds, profile, color=look.colour, ls=look.style, zorder=look.order, gid=look.gid)
        if look.colour != GREY and row.seeds >= FEW:
            resampled = [s[rng.integers(len(s), size=(2000, len(s)))] for s in final]
            profiles = statistics.performance_profile(resampled, c.sign * thresholds)
            low, high = np.quantile(profiles, [0.025, 0.975], axis=0)
            axes.fill_between(thresholds, low, high, color=look.colour, alpha=BAND / 2, lw=0, gid=look.gid)
    axes.set_xlabel(f"threshold of {_metric_label(c)}")
    side = "above" if c.better == "higher" else "below"
    axes.set_ylabel(f"share of runs {side} it")
    axes.set_ylim(-0.02, 1.02)
    _legend(figure, rows)
    intervals = _intervals(c, "pointwise 95 % bootstrap intervals")
    caption = f"Performance profiles: the share of runs whose {c.metric} at {c.where} is {side} a threshold{intervals}."
    return Drawn("performance_profiles", "Performance profiles", figure, caption)


def _improvement(c: Comparison, rows: Rows) -> Drawn:
    assert c.baseline is not None
    found = [(row, look, row["improvement"]) for row, look in rows if row.get("improvement")]
    figure, axes = _rows_of([row.group.name for row, *_ in found])
    for y, (_, look, estimate) in enumerate(found):
        if estimate.interval:
            band: dict[str, Any] = {"lw": 5, "alpha": 0.4, "solid_capstyle": "butt"}
            axes.plot(estimate.interval, [y, y], color=look.colour, gid=look.gid, **band)
        axes.plot(estimate.value, y, "o", color=look.colour, ms=4, gid=look.gid)
    axes.axvline(0.5, color="#888888", lw=0.6, ls=DOTTED, zorder=0)
    axes.set_xlim(-0.03, 1.03)
    axes.set_xlabel(f"P(better than {c.baseline.name})")
    intervals = _intervals(c, "95 % stratified bootstrap intervals")
    caption = (
        f"Probability that a run of the group has a {c.better} {c.metric} at {c.where} than a run of "
        f"{c.baseline.name}{intervals}. At 0.5 neither is better."
    )
    return Drawn("probability_of_improvement", "Probability of improvement", figure, caption)


def _rows_of(texts: Sequence[str]) -> tuple[Figure, Axes]:
    """A figure with a named row for each group."""
    figure = Figure(figsize=(COLUMN, 0.6 + 0.28 * len(texts)))
    axes = figure.subplots()
    plotting.label_rows(axes, texts)
    return figure, axes


def _of_choices(c: Comparison) -> list[Comparison]:
    """The candidates of all choices that were made by the same metric at the same step, together."""
    together: dict[tuple[str, str], Comparison] = {}
    for choice in c.candidates:
        same = together.setdefault((choice.metric, choice.where), replace(choice, rows=()))
        together[choice.metric, choice.where] = replace(same, rows=[*same.rows, *choice.rows])
    return [*together.values()]


def _sensitivity(c: Comparison) -> Iterator[Drawn]:
    """Scores against each number that groups differ in, and in nothing else (spectral paper, Figures 4 and 5)."""
    names = dict.fromkeys(name for row in c.rows for name in row.group.settings)
    shown = {name: families for name in names if (families := _families(c, name))}
    if not shown:
        return
    columns = min(2, len(shown))
    figure, panels = plotting.panels(len(shown), columns, sharey="row")
    lines_of_legend = []
    for axes, (name, families) in zip(panels, shown.items(), strict=True):
        _strengths(axes, c, name, families)
        texts = [str(line.get_label()) for line in axes.lines]
        side_by_side = plotting.columns_of_legend(texts, figure.get_figwidth() / columns)
        lines_of_legend.append(math.ceil(len(texts) / side_by_side))
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=side_by_side, borderaxespad=0.2, handlelength=1.4)
    per_row = [max(lines_of_legend[i : i + 2]) for i in range(0, len(panels), 2)]
    figure.set_figheight(figure.get_figheight() + 0.17 * sum(max(0, lines - 2) for lines in per_row))
    panels[0].set_ylabel(_metric_label(c))
    intervals = _intervals(c, "its 95 % Student's t interval")
    caption = (
        f"{c.metric} at {c.where} of groups that differ only in the setting on the axis: mean{intervals}. "
        "A value of 0 has no place on a logarithmic axis and is left out. Colors are of this figure only."
    )
    yield Drawn("sensitivity", "Sensitivity to settings", figure, caption)


def _strengths(axes: Axes, c: Comparison, name: str, families: Sequence[Sequence[Row]]) -> None:
    """Draw a line for each family over the number called `name`, and one for the group without any method."""
    first = [rows[0].group for rows in families]
    settings = [{k: v for k, v in group.settings.items() if k != name} for group in first]
    names = labels(settings, [group.runs[0].preset for group in first])
    for i, (label, rows) in enumerate(zip(names, families, strict=True)):
        x = np.array([float(row.group.settings[name]) for row in rows])
        bands = [row["mean"].interval for row in rows]
        band = np.array(bands).T if all(bands) else ()
        means = np.array([row["mean"].value for row in rows])
        plotting.line(axes, x, means, band, marker="o", label=label, **plotting.cycled(i))
    plain = [row for row in c.rows if row.group.is_plain]
    if len(plain) == 1 and not any(plain[0] in rows for rows in families):
        axes.axhline(plain[0]["mean"].value, color="black", lw=0.9, ls="--", label=plain[0].group.name)
    plotting.mark_strengths(axes, [float(row.group.settings[name]) for rows in families for row in rows])
    axes.set_xlabel(name)


def _families(c: Comparison, name: str) -> list[list[Row]]:
    """The groups that differ in nothing but this number, which is above 0, by rising number."""
    families: dict[Any, list[Row]] = {}
    for row in c.rows:
        value: Any = row.group.settings.get(name)
        if is_number(value) and value > 0:
            families.setdefault(identity(row.group.settings, [name]), []).append(row)
    return [sorted(rows, key=lambda row: row.group.settings[name]) for rows in families.values() if len(rows) > 1]


def _over_training(c: Comparison, rows: Rows) -> Iterator[Drawn]:
    """Accuracy, or return, during training, with the borders of tasks (SWR paper, Figures 2 to 4)."""
    names = [name for name in _of_over_training(c) if _curves_of(c, name)]
    if names:
        what = "Accuracy" if "eval/return" not in names else "Return"
        title = f"{what} over {c.unit_of(names[0])}s"
        caption = f"{title.replace(' over', ' on the task at hand over')}: {_band(c)}. Vertical lines: a new task."
        drawn = title.lower().replace(" ", "_"), title, caption
        yield from _by_task(c, rows, names, drawn, Axes.set_ylabel, 1, width=PAGE, height=1.6)


def _trainability(c: Comparison, rows: Rows) -> Iterator[Drawn]:
    """What networks still learn of what fresh ones learn, at the checkpoints that were diagnosed.

    A network that was tried on some data at one checkpoint alone has no panel.
    """
    for task in c.at:
        tried: dict[tuple[str, str], set[int]] = {}
        for d in (d for row in c.rows for run in row.group.tasks.get(task, ()) for d in run.diagnoses if d.learned):
            tried.setdefault((d.network, d.data), set()).add(d.step)
        shown = [of for of, at in tried.items() if len(at) > 1]
        if not shown:
            continue
        figure, panels = plotting.panels(len(shown), _columns(len(shown)), height=1.7)
        curves = {}
        for axes, (network, data) in zip(panels, shown, strict=True):
            found = [_learned(axes, row.group.tasks.get(task, ()), network, data, look) for row, look in rows]
            curves[axes] = [curve for curve in found if curve]
            for threshold in (LOST, PLASTIC):
                axes.axhline(threshold, color="#cccccc", lw=0.6, zorder=0)
            axes.set_ylim(min(0.0, axes.get_ylim()[0]), max(1.1, axes.get_ylim()[1]))
            axes.set_title(f"{network}, {data}")
            plotting.count_steps(axes, of_tasks=False)
        _name_steps(panels, f"{c.step_of_checkpoints}s")
        panels[0].set_ylabel("learned (fresh: 1)")
        drawn = {curve.place for of_panel in curves.values() for curve in of_panel}
        _legend(figure, [one for one in rows if one[1].place in drawn])
        intervals = _intervals(c, "pointwise 95 % Student's t intervals")
        intervals += (
            "; a group of one run has its interval over repeats" if any(row.seeds == 1 for row in c.rows) else ""
        )
        caption = (
            "What copies of a network learn, as a share of what fresh networks learn, at each checkpoint that was "
            f"diagnosed: mean over seeds{intervals}. Grey lines: below {PLASTIC} it is losing its plasticity, below "
            f"{LOST} it has lost it."
        )
        name, title = _of_task(c, task, "trainability", "Trainability")
        yield Drawn(name, title, figure, caption, curves)


def _learned(axes: Axes, runs: Sequence[Run], network: str, data: str, look: Look) -> MeanCurve | None:
    """Draw what a network of a group's runs learned; of a single run with its own interval, over repeats."""
    found = [
        {d.step: d.learned for d in run.diagnoses if d.learned and (d.network, d.data) == (network, data)}
        for run in runs
    ]
    of_runs = [dict(sorted(of_run.items())) for of_run in found if of_run]
    curves = [
        Curve(np.array([*of_run], np.int64), np.array([learned.mean for learned in of_run.values()]))
        for of_run in of_runs
    ]
    curve = _curve(axes, curves, f"{network}/trainability", look)
    if curve is None or len(of_runs) > 1:
        return curve
    ends = np.array([of_runs[0][step][1:] for step in curve.steps.tolist()]).T
    if look.colour != GREY:
        axes.fill_between(curve.steps, *ends, color=look.colour, alpha=BAND, lw=0, zorder=look.order - 1, gid=look.gid)
    return curve._replace(low=ends[0], high=ends[1])


def _metrics(c: Comparison, rows: Rows) -> Iterator[Drawn]:
    """Everything else that was measured, a figure for each network (spectral paper, Figures 3 and 5)."""
    left_out = {c.metric, *_of_over_training(c)}
    families: dict[str, list[str]] = {family: [] for family in (*FAMILIES, OTHER)}
    for name in dict.fromkeys(name for row in c.rows for run in row.group.runs for name in run.curves):
        of, _, layer = MetricName.parse(name)
        curves = _curves_of(c, name)
        # A number that was measured once makes no curve, and one that is always 0 shows nothing.
        several = max(len(curve.steps) for curve in curves) > 1 and any(curve.values.any() for curve in curves)
        if name not in left_out and not layer and several:
            families[of if of in FAMILIES else OTHER].append(name)
    for family, members in families.items():
        names = sorted(members, key=_priority)
        caption = f"Metrics of training: {_band(c)}. An axis over more than two orders of magnitude is logarithmic, "
        caption += "and leaves out what reaches below 0. Values that are not finite are gaps."
        drawn = f"metrics_{family}", FAMILIES.get(family, "Other metrics"), caption
        yield from _by_task(c, rows, names, drawn, Axes.set_title, _columns(len(names)), height=1.45)


# ------------------------------------------------------------------------------------------------------------------


def _by_task(
    c: Comparison,
    rows: Rows,
    names: Sequence[str],
    drawn: tuple[str, str, str],
    name_axes: Callable[[Axes, str], object],
    columns: int,
    **size: float,
) -> Iterator[Drawn]:
    """A figure for each task, with a panel for each of the metrics; `drawn`: its name, title and caption."""
    for task in c.at if names else ():
        figure, panels = plotting.panels(len(names), columns, **size)
        curves = {}
        for axes, name in zip(panels, names, strict=True):
            curves[axes] = _metric_panel(axes, c, rows, task, name)
            name_axes(axes, in_words(name))
        _name_steps(panels, _axis_of_steps(c.unit_of(names[0])))
        _legend(figure, rows, beside=columns == 1 and _fits_beside(figure, rows))
        name, title, caption = drawn
        yield Drawn(*_of_task(c, task, name, title), figure, caption, curves)


def _of_task(c: Comparison, task: str, name: str, title: str) -> tuple[str, str]:
    """The name and the title of a figure of one task, which it names where there are several."""
    if len(c.at) == 1:
        return name, title
    return f"{name}_{''.join(ch if ch.isalnum() or ch in '-_' else '-' for ch in task)}", f"{title}, {task}"


def _columns(number: int) -> int:
    """The columns of so many panels that leave the least of the page empty: four stand in two rows of two."""
    return number if number < 4 else 2 if number == 4 else 3


def _name_steps(panels: Sequence[Axes], words: str) -> None:
    """Name the axis of steps of every panel that has none below it."""
    places = [axes.get_subplotspec() for axes in panels]
    below = {(at.rowspan.start - 1, at.colspan.start) for at in places if at}
    for axes, at in zip(panels, places, strict=True):
        if at and (at.rowspan.start, at.colspan.start) not in below:
            axes.set_xlabel(words)


def _metric_panel(axes: Axes, c: Comparison, rows: Rows, task: str, name: str) -> list[MeanCurve]:
    known = [run.curves[name].values for row in c.rows for run in row.group.tasks.get(task, ()) if name in run.curves]
    values = np.concatenate([*known, np.zeros(0)])
    values = values[np.isfinite(values)]
    is_log = bool(len(values)) and values.min() > 0 and values.max() / 100 > values.min()
    curves = _curves(axes, c, rows, task, name, above=0.0 if is_log else -math.inf)
    borders = max((r.borders for row in c.rows for r in row.group.tasks.get(task, ())), key=len, default=np.array([]))
    if len(borders) <= 30 and not _is_of_tasks(name):
        for border in borders[:-1]:
            axes.axvline(border, color="#cccccc", lw=0.5, zorder=0)
    if is_log:
        axes.set_yscale("log")
    plotting.say_why_empty(axes)
    _format_axes(axes, name)
    return curves


def _curves(axes: Axes, c: Comparison, rows: Rows, task: str, metric: str, above: float = -math.inf) -> list[MeanCurve]:
    """Draw the curves of all groups on a task, with intervals where they lie above a bound."""
    drawn = []
    for row, look in rows:
        curves = [c.curve(run, metric) for run in row.group.tasks.get(task, ()) if metric in run.curves]
        drawn.append(_curve(axes, curves, metric, look, above))
    return [curve for curve in drawn if curve]


def _curve(axes: Axes, curves: Sequence[Curve], metric: str, look: Look, above: float = -math.inf) -> MeanCurve | None:
    """Draw the mean of a group's runs at the steps that all have, its interval, and each run as a thin line.

    The mean is drawn at 500 steps at most.
    """
    common = steps.shared(metric, curves) if curves else np.array([], np.int64)
    if not len(common):
        return None
    common = plotting.some(common, 500)
    means, low, high = statistics.mean_curve(np.array([steps.at(curve, common) for curve in curves]))
    marker = "o" if len(common) <= FEW_POINTS or (_is_of_tasks(metric) and len(common) <= 30) else ""
    if len(curves) < FEW:  # whose interval is shown nowhere
        low = high = np.full_like(means, np.nan)
    drawn: dict[str, Any] = {"color": look.colour, "gid": look.gid}
    shown = np.where(low > above, low, np.nan), np.where(low > above, high, np.nan)
    band = () if len(curves) < FEW or look.colour == GREY else shown
    plotting.line(axes, common, means, band, look.order, ls=look.style, marker=marker, **drawn)
    if look.colour != GREY and len(curves) > 1:
        thin = plotting.some(common, THIN)
        each = np.array([steps.at(curve, thin) for curve in curves])
        each = np.pad(np.where(np.isfinite(each), each, np.nan), ((0, 0), (0, 1)), constant_values=np.nan)
        of_all = np.tile([*thin, np.nan], len(each))  # one line with gaps: a line for each would take as long each
        axes.plot(of_all, each.ravel(), lw=0.5, alpha=0.45, zorder=look.order - 1, **drawn)
    return MeanCurve(look.place, common, means, low, high)


def _legend(figure: Figure, rows: Rows, beside: bool = False) -> None:
    """Add a legend below the panels or beside them."""
    named = [(row, look) for row, look in rows if look.colour != GREY]
    handles = {row.name: Line2D([], [], color=look.colour, ls=look.style) for row, look in named}
    if len(named) < len(rows):
        handles[f"{len(rows) - len(named)} others"] = Line2D([], [], color=GREY)
    drawn = plotting.legend(figure, handles, beside)
    for (_, look), handle, text in zip(named, drawn.legend_handles, drawn.texts, strict=False):
        for part in filter(None, (handle, text)):
            part.set_gid(f"key{look.place}")


def _fits_beside(figure: Figure, rows: Rows) -> bool:
    """Whether a legend beside the panels leaves them most of the page."""
    named = [row.name for row, look in rows if look.colour != GREY]
    width, height = figure.get_size_inches()
    return bool(width == PAGE and max(map(len, named)) <= 24 and 0.17 * (len(named) + 1) <= height)


def _of_over_training(c: Comparison) -> list[str]:
    """The metrics of `_over_training`. A return that is compared at every step has learning curves already."""
    return ["eval/train_accuracy", "eval/test_accuracy", *(["eval/return"] if c.unit == "task" else [])]


def _curves_of(c: Comparison, name: str) -> list[Curve]:
    return [run.curves[name] for row in c.rows for run in row.group.runs if name in run.curves]


def _is_of_tasks(metric: str) -> bool:
    return MetricName.parse(metric).of == "task"


def _priority(name: str) -> tuple[int, str]:
    quantity = MetricName.parse(name).quantity
    return (FIRST.index(quantity) if quantity in FIRST else len(FIRST), name)


def _metric_label(c: Comparison) -> str:
    words = in_words(c.metric)
    return f"{words} / 1000" if c.scale != 1 else words


def _axis_of_steps(unit: str) -> str:
    return unit if unit == "task" else f"{unit}s"


def _values(axes: Axes) -> NDArray[np.float64]:
    """The finite values of all curves that were drawn; lines of two points are borders or marks."""
    lines = [y for line in axes.lines if len(y := np.atleast_1d(np.asarray(line.get_ydata(), float))) > 2]
    values: NDArray[np.float64] = np.concatenate([*lines, np.zeros(0)])
    return values[np.isfinite(values)]


def _format_axes(axes: Axes, metric: str) -> None:
    """Show steps as `count_steps` does, and of an accuracy the whole range unless all of it is high or low."""
    plotting.count_steps(axes, _is_of_tasks(metric))
    if axes.get_yscale() == "linear":
        axes.ticklabel_format(axis="y", useOffset=False)
    if metric.endswith("accuracy"):
        values = _values(axes)
        lowest, highest = min(values, default=0.0), max(values, default=1.0)
        bottom = lowest - (1 - lowest) / 2 if lowest > 0.5 else 0.0
        top = 1.5 * highest if 0 < highest < 0.5 else 1.0
        axes.set_ylim(bottom, top + 0.03 * (top - bottom))


def _intervals(c: Comparison, kind: str) -> str:
    """The end of a clause: that there are intervals, or none, which a caption must not promise."""
    seeds = f"{c.seeds} a group{' and task' if len(c.at) > 1 else ''}"
    if any(row.seeds >= FEW for row in c.rows):
        return f", with {kind} from {FEW} seeds on ({seeds})"
    return f", without an interval ({seeds}, fewer than {FEW})"


def _band(c: Comparison) -> str:
    intervals = _intervals(c, "pointwise 95 % Student's t intervals")
    return f"mean over seeds{intervals}" + ("; each run as a thin line" if any(r.seeds > 1 for r in c.rows) else "")


def _without_diverged(c: Comparison) -> str:
    return " Values that are not finite are left out." if any(row.diverged for row in c.rows) else ""
