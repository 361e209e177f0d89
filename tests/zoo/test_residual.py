"""Networks of later agents against their equations in plain torch, and the norms and dropout in them."""

import math

import numpy as np
import pytest
import torch
from conftest import disturbed
from torch import nn
from torch.nn import functional as F

from rl_plasticity.regularizers import layers, make_regularizer
from rl_plasticity_zoo.batch_normalized import XQC, FlashSAC
from rl_plasticity_zoo.norms import ObservationNorm, RewardNorm, StackedDropout
from rl_plasticity_zoo.residual import Bro, Hypersphere, HypersphereBlock, Simba

X = torch.randn(2, 16, 5, generator=torch.Generator().manual_seed(1))


def linear(layer, x, run):
    return F.linear(x, layer.weight[run], None if layer.bias is None else layer.bias[run])


def batch_norm(norm, x, run, training):
    statistics = norm.running_mean[run].clone(), norm.running_var[run].clone()
    return F.batch_norm(x, *statistics, norm.weight[run], norm.bias[run], training, eps=norm.eps)


def layer_norm(norm, x, run):
    return F.layer_norm(x, x.shape[-1:], norm.weight[run], norm.bias[run])


def xqc(net, x, run, training):
    first, *blocks, head = net
    x = batch_norm(first, x, run, training)
    for i in range(0, 6, 3):
        assert blocks[i].bias is None
        x = batch_norm(blocks[i + 1], linear(blocks[i], x, run), run, training).relu()
    return linear(head, x, run)


def flash_sac(net, x, run, training):
    first, embed, *blocks, norm, head = net
    x = linear(embed, batch_norm(first, x, run, training), run)
    for block in blocks:
        expand, inner, _, contract, outer, _ = block.inside
        hidden = batch_norm(inner, linear(expand, x, run), run, training).relu()
        assert hidden.shape == (16, 32)
        x = x + batch_norm(outer, linear(contract, hidden, run), run, training).relu()
    return linear(head, F.rms_norm(x, (8,), norm.weight[run], 1e-6), run)


def bro(net, x, run, _):
    first, norm, _, *blocks, head = net
    x = layer_norm(norm, linear(first, x, run), run).relu()
    for block in blocks:
        one, inner, _, two, outer = block.inside
        x = x + layer_norm(outer, linear(two, layer_norm(inner, linear(one, x, run), run).relu(), run), run)
    return linear(head, x, run)


def simba(net, x, run, _):
    first, *blocks, norm, head = net
    x = linear(first, x, run)
    for block in blocks:
        hidden = linear(block.expand, layer_norm(block.norm, x, run), run).relu()
        assert hidden.shape == (16, 32)
        x = x + linear(block.contract, hidden, run)
    return linear(head, layer_norm(norm, x, run), run)


def hypersphere(net, x, run, _):
    unit = lambda x: x / x.norm(dim=-1, keepdim=True)  # noqa: E731
    x = unit(torch.cat([x, torch.full((16, 1), 3.0)], -1))
    x = unit(net.scale.weight[run] * linear(net.embed, x, run))  # the scale begins at sqrt(2 / 8), and counts as it is
    for block in net.blocks:
        hidden = (block.scale.weight[run] * linear(block.expand, x, run)).relu()
        assert hidden.shape == (16, 32)
        alpha = block.alpha.weight[run] * (1 / 3) * math.sqrt(8)  # begins at 1 / sqrt(8), and counts as 1 / (2 + 1)
        x = unit(x + alpha * (unit(linear(block.contract, hidden, run) + 1e-8) - x))
    return linear(net.head, net.head_scale.weight[run] * linear(net.before_head, x, run), run)


BATCH_NORMALIZED = [
    (kind, of, training) for kind, of in ((XQC, xqc), (FlashSAC, flash_sac)) for training in (True, False)
]
RESIDUAL = [(Bro, bro, None), (Simba, simba, None), (Hypersphere, hypersphere, None)]


@pytest.mark.parametrize(("kind", "equation", "training"), [*BATCH_NORMALIZED, *RESIDUAL])
def test_a_network_computes_its_equation_for_each_run(kind, equation, training):
    net = disturbed(kind(5, 3, [1, 2], width=8, blocks=2))
    expected = torch.stack([equation(net, X[run], run, training) for run in range(2)])
    found = net(X) if training is None else net(X, training=training)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


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


def test_scalers_begin_with_their_gain_whatever_they_are_stored_as():
    block = HypersphereBlock(16, 2, [0])
    ones = torch.ones(1, 1, 16)
    torch.testing.assert_close(block.alpha(ones), ones / 3)
    assert block.alpha.weight[0, 0].item() == pytest.approx(1 / 4)
    torch.testing.assert_close(block.scale(torch.ones(1, 1, 64)), torch.full((1, 1, 64), math.sqrt(2 / 64)))


