"""Soft actor-critic, many runs at once. `SAC.update` reads as the algorithm; each equation is a function above it."""

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal, cast

import torch
from rl_plasticity.agents.distributions import Projection, cross_entropy, expected, hl_gauss, projected, two_hot
from rl_plasticity.networks.norms import StackedDropout, called
from torch import Tensor, nn
from torch.nn import functional as F

from rl_plasticity.agents.networks import AGENT_NETWORKS
from rl_plasticity.agents.replay_buffer import Batch
from rl_plasticity.errors import SettingsError, choose
from rl_plasticity.learning.learner import Learner, copy_runs_
from rl_plasticity.learning.optimizers import Adam
from rl_plasticity.networks import ObservationNorm, RewardNorm
from rl_plasticity.regularizers import Regularizer, Unregularized
from rl_plasticity.seeding import RunStreams, derived, uniform_at
from rl_plasticity.settings import Setting, check, checked

LOG_STD_MIN, LOG_STD_MAX = -10.0, 2.0
Bound = Literal["clamp", "tanh"]
Over = Literal["min", "mean"]


class Critic(nn.Module):
    """Q(obs, act): ``[runs, batch, obs_dim], [runs, batch, act_dim] -> [runs, critics, batch]``.

    Categorical critics return logits of the return's distribution, ``[runs, critics, batch, bins]``.

    Args:
        make: called with seeds for each critic; returns a network of observation and action.
        span: the lowest and the highest atom, if the networks return logits of a distribution, not one value.

    Attributes:
        normalize: the norm of the observations, if there is one.
    """

    normalize: ObservationNorm | None

    def __init__(
        self,
        make: Callable[[Sequence[int]], nn.Module],
        seeds: Sequence[int],
        num_critics: int = 1,
        span: tuple[float, float] | None = None,
    ) -> None:
        super().__init__()
        self.span = span
        self.critics = nn.ModuleList(make(derived(seeds, i)) for i in range(num_critics))
        self.normalize = None

    def forward(self, obs: Tensor, act: Tensor, training: bool = False) -> Tensor:
        both = torch.cat([obs if self.normalize is None else self.normalize(obs), act], dim=-1)
        values = [called(critic, both, training) for critic in self.critics]
        return torch.stack(values if self.span else [q.squeeze(-1) for q in values], dim=1)


class Actor(nn.Module):
    """Mean and log_std of the Gaussian before the tanh: ``[runs, batch, obs_dim] -> 2 x [runs, batch, act_dim]``.

    Args:
        bound: how log_std is kept within its bounds, see `bounded_log_std`.
    """

    def __init__(self, trunk: nn.Module, normalize: ObservationNorm | None = None, bound: Bound = "clamp") -> None:
        super().__init__()
        self.trunk, self.normalize, self.bound = trunk, normalize, bound

    def forward(self, obs: Tensor, training: bool = False) -> tuple[Tensor, Tensor]:
        seen = obs if self.normalize is None else self.normalize(obs)
        mean, log_std = called(self.trunk, seen, training).chunk(2, dim=-1)
        return mean, bounded_log_std(log_std, self.bound)


class Temperature(nn.Module):
    """alpha = exp(log_alpha), ``[runs]``."""

    def __init__(self, init: float, runs: int) -> None:
        super().__init__()
        self.runs = (runs,)
        self.log_alpha = nn.Parameter(torch.full((runs,), math.log(init)))

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


def over_critics(q: Tensor, how: Over) -> Tensor:
    """The least or the mean value of the critics: ``[runs, critics, batch] -> [runs, batch]``."""
    return q.amin(1) if how == "min" else q.mean(1)


def bellman_target(batch: Batch, next_q: Tensor, next_log_prob: Tensor, alpha: Tensor, how: Over = "min") -> Tensor:
    """r + discount * (min or mean over critics of Q_target(s', a') - alpha log pi(a'|s')), ``[runs, batch]``."""
    soft_value = over_critics(next_q, how) - alpha.unsqueeze(1) * next_log_prob
    return batch.reward + batch.discount * soft_value


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


def critic_loss(q: Tensor, target: Tensor) -> Tensor:
    """Mean over the batch and sum over critics of (Q(s, a) - target)^2, ``[runs]``."""
    return (q - target.unsqueeze(1)).square().mean(-1).sum(1)


