"""The pages of the methods: headings and settings. Their reference code is run by tests/test_vectors.py."""

import re
from pathlib import Path

import pytest

from rl_plasticity import INTERVENTIONS, REGULARIZERS
from rl_plasticity.configs.written import as_written
from rl_plasticity.settings import settings_of

PAGES = Path(__file__).parent.parent / "docs" / "methods"
METHODS = {name: method for name, method in {**REGULARIZERS, **INTERVENTIONS}.items() if name != "none"}
HEADINGS = ["Equation", "Reference code", "Source", "Where we deviate", "Settings and cost", "Needs and refusals"]
HEADINGS += ["In our studies"]


def page(name):
    return (PAGES / f"{name}.md").read_text()


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_page_with_the_same_headings(name):
    assert page(name).startswith(f"# `{name}`: ")
    assert re.findall(r"^## (.*)", page(name), re.MULTILINE) == HEADINGS


def test_there_is_no_page_of_a_method_that_does_not_exist():
    assert {path.stem for path in PAGES.glob("*.md")} == {*METHODS}


@pytest.mark.parametrize("name", METHODS)
def test_a_page_has_the_settings_and_defaults_of_the_constructor(name):
    rows = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", page(name), re.MULTILINE))
    assert rows == {n: as_written(d.default) for n, d in settings_of(METHODS[name]).items()}
