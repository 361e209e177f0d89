"""The papers' measures of weights: balancedness, the shape of their distribution, their part in the inputs' span."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from conftest import refused
from scipy import optimize, stats
from torch.nn import functional as F

from papers.weights import (
    balancedness,
    generalized_gaussian_shape,
    lpq_norm,
    project_to_input_span,
    project_to_span,
    rebalanced,
)

F64 = torch.float64


def network(weights, biases, x):
    """A ReLU network without an activation behind its last layer."""
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        x = F.leaky_relu(x @ weight.mT + bias, 0.1)
    return x @ weights[-1].mT + biases[-1]


def unbalanced(*widths, runs=()):
    """Layers whose units, and whose layers, differ much in size."""
    weights = [torch.randn(*runs, m, n, dtype=F64) for n, m in pairwise(widths)]
    weights = [w * torch.randn(*runs, w.shape[-2], 1, dtype=F64).exp() * 4.0**i for i, w in enumerate(weights)]
    return weights, [torch.randn(*runs, w.shape[-2], dtype=F64) for w in weights]


@pytest.mark.parametrize(("p", "q"), [(2, 2), (1, 1), (1, 2), (2, 1), (3, 2)])
def test_the_minimum_is_the_one_a_general_optimizer_finds(p, q):
    (w1, w2, w3), _ = unbalanced(3, 4, 5, 2)

    def power(logs):  # of the norm, in log a
        a, b = (torch.as_tensor(x).exp() for x in np.split(logs, [4]))
        scaled = [a[:, None] * w1, b[:, None] * w2 / a, w3 / b]
        return sum(lpq_norm(w, p, q).item() ** q for w in scaled)

    best = optimize.minimize(power, np.zeros(9), tol=1e-12).fun
    expected = (power(np.zeros(9)) / best) ** (1 / q)
    assert expected > 1.1
    assert balancedness([w1, w2, w3], p, q).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("p", "q"), [(2, 2), (1, 2)])
def test_rebalancing_keeps_the_function_and_ends_at_a_balancedness_of_one(p, q):
    weights, biases = unbalanced(3, 6, 5, 4, 2)
    scaled, shifts = rebalanced(weights, biases, p, q)
    x = torch.randn(20, 3, dtype=F64)
    torch.testing.assert_close(network(scaled, shifts, x), network(weights, biases, x), rtol=1e-9, atol=1e-9)
    assert balancedness(weights, p, q).item() > 1.1
    assert balancedness(scaled, p, q).item() == pytest.approx(1, abs=1e-6)


def test_a_unit_without_weights_on_one_side_stays_and_gives_no_nan():
    weights, biases = unbalanced(3, 6, 5, 2)
    weights[0][1] = 0
    weights[1][:, 2] = 0
    weights[1][3] = 0
    scaled, _ = rebalanced(weights, biases)
    assert all(w.isfinite().all() for w in scaled)
    assert torch.equal(scaled[0][2], weights[0][2])
    assert balancedness(weights) > 1
    assert balancedness([torch.zeros(2, 3), torch.zeros(1, 2)]).item() == 1


def test_layers_that_do_not_follow_each_other_are_named():
    with pytest.raises(ValueError, match=r"\b4 units.*\b6 inputs"):
        balancedness([torch.ones(4, 3), torch.ones(2, 6)])
    refused(lambda: balancedness([torch.ones(4, 3)], p=float("inf")), match="finite", error=ValueError)


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0, 5.0])
def test_the_shape_of_a_generalized_gaussian_is_found_from_its_quantiles(beta):
    n = 50_000
    values = torch.from_numpy(stats.gennorm.ppf((np.arange(n) + 0.5) / n, beta))
    assert generalized_gaussian_shape(values).item() == pytest.approx(beta, rel=5e-3)
    assert generalized_gaussian_shape(1e-30 * values.float()).item() == pytest.approx(beta, rel=5e-3)


def test_the_projection_gives_the_coordinates_along_the_inputs_principal_directions():
    # Inputs vary by 3 along (1, 1) / sqrt 2, by 1 along (1, -1) / sqrt 2, not along the last axis, around a mean.
    u, v = torch.tensor([1.0, 1, 0], dtype=F64) / 2**0.5, torch.tensor([1.0, -1, 0], dtype=F64) / 2**0.5
    inputs = torch.stack([3 * u, -3 * u, v, -v]) + torch.tensor([5.0, 7, 9], dtype=F64)
    matrix = torch.tensor([[2.0, 0, 1], [1, 1, 4]], dtype=F64)
    expected = torch.stack([matrix @ u, matrix @ v, torch.zeros(2, dtype=F64)], dim=-1)
    torch.testing.assert_close(project_to_input_span(matrix, inputs).abs(), expected.abs())


def normal(*shape):
    return torch.randn(2, *shape, dtype=F64)


# A function of one run's tensors, or of those of several.
OF_RUNS = {
    "lpq_norm": (lambda m: lpq_norm(m, 1, 3), lambda: [normal(4, 5)]),
    "balancedness": (lambda a, b: balancedness([a, b], 1, 2), lambda: [normal(4, 5), 9 * normal(3, 4)]),
    "rebalanced": (lambda a, b, c: rebalanced([a, b], [c, c])[1][0], lambda: [normal(4, 5), normal(4, 4), normal(4)]),
    "generalized_gaussian_shape": (generalized_gaussian_shape, lambda: [normal(50) ** 3]),
    "project_to_span": (lambda m, x: project_to_span(m, x @ x.mT).abs(), lambda: [normal(4, 5), normal(5, 9)]),
}


@pytest.mark.parametrize("name", OF_RUNS)
def test_runs_together_equal_runs_alone(name):
    function, make = OF_RUNS[name]
    tensors = make()
    torch.testing.assert_close(function(*tensors), torch.stack([function(*one) for one in zip(*tensors, strict=True)]))
