"""``scripts/foretell.py``: rank correlations of early measures with later returns."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from folders import curve, write_run
from scipy.stats import spearmanr

SPEC = importlib.util.spec_from_file_location("foretell", Path(__file__).parent.parent / "scripts/foretell.py")
foretell = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(foretell)


def test_within_one_task_it_is_spearman_s_with_ties():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 5, 30).astype(float), rng.normal(size=30)
    got = foretell.correlation(foretell.ranks(x, ["a"] * 30), foretell.ranks(y, ["a"] * 30))
    assert got == pytest.approx(spearmanr(x, y).statistic)


def test_tasks_of_other_scales_do_not_make_a_correlation():
    x, y = np.array([1.0, 2, 3, 101, 102, 103]), np.array([3.0, 2, 1, 103, 102, 101])
    strata = ["a"] * 3 + ["b"] * 3
    assert foretell.correlation(foretell.ranks(x, strata), foretell.ranks(y, strata)) == pytest.approx(-1)
    assert spearmanr(x, y).statistic > 0


def test_the_early_measure_meets_the_later_return_and_its_interval_is_of_groups(tmp_path):
    for n, coef in enumerate([1e-4, 1e-3, 1e-2, 1e-1]):
        rows = {
            seed: curve([0.0, 5.0 - n + seed / 9, 7.0 - n], every=500)
            | curve([float(n), -9.0 * n], "critic/dormant", 600)
            | curve([1.0], "critic/feature_rank", 600)
            for seed in range(3)
        }
        write_run(tmp_path / str(n), ["reg=l2", f"reg.coef={coef}", "total_env_steps=1500"], rows)
    runs = foretell.runs_below(tmp_path)
    assert len(runs) == 12
    ((name, rho, low, high, number),) = foretell.table(runs, 1000, [])
    assert (name, number) == ("critic/dormant", 12)
    assert rho < -0.9
    assert low <= rho <= high
    assert foretell.table(runs, 599, []) == []  # nothing was measured yet
