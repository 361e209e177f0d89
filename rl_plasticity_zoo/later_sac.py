"""Soft actor-critic with what later agents changed: SimbaV2, XQC, FlashSAC, BRO, SR-SAC, DroQ, REDQ."""

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, cast

import torch
from torch import Tensor, nn

from rl_plasticity import SAC, Batch, Regularizer, Setting, SettingsError
from rl_plasticity.agents import sac as core
from rl_plasticity.agents.dqn import NumSteps
from rl_plasticity.agents.sac import Bound, Temperature, sample_action
from rl_plasticity.learning.learner import follow_
from rl_plasticity.regularizers import Unregularized
from rl_plasticity.seeding import derived, uniform_at
from rl_plasticity.settings import checked
from rl_plasticity_zoo.distributions import Projection, cross_entropy, expected, hl_gauss, projected, two_hot
from rl_plasticity_zoo.norms import ObservationNorm, RewardNorm, StackedDropout, called

Over = Literal["min", "mean"]


class Critic(core.Critic):
    """A critic whose networks return values, or logits of the return's distribution: ``[runs, critics, batch, bins]``.

    Attributes:
        normalize: the norm of the observations, if there is one.
    """

    normalize: ObservationNorm | None

    def forward(self, obs: Tensor, act: Tensor, training: bool = False) -> Tensor:
        both = torch.cat([obs if self.normalize is None else self.normalize(obs), act], dim=-1)
        return torch.stack([called(critic, both, training) for critic in self.critics], dim=1)


class Actor(core.Actor):
    """An actor whose observations may be normalized, and whose network may have BatchNorm or dropout."""

    normalize: ObservationNorm | None

    def forward(self, obs: Tensor, training: bool = False) -> tuple[Tensor, Tensor]:
        seen = obs if self.normalize is None else self.normalize(obs)
        mean, log_std = called(self.trunk, seen, training).chunk(2, dim=-1)
        return mean, core.bounded_log_std(log_std, self.bound)


def over_critics(q: Tensor, how: Over) -> Tensor:
    """The least or the mean value of the critics: ``[runs, critics, batch] -> [runs, 1, batch]``."""
    return q.amin(1, keepdim=True) if how == "min" else q.mean(1, keepdim=True)


def distribution_over_critics(logits: Tensor, q: Tensor, how: Over) -> Tensor:
    """The distribution of the critic with the least mean q, or the mean of all: ``[runs, batch, bins]``.

    Args:
        logits: ``[runs, critics, batch, bins]``.
        q: their means, ``[runs, critics, batch]``.
    """
    probs = logits.softmax(-1)
    if how == "mean":
        return probs.mean(1)
    least = q.argmin(1, keepdim=True).unsqueeze(-1).expand(-1, -1, -1, probs.shape[-1])
    return probs.gather(1, least).squeeze(1)


