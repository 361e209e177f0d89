"""Deep Q-networks for discrete actions, many runs at once. `DQN.update` reads as the algorithm."""

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_plasticity.agents.base import Inputs, Losses
from rl_plasticity.agents.networks import AGENT_NETWORKS, maker
from rl_plasticity.agents.replay_buffer import Batch
from rl_plasticity.learning.learner import Learner, copy_runs_, follow_
from rl_plasticity.learning.optimizers import Adam, LearningRate, Optimizer, RMSprop
from rl_plasticity.regularizers import Regularizer, Unregularized
from rl_plasticity.seeding import RunStreams, derived
from rl_plasticity.settings import Setting, checked

Loss = Literal["huber", "mse"]
NumSteps = Annotated[
    int, Setting("env steps of reward in a target before it bootstraps (n-step returns)", least=1, most=100)
]
_OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adam": Adam,
    "rmsprop": partial(RMSprop, alpha=0.95, eps=0.01, centered=True),
}


class DQN(nn.Module):
    """Deep Q-learning with a target network (Mnih et al. 2015) for many runs.

    With ``double`` the network itself chooses the next action, and the target network values it (van Hasselt et al.
    2016, equation 4).

    Explores by epsilon-greedy actions. Epsilon falls linearly with the env steps, those with random actions included.

    Args:
        obs_shape: shape of an observation, (channels, height, width) of an image. The agent gets it flat.
        num_actions: number of actions.
        seeds: one seed for each run.
        make_regularizer: makes the regularizer of the network; never called for the target network.
        network: a name in `AGENT_NETWORKS`.
        of_network: settings of that network.

    Raises:
        SettingsError: a setting out of range.
    """

    takes_discrete_actions = True
    losses = ("critic/loss",)
    epsilon_range: tuple[float, float]
    env_steps: Tensor
    updates: Tensor

    @checked
    def __init__(
        self,
        obs_shape: Sequence[int],
        num_actions: int,
        seeds: Sequence[int],
        make_regularizer: Callable[[nn.Module], Regularizer] = Unregularized,
        *,
        network: Annotated[str, Setting("kind of network; mlp and bro, for images cnn")] = "mlp",
        double: Annotated[
            bool, Setting("double Q-learning: the network chooses the next action, the target network values it")
        ] = True,
        num_steps: NumSteps = 1,
        loss: Annotated[Loss, Setting("loss function of the critic's error")] = "huber",
        optimizer: Annotated[
            Literal["adam", "rmsprop"], Setting("optimizer; rmsprop: centered, alpha 0.95, eps 0.01, as for MinAtar")
        ] = "adam",
        lr: LearningRate = 3e-4,
        discount: Annotated[float, Setting("discount per env step", least=0, most=1)] = 0.99,
        target_every_updates: Annotated[int, Setting("updates between copies to the target network", least=1)] = 1000,
        epsilon_start: Annotated[float, Setting("share of random actions at the start", least=0, most=1)] = 1.0,
        epsilon_end: Annotated[
            float, Setting("share of random actions at the end of exploration", least=0, most=1)
        ] = 0.1,
        epsilon_env_steps: Annotated[
            int, Setting("env steps over which epsilon falls from start to end", least=1)
        ] = 100_000,
        device: str | torch.device = "cpu",
        **of_network: Any,
    ) -> None:
        super().__init__()
        self.num_actions, self.is_double, self.loss = num_actions, double, loss
        self.num_steps, self.discount, self.target_every_updates = num_steps, discount, target_every_updates
        self.epsilon_range, self.epsilon_env_steps = (epsilon_start, epsilon_end), epsilon_env_steps
        make = maker(network, of_network, type(self))
        inputs = obs_shape if getattr(AGENT_NETWORKS[network], "takes_images", False) else math.prod(obs_shape)

        def make_critic(seeds: Sequence[int]) -> nn.Module:
            return make(inputs, num_actions, seeds, "critic")

        make_optimizer = partial(_OPTIMIZERS[optimizer], lr=lr)
        self.critic = Learner(make_critic, derived(seeds, 0), make_regularizer, make_optimizer, device=device)
        self.critic_target = copy.deepcopy(self.critic.net).requires_grad_(False)
        self.streams = RunStreams(derived(seeds, 1), device)
        for count in ("env_steps", "updates"):
            self.register_buffer(count, torch.zeros(len(seeds), dtype=torch.int64, device=device))

    @property
    def epsilon(self) -> Tensor:
        """The share of random actions at the present env step, ``[runs]``."""
        start, end = self.epsilon_range
        return start + (end - start) * (self.env_steps / self.epsilon_env_steps).clamp(max=1)

    def noise(self, updates: int, batch_size: int) -> Tensor:
        """Nothing: an update draws no random numbers. ``[updates, runs, 0]``."""
        return self.env_steps.new_empty(updates, len(self.env_steps), 0, dtype=torch.float32)

    def observe_(self, obs: Tensor) -> None:
        """Count an env step of training."""
        self.env_steps += 1

    def explore_again_(self) -> None:
        """Begin epsilon's fall again, at a change of task with ``on_change=restart``."""
        self.env_steps.zero_()

    @torch.no_grad()
    def act(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        """Indices of actions ``[runs, n, 1]`` for ``[runs, n, obs_dim]``: the best, or with `noise` epsilon-greedy."""
        greedy: Tensor = self.best(self.critic.net(obs)).to(obs.dtype)
        if noise is None:
            return greedy
        uniform, epsilon = torch.special.ndtr(noise), self.epsilon.to(obs.dtype).view(-1, 1, 1)
        # Given uniform < epsilon, uniform / epsilon is uniform again.
        index = (uniform / epsilon * self.num_actions).floor().clamp(max=self.num_actions - 1)
        return torch.where(uniform < epsilon, index, greedy)

    def best(self, values: Tensor) -> Tensor:
        """The best of all actions by their values: its index, ``[runs, n, 1]``."""
        return values.argmax(-1, keepdim=True)

    def chosen(self, values: Tensor, act: Tensor) -> Tensor:
        """The values ``[runs, n]`` of the actions ``[runs, n, 1]`` among those of all actions."""
        return values.gather(-1, act.long()).squeeze(-1)

    def value(self, obs: Tensor, act: Tensor) -> Tensor:
        """Q(obs, act), ``[runs, n]``."""
        return self.chosen(self.critic.net(obs), act)

    @torch.no_grad()
    def target(self, batch: Batch) -> Tensor:
        """r + discount * Q_target(s', a'), ``[runs, batch]``, a' the best action by Q_target or, double, by Q."""
        next_q: Tensor = self.critic_target(batch.next_obs)
        choosing = self.critic.net(batch.next_obs) if self.is_double else next_q
        return batch.reward + batch.discount * self.chosen(next_q, self.best(choosing))

    def critic_loss(self, values: Tensor, act: Tensor, target: Tensor) -> Tensor:
        """Mean over the batch of (Q(s, a) - target)^2, or of Huber's loss with its border at 1, ``[runs]``."""
        loss = F.mse_loss if self.loss == "mse" else F.smooth_l1_loss
        return loss(self.chosen(values, act), target, reduction="none").mean(-1)

    def update(self, batch: Batch, noise: Tensor) -> dict[str, Tensor]:
        """One gradient update, and every `target_every_updates` a copy to the target network.

        Args:
            batch: ``[runs, batch, ...]``; `act` are indices.
            noise: empty, see `noise`.

        Returns:
            Detached metrics, each ``[runs]``.
        """
        target = self.target(batch)
        values = self.critic.net(batch.obs)
        loss = self.critic_loss(values, batch.act, target)
        of_critic = self.critic.minimize(loss, (batch.obs,))

        self.updates += 1
        is_copied = (self.updates % self.target_every_updates == 0).to(batch.obs.dtype)  # 1 copies, 0 keeps
        follow_(self.critic_target, self.critic.net, is_copied)

        metrics = {"critic/loss": loss.detach(), **{f"critic/{name}": value for name, value in of_critic.items()}}
        return metrics | {"q_mean": self.chosen(values.detach(), batch.act).mean(-1), "epsilon": self.epsilon}

    # --- what interventions need ----------------------------------------------------------------------------------

    @property
    def learners(self) -> dict[str, Learner]:
        """The network that learns."""
        return {"critic": self.critic}

    @property
    def followers(self) -> dict[str, nn.Module]:
        """The target network."""
        return {"critic": self.critic_target}

    def inputs(self, batch: Batch) -> Inputs:
        """The inputs of the network in a batch."""
        return {"critic": (batch.obs,)}

    def example_losses(self, batch: Batch, noise: Tensor) -> Losses:
        """For metrics: the loss ``[runs]`` as a function of the network's output, and further arguments."""
        return {"critic": (self.critic_loss, (batch.act, self.target(batch)))}

    def restart_(self, runs: Tensor | None = None) -> None:
        """Restart `runs` (all by default) with new weights, as a new agent has them; epsilon goes on."""
        self.critic.restart_(runs)
        copy_runs_(self.critic_target, self.critic.net, runs)
        self.updates[slice(None) if runs is None else runs] = 0
