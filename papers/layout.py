"""Figures and tables in a paper's layout, with the same panels, axes and lines, from runs of your own.

The layout is data (``draw:`` of a study, see `study`)::

    rows: net.name                     # a setting, each of whose values is a row of panels; optional
    columns: data.name                 # the same for columns
    metrics: [task/test_accuracy]      # each of several is a row
    kind: curves                       # or rows, strengths, layers, family, table
    x: task                            # for curves: task, epoch, update, env step (as the metric has it)

Where panels differ more than that, use ``columns: 3`` (a number) and ``panels: [{kind: ..., metric: ..., ...}, ...]``.
A panel may have ``where: {setting: value}`` (runs with another value of this setting are left out), ``methods``
(labels), ``title``, ``x_label``, ``y_label``, ``log``, ``over``, ``by``, ``tasks_before``, ``level`` (see
`Panel`). A table has one column for each combination of the values of the settings in ``by``.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from rl_plasticity.comparison import plotting
from rl_plasticity.comparison.groups import method_in_words
from rl_plasticity.comparison.loading import Run
from rl_plasticity.comparison.plotting import (
    PAGE,
    PALETTE,
    STYLE,
    count_steps,
    label_rows,
    mark_strengths,
    say_why_empty,
    some,
)
from rl_plasticity.comparison.table import Estimate, at, mean, shared
from rl_plasticity.metrics import statistics
from rl_plasticity.runs.names import Curve, short

Methods = Mapping[str, Sequence[Run]]  # runs by their method's label
WORDS = {
    "task/train_accuracy": "training accuracy",
    "task/test_accuracy": "test accuracy",
    "eval/train_accuracy": "training accuracy",
    "eval/test_accuracy": "test accuracy",
    "eval/return": "return",
    "task/return": "return at the end of a task",
    "q_overestimation": "overestimation of Q",
    "net/mean_sigma1": "mean spectral norm",
    "net/sigma_min": "least singular value",
    "net/weight_norm": "norm of all weights",
    "net/stable_rank": "stable rank",
    "net/gradient_rank": "rank of gradients",
    "net/gradient_condition": "condition of gradients",
    "net/feature_rank": "rank of features",
    "task/representation_change": "representation change",
}
LEVEL: Mapping[str, Any] = {"color": "gray", "ls": ":", "lw": 1, "zorder": 0}
Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel of a figure.

    Args:
        kind: the kind of plot:

            - curves: the metric over `x`;
            - rows: for each method the mean of the metric over a run, with its 95 % Student's t interval over seeds,
              and one mark for each value of the setting `by`;
            - strengths: the mean of the metric over a run against the setting `over`;
            - layers: the last value of a metric of layers against the layer's position;
            - family: for each method's first run, one line for each member of a metric's family (channels of a layer).
        metric: its name; for layers and family, the beginning of the names.
        where: required values of settings, ignored for runs that do not have the setting.
        tasks_before: number of tasks to leave out at the beginning; `x` then counts from their end.
        methods: labels; all by default.
        level: values of the metric to mark by a dotted line, by their names: ``{random actions: 3.0}``.
    """

    kind: str = "curves"
    metric: str
    where: Mapping[str, Any] = field(default_factory=dict)
    methods: Sequence[str] = ()
    x: str = ""
    over: str = ""
    by: str = ""
    tasks_before: int = 0
    title: str = ""
    x_label: str = ""
    y_label: str = ""
    log: bool = False
    level: Mapping[str, float] = field(default_factory=dict)

    def runs(self, methods: Methods) -> dict[str, list[Run]]:
        """The runs that belong in this panel, by label."""
        return {
            label: [run for run in runs if has(run, self.where)]
            for label, runs in methods.items()
            if not self.methods or label in self.methods
        }


def has(run: Run, where: Mapping[str, Any]) -> bool:
    """Whether a run has these values of settings; settings that it does not have are ignored."""
    return all(run.settings.get(name, value) == value for name, value in where.items())


def draw(spec: Mapping[str, Any], methods: Methods) -> Figure:
    """Draw the figure of a study from its runs."""
    panels, columns = _panels(spec, methods)
    with matplotlib.rc_context(STYLE):
        kinds = {panel.kind for panel in panels}
        of_rows = kinds == {"rows"}
        marks = max(len(_marks(panel.by, methods)) for panel in panels)
        rows = len(methods) * max(1, marks / 2)
        height = max(0.7 + 0.17 * rows if "rows" in kinds else 0, 0 if of_rows else 1.9)
        shared = "row" if of_rows and len({panel.metric for panel in panels}) == 1 else "none"
        width = max(3.4, min(2.3 * columns, PAGE + 1))
        figure, grid = plotting.panels(len(panels), columns, width, height, sharex=shared)
        for i, (axes, panel) in enumerate(zip(grid, panels, strict=True)):
            _DRAWN[panel.kind](axes, panel, methods)
            for value in panel.level.values():
                (axes.axvline if panel.kind == "rows" else axes.axhline)(value, **LEVEL)
            _name(axes, panel, panels[i - 1] if i % columns else None)
        if legend := _legend(panels, methods):
            plotting.legend(figure, legend)
    return figure


