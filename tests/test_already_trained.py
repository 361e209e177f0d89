"""``docs/already-trained.md`` and its script: what helps a network that has stopped learning."""

import csv
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


# Methods of a table, the days that are meant, and between which accuracies their means are there.
CLAIMS = [
    ("late", "spectral coef=0.0001, spectral coef=0.001, spectral coef=0.01", (5, 31, 35, 40), 0.98, 1),
    ("late", "parseval coef=0.001", (5, 31, 35, 40), 0.98, 1),
    ("late", "parseval coef=0.01, orthogonal coef=0.0001, orthogonal coef=0.001", (31, 35, 40), 0.98, 1),
    ("late", "l2_init coef=0.01 fresh", (31, 35, 40), 0.98, 1),
    ("late", "spectral coef=0.1", (40,), 0, 0.8),
    ("late", "continual_backprop coef=0.001", (31,), 0, 0.6),
    ("late", "continual_backprop coef=0.001", (35,), 0.99, 1),
    ("late", "self_normalized_resets", (35,), 0, 0.2),
    ("late", "self_normalized_resets", (40,), 0.99, 1),
    ("late", "l2_init coef=0.001 fresh, wasserstein coef=10 fresh, swr coef=0.001 fresh", (40,), 0.65, 1),
    ("late", "l2_init coef=0.001, l2_init coef=0.01, wasserstein coef=10, swr coef=0.01", (40,), 0, 0.17),
    ("late", "l2 coef=0.001, l2 coef=0.01, weight_decay coef=0.001", (40,), 0.9, 1),
    ("late", "weight_decay coef=0.0001, weight_decay coef=0.01, ewc coef=100, ewc coef=100 fresh", (40,), 0, 0.15),
    ("late", "churn coef=10, wrs every_updates=10, normalize_project fresh", (40,), 0, 0.16),
    ("late", "hare_tortoise every_updates=1000", (40,), 0, 0.16),
    ("late", "hypersphere, weight_clipping coef=2", (40,), 0.3, 0.4),
    ("once", "periodic", (40,), 0.88, 0.93),
    ("once", "periodic", (50,), 0.17, 0.22),
    ("once", "redo threshold=0, redo threshold=0.025, redo threshold=0.1", (40,), 0, 0.4),
    ("once", "redo threshold=0, redo threshold=0.025, redo threshold=0.1", (5, 31), 0.99, 1),
    ("once", "periodic, head num_layers=1, head num_layers=3, shrink_perturb coef=0.8", (5,), 0, 0.15),
    ("once", "fire", (5,), 0.3, 0.5),
    ("once", "head num_layers=1, head num_layers=2, a new optimizer", (31, 35, 40, 50), 0, 0.2),
    ("start", "none", (30,), 0, 0.15),
    ("dead", "second layer", (30,), 0.96, 0.98),
    ("once", "shrink_perturb coef=0.8", (50,), 0.4, 0.5),
]


def test_what_the_page_says_of_methods_is_in_its_numbers():
    with (PAGE.parent / "results" / "already-trained.csv").open(newline="") as file:
        lines = [*csv.DictReader(file)]

    def mean(table, method, day):
        mine = [x for x in lines if (x["table"], x["method"], int(x["day"])) == (table, method, day)]
        assert len(mine) == 3, (table, method, day)
        return sum(float(x["accuracy"]) for x in mine) / 3

    for table, methods, days, low, high in CLAIMS:
        for method in methods.split(", "):
            assert all(low <= mean(table, method, day) <= high for day in days), (table, method)
    lasting = {name: mean("once", name, 50) for name in already_trained.METHODS["once"].split(", ")}
    assert max(lasting, key=lasting.__getitem__) == "shrink_perturb coef=0.8"
