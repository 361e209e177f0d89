"""``python -m papers.foretell``: rank correlations of early measures with later returns."""

import numpy as np
import pytest
from conftest import called, refused
from folders import curve, write_run
from scipy.stats import spearmanr

from papers import foretell


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
    for n, coef in enumerate([1e-5, 1e-4, 1e-3, 1e-2, 1e-1]):
        rows = {
            seed: curve([0.0, 5.0 - n + seed / 9, 7.0 - n], every=500)
            | curve([float(n), -9.0 * n], "critic/dormant", 600)
            | curve([1.0], "critic/feature_rank", 600)
            for seed in range(3)
        }
        write_run(tmp_path / str(n), ["reg=l2", f"reg.coef={coef}", "total_env_steps=1500"], rows)
    runs = foretell.runs_below(tmp_path)
    assert len(runs) == 15
    ((name, rho, (low, high)),) = foretell.table(foretell.seen(runs, 1000), [])
    assert name == "critic/dormant"
    assert rho < -0.9
    assert low <= rho <= high
    ((_, rho, nothing),) = foretell.table(foretell.seen(runs[3:], 1000), [])
    assert rho < -0.9
    assert nothing is None  # of four groups
    refused(lambda: foretell.text(foretell.seen(runs, 599), []), match=r"\b15 runs.*env step 599\b", error=ValueError)


def test_a_run_that_is_not_finite_had_the_worst_return(tmp_path):
    rows = {seed: curve([0.0, [4.0, np.nan, 2.0][seed]], every=500) for seed in range(3)}
    write_run(tmp_path / "run", ["total_env_steps=1000"], rows)
    assert [run.outcome for run in foretell.seen(foretell.runs_below(tmp_path), 500)] == [4.0, -np.inf, 2.0]


@pytest.fixture
def study(tmp_path):
    """LayerNorm turns the measure's sign; weight norms differ by less than six digits, one is not measured in some."""
    for n, norm in enumerate(["true", "true", "false"]):
        rows = {
            seed: curve([0.0, 5.0, (0.5 - n) * (7.0 + seed + n / 7)], every=500)
            | curve([15.777587890625 + seed / 2**14], "critic/weight_norm", 500)
            | (curve([float(seed)], "critic/balancedness", 500) if n else {})
            for seed in range(3)
        }
        settings = [f"agent.layer_norm={norm}", f"prime_updates={[0, 100000][n % 2]}", "total_env_steps=1500"]
        write_run(tmp_path / "runs" / str(n), settings, rows)
    return tmp_path / "runs"


def test_what_is_written_gives_the_same_tables(study, tmp_path):
    file = tmp_path / "measures.csv"
    assert foretell.run(study, 1000, file, [], []) == foretell.run(file, None, None, [], [])
    for within, where in ([], ["agent.layer_norm=false"]), (["agent.layer_norm"], []):
        assert foretell.run(study, 1000, None, within, where) == foretell.run(file, 1000, None, within, where)


@pytest.mark.parametrize(("arguments", "says"), [
    (["{0}", "--write", "{0}/0/config.yaml"], "config.yaml exists"),
    (["{0}/0/metrics.csv"], "metrics.csv is no file that --write made"),
    (["{0}", "--within", "agent.layer_norms"], "not in agent.layer_norms; did you mean 'agent.layer_norm'?"),
    (["{0}", "--where", "agent.layer_norm=False"], "no run has agent.layer_norm=False; there are true, false"),
])  # fmt: skip
def test_a_wrong_option_ends_in_one_line_and_writes_nothing(arguments, says, study):
    before = sorted(study.rglob("*"))
    status, _, err = called(foretell.main, *(argument.format(study) for argument in arguments))
    assert (status, says in err) == (2, True)
    assert sorted(study.rglob("*")) == before
