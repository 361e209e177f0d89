"""Train an agent on a control task: ``python -m rl_plasticity.train env=cheetah-run reg=spectral``."""

if __name__ == "__main__":  # help and misspelt settings do not wait for torch
    from rl_plasticity import command_line

    command_line.at_once("train")

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from rl_plasticity import command_line
from rl_plasticity.agents import Agent, ReplayBuffer
from rl_plasticity.configs.commands import Train, planned_updates, restart_every
from rl_plasticity.configs.written import nested
from rl_plasticity.envs import Envs
from rl_plasticity.errors import FaultyRun, SettingsError, counted, say
from rl_plasticity.runs.command import Built, Command
from rl_plasticity.runs.machine import require_memory
from rl_plasticity.runs.making import CHANGES, ENV, EVALUATION, evaluation_envs, make_agent, make_buffer, task_of
from rl_plasticity.runs.plan import Plan, warn_of_what_never_comes
from rl_plasticity.runs.session import Session
from rl_plasticity.seeding import derived
from rl_plasticity.training.acting import (
    AgentProbing,
    AgentUpdates,
    EnvStepCounts,
    Evaluations,
    choose_act,
    count_step,
    is_evaluated,
    is_random,
    like_transitions,
    observe_reward,
    on_host,
)
from rl_plasticity.training.diagnosing import require_enough
from rl_plasticity.training.updates import require_applicable

AT_A_WORKER = 16  # evaluation environments in one process at most, if there are several for a run
say_once = cache(say)  # a sweep makes each of its settings


@dataclass
class Parts(Built):
    """The objects that the settings choose, for all runs. The loop opens `envs`, whose workers are processes."""

    agent: Agent
    eval_envs: Envs
    buffer: ReplayBuffer
    envs: Envs | None = None

    def open(self, s: Train, plan: Plan) -> Envs:
        """Open the training environments; with worker processes, the evaluation environments move into such too.

        Then a run has several of the latter, which play the episodes of an evaluation side by side.
        """
        change_seeds = derived(plan.seeds, CHANGES)
        seeds = derived(plan.seeds, ENV)
        envs = self.envs = Envs(s.env.name, seeds, change_seeds=change_seeds, **nested(s.env.settings))
        if s.env.workers:
            self.eval_envs.close()
            workers = len(seeds) if s.env.workers is True else s.env.workers
            beside = beside_each_other(s.eval_episodes, len(seeds), workers)
            each = [seed for seed in plan.seeds for _ in range(beside)]
            self.eval_envs = evaluation_envs(s, derived(each, EVALUATION), each, workers=workers)
        return envs

    def close(self) -> None:
        if self.envs:
            self.envs.close()
        self.eval_envs.close()


def beside_each_other(episodes: int, runs: int, workers: int) -> int:
    """The number of a run's evaluation environments: as many as share the episodes equally, and fit the processes."""
    fitting = [n for n in range(1, episodes + 1) if episodes % n == 0 and runs * n <= AT_A_WORKER * workers]
    return max(fitting, default=1)


def build(s: Train, plan: Plan) -> Parts:
    """Make the objects that the settings choose, and reset the environments once to check that they can be reset.

    Raises:
        ValueError, ImportError: something cannot be made.
    """
    _require_consistent(s)
    eval_envs = make_evaluation_envs(s, plan.seeds)  # the sizes of the rest depend on it
    spaces, runs = eval_envs.spaces, len(plan.seeds)
    capacity = min(s.buffer_size, s.total_env_steps)
    stored = spaces.obs_dim * (1 if spaces.levels else 4) + 4 * (spaces.act_dim + 2)  # bytes of a transition
    given = f"buffer_size={s.buffer_size}, total_env_steps={s.total_env_steps}"
    what = f"the replay buffer of {counted(runs, 'run')} with {given}"
    require_memory(1.0 * runs * capacity * stored, s.device, what)
    agent = make_agent(s, plan, spaces)
    if s.diagnose_every_updates or plan.interventions:
        inputs = agent.inputs(like_transitions(agent, eval_envs, s.device))
        if s.diagnose_every_updates:
            require_enough(agent.learners, inputs)
        require_applicable(agent, plan.interventions, inputs)
    every = s.env.switch_every_env_steps
    if every and not task_of(s, s.total_env_steps):
        say(f"the task never changes: env.switch_every_env_steps={every}, total_env_steps={s.total_env_steps}")
    warn_of_what_never_comes(plan, planned_updates(s), task_of(s, s.total_env_steps) + 1)
    return Parts(agent, eval_envs, make_buffer(s, agent, runs, spaces))


