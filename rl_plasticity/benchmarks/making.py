"""Makes the runs that score a method: on other seeds for each strength and learning rate, then on the scored seeds."""

import hashlib
import itertools
import json
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from rl_plasticity import plugins
from rl_plasticity.benchmarks import rows, suites
from rl_plasticity.benchmarks.rows import Row
from rl_plasticity.benchmarks.suites import Method, Task
from rl_plasticity.comparison import loading
from rl_plasticity.configs.kinds import KINDS
from rl_plasticity.configs.written import as_written, parse
from rl_plasticity.errors import SettingsError, say
from rl_plasticity.runs.files import write_text
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.sweeps import sweep
from rl_plasticity.sweeps.job import finished
from rl_plasticity.sweeps.launchers import Launcher
from rl_plasticity.sweeps.sweep import Run


def method(name: str | None, settings: Sequence[str]) -> Method:
    """The method of these settings. Where no setting has several values, its coef gets the published strengths.

    A coef without published ones gets a tenth of its default, the default, and ten times it.

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
            alike = [one for of in suites.published().values() if (one := of.by_name).get(group) == given[group]]
            strengths = next(
                filter(None, (one.get(f"{group}.coef") for one in alike)),
                ",".join(as_written(coef.default * factor) for factor in (0.1, 1.0, 10.0)),
            )
            say(f"strengths to choose from: {group}.coef={strengths}")
            return replace(made, settings=[*settings, f"{group}.coef={strengths}"])
    say("one strength, because no setting has several values to choose from")
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
    tested: dict[Task, list[Run]] = {}
    for task in tasks:
        try:
            runs = task.runs(task.own(method), folder, "choosing")
            sweep.check(task.makes, runs)
            choosing[task] = runs
        except SettingsError as error:
            why = f"refused: {error}"
            found.append(Row(task.suite, task.name, method.name, " ".join(method.settings), "", why, "", ""))
    if not choosing:
        raise SettingsError(found[0].raw)
    for row in found:
        say(f"{method.name} on {row.task}: {row.raw}")
    for of_task in choosing.values():
        _require_same_plugs(run.folder for run in of_task)
    status = sweep.make([*itertools.chain(*choosing.values())], launcher)
    if status == 1:  # a strength that is too large stops those that train beside it
        again = {task: task.runs(task.own(method), folder, "choosing", apart=True) for task in _open(choosing)}
        say(f"strengths one by one on {', '.join(task.name for task in again)}; one that fails is not chosen")
        status = sweep.make([*itertools.chain(*again.values())], launcher)
        choosing |= {task: choosing[task] + runs for task, runs in again.items()}
    if status < 128:
        for task, runs in choosing.items():
            if best := chosen(task, task.own(method), runs):
                tested[task] = task.runs(best, folder, "test")
                _say_what_lies_at_an_end(task, task.own(method), best)
        status = int(len(tested) < len(choosing))
    if tested:
        status = max(status, sweep.make([*itertools.chain(*tested.values())], launcher))
    for task, runs in tested.items():
        found += scored(task, method, runs)
    rows.write(folder / "rows.csv", found)
    sources = {module: plugins.files_of(module) for module in plugins.sources()}
    file = {**asdict(method), "plugins": plugins.sources(), "sources": sources}
    write_text(folder / "method.json", json.dumps(file, indent=1) + "\n")
    return rows.read(folder / "rows.csv"), status


def chosen(task: Task, own: Mapping[str, str], runs: Sequence[Run]) -> dict[str, str] | None:
    """A method's `own` settings, of several values that with the highest mean metric; None where no run has ended well.

    Args:
        runs: those that choose.
    """
    found, names = defaultdict[tuple[str, ...], list[float]](list), suites.varied(own)
    for run, metric in _read(task, runs):
        found[tuple(as_written(run.settings[name]) for name in names)].append(metric)
    if not found:
        return None
    best = max(found, key=lambda values: np.nan_to_num(np.mean(found[values]), nan=-np.inf))
    return {**own, **dict(zip(names, best, strict=True))}


def scored(task: Task, method: Method, runs: Sequence[Run]) -> list[Row]:
    """The rows of a method's finished runs on a task."""
    own = shlex.join(a for a in runs[0].arguments if a.partition("=")[0] in task.own(method))
    found = []
    for run, metric in _read(task, runs):
        made = run.starts[-1]["processor"], run.starts[-1]["rl_plasticity"]
        found.append(Row(task.suite, task.name, method.name, own, str(run.seed), f"{metric:.6g}", *made))
    return found


def _open(choosing: Mapping[Task, Sequence[Run]]) -> list[Task]:
    """The tasks on which a run that chooses has not ended well."""
    return [task for task, runs in choosing.items() if not all(finished(run.folder) for run in runs)]


def _require_same_plugs(folders: Iterable[Path]) -> None:
    """Raises SettingsError if a plug was edited after a run in one of these folders began."""
    for path in folders:
        starts = RunFolder(path).starts if path.exists() else []
        for module, digest in plugins.sources().items():
            if any(start["plugin_sources"].get(module, digest) != digest for start in starts):
                raise SettingsError(f"{path} was made with another {module}: delete it and run this again")


def _say_what_lies_at_an_end(task: Task, own: Mapping[str, str], best: Mapping[str, str]) -> None:
    """Say which of a setting's values was best where it is the first or the last that was tried."""
    for name in suites.varied(own):
        tried = parse(f"{name}=[{own[name]}]")[1]
        if parse(f"{name}={best[name]}")[1] in (tried[0], tried[-1]) and len(tried) > 2:
            say(f"{task.name}: the best {name} is {best[name]}, at an end of {own[name]}; values beyond may do better")


def _read(task: Task, runs: Sequence[Run]) -> list[tuple[loading.Run, float]]:
    """The finished runs, and of each the mean of the task's metric over the run, or over its last rows.

    Raises:
        SettingsError: a plug was edited before a run that began later.
    """
    folders = [run.folder for run in runs if finished(run.folder)]
    _require_same_plugs(folders)
    found = [each for folder in folders for each in loading.read(RunFolder(folder))]
    return [(run, float(np.mean(run.curves[task.metric].values[-task.last :]))) for run in found]
