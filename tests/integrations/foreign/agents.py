"""Agents of reinforcement learning as their libraries write them: actors, critics, world models."""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.nn import functional as F

from foreign.expected import Expected, made_of, vectors


def mlp(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with an activation between each two."""
    layers: list[nn.Module] = []
    for n, m in pairwise(widths):
        layers += [nn.Linear(n, m), activation()]
    return nn.Sequential(*layers[:-1])


class SpinningUpActorCritic(nn.Module):
    """spinningup's MLPActorCritic of PPO: log_std is a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.log_std = nn.Parameter(-0.5 * torch.ones(2))
        self.mu_net, self.v_net = mlp(5, 8, 8, 2, activation=nn.Tanh), mlp(5, 8, 8, 1, activation=nn.Tanh)

    def forward(self, obs: Tensor, act: Tensor) -> tuple[Tensor, Tensor]:
        log_prob = Normal(self.mu_net(obs), self.log_std.exp()).log_prob(act).sum(-1)
        return log_prob, self.v_net(obs).squeeze(-1)


class CleanRLAtari(nn.Module):
    """CleanRL's ppo_atari: one trunk, two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(3, 4, 4, stride=2), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten(),
            nn.Linear(6 * 9, 8), nn.ReLU(),
        )  # fmt: skip
        self.actor, self.critic = nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.network(x / 255.0)
        probs = Categorical(logits=self.actor(hidden))
        return probs.log_prob(action), probs.entropy(), self.critic(hidden)


class CleanRLActor(nn.Module):
    """CleanRL's sac_continuous_action, deterministic."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(5, 8), nn.Linear(8, 8)
        self.fc_mean, self.fc_logstd = nn.Linear(8, 2), nn.Linear(8, 2)
        self.register_buffer("action_scale", torch.tensor([2.0, 0.5]))
        self.register_buffer("action_bias", torch.tensor([0.1, 0.2]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(self.fc2(F.relu(self.fc1(x))))
        log_std = -5 + 0.5 * 7 * (torch.tanh(self.fc_logstd(x)) + 1)
        return torch.tanh(self.fc_mean(x)) * self.action_scale + self.action_bias, log_std


class Dueling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.feature = nn.Sequential(nn.Linear(5, 8), nn.ReLU())
        self.value, self.advantage = mlp(8, 6, 1), mlp(8, 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.feature(x)
        advantage = self.advantage(x)
        return self.value(x) + advantage - advantage.mean(1, keepdim=True)


class IQN(nn.Module):
    """Implicit quantile network: features times an embedding of quantiles by cosines."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.cosines = nn.Linear(5, 8), nn.Linear(4, 8)
        self.head = mlp(8, 8, 3)

    def forward(self, x: Tensor, taus: Tensor) -> Tensor:
        cosines = torch.cos(taus.unsqueeze(-1) * math.pi * torch.arange(1, 5).to(taus))  # [batch, taus, 4]
        h = F.relu(self.features(x)).unsqueeze(1) * F.relu(self.cosines(cosines))
        return self.head(h)


class TwinCritic(nn.Module):
    """TD3's two critics in one module."""

    def __init__(self) -> None:
        super().__init__()
        self.q1, self.q2 = mlp(7, 8, 8, 1), mlp(7, 8, 8, 1)

    def forward(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat([obs, action], -1)
        return self.q1(x), self.q2(x)


class DrQ(nn.Module):
    """DrQ-v2's encoder, trunk and policy."""

    def __init__(self) -> None:
        super().__init__()
        self.convnet = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU())
        self.trunk = nn.Sequential(nn.Linear(4 * 9, 6), nn.LayerNorm(6), nn.Tanh())
        self.policy = mlp(6, 8, 8, 2)

    def forward(self, obs: Tensor) -> Tensor:
        h = self.convnet(obs / 255.0 - 0.5)
        return torch.tanh(self.policy(self.trunk(h.view(h.shape[0], -1))))


class ICM(nn.Module):
    """Intrinsic curiosity: one encoder of both observations, an inverse and a forward model."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.inverse, self.forward_model = mlp(5, 8, 6), mlp(12, 8, 2), mlp(8, 8, 6)

    def forward(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> tuple[Tensor, Tensor]:
        now, later = self.encoder(obs), self.encoder(next_obs)
        error = self.forward_model(torch.cat([now, action], -1)) - later
        return self.inverse(torch.cat([now, later], -1)), error.square().mean(-1)


class MuZero(nn.Module):
    """Representation scaled to [0, 1], dynamics, policy, value, reward."""

    def __init__(self) -> None:
        super().__init__()
        self.representation, self.dynamics = mlp(5, 8, 6), mlp(6 + 3, 8, 6)
        self.reward, self.policy, self.value = mlp(6, 4, 1), mlp(6, 4, 3), mlp(6, 4, 1)

    @staticmethod
    def scaled(h: Tensor) -> Tensor:
        least, most = h.amin(1, keepdim=True), h.amax(1, keepdim=True)
        return (h - least) / (most - least + 1e-5)

    def forward(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.scaled(self.representation(obs))
        later = self.scaled(self.dynamics(torch.cat([h, action], 1)))
        return self.reward(later), self.policy(later), self.value(later)


class SimbaBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 12), nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.relu(self.up(self.norm(x))))


class Simba(nn.Module):
    """Observations by running statistics, residual blocks behind LayerNorms, a last LayerNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((5,), 0.2))
        self.register_buffer("var", torch.full((5,), 1.5))
        self.embed, self.blocks = nn.Linear(5, 6), nn.Sequential(SimbaBlock(), SimbaBlock())
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = (x - self.mean) / (self.var + 1e-8).sqrt()
        return self.head(self.norm(self.blocks(self.embed(x))))


class CrossQ(nn.Module):
    """A critic with BatchNorm before each layer."""

    def __init__(self) -> None:
        super().__init__()
        self.bn1, self.fc1 = nn.BatchNorm1d(7), nn.Linear(7, 8)
        self.bn2, self.fc2 = nn.BatchNorm1d(8), nn.Linear(8, 8)
        self.bn3, self.fc3 = nn.BatchNorm1d(8), nn.Linear(8, 1)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        h = F.relu(self.fc1(self.bn1(torch.cat([obs, action], 1))))
        return self.fc3(self.bn3(F.relu(self.fc2(self.bn2(h)))))


class OptionCritic(nn.Module):
    """Each option's policy is a matrix of a stack, picked by the options that are given."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU())
        self.q, self.terminations = nn.Linear(6, 3), nn.Linear(6, 3)
        self.options_w = nn.Parameter(torch.randn(3, 6, 2) * 0.4)
        self.options_b = nn.Parameter(torch.zeros(3, 2))

    def forward(self, obs: Tensor, option: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        state = self.features(obs)
        logits = torch.bmm(state.unsqueeze(1), self.options_w[option]).squeeze(1) + self.options_b[option]
        return self.q(state), self.terminations(state).sigmoid(), logits.softmax(-1)


class QMix(nn.Module):
    """Agents' values are mixed by weights that layers make of the state."""

    def __init__(self) -> None:
        super().__init__()
        self.hyper_w1, self.hyper_b1 = nn.Linear(5, 3 * 4), nn.Linear(5, 4)
        self.hyper_w2, self.value = nn.Linear(5, 4), mlp(5, 4, 1)

    def forward(self, values: Tensor, state: Tensor) -> Tensor:
        w1, w2 = self.hyper_w1(state).abs().view(-1, 3, 4), self.hyper_w2(state).abs().view(-1, 4, 1)
        h = F.elu(torch.bmm(values.unsqueeze(1), w1) + self.hyper_b1(state).unsqueeze(1))
        return torch.bmm(h, w2).squeeze(1) + self.value(state)


class Bootstrapped(nn.Module):
    """Bootstrapped DQN: one trunk, several heads, with fixed random networks as priors."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.heads = mlp(5, 8, 8), nn.ModuleList(mlp(8, 6, 3) for _ in range(2))
        self.priors = nn.ModuleList(mlp(5, 6, 3).requires_grad_(False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.trunk(x))
        return torch.stack([head(h) + 3 * prior(x) for head, prior in zip(self.heads, self.priors, strict=True)], 1)


OBS, ACT, IMAGES = lambda: vectors(4, 5), lambda: vectors(4, 2), lambda: vectors(2, 3, 12, 12)
BOTH = lambda: (vectors(4, 5), vectors(4, 2))  # noqa: E731

AGENTS = {
    "spinningup_ppo": Expected(
        SpinningUpActorCritic, BOTH, heads=("mu_net.4", "v_net.4"), undecided=("log_std",), units=4, traced=True
    ),
    "cleanrl_atari": Expected(
        CleanRLAtari, lambda: (vectors(2, 3, 12, 12), torch.tensor([0, 2])), heads=("actor", "critic"),
        classifier=("network.5", "actor", "critic"), units=3,
    ),
    "cleanrl_sac_actor": Expected(CleanRLActor, OBS, heads=("fc_mean", "fc_logstd"), traced=True, units=2),
    "dueling_dqn": Expected(Dueling, OBS, heads=("value.2", "advantage.2"), traced=True, units=3),
    "iqn": Expected(IQN, lambda: (vectors(4, 5), vectors(4, 3).sigmoid()), heads=("head.2",), traced=True, units=1),
    "td3_twin": Expected(TwinCritic, BOTH, heads=("q1.4", "q2.4"), traced=True, units=4),
    "drq": Expected(
        DrQ, IMAGES, heads=("policy.4",), norms=("trunk.1.weight",), traced=True, units=5,
        classifier=("trunk.0", "trunk.1", "policy.0", "policy.2", "policy.4"),
    ),
    "rnd": Expected(  # Random network distillation: a predictor of a frozen network's outputs.
        lambda: made_of(
            lambda net, x: (net.predictor(x) - net.target(x)).square().mean(-1),
            target=mlp(5, 8, 4).requires_grad_(False), predictor=mlp(5, 8, 4),
        ),
        OBS, heads=("target.2", "predictor.2"), traced=True, units=1,
    ),
    "icm": Expected(
        ICM, lambda: (vectors(4, 5), vectors(4, 2), vectors(4, 5).cos()), heads=("inverse.2", "forward_model.2"),
        traced=True, units=2,
    ),
    "muzero": Expected(
        MuZero, lambda: (vectors(4, 5), vectors(4, 3)), heads=("reward.2", "policy.2", "value.2"), traced=True, units=5
    ),
    "simba": Expected(Simba, OBS, heads=("head",), norms=("*norm.weight",), tables=(), traced=True, units=2),
    "crossq": Expected(CrossQ, BOTH, heads=("fc3",), norms=("bn?.weight",), traced=True),
    "option_critic": Expected(
        OptionCritic, lambda: (vectors(4, 5), torch.tensor([0, 2, 1, 1])), heads=("q", "terminations"),
        undecided=("options_?",), traced=True, units=1,
    ),
    "qmix": Expected(
        QMix, lambda: (vectors(4, 3), vectors(4, 5)), heads=("hyper_w1", "hyper_b1", "hyper_w2", "value.2"),
        traced=True, units=1,
    ),
    "bootstrapped": Expected(
        Bootstrapped, OBS, heads=("heads.0.2", "heads.1.2", "priors.0.2", "priors.1.2"), traced=True, units=4
    ),
}  # fmt: skip
