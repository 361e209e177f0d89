"""Rows of a suite: one for each run that is scored, and one for each task that a method was refused on."""

import csv
import io
import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rl_plasticity.benchmarks.scores import Scores
from rl_plasticity.benchmarks.suites import FOLDER, Method, Suite, Task
from rl_plasticity.comparison import loading
from rl_plasticity.configs.written import as_written
from rl_plasticity.errors import refused
from rl_plasticity.runs.files import write_text
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.sweeps.job import finished
from rl_plasticity.sweeps.sweep import Run


class Row(NamedTuple):
    """A line of a suite's CSV file.

    Args:
        settings: those of the method on the task, with the chosen strength and learning rate.
        seed: of the run; empty where the method was refused.
        raw: the task's metric, or ``refused: why``.
    """

    suite: str
    task: str
    method: str
    settings: str
    seed: str
    raw: str
    processor: str
    version: str


def read(path: Path) -> list[Row]:
    """The rows of a file; none if there is no file."""
    with refused(f"read {path}"):
        text = path.read_text("utf-8") if path.exists() else ""
    return [Row(**row) for row in csv.DictReader(io.StringIO(text))]


def published(suite: Suite) -> list[Row]:
    """The rows that come with the package."""
    return read(FOLDER / f"{suite.name}.csv")


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write rows, sorted, in place of those of the same method and task."""
    fresh = [*rows]
    done = {(row.method, row.task) for row in fresh}
    every = [row for row in read(path) if (row.method, row.task) not in done] + fresh
    every.sort(key=lambda row: (*row[:3], row.seed.zfill(9)))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(Row._fields)
    writer.writerows(every)
    write_text(path, out.getvalue())


def scores(suite: Suite, rows: Sequence[Row]) -> Scores:
    """The scores of all methods that have a row; NaN on tasks where they have not one for each seed."""
    made = [row for row in rows if row.seed and row.task in suite.tasks]
    methods, tasks = [*dict.fromkeys(row.method for row in rows)], [*suite.tasks]
    seeds = sorted({row.seed for row in made}, key=int)
    raw = np.full((len(methods), len(tasks), len(seeds)), np.nan)
    for row in made:
        raw[methods.index(row.method), tasks.index(row.task), seeds.index(row.seed)] = row.raw
    return Scores(methods, raw)


def chosen(task: Task, method: Method, runs: Sequence[Run]) -> dict[str, str] | None:
    """The values with the highest mean metric of the settings that have several; None where no run has ended well."""
    found, varied = defaultdict[tuple[str, ...], list[float]](list), task.varied(method)
    for run, metric in _read(task, runs):
        found[tuple(as_written(run.settings[name]) for name in varied)].append(metric)
    if not found:
        return None
    best = max(found, key=lambda values: np.nan_to_num(np.mean(found[values]), nan=-np.inf))
    return dict(zip(varied, best, strict=True))


def scored(task: Task, method: Method, runs: Sequence[Run]) -> list[Row]:
    """The rows of a method's finished runs on a task."""
    own = shlex.join(a for a in runs[0].arguments if a.partition("=")[0] in task.own(method))
    found = []
    for run, metric in _read(task, runs):
        made = run.starts[-1]["processor"], run.starts[-1]["rl_plasticity"]
        found.append(Row(task.suite, task.name, method.name, own, str(run.seed), f"{metric:.6g}", *made))
    return found


def _read(task: Task, runs: Sequence[Run]) -> list[tuple[loading.Run, float]]:
    """The finished runs, and of each the mean of the task's metric over the run, or over its last rows."""
    found = [each for run in runs if finished(run.folder) for each in loading.read(RunFolder(run.folder))]
    return [(run, float(np.mean(run.curves[task.metric].values[-task.last :]))) for run in found]
