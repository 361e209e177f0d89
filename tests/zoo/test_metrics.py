"""The zoo's measures: how well a network fits fresh noise, and two by hand."""

import copy

import numpy as np
import pytest
import torch
from conftest import nothing_drawn
from foreign.expected import made_of
from torch import nn

from rl_plasticity.learning.learner import Learner
from rl_plasticity.networks import MLP
from rl_plasticity_zoo.metrics import fit_fresh_targets, plasticity_score, policy_entropy

F64 = torch.float64


def test_the_score_and_the_entropy_by_hand():
    before, after = torch.tensor([4.0, 4.0, 4.0, 0.0]), torch.tensor([1.0, 0.0, 5.0, 0.0])
    assert plasticity_score(before, after).tolist() == [0.75, 1.0, 0.0, 1.0]
    assert policy_entropy(torch.tensor([[1.0, 2.0], [-1.0, -3.0]])).tolist() == [-1.5, 2.0]


def test_the_probe_ends_at_the_least_squares_error_of_a_linear_network():
    net, x = nn.Linear(3, 1).double(), torch.randn(12, 3, dtype=F64)
    start = net(x).mean().item()
    target = start + torch.randn(12, generator=torch.Generator().manual_seed(7)).double().numpy()
    design = np.concatenate([x.numpy(), np.ones((12, 1))], axis=1)
    residual = np.linalg.lstsq(design, target, rcond=None)[1].item() / 12
    assert 0.1 < residual / target.var() < 0.95
    fitted = fit_fresh_targets(net, (x,), 250, 0.1, 7)
    assert fitted.item() == pytest.approx(residual / target.var(), rel=1e-4)


@pytest.mark.parametrize(("spread", "bias"), [(0.0, 1000.0), (50.0, 0.0)])
def test_a_network_that_can_only_be_constant_reaches_one_from_any_prediction(spread, bias):
    net = nn.Linear(1, 1)
    nn.init.constant_(net.weight, spread)
    nn.init.constant_(net.bias, bias)
    net.weight.requires_grad_(False)  # only the bias learns: the noise's mean is all that can be fitted
    x = torch.linspace(-1, 1, 400).unsqueeze(-1)
    assert fit_fresh_targets(net, (x,), updates=100, lr=0.02).item() == pytest.approx(1, abs=1e-3)


def test_runs_fit_the_same_noise_and_do_not_touch_each_other():
    x = torch.randn(3, 8, 4, dtype=F64)
    together = fit_fresh_targets(MLP((4, 6, 2), (0, 1, 2)).double(), (x,), 10, 1e-2, 3)
    for run in range(3):
        net = MLP((4, 6, 2), (run,)).double()
        torch.testing.assert_close(together[run : run + 1], fit_fresh_targets(net, (x[run, None],), 10, 1e-2, 3))
    x[0] *= 1e6  # another run's trouble
    again = fit_fresh_targets(MLP((4, 6, 2), (0, 1, 2)).double(), (x,), 10, 1e-2, 3)
    torch.testing.assert_close(again[1:], together[1:])


def test_the_probe_leaves_the_network_its_statistics_and_every_random_state_alone():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 1))
    before = copy.deepcopy(net.state_dict())
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    with nothing_drawn():
        first = fit_fresh_targets(net, (x,), 5, generator=5)
        assert torch.equal(first, fit_fresh_targets(net, (x,), 5, generator=torch.Generator().manual_seed(5)))
    assert all(torch.equal(a, b) for a, b in zip(before.values(), net.state_dict().values(), strict=True))
    assert net.training
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_network_of_half_precision_has_the_value_of_the_same_weights_in_float32(dtype):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2)).to(dtype)
    x = torch.randn(64, 4)
    value = fit_fresh_targets(net, x.to(dtype), updates=15)
    assert value.dtype == torch.float32
    assert torch.equal(value, fit_fresh_targets(copy.deepcopy(net).float(), x.to(dtype).float(), updates=15))
    assert {tensor.dtype for tensor in net.parameters()} == {dtype}


def test_several_inputs_and_outputs_are_fitted_together_and_inputs_are_a_tensor_a_tuple_or_a_dict():
    def gaussian(net, obs, scale=1.0):
        return net.mean(obs * scale), net.log_std(obs * scale)

    net = made_of(gaussian, mean=nn.Linear(3, 2), log_std=nn.Linear(3, 2))
    assert 0 <= fit_fresh_targets(net, (torch.eye(3), torch.ones(3, 1)), updates=200, lr=0.1).item() < 1e-3
    x = torch.randn(9, 3)
    expected = fit_fresh_targets(net, (x,), 20)
    for inputs in (x, [x], {"obs": x}, {"scale": torch.ones(9, 1), "obs": x}):
        assert torch.equal(fit_fresh_targets(net, inputs, updates=20), expected)
    assert not torch.equal(fit_fresh_targets(net, (x, 2 * torch.ones(9, 1)), updates=20), expected)


def test_a_learner_stands_for_its_network():
    learner, x = Learner(lambda seeds: MLP((3, 8, 2), seeds), [0, 1]), torch.randn(2, 9, 3)
    assert torch.equal(fit_fresh_targets(learner, x, updates=5), fit_fresh_targets(learner.net, x, updates=5))
