"""Makes the runs that score a method: on other seeds for each strength and learning rate, then on the scored seeds."""

import hashlib
import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rl_plasticity import plugins
from rl_plasticity.benchmarks import rows, submission, suites
from rl_plasticity.benchmarks.rows import Row
from rl_plasticity.benchmarks.suites import Method, Task
from rl_plasticity.configs.kinds import KINDS
from rl_plasticity.configs.written import as_written
from rl_plasticity.errors import SettingsError, say
from rl_plasticity.sweeps import sweep
from rl_plasticity.sweeps.launchers import Launcher
from rl_plasticity.sweeps.sweep import Run


def method(name: str | None, settings: Sequence[str]) -> Method:
    """The method of these settings. Where no setting has several values, its coef gets three strengths.

    Raises:
        SettingsError: a published method has this name.
    """
    if name in suites.published():
        raise SettingsError(f"name={name} is a published method: choose another name")
    made = Method(name or " ".join(settings), settings)
    given = made.by_name
    if any("," in value for value in given.values()):
        return made
    for group in ("reg", "reset"):
        coef = KINDS[group].settings(given.get(group, "none")).get("coef")
        if coef and isinstance(coef.default, float) and f"{group}.coef" not in given:
            strengths = ",".join(as_written(coef.default * factor) for factor in (0.1, 1.0, 10.0))
            say(f"strengths to choose from: {group}.coef={strengths}")
            made = replace(made, settings=[*settings, f"{group}.coef={strengths}"])
    return made


def make(method: Method, place: Path, tasks: Sequence[Task], launcher: Launcher) -> tuple[list[Row], int]:
    """Make the missing runs of a method on these tasks, in a folder below `place`, and write its rows there.

    Returns:
        The method's rows on all tasks that it has run on, and the exit status of its sweeps.

    Raises:
        SettingsError: no task can be run with these settings.
    """
    own = [*method.settings, *itertools.chain(*sorted(plugins.sources().items()))]
    digest = hashlib.sha256("\n".join(own).encode()).hexdigest()[:8]  # a plug that changes makes another method
    folder = place / f"{re.sub(r'[^A-Za-z0-9.=+-]+', '_', method.name)[:60]}-{digest}"
    found: list[Row] = []
    choosing: dict[Task, list[Run]] = {}
    scored: dict[Task, list[Run]] = {}
    for task in tasks:
        try:
            runs = task.runs(method, folder)
            sweep.check(task.makes, runs)
            choosing[task] = runs
        except SettingsError as error:
            why = f"refused: {error}"
            found.append(Row(task.suite, task.name, method.name, " ".join(method.settings), "", why, "", ""))
            say(f"{method.name} on {task.name}: {why}")
    if not choosing:
        raise SettingsError(found[0].raw)
    status = sweep.make([*itertools.chain(*choosing.values())], launcher)
    if status < 128:
        for task, runs in choosing.items():
            if (values := rows.chosen(task, method, runs)) is not None:
                scored[task] = task.runs(method, folder, values)
    if scored:
        status = max(status, sweep.make([*itertools.chain(*scored.values())], launcher))
    for task, runs in scored.items():
        found += rows.scored(task, method, runs)
    rows.write(folder / "rows.csv", found)
    submission.record(folder, method)
    return rows.read(folder / "rows.csv"), status
