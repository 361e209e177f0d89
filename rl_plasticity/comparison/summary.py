"""The statistics of a comparison: what the table, the figures and the report all show."""

import csv
import io
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from rl_plasticity.comparison import steps
from rl_plasticity.comparison.groups import PLUGS, Group
from rl_plasticity.comparison.loading import Run
from rl_plasticity.errors import SettingsError, nearest
from rl_plasticity.metrics import Direction, statistics
from rl_plasticity.metrics.measured import better
from rl_plasticity.metrics.statistics import Array, Interval, Steps
from rl_plasticity.runs.names import Curve, MetricName

FEW = 5  # below so many seeds the points stand for themselves; only gaps have an interval, Student's
FEW_HINT = f"With fewer than {FEW} seeds that is a hint at most."


class Estimate(NamedTuple):
    """A number, its 95 % interval where there are enough runs for one, and how many runs or pairs it is of.

    `runs` are the numbers of the single runs, where the table shows how many of them are finite.
    """

    value: float
    interval: Interval | None = None
    note: str = ""
    n: int | None = None
    runs: Array | None = None


@dataclass(frozen=True)
class Row:
    """The statistics of one group. Lists are over tasks; scores are by rising seed.

    Args:
        diverged: how many of its runs have a final score that is not finite.
        final: at the last common step.
        estimates: by the names in `STATISTICS`; those that do not apply are left out.
    """

    group: Group
    unfinished: bool
    seeds: int
    diverged: int
    final: list[Array]
    estimates: Mapping[str, Estimate]

    def __getitem__(self, name: str) -> Estimate:
        return self.estimates[name]

    def get(self, name: str) -> Estimate | None:
        return self.estimates.get(name)

    @property
    def label(self) -> str:
        """The group's, with * if runs of it are unfinished."""
        return f"{self.group.label}*" if self.unfinished else self.group.label


