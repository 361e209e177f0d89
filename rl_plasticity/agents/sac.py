"""Soft actor-critic, many runs at once. `SAC.update` reads as the algorithm; each equation is a function above it."""

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_plasticity.agents.base import Inputs, Losses
from rl_plasticity.agents.networks import maker
from rl_plasticity.agents.replay_buffer import Batch
from rl_plasticity.learning.learner import Learner, copy_runs_, follow_
from rl_plasticity.learning.optimizers import Adam
from rl_plasticity.regularizers import Regularizer, Unregularized
from rl_plasticity.seeding import RunStreams, derived
from rl_plasticity.settings import Setting, checked

LOG_STD_MIN, LOG_STD_MAX = -10.0, 2.0
Bound = Literal["clamp", "tanh"]


class Critic(nn.Module):
    """Q(obs, act): ``[runs, batch, obs_dim], [runs, batch, act_dim] -> [runs, critics, batch]``.

    Args:
        make: called with seeds for each critic; returns a network of observation and action.
    """

    def __init__(self, make: Callable[[Sequence[int]], nn.Module], seeds: Sequence[int], num_critics: int = 1) -> None:
        super().__init__()
        self.critics = nn.ModuleList(make(derived(seeds, i)) for i in range(num_critics))

    def forward(self, obs: Tensor, act: Tensor) -> Tensor:
        both = torch.cat([obs, act], dim=-1)
        return torch.stack([critic(both).squeeze(-1) for critic in self.critics], dim=1)


class Actor(nn.Module):
    """Mean and log_std of the Gaussian before the tanh: ``[runs, batch, obs_dim] -> 2 x [runs, batch, act_dim]``.

    Args:
        bound: how log_std is kept within its bounds, see `bounded_log_std`.
    """

    def __init__(self, trunk: nn.Module, bound: Bound = "clamp") -> None:
        super().__init__()
        self.trunk, self.bound = trunk, bound

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.trunk(obs).chunk(2, dim=-1)
        return mean, bounded_log_std(log_std, self.bound)


class Temperature(nn.Module):
    """alpha = exp(log_alpha), ``[runs]``."""

    def __init__(self, init: float, num_runs: int) -> None:
        super().__init__()
        self.runs = (num_runs,)
        self.log_alpha = nn.Parameter(torch.full(self.runs, math.log(init)))

    def forward(self) -> Tensor:
        return self.log_alpha.exp()


def bounded_log_std(x: Tensor, bound: Bound) -> Tensor:
    """The log standard deviation in [-10, 2], from the network's output x.

    "clamp": x clipped; outside the bounds its gradient is 0. "tanh": -10 + 6 (1 + tanh(x)), whose gradient is never 0.
    At x = 0 the standard deviation is 1 with "clamp" and exp(-4), about 0.018, with "tanh".
    """
    if bound == "clamp":
        return x.clamp(LOG_STD_MIN, LOG_STD_MAX)
    return LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (1 + x.tanh())


def sample_action(gaussian: tuple[Tensor, Tensor], noise: Tensor) -> tuple[Tensor, Tensor]:
    """For mean and log_std: the action tanh(u), u = mean + std * noise, and its log-probability ``[runs, batch]``.

    log pi = sum over dimensions of log N(u; mean, std) - log(1 - tanh(u)^2)   (Haarnoja et al. 2018, Appendix C),
    with log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)), which does not overflow.
    """
    mean, log_std = gaussian
    u = mean + log_std.exp() * noise
    log_normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    log_slope = 2 * (math.log(2) - u - F.softplus(-2 * u))
    return u.tanh(), (log_normal - log_slope).sum(-1)


def bellman_target(batch: Batch, next_q: Tensor, next_log_prob: Tensor, alpha: Tensor) -> Tensor:
    """r + discount * (min over critics of Q_target(s', a') - alpha log pi(a'|s')), ``[runs, batch]``."""
    return batch.reward + batch.discount * (next_q.amin(1) - alpha.unsqueeze(1) * next_log_prob)


