"""Write the tables of docs/foreign-networks.md: ``cd tests && python -m foreign``.

Wrong cells and crashes are printed, and the page stays as it is.
"""

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import torch

from foreign import FAMILIES
from foreign.matrix import CRASH, ORACLES, REFUSED, RIGHT, WARNED, WRONG, Case, results

PAGE = Path(__file__).parents[2] / "docs" / "foreign-networks.md"
START, END = "<!-- tables: begin -->\n", "<!-- tables: end -->\n"


def row(name: str, found: dict) -> str:
    """A network's line: of each method one letter with an example, and one without."""
    letters = " | ".join(f"{found[method, True].word} {found[method, False].word}" for method in ORACLES)
    return f"| {name} | {letters} |\n"


def counts(letters: Mapping[str, list[str]]) -> str:
    """How many networks each method gets right, by the letters of each: with an example, without, method by method."""
    text = "| method | right | with a warning | refused | refused without an example |\n|---|---|---|---|---|\n"
    for i, method in enumerate(ORACLES):
        given = Counter(of_network[2 * i] for of_network in letters.values())
        without = Counter(of_network[2 * i + 1] for of_network in letters.values())
        text += f"| `{method}` | {given[RIGHT]} | {given[WARNED]} | {given[REFUSED]} | {without[REFUSED]} |\n"
    return text


def main() -> None:
    torch.set_num_threads(1)
    wrong, text, letters = [], "", {}
    for family, networks in FAMILIES.items():
        head = "".join(f" {method} |" for method in ORACLES)
        text += f"### {family}\n\n| network |{head}\n|---|{'---|' * len(ORACLES)}\n"
        for name, expected in networks.items():
            found = results(Case(expected))
            wrong += [f"{name}, {cell}: {r.why}" for cell, r in found.items() if r.word in (WRONG, CRASH)]
            text += row(name, found)
            letters[name] = [found[method, given].word for method in ORACLES for given in (True, False)]
        text += "\n"
    if wrong:
        sys.exit("\n".join(wrong))
    page = PAGE.read_text()
    before, after = page.split(START)[0], page.split(END)[1]
    PAGE.write_text(f"{before}{START}\n## By method\n\n{counts(letters)}\n## By network\n\n{text}{END}{after}")


if __name__ == "__main__":
    main()
