"""What the networks of an agent have to learn next: the values of what followed, and the actions that a critic prefers.

Agents of this package have their transitions as a `Batch`. Those of Stable-Baselines3 and sb3-contrib are read as that
library has loaded them.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_plasticity.diagnosis import checks
from rl_plasticity.diagnosis.subject import Subject
from rl_plasticity.diagnosis.tasks import LARGE_BANK, Bank, Batches, TaskSource, TrialTask, outputs_of
from rl_plasticity.errors import SettingsError, first_line
from rl_plasticity.learning.learner import copy_runs_
from rl_plasticity.seeding import random_states_kept
from rl_plasticity.structure import tensors_in
from rl_plasticity.structure.calling import Sharing

if TYPE_CHECKING:
    from rl_plasticity.agents import Agent, Batch

RECENT = 0.25  # of the transitions, the newest; half of the task is of these
PLAYED = 4096  # env steps with env=, the first half of them with random actions
STARTS, ASCENTS, STEP = 4, 10, 0.2  # of the search for better actions
KNOWN = "SAC, TD3, DDPG, DQN, TQC, CrossQ and QRDQN"
LOG_STD = -20.0, 2.0  # bounds in Stable-Baselines3


@dataclass(frozen=True, kw_only=True)
class NextTask(TaskSource):
    """What a network of an agent has to return next.

    The loss is the mean of ((f(x) - y) / s)^2, where s is the standard deviation of the targets y. It is 1 for a
    network that returns their mean. With `rescaled`, each arm's outputs are shifted and scaled to the mean and spread
    of the targets before it learns, so that no arm has to find out first how large returns are.

    Args:
        wanted: the targets, ``[*runs, n, 1 or outputs]``.
        counts: 1 for outputs that have a target, else 0, ``[*runs, n, outputs]``; by default all have.
    """

    wanted: Tensor
    counts: Tensor | None = None
    rescaled: bool = False

    @property
    def given(self) -> list[Sequence[Any]]:
        """The inputs and the targets."""
        return [[self.example, self.wanted]]

    def task(self, nets: Sequence[nn.Module], seed: int, updates: int) -> TrialTask:
        """The task of one repeat."""
        assert self.bank is not None
        bank, (layout, first) = self.bank, outputs_of(nets[0], self.bank)
        wanted = bank.narrowed(self.wanted)
        counts = torch.ones_like(wanted) if self.counts is None else bank.narrowed(self.counts)
        mean = wanted.mean(-2, keepdim=True)
        spread = (wanted - mean).square().mean((-2, -1), keepdim=True).sqrt()

        def batches(net: nn.Module) -> Batches:
            center, scale = mean, spread
            if self.rescaled:
                center, scale = _moments(outputs_of(net, bank)[1], counts)
                scale = scale.maximum(_moments(first, counts)[1])
            return bank.batches(seed, center + scale * (wanted - mean) / spread, counts, scale.expand_as(wanted))

        def criterion(output: Any, wanted: Tensor, counts: Tensor, scale: Tensor) -> Tensor:
            return _mean(((layout(output) - wanted) / scale).square(), counts)[..., 0, 0]

        return TrialTask("next", batches, criterion, seed, updates, 1.0)


def _mean(values: Tensor, counts: Tensor) -> Tensor:
    counts = counts.expand_as(values)
    return (values * counts).sum((-2, -1), keepdim=True) / counts.sum((-2, -1), keepdim=True)


def _moments(values: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    mean = _mean(values, counts)
    return mean, _mean((values - mean).square(), counts).sqrt()


def recent_and_old(share: Tensor, size: int) -> Tensor:
    """Ages of transitions, 0 the oldest, from uniform numbers in [0, 1), ``[..., n]``: every other one is recent."""
    ages = share * (1 - RECENT)
    ages[..., ::2] = 1 - RECENT + RECENT * share[..., ::2]
    return (ages * size).long()


def better_actions(value: Callable[[Tensor], Tensor], act: Tensor) -> Tensor:
    """The actions in [-1, 1] that a critic values most, of those found uphill from `act` and from random ones.

    Args:
        value: the values ``[*runs, n]`` of actions ``[*runs, n, act_dim]`` in as many states.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.enable_grad():
        best, most = act, value(act).detach()
        for start in range(STARTS):
            tried = torch.rand(act.shape, generator=generator, device="cpu").to(act) * 2 - 1 if start else act
            for _ in range(ASCENTS):
                tried = tried.detach().requires_grad_()
                (slope,) = torch.autograd.grad(value(tried).sum(), tried)
                tried = (tried + STEP * slope.sign()).clamp(-1, 1).detach()
            values = value(tried).detach()
            best, most = torch.where((values > most).unsqueeze(-1), tried, best), values.maximum(most)
    return best.round(decimals=3)  # all the same where the critic has no preference


