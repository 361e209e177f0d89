from functools import partial

import numpy as np
import pytest
from conftest import refused
from scipy import stats

from rl_plasticity.metrics import statistics
from rl_plasticity.metrics.statistics import bootstrap_interval, iqm, mean, probability_of_improvement

SKEWED = np.array([0.0, 1.0, 2.0, 3.0, 10.0, 12.0, 14.0, 100.0])  # mean 17.75, median 6.5, IQM (2+3+10+12)/4


@pytest.mark.parametrize("n", range(1, 14))
def test_the_iqm_is_scipy_s_trimmed_mean_at_every_number_of_runs(n):
    x = np.random.default_rng(n).lognormal(size=n)
    np.testing.assert_allclose(iqm([x]), stats.trim_mean(x, 0.25))


def test_the_standard_error_divides_by_n_minus_one_and_joins_tasks_by_their_squares():
    a, b = np.array([1.0, 2.0, 3.0]), np.array([0.0, 4.0])  # squared errors 1/3 and 8/2 = 4
    assert statistics.standard_error([a]) == pytest.approx(stats.sem(a))
    assert statistics.standard_error([a, b]) == pytest.approx(np.sqrt(1 / 3 + 4) / 2)
    assert np.isnan(statistics.standard_error([a, b[:1]]))


def test_the_interval_is_scipy_s_percentile_bootstrap():
    found = bootstrap_interval(mean, [SKEWED], resamples=50_000)
    by, rng = {"n_resamples": 50_000, "method": "percentile"}, np.random.default_rng(1)
    expected = stats.bootstrap((SKEWED,), np.mean, rng=rng, **by)
    np.testing.assert_allclose(found, expected.confidence_interval, rtol=0.03)


def test_the_bootstrap_draws_within_each_task():
    # Between the tasks lies all the spread: drawn within them, the mean never moves.
    assert bootstrap_interval(mean, [np.zeros(4), np.ones(4)]) == (0.5, 0.5)


@pytest.mark.parametrize("interval", [partial(bootstrap_interval, mean), statistics.student_interval])
def test_one_run_has_no_interval(interval):
    refused(lambda: interval([SKEWED, np.ones(1)]), match="2 runs", error=ValueError)


def test_the_same_runs_have_the_same_interval_and_global_random_state_is_left_alone():
    before = np.random.get_state()[1].copy()  # noqa: NPY002, the state that must not move
    assert bootstrap_interval(iqm, [SKEWED]) == bootstrap_interval(iqm, [SKEWED])
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


def test_student_s_interval_is_scipy_s_of_one_sample_and_of_two():
    x, y = SKEWED, np.array([1.0, 5.0, 30.0])
    expected = stats.t.interval(0.95, len(x) - 1, x.mean(), stats.sem(x))
    np.testing.assert_allclose(statistics.student_interval([x]), expected)
    welch = stats.ttest_ind(x, y, equal_var=False).confidence_interval(0.99)
    np.testing.assert_allclose(statistics.student_interval([x], [y], level=0.99), welch)
    of_two_tasks = np.divide(stats.ttest_ind(x, -y, equal_var=False).confidence_interval(), 2)
    np.testing.assert_allclose(statistics.student_interval([x, y]), of_two_tasks)


def test_runs_without_spread_have_an_interval_without_width():
    assert statistics.student_interval([np.ones(3)], [np.zeros(2)]) == (1.0, 1.0)


def test_a_curve_s_interval_is_student_s_at_each_step():
    curves = np.stack([SKEWED, SKEWED[::-1] * 2], axis=1)  # [runs, steps]
    means, low, high = statistics.mean_curve(curves)
    np.testing.assert_allclose(means, curves.mean(0))
    for step in range(2):
        expected = statistics.student_interval([curves[:, step]])
        np.testing.assert_allclose((low[step], high[step]), expected)


def test_a_curve_s_values_that_are_not_finite_are_left_out_step_by_step():
    curves = np.array([[1.0, 1.0, np.nan], [3.0, np.inf, np.nan], [5.0, 2.0, -np.inf]])
    means, low, high = statistics.mean_curve(curves)
    np.testing.assert_equal(means, [3.0, 1.5, np.nan])
    np.testing.assert_allclose((low[1], high[1]), statistics.student_interval([np.array([1.0, 2.0])]))
    assert np.isnan([low[2], high[2]]).all()
    _, low, high = statistics.mean_curve(curves[:1])
    assert np.isnan([low, high]).all()


def test_the_probability_of_improvement_averages_over_tasks_not_over_pairs():
    won, lost = [np.ones(2), np.zeros(10)], [np.zeros(2), np.ones(10)]
    assert probability_of_improvement(won, lost) == 0.5


def test_the_bootstrap_of_two_samples_draws_each_for_itself():
    x = np.array([0.0, 1.0])
    # Drawn together, a sample would tie with itself and have no spread.
    assert bootstrap_interval(probability_of_improvement, [x], [x]) == (0.0, 1.0)


STEPS = np.array([10, 20, 30])
VALUES = np.array([1.0, 5.0, 3.0])


def test_a_value_is_the_latest_at_or_before_a_step():
    np.testing.assert_equal(statistics.value_at(STEPS, VALUES, np.array([9, 10, 29, 30, 99])), [np.nan, 1, 5, 3, 3])


def test_the_area_is_the_mean_where_steps_are_equally_spaced_and_weighted_by_the_stretches_elsewhere():
    assert statistics.area_under_curve(STEPS, VALUES) == 3
    assert statistics.area_under_curve(STEPS[:1], VALUES[:1]) == 1
    # 10 (as the second), 10 and 5 steps long
    assert statistics.area_under_curve(np.array([10, 20, 25]), VALUES) == pytest.approx((10 + 50 + 15) / 25)


def test_a_target_is_reached_when_the_value_equals_it_and_stays_reached():
    assert statistics.steps_to_reach(STEPS, VALUES, 5.0) == 20
    assert statistics.steps_to_reach(STEPS, VALUES, 0.0) == 10
    assert statistics.steps_to_reach(STEPS, VALUES, 5.1) == float("inf")
