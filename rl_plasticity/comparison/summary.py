"""Statistics of a comparison: what its table, its CSV file, its figures and its page show.

Every number of a group is an entry of `STATISTICS`.
"""

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from rl_plasticity.comparison import steps
from rl_plasticity.comparison.groups import BRANCHED, PLUGS, Group
from rl_plasticity.comparison.loading import Run
from rl_plasticity.comparison.published import Published
from rl_plasticity.configs.commands import ONCE
from rl_plasticity.errors import SettingsError, nearest
from rl_plasticity.metrics import Direction, statistics
from rl_plasticity.metrics.measured import better
from rl_plasticity.metrics.statistics import Array, Interval, Steps
from rl_plasticity.runs.names import Curve, MetricName

FEW = 5  # with fewer seeds the single runs are shown; only gaps have an interval, Student's
FEW_HINT = f"With fewer than {FEW} seeds that is a hint at most."
UNPAIRED = "unpaired"  # the note of a gap of groups that do not have the same seeds


class Estimate(NamedTuple):
    """A number of a group.

    Args:
        interval: its 95 % interval; None where there are too few runs.
        note: how many seeds a gap pairs, or that it is unpaired.
        n: the number of runs or pairs behind it.
        runs: the numbers of the single runs, for a median, which counts those that are infinite.
    """

    value: float
    interval: Interval | None = None
    note: str = ""
    n: int | None = None
    runs: Array | None = None


