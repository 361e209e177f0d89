"""``python -m papers.verdicts``: what the networks of a study still learn."""

import csv

import pytest
from conftest import refused
from folders import curve, diagnosis, write_diagnosis, write_run

from papers import verdicts


@pytest.fixture
def study(tmp_path):
    """Runs of two methods, with the diagnoses of two checkpoints each."""
    for name, reg, learned in (("a", "none", (0.9, 0.2, 0.4)), ("b", "l2", (0.9, 0.8, 0.6))):
        folder = write_run(
            tmp_path / name, ["total_env_steps=2000", f"reg={reg}"], {seed: curve([1.0, 2.0]) for seed in (0, 1)}
        )
        rows = diagnosis([learned[0], learned[1]], "seed 0", data="buffer", verdict="lost")
        write_diagnosis(folder, rows + diagnosis([learned[0], learned[2]], "seed 1", data="buffer"))
    return tmp_path


def test_the_newest_verdicts_are_listed_by_method_and_seed(study):
    assert [(*line[:5], line[5]) for line in verdicts.lines(study)] == [
        (method, "critic", "buffer", f"seed {seed}", verdict, learned)
        for method, shares in (("none", ("0.2000", "0.4000")), ("l2", ("0.8000", "0.6000")))
        for seed, verdict, learned in ((0, "lost", shares[0]), (1, "losing", shares[1]))
    ]


def test_the_table_has_student_s_interval_over_runs_and_counts_verdicts(study):
    with (study / "trainability.csv").open("w", newline="") as file:
        csv.writer(file).writerows([verdicts.COLUMNS, *verdicts.lines(study)])
    # Two shares that differ by 0.2: the half-width is t(0.975, 1) = 12.706 times 0.1.
    assert verdicts.table(study / "trainability.csv", "critic", "buffer")[2:] == [
        "| l2 | 0.70 [-0.57, 1.97] | 1 `losing`, 1 `lost` |",
        "| none | 0.30 [-0.97, 1.57] | 1 `losing`, 1 `lost` |",
    ]
    refused(lambda: verdicts.table(study / "trainability.csv", "critc", "buffer"), "network", "'critc'", "'critic'")
