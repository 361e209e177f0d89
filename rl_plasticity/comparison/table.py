"""The table of a comparison: statistics of groups of runs by one metric. Every number is an entry of `STATISTICS`."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import NamedTuple

import numpy as np

from rl_plasticity.comparison.groups import Group, method
from rl_plasticity.comparison.loading import Run
from rl_plasticity.errors import SettingsError, nearest
from rl_plasticity.metrics import Direction, statistics
from rl_plasticity.metrics.measured import better
from rl_plasticity.metrics.statistics import Array, Interval, Steps
from rl_plasticity.runs.names import Curve, MetricName

FEW = 5  # with fewer seeds the single runs are shown; only gaps have an interval, Student's
FEW_HINT = f"With fewer than {FEW} seeds that is a hint at most."
OF_EPISODES = "train/return"  # episodes end at any step


class Estimate(NamedTuple):
    """A number of a group, with its 95 % interval where there are enough runs, and the number of runs behind it."""

    value: float
    interval: Interval | None = None
    n: int = 0
    note: str = ""


@dataclass(frozen=True)
class Row:
    """The statistics of one group, by the names in `STATISTICS`.

    Args:
        final: the scores at the last common step, one array for each task, by rising seed.
    """

    group: Group
    unfinished: bool
    final: list[Array]
    estimates: Mapping[str, Estimate]

    def __getitem__(self, name: str) -> Estimate:
        return self.estimates[name]

    @property
    def seeds(self) -> int:
        """The number of runs, on the task with the fewest."""
        return min(map(len, self.final))

    @property
    def diverged(self) -> int:
        """The number of runs whose final score is not finite."""
        return int(sum((~np.isfinite(scores)).sum() for scores in self.final))

    @property
    def undecided(self) -> bool:
        """Whether the seeds leave open if the group's mean is above or below the baseline's."""
        low, high = ("joint" in self.estimates and self["joint"].interval) or (-math.inf, math.inf)
        return low <= 0 <= high

    @property
    def label(self) -> str:
        """The group's label, with * where some of its runs are unfinished."""
        return f"{self.group.label}*" if self.unfinished else self.group.label

    @property
    def name(self) -> str:
        """The same in the words of a paper, for figures and papers' tables."""
        return f"{self.group.name}*" if self.unfinished else self.group.name