def categorical_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Mean over the batch and sum over critics of the cross-entropy of the target distribution, ``[runs]``.

    Args:
        logits: ``[runs, critics, batch, bins]``.
        target: probabilities ``[runs, batch, bins]``.
    """
    return cross_entropy(logits, target.unsqueeze(1)).mean(-1).sum(1)


def actor_loss(q: Tensor, log_prob: Tensor, alpha: Tensor, how: Over = "min") -> Tensor:
    """Mean of alpha log pi(a|s) - min or mean over critics of Q(s, a), ``[runs]``."""
    return (alpha.unsqueeze(1) * log_prob - over_critics(q, how)).mean(-1)


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


def temperature_loss(scale: Tensor, entropy: Tensor, target_entropy: float) -> Tensor:
    """scale * (entropy - target entropy), ``[runs]``; scale is alpha, or log alpha."""
    return scale * (entropy - target_entropy)


class SAC(nn.Module):
    """Soft actor-critic (Haarnoja et al. 2018) as in Nikishin et al. (2022) and D'Oro et al. (2023), for many runs.

    Deviations from them, following Lewandowski et al. (2024): LayerNorm between linear layer and ReLU, and one critic.
    Another one: the log standard deviation is clipped to [-10, 2]. Their code, and that of SimBa and SimbaV2, squashes
    it by a tanh into the same bounds, which is ``log_std="tanh"``, the default with these papers' networks.

    What later agents changed are settings; the presets ``simba_v2``, ``xqc``, ``flash_sac``, ``bro``, ``sr_sac``,
    ``droq`` and ``redq`` of the command ``train`` set them together:

    - ``critic="categorical"``: critics learn a distribution of the return over `bins` atoms from `least_return` to
      `greatest_return` by cross-entropy. The target is the distribution of r + discount (z - alpha log pi), projected
      as in C51 (SimbaV2, XQC, FlashSAC); or the value's two nearest atoms; or a normal distribution around it.
    - ``normalize_reward``: see `RewardNorm`. The largest scaled return is `greatest_return`.
    - ``target_critics``: each target takes this number of critics, drawn anew at each update (REDQ).
    - ``target_over``, ``actor_over``: the least or the mean value of the critics, in the target and for the actor.
    - ``actor_every_updates``: between them only the critics learn (`update_critic`). All runs share one count.
    - ``lr_end``: the learning rate falls linearly to it, as strengths do that are learning rate * decay.
    - ``num_steps``: targets of the rewards of several env steps. Entropies within them do not count.

    Args:
        obs_dim, act_dim: sizes of observations and actions. Actions are in [-1, 1].
        seeds: one seed for each run.
        regularize: makes the regularizer of a network; called for actor and critic, never for target or temperature.
        network: a name in `AGENT_NETWORKS`.
        of_network: settings of that network.

    Raises:
        SettingsError: a setting out of range, or settings that do not fit each other.
    """

    losses = ("critic/loss", "actor/loss")
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
        regularize: Callable[[nn.Module], Regularizer] = Unregularized,
        *,
        network: Annotated[str, Setting("kind of network of actor and critics")] = "mlp",
        normalize_obs: Annotated[
            bool | None, Setting("observations by running statistics; null: with simba and hypersphere")
        ] = None,
        normalize_reward: Annotated[bool, Setting("rewards by running statistics of the discounted return")] = False,
        critic: Annotated[
            Literal["mse", "categorical"], Setting("critics learn a value, or the return's distribution")
        ] = "mse",
        bins: Annotated[int, Setting("atoms of a categorical critic", least=2, most=10_000)] = 101,
        least_return: Annotated[float, Setting("the lowest atom")] = -5.0,
        greatest_return: Annotated[float, Setting("the highest atom, and the largest normalized return")] = 5.0,
        projection: Annotated[
            Projection, Setting("target of a categorical critic: c51, or two_hot or hl_gauss of the expected value")
        ] = "c51",
        num_critics: Annotated[int, Setting("number of critics; 2: clipped double Q", least=1, most=100)] = 1,
        target_critics: Annotated[
            int | None, Setting("critics drawn for each target (REDQ: 2 of 10); null: all", least=1, most=100)
        ] = None,
        target_over: Annotated[Over, Setting("a target's least or mean value of the critics")] = "min",
        actor_over: Annotated[Over, Setting("the least or mean value of the critics for the actor")] = "min",
        actor_every_updates: Annotated[
            int, Setting("updates between two of actor and temperature", least=1, most=10_000)
        ] = 1,
        num_steps: Annotated[int, Setting("env steps of a return before the bootstrap", least=1, most=100)] = 1,
        lr: Annotated[float, Setting("learning rate of actor, critic and temperature", least=0)] = 3e-4,
        lr_end: Annotated[
            float | None, Setting("learning rate at the end of its fall; null: constant", least=0)
        ] = None,
        lr_decay_updates: Annotated[
            int | Literal["auto"], Setting("updates over which it falls; auto: those of the run", least=1)
        ] = "auto",
        discount: Annotated[float, Setting("discount per env step", least=0, most=1)] = 0.99,
        tau: Annotated[float, Setting("share of the critic in each update of the target", least=0, most=1)] = 0.005,
        init_alpha: Annotated[float, Setting("the temperature at the start", above=0)] = 1.0,
        target_entropy: Annotated[
            float | Literal["half", "full", "sigma"] | None,
            Setting(
                "entropy that the temperature aims at; half, null: -act_dim / 2; full: -act_dim; sigma: a Gaussian's"
            ),
        ] = None,
        target_sigma: Annotated[float, Setting("that Gaussian's standard deviation (FlashSAC)", above=0)] = 0.15,
        log_std: Annotated[
            Bound | None,
            Setting("bound of the log standard deviation, [-10, 2]; null: tanh with simba and hypersphere, else clamp"),
        ] = None,
        temperature_loss: Annotated[
            Literal["alpha", "log_alpha"], Setting("factor of (entropy - target entropy) in the temperature's loss")
        ] = "alpha",
        device: str | torch.device = "cpu",
        **of_network: Any,
    ) -> None:
        super().__init__()
        if not least_return < greatest_return:
            raise SettingsError(f"least_return={least_return:g} must be below greatest_return={greatest_return:g}")
        if normalize_reward and greatest_return <= 0:
            raise SettingsError(f"normalize_reward=true needs greatest_return above 0, got {greatest_return:g}")
        if target_critics is not None and target_critics > num_critics:
            raise SettingsError(f"target_critics={target_critics} must be at most num_critics={num_critics}")
        if lr_end is not None and lr_decay_updates == "auto":
            raise SettingsError("lr_end needs lr_decay_updates, a number of updates; only a command knows its run's")
        if lr_end is not None and not lr:
            raise SettingsError("lr_end needs lr above 0")
        if lr_end is not None and lr_end > lr:
            raise SettingsError(f"lr_end={lr_end:g} must be at most lr={lr:g}, from which it falls")
        self.act_dim, self.tau, self.discount, self.num_steps = act_dim, tau, discount, num_steps
        self.target_entropy = entropy_target(target_entropy, act_dim, target_sigma)
        self.learns_log_alpha = temperature_loss == "log_alpha"
        self.projection, self.target_critics = projection, target_critics if target_critics != num_critics else None
        self.target_over, self.actor_over, self.actor_every_updates = target_over, actor_over, actor_every_updates
        self.is_categorical = critic == "categorical"
        make = choose(AGENT_NETWORKS, network, of_network, "network")
        check(AGENT_NETWORKS[network], of_network)

        def norm(net: nn.Module, seeds: Sequence[int]) -> ObservationNorm | None:
            wanted = getattr(net, "normalizes_obs", False) if normalize_obs is None else normalize_obs
            return ObservationNorm(obs_dim, len(seeds)) if wanted else None

        def make_critic(seeds: Sequence[int]) -> nn.Module:
            outputs = bins if self.is_categorical else 1
            one = lambda own: make(obs_dim + act_dim, outputs, own, "critic")  # noqa: E731
            net = Critic(one, seeds, num_critics, (least_return, greatest_return) if self.is_categorical else None)
            net.normalize = norm(net.critics[0], seeds)
            return net

        def make_actor(seeds: Sequence[int]) -> nn.Module:
            trunk = make(obs_dim, 2 * act_dim, seeds, "actor")
            by_network: Bound = "tanh" if getattr(trunk, "squashes_log_std", False) else "clamp"
            return Actor(trunk, norm(trunk, seeds), by_network if log_std is None else log_std)

        def make_temperature(seeds: Sequence[int]) -> nn.Module:
            return Temperature(init_alpha, len(seeds))

        adam = partial(Adam, lr=lr)
        self.critic = Learner(make_critic, derived(seeds, 0), regularize, adam, device=device)
        self.actor = Learner(make_actor, derived(seeds, 1), regularize, adam, device=device)
        self.temperature = Learner(make_temperature, derived(seeds, 2), Unregularized, adam, device=device)
        self.critic_target = copy.deepcopy(self.critic.net).requires_grad_(False)
        for module in self.critic_target.modules():
            if isinstance(module, StackedDropout):
                module.stream = 1
        self.streams = RunStreams(derived(seeds, 3), device)
        self.joins_batches = getattr(cast(Critic, self.critic.net).critics[0], "has_batch_norm", False)
        self.reward_norm = RewardNorm(len(seeds), discount, greatest_return).to(device) if normalize_reward else None
        if self.is_categorical:
            self.register_buffer("support", torch.linspace(least_return, greatest_return, bins, device=device))
        if self.target_critics is not None:
            keys = [seed & 0xFFFFFFFF for seed in derived(seeds, 4)]
            self.register_buffer("subset_key", torch.tensor(keys, device=device))
            self.register_buffer("subsets", torch.zeros_like(self.subset_key))
        self.lr_range = None if lr_end is None else (lr, lr_end)
        if lr_end is not None:
            self.lr_decay_updates = float(lr_decay_updates)
            self.register_buffer("updates", torch.zeros((), dtype=torch.int64, device=device))

    def noise(self, updates: int, batch_size: int) -> Tensor:
        """Standard normal ``[updates, 2, runs, batch, act_dim]``, for the next action and the action in each update."""
        return self.streams.normal(updates, 2, batch_size, self.act_dim).movedim(0, 2)

    def observe_(self, obs: Tensor) -> None:
        """Take the observations ``[runs, obs_dim]`` of the next actions into the running statistics."""
        for net in (self.actor.net, self.critic.net, self.critic_target):
            norm = cast(Actor | Critic, net).normalize
            if norm is not None:
                norm.observe_(obs)

    @torch.no_grad()
    def act(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        """Actions ``[runs, n, act_dim]`` for ``[runs, n, obs_dim]``: tanh(mean) without `noise`, sampled with it."""
        gaussian = self.actor.net(obs)
        return gaussian[0].tanh() if noise is None else sample_action(gaussian, noise)[0]

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
        return expected(values, self.support) if self.is_categorical else values

    def update(self, batch: Batch, noise: Tensor) -> dict[str, Tensor]:
        """One gradient update of critic, target, actor and temperature.

        Args:
            batch: ``[runs, batch, ...]``.
            noise: ``[2, runs, batch, act_dim]``, see `noise`.

        Returns:
            Detached metrics, each ``[runs]``.
        """
        of_critic, of_actor = self.update_critic(batch, noise), self._update_actor(batch, noise[1])
        losses = {name: metrics[name] for name, metrics in zip(self.losses, (of_critic, of_actor), strict=True)}
        return losses | of_critic | of_actor

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

        with torch.no_grad():
            for follower, leader in zip(self.critic_target.parameters(), self.critic.net.parameters(), strict=True):
                follower.lerp_(leader, self.tau)

        metrics = {"critic/loss": loss.detach(), **{f"critic/{name}": value for name, value in of_critic.items()}}
        return metrics | {"q_mean": self.expected(values.detach()).mean((1, 2)), "alpha": alpha}

    def _update_actor(self, batch: Batch, noise: Tensor) -> dict[str, Tensor]:
        """The part of an update that actor and temperature take."""
        alpha = self.temperature.net().detach()
        act, log_prob = sample_action(self.actor.net(batch.obs, training=True), noise)
        # BatchNorm of the critics takes running statistics here, and dropout draws, as where their sources do.
        q = self.expected(self.critic.net(batch.obs, act, training=not self.joins_batches))
        loss = actor_loss(q, log_prob, alpha, self.actor_over)
        of_actor = self.actor.minimize(loss, (batch.obs,))

        entropy = -log_prob.detach().mean(-1)
        temperature = cast(Temperature, self.temperature.net)
        scale = temperature.log_alpha if self.learns_log_alpha else temperature()
        self.temperature.minimize(temperature_loss(scale, entropy, self.target_entropy))
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
            following = self._some_critics(following)
        q, how = self.expected(following), self.target_over
        if not self.is_categorical:
            return bellman_target(batch, q, next_log_prob, alpha, how)
        if self.projection == "c51":
            probs = distribution_over_critics(following, q, how)
            return projected(batch, probs, self.support, alpha.unsqueeze(1) * next_log_prob)
        encode = two_hot if self.projection == "two_hot" else hl_gauss
        return encode(bellman_target(batch, q, next_log_prob, alpha, how), self.support)

    def _some_critics(self, values: Tensor) -> Tensor:
        """The values ``[runs, critics, ...]`` of `target_critics` of them, drawn without replacement for each run."""
        draws = uniform_at(self.subset_key, values.shape[1], self.subsets)
        self.subsets.add_(1)
        chosen = draws.argsort(-1)[:, : self.target_critics]
        index = chosen.reshape(*chosen.shape, *[1] * (values.ndim - 2)).expand(-1, -1, *values.shape[2:])
        some: Tensor = values.gather(1, index)
        return some

    def critic_loss(self, values: Tensor, target: Tensor) -> Tensor:
        """The critics' loss ``[runs]``, for what their networks return."""
        return (categorical_loss if self.is_categorical else critic_loss)(values, target)

    def _decay_lr_(self) -> None:
        """Count an update, and set the learning rates of this one."""
        if self.lr_range is None:
            return
        start, end = self.lr_range
        share = 1 + (end / start - 1) * (self.updates.double() / self.lr_decay_updates).clamp(max=1)
        for learner in (self.critic, self.actor, self.temperature):
            learner.set_lr_(start, share)
        self.updates.add_(1)

    # --- what interventions need ----------------------------------------------------------------------------------

    @property
    def learners(self) -> dict[str, Learner]:
        """The learners whose networks can lose plasticity, so without the temperature."""
        return {"critic": self.critic, "actor": self.actor}

    @property
    def followers(self) -> dict[str, nn.Module]:
        """The networks that track a learner's network."""
        return {"critic": self.critic_target}

    def inputs(self, batch: Batch) -> dict[str, tuple[Tensor, ...]]:
        """The inputs of each learner's network in a batch."""
        return {"critic": (batch.obs, batch.act), "actor": (batch.obs,)}

    @torch.no_grad()
    def example_losses(
        self, batch: Batch, noise: Tensor
    ) -> dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]]:
        """For metrics: each learner's loss ``[runs]`` as a function of its network's output, and further arguments."""
        alpha = self.temperature.net()
        next_act, next_log_prob = sample_action(self.actor.net(batch.next_obs), noise[0])
        target = self._target(batch, self.critic_target(batch.next_obs, next_act), next_log_prob, alpha)

        def of_actor(gaussian: tuple[Tensor, Tensor], obs: Tensor, noise: Tensor) -> Tensor:
            act, log_prob = sample_action(gaussian, noise)
            return actor_loss(self.expected(self.critic.net(obs, act)), log_prob, alpha, self.actor_over)

        return {"critic": (self.critic_loss, (target,)), "actor": (of_actor, (batch.obs, noise[1]))}

    def restart_(self, runs: Tensor | None = None) -> None:
        """Restart `runs` (all by default) with new weights, as a new agent has them.

        Running statistics of observations do not change. They belong to the data, which stay in the replay buffer.
        """
        statistics = {name: value.clone() for name, value in self.named_buffers() if ".normalize." in name}
        for learner in (self.critic, self.actor, self.temperature):
            learner.restart_(runs)
        copy_runs_(self.critic_target, self.critic.net, runs)
        for name, value in statistics.items():
            self.get_buffer(name).copy_(value)