def _name(axes: Axes, panel: Panel, left: Panel | None) -> None:
    """Add the panel's title and the name of its metric, or the reason that it is empty."""
    axes.set_title(panel.title)
    if panel.kind == "rows":  # labeled once if the panel to the left has the same rows
        axes.tick_params(labelleft=not (left and left.kind == "rows" and left.methods == panel.methods))
    else:
        axes.set_ylabel(panel.y_label or WORDS.get(panel.metric, panel.metric))
    if panel.log:
        (axes.set_xscale if panel.kind == "rows" else axes.set_yscale)("log")
    if not axes.collections:
        say_why_empty(axes)


def table(spec: Mapping[str, Any], methods: Methods) -> list[list[str]]:
    """The table of a study's runs; the first row is its header.

    Cells show the mean ± standard deviation of the last values, and the number of seeds.
    """
    metric = spec["metrics"][0]
    by = spec.get("by", ())
    strata = _values([run for runs in methods.values() for run in runs], by)
    lines = [["method", *(" ".join(map(short, stratum)) or metric for stratum in strata)]]
    for label, runs in methods.items():
        cells = []
        for stratum in strata:
            of_stratum = [r for r in runs if tuple(r.settings.get(n) for n in by) == stratum and metric in r.curves]
            ends = np.array([run.curves[metric].values[-1] for run in of_stratum])
            deviation = f" ± {ends.std(ddof=1):.4f}" if len(ends) > 1 else ""
            cells.append(f"{ends.mean():.4f}{deviation} ({len(ends)})" if len(ends) else "")
        lines.append([label, *cells])
    return lines


def numbers(spec: Mapping[str, Any], methods: Methods) -> list[list[str]]:
    """The numbers behind a figure's panels of kind rows, with a header; empty if there are no such panels.

    There is one line per run, and one without a seed for the mean of the finite ones, with its 95 % Student's t
    interval and their number.
    """
    lines = []
    for panel in _panels(spec, methods)[0]:
        if panel.kind == "rows":
            for label, value, seeds, means in _means(panel, methods):
                of_mark = [panel.title, label, short(value) if value is not None else "", panel.metric]
                of_runs = zip(seeds, means.tolist(), strict=True)
                lines += [[*of_mark, str(seed), repr(mean), "", "", "1"] for seed, mean in of_runs]
                estimate = _mean(means)
                texts = [repr(float(n)) for n in (estimate.value, *(estimate.interval or ())) if math.isfinite(n)]
                lines.append([*of_mark, "", *[*texts, "", "", ""][:3], str(estimate.n)])
    header = ["panel", "method", "mark", "metric", "seed", "mean_of_run", "low", "high", "n"]
    return [header, *lines] if lines else []


# ------------------------------------------------------------------------------------------------------------------


def _panels(spec: Mapping[str, Any], methods: Methods) -> tuple[list[Panel], int]:
    """The panels row by row, and the number of columns."""
    if "panels" in spec:
        return [Panel(**panel) for panel in spec["panels"]], int(spec["columns"])
    runs = [run for of_method in methods.values() for run in of_method]
    rows, columns = ([name] if (name := spec.get(part)) else [] for part in ("rows", "columns"))
    rest = {n: v for n, v in spec.items() if n not in ("rows", "columns", "metrics")}
    across = _values(runs, columns)
    panels = []
    for metric in spec["metrics"]:
        for row in _values(runs, rows):
            for column in across:
                where = dict(zip([*rows, *columns], [*row, *column], strict=True))
                names = [_named(setting, value) for setting, value in where.items()]
                title = ("\n" if sum(map(len, names)) > 28 else ", ").join(names)  # breaks titles wider than a panel
                panels.append(Panel(metric=metric, where=where, title=title, **rest))
    return panels, len(across)


