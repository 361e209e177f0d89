"""The papers' figures and tables: ``python -m rl_plasticity.reproduce spectral/figure-3 small=true``."""

if __name__ == "__main__":
    from rl_plasticity import terminal

    terminal.prepare()

import csv
import difflib
import io
import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rl_plasticity import command_line, compare, supervised, train
from rl_plasticity.command_line import aligned, fitted
from rl_plasticity.comparison import loading, paper
from rl_plasticity.comparison.groups import TASK
from rl_plasticity.errors import SettingsError, nearest
from rl_plasticity.paths import expanded
from rl_plasticity.runs.folder import RunFolder, processor, write_text
from rl_plasticity.sweeps import cost, launchers, record, studies, sweep
from rl_plasticity.sweeps.job import finished
from rl_plasticity.sweeps.studies import Study

HELP = """python -m rl_plasticity.reproduce [PAPER/FIGURE] [name=value ...]

Without a figure: all figures and tables of the three papers and the studies of ours, what they show and cost, and
which were made here.
With one: makes its runs, as many as are missing, and then the figure in the paper's layout, comparison pages, and
record.json, which says where the numbers come from.

  small=true         a version in minutes, on the digits or a cheap control task
  out=FOLDER         where to; default: results/reproductions
  dry_run=true       only say which runs there would be, as a sweep for each method
  hydra/launcher=... as a sweep's: joblib, slurm, ray
  any other setting  of all runs, over the study's own: device=cuda, seeds=3, data.root=FOLDER; of a script's study an
                     option of the script: data=mnist for --data mnist
"""
OUT = "results/reproductions"
OWN = ("small", "out", "dry_run")
COMMANDS: dict[str, Any] = {"train": train.command, "supervised": supervised.command}
REPOSITORY = Path(__file__).parents[1]  # whose scripts a study may name; a wheel has none


def command(arguments: Sequence[str]) -> int | None:
    """List all studies, or make one."""
    names = [a for a in arguments if "=" not in a]
    options = [a for a in arguments if "=" in a and a.partition("=")[0] in OWN]
    given = [a for a in arguments if a not in names and a not in options]
    for name in (a.partition("=")[0] for a in given):
        if close := difflib.get_close_matches(name, OWN, n=1, cutoff=0.75):  # no setting of a run is so like one
            raise SettingsError(f"unknown setting {name!r}; did you mean {close[0]!r}?")
    values = {name: _option(options, name) for name in OWN}
    out = expanded(values["out"] or OUT)
    if not names:
        if given:
            raise SettingsError(f"{given[0]}: name the figure that it is for")
        listing(out)
        return None
    if len(names) > 1:
        raise SettingsError(f"one figure at a time, got {' and '.join(names)}")
    study = studies.load(names[0], small=values["small"] == "true")
    place = folder_of(study, out)
    if study.is_script:
        return _script(study, place, given, values["dry_run"] == "true")
    if values["dry_run"] == "true":
        show(study, place, given)
        return None
    return make(study, place, given, arguments)


def listing(out: Path) -> None:
    """Print every study: what it shows, run-updates and hours of the whole and of the small version, and its state."""
    rates = _Rates(out / "rates.json")
    if not rates.here:
        print("the first time this measures how long updates take here, some minutes", file=sys.stderr)
    for paper_name in dict.fromkeys(name.partition("/")[0] for name in studies.names()):
        rows = [["", "run-updates", "hours", "small", "hours", "state"]]
        shown = []
        for name in studies.names():
            if name.startswith(f"{paper_name}/"):
                versions = [studies.load(name, small) for small in (False, True)]
                cells = [cell for study in versions for cell in _cost(study, rates)]
                states = [state(study, out) for study in versions]
                rows.append([name, *cells, ", ".join(s for s in states if s) or "never"])
                shown.append([name, f"{versions[0].shows} ({versions[0].where})"])
        print("\n".join([*fitted(shown), "", *aligned(rows), ""]))
    print(
        "A run-update is one update of one run. Hours are of the updates alone, one after another on this machine; a\n"
        "run starts, evaluates and measures besides, which is the larger part of many small versions."
    )
    print(
        "python -m rl_plasticity.reproduce NAME makes one; with small=true its small version, with dry_run=true none."
    )


