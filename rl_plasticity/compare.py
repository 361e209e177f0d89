"""Compare runs: ``python -m rl_plasticity.compare results/a results/b ...``."""

import io
import math
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from rl_plasticity import command_line
from rl_plasticity.comparison.figures import draw
from rl_plasticity.comparison.groups import group
from rl_plasticity.comparison.loading import read
from rl_plasticity.comparison.report import GENERATOR, Picture, render
from rl_plasticity.comparison.summary import Comparison, summarize
from rl_plasticity.errors import SettingsError
from rl_plasticity.paths import expanded
from rl_plasticity.runs.folder import find, write_text

HELP = """python -m rl_plasticity.compare FOLDER... [name=value ...]

Compares the runs in the folders: runs' own folders, a sweep's folder (searched for runs) or globs. Runs are grouped by
everything but the seed. Prints a table; writes comparison.csv, report.html (one file, to open in a browser) and
figures/ (PNG and PDF).

  out=FOLDER         where to; default: comparison. A comparison that lies there is replaced, anything else is not
  metric=NAME        default: eval/return; supervised: task/test_accuracy, or task/train_accuracy
  target=NUMBER      adds the steps until the metric first reaches it
  baseline=LABEL     the group that the others are measured against; default: the one with reset=periodic, else
                     the one with reg=none and reset=none
  mix=NAME,...       settings of the task or length in which runs may differ: env.name, total_env_steps, data, ...
"""


OPTIONS = ("out", "metric", "target", "baseline", "mix")


def command(arguments: Sequence[str]) -> None:
    """Compare, write the folder and print the table."""
    places, options = parse(arguments)
    done = "replaced" if replaceable(options["out"]) else "wrote"
    comparison = compare(*places, **options)
    show(comparison)
    print(f"\n{done} {options['out'] / 'report.html'}, comparison.csv and figures/")


def compare(
    *places: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    metric: str | None = None,
    target: float | None = None,
    baseline: str | None = None,
    mix: Sequence[str] = (),
) -> Comparison:
    """The statistics of the runs in the folders; its ``table()`` is a list of rows of text, the first the header.

    Args:
        places: runs' own folders, sweeps' folders or globs.
        out: the folder to write the page, the CSV and the figures to; without one nothing is written.
        metric, target, baseline, mix: as on the command line.

    Raises:
        SettingsError: bad input: no run is there, runs that cannot be compared, an unknown metric or label, ...
    """
    if not places:
        raise SettingsError("name at least one folder with runs")
    if target is not None and not math.isfinite(target):
        raise SettingsError(f"target must be a number, got {target}")
    if out is not None:
        replaceable(Path(out))
    named, below = find(places)
    runs, warnings = [run for folder in named for run in read(folder)], []
    for folder in below:
        try:
            runs += read(folder)
        except SettingsError as error:  # one broken run of a sweep does not keep the others from being compared
            warnings.append(f"left out: {error}")
    if not runs:
        raise SettingsError(warnings[0] if warnings else f"no run in {places[0]} has written a number yet")
    comparison = summarize(group(runs, mix), metric, target, baseline)
    comparison = replace(comparison, warnings=[*warnings, *comparison.warnings])
    if out is not None:
        options = {"out": out, "metric": metric, "target": target, "baseline": baseline, "mix": ",".join(mix)}
        given = [f"{name}={value}" for name, value in options.items() if value not in (None, "")]
        command = shlex.join(["python", "-m", "rl_plasticity.compare", *map(str, places), *given])
        _write(comparison, Path(out), command)
    return comparison


def parse(arguments: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """The places to look for runs, and the options as `compare` takes them.

    Raises:
        SettingsError: an unknown or unreadable option.
    """
    places, options = command_line.places_and_options(arguments, OPTIONS)
    given: dict[str, Any] = dict(options)
    given["out"] = expanded(given.get("out", "comparison"))
    if "mix" in given:
        given["mix"] = [part for part in given["mix"].split(",") if part]
    if "target" in given:
        try:
            given["target"] = float(given["target"])
        except ValueError:
            raise SettingsError(f"target must be a number, got {given['target']!r}") from None
    return places, given


def replaceable(out: Path) -> bool:
    """Whether `out` is a comparison to be replaced; False if nothing is there.

    Raises:
        SettingsError: something else is there, or something besides the comparison.
    """
    try:
        (out.parent / f".{out.name}.new").exists()
    except OSError as error:
        raise SettingsError(f"cannot write to {out}: {error.strerror}") from error
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    here = {str(p.relative_to(out)) for p in out.rglob("*") if not p.is_dir()} if out.is_dir() else set()
    if "report.html" not in here:
        raise SettingsError(f"{out} exists and is no comparison; choose another out=")
    page = _Head()
    page.feed((out / "report.html").read_text(errors="replace"))
    foreign = sorted(here - set(page.named.get("files", "").split()))
    if page.named.get("generator") != GENERATOR or foreign:
        what = f"holds more than a comparison ({foreign[0]})" if foreign else "is no comparison"
        raise SettingsError(f"{out} {what}; choose another out=")
    return True


def _write(comparison: Comparison, out: Path, command: str) -> None:
    """Write the folder: whole beside its place first, then moved there.

    Raises:
        SettingsError: it cannot be written.
    """
    new = out.parent / f".{out.name}.new"
    try:
        shutil.rmtree(new, ignore_errors=True)
        (new / "figures").mkdir(parents=True)
        pictures, files = [], ["comparison.csv", "report.html"]
        for drawn in draw(comparison):
            png = io.BytesIO()
            drawn.figure.savefig(png, dpi=200, format="png")
            (new / "figures" / f"{drawn.name}.png").write_bytes(png.getvalue())
            drawn.figure.savefig(new / "figures" / f"{drawn.name}.pdf")
            files += [f"figures/{drawn.name}.{kind}" for kind in ("png", "pdf")]
            width = drawn.figure.get_figwidth()
            pictures.append(Picture(drawn.name, drawn.title, png.getvalue(), width, drawn.caption))
        write_text(new / "comparison.csv", comparison.to_csv())
        write_text(new / "report.html", render(comparison, pictures, command, files))
        if out.exists():
            shutil.rmtree(out)
        new.rename(out)
    except OSError as error:
        raise SettingsError(f"cannot write to {out}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(new, ignore_errors=True)


def show(comparison: Comparison) -> None:
    """Print the verdict, the table and, on stderr, the warnings."""
    print(comparison.verdict() + "\n")
    lines = comparison.table()
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    if comparison.warnings:
        print()
    for warning in comparison.warnings:
        print(f"rl_plasticity.compare: {warning}", file=sys.stderr)


class _Head(HTMLParser):
    """Reads the ``meta`` tags."""

    def __init__(self) -> None:
        super().__init__()
        self.named: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "meta" and values.get("name"):
            self.named[str(values["name"])] = values.get("content") or ""


if __name__ == "__main__":
    command_line.main("compare", lambda _: HELP.rstrip(), command)