# --- agents of this package -------------------------------------------------------------------------------------------


class Deterministic(nn.Module):
    """The action that an actor takes without noise, tanh of the mean."""

    def __init__(self, actor: nn.Module) -> None:
        super().__init__()
        self.actor = actor

    def forward(self, obs: Tensor) -> Tensor:
        action: Tensor = self.actor(obs)[0].tanh()
        return action


@torch.no_grad()
def next_task(agent: "Agent", network: str, batch: "Batch") -> TaskSource:
    """What a network of each run has to learn next; drawn targets if it returns no values, but distributions."""
    learner, act = agent.learners[network], agent.act(batch.obs)
    bank = Bank(agent.inputs(batch)[network], learner.runs)
    if network == "actor":
        return NextTask(bank=bank, wanted=better_actions(lambda act: agent.value(batch.obs, act), act))
    counts = None
    if num_actions := getattr(agent, "num_actions", 0):
        counts = F.one_hot(batch.act.squeeze(-1).long(), num_actions)
    outputs = outputs_of(learner.net, bank)[1]
    if num_actions != outputs.shape[-1] and not torch.equal(outputs.amin(-1), agent.value(batch.obs, batch.act)):
        return TaskSource(bank)
    lagged = copy.deepcopy(agent)
    for name, net in agent.followers.items():
        copy_runs_(lagged.learners[name].net, net)
    following = lagged.value(batch.next_obs, agent.act(batch.next_obs))
    wanted = (batch.reward + batch.discount * following).unsqueeze(-1)
    return NextTask(bank=bank, wanted=wanted, counts=counts, rescaled=True)


# --- agents of Stable-Baselines3 --------------------------------------------------------------------------------------


class WithoutNoise(nn.Module):
    """The action that an actor takes without noise; what makes the noise is taken out of it, and of its optimizer."""

    def __init__(self, actor: Any) -> None:
        super().__init__()
        del actor.log_std
        kept = {*actor.parameters()}
        for group in actor.optimizer.param_groups:
            group["params"] = [p for p in group["params"] if p in kept]
        self.actor = actor

    def forward(self, obs: Any) -> Tensor:
        a = self.actor
        action: Tensor = a.mu(a.latent_pi(a.extract_features(obs, a.features_extractor))).tanh()
        return action


Network = tuple[Subject, NextTask, list[str]]
"""A network of an agent, its task, and findings that are no matter of learning."""


