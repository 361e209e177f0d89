"""Mean-only batch normalization, to regularizers and interventions."""

import pytest
import torch
from torch import nn

from rl_plasticity.regularizers import hidden_units, layers, make_regularizer
from rl_plasticity.structure import read
from rl_plasticity_zoo.norms import MeanOnlyBatchNorm2d


def chain(seeds=(0,)):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeds[0])
        net = nn.Sequential(
            nn.Conv2d(2, 4, 3), MeanOnlyBatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 3), MeanOnlyBatchNorm2d(3),
            nn.LeakyReLU(), nn.Flatten(), nn.Linear(12, 5),
        )  # fmt: skip
        for p in net.parameters():
            p.data.add_(0.3 * torch.randn(p.shape))
    return net


X = torch.randn(7, 2, 6, 6, generator=torch.Generator().manual_seed(1))


def test_it_subtracts_the_batch_s_mean_adds_its_shift_and_leaves_the_scale():
    norm, like = MeanOnlyBatchNorm2d(3), nn.BatchNorm2d(3)
    with torch.no_grad():
        norm.bias.copy_(torch.tensor([0.5, -2.0, 0.0]))
    for k in range(3):
        x = (k + 1) * torch.randn(6, 3, 4, 5) + torch.tensor([1.0, 20.0, -3.0])[:, None, None]
        y = norm(x)
        like(x)
        torch.testing.assert_close(y.mean((0, 2, 3)), norm.bias)
        torch.testing.assert_close(y.std((0, 2, 3)), x.std((0, 2, 3)))
        torch.testing.assert_close(norm.running_mean, like.running_mean)  # as torch's, so momentum 0.1
    before = norm.running_mean.clone()
    y = norm.eval()(x)
    torch.testing.assert_close(y, x - (before - norm.bias)[:, None, None])
    assert torch.equal(norm.running_mean, before)


def test_the_mean_is_part_of_the_gradient():
    norm = MeanOnlyBatchNorm2d(2)
    x = torch.randn(3, 2, 4, 4, requires_grad=True)
    norm(x).square().sum().backward()
    torch.testing.assert_close(x.grad.sum((0, 2, 3)), torch.zeros(2), rtol=0, atol=1e-5)
    assert norm.bias.grad is not None


def test_it_is_a_shift_and_no_norm_layer_both_ways_of_reading():
    net = chain()
    for found in (read(net), read(net, X)):
        assert [(y.role, y.weight_name, y.bias_name) for y in found.layers] == [
            ("conv", "0.weight", "0.bias"), ("shift", None, "1.bias"),
            ("conv", "3.weight", "3.bias"), ("shift", None, "4.bias"), ("linear", "7.weight", "7.bias"),
        ]  # fmt: skip
        assert found.before_norms == []  # weight standardization has nothing to stand on
    assert [(u.incoming.name, [y.name for y in u.norms]) for u in hidden_units(net)] == [("0", ["1"]), ("3", ["4"])]
    assert torch.equal(layers(net)[1].bias(net), net[1].bias)


@pytest.mark.parametrize("scope", ["all", "preserving"])
def test_swr_scales_its_shift_as_a_bias_so_that_the_function_is_exactly_proportional(scope):
    net = chain()
    before = net(X)
    regularizer = make_regularizer("swr", net, coef=0.5, scope=scope)
    with torch.no_grad():  # norms that have grown, each layer's by another factor
        for i, factor in ((0, 3.0), (3, 0.5), (7, 2.0)):
            net[i].weight.mul_(factor)
        before = net(X)
    regularizer.project_(net, *regularizer.given_lr(1.0))
    ratio = 1.0 if scope == "preserving" else (0.5 / 3 + 0.5) * (0.5 / 0.5 + 0.5) * (0.5 / 2 + 0.5)
    torch.testing.assert_close(net(X), ratio * before, rtol=1e-4, atol=1e-5)


def test_the_spectral_penalty_draws_its_shift_to_zero():
    net = chain()
    regularizer = make_regularizer("spectral", net, coef=1.0)
    (gradient,) = torch.autograd.grad(regularizer.penalty(net), net[1].bias)
    bias = net[1].bias.detach()
    torch.testing.assert_close(gradient, 4 * bias.square().sum() * bias)  # of |s|^4
