"""What an RL run consists of, made from its settings: the agents, their replay buffer, and the environments."""

import inspect
import math
from collections.abc import Sequence
from typing import Any, cast

from torch import nn

from rl_plasticity.agents import AGENTS, Agent, ReplayBuffer
from rl_plasticity.configs.commands import Train, planned_updates
from rl_plasticity.configs.written import nested
from rl_plasticity.envs import Envs
from rl_plasticity.errors import SettingsError
from rl_plasticity.runs.machine import set_products_
from rl_plasticity.runs.plan import Plan
from rl_plasticity.seeding import RunStreams, derived
from rl_plasticity.step import Spaces

# Keys of the random streams derived from a run's seed.
AGENT, ENV, EVALUATION, PROBE, CHANGES = range(5)


def make_agent(s: Train, plan: Plan, spaces: Spaces) -> Agent:
    """The agents of all runs, untrained, for environments with these spaces.

    Raises:
        SettingsError: the agent takes discrete actions and these are continuous, or the other way round; or it lacks
            what `Agent` lists.
    """
    kind, seeds = AGENTS[s.agent.name], derived(plan.seeds, AGENT)
    is_discrete = spaces.num_actions is not None
    if getattr(kind, "takes_discrete_actions", False) is not is_discrete:
        needed, fitting = ("discrete", "dqn") if is_discrete else ("continuous", "sac")
        raise SettingsError(
            f"env={s.env.name} has {needed} actions, which agent={s.agent.name} does not take: try agent={fitting}"
        )
    sizes = (spaces.obs_shape, spaces.num_actions) if is_discrete else (spaces.obs_dim, spaces.act_dim)
    settings = dict(s.agent.settings)
    if settings.get("lr_decay_updates") == "auto":
        settings["lr_decay_updates"] = max(1, math.floor(planned_updates(s)))
    try:
        given = inspect.signature(kind).bind(*sizes, seeds, plan.make_regularizer, device=s.device, **settings)
    except TypeError as error:
        raise SettingsError(f"agent={s.agent.name} {error}: see agents/base.py for what it is called with") from error
    agent: Agent = kind(*given.args, **given.kwargs)
    lacking = [n for n in (*dir(Agent), *Agent.__annotations__) if not n.startswith("_") and not hasattr(agent, n)]
    if lacking:
        raise SettingsError(f"agent={s.agent.name} has no {', '.join(lacking)}: see agents/base.py")
    _require_updates_first(agent, s.agent.name, len(seeds))
    set_products_(cast(nn.Module, agent), s)
    return agent


def _require_updates_first(agent: Agent, name: str, runs: int) -> None:
    """Raises SettingsError if its noise does not begin with the updates; a draw of `streams` begins with the runs."""
    streams = [module for module in cast(nn.Module, agent).modules() if isinstance(module, RunStreams)]
    states = [one.get_extra_state() for one in streams]
    updates = runs + 1
    try:
        shape = [*agent.noise(updates, 1).shape]
    except Exception as error:  # whatever the agent's author raises
        raise SettingsError(f"agent={name}: noise({updates}, 1) raised {type(error).__name__}: {error}") from error
    if shape[:1] != [updates]:
        raise SettingsError(f"agent={name}: noise({updates}, 1) must be [{updates}, ...], updates first, got {shape}")
    for one, state in zip(streams, states, strict=True):
        one.set_extra_state(state)


def make_buffer(s: Train, agent: Agent, runs: int, spaces: Spaces) -> ReplayBuffer:
    """The empty replay buffer of these agents, of all runs."""
    capacity = min(s.buffer_size, s.total_env_steps)
    return ReplayBuffer(runs, capacity, spaces.obs_dim, spaces.act_dim, agent.discount, s.device, spaces.levels)


def rows_together(s: Train) -> int:
    """The number of observations of a run in each call of a network, in evaluations: a GPU takes all at once."""
    return max(1, s.eval_episodes) if s.device == "cuda" else 1


def evaluation_envs(s: Train, seeds: Sequence[int], run_seeds: Sequence[int], **given: Any) -> Envs:
    """Environments for evaluation with these seeds. Their changes are those of the runs with `run_seeds`, on demand."""
    settings = {**nested(s.env.settings), "workers": False, "switch_every_env_steps": None, **given}
    return Envs(s.env.name, seeds, change_seeds=derived(run_seeds, CHANGES), **settings)


def task_of(s: Train, step: int) -> int:
    """The number of the task, or of its change, at this env step; the first is 0."""
    every = s.env.switch_every_env_steps
    return (step - 1) // every if every and step else 0
