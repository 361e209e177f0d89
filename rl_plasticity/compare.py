"""Compare runs: ``python -m rl_plasticity.compare results/a results/b ...``."""

import io
import math
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_plasticity import command_line
from rl_plasticity.configs import schema
from rl_plasticity.configs.written import by_name
from rl_plasticity.errors import SettingsError, nearest, printable, refused
from rl_plasticity.paths import expanded
from rl_plasticity.runs.files import write_text
from rl_plasticity.runs.folder import RunFolder, find

# rl_plasticity.comparison needs torch and matplotlib, which --help and a misspelled option do not wait for.
if TYPE_CHECKING:
    from pandas import DataFrame

    from rl_plasticity.comparison.loading import Run
    from rl_plasticity.comparison.table import Comparison
    from rl_plasticity.metrics import Direction

HELP = """python -m rl_plasticity.compare FOLDER... [name=value ...]

Compares the runs in the folders. A folder is that of a run, that of a sweep or a glob. Runs that differ only in their
seeds form a group. Prints a table, and writes comparison.csv, table.tex (for a paper), report.html (to open in a
browser) and figures/ (PNG and PDF).

  out=FOLDER            where to write; default: comparison. Replaces an earlier comparison there, and nothing else
  metric=NAME           default: eval/return (task/return if RL tasks change); supervised: task/test_accuracy, or
                        task/train_accuracy
  better=higher|lower   which values count as better; default: as the metric says (critic/dormant: lower)
  columns=NAME,...      columns of the tables, by their names in comparison.csv: mean,iqm,gap; default: all
  table=FORM            what to print: text, or only the table as latex (booktabs) or markdown
  target=NUMBER         adds a column: the steps until the metric first reaches this number
  baseline=LABEL        the group to measure the others against; default: the one with reg=none and reset=none, else
                        the one with reset=periodic
  leave_out=LABEL,...   groups to leave out
  mix=NAME,...          settings of the task or length that may differ between runs: env.name, total_env_steps, data
  plugins=[NAME,...]    your own modules, whose metrics say which values are better
"""


def _names(text: str) -> list[str]:
    return text.split(",")


OPTIONS: dict[str, Callable[[str], Any]] = {
    "out": expanded, "metric": str, "target": float, "baseline": str, "leave_out": _names, "better": str,
    "mix": _names, "plugins": str, "table": str, "columns": _names,
}  # fmt: skip
"""The options of the command, and how the text of each is read."""
FORMS = ("text", "latex", "markdown")


def command(arguments: Sequence[str]) -> None:
    """Compare, write the folder and print the table."""
    places, options = parse(arguments)
    if "plugins" in options:
        schema.load_plugs(by_name([f"plugins={options.pop('plugins')}"])["plugins"])
    form = options.pop("table", "text")
    comparison = compare(*places, **options)
    show(comparison, form)
    written = f"\nwrote {options['out'] / 'report.html'}, comparison.csv, table.tex and figures/"
    print(printable(written.strip()), file=sys.stdout if form == "text" else sys.stderr)


def compare(
    *places: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    metric: str | None = None,
    target: float | None = None,
    baseline: str | None = None,
    mix: Sequence[str] = (),
    leave_out: Sequence[str] = (),
    better: "Direction | None" = None,
    columns: Sequence[str] = (),
) -> "Comparison":
    """Compare the runs in some folders. The result's ``table()`` is a list of rows of text, the first one the header.

    Args:
        places: runs' own folders, sweeps' folders or globs.
        out: the folder for the page, the CSV file and the figures; by default nothing is written.
        metric, target, baseline, mix, leave_out, better, columns: as on the command line.

    Raises:
        SettingsError: bad input: no run, runs that cannot be compared, an unknown metric or label, ...
    """
    if target is not None and not math.isfinite(target):
        raise SettingsError(f"target must be a number, got {target}")
    if better not in (None, "higher", "lower"):
        raise SettingsError(f"better must be higher or lower, got {better!r}")
    place = expanded(out).resolve() if out is not None else None
    folders = find(places)
    if place:
        _require_replaceable(place)
    from rl_plasticity.comparison.groups import group
    from rl_plasticity.comparison.table import summarize

    runs, left_out = _read(folders)
    comparison = summarize(group(runs, mix, leave_out), metric, target, baseline, better, columns)
    comparison = replace(comparison, warnings=[*left_out, *comparison.warnings])
    if place:
        _write(comparison, place)
    return comparison


