"""Weights that are computed from the trained tensors."""

import math

import pytest
import torch
from conftest import Functional, SmallCNN, plain_mlp, refused, set_apart_
from torch import nn
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm

from rl_plasticity.learning.learner import Learner
from rl_plasticity.networks import CNN, MLP
from rl_plasticity.regularizers import hidden_units, layers, make_regularizer, runs_of
from rl_plasticity_zoo.parametrizations import bound_weight_norms_, standardize_weights_

BOTH = pytest.mark.parametrize("apply_", [standardize_weights_, bound_weight_norms_])


def test_standardized_weights_follow_the_equation_unit_by_unit():
    net = nn.Sequential(nn.Linear(2, 2), nn.Conv2d(1, 2, (1, 2)))
    for layer in net:
        layer.weight.data.copy_(torch.tensor([[1.0, 5.0], [-3.0, -2.0]]).reshape(layer.weight.shape))
    standardize_weights_(net, ["0", "1"], eps=0.0)
    for layer in net:  # mean 3 and deviation 2, mean -2.5 and deviation 0.5: of a population, not of a sample
        torch.testing.assert_close(layer.weight.flatten(), torch.tensor([-1.0, 1.0, -1.0, 1.0]))
    layer = nn.Linear(2, 1)
    layer.weight.data.copy_(torch.tensor([[1.0, 5.0]]))
    standardize_weights_(layer, [""], eps=12.0)  # under the root
    torch.testing.assert_close(layer.weight, torch.tensor([[-2.0, 2.0]]) / math.sqrt(4 + 12))


def test_bounded_rows_have_the_root_mean_square_length_of_the_initial_rows_for_ever():
    layer = nn.Linear(2, 2)
    layer.weight.data.copy_(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    bound_weight_norms_(layer, [""])
    rho = math.sqrt((25 + 1) / 2)
    expected = torch.tensor([[0.6, 0.8], [0.0, 1.0]]) * rho
    torch.testing.assert_close(layer.weight, expected)
    with torch.no_grad():
        layer.parametrizations.weight.original *= torch.tensor([[7.0], [0.1]])
    torch.testing.assert_close(layer.weight, expected)


@BOTH
def test_a_run_of_a_stacked_net_computes_what_an_ordinary_net_computes(apply_):
    net = CNN((1, 8, 8), 4, [0, 1, 2])
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.1 * torch.randn(p.shape) * torch.tensor([1.0, 2.0, 3.0]).reshape(3, *(1,) * (p.ndim - 1)))
    x = torch.randn(3, 5, 1, 8, 8)
    singles = []
    for run in range(3):
        single = nn.Sequential(
            nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 5, padding=2), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 4),
        )  # fmt: skip
        single.load_state_dict({k: v[run] for k, v in net.state_dict().items()})
        apply_(single, ["0", "3", "7", "9"])
        singles.append(single(x[run]))
    apply_(net, ["0", "3", "7", "9"])
    torch.testing.assert_close(net(x), torch.stack(singles), rtol=1e-4, atol=1e-4)


@BOTH
def test_the_original_tensor_is_the_layer_s_weight_with_its_role_and_place(apply_):
    for make in (plain_mlp, SmallCNN, lambda: MLP((5, 8, 8, 3), [0, 1]), lambda: CNN((1, 8, 8), 4, [0, 1], True)):
        net, plain = make(), make()
        apply_(net, [n for n, m in net.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)])
        after, before = layers(net), layers(plain)
        for y, x in zip(after, before, strict=True):
            assert (y.name, y.role, y.inputs, y.head, y.bias_name) == (x.name, x.role, x.inputs, x.head, x.bias_name)
            expected = f"{x.name}.parametrizations.weight.original" if x.role in ("linear", "conv") else x.weight_name
            assert y.weight_name == expected
        assert runs_of(net) == runs_of(plain)
        assert [(u.incoming.name, u.activation) for u in hidden_units(net)] == [
            (u.incoming.name, u.activation) for u in hidden_units(plain)
        ]


def test_a_weight_computed_from_two_tensors_is_one_layer_and_neither_is_a_bare_parameter():
    net = nn.Sequential(weight_norm(nn.Linear(3, 2)), nn.Linear(2, 1))
    assert [(y.role, y.weight_name) for y in layers(net)] == [
        ("linear", "0.parametrizations.weight.original1"),
        ("linear", "1.weight"),
    ]
    torch.testing.assert_close(layers(net)[0].matrix(net), net[0].weight)


