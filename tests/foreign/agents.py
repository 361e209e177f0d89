"""Agents of reinforcement learning as their libraries write them: actors, critics, world models."""

import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional as F

from foreign.expected import Expected, bare, made_of, mlp, row, rows, vectors, zeros


def clean_rl_atari(net: nn.Module, x: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """CleanRL's ppo_atari: one trunk, two heads."""
    hidden = net.network(x / 255.0)
    probs = Categorical(logits=net.actor(hidden))
    return probs.log_prob(action), probs.entropy(), net.critic(hidden)


def clean_rl_actor(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """CleanRL's sac_continuous_action, deterministic."""
    x = F.relu(net.fc2(F.relu(net.fc1(x))))
    log_std = -5 + 0.5 * 7 * (torch.tanh(net.fc_logstd(x)) + 1)
    return torch.tanh(net.fc_mean(x)) * net.action_scale + net.action_bias, log_std


def dueling(net: nn.Module, x: Tensor) -> Tensor:
    x = net.feature(x)
    advantage = net.advantage(x)
    return net.value(x) + advantage - advantage.mean(1, keepdim=True)


def option_critic(net: nn.Module, obs: Tensor, option: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each option's policy is a matrix of a stack, picked by the options that are given."""
    state = net.features(obs)
    logits = torch.bmm(state.unsqueeze(1), net.options_w[option]).squeeze(1) + net.options_b[option]
    return net.q(state), net.terminations(state).sigmoid(), logits.softmax(-1)


OBS, BOTH = row(4, 5), rows((4, 5), (4, 2))

AGENTS = {
    "cleanrl_atari": Expected(
        lambda: made_of(clean_rl_atari,
            network=nn.Sequential(nn.Conv2d(3, 4, 4, stride=2), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten(),
                nn.Linear(6 * 9, 8), nn.ReLU()), actor=nn.Linear(8, 3), critic=nn.Linear(8, 1)),
        lambda: (vectors(2, 3, 12, 12), torch.tensor([0, 2])), heads=("actor", "critic"),
        classifier=("network.5", "actor", "critic"), units=3, traced=False),
    "cleanrl_sac_actor": Expected(
        lambda: made_of(clean_rl_actor, fc1=nn.Linear(5, 8), fc2=nn.Linear(8, 8), fc_mean=nn.Linear(8, 2),
            fc_logstd=nn.Linear(8, 2), action_scale=torch.tensor([2.0, 0.5]), action_bias=torch.tensor([0.1, 0.2])),
        OBS, heads=("fc_mean", "fc_logstd"), units=2),
    "dueling_dqn": Expected(
        lambda: made_of(dueling, feature=nn.Sequential(nn.Linear(5, 8), nn.ReLU()), value=mlp(8, 6, 1),
            advantage=mlp(8, 6, 3)),
        OBS, heads=("value.2", "advantage.2"), units=3),
    "rnd": Expected(  # Random network distillation: a predictor of a frozen network's outputs.
        lambda: made_of(lambda net, x: (net.predictor(x) - net.target(x)).square().mean(-1),
            target=mlp(5, 8, 4).requires_grad_(False), predictor=mlp(5, 8, 4)),
        OBS, heads=("target.2", "predictor.2"), units=1),
    "option_critic": Expected(
        lambda: made_of(option_critic, features=nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU()),
            q=nn.Linear(6, 3), terminations=nn.Linear(6, 3), options_w=bare(3, 6, 2, size=0.4), options_b=zeros(3, 2)),
        lambda: (vectors(4, 5), torch.tensor([0, 2, 1, 1])), heads=("q", "terminations"), undecided=("options_?",),
        units=1),
}  # fmt: skip