def _legend(panels: Sequence[Panel], methods: Methods) -> dict[str, Line2D]:
    """One line for each method that is drawn as a line, and one mark for each value of `by`."""
    drawn = [panel for panel in panels if panel.kind != "rows"]
    lines = {}
    for label in methods:
        theirs = [panel for panel in drawn if label in (panel.methods or methods)]
        if theirs:
            dotted = {"ls": ":"} if all(_is_flat(panel, methods[label]) for panel in theirs) else {}
            lines[method_in_words(label)] = _look(methods, label) | dotted
    marks = {
        _named(panel.by, value): look
        for panel in panels
        if panel.by
        for value, look in _marks(panel.by, methods).items()
    }
    levels = {name: LEVEL for panel in panels for name in panel.level}
    return {name: Line2D([], [], **look) for name, look in (lines | marks | levels).items()}


def _named(setting: str, value: Any) -> str:
    """The name of a value above a panel: a choice by itself, a number or a flag with its setting's name."""
    name = setting.rpartition(".")[2]
    if name == "layer_norm":
        return "LayerNorm" if value else "no LayerNorm"
    return value if isinstance(value, str) else f"{name.replace('_', ' ')}: {short(value)}"


def _values(runs: Sequence[Run], names: Sequence[str]) -> list[tuple[Any, ...]]:
    """The distinct values of these settings, in the order of the runs."""
    found = dict.fromkeys(tuple(_hashable(run.settings.get(name)) for name in names) for run in runs)
    return [*found]


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _look(methods: Methods, label: str) -> dict[str, Any]:
    """The line style of a method.

    The first is no method if it is neither a regularizer nor an intervention, whatever a paper calls it.
    """
    first, *others = methods
    plain = all(r.settings.get("reg.name") == r.settings.get("reset.name") == "none" for r in methods[first])
    looks = plotting.looks(["no method" if plain else first, *others])
    return looks["no method" if plain and label == first else label]


def _mean(values: Array) -> Estimate:
    """The mean of the finite values, with Student's 95 % interval if there are at least two."""
    return mean([values], enough=2)


def _mean_and_error(values: Array) -> tuple[Array, Array]:
    """The mean over the first axis and its standard error, which the papers shade."""
    if len(values) < 2:
        return values.mean(0), np.zeros(values.shape[1:])
    return values.mean(0), values.std(0, ddof=1) / math.sqrt(len(values))


def _line(axes: Axes, x: Array, values: Array, look: Mapping[str, Any], marker: str = "") -> None:
    means, error = _mean_and_error(values)
    plotting.line(axes, x, means, (means - error, means + error), marker=marker, **look)


def _curves(axes: Axes, panel: Panel, methods: Methods) -> None:
    for label, runs in panel.runs(methods).items():
        curves = [(run, run.curves[panel.metric]) for run in runs if panel.metric in run.curves]
        if not curves:
            continue
        common = shared(panel.metric, [curve for _, curve in curves])
        before = int(curves[0][0].borders[panel.tasks_before - 1]) if panel.tasks_before else 0
        common = common[common >= before]
        if not len(common):
            continue
        common = some(common, 500)
        values = np.array([at(curve, common) for _, curve in curves])
        x = _axis(common, before, curves[0][0], panel)
        _line(axes, x, values, _look(methods, label), "o" if len(common) < 20 else "")
    axes.set_xlabel(panel.x_label or panel.x or _unit(panel, methods))
    count_steps(axes, panel.metric.startswith("task/"))


def _is_flat(panel: Panel, runs: Sequence[Run]) -> bool:
    """Whether these runs have no strength, so that they are a dotted line."""
    return panel.kind == "strengths" and all(run.settings.get(panel.over) is None for run in runs)


def _strengths(axes: Axes, panel: Panel, methods: Methods) -> None:
    ticks: list[float] = []
    for label, runs in panel.runs(methods).items():
        by_value: dict[float | None, list[float]] = {}
        for run in runs:
            if panel.metric in run.curves:
                value = run.settings.get(panel.over)
                by_value.setdefault(value, []).append(float(run.curves[panel.metric].values.mean()))
        look = _look(methods, label)
        colour = look["color"]
        if flat := by_value.pop(None, None):
            axes.axhline(float(np.mean(flat)), color=colour, lw=0.9, ls=":")
        if by_value:
            x = sorted(by_value, key=lambda value: value or 0.0)
            stats = [_mean_and_error(np.array(by_value[value])) for value in x]
            mean, error = (np.array([s[i] for s in stats], dtype=float) for i in range(2))
            axes.errorbar(np.array(x, dtype=float), mean, error, marker="o", ms=3, capsize=2, **look)
            ticks += [float(value or 0.0) for value in x]
    mark_strengths(axes, ticks)
    axes.set_xlabel(panel.x_label or ("strength" if panel.over == "reg.coef" else panel.over))


