"""Agents of reinforcement learning as their libraries write them: actors, critics, world models."""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.nn import functional as F

from foreign.expected import Expected, vectors
from foreign.first import NoisyLinear


def mlp(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with an activation between each two."""
    layers: list[nn.Module] = []
    for n, m in pairwise(widths):
        layers += [nn.Linear(n, m), activation()]
    return nn.Sequential(*layers[:-1])


class SpinningUpActor(nn.Module):
    """spinningup's SquashedGaussianMLPActor, deterministic."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
        self.mu_layer, self.log_std_layer = nn.Linear(8, 2), nn.Linear(8, 2)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        out = self.net(obs)
        mu, log_std = self.mu_layer(out), self.log_std_layer(out).clamp(-20, 2)
        log_prob = Normal(mu, log_std.exp()).log_prob(mu).sum(-1)
        log_prob = log_prob - (2 * (math.log(2) - mu - F.softplus(-2 * mu))).sum(1)
        return torch.tanh(mu), log_prob


class SpinningUpActorCritic(nn.Module):
    """spinningup's MLPActorCritic of PPO: log_std is a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.log_std = nn.Parameter(-0.5 * torch.ones(2))
        self.mu_net, self.v_net = mlp(5, 8, 8, 2, activation=nn.Tanh), mlp(5, 8, 8, 1, activation=nn.Tanh)

    def forward(self, obs: Tensor, act: Tensor) -> tuple[Tensor, Tensor]:
        log_prob = Normal(self.mu_net(obs), self.log_std.exp()).log_prob(act).sum(-1)
        return log_prob, self.v_net(obs).squeeze(-1)


class CleanRLAgent(nn.Module):
    """CleanRL's ppo_continuous_action."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = mlp(5, 8, 8, 1, activation=nn.Tanh)
        self.actor_mean = mlp(5, 8, 8, 2, activation=nn.Tanh)
        self.actor_logstd = nn.Parameter(torch.zeros(1, 2))

    def forward(self, x: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean = self.actor_mean(x)
        probs = Normal(mean, self.actor_logstd.expand_as(mean).exp())
        return probs.log_prob(action).sum(1), probs.entropy().sum(1), self.critic(x)


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


class CleanRLCritic(nn.Module):
    """CleanRL's SoftQNetwork."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(7, 8), nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor, a: Tensor) -> Tensor:
        x = F.relu(self.fc1(torch.cat([x, a], 1)))
        return self.fc3(F.relu(self.fc2(x)))


class Dueling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.feature = nn.Sequential(nn.Linear(5, 8), nn.ReLU())
        self.value, self.advantage = mlp(8, 6, 1), mlp(8, 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.feature(x)
        advantage = self.advantage(x)
        return self.value(x) + advantage - advantage.mean(1, keepdim=True)


class Rainbow(nn.Module):
    """Dueling noisy streams of a categorical distribution over returns."""

    def __init__(self) -> None:
        super().__init__()
        self.feature = nn.Sequential(nn.Linear(5, 8), nn.ReLU())
        self.value1, self.value2 = NoisyLinear(8, 6), NoisyLinear(6, 5)
        self.advantage1, self.advantage2 = NoisyLinear(8, 6), NoisyLinear(6, 3 * 5)
        self.register_buffer("support", torch.linspace(-2, 2, 5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.feature(x)
        value = self.value2(F.relu(self.value1(x))).view(-1, 1, 5)
        advantage = self.advantage2(F.relu(self.advantage1(x))).view(-1, 3, 5)
        share = F.softmax(value + advantage - advantage.mean(1, keepdim=True), dim=-1)
        return (share * self.support).sum(2)


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


class REDQ(nn.Module):
    """A list of critics, their values stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.critics = nn.ModuleList(mlp(5, 6, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([critic(x) for critic in self.critics]).amin(0)


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


class RND(nn.Module):
    """Random network distillation: a predictor of a frozen network's outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.target, self.predictor = mlp(5, 8, 4).requires_grad_(False), mlp(5, 8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return (self.predictor(x) - self.target(x)).square().mean(-1)


class ICM(nn.Module):
    """Intrinsic curiosity: one encoder of both observations, an inverse and a forward model."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.inverse, self.forward_model = mlp(5, 8, 6), mlp(12, 8, 2), mlp(8, 8, 6)

    def forward(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> tuple[Tensor, Tensor]:
        now, later = self.encoder(obs), self.encoder(next_obs)
        error = self.forward_model(torch.cat([now, action], -1)) - later
        return self.inverse(torch.cat([now, later], -1)), error.square().mean(-1)


class RSSM(nn.Module):
    """Dreamer's world model: a GRU cell, a prior and a posterior, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(5, 8), nn.ELU())
        self.cell = nn.GRUCell(4 + 2, 6)
        self.prior, self.posterior = nn.Linear(6, 4), nn.Linear(6 + 8, 4)
        self.decoder = mlp(6 + 4, 8, 5, activation=nn.ELU)

    def forward(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        embedded, h, z = self.embed(obs), obs.new_zeros(len(obs), 6), obs.new_zeros(len(obs), 4)
        decoded, priors = [], []
        for t in range(obs.shape[1]):
            h = self.cell(torch.cat([z, actions[:, t]], -1), h)
            priors.append(self.prior(h))
            z = self.posterior(torch.cat([h, embedded[:, t]], -1)).tanh()
            decoded.append(self.decoder(torch.cat([h, z], -1)))
        return torch.stack(decoded, 1), torch.stack(priors, 1)


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


class BRO(nn.Module):
    """BroNet: LayerNorm behind each layer, residual blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(7, 6), nn.LayerNorm(6), nn.ReLU())
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 6), nn.LayerNorm(6))
            for _ in range(2)
        )
        self.head = nn.Linear(6, 4)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        h = self.first(torch.cat([obs, action], -1))
        for block in self.blocks:
            h = h + block(h)
        return self.head(h)


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


class TD7(nn.Module):
    """Embeddings of state and action, normalized by their mean size."""

    def __init__(self) -> None:
        super().__init__()
        self.zs1, self.zs2 = nn.Linear(5, 8), nn.Linear(8, 6)
        self.zsa1, self.zsa2 = nn.Linear(6 + 2, 8), nn.Linear(8, 6)
        self.q0, self.q1, self.q2 = nn.Linear(7, 6), nn.Linear(18, 8), nn.Linear(8, 1)

    @staticmethod
    def normalized(x: Tensor) -> Tensor:
        return x / x.abs().mean(-1, keepdim=True).clamp(min=1e-8)

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        zs = self.normalized(self.zs2(F.elu(self.zs1(state))))
        zsa = self.zsa2(F.elu(self.zsa1(torch.cat([zs, action], 1))))
        h = self.normalized(self.q0(torch.cat([state, action], 1)))
        return self.q2(F.elu(self.q1(torch.cat([h, zs, zsa], 1))))


class QuantileDQN(nn.Module):
    """QR-DQN: quantiles of each action's return, from a shared matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(5, 8, 8, 3 * 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).view(-1, 3, 4).mean(-1)


class SB3Policy(nn.Module):
    """Stable-Baselines3's ActorCriticPolicy with its extractors."""

    def __init__(self) -> None:
        super().__init__()
        self.features_extractor = nn.Flatten()
        self.policy_net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
        self.value_net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
        self.action_head, self.value_head = nn.Linear(8, 2), nn.Linear(8, 1)
        self.log_std = nn.Parameter(torch.zeros(2))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features = self.features_extractor(obs)
        mean, values = self.action_head(self.policy_net(features)), self.value_head(self.value_net(features))
        log_prob = Normal(mean, torch.ones_like(mean) * self.log_std.exp()).log_prob(mean)
        return mean, values, log_prob.sum(1)


class NatureDQN(nn.Module):
    """Stable-Baselines3's CnnPolicy of DQN."""

    def __init__(self) -> None:
        super().__init__()
        self.cnn = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten())
        self.linear = nn.Sequential(nn.Linear(6 * 9, 8), nn.ReLU())
        self.q_net = nn.Sequential(nn.Linear(8, 3))

    def forward(self, obs: Tensor) -> Tensor:
        return self.q_net(self.linear(self.cnn(obs)))


