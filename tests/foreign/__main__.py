"""Write docs/results/foreign-networks.csv: ``cd tests && python -m foreign``.

Wrong cells and crashes are printed, and the file stays as it is.
"""

import csv
import sys
from pathlib import Path

import torch

from foreign import FAMILIES
from foreign.matrix import CRASH, ORACLES, WRONG, Case, results

FILE = Path(__file__).parents[2] / "docs" / "results" / "foreign-networks.csv"
HEADER = ("family", "network", "method", "example", "outcome", "message")


def main() -> None:
    torch.set_num_threads(1)
    rows, wrong = [], []
    for family, networks in FAMILIES.items():
        for name, expected in networks.items():
            found = results(Case(expected))
            wrong += [f"{name}, {cell}: {r.why}" for cell, r in found.items() if r.word in (WRONG, CRASH)]
            for method in ORACLES:
                for given in (True, False):
                    rows.append((family, name, method, "yes" if given else "no", *found[method, given]))
    if wrong:
        sys.exit("\n".join(wrong))
    with FILE.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([HEADER, *rows])


if __name__ == "__main__":
    main()
