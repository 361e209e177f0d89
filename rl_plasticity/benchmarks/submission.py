"""Submitted scores: a file with all that is needed to check them, and the check."""

import json
import math
import platform
import random
import shlex
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from rl_plasticity import __version__, plugins
from rl_plasticity.benchmarks import rows, suites
from rl_plasticity.benchmarks.rows import Row
from rl_plasticity.benchmarks.suites import Method
from rl_plasticity.errors import SettingsError, counted, refused
from rl_plasticity.metrics.statistics import student_interval
from rl_plasticity.runs.files import write_text
from rl_plasticity.sweeps import sweep
from rl_plasticity.sweeps.launchers import Basic

SHARE = 0.1  # of the rows that is made again, at least


def submit(folder: Path) -> int:
    """Write ``submission.json`` in a method's folder: its rows, settings, plugs, environment and cost.

    Raises:
        SettingsError: the folder is no method's, or has no scored row.
    """
    method = _read(folder / "method.json")
    found = rows.read(folder / "rows.csv")
    if not any(row.seed for row in found):
        raise SettingsError(f"{folder} has no scores yet")
    versions = {"rl_plasticity": __version__, "python": platform.python_version(), "torch": metadata.version("torch")}
    file = {**method, **versions, "platform": platform.platform(), "rows": [row._asdict() for row in found]}
    write_text(folder / "submission.json", json.dumps(file, indent=1) + "\n")
    print(f"wrote {folder / 'submission.json'}")
    return 0


def verify(path: Path, out: Path) -> int:
    """Repeat the runs of random tasks, at least a tenth of the rows, and compare them; returns 1 if they differ.

    Raises:
        SettingsError: the file cannot be read, or its plugs are not loaded or not those that it was made with.
    """
    file = _read(path)
    for module, digest in file["plugins"].items():
        if plugins.sources().get(module) != digest:
            wrong = "differs from the one that made the file" if module in plugins.sources() else "is not loaded"
            raise SettingsError(
                f"the plug {module} {wrong}; read its source in the file, then load it by plugins=[{module}]"
            )
    found = [row for row in (Row(**row) for row in file["rows"]) if row.seed]
    suite, tasks = suites.load(found[0].suite), sorted({row.task for row in found})
    chosen = random.sample(tasks, math.ceil(SHARE * len(tasks)))
    is_wrong = False
    for name in chosen:
        task, claimed = suite.tasks[name], {int(row.seed): float(row.raw) for row in found if row.task == name}
        method = Method(file["name"], shlex.split(next(row.settings for row in found if row.task == name)))
        runs = suite.runs(task, method, out / f"verify-{path.stem}" / file["name"].replace("/", "_"), {})
        sweep.make(task.makes, runs, Basic())
        again = {int(row.seed): float(row.raw) for row in rows.scored(suite, task, method, runs)}
        off = np.array([again.get(seed, math.nan) - value for seed, value in claimed.items()])
        low, high = student_interval([off])
        if np.allclose(off, 0, atol=1e-5 * max(map(abs, claimed.values()))):
            said = "the same numbers"
        elif low <= 0 <= high:
            said = f"different numbers, within chance: the mean is off by {off.mean():.3g} [{low:.3g}, {high:.3g}]"
        else:
            said, is_wrong = f"DIFFERS: the mean is off by {off.mean():.3g} [{low:.3g}, {high:.3g}]", True
        print(f"{name}, {counted(len(off), 'seed')}: {said}")
    return int(is_wrong)


def _read(path: Path) -> Any:
    with refused(f"read {path}"):
        text = path.read_text("utf-8")
    try:
        return json.loads(text)
    except ValueError as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error
