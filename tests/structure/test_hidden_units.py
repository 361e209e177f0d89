"""Which entries of parameters are a hidden unit's, against what recycling must leave of a network's function."""

import pytest
import torch
from torch import nn

from rl_plasticity.structure import hidden_units, recycled
from rl_plasticity.structure.layer import lookup


def fresh(net):
    return lambda unit, name: torch.full_like(lookup(net, name), 7.0)


def test_a_new_unit_has_new_incoming_weights_and_no_outgoing_ones_and_all_else_stays():
    net = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
    first, second = hidden_units(net)
    chosen = [(first, torch.tensor([False, True, False])), (second, torch.tensor([True, False, False]))]
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    found = recycled(net, chosen, fresh(net))
    assert all(torch.equal(p, before[name]) for name, p in net.named_parameters())  # nothing is written
    expected = {name: before[name].clone() for name in found}
    for name in ("0.weight", "0.bias", "1.weight", "1.bias"):
        expected[name][1] = 7.0
    expected["3.weight"][0] = 7.0
    expected["3.bias"][0] = 7.0
    expected["3.weight"][:, 1] = 0.0  # from one new unit to another: zero
    expected["5.weight"][:, 0] = 0.0
    assert found.keys() == before.keys() - {"5.bias"}
    for name, (where, value) in found.items():
        assert torch.equal(value, expected[name]), name
        assert torch.equal(where, expected[name] != before[name]), name


def test_a_channel_is_read_through_a_flattened_map_by_one_column_for_each_position():
    net = nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 2 * 2, 3))
    (unit,) = hidden_units(net)
    found = recycled(net, [(unit, torch.tensor([False, True]))], fresh(net))
    assert found["3.weight"][0].tolist() == [[False] * 4 + [True] * 4] * 3
    assert found["0.weight"][0].flatten(1).all(1).tolist() == [False, True]


@pytest.mark.parametrize("shape", [(3,), (4, 2)], ids=["no batch", "other units"])
def test_activations_that_no_batch_gives_are_refused_by_name(shape):
    (unit,) = hidden_units(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))
    with pytest.raises(ValueError, match=r"'1'.*\b3 units.*'0'"):
        unit.by_unit(torch.zeros(shape), 3)
    assert unit.by_unit(torch.arange(6).view(2, 3), 3).tolist() == [[0, 3], [1, 4], [2, 5]]
