"""The table of a comparison: statistics of groups of runs by one metric. Every number is an entry of `STATISTICS`."""

import csv
import io
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from typing import NamedTuple

import numpy as np

from rl_plasticity.comparison.groups import Group, default_baseline, strengths
from rl_plasticity.comparison.loading import Run
from rl_plasticity.errors import SettingsError, counted, nearest
from rl_plasticity.metrics import Direction, statistics
from rl_plasticity.metrics.measured import better
from rl_plasticity.metrics.statistics import Array, Interval, Steps
from rl_plasticity.runs.names import Curve, MetricName

FEW = 5  # with fewer seeds the single runs are shown; only gaps have an interval, Student's
UNPAIRED = "unpaired"  # the note of a gap of groups that do not have the same seeds
OF_EPISODES = "train/return"  # episodes end at any step
ORIGINS = ("commit", "rl_plasticity")
NOTHING = Curve(np.zeros(0, np.int64), np.zeros(0))


class Estimate(NamedTuple):
    """A number of a group.

    Args:
        interval: its 95 % interval; None where there are too few runs.
        n: the number of runs or pairs behind it; None for a number that is not in ``comparison.csv``.
        note: how many pairs a gap is from, or of how many runs it is unpaired.
        runs: the numbers of the single runs, for a median.
        p: a gap's p-value in a permutation test; NaN where a task has one run or pair.
    """

    value: float
    interval: Interval | None = None
    n: int | None = None
    note: str = ""
    runs: Sequence[float] = ()
    p: float = math.nan

    @property
    def includes_0(self) -> bool:
        low, high = self.interval or (self.value, self.value)
        return low <= 0 <= high


@dataclass(frozen=True)
class Row:
    """The statistics of one group.

    Args:
        c: the comparison, still without rows.
        compared: the number of groups that have a gap.
    """

    c: "Comparison"
    group: Group
    compared: int

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """By the names in `STATISTICS`, those that apply to the group."""
        found = {statistic.name: statistic.of(self) for statistic in STATISTICS}
        return {name: estimate for name, estimate in found.items() if estimate}

    @cached_property
    def curves(self) -> list[Array]:
        """The values on each task ``[runs, steps]``."""
        every = self.c.steps.items()
        return [np.array([at(run.curves[self.c.metric], of) for run in self.group.tasks[task]]) for task, of in every]

    @cached_property
    def final(self) -> list[Array]:
        """The scores at the last common step, one array for each task, by rising seed."""
        return [of_task[:, -1] for of_task in self.curves]

    @property
    def by_seed(self) -> list[dict[int, float]]:
        """The finite final scores on each task by seed."""
        return [
            {run.seed: float(x) for run, x in zip(self.group.tasks[task], scores, strict=True) if math.isfinite(x)}
            for task, scores in zip(self.c.steps, self.final, strict=True)
        ]

    @cached_property
    def baseline(self) -> "Row | None":
        """The baseline's row; None for the baseline itself."""
        c = self.c
        return None if c.baseline is None or c.baseline is self.group else replace(self, group=c.baseline)

    def __getitem__(self, name: str) -> Estimate:
        return self.estimates[name]

    @property
    def seeds(self) -> int:
        """The number of runs, on the task with the fewest."""
        return min(map(len, self.final))

    @property
    def diverged(self) -> int:
        """The number of runs whose final score is not finite."""
        return int((~np.isfinite(np.concatenate(self.final))).sum())

    @property
    def undecided(self) -> bool:
        """Whether the seeds leave open if the group's mean is above or below the baseline's.

        They do unless 0 is outside the interval that holds for all groups at once, and a permutation test agrees.
        """
        gap = self.estimates.get("gap_all_at_once")
        return gap is None or gap.p > 0.05 or gap.includes_0

    @property
    def unfinished(self) -> list[str]:
        """The folders of the runs that are unfinished."""
        return [str(run.folder) for run in self.group.runs if _unfinished(run)]

    @property
    def label(self) -> str:
        """The group's label, with * where some of its runs are unfinished."""
        return f"{self.group.label}*" if self.unfinished else self.group.label

    @property
    def name(self) -> str:
        """The group's label in the words of a paper, for figures and papers' tables."""
        return f"{self.group.name}*" if self.unfinished else self.group.name