@dataclass(frozen=True)
class Comparison:
    """All that is shown.

    Args:
        unit: of the metric's steps: env step, update or task.
        scale: what values are multiplied by: 1/1000 for several DeepMind Control tasks, else 1.
        steps: of each task those that every run has; runs are compared at the last.
        tasks: those that every group has; the others are in no statistic.
        chosen: what was chosen from what, in a sentence.
        candidates: of each choice the groups that it was made from, see `candidates_of`.
        better: which values of the metric count as better.
    """

    metric: str
    unit: str
    scale: float
    target: float | None
    steps: Mapping[str, Steps]
    tasks: Sequence[str]
    baseline: Group | None
    rows: Sequence[Row]
    warnings: Sequence[str]
    chosen: str = ""
    better: Direction = "higher"
    candidates: Sequence["Comparison"] = ()

    @property
    def sign(self) -> int:
        """What values are multiplied by so that higher is better."""
        return 1 if self.better == "higher" else -1

    @property
    def at(self) -> dict[str, int]:
        """The step of each task that runs are compared at."""
        return {task: int(of_task[-1]) for task, of_task in self.steps.items()}

    def number(self, value: float) -> str:
        """Four significant digits of the largest score, and as many decimals for all."""
        largest = max((abs(v) for row in self.rows for s in row.final for v in s if math.isfinite(v)), default=0)
        decimals = 3 if largest == 0 else max(0, 4 - math.ceil(math.log10(largest)))
        return f"{value:.{min(3, decimals) if largest >= 0.1 else decimals}f}"

    @staticmethod
    def fine(*values: float) -> Callable[[float], str]:
        """How a gap and its interval are written: three digits of the largest of them, as many decimals for all."""
        largest = max(map(abs, filter(math.isfinite, values)), default=0)
        decimals = 3 - math.ceil(math.log10(largest)) if largest else 1
        if decimals > 6:
            return "{:.2e}".format
        return lambda value: f"{value:.{max(0, decimals)}f}"

    def unit_of(self, metric: str) -> str:
        """What the steps of any metric of these runs count."""
        return self.rows[0].group.runs[0].unit(metric)

    def curve(self, run: Run, metric: str) -> Curve:
        """A run's curve; of the metric compared, in the table's scale."""
        curve = run.curves[metric]
        return Curve(curve.steps, curve.values * self.scale) if metric == self.metric else curve

    @property
    def where(self) -> str:
        """``env step 1000000``, or that it differs from task to task."""
        steps = sorted({self.at[task] for task in self.tasks})
        return f"{self.unit} {steps[0]}" if len(steps) == 1 else f"the last common {self.unit} of each task"

    @property
    def seeds(self) -> str:
        """How many each group has: ``5 seeds`` or ``1 to 5 seeds``."""
        numbers = sorted({row.seeds for row in self.rows})
        return counted(numbers[0], "seed") if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]} seeds"

    def table(self) -> list[list[str]]:
        """The statistics as text: a header, then a line for each group. Columns without numbers are left out."""
        rows = self.rows
        columns = {
            "group": [row.label for row in rows],
            "seeds": [f"{row.seeds} ({row.diverged} not finite)" if row.diverged else str(row.seeds) for row in rows],
        }
        for statistic in STATISTICS:
            found = [row.get(statistic.name) for row in rows]
            if statistic.heading and any(found):
                heading = statistic.heading if isinstance(statistic.heading, str) else statistic.heading(self)
                if statistic.brackets and any(estimate and estimate.interval for estimate in found):
                    heading += " [95 %]"
                columns[heading] = [
                    statistic.show(self, row, estimate) if estimate else statistic.absent
                    for row, estimate in zip(rows, found, strict=True)
                ]
        return [list(columns), *map(list, zip(*columns.values(), strict=True))]

    @property
    def caption(self) -> str:
        """What the columns are, and what their intervals."""
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
            text += f"P(improvement) and gap (difference of means) are over the baseline, {self.baseline.label}; "
            text += (
                "pairs: the seeds that both have, whose differences the gap is of. Its interval is Student's t, for "
            )
            text += "each group by itself. "
        return text + ("* has unfinished runs." if any(row.unfinished for row in self.rows) else "")

    def to_latex(self) -> str:
        """The table as a LaTeX ``table`` with its caption; ``\\usepackage{booktabs}`` is all it needs."""
        escaped = str.maketrans({c: f"\\{c}" for c in "&%$#_{}"} | {"\\": r"\textbackslash{}", "±": r"$\pm$"})
        escaped |= str.maketrans({"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"})
        minus = re.compile(r"(?<![\w.])-(?=\d)")
        head, *lines = [
            " & ".join(minus.sub("$-$", cell.translate(escaped)) for cell in line) + r" \\" for line in self.table()
        ]
        columns = "l" + "r" * (len(self.table()[0]) - 1)
        caption = self.caption.strip().translate(escaped)
        begin = [r"\begin{table}", r"\centering", rf"\caption{{{caption}}}", rf"\begin{{tabular}}{{{columns}}}"]
        rows = [r"\toprule", head, r"\midrule", *lines, r"\bottomrule"]
        return "\n".join([*begin, *rows, r"\end{tabular}", r"\end{table}"]) + "\n"

    def to_markdown(self) -> str:
        """The table in Markdown, with its caption below."""
        head, *lines = [[cell.replace("|", r"\|") for cell in line] for line in self.table()]
        rule = ["---", *["---:"] * (len(head) - 1)]
        rows = "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *lines))
        return f"{rows}\n\n{self.caption.strip()}\n"

    def verdict(self) -> str:
        """What was compared and what the numbers say, in a few sentences. They name no causes."""
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
        text += f": {shown(measured['iqm'], self.number)}"
        if self.baseline is None:
            return text + "."
        gap, joint = measured["gap"], measured.get("joint")
        if not math.isfinite(gap.value):
            return f"{text}. No run of one of the two is finite, so there is no gap to name."
        write = self.fine(*((gap.value, *joint.interval) if joint and joint.interval else (gap.value,)))
        how = "above" if gap.value >= 0 else "below"
        if gap.note.startswith("unpaired"):
            text += f". The mean of {measured.label} is {write(abs(gap.value))} {how} that of {self.baseline.label}"
        else:
            text += f". Seed by seed ({gap.note.partition(':')[0]} that both have) {measured.label} is on average "
            text += f"{write(abs(gap.value))} {how} {self.baseline.label}"
        if joint is None or joint.interval is None:
            return f"{text}; with 1 seed there is no interval, so this may be chance.{self._diverged(measured)}"
        low, high = joint.interval
        many = f" that holds for all {len(others)} groups at once" if len(others) > 1 else ""
        unpaired = ", unpaired" if gap.note == "unpaired" else ""
        text += f" (95 % interval{many} [{write(low)}, {write(high)}]{unpaired}), which "
        if low <= 0 <= high:
            text += "includes 0: these seeds do not tell the two apart."
        else:
            text += "excludes 0." + (f" {FEW_HINT}" if measured.seeds < FEW else "")
        return text + self._diverged(measured)

    def _diverged(self, measured: Row) -> str:
        """Which runs are not in a gap because they are not finite, in a sentence."""
        rows = [row for row in self.rows if row is measured or row.group is self.baseline]
        told = [f"{row.diverged} of {sum(map(len, row.final))} of {row.label}" for row in rows if row.diverged]
        return f" Runs that are not finite are not in that: {', '.join(told)}." if told else ""

    def to_csv(self) -> str:
        """All numbers, tidy: ``group,task,seed,metric,step,statistic,value,low,high,n``.

        Rows with a seed are of one run, those without of the group; task is `all` for statistics over several.
        """
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["group", "task", "seed", "metric", "step", "statistic", "value", "low", "high", "n"])
        everywhere = self.tasks[0] if len(self.tasks) == 1 else "all"
        step = self.at[self.tasks[0]] if len({self.at[t] for t in self.tasks}) == 1 else ""
        for row in self.rows:
            label, reach = row.group.label, row.get("reach")
            reached = iter(() if reach is None or reach.runs is None else reach.runs)
            for task, scores in zip(self.tasks, row.final, strict=True):
                for run, value in zip(row.group.tasks[task], scores, strict=True):
                    of_run = [label, task, run.seed, self.metric]
                    writer.writerow([*of_run, self.at[task], "final", float(value), "", "", 1])
                    for steps_of_run in itertools.islice(reached, 1):
                        writer.writerow([*of_run, self.at[task], "steps_to_reach", float(steps_of_run), "", "", 1])
            for statistic in filter(lambda statistic: statistic.csv, STATISTICS):
                if (estimate := row.get(statistic.name)) is not None:
                    low, high = estimate.interval or ("", "")
                    unpaired = statistic.name == "gap" and estimate.note.startswith("unpaired")
                    name = "gap_unpaired" if unpaired else statistic.csv
                    counted = [estimate.value, low, high, "" if estimate.n is None else estimate.n]
                    writer.writerow([label, everywhere, "", self.metric, step, name, *counted])
        for choice in self.candidates:
            of_choice = [choice.tasks[0] if len(choice.tasks) == 1 else "all", "", choice.metric]
            at = choice.where.rpartition(" ")[2] if len({*choice.at.values()}) == 1 else ""
            for row in choice.rows:
                for name, estimate in ("mean", row["mean"]), ("gap", row.get("gap")):
                    if estimate is not None:
                        numbers = [estimate.value, *(estimate.interval or ("", "")), estimate.n]
                        writer.writerow([row.group.label, *of_choice, at, f"candidate_{name}", *numbers])
        return out.getvalue()


