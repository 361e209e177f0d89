import pytest
import torch
from conftest import CASES, SmallCNN, plain_mlp
from torch import nn
from torch.optim.swa_utils import AveragedModel

from rl_plasticity.networks import MLP
from rl_plasticity.structure import hidden_units, layers
from rl_plasticity.structure.layer import runs_of, unwrapped


def summary(net):
    return [(layer.name, layer.role, layer.head) for layer in layers(net)]


def test_a_stacked_mlp_has_norm_layers_and_a_leading_runs_axis():
    net = MLP((5, 8, 3), [0, 1])
    ordered = layers(net)
    assert [(layer.role, layer.head) for layer in ordered] == [("linear", False), ("norm", False), ("linear", True)]
    assert runs_of(net) == (2,)
    assert ordered[0].matrix(net).shape == (2, 8, 5)
    assert ordered[0].bias(net).shape == (2, 8)
    assert ordered[1].gain(net).shape == ordered[1].shift(net).shape == (2, 8)
    assert ordered[1].matrix(net) is None


def test_the_order_is_forward_order_even_where_modules_were_registered_in_another():
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.norm, self.first = nn.Linear(4, 2), nn.LayerNorm(4), nn.Linear(3, 4)

        def forward(self, x):
            return self.head(self.norm(self.first(x)).relu())

    assert [(n, h) for n, _, h in summary(Backwards())] == [("first", False), ("norm", False), ("head", True)]


def test_a_kernel_is_the_matrix_out_times_in_kh_kw_and_views_the_parameter():
    net = SmallCNN()
    matrix = layers(net)[0].matrix(net)
    assert matrix.shape == (4, 27)
    assert matrix.data_ptr() == net.features[0].weight.data_ptr()


@pytest.mark.parametrize("groups", [1, 2])
def test_the_matrix_of_a_transposed_convolution_has_a_row_for_each_output_channel(groups):
    conv = nn.ConvTranspose2d(4, 6, 3, groups=groups)
    (layer,) = layers(nn.Sequential(conv))
    net = nn.Sequential(conv)
    matrix = layer.matrix(net)
    assert matrix.shape == (6, 4 // groups * 9)
    channel = 4 if groups == 2 else 5  # group 1's second output channel, or the last of all
    if groups == 2:
        torch.testing.assert_close(matrix[channel], conv.weight[2:, 1].flatten())
    else:
        torch.testing.assert_close(matrix[channel], conv.weight[:, 5].flatten())
    # Scaling row i by s_i scales output channel i by s_i.
    x, scale = torch.randn(1, 4, 5, 5), torch.arange(1.0, 7.0)
    conv.bias.data.zero_()
    before = conv(x)
    with torch.no_grad():
        layer.scale_rows_(net, scale)
    torch.testing.assert_close(conv(x), before * scale[:, None, None])


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
    with pytest.raises(ValueError, match=r"runs"):
        layers(net)


def test_hidden_units_are_found_behind_their_non_linearity():
    units = hidden_units(CASES["stacked3"].make(0))
    assert [(u.incoming.name, [n.name for n in u.norms], u.activation) for u in units] == [
        ("0", ["1"], "2"),
        ("3", ["4"], "5"),
    ]
    assert [[layer.name for layer in u.outgoing] for u in units] == [["3"], ["6"]]


def test_a_shared_activation_module_is_told_apart_by_its_calls():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 2)])
            self.relu = nn.ReLU()

        def forward(self, x):
            return self.layers[2](self.relu(self.layers[1](self.relu(self.layers[0](x)))))

    assert [(u.incoming.name, u.activation, u.call) for u in hidden_units(Shared())] == [
        ("layers.0", "relu", 0),
        ("layers.1", "relu", 1),
    ]


def chains(net):
    return [(u.incoming.name, u.activation, [layer.name for layer in u.outgoing]) for u in hidden_units(net)]


def test_an_activation_of_the_input_has_no_hidden_units_even_where_a_norm_layer_ends_the_network():
    assert hidden_units(nn.Sequential(nn.ReLU(), nn.Linear(4, 4), nn.LayerNorm(4))) == []


@pytest.mark.parametrize("norm", [nn.LayerNorm, lambda n: nn.Identity()])
def test_units_that_a_skip_connection_reads_before_the_activation_are_not_hidden(norm):
    class Skip(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.relu = nn.Linear(3, 4), norm(4), nn.ReLU()
            self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            x = self.first(x)
            return self.last(x + self.second(self.relu(self.norm(x))))

    assert chains(Skip()) == []


@pytest.mark.parametrize("also", ["other units", "the input", "itself"])
def test_units_that_are_joined_with_others_are_not_hidden_units_whose_columns_are_known(also):
    class Joined(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.relu_a, self.relu_b = nn.Linear(8, 8), nn.Linear(8, 8), nn.ReLU(), nn.ReLU()
            self.head = nn.Linear(16, 2)

        def forward(self, x):
            h = self.relu_a(self.a(x))
            other = {"other units": lambda: self.relu_b(self.b(x)), "the input": lambda: x, "itself": lambda: h}[also]()
            return self.head(torch.cat([h, other], dim=-1))

    assert hidden_units(Joined()) == []


def test_unwrapping_goes_through_every_wrapper_and_stops_at_the_network():
    net = plain_mlp()
    assert unwrapped(net) is net
    assert unwrapped(torch.compile(nn.DataParallel(net), backend="eager")) is net
    averaged = AveragedModel(nn.DataParallel(net))  # which copies
    assert type(unwrapped(averaged)) is nn.Sequential
    assert unwrapped(averaged) is averaged.module.module

    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = net

    assert unwrapped(mine := Mine()) is mine