def show(study: Study, place: Path, given: Sequence[str]) -> None:
    """Print each method's runs as a sweep that could be made by hand."""
    own, launcher = launchers.apart(given)
    launchers.load(launcher)
    study.runs(place / "runs", own)  # checked
    for label, arguments in study.arguments(own).items():
        sweep_of = [
            "python",
            "-m",
            f"rl_plasticity.{study.command}",
            "-m",
            *arguments,
            f"out={place / 'runs'}",
            *launcher,
        ]
        print(f"{label}: {shlex.join(sweep_of)}")


def make(study: Study, place: Path, given: Sequence[str], asked: Sequence[str]) -> int:
    """Make the runs that are missing, then draw; returns the status of the sweep. `asked` is the whole command line."""
    own, of_launcher = launchers.apart(given)
    launcher = launchers.load(of_launcher)
    runs = study.runs(place / "runs", own)
    status = sweep.make(COMMANDS[study.command], [run for of_method in runs.values() for run in of_method], launcher)
    done = {label: [run.folder for run in of_method if finished(run.folder)] for label, of_method in runs.items()}
    if any(done.values()):
        draw(study, place, done)
        command = shlex.join(["python", "-m", "rl_plasticity.reproduce", *asked])
        write_text(place / "record.json", record.text(study, command, done))
    return status


def draw(study: Study, place: Path, folders: dict[str, list[Path]]) -> None:
    """Write figure.png and figure.pdf (figure.csv of rows), or table.md, and the comparison pages."""
    methods = {
        label: [run for folder in of_method for run in loading.read(RunFolder(folder))]
        for label, of_method in folders.items()
    }
    if study.draw.get("kind") == "table":
        lines = paper.table(study.draw, methods)
        text = "\n".join("| " + " | ".join(line) + " |" for line in [lines[0], ["---"] * len(lines[0]), *lines[1:]])
        write_text(place / "table.md", text + "\n")
        print("\n".join(["", *fitted(lines)]))
        made = "table.md"
    else:
        figure = paper.draw(study.draw, methods)
        figure.savefig(place / "figure.png", dpi=200)
        figure.savefig(place / "figure.pdf")
        made = "figure.png, figure.pdf"
        if numbers := paper.numbers(study.draw, methods):
            file = io.StringIO()
            csv.writer(file, lineterminator="\n").writerows(numbers)
            write_text(place / "figure.csv", file.getvalue())
            made += ", figure.csv"
    runs = [run for of_method in methods.values() for run in of_method]
    for name, page in study.pages.items():
        of_page = dict.fromkeys(run.folder.path for run in runs if paper.has(run, page.get("where", {})))
        try:
            if not of_page:
                raise SettingsError("none of its runs is finished")
            compare.compare(*of_page, out=place / name, mix=TASK[study.command], baseline=page.get("baseline"))
            made += f", {name}/report.html"
        except SettingsError as error:
            command_line.complain("reproduce", f"no page {name}: {error}", 0)
    print(f"\n{study.name}: wrote {made} in {place}")


def state(study: Study, out: Path) -> str:
    """``whole`` or ``small`` where all runs are finished, ``small: 3 of 20`` where some are; else empty."""
    word = "small" if study.small else "whole"
    place = folder_of(study, out)
    if study.is_script:
        return word if any(place.glob("*.png")) else ""
    if not (place / "runs").is_dir():
        return ""
    runs = [run for of_method in study.runs(place / "runs").values() for run in of_method]
    done = sum(finished(run.folder) for run in runs)
    return word if done == len(runs) else f"{word}: {done} of {len(runs)}" if done else ""


def folder_of(study: Study, out: Path) -> Path:
    """Of a version of a study."""
    return out / ("small" if study.small else "whole") / study.name


# ------------------------------------------------------------------------------------------------------------------