@dataclass(frozen=True)
class Row:
    """The statistics of one group.

    Args:
        final: the scores at the last common step, one array for each task, by rising seed.
        estimates: by the names in `STATISTICS`, those that apply to the group.
    """

    group: Group
    unfinished: bool
    final: list[Array]
    estimates: Mapping[str, Estimate]

    def __getitem__(self, name: str) -> Estimate:
        return self.estimates[name]

    def get(self, name: str) -> Estimate | None:
        return self.estimates.get(name)

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
        joint = self.get("joint")
        low, high = (joint and joint.interval) or (-math.inf, math.inf)
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
        tasks: the tasks that every group has. Other tasks are in no statistic.
        better: which values of the metric count as better.
        target: the value for the steps until a run reaches it.
        chosen: a sentence that says what was chosen from what.
        candidates: the groups of each choice, see `candidates_of`.
        published: curves of others to show beside.
    """

    metric: str
    unit: str
    scale: float
    steps: Mapping[str, Steps]
    tasks: Sequence[str]
    better: Direction
    target: float | None = None
    baseline: Group | None = None
    rows: Sequence[Row] = ()
    warnings: Sequence[str] = ()
    chosen: str = ""
    candidates: Sequence["Comparison"] = ()
    published: Sequence[Published] = ()

    @property
    def sign(self) -> int:
        """The factor that makes higher values better."""
        return 1 if self.better == "higher" else -1

    @property
    def at(self) -> dict[str, int]:
        """The step of each task at which runs are compared."""
        return {task: int(of_task[-1]) for task, of_task in self.steps.items()}

    def number(self, value: float) -> str:
        """`value` with four significant digits of the largest score, so that all scores have the same decimals."""
        largest = _largest(*(score for row in self.rows for scores in row.final for score in scores))
        decimals = max(0, 4 - math.ceil(math.log10(largest))) if largest else 3
        return f"{value:.{min(3, decimals) if largest >= 0.1 else decimals}f}"

    @staticmethod
    def fine(*values: float) -> Callable[[float], str]:
        """A function that writes a gap and its interval, `values`, with three digits of the largest of them."""
        largest = _largest(*values)
        decimals = 3 - math.ceil(math.log10(largest)) if largest else 1
        if decimals > 6:
            return "{:.2e}".format
        return lambda value: f"{value:.{max(0, decimals)}f}"

    def unit_of(self, metric: str) -> str:
        """What the steps of any metric of these runs count."""
        return self.rows[0].group.runs[0].unit(metric)

    @property
    def step_of_checkpoints(self) -> str:
        """What the steps of checkpoints count: env step or epoch."""
        return "env step" if self.rows[0].group.runs[0].kind == "train" else "epoch"

    def curve(self, run: Run, metric: str) -> Curve:
        """A run's curve, in the table's scale if it is of the metric that is compared."""
        curve = run.curves[metric]
        return Curve(curve.steps, curve.values * self.scale) if metric == self.metric else curve

    @property
    def where(self) -> str:
        """The step of the comparison in words: ``env step 1000000``."""
        steps = {self.at[task] for task in self.tasks}
        return f"{self.unit} {steps.pop()}" if len(steps) == 1 else f"the last common {self.unit} of each task"

    @property
    def seeds(self) -> str:
        """The number of seeds of each group: ``5 seeds`` or ``1 to 5 seeds``."""
        numbers = sorted({row.seeds for row in self.rows})
        return counted(numbers[0], "seed") if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]} seeds"

    def table(self) -> list[list[str]]:
        """The statistics as text: a header, then a line for each group. A column without numbers is left out."""
        columns = {"group": [row.label for row in self.rows]}
        for statistic in STATISTICS:
            found = [row.get(statistic.name) for row in self.rows]
            if statistic.heading and any(found):
                heading = statistic.heading if isinstance(statistic.heading, str) else statistic.heading(self)
                if statistic.brackets and any(estimate and estimate.interval for estimate in found):
                    heading += " [95 %]"
                columns[heading] = [
                    statistic.show(self, row, estimate) if estimate else statistic.absent
                    for row, estimate in zip(self.rows, found, strict=True)
                ]
        return [list(columns), *map(list, zip(*columns.values(), strict=True))]

    def published_table(self) -> list[list[str]]:
        """The published returns as text, each at its last step up to that of the comparison."""
        lines = [["published", "task", "seeds", "env step", "return [95 %]"]]
        for one in self.published:
            step, value, interval = one.at(self.at[one.task])
            estimate = Estimate(value * self.scale, interval and (self.scale * interval[0], self.scale * interval[1]))
            returned = shown(estimate, self.number) if math.isfinite(value) else "none so early"
            lines.append([one.name, one.task, str(len(one.curves)), str(step), returned])
        return lines

    @property
    def caption(self) -> str:
        """What the columns and their intervals are."""
        text = f"{self.metric} at {self.where}"
        if self.scale != 1:
            text += ", divided by 1000"
        text += ": mean ± standard error, and interquartile mean (IQM)"
        if any(row["iqm"].interval for row in self.rows):
            text += f", from {FEW} seeds on with its 95 % stratified bootstrap interval"
        text += ". "
        text += (
            "Mean over tasks: of the same value. " if self.unit == "task" else "AUC: mean over the curve up to there. "
        )
        if any(row.diverged for row in self.rows):
            text += "Runs that are not finite are the worst in IQM and P(improvement) and left out of the other means. "
        if any(row.get("online") for row in self.rows):
            text += "Online accuracy: on each batch before it was learned, mean over tasks. "
        if self.target is not None:
            text += "Steps to the target: median over runs, never counting as infinite, and how many reached it. "
        if self.baseline is not None:
            text += (
                f"P(improvement) and gap (difference of means) are over the baseline, {self.baseline.name}; pairs: "
                "the seeds that both have, whose differences the gap is of. Its interval is Student's t, for each "
                "group by itself. "
            )
        text += "".join(
            f"{_listed(labels)} branched from {point}. "
            for point, labels in _branch_points(row.group for row in self.rows).items()
        )
        return text + ("* has unfinished runs." if any(row.unfinished for row in self.rows) else "")

    def _named(self) -> list[list[str]]:
        """The table with the groups' names as in figures."""
        head, *lines = self.table()
        return [head, *([row.name, *line[1:]] for row, line in zip(self.rows, lines, strict=True))]

    def to_latex(self) -> str:
        """The table as a LaTeX ``table`` with its caption. It needs ``\\usepackage{booktabs}`` and nothing else."""
        escaped = str.maketrans({c: f"\\{c}" for c in "&%$#_{}"} | {"\\": r"\textbackslash{}", "±": r"$\pm$"})
        escaped |= str.maketrans({"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"})
        minus = re.compile(r"(?<![\w.])-(?=\d)")
        head, *lines = [
            " & ".join(minus.sub("$-$", cell.translate(escaped)) for cell in line) + r" \\" for line in self._named()
        ]
        columns = "l" + "r" * (head.count(" & "))
        caption = self.caption.strip().translate(escaped)
        begin = [r"\begin{table}", r"\centering", rf"\caption{{{caption}}}", rf"\begin{{tabular}}{{{columns}}}"]
        rows = [r"\toprule", head, r"\midrule", *lines, r"\bottomrule"]
        return "\n".join([*begin, *rows, r"\end{tabular}", r"\end{table}"]) + "\n"

    def to_markdown(self) -> str:
        """The table in Markdown, with its caption below."""
        head, *lines = [[cell.replace("|", r"\|") for cell in line] for line in self._named()]
        rule = ["---", *["---:"] * (len(head) - 1)]
        rows = "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *lines))
        return f"{rows}\n\n{self.caption.strip()}\n"

    def to_csv(self) -> str:
        """All numbers, tidy: ``group,task,seed,metric,step,statistic,value,low,high,n``.

        Lines with a seed are of one run, those without are of the group. The task of a statistic over several is `all`.
        """
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["group", "task", "seed", "metric", "step", "statistic", "value", "low", "high", "n"])
        for row in self.rows:
            writer.writerows(self._lines_of_runs(row))
            names = {s.name: s.csv if isinstance(s.csv, str) else s.csv(row.get(s.name)) for s in STATISTICS}
            writer.writerows(self._lines_of_group(row, {name: text for name, text in names.items() if text}))
        for choice in self.candidates:
            for row in choice.rows:
                writer.writerows(choice._lines_of_group(row, {"mean": "candidate_mean", "gap": "candidate_gap"}))
        return out.getvalue()

    def _lines_of_runs(self, row: Row) -> Iterator[list[Any]]:
        runs = [(task, run.seed) for task in self.tasks for run in row.group.tasks[task]]
        numbers = {"final": np.concatenate(row.final)}
        if (reach := row.get("reach")) and reach.runs is not None:
            numbers["steps_to_reach"] = reach.runs
        for i, (task, seed) in enumerate(runs):
            for name, values in numbers.items():
                yield [row.group.label, task, seed, self.metric, self.at[task], name, values[i], None, None, 1]

    def _lines_of_group(self, row: Row, names: Mapping[str, str]) -> Iterator[list[Any]]:
        """A line for each estimate in `names`, which say what it is called in the file."""
        task = self.tasks[0] if len(self.tasks) == 1 else "all"
        steps = {self.at[task] for task in self.tasks}
        beginning = [row.group.label, task, None, self.metric, steps.pop() if len(steps) == 1 else None]
        for name, text in names.items():
            if estimate := row.get(name):
                yield [*beginning, text, estimate.value, *(estimate.interval or (None, None)), estimate.n]

    def verdict(self) -> str:
        """What was compared and what the numbers say, in a few sentences that name no causes."""
        best, *others = sorted(self.rows, key=lambda r: -self.sign * r["iqm"].value)
        where = f"each of {len(self.tasks)} tasks" if len(self.tasks) > 1 else self.tasks[0]
        text = f"{self.chosen}{counted(len(self.rows), 'group')} of {self.seeds} on {where}. "
        divided = ", return / 1000" if self.scale != 1 else ""
        lower = ", lower is better" if self.better == "lower" else ""
        name = f"{self.metric} (interquartile mean{divided}, at {self.where}{lower})"
        if not math.isfinite(best["iqm"].value):
            return f"{text}In no group is {name} finite."
        if not others:
            return f"{text}{name} is {shown(best['iqm'], self.number)} for {best.group.label}."
        end = "highest" if self.better == "higher" else "lowest"
        text += f"The {end} {name} of the {len(self.rows)} is that of {best.label}"
        if tied := [row.label for row in others if row["iqm"].value == best["iqm"].value]:
            text += f", equal to that of {', '.join(tied)}"
        measured = best
        if best.group is self.baseline:  # which has no gap to itself; the next best has
            measured = others[0]
            text += f", the baseline: {shown(best['iqm'], self.number)}; the next is {measured.label}"
        text += f": {shown(measured['iqm'], self.number)}."
        if self.baseline is None:
            return text
        gap = measured["gap"]
        if not math.isfinite(gap.value):
            return f"{text} No run of one of the two is finite, so there is no gap to name."
        if gap.note.startswith(UNPAIRED):
            text += f" The mean of {measured.label} is {self.difference(measured, f'that of {self.baseline.label}')}."
        else:
            text += f" Seed by seed ({gap.note.partition(':')[0]} that both have) {measured.label} is on average "
            text += f"{self.difference(measured, self.baseline.label)}."
        if not measured.undecided and measured.seeds < FEW:
            text += f" {FEW_HINT}"
        compared = [row for row in self.rows if row is measured or row.group is self.baseline]
        told = [f"{row.diverged} of {sum(map(len, row.final))} of {row.label}" for row in compared if row.diverged]
        return text + (f" Runs that are not finite are not in that: {', '.join(told)}." if told else "")

    def difference(self, row: Row, baseline: str) -> str:
        """A clause that says how far a group's mean is from the baseline's, and whether the seeds tell the two apart.

        Args:
            baseline: what the clause calls it.
        """
        gap, joint = row["gap"], row.get("joint")
        low, high = (joint and joint.interval) or (math.nan, math.nan)
        write = self.fine(gap.value, low, high)
        text = f"{write(abs(gap.value))} {'above' if gap.value >= 0 else 'below'} {baseline}"
        if joint is None:
            return f"{text}; with 1 seed there is no interval, so this may be chance"
        others = len(self.rows) - 1
        many = f" that holds for all {others} groups at once" if others > 1 else ""
        unpaired = f", {UNPAIRED}" if gap.note == UNPAIRED else ""
        says = "includes 0: these seeds do not tell the two apart" if row.undecided else "excludes 0"
        return f"{text} (95 % interval{many} [{write(low)}, {write(high)}]{unpaired}), which {says}"


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
        direction: which values of the metric count as better; default: what the metric says, else higher, with a
            warning.

    Raises:
        SettingsError: an unknown metric or baseline, or no run has the metric yet.
    """
    warnings: list[str] = []
    metric = metric or default_metric(groups)
    groups = _with_metric(groups, metric, warnings)
    unit = groups[0].runs[0].unit(metric)
    every_task, tasks = _tasks(groups, warnings)
    common = {task: steps.compared(groups, task, metric, unit, warnings) for task in every_task}
    groups = [_told_of_resets(g, common, unit, warnings) for g in groups]
    unfinished = steps.unfinished(groups, warnings)
    scale = _scale(groups, metric, warnings) if len(every_task) > 1 else 1.0
    reference = _baseline(groups, baseline, warnings)
    direction = direction or better_of(metric)
    if not any(common[task][-1] for task in tasks):
        warnings.append(f"{metric} was measured at step 0 alone by all: what is compared is before any training")
    if direction is None and len(groups) > 1:
        warnings.append(
            f"{metric} does not say which values are better: higher counts as better; else better=lower, "
            "or plugins=[...] if it is a plug's"
        )
    comparison = Comparison(metric, unit, scale, common, tasks, direction or "higher", target, reference)
    rows = [_row(comparison, g, len(groups) - 1, any(id(r) in unfinished for r in g.runs)) for g in groups]
    _warn_of_few_seeds(rows, warnings)
    _warn_of_diverged(comparison, groups, warnings)
    _warn_of_versions(groups, warnings)
    _warn_of_plugs(groups, warnings)
    _warn_of_branches(groups, warnings)
    return replace(comparison, rows=rows, warnings=warnings)


def candidates_of(
    family: Sequence[Group], metric: str, direction: Direction, warnings: list[str]
) -> tuple[Comparison, list[float]]:
    """The groups of a choice, the best one first: their means, and the gaps of the others to it.

    A group is as good as its mean, over seeds and over tasks, at the last step that all groups have; a run that is not
    finite makes it the worst. Of equal groups the first counts as the better one.

    Args:
        family: the groups, with only the runs that decide.

    Returns:
        The comparison, and the mean of each of its rows, not scaled.

    Raises:
        SettingsError: no task has runs of all groups.
    """
    tasks = [task for task in family[0].tasks if all(task in g.tasks for g in family)]
    if not tasks:
        raise SettingsError(f"choose: no task has runs of all of {', '.join(g.label for g in family)}")
    unit = family[0].runs[0].unit(metric)
    common = {task: steps.compared(family, task, metric, unit, warnings) for task in tasks}
    comparison = Comparison(metric, unit, 1.0, common, tasks, direction)
    sign = comparison.sign
    finals = [[sign * of_task[:, -1] for of_task in _curves(comparison, g)] for g in family]
    scores = [float(np.mean([statistics.worst(scores).mean() for scores in final])) for final in finals]
    order = sorted(range(len(family)), key=lambda i: -scores[i])
    scale = _scale(family, metric, []) if len(tasks) > 1 else 1.0
    comparison = replace(comparison, scale=scale, baseline=family[order[0]])
    shown = [statistic for statistic in STATISTICS if statistic.of_candidates]
    rows = [_row(comparison, family[i], len(family) - 1, of=shown) for i in order]
    return replace(comparison, rows=rows), [sign * scores[i] for i in order]


def default_metric(groups: Sequence[Group]) -> str:
    """What is compared by default: the return, at the end of each task where tasks change; the test accuracy where
    every run has one."""
    if groups[0].runs[0].kind == "train":
        continual = all("task/return" in r.curves for g in groups for r in g.runs)
        return "task/return" if continual else "eval/return"
    tested = all("task/test_accuracy" in r.curves for g in groups for r in g.runs if "task/train_accuracy" in r.curves)
    return "task/test_accuracy" if tested else "task/train_accuracy"


def better_of(metric: str) -> Direction | None:
    """Which values of a metric, ``critic/dormant/trunk.0``, count as better; None if it does not say."""
    return better(MetricName.parse(metric).quantity)


def shown(estimate: Estimate, number: Callable[[float], str]) -> str:
    """``0.5 [0.2, 0.8]``."""
    between = f" [{', '.join(map(number, estimate.interval))}]" if estimate.interval else ""
    return number(estimate.value) + between


def counted(number: int, noun: str) -> str:
    """``1 seed``, ``2 seeds``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def mean(scores: list[Array], enough: int = FEW) -> Estimate:
    """The mean over tasks of the mean of the finite scores; NaN if a task has none.

    It has Student's interval where each task has `enough` finite scores.
    """
    finite = _finite(scores)
    fewest, n = min(map(len, finite)), sum(map(len, finite))
    if not fewest:
        return Estimate(math.nan, n=n)
    interval = statistics.student_interval(finite) if fewest >= enough else None
    return Estimate(float(statistics.mean(finite)), interval, n=n)