def _require_consistent(s: Train) -> None:
    """Raises SettingsError where settings do not fit each other."""
    if (s.env.switch_every_env_steps is None) is bool(s.env.sequence or s.env.changes):
        raise SettingsError("env.switch_every_env_steps goes with env.sequence or env.changes: give both or neither")
    kept = [s.buffer_size, s.total_env_steps - 1]
    kept += [s.env.switch_every_env_steps] if s.on_change != "keep" and s.env.switch_every_env_steps else []
    if s.prime_updates and s.prime_after_env_steps > min(kept):
        raise SettingsError(
            f"prime_after_env_steps={s.prime_after_env_steps} must be at most {min(kept)}, the transitions kept by then"
        )
    if (every := restart_every(s)) and s.random_env_steps >= every:
        raise SettingsError(
            f"on_change=restart: random_env_steps={s.random_env_steps} must be below env.switch_every_env_steps={every}"
        )
    for name in ("log_every_updates", "measure_every_updates", "diagnose_every_updates"):
        period, least = getattr(s, name), math.ceil(s.replay_ratio)
        if isinstance(period, int) and 0 < period < least:
            raise SettingsError(
                f"{name}={period} must be at least {least}, the updates of an env step, which has one row of a metric"
            )
    if s.total_env_steps <= s.random_env_steps and not s.prime_updates and s.replay_ratio:
        raise SettingsError(
            f"no update would be made: total_env_steps={s.total_env_steps} must be above random_env_steps="
            f"{s.random_env_steps}; lower random_env_steps, or set replay_ratio=0"
        )


def make_evaluation_envs(s: Train, seeds: Sequence[int]) -> Envs:
    """The environments in which the policies of these seeds are evaluated.

    Raises:
        ValueError: they cannot be made or reset.
    """
    try:
        envs = evaluation_envs(s, derived(seeds, EVALUATION), seeds)
        envs.seek(0)
        envs.step(np.zeros((envs.runs, envs.act_dim), np.float32))  # so that no bad reward comes later
        if notes := envs.vector.get_attr("notes")[0]:
            say_once(f"{s.env.name}: {'; '.join(notes)}")
    except FaultyRun as error:
        raise ValueError(f"{s.env.name}: {error}") from error
    return envs


def length(s: Train, _: Parts) -> tuple[float, str]:
    """Number of updates of a run, and its length in words."""
    return planned_updates(s), counted(s.total_env_steps, "env step")


def train(session: Session[Train], parts: Parts) -> bool:
    """Train from the beginning or the session's checkpoint until the last env step, or until the session ends.

    Returns:
        Whether the last env step was reached.
    """
    s, agent, buffer = session.settings, parts.agent, parts.buffer
    at = EnvStepCounts.of(len(session.plan.seeds))  # the session's `progress` as soon as it has begun
    envs = parts.open(s, session.plan)  # first, so that an environment that hangs in a worker hangs nothing else
    probing = AgentProbing(session, agent, parts.eval_envs)

    def agent_of(runs: slice) -> Agent:
        return make_trained(parts, s, session.plan.without_interventions(runs))

    updates = AgentUpdates(session, agent, buffer, probing, agent_of)
    evaluations = Evaluations(session, agent, updates, parts.eval_envs, at)
    with session.begun(
        {"agent": agent, "buffer": buffer, "envs": envs, "probes": probing.networks}, at,
        unit="env steps", total=s.total_env_steps,
        save_every=s.checkpoint_every_env_steps,
    ) as is_new:  # fmt: skip
        if is_new:
            buffer.start(torch.from_numpy(envs.reset()).to(s.device))
            probing.measure_and_try()
            evaluations.begin()
            session.save()  # a run killed at any moment can be resumed
        elif is_evaluated(s, at.step) and at.evaluated_at < at.step:  # 0.2 saved before it ended an evaluation
            evaluations.after_step()
        while session.goes_on():
            if updates.are_to_prime:  # some at a time, without an env step, until all are made
                updates.prime()
                continue
            evaluations.change_task()  # only now: a checkpoint holds the agent that was evaluated
            act = choose_act(agent, buffer.newest_obs, envs.spaces, at_random=is_random(s, at.step))
            envs.begin_step(on_host(act, at.step))
            # The updates of an env step see its own transition, unless they are made beside it, while the environments
            # step in other processes or a GPU is at the updates: then the newest is that of the env step before.
            overlaps = s.overlap and buffer.size > 0
            if overlaps:
                updates.make_due(at.step + 1)
            else:
                updates.draw_ahead(at.step + 1)
            step = envs.end_step()
            buffer.add(act, step)
            observe_reward(agent, step)
            count_step(session, at, step)
            if not overlaps:
                updates.make_due(at.step)
            for part in (probing, evaluations, session):
                part.after_step()
    return at.step >= s.total_env_steps


def make_trained(parts: Parts, s: Train, plan: Plan) -> Agent:
    """An agent like that of the parts, with other settings or runs."""
    return make_agent(s, plan, parts.eval_envs.spaces)


command = Command(Train, build, train, length, make_trained)
run = command.run
"""Train from Python, see `Command.run`::

    run(env="cheetah-run", reg="spectral", total_env_steps=20_000, out="results/mine")
"""

if __name__ == "__main__":
    command_line.train(command)
