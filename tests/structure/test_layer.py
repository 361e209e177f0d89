"""Layers and hidden units: their tensors as matrices, rows and columns."""

import pytest
import torch
from conftest import SmallCNN, plain_mlp, refused
from foreign.expected import made_of
from torch import nn
from torch.optim.swa_utils import AveragedModel

from rl_plasticity.networks import MLP
from rl_plasticity.structure import hidden_units, layers, recycled
from rl_plasticity.structure.layer import lookup, unwrapped


def test_a_kernel_is_the_matrix_out_times_in_kh_kw_and_views_the_parameter():
    net = SmallCNN()
    matrix = layers(net)[0].matrix(net)
    assert matrix.shape == (4, 27)
    assert matrix.data_ptr() == net.features[0].weight.data_ptr()


def test_scaling_rows_reaches_a_channels_last_kernel():
    conv = nn.Conv2d(4, 3, 3).to(memory_format=torch.channels_last)
    net = nn.Sequential(conv)
    before = conv.weight.clone()
    with torch.no_grad():
        layers(net)[0].scale_rows_(net, torch.tensor([1.0, 2.0, 3.0]))
    torch.testing.assert_close(conv.weight, before * torch.tensor([1.0, 2.0, 3.0])[:, None, None, None])


def test_frozen_layers_keep_their_place_without_their_tensors():
    net = plain_mlp()
    net[0].requires_grad_(False)
    net[4].weight.requires_grad_(False)
    assert [(layer.name, layer.weight_name, layer.bias_name, layer.head) for layer in layers(net)] == [
        ("0", None, None, False),
        ("2", "2.weight", "2.bias", False),  # not taken for the head because that is frozen
        ("4", None, "4.bias", True),
    ]


def test_layers_that_disagree_about_the_runs_are_an_error():
    net = nn.Sequential(*MLP((3, 4, 2), [0, 1]), *MLP((2, 3), [0]))
    refused(lambda: layers(net), "runs", error=ValueError)


def test_unwrapping_goes_through_every_wrapper_and_stops_at_the_network():
    net = plain_mlp()
    assert unwrapped(net) is net
    assert unwrapped(torch.compile(nn.DataParallel(net), backend="eager")) is net
    averaged = AveragedModel(nn.DataParallel(net))  # which copies
    assert type(unwrapped(averaged)) is nn.Sequential
    assert unwrapped(averaged) is averaged.module.module

    mine = made_of(lambda net, x: net.module(x), module=net)
    assert unwrapped(mine) is mine


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


@pytest.mark.parametrize("shape", [(3,), (4, 2)], ids=["no batch", "other units"])
def test_activations_that_no_batch_gives_are_refused_by_name(shape):
    (unit,) = hidden_units(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))
    refused(lambda: unit.by_unit(torch.zeros(shape)), "'1'", "3 units", "'0'", error=ValueError)
    assert unit.by_unit(torch.arange(6).view(2, 3)).tolist() == [[0, 3], [1, 4], [2, 5]]