# ------------------------------------------------------------------------------------------------------------------


class Sample(NamedTuple):
    """What the statistics of a group are computed from.

    Args:
        curves: the runs' values on each task ``[runs, steps]``, in the scale of the table.
        compared: the number of groups that have a gap to the baseline.
    """

    c: Comparison
    group: Group
    curves: list[Array]
    compared: int

    @property
    def final(self) -> list[Array]:
        return [of_task[:, -1] for of_task in self.curves]

    @property
    def by_seed(self) -> list[dict[int, float]]:
        """The final scores on each task by seed."""
        runs = [self.group.tasks[task] for task in self.c.tasks]
        return [
            {run.seed: score for run, score in zip(of_task, scores.tolist(), strict=True)}
            for of_task, scores in zip(runs, self.final, strict=True)
        ]

    @property
    def of_baseline(self) -> "Sample":
        assert self.c.baseline is not None
        return self._replace(group=self.c.baseline, curves=_curves(self.c, self.c.baseline))

    @property
    def has_gap(self) -> bool:
        return self.c.baseline is not None and self.group is not self.c.baseline

    @property
    def changes(self) -> bool:
        """Whether tasks of reinforcement learning change, so that the first and the last are not alike."""
        return any(r.settings.get("env.sequence") or r.settings.get("env.changes") for r in self.group.runs)

    @property
    def third(self) -> int:
        """The number of tasks in a third of all, in whole rounds of a sequence; 0 where no tasks change."""
        rounds = max(len(r.settings.get("env.sequence") or [None]) for r in self.group.runs)
        several = self.c.unit == "task" and self.changes
        return min(values.shape[1] for values in self.curves) // (3 * rounds) * rounds if several else 0

    def of_tasks(self, metric: str) -> list[list[Array]]:
        """The values of another metric of tasks, for each task and run, up to the step of the comparison."""
        curves = [[(t, run.curves[metric]) for run in self.group.tasks[t]] for t in self.c.tasks]
        return [[curve.values[curve.steps <= self.c.at[t]] for t, curve in of_task] for of_task in curves]

    def has(self, metric: str) -> bool:
        """Whether tasks are compared, and all runs have this metric of them by then."""
        runs = [(t, run.curves.get(metric)) for t in self.c.tasks for run in self.group.tasks[t]]
        return self.c.unit == "task" and all(curve and curve.steps[0] <= self.c.at[t] for t, curve in runs)


