import numpy as np
import pytest

from rl_plasticity.benchmarks import scores
from rl_plasticity.benchmarks.scores import Scores

NAMES = ["none", "fresh", "a", "b"]


def of(*means, seeds=10, spread=0.0):
    """Scores of methods with these means on each task."""
    noise = spread * np.random.default_rng(1).standard_normal((len(means), len(means[0]), seeds))
    return Scores(NAMES[: len(means)], np.array(means, float)[..., None] + noise - noise.mean(-1, keepdims=True))


def test_a_score_is_the_share_of_what_a_fresh_network_gains_over_no_method_on_each_task():
    found = of([0, -1000], [10, -200], [5, -400], [-5, -1400], spread=0.1)
    np.testing.assert_allclose(found.values[:, :-1], [[0, 0], [1, 1], [0.5, 0.75], [-0.5, -0.5]], atol=1e-12)
    assert found.values[2, -1] == pytest.approx(0.625)


def test_overall_leaves_out_a_quarter_of_the_tasks_at_either_end():
    assert of([0] * 4, [1] * 4, [0.1, 0.2, 0.4, 90]).values[2, -1] == pytest.approx(0.3)


@pytest.mark.parametrize("tasks", [2, 4, 9])
def test_a_method_without_a_score_on_a_task_has_no_overall_score_and_no_place_in_ranks_and_gaps(tasks):
    found = of([0] * tasks, [1] * tasks, [0.5] * (tasks - 1) + [np.nan], [0.2] * tasks)
    assert np.isnan(found.values[2, -1])
    assert found.rank(3) == (1, 1, 1)  # neither no method nor fresh has a rank
    assert set(found.gaps(3)) == {"none", "fresh"}


def test_ranks_of_clearly_apart_methods_are_certain_and_those_of_equal_ones_are_not():
    found = of([0], [1], [0.5], [0.51], spread=0.1)
    assert found.rank(2) == (2, 1, 2)
    assert of([0], [1], [0.2], [0.8], spread=0.1).rank(2) == (2, 2, 2)


def test_intervals_of_gaps_hold_for_all_methods_at_once(monkeypatch):
    monkeypatch.setattr(scores, "RESAMPLES", 500)
    rng, true = np.random.default_rng(0), np.array([0, 1, *np.linspace(0.2, 0.8, 8)])
    names = ["none", "fresh", *map(str, range(8))]
    held = 0
    for _ in range(200):
        raw = true[:, None, None] + 0.2 * rng.standard_normal((10, 6, 10))
        gaps = Scores(names, raw).gaps(2)
        held += all(low <= true[2] - true[names.index(name)] <= high for name, (low, high) in gaps.items())
    assert held >= 176  # 190 expected, five standard errors are 15
