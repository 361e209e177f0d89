"""SimBa's and SimbaV2's networks, against their equations in plain torch, and running statistics of observations."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rl_plasticity.networks import MLP
from rl_plasticity.regularizers import layers, make_regularizer
from rl_plasticity_zoo.norms import ObservationNorm
from rl_plasticity_zoo.residual import Hypersphere, HypersphereBlock, Scaler, Simba

X = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(1))


def disturbed(net):
    """With biases, gains and scalers that are no more what they start with."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
    return net


def linear(layer, x, run):
    return F.linear(x, layer.weight[run], None if layer.bias is None else layer.bias[run])


def layer_norm(norm, x, run):
    return F.layer_norm(x, x.shape[-1:], norm.weight[run], norm.bias[run])


def test_simba_computes_its_equation_for_each_run():
    net = disturbed(Simba(5, 3, [1, 2], width=8, blocks=2))
    first, *blocks, norm, head = net
    for run in range(2):
        x = linear(first, X[run], run)
        for block in blocks:
            hidden = linear(block.expand, layer_norm(block.norm, x, run), run).relu()
            assert hidden.shape == (6, 32)
            x = x + linear(block.contract, hidden, run)
        torch.testing.assert_close(net(X)[run], linear(head, layer_norm(norm, x, run), run))


def test_simba_starts_orthogonal_at_both_ends_and_he_normal_cut_off_in_blocks():
    net = Simba(100, 50, [1, 2], width=200, blocks=1)
    for layer in (net[0], net[-1]):
        singular = torch.linalg.svdvals(layer.weight)
        torch.testing.assert_close(singular, torch.ones_like(singular))
    for layer in (net[1].expand, net[1].contract):
        std = math.sqrt(2 / layer.in_features)
        assert layer.weight.std().item() == pytest.approx(std, rel=0.01)
        assert layer.weight.abs().max() <= 2 * std / 0.8796
        assert not layer.bias.any()
        assert not torch.equal(layer.weight[0], layer.weight[1])
    assert not torch.equal(net[1].expand.weight[0].flatten()[:100], net[1].contract.weight[0].flatten()[:100])


def test_the_hypersphere_computes_its_equation_for_each_run():
    net = disturbed(Hypersphere(5, 3, [1, 2], width=8, blocks=2))
    unit = lambda x: x / x.norm(dim=-1, keepdim=True)  # noqa: E731
    for run in range(2):
        x = unit(torch.cat([X[run], torch.full((6, 1), 3.0)], -1))
        scale = net.scale.weight[run]  # begins at sqrt(2 / 8), and counts as it is
        x = unit(scale * linear(net.embed, x, run))
        for block in net.blocks:
            hidden = (block.scale.weight[run] * linear(block.expand, x, run)).relu()
            assert hidden.shape == (6, 32)
            alpha = block.alpha.weight[run] * (1 / 3) * math.sqrt(8)  # begins at 1 / sqrt(8), and counts as 1 / (2 + 1)
            x = unit(x + alpha * (unit(linear(block.contract, hidden, run) + 1e-8) - x))
        expected = linear(net.head, net.head_scale.weight[run] * linear(net.before_head, x, run), run)
        torch.testing.assert_close(net(X)[run], expected)


def test_the_hypersphere_starts_and_with_its_regularizer_stays_with_rows_of_unit_length():
    net = Hypersphere(5, 3, [1, 2], width=8, blocks=2)
    linears = [m for m in net.modules() if isinstance(m, nn.Linear)]
    assert len(linears) == 1 + 2 * 2 + 2
    assert [m.bias is None for m in linears] == [True] * 6 + [False]
    regularizer = make_regularizer("hypersphere", net)
    for _ in range(2):
        for m in linears:
            lengths = m.weight.norm(dim=-1)
            torch.testing.assert_close(lengths, torch.ones_like(lengths))
        disturbed(net)
        scalers = [m.weight.detach().clone() for m in net.modules() if isinstance(m, Scaler)]
        regularizer.project_(net)
        assert all(torch.equal(m.weight, s) for m, s in zip(
            (m for m in net.modules() if isinstance(m, Scaler)), scalers, strict=True))  # fmt: skip


def test_scalers_begin_with_their_gain_whatever_they_are_stored_as():
    block = HypersphereBlock(16, 2, [0])
    ones = torch.ones(1, 1, 16)
    torch.testing.assert_close(block.alpha(ones), ones / 3)
    assert block.alpha.weight[0, 0].item() == pytest.approx(1 / 4)
    torch.testing.assert_close(block.scale(torch.ones(1, 1, 64)), torch.full((1, 1, 64), math.sqrt(2 / 64)))


@pytest.mark.parametrize("kind", [Simba, Hypersphere])
def test_a_run_is_alone_what_it_is_among_others(kind):
    together, alone = kind(5, 3, [1, 2, 3], width=8, blocks=2), kind(5, 3, [2], width=8, blocks=2)
    for (name, p), q in zip(together.named_parameters(), alone.parameters(), strict=True):
        assert torch.equal(p[1], q[0]), name
    torch.testing.assert_close(together(X[:1].expand(3, 6, 5))[1], alone(X[:1])[0])


@pytest.mark.parametrize("kind", [Simba, Hypersphere])
def test_layers_are_found_in_order_with_one_head_and_scalers_are_no_gains(kind, recwarn):
    net = kind(5, 3, [1, 2], width=8, blocks=2)
    found = [y for y in layers(net) if y.is_linear_map]
    assert [y.head for y in found] == [False] * (len(found) - 1) + [True]
    assert len(found) == len([m for m in net.modules() if isinstance(m, nn.Linear)])
    make_regularizer("spectral", net)
    assert not any(y.gain(net) is not None for y in layers(net)) or kind is Simba
    assert not recwarn.list


# --- running statistics ---------------------------------------------------------------------------------------------


def test_observations_are_normalized_by_the_mean_and_the_variance_of_all_that_were_seen():
    norm, rng = ObservationNorm(3, 2), np.random.default_rng(0)
    seen = rng.normal([[1, -5, 100]], [[0.1, 3, 50]], (400, 2, 3))
    for obs in seen:
        norm.observe_(torch.from_numpy(obs).float())
    torch.testing.assert_close(norm.mean, torch.from_numpy(seen.mean(0)), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(norm.variance, torch.from_numpy(seen.var(0)), rtol=1e-4, atol=1e-5)
    x = torch.from_numpy(seen[-5:]).float().movedim(0, 1)  # [runs, batch, n]
    expected = (x - seen.mean(0)[:, None]) / seen.std(0)[:, None]
    torch.testing.assert_close(norm(x), expected.float(), rtol=1e-3, atol=1e-3)
    before = {n: b.clone() for n, b in norm.state_dict().items()}
    norm.train()(100 * x)
    assert all(torch.equal(b, before[n]) for n, b in norm.state_dict().items())  # only what is observed counts


def test_before_anything_was_seen_observations_stay_as_they_are():
    torch.testing.assert_close(ObservationNorm(5, 2)(X), X)


def test_a_network_without_a_bias_multiplies_alone():
    net = MLP((5, 8, 3), [0, 1])
    plain = type(net[0])(5, 8, [0, 1], bias=False)
    torch.testing.assert_close(plain(X), X @ plain.weight.mT)