def _standard_error(s: Sample) -> Estimate:
    finite = _finite(s.final)
    return Estimate(statistics.standard_error(finite), n=sum(map(len, finite)))


def _areas(s: Sample) -> Estimate:
    each = zip(s.c.tasks, s.curves, strict=True)
    return mean([np.array([statistics.area_under_curve(s.c.steps[t], v) for v in values]) for t, values in each])


def _last_minus_first_third(s: Sample) -> Estimate:
    return mean([of_task[:, -s.third :].mean(1) - of_task[:, : s.third].mean(1) for of_task in s.curves])


def _mean_over_tasks(s: Sample, metric: str) -> Estimate:
    return mean([np.array([values.mean() for values in of_task]) for of_task in s.of_tasks(metric)])


def _recovery(s: Sample) -> Estimate:
    """The env steps that tasks take, when they return, to be as good as they last were; infinity for never."""
    return _median([values for of_task in s.of_tasks("task/recovery_env_steps") for values in of_task])


def _reach(s: Sample) -> Estimate:
    """The steps that each run takes to reach the target; infinity for never."""
    assert s.c.target is not None
    target, found = s.c.sign * s.c.target, []
    for task, values in zip(s.c.tasks, s.curves, strict=True):
        signed = statistics.worst(s.c.sign * values)
        found.append(np.array([statistics.steps_to_reach(s.c.steps[task], of_run, target) for of_run in signed]))
    return _median(found)


