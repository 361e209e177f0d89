"""What the pages show of measurements: a table of a CSV or of a command, and single numbers in the text.

The site puts a table where a page says ``<!-- table: SOURCE -->``. A number in the text is followed by where it is
from, ``0.97<!-- SOURCE; ROW; COLUMN -->``, and the tests compare the two. SOURCE is one of

- a CSV below docs/, then what to keep of it: ``results/speed/libraries.csv critics=1 library "share of the floor"``
  keeps the rows of one critic and two columns;
- a command that prints a table in Markdown: ``papers.results_table docs/results/rl/priming/figure.csv``.

GitHub shows no such table, but it shows a CSV as one. So each stands behind a link to its file, and what a command
prints is kept in one too: ``python -m papers.shown`` writes those of `PRINTED`.

ROW is the first cell of a printed table's row, or of a CSV the values that choose rows, ``library=SBX LayerNorm=yes``.
COLUMN is a header; over several rows of a CSV ``mean``, ``median``, ``min``, ``max``, ``sum`` or ``count`` precedes it.
"""

import contextlib
import csv
import io
import re
import runpy
import shlex
import statistics
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
NUMBER = r"([+-]?(?:\d{1,3}(?: \d{3})+|\d+)(?:\.\d+)?%?(?: \[[^\]]*\])?)"
SOURCE = re.compile(r"<!-- ([^;>]+); ([^;>]+); ([^;>]+) -->")
MARKED = re.compile(NUMBER + r"[*`]*" + SOURCE.pattern)
TABLE = re.compile(r"<!-- table: (.+?) -->")
PRINTED = {
    "results/already-trained-day-1.csv": "papers.already_trained docs/results/already-trained.csv start",
    "results/already-trained-day-31.csv": "papers.already_trained docs/results/already-trained.csv late",
    "results/already-trained-once.csv": "papers.already_trained docs/results/already-trained.csv once",
    "results/benchmark/quick-1/scores.csv": "rl_plasticity.benchmark quick table=markdown",
    "results/diagnose/known-verdicts.csv": "scripts.diagnose_known --rule after --show batches",
    "results/foreign-networks-counts.csv": "papers.foreign_networks",
    "results/rl/minatar-dqn/table.csv": "papers.minatar_curves docs/results/rl/minatar-dqn/published.csv",
}
OVER: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "min": min,
    "max": max,
    "sum": sum,
    "count": len,
}


@cache
def rows(source: str) -> tuple[dict[str, str], ...]:
    """The table of a source, a dict of header and cell for each row."""
    file, *words = shlex.split(source)
    if file.endswith(".csv"):
        with (ROOT / "docs" / file).open(newline="") as opened:
            found = chosen([*csv.DictReader(opened)], [word for word in words if "=" in word])
        columns = [word for word in words if "=" not in word]
        return tuple({name: row[name] for name in columns or row} for row in found)
    before, text = sys.argv, io.StringIO()
    sys.argv = [file, *words]
    try:
        # Else a module that is already imported would warn.
        quiet = warnings.catch_warnings(action="ignore", category=RuntimeWarning)
        with quiet, contextlib.chdir(ROOT), contextlib.redirect_stdout(text):
            runpy.run_module(file, run_name="__main__", alter_sys=False)
    finally:
        sys.argv = before
    lines = [line for line in text.getvalue().splitlines() if line.startswith("|")]
    header, _, *body = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return tuple(dict(zip(header, row, strict=True)) for row in body)


def chosen(found: Sequence[dict[str, str]], values: Sequence[str]) -> list[dict[str, str]]:
    """The rows that have all of the values, each ``column=value``."""
    pairs = [value.split("=", 1) for value in values]
    return [row for row in found if all(row[name] == value for name, value in pairs)]


def in_markdown(source: str) -> str:
    """The table of a source as Markdown."""
    found = rows(source)
    lines = [[*found[0]], ["---"] * len(found[0]), *([*row.values()] for row in found)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def is_shown(number: str, source: str, row: str, column: str) -> tuple[bool, str]:
    """Whether `number`, as a page has it, is the cell that its marker names, rounded as the page rounds; and the cell.

    Raises:
        ValueError: the row is not there, or is several and the column does not say what to take of them.
    """
    *over, name = column.split(" ", 1) if column.split(" ")[0] in OVER else (column,)
    if source.split(" ")[0].endswith(".csv"):
        found = chosen(rows(source), shlex.split(row))
    else:
        found = [of for of in rows(source) if next(iter(of.values())) == row]
    cells = [of[name].strip("*") for of in found]
    if "[" not in number:
        cells = [cell.partition(" [")[0] for cell in cells]
    if not cells or (len(cells) > 1 and not over):
        raise ValueError(f"{len(cells)} rows of {source} are {row}")
    cell = str(OVER[over[0]]([float(c) for c in cells])) if over else cells[0]
    plain = number.rstrip("%").replace(" ", "").lstrip("+")
    try:
        value = float(cell) * (100 if number.endswith("%") else 1)
        return f"{value:.{len(plain.partition('.')[2])}f}" == plain, cell
    except ValueError:
        return cell == number, cell


if __name__ == "__main__":
    for name, printed in PRINTED.items():
        with (ROOT / "docs" / name).open("w", newline="") as opened:
            writer = csv.DictWriter(opened, [*rows(printed)[0]], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows(printed))
