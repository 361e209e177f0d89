"""Dueling networks and distributions of the return in deep Q-learning."""

import pytest
import torch
from conftest import discrete_batch, refused

from rl_plasticity.agents import AGENTS, Batch
from rl_plasticity.compiling.compiled import compiled
from rl_plasticity_zoo.distributions import projected
from rl_plasticity_zoo.rainbow import Rainbow


def test_a_distribution_learns_the_mean_and_the_spread_of_what_follows():
    agent = Rainbow((4,), 3, [3], atoms=21, least_return=-2.0, greatest_return=2.0, lr=3e-3, hidden=(32,))
    obs = torch.ones(1, 64, 4)
    act = torch.zeros(1, 64, 1)
    reward = torch.where(torch.arange(64) % 4 == 0, 1.0, -1.0).unsqueeze(0)  # a quarter of them is 1
    batch = Batch(obs, act, reward, obs, torch.zeros(1, 64))
    for _ in range(300):
        agent.update(batch, agent.noise(1, 64)[0])
    assert agent.value(obs, act)[0, 0].item() == pytest.approx(-0.5, abs=0.05)
    probs = agent.each(agent.critic.net(obs))[0, 0, 0].softmax(-1)
    assert probs[agent.support == 1].item() == pytest.approx(0.25, abs=0.03)
    assert probs[agent.support == -1].item() == pytest.approx(0.75, abs=0.03)


def test_dueling_advantages_have_mean_zero_over_the_actions_and_leave_the_value_as_the_mean():
    agent = Rainbow((4,), 3, [0], dueling=True, hidden=(4,))
    outputs = torch.tensor([[[5.0, 1.0, 2.0, 6.0]]])
    assert agent.each(outputs).squeeze().tolist() == [3.0, 4.0, 8.0]  # 5 + (1, 2, 6) - 3
    assert agent.best(outputs).item() == 2
    assert agent.chosen(outputs, torch.tensor([[[1.0]]])).item() == 4.0


def test_a_dueling_distribution_s_target_takes_the_best_action_by_the_mean_of_the_online_network():
    agent = Rainbow((4,), 3, [0], dueling=True, atoms=5, hidden=(8,))
    batch = discrete_batch(1)
    value, *advantages = agent.critic.net(batch.next_obs).unflatten(-1, (4, 5)).unbind(-2)
    means = [((value + a - sum(advantages) / 3).softmax(-1) @ agent.support) for a in advantages]
    best = torch.stack(means, -1).argmax(-1)
    value, *advantages = agent.critic_target(batch.next_obs).unflatten(-1, (4, 5)).unbind(-2)
    logits = torch.stack([value + a - sum(advantages) / 3 for a in advantages], -2)
    probs = logits[0, torch.arange(32), best[0]].softmax(-1)
    torch.testing.assert_close(agent.target(batch), projected(batch, probs.unsqueeze(0), agent.support))


def test_without_its_settings_it_is_dqn_update_for_update():
    agents = [AGENTS[name]((4,), 3, [0, 1], hidden=(8,), target_every_updates=2) for name in ("dqn", "rainbow")]
    for i in range(4):
        batch = discrete_batch(2, seed=i)
        metrics = [agent.update(batch, agent.noise(1, 32)[0]) for agent in agents]
        assert {n: v.tolist() for n, v in metrics[0].items()} == {n: v.tolist() for n, v in metrics[1].items()}
    noise = torch.randn(2, 32, 1)
    assert torch.equal(*(agent.act(batch.obs, noise) for agent in agents))


def test_each_run_learns_among_others_as_alone_and_traced_as_eager(traced):
    settings = {"hidden": (8,), "atoms": 5, "dueling": True, "activation": "crelu", "optimizer": "rmsprop"}

    def trained(seeds, rows, update=Rainbow.update):
        agent = Rainbow((4,), 3, seeds, target_every_updates=2, **settings)
        for i in range(4):
            batch = Batch(*(x[rows] for x in discrete_batch(2, seed=i)))
            metrics = update(agent, batch, agent.noise(1, 32)[0])
        return agent, metrics

    both, metrics = trained([3, 4], slice(0, 2))
    assert all(v.shape == (2,) and not v.requires_grad for v in metrics.values())
    alone, _ = trained([4], slice(1, 2))
    fast, _ = trained([3, 4], slice(0, 2), compiled(Rainbow.update, device="cpu"))
    assert len(traced) == 1
    for p, q, r in zip(both.parameters(), alone.parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(p[1:], q, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(p, r, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("settings", "named"), [
    ({"least_return": 1.0, "greatest_return": 1.0}, "least_return=1"),
    ({"atoms": 0}, "atoms.*from 1.*0"),
    ({"loss": "hubre"}, "huber"),  # of DQN
    ({"hiden": (8,)}, "hidden"),  # of the network
])  # fmt: skip
def test_what_it_does_not_take_is_refused(settings, named):
    refused(lambda: Rainbow((4,), 3, [0], **settings), match=named)
