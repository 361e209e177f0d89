"""Many runs with one command: ``python -m rl_plasticity.train -m reg=none,spectral seed=0,1 launcher=joblib``.

Every combination of the values is a run like any other. Its folder under ``out=`` (results) has the run's usual name.
A setting that names a choice, ``reg.spectral.coef=1e-3``, is for the runs with this choice. Finished runs are skipped
and half-done ones resumed, so the same command continues a sweep that was stopped.
"""

import itertools
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rl_plasticity import plugins
from rl_plasticity.configs import schema, written
from rl_plasticity.configs.commands import BRANCH, GROUPS, Supervised, Train, called, members_of
from rl_plasticity.configs.written import as_written, by_name, flat_values
from rl_plasticity.errors import SettingsError, counted, refused, say
from rl_plasticity.paths import expanded
from rl_plasticity.runs import branch, naming
from rl_plasticity.runs.command import RESULTS, Command
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.session import StopSignal
from rl_plasticity.sweeps import launchers
from rl_plasticity.sweeps.job import Job, finished
from rl_plasticity.sweeps.launchers import Launcher

S = TypeVar("S", Train, Supervised)


class Run(NamedTuple):
    """One run of a sweep: a combination of settings."""

    arguments: tuple[str, ...]
    settings: Train | Supervised
    folder: Path


def sweep(command: Command[Any, Any], arguments: Sequence[str]) -> int:
    """Make all runs that the arguments of one command stand for, and print the outcome of each.

    Returns:
        0; 1 if a run failed; 128 + the signal that stopped the sweep.

    Raises:
        SettingsError: one of the runs cannot be made. Then none has been started.
    """
    own, of_launcher = launchers.apart(arguments)
    launcher, everything = launchers.load(of_launcher), runs(command.kind, own)
    check(command, everything)
    return make(everything, launcher)


def check(command: Command[Any, Any], everything: Sequence[Run]) -> None:
    """Raises SettingsError if one of these runs of a command has not ended and cannot be made."""
    # Runs that differ in their seeds alone need one check.
    methods = [replace(run.settings, seed=0, seeds=1, out="auto") for run in everything if not finished(run.folder)]
    for settings in (one for i, one in enumerate(methods) if one not in methods[:i]):
        command.check(settings)


def make(everything: Sequence[Run], launcher: Launcher) -> int:
    """Make these runs, and print the outcome of each; returns as `sweep`."""
    todo = [run for run in everything if not finished(run.folder)]
    for kept, runs in Counter(filter(None, map(_kept, everything))).items():
        say(f"{counted(runs, 'run')} began with {kept}, and keep it: delete them to make them again")
    if not todo:
        return report(everything, {}, 0)
    threads = launcher.threads(len(todo))
    name = f"{time.strftime('%Y-%m-%d_%H%M%S')}.{time.time_ns() % 10**9:09}"
    folder = everything[0].folder.parent / ".sweep" / name
    with refused(f"write to {folder}"):
        folder.mkdir(parents=True)
    same = (folder, Path.cwd(), threads, tuple(plugins.loaded))
    jobs = [Job(called(type(run.settings)), run.arguments, run.folder, *same) for run in todo]
    where = os.path.relpath(folder)
    print(f"training {len(todo)} of {counted(len(everything), 'run')}; their output goes to {where}", flush=True)

    def tell() -> None:
        with suppress(OSError):
            (folder / "stop").touch()
        say("stopping: each run saves a checkpoint first (interrupt again to stop at once)")

    with StopSignal(tell) as stop:
        launcher.launch(jobs)
    outcomes = {job.folder: job.outcome or "failed: it ended without reporting anything" for job in jobs}
    return report(everything, outcomes, stop.received)


def runs(kind: type[S], arguments: Sequence[str]) -> list[Run]:
    """The runs that the arguments stand for; the last setting varies fastest.

    Raises:
        SettingsError: a setting is bad, or a run is there twice.
    """
    paths = dict(a.split("=", 1) for a in arguments if a.startswith(("out=", "resume=")))
    if "resume" in paths:
        raise SettingsError("a sweep resumes its unfinished runs by itself: leave out resume=")
    out = expanded(paths.get("out", RESULTS)).absolute()
    own: list[str] = [a for a in arguments if not a.startswith("out=")]
    combinations = [*itertools.product(*map(written.each, own))]
    folders: dict[Path, Run] = {}
    for combination in dict.fromkeys(_where_chosen(kind, combinations)):
        settings = branch.load(kind, combination)
        folder = out / naming.name(settings)
        if other := folders.get(folder):
            raise SettingsError(f"the same run twice: {' '.join(other.arguments)!r} and {' '.join(combination)!r}")
        folders[folder] = Run(combination, settings, folder)
    return [*folders.values()]


def report(everything: Sequence[Run], outcomes: dict[Path, str], signalled: int) -> int:
    """Print the outcome of each run, and return the exit status; runs without an outcome were skipped."""
    words = dict.fromkeys(("succeeded", "failed", "stopped", "skipped"), 0)
    width = max(len(run.folder.name) for run in everything)
    print()
    for run in everything:
        outcome = outcomes.get(run.folder, "skipped: its results exist")
        words[outcome.partition(":")[0]] += 1
        print(f"{run.folder.name:{width}}  {outcome}")
    where = os.path.relpath(everything[0].folder.parent)
    print(", ".join(f"{n} {word}" for word, n in words.items()) + f"; results in {where}")
    if words["failed"] or words["stopped"]:
        print("run the same command again to make the missing runs")
    return 128 + signalled if signalled else int(words["failed"] + words["stopped"] > 0)


def _kept(run: Run) -> str:
    """What a run that is there logs or evaluates otherwise than the command asks for, as arguments."""
    asked, saved = by_name(run.arguments), dict[str, Any]()
    with suppress(SettingsError):  # it is not there, or its own start says what is wrong
        saved = dict(flat_values(RunFolder(run.folder).settings))
    watched = [name for name in schema.marked(type(run.settings), "watched") if name in asked and name in saved]
    return " ".join(f"{n}={as_written(saved[n])}" for n in watched if saved[n] != run.settings.flat[n])


def _where_chosen(kind: type[Any], combinations: Sequence[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Each combination without the settings of choices that it does not make: ``reg.spectral.coef`` with reg=none."""
    choosing = (*GROUPS[kind], "preset", "plugins", *BRANCH)

    def prefixes(choices: Iterable[str]) -> set[str]:
        """The prefixes of the names of these choices' settings: ``reg.spectral.``."""
        groups = branch.load(kind, choices).groups
        return {f"{group}.{m}." for group, one in groups.items() for m in (members_of(one.name) or [one.name])}

    names = {argument.partition("=")[0] for argument in combinations[0]}
    if all(name.count(".") < 2 for name in names):  # no setting names a choice
        yield from combinations
        return
    own = [prefixes(a for a in c if a.partition("=")[0] in choosing) for c in combinations]
    everywhere = set().union(*own)
    for combination, here in zip(combinations, own, strict=True):
        elsewhere = tuple(everywhere - here)
        yield tuple(a for a in combination if a.startswith(tuple(here)) or not a.startswith(elsewhere))
