"""``scripts/already_trained.py``: what helps a network that has stopped learning."""

import csv
import re
from pathlib import Path

import pytest
import torch
from folders import script

from rl_plasticity import REGULARIZERS, make_regularizer

already_trained = script("already_trained")
PAGE = Path(__file__).parent.parent / "docs" / "already-trained.md"


@pytest.fixture
def short(monkeypatch):
    """A few steps a day, two nights, and of each table a method or two."""
    monkeypatch.setattr(already_trained, "LEARNING", 1)
    monkeypatch.setattr(already_trained, "STOPPED", 2)
    monkeypatch.setattr(already_trained, "SHOWN", {"start": (1, 4), "late": (1, 3, 4), "once": (1, 3, 4)})
    monkeypatch.setattr(already_trained, "START", [("none", {})])
    late = [("none", {}), *(("l2_init", {"coef": 1.0, "fresh": fresh}) for fresh in (False, True)), ("none", {})]
    monkeypatch.setattr(already_trained, "LATE", late)
    monkeypatch.setattr(already_trained, "ONCE", [("none", {}), ("periodic", {}), ("redo", {"threshold": 0.1})])


def test_without_a_method_the_days_after_the_night_are_those_of_a_network_that_never_stopped(short):
    lines = [*already_trained.measured(0, 4)]
    days = {
        table: [a for t, method, _, day, a in lines if (t, method) == (table, "none") and day > 2]
        for table in ("start", "late", "once")
    }
    assert days["start"] == days["once"]
    assert days["late"] == 2 * days["start"]  # and a second time: the first left the night as it was
    assert {method for t, method, *_ in lines if t == "late"} == {"none", "l2_init coef=1", "l2_init coef=1 fresh"}


def test_a_fresh_reference_is_another_than_todays(short):
    of_day = {method: a for t, method, _, day, a in already_trained.measured(0, 40) if (t, day) == ("late", 3)}
    assert of_day["l2_init coef=1"] != of_day["l2_init coef=1 fresh"]


def test_an_intervention_is_looked_at_right_afterwards():
    net, optimizer = already_trained.a_network(None, 0)
    before = already_trained.DAY["train"](net, optimizer, 1, 150, 0)
    kept = {
        name: already_trained.intervened(name, {}, *already_trained.a_network(night, 0), 1, 0)
        for name in ("none", "periodic")
        for night in [{"net": net.state_dict(), "optimizer": optimizer.state_dict()}]
    }
    assert kept["none"] == before > 0.7
    assert kept["periodic"] < 0.3


def test_a_table_has_means_and_ranges_over_seeds(tmp_path):
    path = tmp_path / "file.csv"
    path.write_text(
        "table,method,seed,day,accuracy\n"
        + "".join(
            f"late,swr,{seed},{day},{accuracy}\n" for day in (5, 31, 35, 40) for seed, accuracy in ((0, 0.5), (1, 0.9))
        )
        + "once,swr,0,31,0.1\n"
    )
    cell = "0.70 [0.50, 0.90]"
    assert already_trained.table(path, "late") == [
        "|  | day 5, kept | day 31 | day 35 | day 40 |",
        "| --- | --- | --- | --- | --- |",
        f"| swr | {cell} | {cell} | {cell} | {cell} |",
    ]


def captured(name):
    """Whether a regularizer's state depends on the weights of the network that it is made for."""
    states = []
    for seed in (0, 1):
        net = already_trained.a_network(None, seed)[0]
        states.append(make_regularizer(name, net).state_dict())
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


@pytest.fixture(scope="module")
def mean():
    """The mean over seeds of a row of the page's file."""
    with (PAGE.parent / "results" / "already-trained.csv").open(newline="") as file:
        lines = [*csv.DictReader(file)]

    def of(table, method, day):
        found = [
            float(x["accuracy"]) for x in lines if (x["table"], x["method"], int(x["day"])) == (table, method, day)
        ]
        assert len(found) == 3
        return sum(found) / 3

    return of


# A method that comes late, the days that are meant, and between which accuracies its means are there.
LATE = [
    *((m, (5, 31, 35, 40), 0.98, 1) for m in ("spectral coef=0.0001", "spectral coef=0.001", "spectral coef=0.01")),
    ("parseval coef=0.001", (5, 31, 35, 40), 0.98, 1),
    *((m, (31, 35, 40), 0.98, 1) for m in ("parseval coef=0.01", "orthogonal coef=0.0001", "orthogonal coef=0.001")),
    ("l2_init coef=0.01 fresh", (31, 35, 40), 0.98, 1),
    ("spectral coef=0.1", (40,), 0, 0.8),
    ("continual_backprop coef=0.001", (31,), 0, 0.6),
    ("continual_backprop coef=0.001", (35,), 0.99, 1),
    ("self_normalized_resets", (35,), 0, 0.2),
    ("self_normalized_resets", (40,), 0.99, 1),
    *((f"{m} fresh", (40,), 0.65, 1) for m in ("l2_init coef=0.001", "l2_init coef=0.01", "wasserstein coef=10")),
    *((f"{m} fresh", (40,), 0.65, 1) for m in ("swr coef=0.001", "swr coef=0.01")),
    *((m, (40,), 0, 0.17) for m in ("l2_init coef=0.001", "l2_init coef=0.01", "wasserstein coef=10")),
    *((m, (40,), 0, 0.17) for m in ("swr coef=0.001", "swr coef=0.01")),
    *((m, (40,), 0.9, 1) for m in ("l2 coef=0.001", "l2 coef=0.01", "weight_decay coef=0.001")),
    *((m, (40,), 0, 0.15) for m in ("weight_decay coef=0.0001", "weight_decay coef=0.01", "ewc coef=100")),
    ("ewc coef=100 fresh", (40,), 0, 0.15),
    *((m, (40,), 0, 0.16) for m in ("churn coef=10", "wrs every_updates=10", "normalize_project fresh")),
    ("hare_tortoise every_updates=1000", (40,), 0, 0.16),
    *((m, (40,), 0.3, 0.4) for m in ("hypersphere", "weight_clipping coef=2")),
]
ONCE = [
    ("periodic", (40,), 0.88, 0.93),
    ("periodic", (50,), 0.17, 0.22),
    *((f"redo threshold={t}", (40,), 0, 0.4) for t in ("0", "0.025", "0.1")),
    *((f"redo threshold={t}", (5, 31), 0.99, 1) for t in ("0", "0.025", "0.1")),
    *((m, (5,), 0, 0.15) for m in ("periodic", "head num_layers=1", "head num_layers=2", "head num_layers=3")),
    ("shrink_perturb coef=0.8", (5,), 0, 0.15),
    ("fire", (5,), 0.3, 0.5),
    *((m, (31, 35, 40, 50), 0, 0.2) for m in ("head num_layers=1", "head num_layers=2", "a new optimizer")),
]


def test_what_the_page_says_of_methods_is_in_its_numbers(mean):
    for table, claims in (("late", LATE), ("once", ONCE)):
        for method, days, low, high in claims:
            assert all(low <= mean(table, method, day) <= high for day in days), (table, method)
    assert mean("start", "none", 30) < 0.15
    assert 0.96 < mean("dead", "second layer", 30) < 0.98
    names = [already_trained.label(method, settings) for method, settings in already_trained.ONCE]
    lasting = {name: mean("once", name, 50) for name in names}
    assert max(lasting, key=lasting.__getitem__) == "shrink_perturb coef=0.8"
    assert max(lasting.values()) < 0.5