def test_observations_are_normalized_by_the_mean_and_the_variance_of_all_that_were_seen():
    norm, rng = ObservationNorm(3, 2), np.random.default_rng(0)
    torch.testing.assert_close(norm(X[..., :3]), X[..., :3])  # before anything was seen
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


@pytest.mark.parametrize("make", [XQC, FlashSAC, Hypersphere])
def test_weights_start_with_rows_of_unit_length_and_their_regularizer_keeps_them_and_warns_of_nothing(make):
    net = make(5, 3, [1, 2], width=8, blocks=2)
    linears = [m for m in net.modules() if isinstance(m, nn.Linear)]
    method = make_regularizer("hypersphere", net)  # a warning would be an error
    for disturb in (False, True):
        if disturb:
            disturbed(net)
            others = {n: p.clone() for n, p in net.named_parameters() if "scale" in n or "alpha" in n}
            method.project_(net)
            assert all(torch.equal(net.get_parameter(n), p) for n, p in others.items())
        for layer in linears:
            norm = layer.weight.norm(dim=-1)
            torch.testing.assert_close(norm, torch.ones_like(norm))


@pytest.mark.parametrize("make", [Simba, Hypersphere, XQC, FlashSAC])
def test_layers_are_found_in_order_with_one_head_and_scalers_are_no_gains(make, recwarn):
    net = make(5, 3, [1, 2], width=8, blocks=2)
    found = [y for y in layers(net) if y.is_linear_map]
    assert [y.head for y in found] == [False] * (len(found) - 1) + [True]
    assert len(found) == len([m for m in net.modules() if isinstance(m, nn.Linear)])
    norms = [n for n, m in net.named_modules() if isinstance(m, nn.LayerNorm) or hasattr(m, "eps")]
    assert [y.name for y in layers(net) if y.gain(net) is not None] == norms
    make_regularizer("spectral", net)
    assert not recwarn.list


def test_dropout_drops_its_share_keeps_the_mean_and_does_nothing_outside_training():
    drop, x = StackedDropout(0.2, [1, 2]), torch.ones(2, 400, 100)
    assert drop(x) is x
    y = drop(x, training=True)
    assert set(y.unique().tolist()) == {0.0, 1.25}
    share = (y == 0).float().mean((1, 2))
    assert (share - 0.2).abs().max() < 5 * (0.2 * 0.8 / 40_000) ** 0.5  # five standard errors
    assert not torch.equal(y[0], y[1])
    again = drop(x, training=True)
    assert ((y == 0) & (again == 0)).float().mean() < 0.05  # other units in each call: 0.04, not 0.2


def test_dropout_is_the_same_for_a_run_alone_among_others_and_after_a_restart():
    x = torch.randn(2, 8, 5)
    both, alone = StackedDropout(0.5, [1, 2]), StackedDropout(0.5, [2])
    for _ in range(2):
        assert torch.equal(both(x, training=True)[1], alone(x[1:], training=True)[0])
    again = StackedDropout(0.5, [7, 8])
    again.load_state_dict(both.state_dict())
    assert torch.equal(again(x, training=True), both(x, training=True))


def test_rewards_are_divided_by_the_scale_of_the_discounted_returns_so_far_episode_by_episode():
    norm, generator = RewardNorm(2, discount=0.9, most=2.0), np.random.default_rng(0)
    returns, total = [], np.zeros(2)
    for step in range(200):
        reward = generator.normal(3, 1, 2)
        ended = np.array([step % 7 == 6, step % 50 == 49])
        total = 0.9 * total + reward
        returns.append(total.copy())
        norm.observe_(torch.from_numpy(reward), torch.from_numpy(ended))
        total = np.where(ended, 0, total)
    seen = np.stack(returns)
    scale = np.maximum(seen.std(0), np.abs(seen).max(0) / 2)
    np.testing.assert_allclose(norm.scale.numpy(), scale, rtol=1e-3)  # one ten-thousandth of an observation at first
    assert (scale > seen.std(0)).all()  # here the largest return decides
    torch.testing.assert_close(norm(torch.ones(2, 3)), (1 / norm.scale).float()[:, None].expand(2, 3))
    wide = RewardNorm(2, discount=0.9, most=1e6)
    wide.load_state_dict(norm.state_dict())
    np.testing.assert_allclose(wide.scale.numpy(), seen.std(0), rtol=2e-3)