def summarize(
    groups: Sequence[Group],
    metric: str | None = None,
    target: float | None = None,
    baseline: str | None = None,
    direction: Direction | None = None,
) -> Comparison:
    """The statistics of all groups.

    Args:
        metric: of ``metrics.csv``; default: eval/return (task/return where tasks change), or task/test_accuracy
            (task/train_accuracy where there is no test set).
        target: a value, for the steps until it is reached.
        baseline: a group's label; default: the one with reset=periodic, else the one with reg=none and reset=none.
        direction: which values of the metric count as better; default: as the metric says, and higher, with a
            warning, where it says nothing.

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
    known: Direction = direction or "higher"
    comparison = Comparison(metric, unit, scale, target, common, tasks, reference, (), (), better=known)
    rows = [_row(comparison, g, any(id(r) in unfinished for r in g.runs), len(groups) - 1) for g in groups]
    _warn_of_few_seeds(rows, warnings)
    _warn_of_diverged(comparison, groups, warnings)
    _warn_of_versions(groups, warnings)
    _warn_of_plugs(groups, warnings)
    return replace(comparison, rows=rows, warnings=warnings)


def candidates_of(family: Sequence[Group], metric: str, unit: str, direction: Direction) -> Comparison:
    """The groups of a choice, the chosen one first: their means, and the gaps of the others to it.

    Args:
        family: only the runs that decided, in the order of the choice.
    """
    tasks = [task for task in family[0].tasks if all(task in g.tasks for g in family)]
    common = {task: steps.compared(family, task, metric, unit, []) for task in tasks}
    scale = _scale(family, metric, []) if len(tasks) > 1 else 1.0
    comparison = Comparison(metric, unit, scale, None, common, tasks, family[0], (), (), better=direction)
    shown = [statistic for statistic in STATISTICS if statistic.name in ("mean", "error", "gap", "joint")]
    return replace(comparison, rows=[_row(comparison, g, False, len(family) - 1, shown) for g in family])


def undecided(c: Comparison) -> str:
    """A clause that says that the seeds do not decide a choice, the first of the rows against the next; else empty."""
    gap, joint = c.rows[1]["gap"], c.rows[1].get("joint")
    if not math.isfinite(gap.value):
        return ""
    if joint is None or joint.interval is None:
        return "; with 1 seed there is no interval, so this may be chance"
    low, high = joint.interval
    if not low <= 0 <= high:
        return ""
    write = c.fine(gap.value, low, high)
    many = f" that holds for all {len(c.rows) - 1} at once" if len(c.rows) > 2 else ""
    return (
        f"; the next is {write(abs(gap.value))} {'above' if gap.value > 0 else 'below'} it (95 % interval{many} "
        f"[{write(low)}, {write(high)}]), which includes 0: these seeds do not tell the two apart"
    )


def default_metric(groups: Sequence[Group]) -> str:
    """What is compared unless told otherwise: the return, at the end of each task where tasks change; the test accuracy
    where every run has one."""
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
    """Of the finite scores of each task, with Student's interval if each has `enough`; NaN where a task has none."""
    finite = _finite(scores)
    fewest, n = min(map(len, finite)), sum(map(len, finite))
    if not fewest:
        return Estimate(math.nan, n=n)
    interval = statistics.student_interval(finite) if fewest >= enough else None
    return Estimate(float(statistics.mean(finite)), interval, n=n)