def _median(numbers: list[Array]) -> Estimate:
    runs = np.concatenate(numbers)
    return Estimate(float(np.median(runs)), runs=runs)


def _improvement(s: Sample) -> Estimate:
    signed = [[s.c.sign * scores for scores in of_group] for of_group in (s.final, s.of_baseline.final)]
    return _of_ranks(statistics.probability_of_improvement, *signed)


def _gap(s: Sample, level: float = 0.95) -> Estimate:
    """The difference of means, by seed where each task has 2 or more that both groups have."""
    x, y = s.by_seed, s.of_baseline.by_seed
    pairs = _finite([statistics.paired_differences(a, b) for a, b in zip(x, y, strict=True)])
    number = min(map(len, pairs))
    if number > 1 or (number == 1 and all(len(of_task) == 1 for of_task in (*x, *y))):
        samples, note = [pairs], counted(number, "seed")
    else:
        samples, note = [_finite(s.final), _finite(s.of_baseline.final)], UNPAIRED
    fewest = min(len(of_task) for strata in samples for of_task in strata)
    first, *others = (float(statistics.mean(strata)) if fewest else math.nan for strata in samples)
    n = sum(map(len, samples[0]))
    if fewest < 2:
        return Estimate(first - sum(others), None, f"{note}: no interval", n)
    return Estimate(first - sum(others), statistics.student_interval(*samples, level=level), note, n)


def _gap_at_once(s: Sample) -> Estimate | None:
    gap = _gap(s, level=1 - 0.05 / max(1, s.compared))  # Bonferroni
    return gap if gap.interval else None


def _normalized_score(s: Sample) -> Estimate:
    of_mean = mean(s.final)
    score = of_mean.value if s.c.scale != 1 else float(statistics.normalized_score(np.array(of_mean.value)))
    return Estimate(score, n=of_mean.n)


def _number(c: Comparison, row: Row, estimate: Estimate) -> str:
    return c.number(estimate.value)


def _seeds(c: Comparison, row: Row, estimate: Estimate) -> str:
    return f"{row.seeds} ({row.diverged} not finite)" if row.diverged else str(row.seeds)