@dataclass(frozen=True)
class Comparison:
    """Groups of runs compared by one metric.

    Args:
        unit: what the steps of the metric count: env step, update or task.
        scale: the factor of all values: 1/1000 for returns on several DeepMind Control tasks, else 1.
        steps: the steps of each task that all runs have. Runs are compared at the last one.
        better: which values of the metric count as better.
        target: the value for the steps until a run reaches it.
    """

    metric: str
    unit: str
    scale: float
    steps: Mapping[str, Steps]
    better: Direction
    target: float | None = None
    baseline: Group | None = None
    rows: Sequence[Row] = ()
    warnings: Sequence[str] = ()

    @property
    def sign(self) -> int:
        """The factor that makes higher values better."""
        return 1 if self.better == "higher" else -1

    @property
    def at(self) -> dict[str, int]:
        """The step of each task at which runs are compared."""
        return {task: int(of_task[-1]) for task, of_task in self.steps.items()}

    @property
    def where(self) -> str:
        """The step of the comparison in words: ``env step 1000000``."""
        at = {*self.at.values()}
        return f"{self.unit} {at.pop()}" if len(at) == 1 else f"the last common {self.unit} of each task"

    def curve(self, run: Run, metric: str) -> Curve:
        """A run's curve, in the table's scale if it is of the metric that is compared."""
        curve = run.curves[metric]
        return Curve(curve.steps, curve.values * self.scale) if metric == self.metric else curve

    def number(self, value: float) -> str:
        """`value` with four significant digits of the largest score, so that all scores have the same decimals."""
        largest = max((abs(x) for row in self.rows for of in row.final for x in of if math.isfinite(x)), default=0)
        decimals = max(0, 4 - math.ceil(math.log10(largest))) if largest else 3
        return f"{value:.{min(3, decimals) if largest >= 0.1 else decimals}f}"

    def table(self) -> list[list[str]]:
        """The statistics as text: a header, then a line for each group. A column without numbers is left out."""
        columns = {"group": [row.label for row in self.rows]}
        for statistic in STATISTICS:
            if statistic.show and any(statistic.name in row.estimates for row in self.rows):
                columns[statistic.heading] = [statistic.show(self, row) for row in self.rows]
        return [list(columns), *map(list, zip(*columns.values(), strict=True))]

    @property
    def caption(self) -> str:
        """What the columns and their intervals are."""
        divided = ", divided by 1000" if self.scale != 1 else ""
        text = f"{self.metric} at {self.where}{divided}: mean ± standard error, and interquartile mean (IQM), "
        text += (
            f"from {FEW} seeds on with its 95 % stratified bootstrap interval. AUC: mean over the curve up to there. "
        )
        if any(row.diverged for row in self.rows):
            text += "Runs that are not finite are the worst in ranks and left out of means. "
        if self.baseline is not None:
            text += (
                f"P(improvement) and gap (difference of means, by seed where both have it) are over the baseline, "
                f"{self.baseline.name}; the gap's interval is Student's t, for each group by itself. "
            )
        return text + ("* has unfinished runs." if any(row.unfinished for row in self.rows) else "")

    def verdict(self) -> str:
        """What was compared and what the numbers say, in a few sentences that name no causes."""
        best, *others = sorted(self.rows, key=lambda r: -self.sign * r["iqm"].value)
        seeds = sorted({row.seeds for row in self.rows})
        of = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"
        text = (
            f"{counted(len(self.rows), 'group')} of {of} seeds on {', '.join(self.steps)}, "
            f"{self.metric} at {self.where}, {self.better} is better. "
        )
        if not math.isfinite(best["iqm"].value):
            return f"{text}In no group is it finite."
        text += f"The best interquartile mean is that of {best.label}: {shown(best['iqm'], self.number)}."
        measured = best if best.group is not self.baseline else others[0] if others else None
        if self.baseline is None or measured is None:
            return text
        return f"{text} {measured.label} is {self.difference(measured, self.baseline.label)}."

    def difference(self, row: Row, baseline: str) -> str:
        """A clause: how far a group's mean is from the baseline's, and whether the seeds tell the two apart."""
        gap = row["gap"]
        if not math.isfinite(gap.value):
            return f"not comparable with {baseline}: no run of one of the two is finite"
        text = f"{abs(gap.value):.3g} {'above' if gap.value >= 0 else 'below'} {baseline} on average ({gap.note})"
        if not (joint := row["joint"].interval):
            return f"{text}; with 1 seed there is no interval, so this may be chance"
        says = "includes 0: these seeds do not tell the two apart" if row.undecided else "excludes 0"
        many = f" that holds for all {len(self.rows) - 1} groups at once" if len(self.rows) > 2 else ""
        hint = f". {FEW_HINT}".removesuffix(".") if row.seeds < FEW and not row.undecided else ""
        return f"{text}; its 95 % interval{many}, [{joint[0]:.3g}, {joint[1]:.3g}], {says}{hint}"

    def to_csv(self) -> str:
        """All numbers, tidy. Lines with a seed are of one run, those without are of the group."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["group", "task", "seed", "metric", "step", "statistic", "value", "low", "high", "n"])
        for row in self.rows:
            for (task, step), scores in zip(self.at.items(), row.final, strict=True):
                for run, score in zip(row.group.tasks[task], scores, strict=True):
                    writer.writerow([row.group.label, task, run.seed, self.metric, step, "final", score, "", "", 1])
            beginning = [row.group.label, "all" if len(self.at) > 1 else task, "", self.metric, step]
            for name, (value, interval, n, _) in row.estimates.items():
                writer.writerow([*beginning, name, value, *(interval or ("", "")), n])
        return out.getvalue()

    def to_latex(self) -> str:
        """The table as a LaTeX ``table`` with its caption; it needs ``booktabs``."""
        escaped = str.maketrans({c: f"\\{c}" for c in "&%$#_{}"} | {"±": r"$\pm$", "^": r"\^{}", "~": r"\~{}"})
        head, *lines = (" & ".join(cell.translate(escaped) for cell in line) + r" \\" for line in self._named())
        body = "\n".join([r"\toprule", head, r"\midrule", *lines, r"\bottomrule"])
        columns = "l" + "r" * head.count(" & ")
        return (
            f"\\begin{{table}}\n\\centering\n\\caption{{{self.caption.strip().translate(escaped)}}}\n"
            f"\\begin{{tabular}}{{{columns}}}\n{body}\n\\end{{tabular}}\n\\end{{table}}\n"
        )

    def to_markdown(self) -> str:
        """The table in Markdown, with its caption below."""
        head, *lines = (f"| {' | '.join(cell.replace('|', '¦') for cell in line)} |" for line in self._named())
        rule = "| --- |" + " ---: |" * (head.count("|") - 2)
        return "\n".join([head, rule, *lines, "", self.caption.strip(), ""])

    def _named(self) -> list[list[str]]:
        """The table with the groups' names as in figures."""
        head, *lines = self.table()
        return [head, *([row.name, *line[1:]] for row, line in zip(self.rows, lines, strict=True))]


