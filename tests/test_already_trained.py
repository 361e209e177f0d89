"""``docs/already-trained.md`` and its script: what helps a network that has stopped learning."""

import re
from pathlib import Path

import pytest
import torch
from folders import script

from rl_plasticity import REGULARIZERS, make_regularizer

already_trained = script("already_trained")
PAGE = Path(__file__).parent.parent / "docs" / "already-trained.md"


def test_a_late_method_begins_with_the_network_of_the_night_and_a_fresh_reference_is_another_than_todays(monkeypatch):
    monkeypatch.setattr(already_trained, "LEARNING", 1)
    monkeypatch.setattr(already_trained, "STOPPED", 2)
    monkeypatch.setattr(already_trained, "SHOWN", {"start": (1, 4), "late": (1, 3, 4), "once": (1, 3, 4)})
    methods = {"start": "none", "late": "none, l2_init coef=1, l2_init coef=1 fresh, none", "once": "none, periodic"}
    monkeypatch.setattr(already_trained, "METHODS", methods)
    lines = [*already_trained.measured(0, 10)]
    days = {
        table: [a for t, method, _, day, a in lines if (t, method) == (table, "none") and day > 2] for table in methods
    }
    assert days["start"] == days["once"]
    assert days["late"] == 2 * days["start"]  # and a second time: the first left the night as it was
    today, fresh = ([a for t, m, *_, a in lines if (t, m) == ("late", f"l2_init coef=1{of}")] for of in ("", " fresh"))
    assert today != fresh


def captured(name):
    """Whether a regularizer's state depends on the weights of the network that it is made for."""
    states = [make_regularizer(name, already_trained.a_network(None, seed)[0]).state_dict() for seed in (0, 1)]
    return any(not torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.filterwarnings("ignore:normalize_project changes the function")
def test_the_page_has_every_method_once_and_says_which_capture_something():
    rows = re.findall(
        r"^\| ((?:`\w+`(?:, )?)+) \| (.+?) \| .+ \| (?:a new|today's|any) network \|$", PAGE.read_text(), re.MULTILINE
    )
    says = {name: what for names, what in rows for name in re.findall(r"\w+", names)}
    assert sum(len(re.findall(r"\w+", names)) for names, _ in rows) == len(says)
    assert {*says} == {*REGULARIZERS} - {"none"}
    assert {name for name, what in says.items() if what == "nothing"} == {name for name in says if not captured(name)}
