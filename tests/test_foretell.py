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
    ((name, rho, low, high),) = foretell.table(foretell.seen(runs, 1000), [])
    assert name == "critic/dormant"
    assert rho < -0.9
    assert low <= rho <= high
    assert foretell.table(foretell.seen(runs, 599), []) == []  # nothing was measured yet


def test_the_interval_is_of_correlations_in_samples_of_whole_groups(monkeypatch):
    monkeypatch.setattr(foretell, "RESAMPLES", 50)
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=12), rng.normal(size=12)
    members = [np.arange(5), np.arange(5, 7), np.arange(7, 12)]
    samples = [
        np.concatenate([members[i] for i in of_one]) for of_one in np.random.default_rng(0).integers(3, size=(50, 3))
    ]
    expected = np.percentile([np.corrcoef(x[sample], y[sample])[0, 1] for sample in samples], [2.5, 97.5])
    got = foretell.interval(x, y, {i: [*of_group] for i, of_group in enumerate(members)}, np.random.default_rng(0))
    np.testing.assert_allclose(got, expected)


def test_what_is_written_gives_the_same_table(tmp_path, monkeypatch, capsys):
    for n, norm in enumerate(["true", "false"]):
        rows = {
            seed: curve([0.0, 5.0 - seed, 7.0 * n], every=500) | curve([seed], "critic/dormant", 500)
            for seed in range(3)
        }
        write_run(tmp_path / "runs" / str(n), [f"agent.layer_norm={norm}", "total_env_steps=1500"], rows)
    file = tmp_path / "measures.csv"

    def printed(*arguments):
        monkeypatch.setattr("sys.argv", ["foretell.py", *map(str, arguments)])
        foretell.main()
        return capsys.readouterr().out

    assert printed(tmp_path / "runs", "--at", 1000, "--write", file) == printed(file)
    assert "6 runs" in printed(file)
    assert "critic/dormant" in printed(file, "--within", "agent.layer_norm")
    assert "3 runs" in printed(file, "--where", "agent.layer_norm=false")
    with pytest.raises(SystemExit, match="2"):
        printed(tmp_path / "runs", "--write", file)
    assert f"{file} exists" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        printed(file, "--within", "agent.layer_norms")
    assert "did you mean" in capsys.readouterr().err
