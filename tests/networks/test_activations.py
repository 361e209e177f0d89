import pytest
import torch
from torch import nn

from rl_plasticity.networks import CNN, MLP, CReLU
from rl_plasticity.regularizers import hidden_units, layers


def test_crelu_concatenates_relu_of_x_and_of_minus_x_on_its_axis():
    x = torch.tensor([[1.0, -2.0], [-3.0, 4.0]])
    assert CReLU()(x).tolist() == [[1, 0, 0, 2], [0, 4, 3, 0]]
    assert CReLU(0)(x).tolist() == [[1, 0], [0, 4], [0, 2], [3, 0]]


def test_crelu_doubles_the_fan_in_of_every_layer_but_the_first():
    net = MLP((5, 8, 7, 3), [0, 1], layer_norm=False, activation="crelu")
    assert [y.weight(net).shape for y in layers(net)] == [(2, 8, 5), (2, 7, 16), (2, 3, 14)]
    assert net(torch.randn(2, 6, 5)).shape == (2, 6, 3)
    cnn = CNN((3, 8, 8), 10, [0, 1], activation="crelu")
    assert [tuple(y.weight(cnn).shape[1:]) for y in layers(cnn)] == [
        (16, 3, 5, 5), (16, 32, 5, 5), (100, 32 * 2 * 2), (10, 200),
    ]  # fmt: skip
    assert cnn(torch.randn(2, 6, 3, 8, 8)).shape == (2, 6, 10)


def test_an_mlp_with_crelu_computes_what_its_equation_says():
    net = MLP((5, 8, 3), [0], layer_norm=False, activation="crelu")
    x = torch.randn(1, 6, 5)
    hidden = x[0] @ net[0].weight[0].T
    expected = torch.cat((hidden.clamp(min=0), (-hidden).clamp(min=0)), 1) @ net[2].weight[0].T
    torch.testing.assert_close(net(x)[0], expected)


def test_leaky_relu_has_slope_one_hundredth():
    net = MLP((5, 8, 3), [0], layer_norm=False, activation="leaky_relu")
    assert isinstance(net[1], nn.LeakyReLU)
    assert torch.allclose(net[1](torch.tensor([-100.0, 2.0])), torch.tensor([-1.0, 2.0]))
    assert len(hidden_units(net)) == 1


def test_the_outputs_of_crelu_are_not_taken_for_hidden_units_but_its_layers_are_in_order():
    for net in (MLP((5, 8, 8, 3), [0], activation="crelu"), CNN((1, 8, 8), 10, [0], activation="crelu")):
        assert hidden_units(net) == []
        assert [y.head for y in layers(net)][-1]
        assert [y.inputs for y in layers(net)] == [(), *((i,) for i in range(len(layers(net)) - 1))]


@pytest.mark.parametrize(
    "make", [lambda a: MLP((5, 8, 3), [0], activation=a), lambda a: CNN((1, 8, 8), 3, [0], False, a)]
)
def test_an_unknown_activation_is_an_error_that_names_the_valid_ones(make):
    with pytest.raises(ValueError, match="activation must be relu, leaky_relu or crelu, got 'gelu'"):
        make("gelu")
