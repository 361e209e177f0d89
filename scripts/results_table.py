"""A study's numbers as a table for a page: ``python scripts/results_table.py FILE.csv``.

Of a ``figure.csv`` (``reproduce``) a row for each method and a column for each panel and mark; of a ``comparison.csv``
(``compare``) each group's final mean, the mean over the run, and the gap to the baseline. Intervals are of 95 %.
"""

import argparse
import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

Line = Mapping[str, str]
GAPS = ("gap_paired", "gap_unpaired")


def table(path: Path) -> list[str]:
    """Its lines, in Markdown."""
    with path.open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if not line["seed"]]
    rows = of_figure(lines) if "panel" in lines[0] else of_comparison(lines)
    return [f"| {' | '.join(row)} |" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:])]


def of_figure(means: Sequence[Line]) -> list[list[str]]:
    """The first row is the header."""
    columns = list(dict.fromkeys((line["panel"], line["mark"]) for line in means))
    named = [f"{panel}, {mark}" if mark else panel for panel, mark in columns]
    cells = {(line["method"], line["panel"], line["mark"]): _cell(line, "mean_of_run", 0) for line in means}
    methods = dict.fromkeys(line["method"] for line in means)
    return [["", *named], *([m, *(cells.get((m, *column), "") for column in columns)] for m in methods)]


def of_comparison(lines: Sequence[Line]) -> list[list[str]]:
    """The first row is the header; scores below 1, of several tasks, have three decimals."""
    found = {(line["group"], line["statistic"]): line for line in lines}
    decimals = 3 if max(abs(float(line["value"])) for line in lines if line["statistic"] == "mean") < 1 else 0
    rows = [["", "final", "mean of the run", "gap to the baseline"]]
    for group in dict.fromkeys(line["group"] for line in lines):
        gaps = [_cell(found[group, name], "value", decimals, "+") for name in GAPS if (group, name) in found]
        parts = [_cell(found[group, name], "value", decimals) for name in ("mean", "area_under_curve")]
        rows.append([group, *parts, *(gaps or ["baseline"])])
    return rows


def _cell(line: Line, name: str, decimals: int, sign: str = "") -> str:
    value, *ends = (f"{float(line[one]):{sign}.{decimals}f}" for one in (name, "low", "high") if line[one])
    return f"{value} [{', '.join(ends)}]" if ends else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    print("\n".join(table(parser.parse_args().file)))


if __name__ == "__main__":
    main()
