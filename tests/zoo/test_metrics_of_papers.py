"""Measures that no run logs."""

import pytest
import torch
from torch import nn

import rl_plasticity
from rl_plasticity import Learner
from rl_plasticity.networks import MLP
from rl_plasticity_zoo.metrics import fit_fresh_targets, plasticity_score, policy_entropy

X = torch.randn(2, 40, 3, generator=torch.Generator().manual_seed(0))


def test_what_no_update_changes_keeps_all_of_the_noise_and_what_can_memorize_loses_it():
    frozen, able = MLP((3, 8, 2), [0, 1]), MLP((3, 256, 2), [0, 1])
    for p in frozen.parameters():
        p.data.zero_()
    frozen[-1].bias.requires_grad_(False)
    start = fit_fresh_targets(frozen, X, updates=1, lr=0.0)
    torch.testing.assert_close(start, torch.ones(2), atol=0.1, rtol=0)  # mean e^2 over var e
    assert (fit_fresh_targets(able, X, updates=400, lr=1e-2) < 0.3).all()


def test_a_run_has_the_value_that_it_has_alone_and_the_network_and_the_random_state_stay():
    net, alone = MLP((3, 8, 2), [0, 1]), MLP((3, 8, 2), [1])
    before, state = [p.clone() for p in net.parameters()], torch.get_rng_state()
    together = fit_fresh_targets(net, X, updates=20, generator=3)
    torch.testing.assert_close(together[1:], fit_fresh_targets(alone, X[1:], updates=20, generator=3))
    assert torch.equal(together, fit_fresh_targets(net, (X,), updates=20, generator=torch.Generator().manual_seed(3)))
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_function_added_for_good_leaves_the_value_and_half_precision_is_fitted_in_float32():
    class Shifted(nn.Module):
        def __init__(self, net, by):
            super().__init__()
            self.net, self.by = net, by

        def forward(self, x):
            return self.net(x) + self.by * x.sum(-1, keepdim=True).sin()

    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    plain, shifted = (fit_fresh_targets(Shifted(net, by), X[0], updates=50) for by in (0.0, 50.0))
    torch.testing.assert_close(plain, shifted, rtol=1e-2, atol=1e-3)
    assert fit_fresh_targets(net.half(), X[0].half(), updates=5).dtype == torch.float32


def test_a_learner_stands_for_its_network_and_the_old_name_says_where_it_is():
    learner = Learner(lambda seeds: MLP((3, 8, 2), seeds), [0, 1])
    assert torch.equal(fit_fresh_targets(learner, X, updates=5), fit_fresh_targets(learner.net, X, updates=5))
    with pytest.raises(AttributeError, match=r"fit_fresh_targets.*rl_plasticity_zoo\.metrics"):
        rl_plasticity.fit_fresh_targets  # noqa: B018


def test_scores_and_entropies_by_hand():
    score = plasticity_score(torch.tensor([2.0, 1.0, 0.0]), torch.tensor([0.5, 3.0, 0.0]))
    assert score.tolist() == [0.75, 0.0, 1.0]
    assert policy_entropy(torch.tensor([[1.0, -3.0], [2.0, 2.0]])).tolist() == [1.0, -2.0]
