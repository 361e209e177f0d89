"""Episodes of a policy: the one loop that training's evaluation, `evaluate` and `watch` share."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_plasticity.agents.base import Agent
from rl_plasticity.metrics import discounted_returns, q_overestimation
from rl_plasticity.seeding import RunStreams
from rl_plasticity.step import Step

if TYPE_CHECKING:
    from rl_plasticity.envs import Envs

AfterStep = Callable[[Tensor, Tensor, Step, NDArray[np.bool_]], object]


def first_episode(step: int) -> int:
    """The number of the first episode of the evaluation at this env step. Each evaluation has its own episodes."""
    return step << 20


@torch.no_grad()
def play(
    agent: Agent,
    envs: "Envs",
    episodes: int,
    first: int,
    *,
    runs: Sequence[int] | None = None,
    noise: RunStreams | None = None,
    together: int = 1,
    before_step: Callable[[int], object] = lambda done: None,
    after_step: AfterStep = lambda obs, act, step, counts: None,
) -> NDArray[np.float64]:
    """Play episodes of each run's policy; the agent does not change.

    Args:
        envs: environments of the chosen runs, for each run one or several side by side, a divisor of `episodes`.
        first: the number of the first episode.
        runs: positions of the chosen runs among the agent's; all by default. The whole stack of policies acts, as in
            training, so that the numbers do not depend on which runs are chosen.
        noise: one stream for each of the agent's runs, to sample actions; without it the deterministic policy.
        together: number of observations of a run in each call of the networks, at least as many as there are
            environments, or 1. The last bits of an action depend on it, and on nothing else.
        before_step: called before each step of `envs` with the number of episodes that every chosen run has finished.
        after_step: called with obs and act ``[all runs, rows, ...]``, a row for each environment of a run and rows that
            do not matter behind them, the step, and which of the environments still count.

    Returns:
        The undiscounted returns of the first `episodes` episodes of each chosen run, ``[chosen, episodes]``.
    """
    returns: list[list[float]] = [[] for _ in range(envs.runs)]
    total = np.zeros(envs.runs)
    like = next(agent.parameters())
    stack = len(agent.streams.generators)
    chosen = torch.tensor(range(stack) if runs is None else runs, device=like.device)
    beside = envs.runs // len(chosen)
    each = episodes // beside  # of an environment
    obs = envs.seek(first + each * (np.arange(envs.runs) % beside))
    everyone = torch.zeros(stack, max(beside, together), obs.shape[1], device=like.device)
    while (done := min(len(r) for r in returns)) < each:
        before_step(done * beside)
        everyone[chosen, :beside] = torch.from_numpy(obs).to(like.device).view(len(chosen), beside, -1)
        given = [everyone]
        if noise is not None:
            given += [noise.normal(1, envs.act_dim).to(like.device).expand(-1, everyone.shape[1], -1)]
        act = _by_rows(agent.act, together, *given)
        counts = np.array([len(r) < each for r in returns])
        step = envs.step(act[chosen, :beside].flatten(0, 1).cpu().numpy())
        after_step(everyone, act, step, counts)
        total += step.reward
        for run in np.flatnonzero(step.ended):
            returns[run].append(float(total[run]))
            total[run] = 0
        obs = step.obs
    return np.array([r[:each] for r in returns]).reshape(-1, episodes)


def _by_rows(call: Callable[..., Tensor], together: int, *tensors: Tensor) -> Tensor:
    """What a network's `call` makes of tensors ``[runs, rows, ...]``, with this number of rows at a time."""
    return torch.cat([call(*parts) for parts in zip(*(torch.split(x, together, 1) for x in tensors), strict=True)], 1)


@torch.no_grad()
def evaluate(
    agent: Agent,
    envs: "Envs",
    episodes: int,
    first: int,
    together: int = 1,
    before_step: Callable[[int], object] = lambda done: None,
) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """The deterministic policy of each run over its next `episodes` episodes; the rest as in `play`.

    Returns:
        Mean return, and mean overestimation: the critic's value of (s, a) less the discounted return that followed,
        over every env step of those episodes. Where an episode was truncated, or has not ended, the critic's own value
        stands for the rest. A soft critic also counts the policy's entropy, which the return does not. Each ``[runs]``.
    """
    steps: list[tuple[Tensor, ...]] = []
    beside = envs.runs // len(agent.streams.generators)

    def record(obs: Tensor, act: Tensor, step: Step, counts: NDArray[np.bool_]) -> None:
        q = _by_rows(agent.value, together, obs, act)
        rest = torch.zeros_like(q)
        if (step.truncated & ~step.terminated).any():
            last = torch.zeros_like(obs)
            last[:, :beside] = torch.from_numpy(step.next_obs).to(obs.device).view(len(obs), beside, -1)
            rest = _by_rows(agent.value, together, last, _by_rows(agent.act, together, last))
        arrays = (step.reward, step.terminated, step.ended, counts)
        steps.append((*(x[:, :beside].flatten() for x in (q, rest)), *map(torch.from_numpy, arrays)))

    returns = play(agent, envs, episodes, first, together=together, before_step=before_step, after_step=record)
    # Not before, so that no step waits for a GPU.
    q, rest, reward, terminated, ended, counts = (torch.stack(series).cpu() for series in zip(*steps, strict=True))
    following = discounted_returns(reward.to(q.dtype), agent.discount, terminated, ended, rest)
    # By run, then by episode: rows of env steps become rows of environments.
    kept = [[x.T[run][counts.T[run]] for x in (q, following)] for run in torch.arange(envs.runs).view(-1, beside)]
    error = [q_overestimation(*of_run) for of_run in kept]
    return np.array([run.mean() for run in returns]), torch.stack(error).numpy()