# ------------------------------------------------------------------------------------------------------------------


class Sample(NamedTuple):
    """What the statistics of a group are of.

    Args:
        curves: of each task ``[runs, steps]``, in the scale of the table.
        compared: how many groups have a gap to the baseline.
    """

    c: Comparison
    group: Group
    curves: list[Array]
    compared: int

    @property
    def final(self) -> list[Array]:
        return [of_task[:, -1] for of_task in self.curves]

    def against(self, baseline: Group) -> list[Array]:
        """The baseline's final scores."""
        return [of_task[:, -1] for of_task in _curves(self.c, baseline)]

    @property
    def changes(self) -> bool:
        """Whether tasks of reinforcement learning change, so that the first and the last are not alike."""
        return any(r.settings.get("env.sequence") or r.settings.get("env.changes") for r in self.group.runs)


def _standard_error(s: Sample) -> Estimate:
    finite = _finite(s.final)
    return Estimate(statistics.standard_error(finite), n=sum(map(len, finite)))


def _iqm(s: Sample) -> Estimate:
    return _of_ranks(statistics.iqm, s.final, better=s.c.better)


def _areas(s: Sample) -> Estimate:
    each = zip(s.c.tasks, s.curves, strict=True)
    return mean([np.array([statistics.area_under_curve(s.c.steps[t], v) for v in values]) for t, values in each])