def summarize(
    groups: Sequence[Group],
    metric: str | None = None,
    target: float | None = None,
    baseline: str | None = None,
    direction: Direction | None = None,
) -> Comparison:
    """The statistics of all groups.

    Args:
        metric: a name in ``metrics.csv``; default: eval/return (task/return where tasks change), or task/test_accuracy
            (task/train_accuracy where there is no test set).
        target: a value, for the steps until it is reached.
        baseline: a group's label; default: the one with reset=periodic, else the one with reg=none and reset=none.
        direction: which values of the metric count as better; default: what the metric says, else higher.

    Raises:
        SettingsError: an unknown metric or baseline, or no run has the metric yet.
    """
    warnings: list[str] = []
    metric = metric or default_metric(groups)
    groups = _with_metric(groups, metric, warnings)
    every = dict.fromkeys(task for g in groups for task in g.tasks)
    tasks = [task for task in every if all(task in g.tasks for g in groups)]
    if not tasks:
        raise SettingsError("no task has runs of every group; compare tasks separately")
    warnings += [f"{task} is left out: not every group has runs of it" for task in every if task not in tasks]
    groups = [replace(g, tasks={task: g.tasks[task] for task in tasks}) for g in groups]
    unit, scale = groups[0].runs[0].unit(metric), 1.0
    steps = {t: _compared([run for g in groups for run in g.tasks[t]], metric, unit, warnings) for t in tasks}
    if len(tasks) > 1 and metric in ("eval/return", "train/return"):
        scale = 1 / 1000 if all(":" not in str(r.settings.get("env.name", ":")) for g in groups for r in g.runs) else 1
    direction = direction or better(MetricName.parse(metric).quantity)
    if direction is None and len(groups) > 1:
        warnings.append(f"{metric} does not say which values are better: higher counts as better; else better=lower")
    c = Comparison(metric, unit, scale, steps, direction or "higher", target)
    c = replace(c, baseline=_baseline(groups, baseline, warnings))
    rows = [_row(c, g, len(groups) - 1, warnings) for g in groups]
    if few := [row.group.label for row in rows if row.seeds < FEW]:
        warnings.append(f"fewer than {FEW} seeds, so at most gaps have an interval: {', '.join(few)}")
    for row in rows:
        if row.diverged:
            said = f"{metric} is not finite at the end of {counted(row.diverged, 'run')}"
            warnings.append(f"{row.group.label}: {said}: the worst in ranks, left out of means")
    return replace(c, rows=rows, warnings=warnings)


def default_metric(groups: Sequence[Group]) -> str:
    """What is compared by default: the return, at the end of each task where tasks change; or the test accuracy."""
    runs = [run for g in groups for run in g.runs]
    wanted = ("task/return",) if runs[0].kind == "train" else ("task/test_accuracy",)
    fallback = "eval/return" if runs[0].kind == "train" else "task/train_accuracy"
    return next(
        (name for name in wanted if all(name in run.curves or fallback not in run.curves for run in runs)), fallback
    )


def shared(metric: str, curves: Sequence[Curve]) -> Steps:
    """The steps at which all of these curves have a value; a value is never used for another step.

    Episodes end at other steps in each run. Their steps are all those at which an episode of any run ends, from where
    every run has a value to where the shortest one ends.
    """
    if metric != OF_EPISODES:
        both: Steps = np.asarray(reduce(np.intersect1d, (curve.steps for curve in curves)), np.int64)
        return both
    common: Steps = np.unique(np.concatenate([curve.steps for curve in curves]))
    inside: Steps = common[(common >= max(c.steps[0] for c in curves)) & (common <= min(c.steps[-1] for c in curves))]
    return inside


def at(curve: Curve, steps: Steps) -> Array:
    """A curve's values at `shared` steps."""
    return statistics.value_at(curve.steps, curve.values, steps)


def mean(scores: list[Array], enough: int = FEW) -> Estimate:
    """The mean over tasks of the mean of the finite scores, with Student's interval where each task has `enough`."""
    finite = _finite(scores)
    fewest, n = min(map(len, finite)), sum(map(len, finite))
    interval = statistics.student_interval(finite) if fewest >= max(2, enough) else None
    return Estimate(float(statistics.mean(finite)) if fewest else math.nan, interval, n)


# ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """What the statistics of a group are computed from; `compared` is the number of groups that have a gap."""

    c: Comparison
    group: Group
    compared: int

    @cached_property
    def curves(self) -> list[Array]:
        """The values on each task ``[runs, steps]``, in the scale of the table."""
        every = self.c.steps.items()
        return [
            np.array([at(r.curves[self.c.metric], of) for r in self.group.tasks[t]]) * self.c.scale for t, of in every
        ]

    @property
    def final(self) -> list[Array]:
        return [of_task[:, -1] for of_task in self.curves]

    @property
    def by_seed(self) -> list[dict[int, float]]:
        """The final scores on each task by seed."""
        runs = [self.group.tasks[task] for task in self.c.steps]
        return [
            {r.seed: float(x) for r, x in zip(of, scores, strict=True)}
            for of, scores in zip(runs, self.final, strict=True)
        ]

    @property
    def baseline(self) -> "Sample | None":
        if self.c.baseline is None or self.c.baseline is self.group:
            return None
        return replace(self, group=self.c.baseline)


def _areas(s: Sample, _: Sample | None) -> Estimate:
    each = zip(s.c.steps.values(), s.curves, strict=True)
    return mean([np.array([statistics.area_under_curve(steps, v) for v in of_task]) for steps, of_task in each])


def _reach(s: Sample, _: Sample | None) -> Estimate | None:
    """The median over runs of the steps to the target, infinity for never; the note says how many reached it."""
    if s.c.target is None:
        return None
    signed = [(steps, statistics.worst(s.c.sign * v)) for steps, v in zip(s.c.steps.values(), s.curves, strict=True)]
    reached = [statistics.steps_to_reach(t, run, s.c.sign * s.c.target) for t, of_task in signed for run in of_task]
    return Estimate(float(np.median(reached)), None, len(reached), f"{np.isfinite(reached).sum()} of {len(reached)}")


def _ranks(statistic: Callable[..., Array], *samples: list[Array], better: Direction = "higher") -> Estimate:
    """A statistic of ranks. It has a bootstrap interval if runs are enough, unless all resamples are the same."""
    ranked = [[statistics.worst(scores, better) for scores in strata] for strata in samples]
    low, high, n = 0.0, 0.0, sum(map(len, ranked[0]))
    if min(len(scores) for strata in ranked for scores in strata) >= FEW:
        low, high = statistics.bootstrap_interval(statistic, *ranked)
    return Estimate(float(statistic(*ranked)), (low, high) if low < high else None, n)


def _improvement(s: Sample, baseline: Sample | None) -> Estimate | None:
    if baseline is None:
        return None
    signed = [[s.c.sign * scores for scores in of.final] for of in (s, baseline)]
    return _ranks(statistics.probability_of_improvement, *signed)


def _gap(s: Sample, baseline: Sample | None, level: float = 0.95) -> Estimate | None:
    """The difference of means, by seed where each task has 2 or more that both groups have."""
    if baseline is None:
        return None
    pairs = _finite([statistics.paired_differences(a, b) for a, b in zip(s.by_seed, baseline.by_seed, strict=True)])
    samples = [pairs] if min(map(len, pairs)) > 1 else [_finite(s.final), _finite(baseline.final)]
    note = f"{min(map(len, pairs))} seeds that both have" if len(samples) == 1 else "unpaired"
    fewest = min(len(of_task) for strata in samples for of_task in strata)
    value, *others = (float(statistics.mean(strata)) if fewest else math.nan for strata in samples)
    interval = statistics.student_interval(*samples, level=level) if fewest > 1 else None
    return Estimate(value - sum(others), interval, sum(map(len, samples[0])), note)


class Statistic(NamedTuple):
    """A number of each group: a line of ``comparison.csv`` and, with `show`, a column of the table.

    Args:
        of: computes it from a group's sample and the baseline's, which is None for the baseline itself.
    """

    name: str
    of: Callable[[Sample, Sample | None], Estimate | None]
    heading: str = ""
    show: Callable[[Comparison, Row], str] | None = None


def _seeds(c: Comparison, row: Row) -> str:
    return f"{row.seeds} ({row.diverged} not finite)" if row.diverged else str(row.seeds)


def _with_error(c: Comparison, row: Row) -> str:
    error = row["standard_error"].value
    return c.number(row["mean"].value) + (f" ± {c.number(error)}" if math.isfinite(error) else "")


def _steps(c: Comparison, row: Row) -> str:
    reach = row["steps_to_reach"]
    return f"{reach.value:.0f} ({reach.note})" if math.isfinite(reach.value) else f"not reached ({reach.note})"