class ImpalaBlock(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.conv0, self.conv1 = nn.Conv2d(n, n, 3, padding=1), nn.Conv2d(n, n, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv1(F.relu(self.conv0(F.relu(x))))


class Impala(nn.Module):
    """The residual network of IMPALA."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.blocks = nn.Sequential(ImpalaBlock(4), ImpalaBlock(4))
        self.hidden, self.policy, self.value = nn.Linear(4 * 9, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.max_pool2d(self.conv(x), 3, stride=2, padding=1)
        x = F.relu(self.blocks(x)).flatten(1)
        h = F.relu(self.hidden(x))
        return self.policy(h), self.value(h)


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


class WorldModelCNN(nn.Module):
    """A variational autoencoder of images as in World Models, its mean for the sample."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 4, stride=2), nn.Conv2d(4, 6, 3)
        self.mu, self.log_sigma, self.fc = nn.Linear(6 * 4, 4), nn.Linear(6 * 4, 4), nn.Linear(4, 12)
        self.deconv1, self.deconv2 = nn.ConvTranspose2d(12, 6, 4), nn.ConvTranspose2d(6, 3, 4, stride=2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = F.relu(self.conv2(F.relu(self.conv1(x)))).flatten(1)
        mu, log_sigma = self.mu(h), self.log_sigma(h)
        h = self.fc(mu).view(-1, 12, 1, 1)
        return torch.sigmoid(self.deconv2(F.relu(self.deconv1(h)))), mu, log_sigma


OBS, ACT, IMAGES = lambda: vectors(4, 5), lambda: vectors(4, 2), lambda: vectors(2, 3, 12, 12)
BOTH = lambda: (vectors(4, 5), vectors(4, 2))  # noqa: E731

AGENTS = {
    "spinningup_sac": Expected(SpinningUpActor, OBS, heads=("mu_layer", "log_std_layer"), units=2, traced=True),
    "spinningup_ppo": Expected(
        SpinningUpActorCritic, BOTH, heads=("mu_net.4", "v_net.4"), undecided=("log_std",), units=4, traced=True
    ),
    "cleanrl_ppo": Expected(
        CleanRLAgent, BOTH, heads=("critic.4", "actor_mean.4"), undecided=("actor_logstd",), units=4, traced=True
    ),
    "cleanrl_atari": Expected(
        CleanRLAtari, lambda: (vectors(2, 3, 12, 12), torch.tensor([0, 2])), heads=("actor", "critic"),
        classifier=("network.5", "actor", "critic"), units=3,
    ),
    "cleanrl_sac_actor": Expected(CleanRLActor, OBS, heads=("fc_mean", "fc_logstd"), traced=True, units=2),
    "cleanrl_sac_critic": Expected(CleanRLCritic, BOTH, heads=("fc3",), traced=True, units=2),
    "dueling_dqn": Expected(Dueling, OBS, heads=("value.2", "advantage.2"), traced=True, units=3),
    "rainbow": Expected(
        Rainbow, OBS, heads=("value2", "advantage2"), undecided=("*_mu", "*_sigma"), traced=True,
    ),
    "iqn": Expected(IQN, lambda: (vectors(4, 5), vectors(4, 3).sigmoid()), heads=("head.2",), traced=True, units=1),
    "td3_twin": Expected(TwinCritic, BOTH, heads=("q1.4", "q2.4"), traced=True, units=4),
    "redq": Expected(REDQ, OBS, heads=("critics.0.2", "critics.1.2", "critics.2.2"), traced=True, units=3),
    "drq": Expected(
        DrQ, IMAGES, heads=("policy.4",), norms=("trunk.1.weight",), traced=True, units=5,
        classifier=("trunk.0", "trunk.1", "policy.0", "policy.2", "policy.4"),
    ),
    "rnd": Expected(RND, OBS, heads=("target.2", "predictor.2"), traced=True, units=1),
    "icm": Expected(
        ICM, lambda: (vectors(4, 5), vectors(4, 2), vectors(4, 5).cos()), heads=("inverse.2", "forward_model.2"),
        traced=True, units=2,
    ),
    "rssm": Expected(RSSM, lambda: (vectors(2, 3, 5), vectors(2, 3, 2)), heads=("prior", "decoder.2"), tables=()),
    "muzero": Expected(
        MuZero, lambda: (vectors(4, 5), vectors(4, 3)), heads=("reward.2", "policy.2", "value.2"), traced=True, units=5
    ),
    "simba": Expected(Simba, OBS, heads=("head",), norms=("*norm.weight",), tables=(), traced=True, units=2),
    "bro": Expected(BRO, BOTH, heads=("head",), norms=("first.1.weight", "blocks.?.[14].weight"), traced=True, units=2),
    "crossq": Expected(CrossQ, BOTH, heads=("fc3",), norms=("bn?.weight",), traced=True),
    "td7": Expected(TD7, BOTH, heads=("q2",), traced=True, units=3),
    "qrdqn": Expected(QuantileDQN, OBS, heads=("body.4",), traced=True, units=2),
    "sb3_ppo": Expected(
        SB3Policy, lambda: vectors(4, 3, 2), heads=("action_head", "value_head"), undecided=("log_std",),
        units=4, traced=True,
    ),
    "sb3_dqn_cnn": Expected(
        NatureDQN, IMAGES, heads=("q_net.0",), traced=True, units=3, classifier=("linear.0", "q_net.0")
    ),
    "impala": Expected(
        Impala, lambda: vectors(2, 3, 6, 6), heads=("policy", "value"), traced=True, units=3,
        classifier=("hidden", "policy", "value"),
    ),
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
    "world_model": Expected(
        WorldModelCNN, lambda: vectors(2, 3, 10, 10), heads=("deconv2", "log_sigma"),
        transposed=("deconv?.weight",), traced=True, units=3, classifier=("log_sigma", "deconv2"),
    ),
}  # fmt: skip