def frame(*places: str | os.PathLike[str], mix: Sequence[str] = (), leave_out: Sequence[str] = ()) -> "DataFrame":
    """All metrics of several folders as one tidy pandas ``DataFrame``, with the groups of `compare`.

    The columns are group, task, seed, one for each setting in which groups differ, metric, step and value.

    Raises:
        SettingsError: as `compare`.
    """
    import pandas

    from rl_plasticity.comparison.groups import differing, group

    runs, left_out = _read(find(places))
    for said in left_out:
        warnings.warn(said, stacklevel=2)
    groups = group(runs, mix, leave_out)
    settings = differing([g.settings for g in groups])
    rows = [
        (g.label, task, run.seed, *(g.settings.get(name) for name in settings), metric, step, value)
        for g in groups
        for task, runs in g.tasks.items()
        for run in runs
        for metric, curve in run.curves.items()
        for step, value in zip(*curve, strict=True)
    ]
    return pandas.DataFrame(rows, columns=["group", "task", "seed", *settings, "metric", "step", "value"])


def parse(arguments: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """The places to look for runs, and the options as `compare` takes them.

    Raises:
        SettingsError: an unknown or unreadable option.
    """
    places, texts = command_line.places_and_options("compare", arguments, [*OPTIONS])
    try:
        given = {name: OPTIONS[name](text) for name, text in ({"out": "comparison"} | texts).items()}
    except ValueError:
        raise SettingsError(f"target must be a number, got {texts['target']!r}") from None
    if (form := texts.get("table", "text")) not in FORMS:
        raise SettingsError(f"table must be text, latex or markdown, got {form!r}{nearest(form, FORMS)}")
    return places, given


def _read(folders: Sequence[RunFolder]) -> tuple[list["Run"], list[str]]:
    """The runs in the folders, and a line for each folder that is left out: it must not prevent a comparison of others.

    Raises:
        SettingsError: all are left out; the line of the first.
    """
    from rl_plasticity.comparison.loading import read

    runs, said = [], []
    for folder in folders:
        try:
            runs += (found := read(folder))
        except SettingsError as error:
            said.append(f"left out: {error}")
        else:
            seeds, asked = {run.seed for run in found}, found[0].settings.get("seeds", 1)
            if len(seeds) < asked:
                said.append(f"{folder} has numbers for only {len(seeds)} of its {asked} seeds")
    if not runs:
        raise SettingsError(said[0] if said else "name at least one folder with runs")
    return runs, said


def _require_replaceable(out: Path) -> None:
    """Raises SettingsError if something other than a comparison is at `out`."""
    from rl_plasticity.comparison.report import GENERATOR

    page = out / "report.html"
    with refused(f"write to {out}"):
        is_ours = page.is_file() and GENERATOR in page.read_text(errors="replace")[:1000]
        if out.exists() and any(out.iterdir()) and not is_ours:
            raise SettingsError(f"{out} exists and is not a comparison; choose another out=")


def _write(comparison: "Comparison", out: Path) -> None:
    """Write the files, and replace those of an earlier comparison; anything else there stays."""
    from rl_plasticity.comparison.figures import NAMES, draw
    from rl_plasticity.comparison.report import render
    from rl_plasticity.runs.provenance import command_line_of_this

    with refused(f"write to {out}"):
        figures = []
        (out / "figures").mkdir(parents=True, exist_ok=True)
        for earlier in (out / "figures").iterdir():
            if earlier.stem in NAMES and earlier.suffix in (".png", ".pdf"):
                earlier.unlink()
        for drawn in draw(comparison):
            png = io.BytesIO()
            drawn.figure.savefig(png, dpi=200, format="png")
            write_text(out / "figures" / f"{drawn.name}.png", png.getvalue())
            drawn.figure.savefig(out / "figures" / f"{drawn.name}.pdf")
            figures.append((drawn, png.getvalue()))
        write_text(out / "comparison.csv", comparison.to_csv())
        write_text(out / "table.tex", comparison.to_latex())
        write_text(out / "report.html", render(comparison, figures, command_line_of_this()))


def show(comparison: "Comparison", form: str = "text", command: str = "compare") -> None:
    """Print the verdict and the table, or only the table in another form, and the warnings of a command on stderr."""
    if form != "text":
        print(comparison.to_latex() if form == "latex" else comparison.to_markdown(), end="")
    else:
        print(f"{printable(comparison.verdict())}\n\n{command_line.fitted(comparison.table())}")
    for warning in comparison.warnings:
        command_line.complain(command, warning, 0)


if __name__ == "__main__":
    command_line.main("compare", lambda _: HELP.rstrip(), command)
