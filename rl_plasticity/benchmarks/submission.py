"""Submitted scores: a file with all that is needed to check them, and the check."""

import hashlib
import itertools
import json
import math
import random
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rl_plasticity import plugins
from rl_plasticity.benchmarks import making, rows, suites
from rl_plasticity.benchmarks.rows import Row
from rl_plasticity.benchmarks.suites import Method, Task
from rl_plasticity.configs.written import each, parse
from rl_plasticity.errors import SettingsError, counted
from rl_plasticity.metrics.statistics import student_interval
from rl_plasticity.runs.files import read_json, write_text
from rl_plasticity.runs.folder import find
from rl_plasticity.sweeps import sweep
from rl_plasticity.sweeps.launchers import Basic

SHARE = 0.1  # of the rows that is made again, at least
FAR = 5  # standard deviations of a difference of two seeds
SLIGHT = 0.02  # of the largest number; training magnifies rounding


def submit(folder: Path) -> int:
    """Write ``submission.json`` in a method's folder: settings and plugs, rows, CPU time, and a run's provenance.

    Raises:
        SettingsError: the folder is no method's, or has no scored row.
    """
    found, path = rows.read(folder / "rows.csv"), folder / "submission.json"
    method: dict[str, Any] = read_json(folder / "method.json", dict, {})
    if not method:
        raise SettingsError(f"{folder} is not a method's folder, or it was stopped early: run the same command again")
    _scored(folder, found)
    runs = find([folder])
    used = [re.findall(r" used (\S+) CPU seconds\n", run.log.read_text()) for run in runs]
    file = {
        **method,
        "rows": [row._asdict() for row in found],
        "cpu_seconds": round(sum(map(float, itertools.chain(*used))), 1),
        "provenance": runs[-1].starts[-1],
    }
    write_text(path, json.dumps(file, indent=1) + "\n")
    plugs = " ".join(plugins.as_arguments(method["plugins"]))
    print(f"wrote {path}; others check it by: python -m rl_plasticity.benchmark verify {path} {plugs}".rstrip())
    return 0


def verify(path: Path, out: Path) -> int:
    """Repeat the runs of random tasks, at least a tenth of the rows, and compare them; returns 1 if they differ.

    Raises:
        SettingsError: the file cannot be read, or its plugs are not loaded or not those that it was made with.
    """
    nothing: tuple[Method, dict[str, str], list[Row]] = (Method(""), {}, [])
    method, theirs, every = read_json(path, _parts, nothing)
    found = _scored(path, every)
    for module, digest in theirs.items():
        if plugins.sources().get(module) != digest:
            raise SettingsError(
                f"the plug {module} is not loaded, or differs from the one that made the file; read its source in the "
                f"file, then load it by plugins=[{module}]"
            )
    suite, tasks = suites.load(found[0].suite), sorted({row.task for row in found})
    for name in tasks:
        _require_complete(path, method, suite.tasks[name], [row for row in found if row.task == name])
    drawn, is_wrong = random.sample(tasks, math.ceil(SHARE * len(tasks))), False
    of_file = hashlib.sha256(path.read_bytes()).hexdigest()[:8]  # another file's runs are not taken for its own
    for name in drawn:
        task, of_task = suite.tasks[name], [row for row in found if row.task == name]
        same = replace(method, settings=shlex.split(of_task[0].settings))
        runs = task.runs(task.own(same), out / f"verify-{of_file}" / making.in_folders(method.name), "test")
        sweep.make(runs, Basic())
        made = {row.seed: row for row in making.scored(task, same, runs)}
        again = np.array([float(made[row.seed].raw) if row.seed in made else math.nan for row in of_task])
        claimed = np.array([float(row.raw) for row in of_task])
        off = again - claimed
        low, high = student_interval([off])
        # The same processor and version give the same numbers. Elsewhere a seed differs as two seeds do.
        here = {(row.processor, row.version) for row in made.values()}
        is_here = any((row.processor, row.version) in here for row in of_task)
        most = FAR * math.sqrt(2) * np.std(again) + SLIGHT * np.abs(again).max()
        is_chance = low <= 0 <= high and bool((np.abs(off) <= most).all()) and not is_here
        word = "different numbers, within chance" if is_chance else "DIFFERS"
        said = f"{word}: the mean is off by {off.mean():.3g} [{low:.3g}, {high:.3g}]"
        if np.allclose(off, 0, atol=1e-5 * np.abs(claimed).max()):
            said = "the same numbers"
        is_wrong |= said.startswith("DIFFERS")
        print(f"{name}, {counted(len(off), 'seed')}: {said}")
    print(f"checked {len(drawn)} of {counted(len(tasks), 'task')}, but not how the settings were chosen")
    return int(is_wrong)


def _parts(file: Any) -> tuple[Method, dict[str, str], list[Row]]:
    """The method, the digests of its plugs, and its rows on tasks that there are."""
    found = [rows.parsed(row) for row in file["rows"]]
    method = Method(str(file["name"]), [*map(str, file["settings"])])
    for row in found:
        if row.method != method.name or row.suite not in suites.NAMES or row.suite != found[0].suite:
            raise ValueError(row)
        suites.load(row.suite).tasks[row.task]
    return method, dict(file["plugins"]), found


def _require_complete(path: Path, method: Method, task: Task, found: Sequence[Row]) -> None:
    """Raises SettingsError unless these are the rows of all seeds of a task, with settings of the method."""
    if sorted(row.seed for row in found) != sorted(task.seeds):
        raise SettingsError(f"{path} has not one row for each seed of {task.name}, {', '.join(task.seeds)}")
    asked = task.own(method)
    for row in found:
        own = task.own(replace(method, settings=shlex.split(row.settings)))
        if own.keys() != asked.keys() or not all(_is_one_of(name, own[name], asked[name]) for name in own):
            raise SettingsError(f"{path} has rows on {task.name} with other settings than the method's: {row.settings}")


def _is_one_of(name: str, value: str, values: str) -> bool:
    return parse(f"{name}={value}") in map(parse, each(f"{name}={values}"))


def _scored(path: Path, every: Iterable[Row]) -> list[Row]:
    if not (found := [row for row in every if row.seed]):
        raise SettingsError(f"{path} {'has no scores yet' if path.exists() else 'does not exist'}")
    return found
