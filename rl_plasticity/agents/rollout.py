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
    before_step: Callable[[int], object] = lambda done: None,
    after_step: AfterStep = lambda obs, act, step, counts: None,
) -> NDArray[np.float64]:
    """Play episodes of each run's policy; nothing of the agent changes.

    Args:
        envs: environments of the chosen runs.
        first: the number of the first episode.
        runs: positions of the chosen runs among the agent's; all by default. The whole stack of policies acts, as in
            training, so that the numbers do not depend on which runs are chosen.
        noise: one stream for each of the agent's runs, to sample actions; without it the deterministic policy.
        before_step: called before each step of `envs` with the number of episodes that every chosen run has finished.
        after_step: called with obs and act ``[all runs, 1, ...]``, the step, and which of the chosen runs still count.

    Returns:
        The undiscounted returns of the first `episodes` episodes of each chosen run, ``[chosen, episodes]``.
    """
    returns: list[list[float]] = [[] for _ in range(envs.runs)]
    total = np.zeros(envs.runs)
    obs = envs.seek(first)
    like = next(agent.parameters())
    stack = len(agent.streams.generators)
    chosen = list(range(stack) if runs is None else runs)
    everyone = torch.zeros(stack, 1, obs.shape[1], device=like.device)
    while (done := min(len(r) for r in returns)) < episodes:
        before_step(done)
        everyone[chosen, 0] = torch.from_numpy(obs).to(like.device)
        act = agent.act(everyone, None if noise is None else noise.normal(1, envs.act_dim).to(like.device))
        counts = np.array([len(r) < episodes for r in returns])
        step = envs.step(act[chosen, 0].cpu().numpy())
        after_step(everyone, act, step, counts)
        total += step.reward
        for run in np.flatnonzero(step.ended):
            returns[run].append(float(total[run]))
            total[run] = 0
        obs = step.obs
    return np.array([r[:episodes] for r in returns])


@torch.no_grad()
def evaluate(
    agent: Agent, envs: "Envs", episodes: int, first: int, before_step: Callable[[int], object] = lambda done: None
) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """The deterministic policy of each run over its next `episodes` episodes; `before_step` as in `play`.

    Returns:
        Mean return, and mean overestimation: the critic's value of (s, a) less the discounted return that followed,
        over every env step of those episodes. Where an episode was truncated, or has not ended, the critic's own value
        stands for the rest. A soft critic also counts the policy's entropy, which the return does not. Each ``[runs]``.
    """
    steps: list[tuple[Tensor, ...]] = []

    def record(obs: Tensor, act: Tensor, step: Step, counts: NDArray[np.bool_]) -> None:
        q = agent.value(obs, act)
        rest = torch.zeros_like(q)
        if (step.truncated & ~step.terminated).any():
            last = torch.from_numpy(step.next_obs).to(obs.device).unsqueeze(1)
            rest = agent.value(last, agent.act(last))
        arrays = (step.reward, step.terminated, step.ended, counts)
        steps.append((q.squeeze(1), rest.squeeze(1), *map(torch.from_numpy, arrays)))

    returns = play(agent, envs, episodes, first, before_step=before_step, after_step=record)
    # Not before, so that no step waits for a GPU.
    q, rest, reward, terminated, ended, counts = (torch.stack(series).cpu() for series in zip(*steps, strict=True))
    following = discounted_returns(reward.to(q.dtype), agent.discount, terminated, ended, rest)
    error = [q_overestimation(q[counts[:, i], i], following[counts[:, i], i]) for i in range(envs.runs)]
    return np.array([run.mean() for run in returns]), torch.stack(error).numpy()
