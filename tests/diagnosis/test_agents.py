"""Agents: what their networks have to learn next, one verdict each, for ours and for those of Stable-Baselines3."""

import copy
import json

import numpy as np
import pytest
import torch
from conftest import refused
from foreign.expected import made_of, ones
from torch import nn

from rl_plasticity import SAC, Batch, diagnose
from rl_plasticity.agents.dqn import DQN
from rl_plasticity.diagnosis import agents, checks
from rl_plasticity.diagnosis.agents import NextTask, better_actions, next_task, recent_and_old
from rl_plasticity.diagnosis.tasks import Bank, TaskSource
from rl_plasticity_zoo.rainbow import Rainbow

BRIEF = {"repeats": 2, "updates": 10, "remedies": False}

pytestmark = pytest.mark.usefixtures("brief_trials")


def loss_of(net, task, fresh):
    trial = task.task([fresh], seed=0, updates=50)
    return torch.stack([trial.begin(net)(net, t) for t in range(50)]).mean().item()


def table():
    """Returns the rows of its input."""
    return made_of(lambda net, x: net.factor * x, factor=ones(1))


def test_the_loss_is_0_for_the_targets_up_to_scale_and_1_for_their_mean():
    x = torch.randn(64, 2)
    y = 500 + 30 * x[:, :1]
    is_chosen = torch.tensor([1, 0]).expand(64, 2)
    task = NextTask(Bank((x,), ()), wanted=y, counts=is_chosen, rescaled=True)
    assert loss_of(table(), task, table()) < 1e-6  # the other output is noise
    zero = table()
    nn.init.zeros_(zero.factor)
    assert loss_of(zero, task, table()) == pytest.approx(1, abs=0.2)
    assert loss_of(zero, NextTask(Bank((x,), ()), wanted=x), table()) == pytest.approx(1, abs=0.2)


def test_half_of_the_ages_are_recent():
    ages = recent_and_old(torch.rand(2, 1000), 100)
    assert ((ages >= 0) & (ages < 100)).all()
    assert (ages[:, ::2] >= 75).all()
    assert (ages[:, 1::2] < 75).all()
    assert ages[:, 1::2].min() < 5


def test_better_actions_are_the_best_within_the_bounds_also_behind_a_lower_peak():
    peak = torch.tensor([[0.3, -0.6], [-0.8, 3.0]])
    found = better_actions(lambda act: -(act - peak).square().sum(-1), torch.zeros(2, 2))
    assert torch.allclose(found, peak.clamp(-1, 1), atol=0.21)
    two = lambda act: torch.maximum(1 - (act - 0.8).abs(), 0.3 - (act + 0.5).abs()).sum(-1)  # noqa: E731
    assert better_actions(two, torch.full((1, 1), -0.5)).item() == pytest.approx(0.8, abs=0.21)


def batch(act):
    obs, then = torch.randn(2, 2, 256, 3).unbind(0)
    return Batch(obs, act, torch.randn(2, 256), then, torch.where(torch.rand(2, 256) < 0.1, 0.0, 0.9))


def test_our_networks_learn_the_targets_of_the_target_network_and_the_actions_that_the_critic_prefers():
    agent = SAC(3, 2, [0, 1], num_critics=2, hidden=[8], layer_norm=False)
    for p in agent.critic_target.parameters():
        p.data.mul_(3)
    given = batch(torch.rand(2, 256, 2) * 2 - 1)
    task = next_task(agent, "critic", given)
    with torch.no_grad():
        following = agent.critic_target(given.next_obs, agent.act(given.next_obs)).amin(1)
        wanted = given.reward + given.discount * following
        assert torch.allclose(task.wanted[..., 0], wanted)
        task = next_task(agent, "actor", given)
        now, better = (agent.value(given.obs, act) for act in (agent.act(given.obs), task.wanted))
    assert (better >= now - 1e-3).all()
    assert (better > now).float().mean() > 0.9


def test_of_all_actions_values_only_the_chosen_one_is_learned_and_distributions_get_drawn_targets():
    given = batch(torch.randint(3, (2, 256, 1)).float())
    task = next_task(DQN([3], 3, [0, 1], hidden=[8]), "critic", given)
    assert torch.equal(task.counts.argmax(-1, keepdim=True).float(), given.act)
    assert (task.counts.sum(-1) == 1).all()
    assert type(next_task(Rainbow([3], 3, [0, 1], hidden=[8], atoms=11), "critic", given)) is TaskSource


def test_a_policy_without_noise_is_a_cause():
    assert checks.of_log_std(torch.full((9, 2), -7.0), -20, 2) == [
        "entropy: the standard deviation of 100% of the actions is below 0.001"
    ]
    assert not checks.of_log_std(torch.full((9, 2), -6.0), -20, 2)
    assert [found[:7] for found in checks.of_log_std(torch.full((9, 2), -20.0), -20, 2)] == ["log_std", "entropy"]


def model(kind="SAC", env="Pendulum-v1", policy="MlpPolicy", steps=60, **settings):
    sb3 = pytest.importorskip("stable_baselines3")
    small = {"learning_starts": 20, "buffer_size": 500, "policy_kwargs": {"net_arch": [16, 16]}}
    return getattr(sb3, kind)(policy, env, device="cpu", seed=0, **small, **settings).learn(steps)


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(agents, "PLAYED", 100)


