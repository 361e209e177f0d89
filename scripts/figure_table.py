"""The numbers of a study's ``figure.csv`` as a table for a page: ``python scripts/figure_table.py FIGURE_CSV``.

A row for each method, a column for each panel and mark, in each cell the mean over runs with its 95 % interval.
"""

import argparse
import csv
from pathlib import Path


def table(path: Path) -> list[str]:
    """Its lines, in Markdown."""
    with path.open() as file:
        means = [row for row in csv.DictReader(file) if not row["seed"]]
    columns = list(dict.fromkeys((row["panel"], row["mark"]) for row in means))
    named = [f"{panel}, {mark}" if mark else panel for panel, mark in columns]
    cells = {(row["method"], row["panel"], row["mark"]): _cell(row) for row in means}
    lines = [["", *named], ["---"] * (1 + len(named))]
    for method in dict.fromkeys(row["method"] for row in means):
        lines.append([method, *(cells.get((method, *column), "") for column in columns)])
    return [f"| {' | '.join(line)} |" for line in lines]


def _cell(row: dict[str, str]) -> str:
    interval = f" [{float(row['low']):.0f}, {float(row['high']):.0f}]" if row["low"] else ""
    return f"{float(row['mean_of_run']):.0f}{interval}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", type=Path)
    print("\n".join(table(parser.parse_args().figure)))


if __name__ == "__main__":
    main()