@dataclass(frozen=True)
class Comparison:
    """Groups of runs compared by one metric.

    Args:
        unit: what the steps of the metric count: env step, update or task.
        steps: the steps of each task that all runs have. Runs are compared at the last one.
        better: which values of the metric count as better.
        target: the value for the steps until a run reaches it.
        columns: the names in `STATISTICS` that tables have, in this order; by default all.
    """

    metric: str
    unit: str
    steps: Mapping[str, Steps]
    better: Direction
    target: float | None = None
    baseline: Group | None = None
    columns: Sequence[str] = ()
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

    def number(self, value: float) -> str:
        """`value` with the digits of the largest score, so that all scores have the same decimals."""
        return fine(x for row in self.rows for of in row.final for x in of)(value)

    def table(self) -> list[list[str]]:
        """The statistics as text: a header, then a line for each group. A column without numbers is left out."""
        columns = {"group": [row.label for row in self.rows]}
        for name in self.columns or COLUMNS:
            _, _, heading, show = COLUMNS[name]
            if any(name in row.estimates for row in self.rows):
                columns[heading] = [
                    show(self, row, row[name]) if name in row.estimates else "baseline" for row in self.rows
                ]
        return [list(columns), *map(list, zip(*columns.values(), strict=True))]

    @property
    def caption(self) -> str:
        """What the columns and their intervals are."""
        text = f"{self.metric} at {self.where} on {', '.join(self.steps)}: mean ± standard error, and "
        text += (
            f"interquartile mean (IQM). AUC: mean over the curve up to that step. Intervals from {FEW} seeds on: "
            "bootstrap for ranks, else Student's t. "
        )
        if any(row.diverged for row in self.rows):
            text += "Runs without a finite value rank last in IQM and P(improvement), and other means leave them out. "
        if self.target is not None:
            text += f"Steps to {self.target:g}: median over runs; a run that never reaches it counts as infinite. "
        if self.baseline is not None:
            text += (
                f"P(improvement) and gap compare with the baseline, {self.baseline.name}. The gap is the difference of "
                f"means, by seed where most runs have a partner; its interval (Student's t) is for each group alone. "
            )
        return text + ("* marks groups with unfinished runs." if any(row.unfinished for row in self.rows) else "")

    def verdict(self) -> str:
        """What was compared and what the numbers say, in a few sentences without causes."""
        best, *others = sorted(self.rows, key=lambda r: -self.sign * r["iqm"].value)
        seeds = sorted({row.seeds for row in self.rows})
        text = f"{counted(len(self.rows), 'group')} of "
        text += counted(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
        text += f" on {', '.join(self.steps)}, {self.metric} at {self.where}, {self.better} is better. "
        if not math.isfinite(best["iqm"].value):
            return f"{text}No group has a finite value."
        text += f"The best interquartile mean is that of {told(best.label)}: {shown(best['iqm'], self.number)}."
        measured = [row for row in (best, *others) if "gap" in row.estimates]
        if self.baseline is None or not measured:
            return text
        sides: dict[str, list[Row]] = {"Better": [], "Worse": [], "Undecided": []}
        for row in measured:
            sides["Undecided" if row.undecided else "Better" if self.sign * row["gap"].value > 0 else "Worse"].append(
                row
            )
        many = f", by a 95 % interval that holds for all {len(measured)} groups at once" if len(measured) > 1 else ""
        did = f"{counted(len(sides['Better']), 'group')} did better and {len(sides['Worse'])} did worse"
        text += f" Compared with the baseline, {told(self.baseline.label)}, {did}{many}."
        return text + "".join(f" {side}: {'; '.join(map(self.difference, of))}." for side, of in sides.items() if of)

    def difference(self, row: Row) -> str:
        """A clause: how far a group's mean is from the baseline's, from how many pairs or runs, and how sure it is."""
        gap = row.estimates.get("gap_all_at_once", row["gap"])
        if not math.isfinite(gap.value):
            return f"{told(row.label)}, because one of the two groups has no finite run"
        write = fine([gap.value, *(gap.interval or ())])
        text = f"{told(row.label)} by {write(gap.value)} ({gap.note})"
        if math.isnan(gap.p):
            return f"{text}; with 1 seed there is no interval, so this may be chance"
        text += (
            f", [{', '.join(map(write, gap.interval))}], which" if gap.interval else ", each by the same amount, which"
        )
        if gap.includes_0 or not row.undecided:
            return f"{text} {'includes' if gap.includes_0 else 'excludes'} 0"
        return f"{text} may be chance: p = {gap.p:.2g} in a permutation test"

    def to_csv(self) -> str:
        """All numbers, tidy. Lines with a seed are of one run, those without are of the group."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["group", "task", "seed", "metric", "step", "statistic", "value", "low", "high", "n"])
        tasks, steps = [*self.at], {*self.at.values()}
        of_all = ["all" if len(tasks) > 1 else tasks[0], "", self.metric, "" if len(steps) > 1 else steps.pop()]
        for row in self.rows:
            runs = [(on, run.seed, self.metric, self.at[on]) for on in tasks for run in row.group.tasks[on]]
            reached = row.estimates.get("steps_to_reach", Estimate(0)).runs
            for name, values in (("final", np.concatenate(row.final)), ("steps_to_reach", reached)):
                for run, value in zip(runs, values, strict=False):
                    writer.writerow([row.group.label, *run, name, value, "", "", 1])
            for name, e in row.estimates.items():
                if e.n is not None:
                    kind = ("_unpaired" if e.note.startswith(UNPAIRED) else "_paired") if name == "gap" else ""
                    writer.writerow([row.group.label, *of_all, name + kind, e.value, *(e.interval or ("", "")), e.n])
        return out.getvalue()

    def to_latex(self) -> str:
        """The table as a LaTeX ``table`` with its caption; it needs ``booktabs``."""
        escaped = str.maketrans(
            {c: f"\\{c}" for c in "&%$#_{}"}
            | {"\\": r"\textbackslash{}", "±": r"$\pm$", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
        )
        minus = partial(re.sub, r"(?<![\w.])-(?=\d|inf)", "$-$")
        head, *lines = (" & ".join(minus(cell.translate(escaped)) for cell in line) + r" \\" for line in self._named())
        body = "\n".join([r"\toprule", head, r"\midrule", *lines, r"\bottomrule"])
        columns = "l" + "r" * head.count(" & ")
        return (
            f"\\begin{{table}}\n\\centering\n\\caption{{{self.caption.strip().translate(escaped)}}}\n"
            f"\\begin{{tabular}}{{{columns}}}\n{body}\n\\end{{tabular}}\n\\end{{table}}\n"
        )

    def to_markdown(self) -> str:
        """The table in Markdown, with its caption below."""
        return "\n".join([markdown(self._named()), "", self.caption.strip(), ""])

    def _named(self) -> list[list[str]]:
        """The table with the groups' names as in figures, and strengths that are not the defaults."""
        head, *lines = self.table()
        names = [" ".join([row.name, *strengths(row.group)]) for row in self.rows]
        return [head, *([name, *line[1:]] for name, line in zip(names, lines, strict=True))]


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, its first line the header; all columns but the first are aligned at the right."""
    head, *others = (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
    return "\n".join([head, "| --- |" + " ---: |" * (len(lines[0]) - 1), *others])


def summarize(
    groups: Sequence[Group],
    metric: str | None = None,
    target: float | None = None,
    baseline: str | None = None,
    direction: Direction | None = None,
    columns: Sequence[str] = (),
) -> Comparison:
    """The statistics of all groups.

    Args:
        metric: a name in ``metrics.csv``; default: eval/return (task/return where tasks change), or task/test_accuracy
            (task/train_accuracy where there is no test set).
        target: a value, for the steps until it is reached.
        baseline: a group's label; default: the one with reg=none and reset=none, else the one with reset=periodic.
        direction: which values of the metric count as better; default: what the metric says, else higher.
        columns: names in `STATISTICS`, of the columns that tables have.

    Raises:
        SettingsError: an unknown metric, column or baseline, or no run has the metric yet.
    """
    for name in columns:
        if name not in COLUMNS:
            raise SettingsError(f"columns: there is no column {name!r}{nearest(name, COLUMNS)}")
    warnings: list[str] = []
    metric = metric or default_metric(groups)
    groups = _with_metric(groups, metric, warnings)
    unit = groups[0].runs[0].unit(metric)
    steps = _common_steps(groups, metric, unit, warnings)
    groups = [g.only(lambda task, _: task in steps) for g in groups]
    if direction is None and (direction := better(MetricName.parse(metric).quantity)) is None and len(groups) > 1:
        warnings.append(
            f"{metric} does not say which values are better: higher ones are assumed to be (change it by better=lower)"
        )
    named = {g.label: g for g in groups}
    if baseline is not None and baseline not in named:
        raise SettingsError(f"baseline: no group is called {baseline!r}{nearest(baseline, named)}")
    reference = default_baseline(groups, warnings) if baseline is None else named[baseline]
    c = Comparison(metric, unit, steps, direction or "higher", target, reference, columns)
    rows = [Row(c, g, len(groups) - 1) for g in groups]
    warnings += [f"* {r.group.label} is unfinished: {folder}" for r in rows for folder in dict.fromkeys(r.unfinished)]
    if few := [row.label for row in rows if row.seeds < FEW]:
        warnings.append(f"groups with fewer than {FEW} seeds have intervals only for gaps: {', '.join(few)}")
    for row in rows:
        if row.diverged:
            said = f"{metric} is not finite at the end of {counted(row.diverged, 'run')}"
            warnings.append(f"{row.group.label}: {said}: these rank last, and means leave them out")
    return replace(c, rows=rows, warnings=[*warnings, *_of_origins(groups)])


def default_metric(groups: Sequence[Group]) -> str:
    """What is compared by default: the return, at the end of each task where tasks change; or the test accuracy."""
    runs = [run for g in groups for run in g.runs]
    of_rl = runs[0].kind == "train"
    usual, fallback = ("task/return", "eval/return") if of_rl else ("task/test_accuracy", "task/train_accuracy")
    found = [usual in run.curves for run in runs if {usual, fallback} & run.curves.keys()]
    return usual if found and all(found) else fallback


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


def mean(scores: Sequence[Array], enough: int = FEW) -> Estimate:
    """The mean over tasks of the mean of the finite scores, with Student's interval where each task has `enough`."""
    finite = _finite(scores)
    fewest, n = min(map(len, finite)), sum(map(len, finite))
    low, high = statistics.student_interval(finite) if fewest >= max(2, enough) else (0.0, 0.0)
    return Estimate(float(statistics.mean(finite)) if fewest else math.nan, (low, high) if low < high else None, n)


def gap(x: Sequence[Mapping[int, float]], y: Sequence[Mapping[int, float]], level: float = 0.95) -> Estimate:
    """The difference of the means of scores, which each task has by seed: by seed where most runs have a partner.

    It has no interval where a task has one run or pair, or where all differ by the same.
    """
    runs = [[np.array([*scores.values()]) for scores in strata] for strata in (x, y)]
    pairs = statistics.differences_of_pairs(x, y)
    samples = [pairs] if pairs else runs
    n, *others = (sum(map(len, strata)) for strata in samples)
    note = counted(n, "pair") if pairs else f"{UNPAIRED}, {n} and {counted(others[0], 'run')}"
    fewest = min(len(of_task) for strata in samples for of_task in strata)
    means = [float(statistics.mean(strata)) if fewest else math.nan for strata in samples]
    found = Estimate(means[0] - sum(means[1:]), n=n, note=note)
    if fewest < 2:
        return found
    low, high = statistics.student_interval(*samples, level=level)
    flat = high - low <= 1e-9 * max(abs(low), abs(high))
    # The signs of 5 pairs are all alike in 1 of 16 cases by chance: so few say more as runs without a partner.
    p = statistics.permutation_p(*([pairs] if pairs and n > 5 else runs))
    return found._replace(interval=None if flat else (low, high), p=p)


def told(label: str) -> str:
    """A group's label in a sentence: ``no method (none)`` for ``none``."""
    return re.sub(r"^none(?! \+)", "no method (none)", label)


def shown(estimate: Estimate, number: Callable[[float], str]) -> str:
    """``0.5 [0.2, 0.8]``."""
    between = f" [{', '.join(map(number, estimate.interval))}]" if estimate.interval else ""
    return number(estimate.value) + between


def fine(values: Iterable[float]) -> Callable[[float], str]:
    """A function that writes numbers with three digits of the largest of `values`, and equal decimals."""
    largest = max(map(abs, filter(math.isfinite, values)), default=0.0)
    decimals = 3 - math.ceil(math.log10(largest)) if largest else 1
    return f"{{:.{max(0, decimals)}f}}".format if decimals <= 6 else "{:.2e}".format


# ------------------------------------------------------------------------------------------------------------------


def _areas(s: Row) -> Estimate:
    each = zip(s.c.steps.values(), s.curves, strict=True)
    return mean([np.array([statistics.area_under_curve(steps, v) for v in of_task]) for steps, of_task in each])


def _last_minus_first_third(s: Row) -> Estimate | None:
    """The mean of the last third of the tasks minus that of the first, in whole rounds of a sequence."""
    if s.c.unit != "task":
        return None
    rounds = max(len(run.settings.get("env.sequence") or [""]) for run in s.group.runs)
    third = min(of_task.shape[1] for of_task in s.curves) // (3 * rounds) * rounds
    return mean([v[:, -third:].mean(1) - v[:, :third].mean(1) for v in s.curves]) if third else None


def _mean_over_tasks(metric: str, s: Row) -> Estimate | None:
    """The mean over the tasks up to there of another metric of tasks; None where a run has no value."""
    if s.c.unit != "task":
        return None
    curves = [[(r.curves.get(metric, NOTHING), end) for r in s.group.tasks[t]] for t, end in s.c.at.items()]
    found = [[values[steps <= end] for (steps, values), end in of_task] for of_task in curves]
    if not all(map(len, itertools.chain(*found))):
        return None
    return mean([np.array([of_run.mean() for of_run in of_task]) for of_task in found])


def _reach(s: Row) -> Estimate | None:
    """The median over runs of the steps to the target, infinity for never."""
    if s.c.target is None:
        return None
    signed = zip(s.c.steps.values(), [statistics.worst(s.c.sign * v) for v in s.curves], strict=True)
    runs = [statistics.steps_to_reach(t, v, s.c.sign * s.c.target) for t, of_task in signed for v in of_task]
    return Estimate(float(np.median(runs)), runs=runs)


def _ranks(statistic: Callable[..., Array], *samples: Sequence[Array], better: Direction = "higher") -> Estimate:
    """A statistic of ranks. It has a bootstrap interval if runs are enough, unless all resamples are the same."""
    ranked = [[statistics.worst(scores, better) for scores in strata] for strata in samples]
    low, high, n = 0.0, 0.0, sum(map(len, ranked[0]))
    if min(len(scores) for strata in ranked for scores in strata) >= FEW:
        low, high = statistics.bootstrap_interval(statistic, *ranked)
    return Estimate(float(statistic(*ranked)), (low, high) if low < high else None, n)


def _improvement(s: Row) -> Estimate | None:
    if s.baseline is None:
        return None
    signed = [[s.c.sign * scores for scores in of.final] for of in (s, s.baseline)]
    return _ranks(statistics.probability_of_improvement, *signed)


def _gap(s: Row, level: float = 0.95) -> Estimate | None:
    return gap(s.by_seed, s.baseline.by_seed, level) if s.baseline else None


def _gap_at_once(s: Row) -> Estimate | None:
    found = _gap(s, 1 - 0.05 / max(1, s.compared))  # Bonferroni
    return found if found and found.p <= 1 else None


class Statistic(NamedTuple):
    """A number of each group: a line of ``comparison.csv`` and, with a `heading`, a column of the table.

    Args:
        of: computes it; None for a group to which it does not apply.
        show: writes a cell of the column.
    """

    name: str
    of: Callable[[Row], Estimate | None]
    heading: str = ""
    show: Callable[[Comparison, Row, Estimate], str] = lambda c, row, e: shown(e, c.number)


def _seeds(c: Comparison, row: Row, e: Estimate) -> str:
    return f"{row.seeds} ({row.diverged} not finite)" if row.diverged else str(row.seeds)


def _with_error(c: Comparison, row: Row, e: Estimate) -> str:
    error = row["standard_error"].value
    return c.number(e.value) + (f" ± {c.number(error)}" if math.isfinite(error) else "")


def _median_reached(c: Comparison, row: Row, e: Estimate) -> str:
    number = f"{e.value:.0f}" if math.isfinite(e.value) else "not reached"
    return f"{number} ({np.isfinite(e.runs).sum()} of {len(e.runs)})"


def _with_pairs(c: Comparison, row: Row, e: Estimate) -> str:
    return f"{shown(e, fine([e.value, *(e.interval or ())]))} ({e.note})"


STATISTICS = (
    Statistic("seeds", lambda s: Estimate(min(map(len, s.final))), "seeds", _seeds),
    Statistic("mean", lambda s: mean(s.final), "final", _with_error),
    Statistic("standard_error", lambda s: Estimate(statistics.standard_error(_finite(s.final)), n=mean(s.final).n)),
    Statistic("iqm", lambda s: _ranks(statistics.iqm, s.final, better=s.c.better), "IQM [95 %]"),
    Statistic("area_under_curve", _areas, "AUC [95 %]"),
    Statistic("last_minus_first_third", _last_minus_first_third, "last - first third [95 %]"),
    Statistic("online_accuracy", partial(_mean_over_tasks, "task/online_accuracy"), "online accuracy [95 %]"),
    Statistic("first_return", partial(_mean_over_tasks, "task/first_return"), "before learning"),
    Statistic("steps_to_reach", _reach, "steps to the target", _median_reached),
    Statistic(
        "probability_of_improvement", _improvement, "P(improvement) [95 %]", lambda c, row, e: shown(e, "{:.2f}".format)
    ),
    Statistic("gap", _gap, "gap [95 %]", _with_pairs),
    Statistic("gap_all_at_once", _gap_at_once),
)


COLUMNS = {statistic.name: statistic for statistic in STATISTICS if statistic.heading}


def _with_metric(groups: Sequence[Group], metric: str, warnings: list[str]) -> list[Group]:
    """The groups with only the runs that have the metric. A warning names each of the others."""
    warnings += [f"{r} has no {metric} yet and is left out" for g in groups for r in g.runs if metric not in r.curves]
    left = [g for g in (g.only(lambda _, run: metric in run.curves) for g in groups) if g.tasks]
    if not left:
        known = dict.fromkeys(name for g in groups for r in g.runs for name in r.curves)
        raise SettingsError(f"no run has the metric {metric!r}{nearest(metric, known)}")
    return left


def _common_steps(groups: Sequence[Group], metric: str, unit: str, warnings: list[str]) -> dict[str, Steps]:
    """The steps that every run has, of each task that every group has."""
    found = {}
    for task in dict.fromkeys(task for g in groups for task in g.tasks):
        if lacking := [g.label for g in groups if task not in g.tasks]:
            warnings.append(f"{task} is left out: these groups have no run of it: {', '.join(lacking)}")
            continue
        runs = [run for g in groups for run in g.tasks[task]]
        found[task] = steps = shared(metric, [run.curves[metric] for run in runs])
        if not len(steps):
            first, last = (f(runs, key=lambda run: run.curves[metric].steps[-1]) for f in (min, max))
            raise SettingsError(
                f"runs share no {unit} with {metric}, {first} and {last} among them: leave one of them out"
            )
        if metric != OF_EPISODES and any(
            run.curves[metric].steps.searchsorted(steps[-1]) >= len(steps) for run in runs
        ):
            of = f"only the {len(steps)} that all runs have, up to {steps[-1]}, count"
            warnings.append(f"{task}: runs have {metric} at different {unit}s: {of}")
    if not found:
        raise SettingsError("no task has runs of every group; compare tasks separately")
    names = [str(run.settings.get("env.name")) for g in groups for run in g.runs]
    if len(found) > 1 and metric.endswith("return") and any(":" in name for name in names):  # gym:, minatar:
        warnings.append("returns of Gymnasium tasks have no common scale, and means over tasks do not rescale them")
    return found


def _unfinished(run: Run) -> bool:
    total = run.settings.get("total_env_steps" if run.kind == "train" else "num_tasks")
    done = max(int(curve.steps[-1]) for curve in run.curves.values()) if run.kind == "train" else len(run.borders)
    return isinstance(total, int) and done < total


def _of_origins(groups: Sequence[Group]) -> Iterator[str]:
    """Warnings of runs that different code made."""
    runs = [run for g in groups for run in g.runs]
    marks = [(f"{name}s", str(s[name])[:10]) for run in runs for s in run.starts for name in ORIGINS if s.get(name)]
    marks += [(f"sources of the plug {m}, not pooled", d) for run in runs for m, d in run.plugs.items()]
    for what in dict.fromkeys(what for what, _ in marks):
        if len(values := sorted({value for of, value in marks if of == what})) > 1:
            yield f"runs of different {what}: {', '.join(values)}"


def _finite(scores: Sequence[Array]) -> list[Array]:
    return [s[np.isfinite(s)] for s in scores]
