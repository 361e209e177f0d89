"""Agents of reinforcement learning as their libraries write them: actors, critics, world models."""

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from foreign.expected import Expected, made_of, mlp, row, vectors


def clean_rl_atari(net: nn.Module, x: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """CleanRL's ppo_atari: one trunk, two heads."""
    hidden = net.network(x / 255.0)
    probs = Categorical(logits=net.actor(hidden))
    return probs.log_prob(action), probs.entropy(), net.critic(hidden)


def dueling(net: nn.Module, x: Tensor) -> Tensor:
    x = net.feature(x)
    advantage = net.advantage(x)
    return net.value(x) + advantage - advantage.mean(1, keepdim=True)


OBS = row(4, 5)
AGENTS = {
    "cleanrl_atari": Expected(
        lambda: made_of(clean_rl_atari,
            network=nn.Sequential(nn.Conv2d(3, 4, 4, stride=2), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten(),
                nn.Linear(6 * 9, 8), nn.ReLU()), actor=nn.Linear(8, 3), critic=nn.Linear(8, 1)),
        lambda: (vectors(2, 3, 12, 12), torch.tensor([0, 2])), heads=("actor", "critic"),
        classifier=("network.5", "actor", "critic"), units=3, traced=False),
    "dueling_dqn": Expected(
        lambda: made_of(dueling, feature=nn.Sequential(nn.Linear(5, 8), nn.ReLU()), value=mlp(8, 6, 1),
            advantage=mlp(8, 6, 3)),
        OBS, heads=("value.2", "advantage.2"), units=3),
    "rnd": Expected(  # Random network distillation: a predictor of a frozen network's outputs.
        lambda: made_of(lambda net, x: (net.predictor(x) - net.target(x)).square().mean(-1),
            target=mlp(5, 8, 4).requires_grad_(False), predictor=mlp(5, 8, 4)),
        OBS, heads=("target.2", "predictor.2"), units=1),
}  # fmt: skip
