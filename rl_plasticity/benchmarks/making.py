"""Makes the runs that score a method: on other seeds for each strength and learning rate, then on the scored seeds."""

import hashlib
import itertools
import json
import re
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
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
from rl_plasticity.runs.journal import last_entry
from rl_plasticity.sweeps import sweep
from rl_plasticity.sweeps.job import finished
from rl_plasticity.sweeps.launchers import Launcher
from rl_plasticity.sweeps.sweep import Run


def method(name: str | None, settings: Sequence[str]) -> Method:
    """The method of these settings.

    Settings of a published method get what else it has, its strengths too. Others, if no setting has several values,
    get a tenth of the default coef, the default, and ten times it.

    Raises:
        SettingsError: a published method has this name.
    """
    published = suites.published()
    if name in published:
        raise SettingsError(f"name={name} is a published method: choose another name")
    made = Method(name or " ".join(settings), settings)
    given, more = made.by_name, list[str]()
    if suites.varied(given):
        return made
    for row in published.values():
        if given.items() <= row.by_name.items():
            more = suites.written({key: value for key, value in row.by_name.items() if key not in given})
            break
    else:
        for group in ("reg", "reset"):
            coef = KINDS[group].settings(given.get(group, "none")).get("coef")
            is_given = any(key.startswith(f"{group}.") and key.endswith(".coef") for key in given)
            if coef and type(coef.default) in (int, float) and not is_given:
                strengths = (as_written(coef.default * factor) for factor in (0.1, 1.0, 10.0))
                more = [f"{group}.coef={','.join(strengths)}"]
                break
    say(f"also set, to choose from: {' '.join(more)}" if more else "one strength: no setting has several values")
    return replace(made, settings=[*settings, *more])


def make(method: Method, place: Path, tasks: Sequence[Task], launcher: Launcher) -> tuple[list[Row], int]:
    """Make the missing runs of a method on these tasks, in a folder below `place`, and write its rows there.

    Returns:
        The method's rows on all tasks that it has run on, and the exit status: 128 + the signal that stopped it, or 1
        if runs are missing.

    Raises:
        SettingsError: no task can be run with these settings.
    """
    own = [method.name, *method.settings, *itertools.chain(*sorted(plugins.sources().items()))]
    digest = hashlib.sha256("\n".join(own).encode()).hexdigest()[:8]  # a plug that changes makes another method
    folder = place / f"{in_folders(method.name)}-{digest}"
    found: list[Row] = []
    choosing: dict[Task, list[Run]] = {}
    tested: dict[Task, list[Run]] = {}

    def lacks(task: Task, why: str) -> None:
        say(f"{method.name} on {task.name}: {why}")
        found.append(Row(task.suite, task.name, method.name, " ".join(method.settings), "", why, "", ""))

    for task in tasks:
        try:
            runs = task.runs(task.own(method), folder, "choosing")
            sweep.check(task.makes, runs)
            choosing[task] = runs
        except SettingsError as error:
            lacks(task, f"refused: {error}")
    if not choosing:
        raise SettingsError(found[0].raw)
    _require_same_plugs(folder)
    status = _train(choosing, launcher)
    apart = {task: _one_by_one(task, method, runs) for task, runs in choosing.items()}
    if status < 128 and any(apart.values()):
        say("a strength did not stay finite: those that trained beside it are tried one by one")
        status = _train(apart, launcher)
    for task, runs in choosing.items():
        if status < 128 and all(map(_has_ended, every := [*runs, *apart[task]])):
            if best := chosen(task, task.own(method), every):
                tested[task] = task.runs(best, folder, "test")
                _say_what_lies_at_an_end(task, task.own(method), best)
            else:
                lacks(task, "failed: no strength stays finite")
    if tested:
        status = _train(tested, launcher)
    _require_same_plugs(folder)
    for task, runs in tested.items():
        found += (rows_of := scored(task, method, runs))
        if not rows_of and all(map(_has_ended, runs)):
            lacks(task, "failed: a scored seed does not stay finite")
    rows.write(folder / "rows.csv", found)
    sources = {module: plugins.files_of(module) for module in plugins.sources()}
    file = {**asdict(method), "plugins": plugins.sources(), "sources": sources}
    write_text(folder / "method.json", json.dumps(file, indent=1) + "\n")
    all_runs = itertools.chain(*choosing.values(), *apart.values(), *tested.values())
    return rows.read(folder / "rows.csv"), status if status > 128 else int(not all(map(_has_ended, all_runs)))


