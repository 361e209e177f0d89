"""Every function of tensors with leading runs axes equals a loop over the runs."""

import inspect

import pytest
import torch

from rl_plasticity import metrics
from rl_plasticity.metrics import feature_matrix, singular_values

RUNS = (2, 3)


def normal(*shape):
    return torch.randn(*RUNS, *shape, dtype=torch.float64)


def two(*shape):
    return [normal(*shape), normal(*shape)]


# name: (function of one run's tensors and of the runs axes, tensors)
CASES = {
    "singular_values": (lambda m, runs: singular_values(m), lambda: [normal(4, 5)]),
    "weight_norm": (lambda a, b, runs: metrics.weight_norm([a, b], runs), lambda: [normal(4, 5), normal(4)]),
    "distance": (lambda a, b, runs: metrics.distance([a], [b], runs), lambda: [normal(4, 5), normal(4, 5)]),
    "largest_sigma1": (lambda a, b, runs: metrics.largest_sigma1([a, b]), lambda: [normal(4, 5), normal(2, 4)]),
    "feature_matrix": (lambda h, runs: feature_matrix(h, runs), lambda: [normal(4, 3, 2, 2)]),
    "saturated_fraction": (lambda h, runs: metrics.saturated_fraction(h, -1, 1), lambda: [normal(6, 9)]),
    "gradient_dormant_fraction": (lambda g, runs: metrics.gradient_dormant_fraction(g, 0.8), lambda: [normal(6, 9)]),
    "moved_fraction": (lambda p, q, runs: metrics.moved_fraction([p.round()], [q.round()], runs), lambda: two(6, 9)),
    "effective_learning_rate": (lambda g, w, runs: metrics.effective_learning_rate(g.exp(), w), two),
    "representation_change": (lambda a, b, runs: metrics.representation_change(a, b), lambda: two(6, 9)),
    "q_overestimation": (lambda q, g, runs: metrics.q_overestimation(q, g), lambda: [normal(6), normal(6)]),
    "discounted_returns": (
        # Time leads there: [T, *runs].
        lambda r, v, runs: metrics.discounted_returns(
            r.movedim(-1, 0), 0.9, v.movedim(-1, 0) > 1, v.movedim(-1, 0) < -1, v.movedim(-1, 0)
        ).movedim(0, -1),
        lambda: [normal(9), normal(9)],
    ),
}
SHARES = ("gradient_dormant_fraction", "moved_fraction")  # may be equal
ELSEWHERE = {"gradient_spectrum"}  # a function of networks: in a file of its own
# In test_measured.py.
ELSEWHERE |= {"condition_number", "stable_rank", "effective_rank", "frobenius_norm", "feature_norm", "srank", "sigma1"}
ELSEWHERE |= {"dormant_fraction", "dead_units"}


def test_no_function_is_forgotten():
    functions = {name for name in metrics.__all__ if inspect.isfunction(getattr(metrics, name))}
    assert set(CASES) | ELSEWHERE == functions


@pytest.mark.parametrize("name", CASES)
def test_runs_together_equal_runs_alone(name):
    function, make = CASES[name]
    tensors = make()
    together = function(*tensors, runs=RUNS)
    assert together.shape[:2] == RUNS
    for i in range(2):
        for j in range(3):
            alone = function(*(t[i, j] for t in tensors), runs=())
            torch.testing.assert_close(together[i, j], alone)
    assert (together[0, 0] != together[1, 2]).any() or name in SHARES
