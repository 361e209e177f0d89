import copy

import numpy as np
import pytest
import torch
from foreign.expected import made_of
from torch import nn
from torch.nn import functional as F

from rl_plasticity.metrics import effective_learning_rate, gradient_dormant_fraction, gradient_spectrum, weight_norm
from rl_plasticity.networks import CNN, MLP

F64 = torch.float64


def squared_error(output, target):
    return (output - target).square().mean((-1, -2))


def cross_entropy(output, target):
    return F.cross_entropy(output.flatten(0, -2), target.flatten(), reduction="none").view_as(target).mean(-1)


def oracle(net, name, loss, inputs, targets, axis=0):
    """Singular values of the per-example gradients by a loop and numpy, for one run."""
    rows = []
    for x, y in zip(inputs.split(1, axis), targets.split(1, axis), strict=True):
        (g,) = torch.autograd.grad(loss(net(x), y).sum(), net.get_parameter(name))
        rows.append(g.flatten().numpy())
    return np.linalg.svd(np.stack(rows), compute_uv=False)


def padded(s, n):
    return np.concatenate([s, np.zeros(n - len(s))])


def test_the_spectrum_is_that_of_a_loop_over_examples():
    net = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.ReLU(), nn.Linear(7, 3)).double()
    x, y = torch.randn(10, 5, dtype=F64), torch.randint(3, (10,))
    names = [name for name, _ in net.named_parameters()]
    found = gradient_spectrum(net, names, cross_entropy, (x,), (y,))
    assert list(found) == names
    for name in names:
        expected = padded(oracle(net, name, cross_entropy, x, y), 10)
        np.testing.assert_allclose(found[name], expected, rtol=1e-6, atol=2e-7 * expected[0])


def test_each_run_has_the_spectrum_of_its_own_examples_and_weights():
    net = MLP((5, 8, 2), seeds=(0, 1)).double()
    x, y = torch.randn(2, 7, 5, dtype=F64), torch.randn(2, 7, 2, dtype=F64)
    found = gradient_spectrum(net, ["0.weight", "3.bias"], squared_error, (x,), (y,), runs=(2,))
    for run in range(2):
        alone = MLP((5, 8, 2), seeds=(run,)).double()
        for name, s in found.items():
            assert s.shape == (2, 7)
            expected = padded(oracle(alone, name, squared_error, x[[run]], y[[run]], axis=1), 7)
            np.testing.assert_allclose(s[run], expected, rtol=1e-6, atol=2e-7 * expected[0])


def test_the_batch_axis_stays_so_that_the_training_loss_fits_any_output():
    def critics(net, obs, act):  # [runs, batch, n] x 2 -> [runs, critics, batch], as a critic's
        q = net.one(torch.cat([obs, act], -1)).squeeze(-1)
        return torch.stack([q, 2 * q], dim=1)

    net = made_of(critics, one=MLP((4, 6, 1), (0, 1)))
    obs, act, target = torch.randn(2, 9, 3), torch.randn(2, 9, 1), torch.randn(2, 9)
    loss = lambda q, target: (q - target.unsqueeze(1)).square().mean(-1).sum(1)  # noqa: E731
    s = gradient_spectrum(net, ["one.0.weight"], loss, (obs, act), (target,), runs=(2,))["one.0.weight"]
    assert s.shape == (2, 9)
    assert (s[:, 5] > 0).all()


def test_float32_keeps_its_dtype_and_small_singular_values():
    # Orthogonal gradients of size 1 to 1e-6: in float32 the Gram matrix would lose all below 3e-4.
    sizes = torch.tensor([1.0, 1e-2, 1e-4, 1e-6])
    net = nn.Linear(4, 1, bias=False)
    found = gradient_spectrum(net, ["weight"], lambda out: out.sum(), (torch.diag(sizes),), ())["weight"]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, sizes, rtol=1e-3, atol=0)


@pytest.mark.parametrize("runs", [(), (2,)])
def test_measuring_moves_neither_statistics_nor_gradients_nor_modes(runs):
    net, name = CNN((1, 4, 4), 3, (0, 1), batch_norm=True), "0.weight"
    if not runs:
        net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    x = torch.randn(*runs, 5, 1, 4, 4)
    y = torch.randint(3, x.shape[: len(runs) + 1])
    before, state = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    s = gradient_spectrum(net, [name], cross_entropy, (x,), (y,), runs=runs)[name]
    assert s.shape == (*runs, 5)
    assert not s.requires_grad  # a graph through the other parameters would stay in memory
    assert (s[..., 0] > 0).all()
    assert all(torch.equal(a, b) for a, b in zip(before.values(), net.state_dict().values(), strict=True))
    assert net.training
    assert all(m.training for m in net.modules())
    assert all(p.grad is None and p.requires_grad for p in net.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_misspelt_parameter_is_named_with_the_nearest():
    with pytest.raises(ValueError, match=r"'wieght'.*'weight'"):
        gradient_spectrum(nn.Linear(2, 1), ["wieght"], squared_error, (torch.ones(3, 2),), ())


@pytest.mark.parametrize(("threshold", "share"), [(0.0, 1 / 3), (0.1, 1 / 3), (0.2, 2 / 3), (3.0, 1.0)])
def test_units_without_gradient_are_those_with_little_of_the_layers_mean(threshold, share):
    # Means of the absolute values: 2, 0 and 0.1, with mean 0.7, so scores of 2.86, 0 and 0.143.
    gradient = torch.tensor([[-1.0, 3.0], [0.0, 0.0], [0.1, -0.1]])
    assert gradient_dormant_fraction(gradient, threshold).item() == pytest.approx(share)


def test_in_a_layer_without_any_gradient_every_unit_is_without():
    assert gradient_dormant_fraction(torch.zeros(2, 4, 3)).tolist() == [1, 1]


def test_the_effective_learning_rate_is_the_gradient_s_norm_over_the_weight_s():
    g = weight_norm([torch.tensor([[3.0], [0.0]]), torch.tensor([[4.0], [0.0]])], (2,))
    assert g.tolist() == [5.0, 0.0]
    assert effective_learning_rate(g, torch.tensor([2.0, 0.0])).tolist() == [2.5, 0.0]


def test_attention_has_the_spectrum_of_a_loop_too():
    net = made_of(
        lambda net, x: net.attention(x, x, x, need_weights=False)[0].mean(1),
        attention=nn.MultiheadAttention(4, 2, batch_first=True),
    ).double()  # fmt: skip
    x, y = torch.randn(5, 3, 4, dtype=F64), torch.randint(4, (5,))
    found = gradient_spectrum(net, ["attention.in_proj_weight"], cross_entropy, (x,), (y,))
    expected = oracle(net.eval(), "attention.in_proj_weight", cross_entropy, x, y)
    np.testing.assert_allclose(found["attention.in_proj_weight"], expected, rtol=1e-6)
