"""The entries of the methods and their table. The reference code is run by tests/test_vectors.py."""

import csv
import re
from pathlib import Path

import pytest

from rl_plasticity import INTERVENTIONS, REGULARIZERS

DOCS = Path(__file__).parent.parent / "docs"
PAGES = {"regularizers.md": {*REGULARIZERS} - {"none"}, "interventions.md": {*INTERVENTIONS} - {"none"}}


def entries(page):
    """The text below each heading."""
    _, *parts = re.split(r"^## (.*)\n", (DOCS / page).read_text(), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize(("page", "methods"), PAGES.items())
def test_every_method_has_an_entry_and_no_other_has(page, methods):
    assert {*entries(page)} == methods


@pytest.mark.parametrize("page", PAGES)
def test_an_entry_has_a_sentence_an_equation_code_source_and_needs(page):
    for name, text in entries(page).items():
        parts = [f"\n`{name}` ", "\n$$", "\n```python\n", "\n- **Source:** ", "\n- **Needs:** "]
        places = [text.find(part) for part in parts]
        assert -1 not in places, name
        assert places == sorted(places), name


def test_the_table_of_methods_has_every_method_in_its_group():
    with (DOCS / "results" / "methods.csv").open(newline="") as file:
        kinds = {row["name"]: row["kind"] == "intervention" for row in csv.DictReader(file)}
    assert kinds == {name: page == "interventions.md" for page, methods in PAGES.items() for name in methods}
