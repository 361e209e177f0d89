"""Compare runs: ``python -m rl_plasticity.compare results/a results/b ...``."""

if __name__ == "__main__":
    from rl_plasticity import terminal

    terminal.prepare()

import io
import json
import math
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_plasticity import command_line, plugins
from rl_plasticity.configs import schema
from rl_plasticity.errors import SettingsError, nearest, printable, shown
from rl_plasticity.paths import exists, expanded
from rl_plasticity.runs.files import write_text
from rl_plasticity.runs.folder import find

# rl_plasticity.comparison needs torch and matplotlib, which --help and a misspelled option do not wait for.
if TYPE_CHECKING:
    from pandas import DataFrame

    from rl_plasticity.comparison.published import Published
    from rl_plasticity.comparison.summary import Comparison
    from rl_plasticity.metrics import Direction

HELP = """python -m rl_plasticity.compare FOLDER... [name=value ...]

Compares the runs in the folders: runs' own folders, a sweep's folder (searched for runs) or globs. Runs are grouped by
everything but the seed. Prints a table; writes comparison.csv, table.tex (for a paper), report.html (one file, to
open in a browser), figures/ (PNG and PDF) and, of agents, curves.csv (the returns as SimBa and XQC publish theirs).

  out=FOLDER         where to; default: comparison. A comparison of the same folders is replaced, anything else is not
  metric=NAME        default: eval/return; supervised: task/test_accuracy, or task/train_accuracy
  better=higher|lower
                     which values of the metric count as better; default: as the metric says (critic/dormant: lower)
  table=FORM         what is printed: text, or the table alone as latex (booktabs) or markdown, with a caption that says
                     what its intervals are
  target=NUMBER      adds the steps until the metric first reaches it
  baseline=LABEL     the group that the others are measured against; default: the one with reset=periodic, else
                     the one with reg=none and reset=none
  leave_out=LABEL,...
                     groups to leave out; FOLDER:LABEL leaves out only those of its runs that lie in the folder
  choose=NAME,...    settings to choose, reg.coef: of groups that differ in nothing else only the best is compared. Test
                     accuracies are chosen by validation images, everything else by the metric itself
  choose_seeds=N,... the seeds that decide the choice; they are then left out of the comparison
  against=FILE.csv,...
                     published returns to show beside (columns exp_name, env_name, seed, metric, env_step, value); their
                     env steps are divided by the runs' action repeat
  plugins=[NAME,...] modules of yours, whose metrics say which values are better
  mix=NAME,...       settings of the task or length in which runs may differ: env.name, total_env_steps, data, ...
"""


def _names(text: str) -> list[str]:
    return [part for part in re.split(r",(?! )", text) if part]  # a label may hold a list: hidden=[64, 64]


OPTIONS: dict[str, Callable[[str], Any]] = {
    "out": expanded,
    "metric": str,
    "target": float,
    "baseline": str,
    "leave_out": _names,
    "choose": _names,
    "choose_seeds": lambda text: [int(seed) for seed in text.split(",")],
    "better": str,
    "against": lambda text: text.split(","),
    "mix": _names,
    "plugins": str,
    "table": str,
}
"""The options of the command, and how the text of each is read."""
EXPECTED = {"target": "a number", "choose_seeds": "seeds, 3,4"}
FORMS = ("text", "latex", "markdown")


def command(arguments: Sequence[str]) -> None:
    """Compare, write the folder and print the table."""
    places, options = parse(arguments)
    if "plugins" in options:
        schema.load_plugs_of([f"plugins={options.pop('plugins')}"])
    done = "replaced" if exists(_place(options["out"]) / "report.html") else "wrote"
    form = options.pop("table", "text")
    comparison = compare(*places, **options)
    show(comparison, form)
    written = f"{done} {options['out'] / 'report.html'}, comparison.csv, table.tex and figures/"
    print(f"\n{written}", file=sys.stdout if form == "text" else sys.stderr)


