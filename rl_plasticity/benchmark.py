"""Score a method on a fixed suite: ``python -m rl_plasticity.benchmark quick reg=spectral``."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rl_plasticity import command_line
from rl_plasticity.benchmarks import suites
from rl_plasticity.benchmarks.suites import FRESH, NONE, Method, Suite, Task
from rl_plasticity.configs import schema
from rl_plasticity.configs.written import parse
from rl_plasticity.errors import SettingsError, counted, nearest
from rl_plasticity.paths import expanded

if TYPE_CHECKING:
    from rl_plasticity.benchmarks.rows import Row

T = TypeVar("T")
HELP = """python -m rl_plasticity.benchmark [SUITE [name=value ...]]
python -m rl_plasticity.benchmark submit FOLDER
python -m rl_plasticity.benchmark verify FILE [plugins=[...]]

Without a suite: lists the suites with their tasks, the cost of each task, and the number of methods with results.
With only a suite (quick, standard, gpu): prints the scores of the published methods and of yours in out=.
With settings: scores the method that they make. Its strength and learning rate are chosen for each task on other seeds
than the scored ones. If it is stopped, the same command continues.

  reg=mine plugins=[my_module]    the method, as settings of a run: reg, reset, optimizer, layer_norm=true, agent ...
  reg.coef=1e-4,1e-3,1e-2         strengths to choose from; default: those of a published method with your settings,
                                  else the default coef, a tenth of it and ten times it
  name=NAME                       name of the method; default: its settings
  tasks=NAME,...                  tasks of the suite to score; default: all
  out=FOLDER                      where to write; default: results/benchmark
  table=markdown                  prints only the table of published methods, or of them and the scored, in Markdown
  launcher=joblib                 trains several runs at a time, as in sweeps: joblib, slurm, ray
  published=NAME,...              repeats the runs of these published methods (all: every one), at the lowest priority

A score is 0 for a run without a method and 1 for a network that is fresh at each task. submit writes a file that others
can check; verify repeats the runs of random tasks, at least a tenth, and compares the numbers.
"""
OWN = ("name", "tasks", "out", "published", "plugins", "table")
DEEDS = {"submit": "the folder of a method", "verify": "a file that submit wrote"}


# What needs torch is imported where it is used: a list of suites and a misspelt name do not wait for it.
def command(arguments: Sequence[str]) -> int:
    """List the suites, show published scores, score a method, or submit or verify one."""
    what, *rest = arguments or [""]
    # A folder of a method may have a = in its name.
    places = [a for a in rest if "=" not in a or (what in DEEDS and a.partition("=")[0] not in OWN)]
    settings = suites.as_given(a for a in rest if a not in places)
    if "=" in what or (places and what not in DEEDS):
        got = " ".join(arguments)
        raise SettingsError(f"name one suite first, then settings, got {got} (suites: {', '.join(suites.NAMES)})")
    own = {name: settings.pop(name) for name in OWN if name in settings}
    if "plugins" in own:
        schema.load_plugs(parse(f"plugins={own['plugins']}")[1])
    if not what:
        return listing()
    out = expanded(own.get("out", "results/benchmark"))
    if what not in DEEDS:
        return score(suites.load(what), suites.written(settings), own, out)
    if len(places) != 1 or settings:
        raise SettingsError(f"{what} takes {DEEDS[what]}, got {' '.join(arguments[1:]) or 'nothing'}")
    from rl_plasticity.benchmarks import submission

    return submission.submit(expanded(places[0])) if what == "submit" else submission.verify(expanded(places[0]), out)


def listing() -> int:
    """Print the suites: their tasks, what each costs, and how many methods have rows."""
    from rl_plasticity.benchmarks import rows

    for name in suites.NAMES:
        suite = suites.load(name)
        done = rows.published(suite)
        lines, total = [["task", "minutes", "methods", "asks"]], 0.0
        for task in suite.tasks.values():
            methods = {row.method for row in done if row.task == task.name}
            lines.append([task.name, f"{task.minutes:g}", str(len(methods)), task.asks])
            total += task.minutes
        cost = f"{command_line.about(60 * total)} on {task.counted_on}"
        print(f"{name}: {counted(len(suite.tasks), 'task')}, {cost} per method")
        print("\n".join(command_line.aligned(lines)), end="\n\n")
    print("python -m rl_plasticity.benchmark quick reg=spectral     scores a method; --help explains the rest")
    return 0


def score(suite: Suite, settings: Sequence[str], own: dict[str, str], out: Path) -> int:
    """Score the method of these settings, or published ones, and show what is known; returns the exit status."""
    from rl_plasticity.benchmarks import making, page, rows
    from rl_plasticity.sweeps import launchers

    settings, of_launcher = launchers.apart(settings)
    launcher, place = launchers.load(of_launcher), out / suite.name
    if own.get("table", "markdown") != "markdown":
        raise SettingsError(f"table must be markdown, got {own['table']!r}")
    tasks, methods = _named("tasks", own, suite.tasks), list[Method]()
    if "published" in own:
        if settings or "name" in own:
            raise SettingsError("published= takes the published methods' settings: give it without name= and others")
        methods = _named("published", own, suites.published())
        os.nice(19)
    elif settings:
        methods = [making.method(own.get("name"), settings)]
    elif "name" in own:
        raise SettingsError("name= names a method: give its settings too, such as reg=mine")
    known, status = rows.known(suite, place), 0
    if settings:
        _require_ends(suite, tasks, known)
    if not methods and "table" not in own:
        known = rows.with_own(known, place, suites.published())
    for method in methods:
        made, status = making.make(method, place, tasks, launcher)
        if "published" in own:
            rows.write(place / f"{suite.name}.csv", made)
        known = [row for row in known if row.method != method.name] + made
        if status > 128:
            break
    mine = methods[0].name if len(methods) == 1 else None
    if mine in (None, *(row.method for row in known)):
        page.show(suite, known, mine, None if "table" in own else place)
    return status


def _require_ends(suite: Suite, tasks: Sequence[Task], known: Sequence["Row"]) -> None:
    """Raises SettingsError if tasks lack rows of what scores 0 and 1, before a method is trained for them."""
    there = {(row.task, row.method) for row in known if row.seed}
    if lacking := [task.name for task in tasks if not {(task.name, NONE), (task.name, FRESH)} <= there]:
        raise SettingsError(
            f"{suite.name} has no rows of {NONE} and {FRESH} on {', '.join(lacking)}: make them first by published="
            f"{NONE},{FRESH} tasks={','.join(lacking)}, or leave these tasks out by tasks="
        )


def _named(option: str, own: Mapping[str, str], known: Mapping[str, T]) -> list[T]:
    """What the names of an option stand for; all of them where it is not given."""
    asked = own.get(option, "all")
    names = [*known] if asked == "all" else asked.split(",")
    for name in {*names} - {*known}:
        raise SettingsError(f"{option}: there is no {name!r}{nearest(name, known)}")
    return [known[name] for name in names]


if __name__ == "__main__":
    command_line.main("benchmark", lambda _: HELP.rstrip(), command)