def _rows(axes: Axes, panel: Panel, methods: Methods) -> None:
    labels, marks = [*panel.runs(methods)], _marks(panel.by, methods)
    apart = min(0.36, 0.8 / max(1, len(marks)))  # within the row
    left_out = dict.fromkeys(labels, 0)
    for label, value, _, means in _means(panel, methods):
        look = marks[value] if panel.by else marks[value] | {"color": _look(methods, label)["color"]}
        at = labels.index(label) + apart * ([*marks].index(value) - (len(marks) - 1) / 2)
        left_out[label] += int((~np.isfinite(means)).sum())
        estimate = _mean(means)
        if estimate.interval:
            axes.hlines(at, *estimate.interval, color=look["color"], lw=1)
        axes.plot(estimate.value, at, **look)
    names = {label: method_in_words(label) for label in labels}
    label_rows(axes, [f"{names[n]} ({left_out[n]} not finite)" if left_out[n] else names[n] for n in labels])
    axes.set_xlabel(panel.x_label or f"{WORDS.get(panel.metric, panel.metric)}, mean of a run")


def _means(panel: Panel, methods: Methods) -> Iterator[tuple[str, Any, list[int], Array]]:
    """Yield each method, each value of `by`, the seeds of its runs, and the metric's means over each run."""
    for label, runs in panel.runs(methods).items():
        measured = [run for run in runs if panel.metric in run.curves]
        for (value,) in _values(measured, [panel.by]):
            here = [run for run in measured if _values([run], [panel.by]) == [(value,)]]
            curves = [run.curves[panel.metric] for run in here]
            common = shared(panel.metric, curves)
            if not len(common):  # curves draw no line then either
                continue
            means = [statistics.area_under_curve(common, at(curve, common)) for curve in curves]
            yield label, value, [run.seed for run in here], np.array(means)


def _marks(by: str, methods: Methods) -> dict[Any, dict[str, Any]]:
    """The mark for each value of a setting."""
    values = {value for (value,) in _values([run for runs in methods.values() for run in runs], [by])}
    return {
        value: {"color": PALETTE[i % len(PALETTE)], "marker": "os^Dv"[i % 5], "ms": 3.5, "ls": ""}
        for i, value in enumerate(sorted(values, key=_in_order))
    }


def _in_order(value: Any) -> tuple[bool, Any]:
    """A sort key that puts numbers and flags before words, so that the order does not depend on missing runs."""
    return (False, value) if isinstance(value, int | float) else (True, str(value))


def _layers(axes: Axes, panel: Panel, methods: Methods) -> None:
    for label, runs in panel.runs(methods).items():
        ends = [[curve.values[-1] for _, curve in _family(run, panel.metric)] for run in runs]
        if ends and ends[0]:
            _line(axes, np.arange(1.0, len(ends[0]) + 1), np.array(ends), _look(methods, label), "o")
    axes.set_xlabel(panel.x_label or "layer")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _families(axes: Axes, panel: Panel, methods: Methods) -> None:
    for label, runs in panel.runs(methods).items():
        for run in runs[:1]:
            for _, curve in _family(run, panel.metric):
                x = _axis(curve.steps, 0, run, panel)
                axes.plot(x, curve.values, lw=0.5, alpha=0.6, **_look(methods, label))
    axes.set_xlabel(panel.x_label or panel.x or _unit(panel, methods))


_DRAWN = {
    "curves": _curves,
    "rows": _rows,
    "strengths": _strengths,
    "layers": _layers,
    "family": _families,
}


def _family(run: Run, metric: str) -> Iterator[tuple[str, Curve]]:
    """The metrics whose names continue this one after a slash: a quantity's layers, a layer's channels."""
    for name, curve in run.curves.items():
        if name.startswith(f"{metric}/"):
            yield name, curve


def _unit(panel: Panel, methods: Methods) -> str:
    """The unit that the metric's steps count."""
    return next((run.unit(panel.metric) for runs in methods.values() for run in runs), "")


def _axis(at: NDArray[np.int64], before: int, run: Run, panel: Panel) -> Array:
    """Steps on the panel's axis, counted from `before`.

    With ``x: epoch`` they are in epochs of the task that begins there.
    """
    if panel.x != "epoch":
        return np.asarray(at - before, np.float64)
    ends = run.borders[run.borders > before]
    per_update = float(run.settings["epochs_per_task"]) / float(ends[0] - before)
    return np.asarray((at - before) * per_update, np.float64)