def categorical_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Mean over the batch and sum over critics of the cross-entropy of the target distribution, ``[runs]``.

    Args:
        logits: ``[runs, critics, batch, bins]``.
        target: probabilities ``[runs, batch, bins]``.
    """
    return cross_entropy(logits, target.unsqueeze(1)).mean(-1).sum(1)


def entropy_target(rule: float | str | None, act_dim: int, sigma: float) -> float:
    """The entropy that the temperature aims at: a number, or by a published rule.

    - "half": -act_dim / 2 (Nikishin et al. 2022, and D'Oro, SimBa, BRO, SimbaV2 and XQC after them);
    - "full": -act_dim (Haarnoja et al. 2018b; Stable-Baselines3, REDQ);
    - "sigma": act_dim / 2 * log(2 pi e sigma^2), the entropy of a Gaussian with this standard deviation (FlashSAC).
    """
    if isinstance(rule, int | float):
        return rule
    if rule == "sigma":
        return 0.5 * act_dim * math.log(2 * math.pi * math.e * sigma**2)
    return -act_dim / (1 if rule == "full" else 2)


class LaterSAC(SAC):
    """`SAC` with the settings of later agents, which the presets of their names set together.

    - ``critic="categorical"``: critics learn a distribution of the return over `bins` atoms from `least_return` to
      `greatest_return` by cross-entropy. The target is the distribution of r + discount (z - alpha log pi), projected
      as in C51 (SimbaV2, XQC, FlashSAC); or the value's two nearest atoms; or a normal distribution around it.
    - ``normalize_reward``: see `RewardNorm`. The largest scaled return is `greatest_return`.
    - ``target_critics``: each target takes this number of critics, drawn anew at each update (REDQ).
    - ``target_over``, ``actor_over``: the least or the mean value of the critics, in the target and for the actor.
    - ``actor_every_updates``: between them only the critics learn (`update_critic`). All runs share one count.
    - ``lr_end``: the learning rate falls linearly to it.
    - ``num_steps``: targets of the rewards of several env steps. Entropies within them do not count.

    A network may say ``normalizes_obs = True`` and ``squashes_log_std = True``, which are then the defaults. One with
    ``takes_training = True`` is called with ``training=True`` where it learns. If it has ``has_batch_norm = True`` too,
    critics see a batch's observations and next observations as one batch (CrossQ), and the actor's loss reads their
    running statistics.

    Args:
        of_sac: settings of `SAC`, those of the network among them.

    Raises:
        SettingsError: a setting out of range, or settings that do not fit each other.
    """

    serves = ("takes_training", "normalizes_obs")
    support: Tensor
    subset_key: Tensor
    subsets: Tensor
    updates: Tensor

    @checked
    def __init__(
        self,
        obs_dim: int,
        act_dim: int,
        seeds: Sequence[int],
        make_regularizer: Callable[[nn.Module], Regularizer] = Unregularized,
        *,
        normalize_obs: Annotated[
            bool | None, Setting("whether to normalize observations; null: with simba and hypersphere")
        ] = None,
        normalize_reward: Annotated[
            bool, Setting("whether to scale rewards by running statistics of the return")
        ] = False,
        critic: Annotated[
            Literal["mse", "categorical"], Setting("mse: critics learn a value; categorical: the return's distribution")
        ] = "mse",
        bins: Annotated[int, Setting("atoms of a categorical critic", least=2, most=10_000)] = 101,
        least_return: Annotated[float, Setting("lowest atom")] = -5.0,
        greatest_return: Annotated[float, Setting("highest atom, and the largest normalized return")] = 5.0,
        projection: Annotated[
            Projection, Setting("target of a categorical critic: c51, or the expected value as two_hot or hl_gauss")
        ] = "c51",
        target_critics: Annotated[
            int | None, Setting("critics drawn at random for each target (REDQ: 2 of 10); null: all", least=1, most=100)
        ] = None,
        target_over: Annotated[Over, Setting("what targets use of the critics' values: minimum or mean")] = "min",
        actor_over: Annotated[Over, Setting("what the actor uses of the critics' values: minimum or mean")] = "min",
        actor_every_updates: Annotated[
            int, Setting("critic updates per update of actor and temperature", least=1, most=10_000)
        ] = 1,
        num_steps: NumSteps = 1,
        lr: Annotated[float, Setting("learning rate of actor, critic and temperature", least=0)] = 3e-4,
        lr_end: Annotated[float | None, Setting("final learning rate; null: constant", least=0)] = None,
        lr_decay_updates: Annotated[
            int | Literal["auto"], Setting("updates until the learning rate is lr_end; auto: the whole run", least=1)
        ] = "auto",
        target_entropy: Annotated[
            float | Literal["half", "full", "sigma"] | None,
            Setting(
                "target entropy; half, null: -act_dim / 2; full: -act_dim; sigma: that of a Gaussian with target_sigma"
            ),
        ] = None,
        target_sigma: Annotated[
            float, Setting("standard deviation for target_entropy=sigma (FlashSAC)", above=0)
        ] = 0.15,
        log_std: Annotated[
            Bound | None,
            Setting(
                "how the log standard deviation is kept in [-10, 2]; null: tanh with simba, hypersphere, else clamp"
            ),
        ] = None,
        temperature_loss: Annotated[
            Literal["alpha", "log_alpha"], Setting("factor of (entropy - target entropy) in the temperature's loss")
        ] = "alpha",
        device: str | torch.device = "cpu",
        **of_sac: Any,
    ) -> None:
        if not least_return < greatest_return:
            raise SettingsError(f"least_return={least_return:g} must be below greatest_return={greatest_return:g}")
        if normalize_reward and greatest_return <= 0:
            raise SettingsError(f"normalize_reward=true needs greatest_return above 0, got {greatest_return:g}")
        self.learns_log_alpha, self.is_categorical = temperature_loss == "log_alpha", critic == "categorical"
        self.bins, self.normalize_obs, self.log_std = bins if self.is_categorical else 1, normalize_obs, log_std
        entropy = entropy_target(target_entropy, act_dim, target_sigma)
        super().__init__(
            obs_dim, act_dim, seeds, make_regularizer, lr=lr, target_entropy=entropy, device=device, **of_sac
        )
        critics = cast(Critic, self.critic.net).critics
        num_critics, self.joins_batches = len(critics), getattr(critics[0], "has_batch_norm", False)
        if target_critics is not None and target_critics > num_critics:
            raise SettingsError(f"target_critics={target_critics} must be at most num_critics={num_critics}")
        self.projection, self.target_critics = projection, target_critics if target_critics != num_critics else None
        self.target_over, self.actor_over, self.actor_every_updates = target_over, actor_over, actor_every_updates
        self.num_steps = num_steps
        for module in self.critic_target.modules():
            if isinstance(module, StackedDropout):
                module.stream = 1
        scaled = RewardNorm(len(seeds), self.discount, greatest_return).to(device)
        self.reward_norm = scaled if normalize_reward else None
        if self.is_categorical:
            self.register_buffer("support", torch.linspace(least_return, greatest_return, bins, device=device))
        if self.target_critics is not None:
            keys = [seed & 0xFFFFFFFF for seed in derived(seeds, 4)]
            self.register_buffer("subset_key", torch.tensor(keys, device=device))
            self.register_buffer("subsets", torch.zeros_like(self.subset_key))
        self.lr_range = None if lr_end is None else (lr, lr_end)
        if lr_end is not None:
            if lr_decay_updates == "auto":
                raise SettingsError(
                    "lr_end needs lr_decay_updates=N: only commands can use auto, the updates of their run"
                )
            if lr_end > lr or not lr:
                raise SettingsError(f"lr_end={lr_end:g} must be at most lr={lr:g}, which must be above 0")
            self.lr_decay_updates = float(lr_decay_updates)
            self.register_buffer("updates", torch.zeros((), dtype=torch.int64, device=device))

    def make_critic(self, make: Any, sizes: tuple[int, int], num_critics: int, seeds: Sequence[int]) -> Critic:
        net = Critic(lambda own: make(sum(sizes), self.bins, own, "critic"), seeds, num_critics)
        net.normalize = self._norm(net.critics[0], sizes, seeds)
        return net

    def make_actor(self, make: Any, sizes: tuple[int, int], log_std: Bound, seeds: Sequence[int]) -> Actor:
        trunk = make(sizes[0], 2 * sizes[1], seeds, "actor")
        by_network: Bound = "tanh" if getattr(trunk, "squashes_log_std", False) else "clamp"
        net = Actor(trunk, by_network if self.log_std is None else self.log_std)
        net.normalize = self._norm(trunk, sizes, seeds)
        return net

    def _norm(self, net: nn.Module, sizes: tuple[int, int], seeds: Sequence[int]) -> ObservationNorm | None:
        wanted = getattr(net, "normalizes_obs", False) if self.normalize_obs is None else self.normalize_obs
        return ObservationNorm(sizes[0], len(seeds)) if wanted else None

    def observe_(self, obs: Tensor) -> None:
        """Take the observations ``[runs, obs_dim]`` of the next actions into the running statistics."""
        for module in self.modules():
            if isinstance(module, ObservationNorm):
                module.observe_(obs)

    def observe_reward_(self, reward: Tensor, ended: Tensor) -> None:
        """Take the rewards ``[runs]`` of an env step into the running statistics; `ended`: its episode's last one."""
        if self.reward_norm is not None:
            self.reward_norm.observe_(reward, ended)

    def value(self, obs: Tensor, act: Tensor) -> Tensor:
        """The smallest of the critics' Q(obs, act), ``[runs, n]``, in the unit of the rewards."""
        q = self.expected(self.critic.net(obs, act)).amin(1)
        return q if self.reward_norm is None else q * self.reward_norm.scale.to(q.dtype).unsqueeze(1)

    def expected(self, values: Tensor) -> Tensor:
        """The critics' values ``[runs, critics, batch]`` for what their networks return."""
        return expected(values, self.support) if self.is_categorical else values.squeeze(-1)

    def update(self, batch: Batch, noise: Tensor) -> dict[str, Tensor]:
        """One gradient update of critic, target, actor and temperature; see `SAC.update`."""
        of_critic, of_actor = self.update_critic(batch, noise), self._update_actor(batch, noise[1])
        metrics = of_critic | of_actor
        return {name: metrics[name] for name in self.losses} | metrics

    def update_critic(self, batch: Batch, noise: Tensor) -> dict[str, Tensor]:
        """The part of an update that critic and target take, alone where the actor does not learn."""
        self._decay_lr_()
        alpha = self.temperature.net().detach()
        with torch.no_grad():
            next_act, next_log_prob = sample_action(self.actor.net(batch.next_obs), noise[0])
            following = self._critics(self.critic_target, batch, next_act, at_next=True)
            target = self._target(batch, following, next_log_prob, alpha)
        values = self._critics(self.critic.net, batch, next_act, at_next=False)
        loss = self.critic_loss(values, target)
        of_critic = self.critic.minimize(loss, (batch.obs, batch.act))

        follow_(self.critic_target, self.critic.net, self.tau)

        metrics = {"critic/loss": loss.detach(), **{f"critic/{name}": value for name, value in of_critic.items()}}
        return metrics | {"q_mean": self.expected(values.detach()).mean((1, 2)), "alpha": alpha}

    def _update_actor(self, batch: Batch, noise: Tensor) -> dict[str, Tensor]:
        """The part of an update that actor and temperature take."""
        alpha = self.temperature.net().detach()
        act, log_prob = sample_action(self.actor.net(batch.obs, training=True), noise)
        # BatchNorm of the critics takes running statistics here, and dropout draws, as where their sources do.
        q = self.expected(self.critic.net(batch.obs, act, training=not self.joins_batches))
        loss = core.actor_loss(over_critics(q, self.actor_over), log_prob, alpha)
        of_actor = self.actor.minimize(loss, (batch.obs,))

        entropy = -log_prob.detach().mean(-1)
        temperature = cast(Temperature, self.temperature.net)
        scale = temperature.log_alpha if self.learns_log_alpha else temperature()
        self.temperature.minimize(scale * (entropy - self.target_entropy))
        metrics = {"actor/loss": loss.detach(), **{f"actor/{name}": value for name, value in of_actor.items()}}
        return metrics | {"entropy": entropy}

    def _critics(self, net: nn.Module, batch: Batch, next_act: Tensor, at_next: bool) -> Tensor:
        """What critics return in training for (next_obs, next_act), or else for (obs, act).

        With BatchNorm both are one batch, whose statistics it takes (CrossQ, Bhatt et al. 2024).
        """
        if not self.joins_batches:
            inputs = (batch.next_obs, next_act) if at_next else (batch.obs, batch.act)
            values: Tensor = net(*inputs, training=True)
            return values
        size = batch.obs.shape[1]
        obs, act = torch.cat([batch.obs, batch.next_obs], 1), torch.cat([batch.act, next_act], 1)
        both: Tensor = net(obs, act, training=True)
        return both[:, :, size:] if at_next else both[:, :, :size]

    def _target(self, batch: Batch, following: Tensor, next_log_prob: Tensor, alpha: Tensor) -> Tensor:
        """What the critics are to return: ``[runs, batch]``, or probabilities ``[runs, batch, bins]``.

        Args:
            following: what the target critics return for the next observations and actions.
        """
        if self.reward_norm is not None:
            batch = batch._replace(reward=self.reward_norm(batch.reward))
        if self.target_critics is not None:
            following = self._drawn_critics(following)
        q = self.expected(following)
        if self.is_categorical and self.projection == "c51":
            probs = distribution_over_critics(following, q, self.target_over)
            return projected(batch, probs, self.support, alpha.unsqueeze(1) * next_log_prob)
        target = core.bellman_target(batch, over_critics(q, self.target_over), next_log_prob, alpha)
        if not self.is_categorical:
            return target
        return (two_hot if self.projection == "two_hot" else hl_gauss)(target, self.support)

    @torch.no_grad()
    def target(self, batch: Batch, noise: Tensor) -> Tensor:
        """What the critics are to return for a batch, without training."""
        next_act, next_log_prob = sample_action(self.actor.net(batch.next_obs), noise)
        following = self.critic_target(batch.next_obs, next_act)
        return self._target(batch, following, next_log_prob, self.temperature.net())

    def _drawn_critics(self, values: Tensor) -> Tensor:
        """The values ``[runs, critics, ...]`` of `target_critics` of them, drawn without replacement for each run."""
        draws = uniform_at(self.subset_key, values.shape[1], self.subsets)
        self.subsets.add_(1)
        chosen = draws.argsort(-1)[:, : self.target_critics]
        return values.take_along_dim(chosen.reshape(*chosen.shape, *[1] * (values.ndim - 2)), 1)

    def critic_loss(self, values: Tensor, target: Tensor) -> Tensor:
        """The critics' loss ``[runs]``, for what their networks return."""
        if self.is_categorical:
            return categorical_loss(values, target)
        return core.critic_loss(self.expected(values), target)

    def _decay_lr_(self) -> None:
        """Count an update, and set the learning rates of this one."""
        if self.lr_range is None:
            return
        start, end = self.lr_range
        share = 1 + (end / start - 1) * (self.updates.double() / self.lr_decay_updates).clamp(max=1)
        for learner in (self.critic, self.actor, self.temperature):
            learner.optimizer.lr.copy_(start * share)
        self.updates.add_(1)

    @torch.no_grad()
    def example_losses(
        self, batch: Batch, noise: Tensor
    ) -> dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]]:
        """For metrics: each learner's loss ``[runs]`` as a function of its network's output, and further arguments."""
        alpha = self.temperature.net()

        def of_actor(gaussian: tuple[Tensor, Tensor], obs: Tensor, noise: Tensor) -> Tensor:
            act, log_prob = sample_action(gaussian, noise)
            q = over_critics(self.expected(self.critic.net(obs, act)), self.actor_over)
            return core.actor_loss(q, log_prob, alpha)

        target = self.target(batch, noise[0])
        return {"critic": (self.critic_loss, (target,)), "actor": (of_actor, (batch.obs, noise[1]))}

    def restart_(self, runs: Tensor | None = None) -> None:
        """Restart `runs` (all by default) with new weights, as a new agent has them.

        Running statistics of observations do not change. They belong to the data, which stay in the replay buffer.
        """
        statistics = {name: value.clone() for name, value in self.named_buffers() if ".normalize." in name}
        super().restart_(runs)
        for name, value in statistics.items():
            self.get_buffer(name).copy_(value)