def of_model(model: Any, env: Any = None) -> dict[str, Network]:
    """The networks of an agent that Stable-Baselines3 or sb3-contrib has loaded. The agent does not change.

    Args:
        env: an environment to play, first with random actions and then with the agent's; by default the agent's replay
            buffer is read.

    Raises:
        SettingsError: another kind of agent, no transitions, or another kind of environment.
    """
    name = next((name for name in ("critic", "q_net", "quantile_net") if hasattr(model, name)), None)
    if name is None:
        raise SettingsError(
            f"{type(model).__name__} is none of {KNOWN}: use diagnose(net, obs, optimizer=...) for each network"
        )
    with random_states_kept(model.policy.parameters()), torch.no_grad(), Sharing():  # noise may have a gradient
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        policy = copy.deepcopy(model.policy).eval()  # with its optimizers
        buffer = model.replay_buffer if env is None else _played(model, policy, env)
        if not buffer.size():
            raise SettingsError("the replay buffer is empty: model.load_replay_buffer(FILE), or give env=")
        ages = recent_and_old(torch.rand(min(LARGE_BANK, buffer.size())), buffer.size())
        oldest = buffer.pos if buffer.full else 0
        norm = model.get_vec_normalize_env() if env is None else None
        batch = buffer._get_samples((ages.numpy() + oldest) % buffer.buffer_size, norm)
        obs, act, then = batch.observations, batch.actions, batch.next_observations
        critic, counts = getattr(policy, name), None
        if is_discrete := name != "critic":
            counts = F.one_hot(act.long().squeeze(1), int(model.action_space.n))
            counts = counts.repeat(1, getattr(critic, "n_quantiles", 1))

        def value(net: nn.Module, obs: Any, act: Tensor) -> Tensor:
            """The mean over critics and quantiles."""
            if not is_discrete:
                return torch.cat([x.flatten(1) for x in tensors_in(net(obs, act))], 1).mean(1)
            every: Tensor = net(obs).reshape(len(act), -1, int(model.action_space.n)).mean(1)
            return every.gather(1, act.long().reshape(-1, 1)).squeeze(1)

        def new(name: str) -> Any:
            made = type(policy)(**policy._get_constructor_parameters()).to(policy.device)
            return getattr(made, name)

        following = value(getattr(policy, f"{name}_target", critic), then, policy._predict(then, deterministic=True))
        discount = model.gamma if getattr(batch, "discounts", None) is None else batch.discounts.squeeze(1)
        wanted = batch.rewards + (discount * (1 - batch.dones.squeeze(1)) * following).unsqueeze(1)
        bank = Bank((obs,) if is_discrete else (obs, act), ())
        task = NextTask(bank=bank, wanted=wanted, counts=counts, rescaled=True)
        findings = checks.of_values(value(critic, obs, act), batch.rewards, model.gamma)
        optimizer = policy.optimizer if is_discrete else critic.optimizer
        networks = {name: (Subject(critic, [optimizer], partial(new, name), without_dropout=True), task, findings)}
        if not is_discrete:
            actor, findings = policy.actor, []
            make: Callable[[], nn.Module] = partial(new, "actor")
            if hasattr(actor, "get_action_dist_params"):  # else it draws nothing
                findings = checks.of_log_std(actor.get_action_dist_params(obs)[1], *LOG_STD)
                actor, make = WithoutNoise(actor), lambda: WithoutNoise(new("actor"))
            wanted = better_actions(lambda act: value(critic, obs, act), actor(obs))
            task = NextTask(Bank((obs,), ()), wanted=wanted)
            subject = Subject(actor, [policy.actor.optimizer], make, without_dropout=True)
            networks["actor"] = subject, task, findings
    return networks


def _played(model: Any, policy: Any, env: Any) -> Any:
    """A replay buffer of an environment, filled by a copy of the agent."""
    player = copy.copy(model)
    player.policy = copy.deepcopy(policy)
    player._create_aliases()
    try:
        player.set_env(env)
    except ValueError as error:
        raise SettingsError(f"env= does not fit the agent: {first_line(error)}") from error
    kinds = [kind for kind in type(model.replay_buffer).__mro__ if kind.__module__.endswith("common.buffers")]
    spaces = model.observation_space, model.action_space
    buffer = kinds[0](PLAYED, *spaces, model.device, player.n_envs)
    _, callback = player._setup_learn(PLAYED)
    while player.num_timesteps < PLAYED:
        player.collect_rollouts(player.env, callback, player.train_freq, buffer, learning_starts=PLAYED // 2)
    return buffer