@pytest.mark.parametrize("parametrize", [
    weight_norm,
    spectral_norm,
    orthogonal,
    lambda layer: standardize_weights_(layer, [""]),
    lambda layer: bound_weight_norms_(layer, [""]),
])  # fmt: skip
def test_the_spectral_penalty_is_of_the_weight_that_is_computed_and_trains_what_it_is_computed_from(parametrize):
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
    set_apart_(net[0].weight, net[2].weight)
    net[0] = parametrize(net[0]) or net[0]
    net.eval()  # spectral_norm's own vectors stay
    regularizer = make_regularizer("spectral", net, coef=1.0)
    expected = sum((torch.linalg.svdvals(net[i].weight)[0] ** 2 - 1) ** 2 for i in (0, 2))
    expected = expected + sum(net[i].bias.square().sum() ** 2 for i in (0, 2))
    penalty = regularizer.penalty(net)
    torch.testing.assert_close(penalty, expected, rtol=1e-3, atol=1e-5)
    stored = [*net[0].parametrizations.weight.parameters()]
    torch.testing.assert_close(*(torch.autograd.grad(p, stored) for p in (penalty, expected)), rtol=2e-2, atol=1e-3)


@BOTH
@pytest.mark.parametrize("name", ["spectral", "ewc", "churn", "hare_tortoise"])  # the others': foreign
def test_other_regularizers_train_a_parametrized_net_and_restart_it(apply_, name):
    def make(seeds):
        net = CNN((1, 4, 4), 3, seeds, batch_norm=True)
        apply_(net)
        return net

    learner = Learner(make, [0, 1], lambda net: make_regularizer(name, net))
    x = torch.randn(2, 6, 1, 4, 4)
    before = learner.net[0].weight.clone()
    for _ in range(2):
        learner.minimize(learner.net(x).square().mean((1, 2)), x)
    assert learner.net(x).isfinite().all()
    assert not torch.equal(learner.net[0].weight, before)
    learner.restart_(torch.tensor([1]))
    assert not torch.equal(learner.net[0].weight[1], before[1])


@BOTH
def test_only_the_named_layers_change_and_unknown_ones_are_errors(apply_):
    net = plain_mlp()
    apply_(net, ["0", "2"])
    assert [y.weight_name for y in layers(net)][-1] == "4.weight"
    refused(lambda: apply_(plain_mlp(), ["head"]), match=r"only\b.*0, 2, 4.*\['head'\]", error=ValueError)
    refused(lambda: apply_(net, ["0", "2"]), match=r"\b0, 2\b.*parametrized", error=ValueError)
    refused(lambda: apply_(nn.Sequential(nn.ReLU())), match=r"convolutions|layers")


def parametrized(net):
    return [y.name for y in layers(net) if y.is_computed]


def test_weight_standardization_is_of_the_convolutions_that_a_norm_layer_follows_alone():
    net = SmallCNN()  # with linear layers of which no norm layer follows any
    standardize_weights_(net)
    assert parametrized(net) == ["features.0", "features.4"]
    linear = nn.Linear(4, 2), nn.LayerNorm(2)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), *linear)
    standardize_weights_(net)
    assert parametrized(net) == ["1"]  # another convolution reads the first, and the last layer is linear
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    refused(lambda: standardize_weights_(net), "weight standardization")  # an activation reads it
    pooled = nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    standardize_weights_(pooled)
    assert parametrized(pooled) == ["0"]


@pytest.mark.parametrize("where", ["added", "returned", "called again", "read twice"])
def test_a_convolution_whose_output_goes_elsewhere_too_is_not_standardized(where):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
            self.conv, self.last = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
            self.head = nn.Conv2d(4, 2, 1)

        def forward(self, x):
            x = self.norm(self.stem(x)).relu()
            y = self.conv(x)
            if where == "added":
                return self.head(self.last(x + y).relu())
            z = self.head(self.last(y).relu())
            if where == "called again":
                return z + self.head(self.conv(x))
            return (z, y) if where == "returned" else z + self.head(y)

    net = Net()
    standardize_weights_(net)
    assert parametrized(net) == ["stem"]


def test_bounded_weight_norm_is_of_all_layers_but_the_heads():
    for net, expected in ((plain_mlp(), ["0", "2"]), (SmallCNN(), ["features.0", "features.4", "classifier.0"])):
        bound_weight_norms_(net)
        assert parametrized(net) == expected


@BOTH
def test_a_network_that_cannot_be_read_must_have_its_layers_named(apply_):
    refused(lambda: apply_(Functional()), match=r"only=\[", error=ValueError)
    net = Functional()
    apply_(net, ["body.0"])
    assert parametrized(net) == ["body.0"]