def compare(
    *places: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    metric: str | None = None,
    target: float | None = None,
    baseline: str | None = None,
    mix: Sequence[str] = (),
    leave_out: Sequence[str] = (),
    choose: Sequence[str] = (),
    choose_seeds: Sequence[int] = (),
    better: "Direction | None" = None,
    against: Sequence[str | os.PathLike[str]] = (),
) -> "Comparison":
    """Compare the runs in some folders. The result's ``table()`` is a list of rows of text, the first one the header.

    Args:
        places: runs' own folders, sweeps' folders or globs.
        out: the folder for the page, the CSV file and the figures; by default nothing is written.
        metric, target, baseline, mix, leave_out, choose, choose_seeds, better, against: as on the command line.

    Raises:
        SettingsError: bad input: no run, runs that cannot be compared, an unknown metric or label, ...
    """
    if not places:
        raise SettingsError("name at least one folder with runs")
    if target is not None and not math.isfinite(target):
        raise SettingsError(f"target must be a number, got {target}")
    if better not in (None, "higher", "lower"):
        raise SettingsError(f"better must be higher or lower, got {better!r}")
    if choose_seeds and not choose:
        raise SettingsError("choose_seeds says which seeds decide a choice: say choose=NAME,... too")
    named, below = find(places)
    if out is not None:
        replaceable(_place(out), places)
    from rl_plasticity.comparison import choosing
    from rl_plasticity.comparison.groups import group
    from rl_plasticity.comparison.loading import read
    from rl_plasticity.comparison.summary import summarize

    warnings: list[str] = []
    runs = [run for folder in named for run in read(folder, warnings)]
    for folder in below:
        try:
            runs += read(folder, warnings)
        except SettingsError as error:  # a broken run of a sweep must not prevent the comparison of the others
            warnings.append(f"left out: {error}")
    if not runs:
        raise SettingsError(warnings[0] if warnings else f"no run in {places[0]} has written a number yet")
    groups, chosen = group(runs, mix, leave_out), ""
    candidates: list[Comparison] = []
    if choose:
        groups, chosen, candidates = choosing.choose(groups, choose, metric, warnings, choose_seeds, better)
    comparison = summarize(groups, metric, target, baseline, better)
    warnings += comparison.warnings
    published = _published(comparison, against) if against else ()
    comparison = replace(comparison, warnings=warnings, chosen=chosen, candidates=candidates, published=published)
    if out is not None:
        lists = {"against": against, "leave_out": leave_out, "choose": choose, "mix": mix, "choose_seeds": choose_seeds}
        options = {"out": out, "metric": metric, "target": target, "baseline": baseline}
        options |= {name: ",".join(map(str, values)) for name, values in lists.items()}
        options |= {"better": better, "plugins": f"[{','.join(plugins.loaded)}]" if plugins.loaded else None}
        given = [f"{name}={value}" for name, value in options.items() if value not in (None, "")]
        command = shlex.join(["python", "-m", "rl_plasticity.compare", *map(str, places), *given])
        _write(comparison, _place(out), places, command)
    return comparison


def _published(comparison: "Comparison", files: Sequence[str | os.PathLike[str]]) -> "list[Published]":
    """What the files have on the comparison's tasks; raises SettingsError if the metric is another."""
    from rl_plasticity.comparison import published

    if comparison.metric != published.OURS:
        raise SettingsError(f"against= has returns, which cannot be beside {comparison.metric}; leave metric= out")
    repeats = {
        task: published.action_repeat(next(run for row in comparison.rows for run in row.group.tasks.get(task, ())))
        for task in comparison.at
    }
    return [one for file in files for one in published.read(file, repeats)]