def _of_baseline(name: str, write: str) -> Callable[[Comparison, Row], str]:
    return lambda c, row: shown(row[name], write.format) if name in row.estimates else "baseline"


STATISTICS = (
    Statistic("seeds", lambda s, _: Estimate(min(map(len, s.final))), "seeds", _seeds),
    Statistic("mean", lambda s, _: mean(s.final), "final", _with_error),
    Statistic("standard_error", lambda s, _: Estimate(statistics.standard_error(_finite(s.final)))),
    Statistic(
        "iqm",
        lambda s, _: _ranks(statistics.iqm, s.final, better=s.c.better),
        "IQM [95 %]",
        lambda c, row: shown(row["iqm"], c.number),
    ),
    Statistic("area_under_curve", _areas, "AUC", lambda c, row: c.number(row["area_under_curve"].value)),
    Statistic("steps_to_reach", _reach, "steps to target", _steps),
    Statistic("improvement", _improvement, "P(improvement) [95 %]", _of_baseline("improvement", "{:.2f}")),
    Statistic("gap", _gap, "gap [95 %]", _of_baseline("gap", "{:.3g}")),
    Statistic("joint", lambda s, b: _gap(s, b, level=1 - 0.05 / max(1, s.compared))),  # Bonferroni
)


def _row(c: Comparison, g: Group, compared: int, warnings: list[str]) -> Row:
    sample = Sample(c, g, compared)
    found = {statistic.name: statistic.of(sample, sample.baseline) for statistic in STATISTICS}
    unfinished = [run for run in g.runs if _is_unfinished(run)]
    warnings += [f"* {g.label} is unfinished: {run}" for run in unfinished]
    return Row(g, bool(unfinished), sample.final, {name: estimate for name, estimate in found.items() if estimate})


def _is_unfinished(run: Run) -> bool:
    total = run.settings.get("total_env_steps" if run.kind == "train" else "num_tasks")
    done = len(run.borders) if run.kind == "supervised" else max(int(curve.steps[-1]) for curve in run.curves.values())
    return isinstance(total, int) and done < total


def _with_metric(groups: Sequence[Group], metric: str, warnings: list[str]) -> list[Group]:
    """The groups with only the runs that have the metric. A warning names each of the others."""
    warnings += [f"{r} has no {metric} yet and is left out" for g in groups for r in g.runs if metric not in r.curves]
    left = [g for g in (g.only(lambda run: metric in run.curves) for g in groups) if g.tasks]
    if not left:
        known = dict.fromkeys(name for g in groups for r in g.runs for name in r.curves)
        raise SettingsError(f"no run has the metric {metric!r}{nearest(metric, known)}")
    return left


def _compared(runs: Sequence[Run], metric: str, unit: str, warnings: list[str]) -> Steps:
    """The steps of a task that every run has."""
    steps = shared(metric, [run.curves[metric] for run in runs])
    if not len(steps):
        first, last = (f(runs, key=lambda run: run.curves[metric].steps[-1]) for f in (min, max))
        raise SettingsError(f"no {unit} has {metric} of every run, {first} and {last} among them; leave one")
    most = max(int((run.curves[metric].steps <= steps[-1]).sum()) for run in runs)
    if most > len(steps) and metric != OF_EPISODES:
        warnings.append(
            f"runs have {metric} at other {unit}s: only the {len(steps)} that all have, to {steps[-1]}, count"
        )
    return steps


def _baseline(groups: Sequence[Group], label: str | None, warnings: list[str]) -> Group | None:
    if label is not None:
        if label not in (named := {g.label: g for g in groups}):
            raise SettingsError(f"no group is called {label!r}{nearest(label, named)}")
        return named[label]
    periodic = [g for g in groups if method(g.settings)[1] == "periodic"]
    plain = [g for g in groups if method(g.settings) == ("none", "none")]
    for alike in (periodic, plain):
        if len(alike) == 1:
            return alike[0]
    if len(groups) > 1:
        warnings.append("no baseline, so no gaps: not one group alone has reset=periodic or no method; baseline=LABEL")
    return None


def _finite(scores: list[Array]) -> list[Array]:
    return [s[np.isfinite(s)] for s in scores]


def shown(estimate: Estimate, number: Callable[[float], str]) -> str:
    """``0.5 [0.2, 0.8]``."""
    between = f" [{', '.join(map(number, estimate.interval))}]" if estimate.interval else ""
    return number(estimate.value) + between


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