def _mean_and_error(c: Comparison, row: Row, estimate: Estimate) -> str:
    error = row["error"].value
    return c.number(estimate.value) + (f" ± {c.number(error)}" if math.isfinite(error) else "")


def _median_reached(c: Comparison, row: Row, estimate: Estimate) -> str:
    number = f"{estimate.value:.0f}" if math.isfinite(estimate.value) else "not reached"
    assert estimate.runs is not None
    return f"{number} ({np.isfinite(estimate.runs).sum()} of {len(estimate.runs)})"


class Statistic(NamedTuple):
    """A number of each group: a column of the table, a line of ``comparison.csv``, or both.

    Args:
        name: its key in `Row.estimates`.
        of: computes it; None where the runs are too few.
        csv: its name in ``comparison.csv``; empty: it is not there.
        heading: the heading of its column; empty: it has none.
        show: writes a cell of the column.
        when: whether it applies to a group.
        absent: the cell of a group to which it does not apply.
        brackets: whether the heading says so where cells have intervals.
        of_candidates: whether the candidates of a choice have it.
    """

    name: str
    of: Callable[[Sample], Estimate | None]
    csv: str | Callable[[Estimate | None], str] = ""
    heading: str | Callable[[Comparison], str] = ""
    show: Callable[[Comparison, Row, Estimate], str] = _number
    when: Callable[[Sample], bool] = lambda s: True
    absent: str = ""
    brackets: bool = False
    of_candidates: bool = False


STATISTICS = (
    Statistic("seeds", lambda s: Estimate(min(map(len, s.final))), heading="seeds", show=_seeds, of_candidates=True),
    Statistic("mean", lambda s: mean(s.final), "mean", "final", _mean_and_error, of_candidates=True),
    Statistic("error", _standard_error, "standard_error", of_candidates=True),
    Statistic(
        "iqm",
        lambda s: _of_ranks(statistics.iqm, s.final, better=s.c.better),
        "iqm",
        "IQM",
        lambda c, row, e: shown(e, c.number),
        brackets=True,
    ),
    Statistic("auc", _areas, "area_under_curve", lambda c: "mean over tasks" if c.unit == "task" else "AUC"),
    Statistic(
        "change",
        lambda s: mean([of_task[:, -1] - of_task[:, 0] for of_task in s.curves]),
        "last_minus_first_task",
        "last - first task",
        when=lambda s: s.c.unit == "task" and not s.changes and min(s.c.at[t] for t in s.c.tasks) > 1,
    ),
    Statistic(
        "late", _last_minus_first_third, "last_minus_first_third", "last - first third", when=lambda s: s.third > 0
    ),
    Statistic(
        "online",
        lambda s: _mean_over_tasks(s, "task/online_accuracy"),
        "online_accuracy",
        "online accuracy",
        lambda c, row, e: f"{e.value:.3f}",
        lambda s: s.has("task/online_accuracy"),
    ),
    # The return before anything of a task was learned. For a task that comes again: how far that return is below the
    # one at the end of the task's last time.
    Statistic(
        "first",
        lambda s: _mean_over_tasks(s, "task/first_return"),
        "first_return",
        "before learning",
        when=lambda s: s.has("task/first_return"),
    ),
    Statistic(
        "drop",
        lambda s: _mean_over_tasks(s, "task/drop"),
        "drop_of_a_task_that_returns",
        "drop of a task that returns",
        when=lambda s: s.has("task/drop"),
    ),
    Statistic("recovery", _recovery, "", "env steps to recover", _median_reached, when=lambda s: s.has("task/drop")),
    Statistic(
        "reach",
        _reach,
        "",
        lambda c: f"{c.unit}s to {c.target:g}",
        _median_reached,
        when=lambda s: s.c.target is not None,
    ),
    Statistic(
        "improvement",
        _improvement,
        "probability_of_improvement",
        "P(improvement)",
        lambda c, row, e: shown(e, "{:.2f}".format),
        lambda s: s.has_gap,
        brackets=True,
    ),
    Statistic(
        "gap",
        _gap,
        lambda gap: "gap_unpaired" if gap and gap.note.startswith(UNPAIRED) else "gap_paired",
        "gap [95 %]",
        lambda c, row, e: shown(e, c.fine(e.value, *(e.interval or ()))),
        lambda s: s.has_gap,
        absent="baseline",
        of_candidates=True,
    ),
    Statistic("pairs", _gap, "", "pairs", lambda c, row, e: e.note, lambda s: s.has_gap),
    Statistic("joint", _gap_at_once, "gap_all_at_once", when=lambda s: s.has_gap, of_candidates=True),
    Statistic(
        "normalized_score",
        _normalized_score,
        "normalized_score",
        when=lambda s: s.c.metric == "eval/return" and _is_control(s.group.runs[0]),
    ),
)


