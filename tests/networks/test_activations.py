import math

import pytest
import torch

from rl_plasticity.networks import ACTIVATIONS, CNN, MLP, NETWORKS, CReLU, gain_of, make_activation
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


def test_the_outputs_of_crelu_are_not_taken_for_hidden_units_but_its_layers_are_in_order():
    for net in (MLP((5, 8, 8, 3), [0], activation="crelu"), CNN((1, 8, 8), 10, [0], activation="crelu")):
        assert hidden_units(net) == []
        assert [y.head for y in layers(net)][-1]
        assert [y.inputs for y in layers(net)] == [(), *((i,) for i in range(len(layers(net)) - 1))]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_with_its_gain_a_layer_s_outputs_are_as_large_as_those_of_the_layer_before(name):
    z = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    density = (-z.square() / 2).exp() / math.sqrt(2 * math.pi)
    module, _ = make_activation(name)
    of_each = module.double()(z.unsqueeze(-1)).detach().square().mean(-1)  # of the parts of a concatenation their mean
    mean_square = torch.trapezoid(of_each * density, z).item()
    only_near = name == "rational"  # which starts near leaky ReLU
    assert 1 / math.sqrt(mean_square) == pytest.approx(gain_of(name), rel=1e-3 if only_near else 1e-6)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_layer_of_a_network_starts_with_the_activation_s_gain(name):
    for net in (MLP((50, 40, 30), [0], activation=name), CNN((3, 8, 8), 30, [0], activation=name)):
        assert not any(p.any() for n, p in net.named_parameters() if n.endswith("bias"))
        for layer in layers(net):
            if (matrix := layer.matrix(net)) is not None:
                singular = torch.linalg.svdvals(matrix)
                torch.testing.assert_close(singular, torch.full_like(singular, gain_of(name)))


@pytest.mark.parametrize("network", ["mlp", "cnn", "cnn_bn", "vgg16_bn", "resnet18", "wrn28_10", "vit_tiny"])
def test_every_network_takes_every_activation(network, monkeypatch):
    monkeypatch.setattr("rl_plasticity_zoo.vit.DEPTH", 1)
    shape = (3, 32, 32)
    for name in ACTIVATIONS if network not in ("vgg16_bn", "wrn28_10") else ("crelu", "rational"):
        kind = type(make_activation(name)[0])
        with torch.device("meta"):
            net = NETWORKS[network](shape, 4, [0], activation=name)
            output = net(torch.zeros(*(1,) * (network in ("mlp", "cnn", "cnn_bn")), 2, *shape))
        assert output.shape[-2:] == (2, 4)
        assert any(isinstance(module, kind) for module in net.modules())