def _last_minus_first_task(s: Sample) -> Estimate | None:
    if s.c.unit != "task" or s.changes or min(s.c.at[t] for t in s.c.tasks) == 1:
        return None
    return mean([of_task[:, -1] - of_task[:, 0] for of_task in s.curves])


def _last_minus_first_third(s: Sample) -> Estimate | None:
    """Of tasks that change: the means over thirds of the tasks, in whole rounds of a sequence."""
    rounds = max(len(r.settings.get("env.sequence") or [None]) for r in s.group.runs)
    third = min(values.shape[1] for values in s.curves) // (3 * rounds) * rounds
    if s.c.unit != "task" or not s.changes or not third:
        return None
    return mean([of_task[:, -third:].mean(1) - of_task[:, :third].mean(1) for of_task in s.curves])


def _over_tasks(metric: str) -> Callable[[Sample], Estimate | None]:
    """The mean over tasks of a metric that all runs have by then."""

    def of(s: Sample) -> Estimate | None:
        values = [[_until(r, metric, s.c.at[t]) for r in s.group.tasks[t]] for t in s.c.tasks]
        if s.c.unit != "task" or not all(map(len, itertools.chain(*values))):
            return None
        return mean([np.array([of_run.mean() for of_run in of_task]) for of_task in values])

    return of


def _recovery(s: Sample) -> Estimate | None:
    """Of the tasks that return the env steps until the end of their last time is reached again; infinity: never."""
    if _over_tasks("task/drop")(s) is None:
        return None
    values = [_until(r, "task/recovery_env_steps", s.c.at[t]) for t in s.c.tasks for r in s.group.tasks[t]]
    return Estimate(math.nan, runs=np.concatenate(values))


def _reach(s: Sample) -> Estimate | None:
    """The steps at which each run reached the target, infinity for never."""
    if s.c.target is None:
        return None
    runs = [(t, values) for t, of_task in zip(s.c.tasks, s.curves, strict=True) for values in of_task]
    target, signed = s.c.sign * s.c.target, ((t, statistics.worst(s.c.sign * values)) for t, values in runs)
    return Estimate(
        math.nan, runs=np.array([statistics.steps_to_reach(s.c.steps[t], values, target) for t, values in signed])
    )


def _improvement(s: Sample) -> Estimate | None:
    if s.c.baseline is None or s.group is s.c.baseline:
        return None
    both = s.final, s.against(s.c.baseline)
    signed = [[s.c.sign * scores for scores in of_group] for of_group in both]
    return _of_ranks(statistics.probability_of_improvement, *signed)


def _gap(s: Sample, level: float = 0.95) -> Estimate | None:
    """The difference of means, by seed where each task has 2 or more that both groups have."""
    if s.c.baseline is None or s.group is s.c.baseline:
        return None
    x, y = s.final, s.against(s.c.baseline)
    scores = [
        [
            {run.seed: float(v) for run, v in zip(of.tasks[t], values, strict=True) if math.isfinite(v)}
            for t, values in zip(s.c.tasks, z, strict=True)
        ]
        for of, z in ((s.group, x), (s.c.baseline, y))
    ]
    pairs = [statistics.paired_differences(a, b) for a, b in zip(*scores, strict=True)]
    number = min(map(len, pairs))
    samples, note = [_finite(x), _finite(y)], "unpaired"
    if number > 1 or (number == 1 and all(len(of_task) == 1 for of_task in (*x, *y))):
        samples, note = [pairs], counted(number, "seed")
    fewest = min(len(of_task) for strata in samples for of_task in strata)
    value = math.nan
    if fewest:
        value = float(statistics.mean(samples[0])) - sum(float(statistics.mean(strata)) for strata in samples[1:])
    n = sum(map(len, samples[0]))
    if fewest < 2:
        return Estimate(value, None, f"{note}: no interval", n)
    return Estimate(value, statistics.student_interval(*samples, level=level), note, n)


def _gap_at_once(s: Sample) -> Estimate | None:
    gap = _gap(s, level=1 - 0.05 / max(1, s.compared))  # Bonferroni
    return gap if gap and gap.interval else None


