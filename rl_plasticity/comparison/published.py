"""Learning curves as SimBa, SimbaV2, XQC and FlashSAC publish theirs: read beside a comparison, and written of ours.

The files have a line for each evaluation of each run: ``exp_name,env_name,seed,metric,env_step,value``, with the metric
``avg_return``. Their env steps are steps of the simulator: one of ours is `action_repeat` of them.
"""

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rl_plasticity.comparison import steps
from rl_plasticity.comparison.groups import Group
from rl_plasticity.comparison.loading import LARGEST, Run
from rl_plasticity.errors import SettingsError
from rl_plasticity.metrics import statistics
from rl_plasticity.metrics.statistics import Interval
from rl_plasticity.paths import expanded
from rl_plasticity.runs.names import Curve

COLUMNS = ("exp_name", "env_name", "seed", "metric", "env_step", "value")
METRIC, OURS = "avg_return", "eval/return"


@dataclass(frozen=True)
class Published:
    """One experiment of a file on one task: a curve for each seed, whose steps are in our env steps."""

    name: str
    task: str
    curves: Sequence[Curve]

    def at(self, step: int) -> tuple[int, float, Interval | None]:
        """The last step up to this one that all seeds have, their mean return there, and its interval."""
        common = steps.shared(OURS, self.curves)
        common = common[common <= step]
        if not len(common):
            return step, float("nan"), None
        values = np.array([steps.at(curve, common[-1:])[0] for curve in self.curves])
        interval = statistics.student_interval([values]) if len(values) > 1 else None
        return int(common[-1]), float(values.mean()), interval


def read(path: str | os.PathLike[str], repeats: Mapping[str, int]) -> list[Published]:
    """The experiments of a file on the tasks in `repeats`, by name.

    Args:
        repeats: the action repeat of our runs on each task.

    Raises:
        SettingsError: the file cannot be read, has other columns, no number where one must be, or none of the tasks.
    """
    place = expanded(path)
    found: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = {}
    names, ours = set(), {name.removeprefix("gym:"): name for name in repeats}  # files have Gymnasium's own names
    try:
        with place.open(newline="") as file:
            table = csv.DictReader(file)
            if missing := [name for name in COLUMNS if name not in (table.fieldnames or ())]:
                raise SettingsError(f"{place} has no column {missing[0]!r}; published curves have {', '.join(COLUMNS)}")
            for number, row in enumerate(table, 2):
                names.add(str(row["env_name"]))
                task = ours.get(str(row["env_name"]).removeprefix("gym:"))
                if row["metric"] != METRIC or task is None:
                    continue
                try:
                    point = float(row["env_step"]) / repeats[task], float(row["value"])
                except (TypeError, ValueError):
                    raise SettingsError(f"{place}, line {number}: env_step and value must be numbers") from None
                found.setdefault((str(row["exp_name"]), task), {}).setdefault(str(row["seed"]), []).append(point)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SettingsError(f"cannot read {place}: {getattr(error, 'strerror', None) or error}") from error
    if not found:
        has = f"; it has {', '.join(sorted(names)[:4])}{', ...' if len(names) > 4 else ''}" if names else ""
        raise SettingsError(f"{place} has no {METRIC} of {' or '.join(repeats)}{has}")
    return [Published(name, task, [_curve(points) for points in of.values()]) for (name, task), of in found.items()]


def _curve(points: Iterable[tuple[float, float]]) -> Curve:
    """A curve by rising step; of two values at a step the later one counts."""
    by_step = dict(sorted((round(step), value) for step, value in points))
    values = np.array([*by_step.values()])
    return Curve(np.array([*by_step], np.int64), np.where(np.abs(values) > LARGEST, np.nan, values))


def action_repeat(run: Run) -> int:
    """The simulator's steps in one env step of a run."""
    return int(run.settings.get("env.action_repeat") or 1)


def written(groups: Sequence[Group]) -> str:
    """The returns of all runs in the same form, each group an experiment."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for group in groups:
        for task, runs in group.tasks.items():
            for run in runs:
                curve = run.curves.get(OURS, Curve(np.array([], np.int64), np.array([])))
                for step, value in zip(curve.steps.tolist(), curve.values.tolist(), strict=True):
                    writer.writerow([group.label, task, run.seed, METRIC, step * action_repeat(run), value])
    return out.getvalue()
