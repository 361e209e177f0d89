"""The command that makes the papers' figures and tables: ``python -m papers spectral/figure-3 small=true``."""

import csv
import difflib
import json
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from papers import study as studies
from papers.study import Study
from rl_plasticity import FaultyRun, RunFolder, SettingsError
from rl_plasticity.errors import nearest
from rl_plasticity.sweeps.job import finished

HELP = """python -m papers [PAPER/FIGURE] [name=value ...]

Without a figure: lists all figures and tables of the three papers and our own studies, with what they show, what they
cost, and which were made here.
With a figure: trains its missing runs. Then writes the figure in the paper's layout, comparison pages, and record.json,
which says where the numbers come from.

  small=true         a version in minutes, on the digits or a cheap control task
  out=FOLDER         where to; default: results/reproductions
  dry_run=true       only list the runs, with one sweep for each method
  launcher=...       the launcher of the sweeps: joblib, slurm, ray
  any other setting  applies to all runs and overrides the study's own: device=cuda, seeds=3, data.root=FOLDER. One
                     that makes another method of a line than its label says (reg=mine) is refused. For a study that is
                     a script, it is an option of the script: data=mnist for --data mnist
"""
OUT = "results/reproductions"
OWN = ("small", "out", "dry_run")
# Settings in which the runs of a comparison page may differ.
MIX = {
    "train": ("env", "total_env_steps"),
    "supervised": ("task", "data", "net", "num_tasks", "epochs_per_task"),
}


def main() -> int:
    """Run the command line; returns 2 for bad input, 1 for a fault (each with one line), and 130 for Ctrl-C."""
    try:
        if {"-h", "--help"} & {*sys.argv[1:]}:
            print(HELP.rstrip())
            return 0
        return command(sys.argv[1:]) or 0
    except (SettingsError, FaultyRun, OSError) as error:
        print(f"papers: {error}", file=sys.stderr)
        return 2 if isinstance(error, SettingsError) else 1
    except KeyboardInterrupt:
        return 130


def command(arguments: Sequence[str]) -> int | None:
    """List all studies, or make one of them."""
    for flag in (a for a in arguments if a.startswith("-")):
        raise SettingsError(f"unknown option {flag!r}{nearest(flag, ['--help'])}")
    names = [a for a in arguments if "=" not in a]
    options = [a for a in arguments if "=" in a and a.partition("=")[0] in OWN]
    given = [a for a in arguments if "=" in a and a not in options]
    for name in (a.partition("=")[0] for a in given):
        if close := difflib.get_close_matches(name, OWN, n=1, cutoff=0.75):  # no setting of a run is this similar
            raise SettingsError(f"unknown setting {name!r}; did you mean {close[0]!r}?")
    values = {name: _option(options, name) for name in OWN}
    out = Path(values["out"] or OUT).expanduser()
    if len(names) > 1:
        raise SettingsError(f"one figure at a time, got {' and '.join(names)}")
    others = [a for a in [*options, *given] if not a.startswith("out=")]
    if others and not names:
        raise SettingsError(f"{others[0]}: name the figure that it is for")
    if not names:
        listing(out)
        return None
    study = studies.load(names[0], small=values["small"] == "true")
    place = folder_of(study, out)
    if study.is_script:
        return _script(study, place, given, values["dry_run"] == "true")
    if values["dry_run"] == "true":
        show(study, place, given)
        return None
    return make(study, place, given, arguments)


def listing(out: Path) -> None:
    """Print every study: what it shows, the cost of its whole and its small version, and its state.

    The costs are recorded ones: nothing is measured, started or written here.
    """
    machines = set()
    records = (studies.REPOSITORY / "docs" / "results").glob("*/*/record.json")
    published = {json.loads(path.read_text())["study"] for path in records}
    for paper_name in dict.fromkeys(name.partition("/")[0] for name in studies.names()):
        rows = [["", "run-updates", "hours", "small", "hours", "here"]]
        for name in studies.names():
            if name.startswith(f"{paper_name}/"):
                versions = [studies.load(name, small) for small in (False, True)]
                costs = [study.cost for study in versions]
                machines |= {cost.machine for cost in costs if cost.machine}
                cells = [cell for cost in costs for cell in _words(cost.run_updates, cost.hours, "*" * cost.by_clock)]
                states = [state(study, out) for study in versions]
                here = ", ".join(filter(None, states)) or ("published" if name in published else "not here")
                rows.append([name, *cells, here])
                where = f" ({versions[0].where})" if versions[0].where else ""
                shown = f"{name}  {versions[0].shows}{where}"
                print(textwrap.fill(shown, 100, subsequent_indent="    ", break_on_hyphens=False))
        print("\n".join(["", *aligned(rows), ""]))
    print(
        f"A run-update is one update of one run. Hours were recorded on {' and '.join(sorted(machines))}:\n"
        "CPU hours of all runs; with a * hours by the clock, on cores that other work shared.\n"
        "python -m papers NAME makes one; with small=true its small version, with dry_run=true none.\n"
        "What the small versions of papers gave is in docs/reproductions.md."
    )


