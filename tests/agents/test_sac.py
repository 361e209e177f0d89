"""Soft actor-critic but for its updates, which tests/zoo/test_later_sac.py compares with a reference."""

import math

import pytest
import torch
from conftest import assert_equal_states, random_batch, refused

from rl_plasticity.agents import AGENT_NETWORKS, SAC
from rl_plasticity.agents.sac import bounded_log_std, sample_action
from rl_plasticity.networks import MLP
from rl_plasticity.regularizers import Unregularized, make_regularizer


def test_the_log_probability_stays_finite_where_tanh_saturates():
    act, log_prob = sample_action((torch.full((1, 1, 1), 60.0), torch.zeros(1, 1, 1)), torch.zeros(1, 1, 1))
    assert act.item() == 1.0
    assert log_prob.item() == pytest.approx(-0.5 * math.log(2 * math.pi) - 2 * (math.log(2) - 60), rel=1e-5)


def test_a_clipped_log_std_stops_learning_at_the_bounds_and_a_squashed_one_does_not():
    x = torch.tensor([-20.0, 0.0, 0.5 * math.log(3), 20.0], dtype=torch.float64, requires_grad=True)
    clipped, squashed = bounded_log_std(x, "clamp"), bounded_log_std(x, "tanh")
    assert clipped.tolist() == [-10.0, 0.0, 0.5 * math.log(3), 2.0]
    torch.testing.assert_close(squashed, torch.tensor([-10.0, -4.0, -1.0, 2.0], dtype=torch.float64))  # tanh = 1/2
    assert torch.autograd.grad(clipped.sum(), x)[0].tolist() == [0.0, 1.0, 1.0, 0.0]
    gradient = torch.autograd.grad(squashed.sum(), x)[0]
    torch.testing.assert_close(gradient[1:3], torch.tensor([6.0, 4.5], dtype=torch.float64))  # 6 (1 - tanh^2)
    outside = torch.tensor([-11.0, 3.0], dtype=torch.float64, requires_grad=True)
    assert (torch.autograd.grad(bounded_log_std(outside, "tanh").sum(), outside)[0] > 0).all()


def test_targets_and_temperature_have_no_regularizer_and_metrics_are_detached_and_one_for_each_run():
    agent = SAC(4, 2, [0, 1], lambda net: make_regularizer("spectral", net), hidden=(8, 8))
    assert isinstance(agent.temperature.regularizer, Unregularized)
    assert set(agent.learners) == {"critic", "actor"}
    assert [type(learner.regularizer).__name__ for learner in agent.learners.values()] == ["Spectral"] * 2
    assert not any(p.requires_grad for p in agent.critic_target.parameters())
    metrics = agent.update(random_batch(2), agent.noise(1, 32)[0])
    assert all(v.shape == (2,) and not v.requires_grad for v in metrics.values())
    assert {"critic/loss", "actor/loss", "critic/gradient_norm", "q_mean", "entropy", "alpha"} <= set(metrics)


def test_a_reset_run_equals_a_fresh_agent_on_the_same_data():
    agent = SAC(4, 2, [0, 1], lambda net: make_regularizer("spectral", net), hidden=(8, 8))
    data = [(random_batch(2), agent.noise(1, 32)[0]) for _ in range(6)]
    for batch, noise in data:
        agent.update(batch, noise)
    agent.restart_(torch.tensor([1]))

    fresh = SAC(4, 2, [0, 1], lambda net: make_regularizer("spectral", net), hidden=(8, 8))
    fresh.restart_(torch.tensor([1]))  # the same second initialization, never trained before
    for batch, noise in data:
        agent.update(batch, noise)
        fresh.update(batch, noise)
    assert_equal_states(*([p[1] for p in of.parameters()] for of in (agent, fresh)))


@pytest.mark.parametrize("init", ["orthogonal", "small_heads", "torch"])
def test_actor_and_critics_are_initialized_as_told_and_anew_when_reset(init):
    agent = SAC(4, 2, [0, 1], hidden=(8, 8), num_critics=2, init=init)

    def first_layers():
        return [net[0] for net in (*agent.critic.net.critics, agent.actor.net.trunk)]

    before = [layer.weight.clone() for layer in first_layers()]
    assert not torch.equal(before[0], before[1])  # critics differ
    for again in range(2):
        for layer, old in zip(first_layers(), before, strict=True):
            w, n = layer.weight, layer.in_features
            if init == "torch":
                assert w.abs().max() <= 1 / math.sqrt(n)
                assert layer.bias.abs().min() > 0
            else:
                torch.testing.assert_close(w.mT @ w, 2 * torch.eye(n).expand(2, n, n), rtol=1e-5, atol=1e-5)
            assert torch.equal(w[0], old[0])
            assert torch.equal(w[1], old[1]) != bool(again)
        head = agent.actor.net.trunk[-1].weight[again]
        largest = torch.linalg.matrix_norm(head, 2).item()
        assert init == "torch" or largest == pytest.approx({"orthogonal": math.sqrt(2), "small_heads": 0.01}[init])
        agent.restart_(torch.tensor([1]))
    assert torch.equal(agent.critic_target.critics[0][0].weight, agent.critic.net.critics[0][0].weight)


def test_what_a_network_does_not_take_is_refused():
    refused(lambda: SAC(4, 2, [0], critic_width=8), "'critic_width'", "'mlp'")
    refused(lambda: SAC(4, 2, [0], network="mpl"), "'mpl'", "'mlp'")


def test_a_network_may_take_what_no_command_line_can_write(monkeypatch):
    def own(inputs, outputs, seeds, role, make=MLP, width: int = 4):
        return make((inputs, width, outputs), seeds)

    monkeypatch.setitem(AGENT_NETWORKS, "own", own)
    agent = SAC(4, 2, [0], network="own", make=lambda widths, seeds: MLP(widths, seeds, layer_norm=False))
    assert [type(module).__name__ for module in agent.actor.net.trunk] == ["StackedLinear", "ReLU", "StackedLinear"]
    refused(lambda: SAC(4, 2, [0], network="own", width=2.5), "width", "an integer", "2.5")