def _with_metric(groups: Sequence[Group], metric: str, warnings: list[str]) -> list[Group]:
    """The groups with only the runs that have the metric. A warning names each of the others."""
    warnings += [f"{r} has no {metric} yet and is left out" for g in groups for r in g.runs if metric not in r.curves]
    left = [g for g in (g.only(lambda run: metric in run.curves) for g in groups) if g.tasks]
    if not left:
        known = dict.fromkeys(name for g in groups for r in g.runs for name in r.curves)
        of_each = [repr(name) for name in known if MetricName.parse(name)[1:] == (metric, "")]
        hint = f"; did you mean {' or '.join(of_each)}?" if of_each else nearest(metric, known)
        raise SettingsError(f"no run has the metric {metric!r}{hint}")
    return left


def _told_of_resets(g: Group, common: Mapping[str, Steps], unit: str, warnings: list[str]) -> Group:
    """The group, with a label that says so if no intervention had come by the step of the comparison.

    Warnings say that, and where the last intervention had only just come.
    """
    for task, runs in g.tasks.items():
        step = int(common[task][-1])
        if any(steps.just_reset(r, unit, step) for r in runs):
            where = f" on {task}" if len(g.tasks) > 1 else ""
            warnings.append(
                f"{g.label}{where}: its last {g.settings['reset.name']} came right before {unit} {step}, so what is "
                "compared are networks that have learned next to nothing since"
            )
    without = [t for t, runs in g.tasks.items() if all(steps.never_reset(r, unit, int(common[t][-1])) for r in runs)]
    if not without:
        return g
    where = f" on {', '.join(without)}" if len(g.tasks) > 1 else ""
    warnings.append(
        f"{g.label}{where}: its first {g.settings['reset.name']} would come after {unit} {common[without[0]][-1]}, so "
        "what is compared are runs without it"
    )
    return replace(g, label=f"{g.label} (never reset)", never_reset=True) if len(without) == len(g.tasks) else g


def _tasks(groups: Sequence[Group], warnings: list[str]) -> tuple[list[str], list[str]]:
    """All tasks, and those that every group has."""
    every_task = list(dict.fromkeys(task for g in groups for task in g.tasks))
    tasks = [task for task in every_task if all(task in g.tasks for g in groups)]
    if not tasks:
        raise SettingsError("no task has runs of every group; compare tasks separately")
    for task in every_task:
        if task not in tasks:
            lacking = [g.label for g in groups if task not in g.tasks]
            warnings.append(f"{task} is in no statistic: there is no run of {', '.join(lacking)}")
    return every_task, tasks


def _scale(groups: Sequence[Group], metric: str, warnings: list[str]) -> float:
    """The factor of the values of several tasks."""
    if metric not in ("eval/return", "train/return"):
        return 1.0
    if all(_is_control(r) for g in groups for r in g.runs):
        return 1 / 1000  # the most that a return can be there
    warnings.append("returns of Gymnasium tasks have no common scale: statistics over several are of raw returns")
    return 1.0


def _is_control(run: Run) -> bool:
    """Whether the task of a run is one of DeepMind Control."""
    return ":" not in str(run.settings.get("env.name", ":"))


def _row(c: Comparison, g: Group, compared: int, unfinished: bool = False, of: Sequence[Statistic] = STATISTICS) -> Row:
    """The statistics of a group; `compared` groups have a gap to the baseline."""
    sample = Sample(c, g, _curves(c, g), compared)
    found = {statistic.name: statistic.of(sample) for statistic in of if statistic.when(sample)}
    return Row(g, unfinished, sample.final, {name: estimate for name, estimate in found.items() if estimate})


def _curves(c: Comparison, g: Group) -> list[Array]:
    """The values of the runs at the common steps of each task, ``[runs, steps]``, in the scale of the table."""
    return [np.array([steps.at(r.curves[c.metric], c.steps[t]) for r in g.tasks[t]]) * c.scale for t in c.tasks]


def _baseline(groups: Sequence[Group], label: str | None, warnings: list[str]) -> Group | None:
    if label is not None:
        named = {g.label: g for g in groups}
        beginning = [g for g in groups if g.label.startswith(f"{label} ")]
        if label not in named and len(beginning) == 1:  # without what tells it from groups that were not chosen
            return beginning[0]
        if label not in named:
            raise SettingsError(f"no group is called {label!r}{nearest(label, named)}")
        return named[label]
    resets = [g for g in groups if g.settings.get("reset.name") == "periodic" and not g.never_reset]
    periodic = [g for g in resets if g.settings.get(ONCE) is None]
    plain = [g for g in groups if g.is_plain]
    for alike in (periodic, plain):
        # A branch without a change is its run once more.
        candidates = [g for g in alike if BRANCHED not in g.settings] or alike
        if len(candidates) == 1:
            return candidates[0]
    if len(groups) > 1:
        why = f"{len(periodic)} groups have reset=periodic" if periodic else "no group has reset=periodic"
        why += f", {len(plain)} have no regularizer and no reset" if plain else ", and no group has no method"
        warnings.append(f"no baseline, so no gaps: {why}; name one with baseline=LABEL")
    return None


def _finite(scores: list[Array]) -> list[Array]:
    return [s[np.isfinite(s)] for s in scores]


