"""Makes the runs that score a method: on other seeds for each strength and learning rate, then on the scored seeds."""

import hashlib
import itertools
import json
import re
import resource
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rl_plasticity import plugins
from rl_plasticity.benchmarks import rows, suites
from rl_plasticity.benchmarks.rows import Row
from rl_plasticity.benchmarks.suites import Method, Suite, Task
from rl_plasticity.configs.written import as_written
from rl_plasticity.errors import SettingsError, say
from rl_plasticity.interventions import INTERVENTIONS
from rl_plasticity.regularizers import REGULARIZERS
from rl_plasticity.runs.files import write_text
from rl_plasticity.settings import settings_of
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
    if not any("," in value for value in given.values()):
        for group, kinds in (("reg", REGULARIZERS), ("reset", INTERVENTIONS)):
            coef = settings_of(kinds[given[group]]).get("coef") if given.get(group) in kinds else None
            if coef and isinstance(coef.default, float) and f"{group}.coef" not in given:
                strengths = ",".join(as_written(coef.default * factor) for factor in (0.1, 1.0, 10.0))
                say(f"strengths to choose from: {group}.coef={strengths}")
                made = replace(made, settings=[*settings, f"{group}.coef={strengths}"])
    return made


def make(suite: Suite, method: Method, place: Path, tasks: Sequence[str], launcher: Launcher) -> tuple[list[Row], int]:
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
    for task in map(suite.tasks.__getitem__, tasks):
        try:
            runs = suite.runs(task, method, folder)
            task.makes.check(replace(runs[0].settings, seed=0, seeds=1, out="auto"))
            choosing[task] = runs
        except SettingsError as error:
            why = f"refused: {error}"
            found.append(Row(suite.name, task.name, method.name, " ".join(method.settings), "", why, "", ""))
            say(f"{method.name} on {task.name}: {why}")
    if not choosing:
        raise SettingsError(found[0].raw)
    begun, used = time.time(), _cpu_seconds()
    status, scored = _sweeps(choosing, launcher), {}
    if status < 128:
        for task, runs in choosing.items():
            if (values := rows.chosen(task, method, runs)) is not None:
                scored[task] = suite.runs(task, method, folder, values)
        status = max(status, _sweeps(scored, launcher))
    for task, runs in scored.items():
        found += rows.scored(suite, task, method, runs)
    rows.write(folder / "rows.csv", found)
    _record(folder, method, {"cpu_seconds": _cpu_seconds() - used, "wall_seconds": time.time() - begun})
    return rows.read(folder / "rows.csv"), status


def _sweeps(runs: dict[Task, list[Run]], launcher: Launcher) -> int:
    """Make the missing runs, those of each command in one sweep; returns the exit status."""
    status = 0
    for makes in {task.makes.name: task.makes for task in runs}.values():
        if status < 128:
            of_command = itertools.chain(*(of_task for task, of_task in runs.items() if task.makes is makes))
            status = max(status, sweep.make(makes, [*of_command], launcher))
    return status


def _record(folder: Path, method: Method, spent: dict[str, float]) -> None:
    """Write the method beside its rows, and add what this call has cost to what earlier ones did."""
    path = folder / "method.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    spent = {name: round(value + before.get(name, 0.0), 1) for name, value in spent.items()}
    texts = {module: plugins.files_of(module) for module in plugins.sources()}
    file = {**asdict(method), "plugins": plugins.sources(), "sources": texts, **spent}
    write_text(path, json.dumps(file, indent=1) + "\n")


def _cpu_seconds() -> float:
    """What the processes of ended runs have used on this machine."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