def _normalized_score(s: Sample) -> Estimate | None:
    if s.c.metric != "eval/return" or not _is_control(s.group.runs[0]):
        return None
    of_mean = mean(s.final)
    score = of_mean.value if s.c.scale != 1 else float(statistics.normalized_score(np.array(of_mean.value)))
    return Estimate(score, n=of_mean.n)


def _number(c: Comparison, row: Row, estimate: Estimate) -> str:
    return c.number(estimate.value)


def _with_interval(c: Comparison, row: Row, estimate: Estimate) -> str:
    return shown(estimate, c.number)


def _mean_and_error(c: Comparison, row: Row, estimate: Estimate) -> str:
    error = row["error"].value
    return c.number(estimate.value) + (f" ± {c.number(error)}" if math.isfinite(error) else "")


def _median_reached(c: Comparison, row: Row, estimate: Estimate) -> str:
    assert estimate.runs is not None
    median = float(np.median(estimate.runs))
    number = f"{median:.0f}" if math.isfinite(median) else "not reached"
    return f"{number} ({np.isfinite(estimate.runs).sum()} of {len(estimate.runs)})"


class Statistic(NamedTuple):
    """A number of each group: a column of the table, a row of ``comparison.csv``.

    Args:
        name: in `Row.estimates`.
        csv: in ``comparison.csv``; empty: it is not there.
        of: computes it; None where it does not apply.
        heading: of its column; empty: it is in ``comparison.csv`` alone.
        show: the text of its cell.
        absent: the text where it does not apply.
        brackets: whether the heading says so where there are intervals.
    """

    name: str
    csv: str
    of: Callable[[Sample], Estimate | None]
    heading: str | Callable[[Comparison], str] = ""
    show: Callable[[Comparison, Row, Estimate], str] = _number
    absent: str = ""
    brackets: bool = False


STATISTICS = (
    Statistic("mean", "mean", lambda s: mean(s.final), "final", _mean_and_error),
    Statistic("error", "standard_error", _standard_error),
    Statistic("iqm", "iqm", _iqm, "IQM", _with_interval, brackets=True),
    Statistic("auc", "area_under_curve", _areas, lambda c: "mean over tasks" if c.unit == "task" else "AUC"),
    Statistic("change", "last_minus_first_task", _last_minus_first_task, "last - first task"),
    Statistic("late", "last_minus_first_third", _last_minus_first_third, "last - first third"),
    Statistic(
        "online",
        "online_accuracy",
        _over_tasks("task/online_accuracy"),
        "online accuracy",
        lambda c, row, e: f"{e.value:.3f}",
    ),
    # Of tasks that change: the return before anything of a task was learned; of those that came before, how far that
    # is below the end of their last time.
    Statistic("first", "first_return", _over_tasks("task/first_return"), "before learning"),
    Statistic("drop", "drop_of_a_task_that_returns", _over_tasks("task/drop"), "drop of a task that returns"),
    Statistic("recovery", "", _recovery, "env steps to recover", _median_reached),
    Statistic("reach", "", _reach, lambda c: f"{c.unit}s to {c.target:g}", _median_reached),
    Statistic(
        "improvement",
        "probability_of_improvement",
        _improvement,
        "P(improvement)",
        lambda c, row, e: shown(e, "{:.2f}".format),
        brackets=True,
    ),
    Statistic(
        "gap",
        "gap_paired",
        _gap,
        "gap [95 %]",
        lambda c, row, e: shown(e, c.fine(e.value, *(e.interval or ()))),
        "baseline",
    ),
    Statistic("pairs", "", _gap, "pairs", lambda c, row, e: e.note),
    Statistic("joint", "gap_all_at_once", _gap_at_once),
    Statistic("normalized_score", "normalized_score", _normalized_score),
)