def _of_ranks(statistic: Callable[..., Array], *samples: list[Array], better: Direction = "higher") -> Estimate:
    """A statistic of ranks. It has a bootstrap interval if runs are enough, unless all resamples are the same."""
    ranked = [[statistics.worst(scores, better) for scores in strata] for strata in samples]
    interval = None
    if min(len(scores) for strata in ranked for scores in strata) >= FEW:
        low, high = statistics.bootstrap_interval(statistic, *ranked)
        interval = (low, high) if low < high else None
    return Estimate(float(statistic(*ranked)), interval, n=sum(map(len, ranked[0])))


def _largest(*values: float) -> float:
    return max(map(abs, filter(math.isfinite, values)), default=0.0)


def _warn_of_few_seeds(rows: Sequence[Row], warnings: list[str]) -> None:
    single = [row.group.label for row in rows if row.seeds == 1]
    few = [row.group.label for row in rows if 1 < row.seeds < FEW]
    if single:
        warnings.append(f"1 seed: no interval for {_listed(single)}")
    if few:
        gaps = any((gap := row.get("gap")) and gap.interval for row in rows)
        what = "only gaps have an interval, and a wide one" if gaps else "there is no interval"
        warnings.append(f"fewer than {FEW} seeds, so {what}: {_listed(few)}")


def _warn_of_diverged(c: Comparison, groups: Sequence[Group], warnings: list[str]) -> None:
    for g in groups:
        for task in c.tasks:
            curves = {r.seed: steps.at(r.curves[c.metric], c.steps[task]) for r in g.tasks[task]}
            ended = [seed for seed, values in curves.items() if not math.isfinite(values[-1])]
            passing = [seed for seed, values in curves.items() if not np.isfinite(values).all() and seed not in ended]
            on = f" on {task}" if len(c.tasks) > 1 else ""
            if ended:
                warnings.append(
                    f"{g.label}{on}: {c.metric} is not finite at {c.unit} {c.at[task]} in {len(ended)} of "
                    f"{counted(len(curves), 'run')} (seed {', '.join(map(str, ended))}): the worst in ranks, left out "
                    "of means"
                )
            if passing:
                warnings.append(
                    f"{g.label}{on}: {c.metric} is not finite on the way (seed {', '.join(map(str, passing))}): left "
                    "out of the mean of areas"
                )


def _warn_of_versions(groups: Sequence[Group], warnings: list[str]) -> None:
    runs = [r for g in groups for r in g.runs]
    for name in ("commit", "rl_plasticity"):
        versions = sorted({str(start[name]) for r in runs for start in r.starts if start.get(name)})
        if len(versions) > 1:
            listed = _listed([short_version(v) for v in versions])
            warnings.append(f"runs of different {'versions' if name == 'rl_plasticity' else 'commits'}: {listed}")


def _warn_of_plugs(groups: Sequence[Group], warnings: list[str]) -> None:
    """Warn of plugs whose code was not the same in all runs, which are then not pooled."""
    apart: dict[str, list[str]] = {}
    for g in groups:
        for name in (n for n in g.settings if n.startswith(PLUGS)):
            apart.setdefault(name.removeprefix(PLUGS), []).append(g.label)
    for module, named in apart.items():
        warnings.append(f"the code of the plug {module} changed between runs, which are not pooled: {_listed(named)}")
    for g in groups:
        unused = {(m, digest) for r in g.runs for m, digest in r.plugs.items() if m not in r.plugs_used}
        for module, number in Counter(module for module, _ in unused).items():
            if number > 1:
                warnings.append(f"{g.label}: the plug {module}, of which it uses nothing, changed: its runs are pooled")
        for run in g.runs:
            for module, digests in run.plugs.items():
                if "+" in digests:
                    warnings.append(f"the code of the plug {module} changed while {run} was trained")


def _warn_of_branches(groups: Sequence[Group], warnings: list[str]) -> None:
    """Warn of runs that branched at different steps, or with one seed from different runs."""
    runs = [run for g in groups for run in g.runs if run.branched]
    of_seeds = {(run.settings.get("env.name"), run.seed): run.branched for run in runs}
    differ = any(of_seeds[run.settings.get("env.name"), run.seed] != run.branched for run in runs)
    if differ or len({run.settings["at"] for run in runs}) > 1:
        points = "; ".join(f"{_listed(labels)} from {point}" for point, labels in _branch_points(groups).items())
        warnings.append(f"runs branched at different points: {points}")


def _branch_points(groups: Iterable[Group]) -> dict[str, list[str]]:
    """The labels of the groups by the points at which their runs branched."""
    points: dict[str, dict[str, None]] = {}
    for g in groups:
        for run in g.runs:
            if run.branched:
                points.setdefault(run.branched, {})[g.label] = None
    return {point: [*labels] for point, labels in points.items()}


def short_version(version: str) -> str:
    """A version, or ten digits of a commit, with the + that marks a changed checkout."""
    return version.removesuffix("+")[:10] + "+" * version.endswith("+")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 6 else f"{', '.join(names[:5])} and {len(names) - 5} more"
