"""TD3 as a plugin: ``cd examples; python -m rl_plasticity.train plugins=[td3] agent=td3 env=gym:Pendulum-v1``."""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from rl_plasticity import AGENTS, MLP, Batch, Learner, Regularizer, Setting
from rl_plasticity.agents.sac import Critic, critic_loss
from rl_plasticity.learning.learner import copy_runs_
from rl_plasticity.learning.optimizers import Adam
from rl_plasticity.regularizers import Unregularized
from rl_plasticity.seeding import RunStreams, derive
from rl_plasticity.settings import checked


class Actor(nn.Module):
    """An MLP followed by tanh: ``[runs, batch, obs_dim] -> [runs, batch, act_dim]``."""

    def __init__(self, widths: Sequence[int], seeds: Sequence[int], layer_norm: bool) -> None:
        super().__init__()
        self.trunk = MLP(widths, seeds, layer_norm)

    def forward(self, obs: Tensor) -> Tensor:
        return self.trunk(obs).tanh()


def actor_loss(q: Tensor) -> Tensor:
    """The mean of -Q1(s, pi(s)), ``[runs]``."""
    return -q[:, 0].mean(-1)


class TD3(nn.Module):
    """Twin delayed deep deterministic policy gradient, for many runs (Fujimoto et al. 2018, Algorithm 1).

    Every update changes actor and targets, and undoes the change where it is not due. Therefore `update` has no branch
    and can be one compiled graph. All runs share one count of updates, which no reset restarts.

    Args:
        make_regularizer: a function from a network to its regularizer, for actor and critic but never for targets.
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
        hidden: Annotated[Sequence[int], Setting("widths of the hidden layers", least=1)] = (256, 256),
        layer_norm: Annotated[bool, Setting("LayerNorm between linear layer and ReLU")] = False,
        lr: Annotated[float, Setting("learning rate of both optimizers", least=0)] = 3e-4,
        discount: Annotated[float, Setting("discount per env step", least=0, most=1)] = 0.99,
        tau: Annotated[float, Setting("step of the targets' moving average", least=0, most=1)] = 0.005,
        policy_delay: Annotated[int, Setting("critic updates per actor update", least=1)] = 2,
        exploration_noise: Annotated[float, Setting("standard deviation of the noise on actions", least=0)] = 0.1,
        target_noise: Annotated[float, Setting("standard deviation of the noise on target actions", least=0)] = 0.2,
        target_noise_clip: Annotated[float, Setting("largest noise on target actions", least=0)] = 0.5,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__()
        self.act_dim, self.discount, self.tau, self.policy_delay = act_dim, discount, tau, policy_delay
        self.exploration_noise, self.target_noise, self.clip = exploration_noise, target_noise, target_noise_clip

        def own(key: int) -> list[int]:
            return [derive(seed, key) for seed in seeds]

        make_critic = partial(
            Critic, partial(MLP, (obs_dim + act_dim, *hidden, 1), layer_norm=layer_norm), num_critics=2
        )
        make_actor = partial(Actor, (obs_dim, *hidden, act_dim), layer_norm=layer_norm)
        adam = partial(Adam, lr=lr)
        self.critic = Learner(make_critic, own(0), make_regularizer, adam, device=device)
        self.actor = Learner(make_actor, own(1), make_regularizer, adam, device=device)
        self.critic_target = copy.deepcopy(self.critic.net).requires_grad_(False)
        self.actor_target = copy.deepcopy(self.actor.net).requires_grad_(False)
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64, device=device))
        self.streams = RunStreams(own(2), device)

    def noise(self, updates: int, batch_size: int) -> Tensor:
        """Standard normal noise ``[updates, runs, batch, act_dim]`` for the target's actions."""
        return self.streams.normal(updates, batch_size, self.act_dim).movedim(0, 1)

    @torch.no_grad()
    def act(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        act = self.actor.net(obs)
        return act if noise is None else (act + self.exploration_noise * noise).clamp(-1, 1)

    def value(self, obs: Tensor, act: Tensor) -> Tensor:
        return self.critic.net(obs, act).amin(1)

    @torch.no_grad()
    def bellman_target(self, batch: Batch, noise: Tensor) -> Tensor:
        """r + discount * min over critics of Q_target(s', pi_target(s') + clipped noise), ``[runs, batch]``."""
        added = (self.target_noise * noise).clamp(-self.clip, self.clip)
        next_act = (self.actor_target(batch.next_obs) + added).clamp(-1, 1)
        return batch.reward + batch.discount * self.critic_target(batch.next_obs, next_act).amin(1)

    def update(self, batch: Batch, noise: Tensor) -> dict[str, Tensor]:
        """One gradient update of the critic and, every `policy_delay` updates, of the actor and the targets."""
        critic, actor = self.critic.net, self.actor.net
        self.updates += 1
        due = self.updates % self.policy_delay == 0
        q = critic(batch.obs, batch.act)
        loss_q = critic_loss(q, self.bellman_target(batch, noise))
        of_critic = self.critic.minimize(loss_q, (batch.obs, batch.act))
        metrics = {f"critic/{name}": value for name, value in of_critic.items()}

        state = [*self.actor.parameters(), *self.actor.buffers()]
        before = [x.detach().clone() for x in state]
        loss_pi = actor_loss(critic(batch.obs, actor(batch.obs)))
        metrics |= {f"actor/{name}": value for name, value in self.actor.minimize(loss_pi, (batch.obs,)).items()}
        with torch.no_grad():
            for after, x in zip(state, before, strict=True):
                after.copy_(torch.where(due, after, x))
            for target, net in ((self.critic_target, critic), (self.actor_target, actor)):
                for follower, leader in zip(target.parameters(), net.parameters(), strict=True):
                    follower.lerp_(leader, due * self.tau)
        return metrics | {"critic/loss": loss_q.detach(), "actor/loss": loss_pi.detach()}

    # --- what interventions and probes need -----------------------------------------------------------------------

    @property
    def learners(self) -> dict[str, Learner]:
        return {"critic": self.critic, "actor": self.actor}

    @property
    def followers(self) -> dict[str, nn.Module]:
        return {"critic": self.critic_target, "actor": self.actor_target}

    def inputs(self, batch: Batch) -> dict[str, tuple[Tensor, ...]]:
        return {"critic": (batch.obs, batch.act), "actor": (batch.obs,)}

    def example_losses(self, batch: Batch, noise: Tensor) -> dict[str, tuple[Callable[..., Tensor], tuple[Any, ...]]]:
        def of_actor(act: Tensor, obs: Tensor) -> Tensor:
            return actor_loss(self.critic.net(obs, act))

        return {"critic": (critic_loss, (self.bellman_target(batch, noise),)), "actor": (of_actor, (batch.obs,))}

    def restart_(self, runs: Tensor | None = None) -> None:
        for name, learner in self.learners.items():
            learner.restart_(runs)
            copy_runs_(self.followers[name], learner.net, runs)


AGENTS["td3"] = TD3