def show(study: Study, place: Path, given: Sequence[str]) -> None:
    """Print each method's runs as a sweep command that can be run by hand."""
    from rl_plasticity.sweeps import launchers

    own, launcher = launchers.apart(given)
    launchers.load(launcher)
    study.runs(place / "runs", own)  # checked
    command, rest = ["python", "-m", f"rl_plasticity.{study.command}", "-m"], [f"out={place / 'runs'}", *launcher]
    for label, sweeps in study.sweeps(own).items():
        for arguments in sweeps:
            print(f"{label}: {shlex.join([*command, *arguments, *rest])}")


def make(study: Study, place: Path, given: Sequence[str], asked: Sequence[str]) -> int:
    """Make the missing runs, then draw; returns the sweep's status. `asked` is the whole command line."""
    from papers import record
    from rl_plasticity.sweeps import launchers, sweep

    own, of_launcher = launchers.apart(given)
    launcher = launchers.load(of_launcher)
    runs = study.runs(place / "runs", own)
    everything = [run for of_method in runs.values() for run in of_method]
    sweep.check(study.makes, everything)
    status = sweep.make(everything, launcher)
    done = {label: [run.folder for run in of_method if finished(run.folder)] for label, of_method in runs.items()}
    if any(done.values()):
        draw(study, place, done)
        command = shlex.join(["python", "-m", "papers", *asked])
        (place / "record.json").write_text(record.text(study, command, own, done))
    return status


def draw(study: Study, place: Path, folders: dict[str, list[Path]]) -> None:
    """Write figure.png and figure.pdf (and figure.csv for rows), or table.md, and the comparison pages."""
    from papers import layout
    from rl_plasticity import compare
    from rl_plasticity.comparison import loading

    methods = {
        label: [run for folder in of_method for run in loading.read(RunFolder(folder))]
        for label, of_method in folders.items()
    }
    if study.draw.get("kind") == "table":
        lines = layout.table(study.draw, methods)
        text = "\n".join("| " + " | ".join(line) + " |" for line in [lines[0], ["---"] * len(lines[0]), *lines[1:]])
        (place / "table.md").write_text(text + "\n")
        print("\n".join(["", *aligned(lines)]))
        made = "table.md"
    else:
        figure = layout.draw(study.draw, methods)
        figure.savefig(place / "figure.png", dpi=200)
        figure.savefig(place / "figure.pdf")
        made = "figure.png, figure.pdf"
        if numbers := layout.numbers(study.draw, methods):
            with (place / "figure.csv").open("w", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(numbers)
            made += ", figure.csv"
    runs = [run for of_method in methods.values() for run in of_method]
    for name, page in study.pages.items():
        of_page = dict.fromkeys(run.folder.path for run in runs if layout.has(run, page.get("where", {})))
        try:
            if not of_page:
                raise SettingsError("none of its runs is finished")
            rest = {key: value for key, value in page.items() if key != "where"}
            compare.compare(*of_page, out=place / name, mix=MIX[study.command], **rest)
            made += f", {name}/report.html"
        except SettingsError as error:
            print(f"papers: no page {name}: {error}", file=sys.stderr)
    print(f"\n{study.name}: wrote {made} in {place}")


def state(study: Study, out: Path) -> str:
    """The state of a study: ``whole`` or ``small`` if finished, ``small: 3 of 20`` if some runs are, else empty.

    Settings given in addition to the study's own are named as in its record: ``small with seeds=3``.
    """
    word = "small" if study.small else "whole"
    place = folder_of(study, out)
    if study.is_script:
        return word if any(place.glob("*.png")) else ""
    with suppress(OSError, ValueError, TypeError, KeyError):
        if given := " ".join(json.loads((place / "record.json").read_text())["given"]):
            word += f" with {given}"
    done, runs = sum(map(finished, (place / "runs").glob("*"))), study.cost.runs
    return "" if not done else word if done >= runs else f"{word}: {done} of {runs}"


def folder_of(study: Study, out: Path) -> Path:
    """The folder of a version of a study."""
    return out / ("small" if study.small else "whole") / study.name


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table as text, with columns two spaces apart; empty columns are left out."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(x.ljust(n) for x, n in zip(line, widths, strict=True) if n).rstrip() for line in lines]


# ------------------------------------------------------------------------------------------------------------------


def _words(updates: float, hours: float | None, mark: str = "") -> tuple[str, str]:
    """Run-updates and hours as text for a table."""
    if hours is None:
        return f"{updates:.2g}", ""
    return f"{updates:.2g}", (f"{hours:,.0f}" if hours >= 99.5 else f"{hours:.2g}") + mark


def _script(study: Study, place: Path, given: Sequence[str], dry_run: bool) -> int | None:
    """Run a study's script; ``{out}`` in its arguments is the study's folder, and ``name=value`` is an option."""
    for argument in given:
        if argument.startswith("launcher"):
            raise SettingsError(f"{study.name} is made by one script, not a sweep: leave {argument} out")
    named = {name: value for name, _, value in (g.partition("=") for g in given)}
    for name, what in study.needs.items():
        if name not in named:
            raise SettingsError(f"{study.name} needs {name}=..., {what}; small=true draws its own pictures")
    options = [part for name, value in named.items() for part in (f"--{name}", value)]
    arguments = [*(a.replace("{out}", str(place)) for a in study.settings), *options]
    if dry_run:
        print(f"python {study.command} {shlex.join(arguments)}")
        return None
    place.mkdir(parents=True, exist_ok=True)
    status = subprocess.run([sys.executable, str(study.script), *arguments], check=False).returncode
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
    sys.exit(main())