def critic_loss(q: Tensor, target: Tensor) -> Tensor:
    """Mean over the batch and sum over critics of (Q(s, a) - target)^2, ``[runs]``."""
    return (q - target.unsqueeze(1)).square().mean(-1).sum(1)


def actor_loss(q: Tensor, log_prob: Tensor, alpha: Tensor) -> Tensor:
    """Mean of alpha log pi(a|s) - min over critics of Q(s, a), ``[runs]``."""
    return (alpha.unsqueeze(1) * log_prob - q.amin(1)).mean(-1)


class SAC(nn.Module):
    """Soft actor-critic (Haarnoja et al. 2018) as in Nikishin et al. (2022) and D'Oro et al. (2023), for many runs.

    Deviations from them, following Lewandowski et al. (2024): LayerNorm between linear layer and ReLU, and one critic.
    Another one: the log standard deviation is clipped to [-10, 2]. Their code squashes it by a tanh into the same
    bounds, which is ``log_std="tanh"``.

    Args:
        obs_dim, act_dim: sizes of observations and actions. Actions are in [-1, 1].
        seeds: one seed for each run.
        make_regularizer: makes the regularizer of a network; called for actor and critic, never for target or
            temperature.
        network: a name in `AGENT_NETWORKS`.
        of_network: settings of that network.

    Raises:
        SettingsError: a setting out of range, or settings that do not fit each other.
    """

    losses = ("critic/loss", "actor/loss")

    @checked
    def __init__(
        self,
        obs_dim: int,
        act_dim: int,
        seeds: Sequence[int],
        make_regularizer: Callable[[nn.Module], Regularizer] = Unregularized,
        *,
        network: Annotated[str, Setting("kind of network for actor and critics; sac takes mlp and bro")] = "mlp",
        num_critics: Annotated[int, Setting("number of critics; 2: clipped double Q", least=1, most=100)] = 1,
        lr: Annotated[float, Setting("learning rate of actor, critic and temperature", least=0)] = 3e-4,
        discount: Annotated[float, Setting("discount per env step", least=0, most=1)] = 0.99,
        tau: Annotated[
            float, Setting("share of the critic that each update mixes into the target network", least=0, most=1)
        ] = 0.005,
        init_alpha: Annotated[float, Setting("initial temperature", above=0)] = 1.0,
        target_entropy: Annotated[float | None, Setting("target entropy of the policy; null: -act_dim / 2")] = None,
        log_std: Annotated[Bound, Setting("how the log standard deviation is kept in [-10, 2]")] = "clamp",
        device: str | torch.device = "cpu",
        **of_network: Any,
    ) -> None:
        super().__init__()
        self.act_dim, self.tau, self.discount = act_dim, tau, discount
        self.target_entropy = -act_dim / 2 if target_entropy is None else target_entropy
        make = maker(network, of_network, type(self))
        adam, sizes = partial(Adam, lr=lr), (obs_dim, act_dim)
        critics, actors = (
            partial(self.make_critic, make, sizes, num_critics),
            partial(self.make_actor, make, sizes, log_std),
        )
        self.critic = Learner(critics, derived(seeds, 0), make_regularizer, adam, device=device)
        self.actor = Learner(actors, derived(seeds, 1), make_regularizer, adam, device=device)
        temperatures = lambda seeds: Temperature(init_alpha, len(seeds))  # noqa: E731
        self.temperature = Learner(temperatures, derived(seeds, 2), Unregularized, adam, device=device)
        self.critic_target = copy.deepcopy(self.critic.net).requires_grad_(False)
        self.streams = RunStreams(derived(seeds, 3), device)

    def make_critic(self, make: Any, sizes: tuple[int, int], num_critics: int, seeds: Sequence[int]) -> Critic:
        """The critics of networks from `make`, for observations and actions of these sizes."""
        return Critic(lambda own: make(sum(sizes), 1, own, "critic"), seeds, num_critics)

    def make_actor(self, make: Any, sizes: tuple[int, int], log_std: Bound, seeds: Sequence[int]) -> Actor:
        """The actor of a network from `make`."""
        return Actor(make(sizes[0], 2 * sizes[1], seeds, "actor"), log_std)

    def noise(self, updates: int, batch_size: int) -> Tensor:
        """Standard normal ``[updates, 2, runs, batch, act_dim]``, for the next action and the action in each update."""
        return self.streams.normal(updates, 2, batch_size, self.act_dim).movedim(0, 2)

    @torch.no_grad()
    def act(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        """Actions ``[runs, n, act_dim]`` for ``[runs, n, obs_dim]``: tanh(mean) without `noise`, sampled with it."""
        gaussian = self.actor.net(obs)
        return gaussian[0].tanh() if noise is None else sample_action(gaussian, noise)[0]

    def value(self, obs: Tensor, act: Tensor) -> Tensor:
        """The smallest of the critics' Q(obs, act), ``[runs, n]``."""
        q: Tensor = self.critic.net(obs, act).amin(1)
        return q

    @torch.no_grad()
    def target(self, batch: Batch, noise: Tensor) -> Tensor:
        """What the critics are to return for a batch, ``[runs, batch]``."""
        next_act, next_log_prob = sample_action(self.actor.net(batch.next_obs), noise)
        next_q = self.critic_target(batch.next_obs, next_act)
        return bellman_target(batch, next_q, next_log_prob, self.temperature.net())

    def update(self, batch: Batch, noise: Tensor) -> dict[str, Tensor]:
        """One gradient update of critic, target network, actor and temperature.

        Args:
            batch: ``[runs, batch, ...]``.
            noise: ``[2, runs, batch, act_dim]``, see `noise`.

        Returns:
            Detached metrics, each ``[runs]``.
        """
        alpha = self.temperature.net().detach()
        target = self.target(batch, noise[0])
        q = self.critic.net(batch.obs, batch.act)
        loss_q = critic_loss(q, target)
        of_critic = self.critic.minimize(loss_q, (batch.obs, batch.act))

        follow_(self.critic_target, self.critic.net, self.tau)

        act, log_prob = sample_action(self.actor.net(batch.obs), noise[1])
        loss_pi = actor_loss(self.critic.net(batch.obs, act), log_prob, alpha)
        of_actor = self.actor.minimize(loss_pi, (batch.obs,))  # differentiates the actor's parameters alone

        entropy = -log_prob.detach().mean(-1)
        self.temperature.minimize(self.temperature.net() * (entropy - self.target_entropy))
        return {
            "critic/loss": loss_q.detach(),
            "actor/loss": loss_pi.detach(),
            **{f"critic/{name}": value for name, value in of_critic.items()},
            "q_mean": q.detach().mean((1, 2)),
            "alpha": alpha,
            **{f"actor/{name}": value for name, value in of_actor.items()},
            "entropy": entropy,
        }

    # --- what interventions need ----------------------------------------------------------------------------------

    @property
    def learners(self) -> dict[str, Learner]:
        """The learners whose networks can lose plasticity, so without the temperature."""
        return {"critic": self.critic, "actor": self.actor}

    @property
    def followers(self) -> dict[str, nn.Module]:
        """The networks that track a learner's network."""
        return {"critic": self.critic_target}

    def inputs(self, batch: Batch) -> Inputs:
        """The inputs of each learner's network in a batch."""
        return {"critic": (batch.obs, batch.act), "actor": (batch.obs,)}

    @torch.no_grad()
    def example_losses(self, batch: Batch, noise: Tensor) -> Losses:
        """For metrics: each learner's loss ``[runs]`` as a function of its network's output, and further arguments."""
        alpha = self.temperature.net()

        def of_actor(gaussian: tuple[Tensor, Tensor], obs: Tensor, noise: Tensor) -> Tensor:
            act, log_prob = sample_action(gaussian, noise)
            return actor_loss(self.critic.net(obs, act), log_prob, alpha)

        return {"critic": (critic_loss, (self.target(batch, noise[0]),)), "actor": (of_actor, (batch.obs, noise[1]))}

    def restart_(self, runs: Tensor | None = None) -> None:
        """Restart `runs` (all by default) with new weights, as a new agent has them."""
        for learner in (self.critic, self.actor, self.temperature):
            learner.restart_(runs)
        copy_runs_(self.critic_target, self.critic.net, runs)
