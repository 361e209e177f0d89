"""Rows of a suite: one for each run that is scored, and one for each task on which a method has no score."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rl_plasticity.benchmarks.scores import Scores
from rl_plasticity.benchmarks.suites import FOLDER, Suite
from rl_plasticity.errors import refused
from rl_plasticity.runs.files import write_text


class Row(NamedTuple):
    """A line of a suite's CSV file.

    Args:
        settings: those of the method on the task, with the chosen strength and learning rate.
        seed: of the run; empty where there is none.
        raw: the task's metric, or ``refused: why`` or ``failed: why``.
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
    if not path.exists():
        return []
    with refused(f"read {path}"), path.open(encoding="utf-8", newline="") as file:
        return [Row(**row) for row in csv.DictReader(file)]


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