@pytest.mark.parametrize(
    ("kind", "env", "settings"), [("SAC", "Pendulum-v1", {"use_sde": True}), ("DQN", "CartPole-v1", {})]
)
def test_a_loaded_agent_gets_one_report_and_does_not_change(kind, env, settings, short, tmp_path):
    gym = pytest.importorskip("gymnasium")
    agent = model(kind, env, **settings)
    agent.policy.train()
    before = copy.deepcopy(agent.policy.state_dict()), agent.num_timesteps, agent.replay_buffer.pos
    random = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    report = diagnose(agent, **BRIEF)
    if kind == "DQN":
        again, played = diagnose(agent, **BRIEF), diagnose(agent, env=gym.make(env), **BRIEF)
        assert report.to_json() == again.to_json() != played.to_json()
    assert [*report.networks] == (["q_net"] if kind == "DQN" else ["critic", "actor"])
    for name, one in report.networks.items():
        assert one.protocol["targets"] == "next"
        assert not any("log_std" in cause for cause in one.causes)  # of which a policy without noise makes no use
        assert f"{name}\nverdict: {one.verdict}" in str(report)
    assert report.verdict in {one.verdict for one in report.networks.values()}
    assert report.why.partition(": ")[0] in report.networks
    assert {*json.loads(report.to_json())["networks"]} == {*report.networks}
    assert agent.policy.training
    assert (agent.num_timesteps, agent.replay_buffer.pos) == before[1:]
    assert all(torch.equal(a, b) for a, b in zip(before[0].values(), agent.policy.state_dict().values(), strict=True))
    assert torch.equal(random[0], torch.get_rng_state())
    assert random[1] == np.random.get_state()[1].tolist()  # noqa: NPY002


def test_their_critics_learn_the_targets_that_they_train_on():
    agent = model("TD3")
    _, task, _ = agents.of_model(agent)["critic"]
    obs, act = task.bank.inputs.args
    buffer = agent.replay_buffer
    row = {tuple(o.tolist()): i for i, o in enumerate(buffer.observations[: buffer.pos, 0])}
    rows = [row[tuple(o.tolist())] for o in obs]
    then = torch.as_tensor(buffer.next_observations[rows, 0])
    with torch.no_grad():
        q = torch.cat(agent.critic_target(then, agent.actor(then)), 1).mean(1)
    assert torch.equal(act, torch.as_tensor(buffer.actions[rows, 0]))
    assert torch.allclose(task.wanted[:, 0], torch.as_tensor(buffer.rewards[rows, 0]) + agent.gamma * q, atol=1e-5)


def test_their_actors_learn_without_their_noise():
    for settings in ({}, {"use_sde": True}):
        agent = model(**settings)
        subject, task, _ = agents.of_model(agent)["actor"]
        (obs,), (optimizer,) = task.bank.inputs.args, subject.optimizers
        assert torch.equal(subject.net(obs), agent.actor(obs, deterministic=True))
        assert {*subject.net.parameters()} == {p for group in optimizer.param_groups for p in group["params"]}


def test_dead_networks_are_lost_and_values_out_of_reach_are_named():
    agent = model()
    with torch.no_grad():
        for net in (agent.critic, agent.critic_target, agent.actor):
            for layer in net.modules():
                if getattr(layer, "out_features", 0) == 16:
                    layer.bias.fill_(-1000)
        for net in (agent.critic, agent.critic_target):
            net.qf0[-1].bias.fill_(-1e6)
    report = diagnose(agent, repeats=2, updates=30, remedies=False)
    assert report.verdict == report.networks["critic"].verdict == "lost"
    assert report.networks["actor"].causes[0].startswith("constant targets")  # the critic has no preference
    assert any(cause.startswith("values: the mean is -5e+05") for cause in report.networks["critic"].causes)


def test_observations_may_be_dicts(short):
    gym = pytest.importorskip("gymnasium")
    space = gym.spaces.Dict(a=gym.spaces.Box(-1, 1, (2,)), b=gym.spaces.Box(-9, 9, (1,)))
    split = lambda obs: {"a": obs[:2], "b": obs[2:]}  # noqa: E731
    env = gym.wrappers.TransformObservation(gym.make("Pendulum-v1"), split, space)
    agent = model(env=env, policy="MultiInputPolicy")
    assert {*diagnose(agent, **BRIEF, env=env).networks} == {"critic", "actor"}


def test_other_agents_and_agents_without_transitions_are_refused_with_what_works(tmp_path):
    gym = pytest.importorskip("gymnasium")
    sb3 = pytest.importorskip("stable_baselines3")
    refused(lambda: diagnose(sb3.PPO("MlpPolicy", "CartPole-v1")), "PPO", "SAC", "TQC", "optimizer=")
    agent = model(steps=21)
    agent.save(tmp_path / "model.zip")
    loaded = sb3.SAC.load(tmp_path / "model.zip")
    refused(lambda: diagnose(loaded), "load_replay_buffer", "env=")
    refused(lambda: diagnose(loaded, env=gym.make("CartPole-v1")), "env=", "spaces")