def frame(*places: str | os.PathLike[str], mix: Sequence[str] = (), leave_out: Sequence[str] = ()) -> "DataFrame":
    """All metrics of several folders as one tidy pandas ``DataFrame``, with the groups of `compare`.

    The columns are group, task, seed, one for each setting in which groups differ, metric, step and value. Rows of one
    run and metric follow each other.

    Args:
        places: as of `compare`; also `mix` and `leave_out`.

    Raises:
        SettingsError: as `compare`, or pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise SettingsError("frame() needs pandas: pip install pandas") from None
    from rl_plasticity.comparison.groups import differing, group
    from rl_plasticity.comparison.loading import read

    named, below = find(places)
    groups = group([run for folder in (*named, *below) for run in read(folder)], mix, leave_out)
    settings = differing([g.settings for g in groups])
    parts = [
        pandas.DataFrame({"metric": metric, "step": curve.steps, "value": curve.values}).assign(
            group=g.label, task=task, seed=run.seed, **{n: [g.settings.get(n)] * len(curve.steps) for n in settings}
        )
        for g in groups
        for task, runs in g.tasks.items()
        for run in runs
        for metric, curve in run.curves.items()
    ]
    return pandas.concat(parts, ignore_index=True)[["group", "task", "seed", *settings, "metric", "step", "value"]]


def parse(arguments: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """The places to look for runs, and the options as `compare` takes them.

    Raises:
        SettingsError: an unknown or unreadable option.
    """
    places, texts = command_line.places_and_options(arguments, [*OPTIONS])
    given = {}
    for name, text in ({"out": "comparison"} | texts).items():
        try:
            given[name] = OPTIONS[name](text)
        except ValueError:
            raise SettingsError(f"{name} must be {EXPECTED[name]}, got {text!r}") from None
    if (form := texts.get("table", "text")) not in FORMS:
        raise SettingsError(
            f"table must be {', '.join(FORMS[:-1])} or {FORMS[-1]}, got {shown(form)}{nearest(form, FORMS)}"
        )
    return places, given


def _place(out: str | os.PathLike[str]) -> Path:
    """The folder of a comparison; a link is followed."""
    return expanded(out).resolve()


def replaceable(out: Path, places: Sequence[str | os.PathLike[str]]) -> bool:
    """Whether `out` is a comparison that one of these `places` can replace; false if nothing is there.

    It can if the earlier one was of the same places, or of some of them.

    Raises:
        SettingsError: something else is there, alone or beside a comparison; the comparison is of other places; or the
            folder cannot be written.
    """
    try:
        parent = next(folder for folder in out.parents if folder.exists())
        if not (parent.is_dir() and os.access(parent, os.W_OK)):
            raise SettingsError(f"cannot write to {out}: {parent} is no folder that can be written to")
        if not out.exists() or (out.is_dir() and not any(out.iterdir())):
            return False
        ours = _files_of(out)
        here = {str(p.relative_to(out)) for p in out.rglob("*") if p.is_symlink() or not p.is_dir()}
    except OSError as error:
        raise SettingsError(f"cannot write to {out}: {error.strerror or error}") from error
    if not ours:
        raise SettingsError(f"{out} exists and is no comparison; choose another out=")
    if foreign := sorted(here - ours):
        raise SettingsError(f"{out} holds more than a comparison ({foreign[0]}); choose another out=")
    before = json.loads(_head(out).get("places", "[]"))
    if others := [place for place in before if place not in _relative(places, out)]:
        other = os.path.normpath(out / others[0])
        raise SettingsError(f"{out} holds a comparison of other folders ({other}); choose another out=FOLDER")
    return True


def _relative(places: Sequence[str | os.PathLike[str]], out: Path) -> list[str]:
    """The places of the runs as seen from `out`, so that all may be moved together."""
    return sorted({os.path.relpath(expanded(place).resolve(), out) for place in places})


def _files_of(out: Path) -> set[str]:
    """The files that the comparison in `out` lists as its own; none if no comparison is there."""
    return set(_head(out).get("files", "").split())


def _head(out: Path) -> dict[str, str]:
    """What the page of the comparison in `out` says about itself; empty if no comparison is there."""
    from rl_plasticity.comparison.report import GENERATOR

    page = out / "report.html"
    head = page.read_text(errors="replace").partition("<title>")[0] if page.is_file() else ""
    named = {name: unescape(text) for name, text in re.findall(r'<meta name="([^"]*)" content="([^"]*)">', head)}
    return named if named.get("generator") == GENERATOR else {}


def _write(comparison: "Comparison", out: Path, places: Sequence[str | os.PathLike[str]], command: str) -> None:
    """Write the folder: first completely beside its place, then move it there.

    Raises:
        SettingsError: it cannot be written.
    """
    from rl_plasticity.comparison.figures import colours, draw
    from rl_plasticity.comparison.published import OURS, written
    from rl_plasticity.comparison.report import render
    from rl_plasticity.comparison.svg import picture

    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".comparison-", dir=out.parent) as beside:
            new = Path(beside) / "new"
            (new / "figures").mkdir(parents=True)
            pictures, files = [], ["comparison.csv", "table.tex", "report.html"]
            for drawn in draw(comparison):
                png = io.BytesIO()
                drawn.figure.savefig(png, dpi=200, format="png")
                drawn.figure.set_layout_engine("none")  # all forms of the figure keep the first layout
                (new / "figures" / f"{drawn.name}.png").write_bytes(png.getvalue())
                drawn.figure.savefig(new / "figures" / f"{drawn.name}.pdf")
                files += [f"figures/{drawn.name}.{kind}" for kind in ("png", "pdf")]
                pictures.append(picture(comparison, drawn, png.getvalue()))
            write_text(new / "comparison.csv", comparison.to_csv())
            write_text(new / "table.tex", comparison.to_latex())
            if comparison.metric == OURS:
                write_text(new / "curves.csv", written([row.group for row in comparison.rows]))
                files.append("curves.csv")
            head = {"files": " ".join(files), "places": json.dumps(_relative(places, out))}
            write_text(new / "report.html", render(comparison, pictures, colours(comparison), command, head))
            if replaceable(out, places):  # other files may have come there meanwhile
                for name in _files_of(out):
                    (out / name).unlink(missing_ok=True)
                (out / "figures").rmdir()
            if out.exists():
                out.rmdir()
            new.rename(out)
    except OSError as error:
        raise SettingsError(f"cannot write to {out}: {error.strerror or error}") from error


def show(comparison: "Comparison", form: str = "text") -> None:
    """Print the verdict and the table, or only the table in another form, and the warnings on stderr."""
    if form != "text":
        print(comparison.to_latex() if form == "latex" else comparison.to_markdown(), end="")
    else:
        print(printable(comparison.verdict()) + "\n")
        for choice in comparison.candidates:
            print(f"Chosen by {choice.metric} at {choice.where}, the first:")
            print("\n".join(command_line.fitted(choice.table())) + "\n")
        print("\n".join(command_line.fitted(comparison.table())))
        if comparison.published:
            print("\n" + "\n".join(command_line.fitted(comparison.published_table())))
        if comparison.warnings:
            print()
    for warning in comparison.warnings:
        print(printable(f"rl_plasticity.compare: {warning}"), file=sys.stderr)


if __name__ == "__main__":
    command_line.main("compare", lambda _: HELP.rstrip(), command)
