"""Rows of a suite: one for each run that is scored, and one for each task on which a method has no score."""

import csv
import io
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock

from rl_plasticity.benchmarks.scores import Scores
from rl_plasticity.benchmarks.suites import FOLDER, Suite
from rl_plasticity.errors import SettingsError, refused
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
        try:
            return [parsed(row) for row in csv.DictReader(file)]
        except (TypeError, ValueError) as error:
            raise SettingsError(f"{path} has rows of another form: move it away") from error


def parsed(row: Mapping[str, str]) -> Row:
    """A row from what a file says; TypeError or ValueError if it has another form."""
    found = Row(**row)
    if found.seed:
        int(found.seed), float(found.raw)
    return found


def published(suite: Suite) -> list[Row]:
    """The rows that come with the package."""
    return read(FOLDER / f"{suite.name}.csv")


def known(suite: Suite, place: Path) -> list[Row]:
    """The rows that come with the package and, of methods and tasks without any, those that were made in `place`."""
    shipped = published(suite)
    there = {(row.method, row.task) for row in shipped}
    return shipped + [row for row in read(place / f"{suite.name}.csv") if (row.method, row.task) not in there]


def with_own(known: Sequence[Row], place: Path, published: Container[str]) -> list[Row]:
    """The known rows and those of the user's own methods. Of methods with one name, the newest counts."""
    every = [*known]
    for path in sorted(place.glob("*/rows.csv"), key=lambda path: path.stat().st_mtime):
        newer = [row for row in read(path) if row.method not in published]
        names = {row.method for row in newer}
        every = [row for row in every if row.method not in names] + newer
    return every


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write rows, sorted, in place of those of the same method and task."""
    fresh = [*rows]
    done = {(row.method, row.task) for row in fresh}
    with FileLock(path.with_name(f".{path.name}.lock")):  # another process may add the rows of other tasks
        every = [row for row in read(path) if (row.method, row.task) not in done] + fresh
        every.sort(key=lambda row: (*row[:3], row.seed.zfill(9)))
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(every)
        write_text(path, out.getvalue())


def scores(suite: Suite, rows: Sequence[Row]) -> Scores:
    """The scores of all methods that have a row; NaN on tasks where they have not a finite one for each seed."""
    methods, tasks = [*dict.fromkeys(row.method for row in rows)], [*suite.tasks]
    seeds = next(iter(suite.tasks.values())).seeds
    raw = np.full((len(methods), len(tasks), len(seeds)), np.nan)
    for row in rows:
        if row.suite == suite.name and row.task in tasks and row.seed in seeds and math.isfinite(float(row.raw)):
            raw[methods.index(row.method), tasks.index(row.task), seeds.index(row.seed)] = row.raw
    return Scores(methods, raw)
