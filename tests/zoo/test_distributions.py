"""Categorical critics' encodings, against hand-computed numbers; test_later_sac.py compares whole targets."""

import math

import pytest
import torch

from rl_plasticity_zoo.distributions import expected, hl_gauss, two_hot

SUPPORT = torch.linspace(-2, 2, 9, dtype=torch.float64)  # a gap of 0.5
G = torch.Generator().manual_seed(3)


def test_two_hot_gives_the_two_nearest_atoms_the_weights_whose_mean_is_the_value():
    weights = two_hot(torch.tensor([0.1, 0.5, -2.0, 7.0], dtype=torch.float64), SUPPORT)
    assert weights[0].nonzero().flatten().tolist() == [4, 5]
    torch.testing.assert_close(weights[0, 4:6], torch.tensor([0.8, 0.2], dtype=torch.float64))
    assert [row.argmax().item() for row in weights[1:]] == [5, 0, 8]  # a value beyond the range counts as its end
    torch.testing.assert_close(weights.sum(-1), torch.ones(4, dtype=torch.float64))
    values = torch.rand(50, generator=G, dtype=torch.float64) * 4 - 2
    torch.testing.assert_close(two_hot(values, SUPPORT) @ SUPPORT, values)


def test_hl_gauss_gives_each_bin_the_normal_distribution_s_share_between_its_edges():
    for value in (0.1, -1.9, 2.0):
        sigma, inside = 0.75 * 0.5, []
        for z in SUPPORT.tolist():
            edges = [(z + side * 0.25 - value) / sigma for side in (-1, 1)]
            low, high = (0.5 * (1 + math.erf(edge / math.sqrt(2))) for edge in edges)
            inside.append(high - low)
        by_hand = torch.tensor(inside, dtype=torch.float64) / sum(inside)
        torch.testing.assert_close(hl_gauss(torch.tensor([value], dtype=torch.float64), SUPPORT)[0], by_hand)
    assert expected(hl_gauss(torch.tensor([[0.1]]).double(), SUPPORT).log(), SUPPORT).item() == pytest.approx(
        0.1, abs=2e-3
    )