def _with_metric(groups: Sequence[Group], metric: str, warnings: list[str]) -> list[Group]:
    """The groups with only the runs that have the metric; the others are warned of."""
    left = []
    for g in groups:
        tasks: dict[str, list[Run]] = {}
        for task, runs in g.tasks.items():
            having = [r for r in runs if metric in r.curves]
            tasks |= {task: having} if having else {}
            warnings += [f"{r} has no {metric} yet and is left out" for r in runs if metric not in r.curves]
        if tasks:
            left.append(replace(g, tasks=tasks))
    if not left:
        known = dict.fromkeys(name for g in groups for r in g.runs for name in r.curves)
        of_each = [repr(name) for name in known if MetricName.parse(name)[1:] == (metric, "")]
        hint = f"; did you mean {' or '.join(of_each)}?" if of_each else nearest(metric, known)
        raise SettingsError(f"no run has the metric {metric!r}{hint}")
    return left


def _told_of_resets(g: Group, common: Mapping[str, Steps], unit: str, warnings: list[str]) -> Group:
    """The group with the word in its label that no intervention had come by the step that is compared.

    A warning says where the last one had just come.
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
    """Every task, and those that every group has."""
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
    """What values of several tasks are multiplied by."""
    if metric not in ("eval/return", "train/return"):
        return 1.0
    if all(_is_control(r) for g in groups for r in g.runs):
        return 1 / 1000  # the most that a return can be there
    warnings.append("returns of Gymnasium tasks have no common scale: statistics over several are of raw returns")
    return 1.0


def _is_control(run: Run) -> bool:
    """Whether its task is one of DeepMind Control."""
    return ":" not in str(run.settings.get("env.name", ":"))


def _row(c: Comparison, g: Group, unfinished: bool, compared: int, of: Sequence[Statistic] = STATISTICS) -> Row:
    """The statistics of a group; `compared` groups have a gap to the baseline."""
    sample = Sample(c, g, _curves(c, g), compared)
    found = {statistic.name: statistic.of(sample) for statistic in of}
    return Row(
        group=g,
        unfinished=unfinished,
        seeds=min(len(s) for s in sample.final),
        diverged=int(sum((~np.isfinite(s)).sum() for s in sample.final)),
        final=sample.final,
        estimates={name: estimate for name, estimate in found.items() if estimate is not None},
    )


def _curves(c: Comparison, g: Group) -> list[Array]:
    """Of each task the runs' values at the common steps, ``[runs, steps]``, in the scale of the table."""
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
    periodic = [g for g in groups if g.settings.get("reset.name") == "periodic" and not g.never_reset]
    plain = [g for g in groups if g.settings.get("reset.name") == g.settings.get("reg.name") == "none"]
    for candidates in (periodic, plain):
        if len(candidates) == 1:
            return candidates[0]
    if len(groups) > 1:
        why = f"{len(periodic)} groups have reset=periodic" if periodic else "none has reset=periodic"
        why += f", {len(plain)} have no regularizer and no reset" if plain else ", none has reg=none reset=none"
        warnings.append(f"no baseline, so no gaps: {why}; name one with baseline=LABEL")
    return None


def _finite(scores: list[Array]) -> list[Array]:
    return [s[np.isfinite(s)] for s in scores]


def _of_ranks(statistic: Callable[..., Array], *samples: list[Array], better: Direction = "higher") -> Estimate:
    """With the bootstrap's interval where there are enough runs; none where every resample is the same."""
    ranked = [[statistics.worst(scores, better) for scores in strata] for strata in samples]
    interval = None
    if min(len(scores) for strata in ranked for scores in strata) >= FEW:
        low, high = statistics.bootstrap_interval(statistic, *ranked)
        interval = (low, high) if low < high else None
    return Estimate(float(statistic(*ranked)), interval, n=sum(map(len, ranked[0])))


def _until(run: Run, metric: str, task: int) -> Array:
    """The values of a metric of tasks, up to this one; none where it was not measured."""
    curve = run.curves.get(metric)
    return curve.values[curve.steps <= task] if curve else np.zeros(0)


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
    """Of plugs whose code was not the same in all runs: these are not pooled."""
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


def short_version(version: str) -> str:
    """A version, or ten digits of a commit, with the + of a checkout that was changed."""
    return version.removesuffix("+")[:10] + "+" * version.endswith("+")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 6 else f"{', '.join(names[:5])} and {len(names) - 5} more"