def in_folders(name: str) -> str:
    """A method's name as part of a folder's."""
    return re.sub(r"[^A-Za-z0-9.=+-]+", "_", name)[:60]


def chosen(task: Task, own: Mapping[str, str], runs: Sequence[Run]) -> dict[str, str] | None:
    """A method's `own` settings, of several values that with the highest mean metric; None where no run has ended well.

    Args:
        runs: those that choose.
    """
    found, names = defaultdict[tuple[str, ...], list[float]](list), suites.varied(own)
    for run, metric in _read(task, runs):
        values = (run.settings.get(name, run.settings.get(f"{name}.name")) for name in names)
        found[tuple(map(as_written, values))].append(metric)
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


def _train(of_tasks: Mapping[Task, Sequence[Run]], launcher: Launcher) -> int:
    """Make the missing runs, but for those that would diverge again; returns the exit status of their sweep."""
    ready = [run for run in itertools.chain(*of_tasks.values()) if not _diverged(run)]
    return sweep.make(ready, launcher) if ready else 0


def _one_by_one(task: Task, method: Method, runs: Sequence[Run]) -> list[Run]:
    """Runs of single strengths, for those in which several trained side by side and one did not stay finite."""
    names, apart = suites.side_by_side(task.own(method)), list[Run]()
    for run in filter(_diverged, runs):
        own = [a.replace("=[", "=").rstrip("]") if a.partition("=")[0] in names else a for a in run.arguments]
        if own != [*run.arguments]:
            apart += sweep.runs(task.makes.kind, [*own, f"out={run.folder.parent}"])
    return apart


def _diverged(run: Run) -> bool:
    """Whether a run ended because a number was not finite, as it would again."""
    entry = last_entry(RunFolder(run.folder))
    return entry is not None and entry.word == "failed" and re.search("(not|no longer) finite", entry.text) is not None


def _has_ended(run: Run) -> bool:
    return finished(run.folder) or _diverged(run)


def _require_same_plugs(folder: Path) -> None:
    """Raises SettingsError if a plug was edited after a run of a method's folder began."""
    for path in folder.glob("*/*/*"):
        for module, digest in plugins.sources().items():
            if any(start["plugin_sources"].get(module, digest) != digest for start in RunFolder(path).starts):
                raise SettingsError(f"{path} was made with another {module}: delete it and run this again")


def _say_what_lies_at_an_end(task: Task, own: Mapping[str, str], best: Mapping[str, str]) -> None:
    """Say which of a setting's values was best where it is the first or the last that was tried."""
    for name in suites.varied(own):
        tried = parse(f"{name}=[{own[name]}]")[1]
        if all(isinstance(x, int | float) for x in tried):
            tried.sort()
        if parse(f"{name}={best[name]}")[1] in (tried[0], tried[-1]) and len(tried) > 2:
            say(f"{task.name}: the best {name} is {best[name]}, at an end of {own[name]}; values beyond may do better")


def _read(task: Task, runs: Sequence[Run]) -> list[tuple[loading.Run, float]]:
    """The finished runs, and of each the mean of the task's metric over the run, or over its last rows."""
    found = [each for run in runs if finished(run.folder) for each in loading.read(RunFolder(run.folder))]
    return [(run, float(np.mean(run.curves[task.metric].values[-task.last :]))) for run in found]
