"""Deep Q-learning against slow, obvious references."""

import copy

import pytest
import torch
from conftest import assert_equal_states, discrete_batch, one_run, plainly, refused
from torch import nn

from rl_plasticity.agents import DQN, Batch
from rl_plasticity.compiling.compiled import compiled
from rl_plasticity.interventions import make_intervention


def made(runs=2, **settings):
    return DQN((4,), 3, range(3, 3 + runs), **{"hidden": (16, 16), "lr": 1e-3, "target_every_updates": 2, **settings})


def reference_update(net, target, optimizer, batch, double, huber):
    """Deep Q-learning for one run with torch's own modules; without the copy to the target network."""
    with torch.no_grad():
        following = target(batch.next_obs)
        best = (net(batch.next_obs) if double else following).argmax(1)
        y = batch.reward + batch.discount * following[torch.arange(len(best)), best]
    q = net(batch.obs)[torch.arange(len(y)), batch.act[:, 0].long()]
    error = (q - y).abs()
    loss = torch.where(error < 1, 0.5 * error**2, error - 0.5) if huber else error**2
    plainly(optimizer, loss.mean())


def assert_updates_equal(agent, references, update, obs, double, huber):
    for i in range(5):
        batch = discrete_batch(2, obs, seed=i)
        update(agent, batch, agent.noise(1, 32)[0])
        for run, (net, target, theirs) in enumerate(references):
            reference_update(net, target, theirs, Batch(*(x[run].double() for x in batch)), double, huber)
            if i % 2 == 1:
                target.load_state_dict(net.state_dict())
    for run, (net, target, _) in enumerate(references):
        for ours, reference in ((agent.critic.net, net), (agent.critic_target, target)):
            found = [p[run].double() for p in ours.parameters()]
            torch.testing.assert_close(found, [*reference.parameters()], rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("loss", ["huber", "mse"])
@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_updates_equal_the_reference_for_every_run(double, loss, optimizer):
    agent = made(double=double, loss=loss, optimizer=optimizer)
    references = []
    for run in range(2):
        net = one_run(agent.critic.net, run)
        theirs = torch.optim.Adam(net.parameters(), lr=1e-3)
        if optimizer == "rmsprop":  # as published
            theirs = torch.optim.RMSprop(net.parameters(), lr=1e-3, alpha=0.95, eps=0.01, centered=True)
        references.append((net, copy.deepcopy(net), theirs))
    assert_updates_equal(agent, references, DQN.update, 4, double, loss == "huber")


def test_epsilon_falls_linearly_with_the_env_steps_and_is_the_share_of_actions_that_are_random():
    agent = made(runs=1, epsilon_start=1.0, epsilon_end=0.2, epsilon_env_steps=8)
    obs = torch.randn(1, 6000, 4)
    greedy = agent.act(obs)
    shares = []
    for _ in range(11):
        shares.append(agent.epsilon.item())
        agent.observe_(obs[:, 0])
    assert shares == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.2, 0.2])
    act = agent.act(obs, torch.randn(1, 6000, 1, generator=torch.Generator().manual_seed(0)))
    differ = (act != greedy).float().mean().item()
    assert differ == pytest.approx(0.2 * 2 / 3, abs=5 * (0.13 * 0.87 / 6000) ** 0.5)  # a third of them hit the best
    assert act.unique().tolist() == [0.0, 1.0, 2.0]
    agent.env_steps.zero_()
    counts = agent.act(obs, torch.randn(1, 6000, 1, generator=torch.Generator().manual_seed(1))).view(-1).long()
    share = counts.bincount() / 6000
    assert share.tolist() == pytest.approx([1 / 3] * 3, abs=5 * (2 / 9 / 6000) ** 0.5)


def test_epsilon_of_zero_acts_greedily_whatever_the_noise():
    agent = made(epsilon_start=0.0, epsilon_end=0.0)
    obs = torch.randn(2, 50, 4)
    assert torch.equal(agent.act(obs, torch.full((2, 50, 1), -40.0)), agent.act(obs))


@pytest.mark.parametrize("update", [DQN.update, compiled(DQN.update, device="cpu")], ids=["eager", "traced"])
def test_updates_of_the_convolutional_network_equal_the_reference_for_every_run(update, traced):
    shape = (2, 6, 5)
    agent = DQN(shape, 3, [3, 4], network="cnn", channels=4, hidden=(7,), lr=1e-3, target_every_updates=2)
    references = []
    for run in range(2):
        layers = nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 7), nn.ReLU(), nn.Linear(7, 3)
        net = nn.Sequential(nn.Unflatten(1, shape), *layers).double()
        with torch.no_grad():
            for p, q in zip(net.parameters(), agent.critic.net.parameters(), strict=True):
                p.copy_(q[run])
        references.append((net, copy.deepcopy(net), torch.optim.Adam(net.parameters(), lr=1e-3)))
    assert_updates_equal(agent, references, update, 60, double=True, huber=True)


def test_a_reset_run_starts_as_a_new_agent_and_keeps_its_epsilon_while_others_go_on():
    agent = made()
    for i in range(3):
        agent.observe_(torch.zeros(2, 4))
        agent.update(discrete_batch(2, seed=i), agent.noise(1, 32)[0])
    before = [p[0].clone() for p in agent.parameters()]
    make_intervention("periodic", every_updates=1).apply_(agent, runs=torch.tensor([1]))
    assert all(torch.equal(p[0], q) for p, q in zip(agent.parameters(), before, strict=True))
    assert_equal_states(*([p[1] for p in net.parameters()] for net in (agent.critic.net, agent.critic_target)))
    assert agent.critic.optimizer.step.tolist() == [3, 0]
    assert (agent.updates.tolist(), agent.env_steps.tolist()) == ([3, 0], [3, 3])


@pytest.mark.parametrize(
    ("given", "named"), [({"network": "cnn"}, "network=mlp"), ({"loss": "hubre"}, "huber"), ({"hiden": (8,)}, "hidden")]
)
def test_what_it_does_not_take_is_refused(given, named):
    refused(lambda: DQN((4,), 3, [0], **given), named)
