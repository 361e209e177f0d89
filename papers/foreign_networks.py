"""How many networks of other people each method handles: ``python -m papers.foreign_networks``.

The rows are counted in docs/results/foreign-networks.csv, which ``cd tests && python -m foreign`` writes.
"""

import csv
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

FILE = Path(__file__).parents[1] / "docs" / "results" / "foreign-networks.csv"


def table(rows: Iterable[Mapping[str, str]]) -> list[str]:
    """A line for each method, in Markdown, from rows with `method`, `example` and `outcome`."""
    counts = Counter((row["method"], row["example"], row["outcome"]) for row in rows)
    lines = ["| method | works | with a warning | refused | refused without an example |", "|---|---|---|---|---|"]
    for method in dict.fromkeys(method for method, *_ in counts):
        given = [counts[method, "yes", outcome] for outcome in ("works", "warning", "refused")]
        cells = [method, *map(str, given), str(counts[method, "no", "refused"])]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    with FILE.open(newline="") as file:
        print("\n".join(table(csv.DictReader(file))))
