"""A study's numbers as a Markdown table for the documentation: ``python -m papers.results_table FILE.csv``.

From a ``figure.csv`` (``python -m papers``), the table has one row per method and one column per panel and mark. With
--against, it also has the differences to a method of the means over a run, seed by seed.

Intervals are 95 %; those of the last column hold for all methods at once. A column shows three digits of its largest
number. Means are of finite runs, and a note says where some are not finite.
"""

import argparse
import csv
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rl_plasticity.metrics.statistics import paired_differences, student_interval


class Cell(NamedTuple):
    """A mean and the ends of its interval, as far as there are numbers; `note` follows them."""

    numbers: tuple[float, ...]
    note: str = ""
    sign: str = ""


def table(path: Path, against: str | None = None, panel: str | None = None) -> list[str]:
    """The lines of the table, in Markdown.

    Raises:
        ValueError: the file is no such file or has no line; or it has no such method `against`, or no such
            panel.
    """
    with path.open(newline="") as file:
        lines = [*csv.DictReader(file)]
    if not lines or not {"panel", "mark"} <= lines[0].keys():
        raise ValueError(f"{path} is no figure.csv with numbers")
    if panel is not None:
        panels = ", ".join(dict.fromkeys(line["panel"] for line in lines if "panel" in line))
        lines = [line for line in lines if line.get("panel") == panel]
        if not lines:
            raise ValueError(f"{path} has no panel {panel!r}" + (f"; it has {panels}" if panels else ""))
    columns = _of_figure(lines)
    if against is not None:
        if against not in {line.get("method") for line in lines}:
            known = ", ".join(dict.fromkeys(line["method"] for line in lines if "method" in line))
            raise ValueError(f"{path} has no method {against!r}" + (f"; it has {known}" if known else ""))
        columns |= _gaps(lines, against)
    rows = [["", *columns], ["---"] * (1 + len(columns))]
    texts = [_texts(cells) for cells in columns.values()]
    for name in dict.fromkeys(name for cells in columns.values() for name in cells):
        rows.append([name, *(of_column.get(name, "") for of_column in texts)])
    return [f"| {' | '.join(row)} |" for row in rows]


# ------------------------------------------------------------------------------------------------------------------


def _of_figure(lines: Sequence[dict[str, str]]) -> dict[str, dict[str, Cell]]:
    """Each column's cells, by method."""

    def key(line: dict[str, str]) -> tuple[str, ...]:
        return tuple(line[name] for name in ("panel", "metric", "mark", "method"))

    runs = Counter(key(line) for line in lines if line["seed"])
    metrics = Counter(panel for panel, _ in {(line["panel"], line["metric"]) for line in lines})
    columns: dict[str, dict[str, Cell]] = {}
    for line in lines:
        if not line["seed"]:
            panel = line["panel"] if metrics[line["panel"]] == 1 else f"{line['panel']} {line['metric']}"
            column = ", ".join(filter(None, [panel.strip() or line["metric"], line["mark"]]))
            note = _finite(int(line["n"]), runs[key(line)])
            columns.setdefault(column, {})[line["method"]] = Cell(_numbers(line, "mean_of_run"), note)
    return columns


def _gaps(lines: Sequence[dict[str, str]], against: str) -> dict[str, dict[str, Cell]]:
    """Columns of the gaps to a method in the means over a run, paired by seed.

    Each has a second column with intervals that hold for all gaps at once.
    """
    scores: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for line in lines:
        if line["seed"] and math.isfinite(score := float(line["mean_of_run"])):
            one = scores.setdefault((line["panel"], line["mark"]), {}).setdefault(line["method"], {})
            one[int(line["seed"])] = score
    columns: dict[str, dict[str, Cell]] = {}
    for key, of_methods in scores.items():
        of = ", ".join(filter(None, key))
        gaps, at_once = ({against: Cell((), note)} for note in ("baseline", ""))
        for method, its in of_methods.items():
            pairs = [paired_differences(its, of_methods.get(against, {}))]
            if method != against and len(pairs[0]) > 1:
                value = float(pairs[0].mean())
                level = 1 - 0.05 / (len(of_methods) - 1)  # Bonferroni's
                gaps[method] = Cell((value, *student_interval(pairs)), sign="+")
                at_once[method] = Cell((value, *student_interval(pairs, level=level)), sign="+")
        columns |= {f"{of} gap to {against}".strip(): gaps, f"{of} for all gaps at once".strip(): at_once}
    return columns


def _numbers(line: dict[str, str], name: str) -> tuple[float, ...]:
    return tuple(float(line[one]) for one in (name, "low", "high") if line[one])


def _finite(n: int, runs: int) -> str:
    return "" if n == runs else f" ({n} of {runs} runs finite)"


def _texts(cells: dict[str, Cell]) -> dict[str, str]:
    """The texts of a column's cells, by row."""
    write = _fine([number for cell in cells.values() for number in cell.numbers])
    texts = {}
    for row, cell in cells.items():
        written = [text if text.startswith("-") else cell.sign + text for text in map(write, cell.numbers)]
        between = f" [{', '.join(written[1:])}]" if len(written) > 1 else ""
        texts[row] = f"{''.join(written[:1])}{between}{cell.note}".strip()
    return texts


def _fine(values: Sequence[float]) -> Callable[[float], str]:
    """A format for the numbers of a column: three digits of the largest, and equal decimals for all."""
    largest = max(map(abs, filter(math.isfinite, values)), default=0)
    decimals = 3 - math.ceil(math.log10(largest)) if largest else 1
    if decimals > 6:
        return "{:.2e}".format
    return lambda value: f"{value:.{max(0, decimals)}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--against", metavar="METHOD", help="add the gaps to this method of the figure")
    parser.add_argument("--panel", metavar="TITLE", help="show only this panel of the figure")
    given = parser.parse_args()
    try:
        lines = table(given.file, given.against, given.panel)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
