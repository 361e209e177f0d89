"""The networks whose state is known, on which `diagnose` is measured."""

from collections import Counter

import pytest

from papers import known
from papers.known import TRUTH, cases, table, truth

CASES = {case.name: case for case in cases()}
ROWS = {row["case"]: row for row in table("known.csv", TRUTH, {})}


def test_every_row_is_a_case_of_the_list_and_there_are_many_of_each_kind():
    assert len(CASES) == len(ROWS) >= 120
    for name, row in ROWS.items():
        assert (row["group"], row["set"]) == (CASES[name].group, CASES[name].set)
    states = Counter(row["truth"] if row["expected"] in ("healthy", "lost") else "cause" for row in ROWS.values())
    assert states["healthy"] > 2 * states["between"]
    assert min(states["healthy"] / 3, states["lost"], states["cause"]) >= 10


@pytest.mark.parametrize("name", ["mlp; kill by=0.97; labels k=2", "mlp; head by=100; labels k=2"])
def test_training_long_again_finds_the_truth_of_the_file(name, monkeypatch):
    monkeypatch.setattr(known, "ORDERS", 1)
    monkeypatch.setattr(known, "RATES", known.RATES[:2])
    row = truth(CASES[name])
    assert row["truth"] == ROWS[name]["truth"]
    assert float(row["share"]) == pytest.approx(float(ROWS[name]["share"]), abs=0.15)  # of three orders
