import pytest
import torch

from rl_plasticity.metrics import dead_units, dormant_fraction, feature_matrix, feature_norm, saturated_fraction


def test_a_unit_exactly_at_the_threshold_is_dormant():
    # Mean |h| of the units: 1, 2, 0, 5; of the layer 2; scores 0.5, 1, 0, 2.5
    h = torch.tensor([[1.0, 0.0, 0.0, -5.0], [1.0, 4.0, 0.0, 5.0]])
    assert dormant_fraction(h, 0.5).item() == 0.5
    assert dormant_fraction(h, 0.49).item() == 0.25
    assert dormant_fraction(h).item() == 0.25  # <=: the unit that is zero, at threshold 0
    assert dormant_fraction(h, 1.0).item() == 0.75


def test_in_a_layer_of_zeros_every_unit_is_dormant_and_dead():
    assert dormant_fraction(torch.zeros(5, 3)).item() == dead_units(torch.zeros(5, 3)).item() == 1


def test_a_unit_that_only_uses_its_leaky_side_is_dead_but_not_dormant():
    h = torch.tensor([[-0.1, 0.0, 2.0], [-0.3, 0.0, -0.1]])
    assert dead_units(h).item() == pytest.approx(2 / 3)
    assert dormant_fraction(h).item() == pytest.approx(1 / 3)


def test_the_feature_norm_is_averaged_over_examples():
    assert feature_norm(torch.tensor([[3.0, 4.0], [0.0, 1.0]])).item() == 3  # not sqrt(26), not |(1.5, 2.5)|


def test_positions_of_a_map_become_examples_and_channels_units():
    maps = torch.arange(2 * 3 * 4 * 5 * 6.0).reshape(2, 3, 4, 5, 6)
    matrix = feature_matrix(maps, (2,))
    assert matrix.shape == (2, 3 * 30, 4)
    assert torch.equal(matrix[1, 30:60, 2], maps[1, 1, 2].flatten())
    assert torch.equal(feature_matrix(maps[0]), matrix[0])
    assert feature_matrix(matrix, (2,)) is matrix  # of plain activations


def test_outputs_near_either_bound_are_saturated():
    h = torch.tensor([[0.991, -0.991, 0.989], [-1.0, 0.0, 0.5]])
    assert saturated_fraction(h, -1, 1).item() == 0.5
    assert saturated_fraction((h + 1) / 2, 0, 1).item() == 0.5