class _Rates:
    """Seconds of an update, measured once on each machine and kept in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.machine = f"{platform.node()} {processor()} torch {torch.__version__}"
        self.all: dict[str, dict[str, Any]] = {}
        with suppress(OSError, ValueError):
            self.all = json.loads(path.read_text())
        self.here = self.all.setdefault(self.machine, {})

    def of(self, settings: Any) -> float:
        seconds: float = self._kept(cost.key(settings), lambda: cost.seconds_per_update(settings))
        return seconds

    def of_script(self, study: Study) -> tuple[float, float]:
        """Run-updates and their seconds; the script knows them."""
        needed = [part for name in study.needs for part in (f"--{name}", ".")]
        call = [study.command, *study.settings, *needed, "--cost"]

        def said() -> list[float]:
            asked = [sys.executable, str(REPOSITORY / call[0]), *call[1:]]
            text = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
            words = text.split()  # "200 run-updates of 0.36 seconds"
            return [float(words[0]), float(words[3])]

        updates, seconds = self._kept(shlex.join(call), said)
        return updates, updates * seconds

    def _kept(self, key: str, measure: Callable[[], Any]) -> Any:
        if key not in self.here:
            print(f"measuring an update: {key}", file=sys.stderr)
            self.here[key] = measure()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.path, json.dumps(self.all, indent=1))
        return self.here[key]


def _cost(study: Study, rates: _Rates) -> tuple[str, str]:
    """Run-updates and hours, in words; of a script that is not here none."""
    if study.is_script and not (REPOSITORY / study.command).exists():
        return "", ""
    if study.is_script:
        updates, seconds = rates.of_script(study)
        return _words(updates, seconds)
    alike: dict[str, list[Any]] = {}  # a seed costs what another does
    for of_method in study.runs(Path("nowhere")).values():
        for run in of_method:
            alike.setdefault(repr(replace(run.settings, seed=0, out="auto")), []).append(run.settings)
    updates = seconds = 0.0
    for one, *others in alike.values():
        number = cost.updates(one) * (1 + len(others))
        updates, seconds = updates + number, seconds + number * rates.of(one)
    return _words(updates, seconds)


def _words(updates: float, seconds: float) -> tuple[str, str]:
    hours = float(f"{seconds / 3600:.2g}")
    return f"{updates:.2g}", f"{hours:,.0f}" if hours >= 100 else f"{hours:g}"


def _script(study: Study, place: Path, given: Sequence[str], dry_run: bool) -> int | None:
    """Run a script of the repository; ``{out}`` in its arguments is the study's folder, ``name=value`` is an option."""
    own, of_launcher = launchers.apart(given)
    if of_launcher:
        raise SettingsError(f"{study.name} is made by one script, not a sweep: leave {of_launcher[0]} out")
    named = {name: value for name, _, value in (g.partition("=") for g in own)}
    for name, what in study.needs.items():
        if name not in named:
            raise SettingsError(f"{study.name} needs {name}=..., {what}; small=true draws its own pictures")
    options = [part for name, value in named.items() for part in (f"--{name}", value)]
    arguments = [*(a.replace("{out}", str(place)) for a in study.settings), *options]
    if dry_run:
        print(f"python {study.command} {shlex.join(arguments)}")
        return None
    script = REPOSITORY / study.command
    if not script.exists():
        raise SettingsError(f"{study.name} is made by {study.command}, a script of the repository: clone it")
    place.mkdir(parents=True, exist_ok=True)
    status = subprocess.run([sys.executable, str(script), *arguments], check=False).returncode
    if status == 0:
        print(f"\n{study.name}: wrote {place}")
    elif any(place.iterdir()):
        print(f"\n{study.name}: failed; what there is lies in {place}")
    else:
        place.rmdir()
        print(f"\n{study.name}: failed")
    return status


def _option(options: Sequence[str], name: str) -> str:
    values = [value for option, _, value in (o.partition("=") for o in options) if option == name]
    if len(values) > 1:
        raise SettingsError(f"{name} is given twice")
    if values and name != "out" and values[0] not in ("true", "false"):
        raise SettingsError(f"{name} must be true or false, got {values[0]!r}{nearest(values[0], ('true', 'false'))}")
    return values[0] if values else ""


if __name__ == "__main__":
    command_line.main("reproduce", lambda _: HELP.rstrip(), command)
