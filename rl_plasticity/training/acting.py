"""Parts of the loop of ``rl_plasticity.train``: updates from the replay buffer, evaluations, changes of task."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_plasticity.agents import Agent, Batch, ReplayBuffer
from rl_plasticity.agents.base import Inputs, Losses
from rl_plasticity.agents.rollout import evaluate, first_episode
from rl_plasticity.compiling.fastest import fastest
from rl_plasticity.configs.commands import Train, restart_every, updates_by
from rl_plasticity.diagnosis.probe import PROBE_SIZE
from rl_plasticity.envs import Envs
from rl_plasticity.errors import FaultyRun, counted
from rl_plasticity.runs.making import PROBE, rows_together, task_of
from rl_plasticity.runs.progress import Progress
from rl_plasticity.runs.session import Session
from rl_plasticity.seeding import RunStreams, derived
from rl_plasticity.step import Spaces, Step
from rl_plasticity.training.diagnosing import Probing
from rl_plasticity.training.updates import Updates

PRIMED_AT_ONCE = 16  # priming updates whose transitions are drawn together; the loop heeds a signal between draws


@dataclass(kw_only=True)
class EnvStepCounts(Progress):
    """The counts of a run, and sums for each run ``[runs]``.

    Args:
        episode_return: return of the current training episode so far.
        first_return: return of the evaluation before anything of the current task was learned.
        task_area: sum of the evaluations of the current task, each times the env steps since the one before it.
        evaluated_at: env step of the last evaluation.
    """

    episode_return: Tensor
    first_return: Tensor
    task_area: Tensor
    evaluated_at: int = 0

    @classmethod
    def of(cls, runs: int) -> Self:
        """The counts of this number of new runs."""
        episodes, first, area = torch.zeros(3, runs, dtype=torch.float64).unbind()
        return cls(episode_return=episodes, first_return=first, task_area=area)


class AgentProbing(Probing):
    """Plasticity metrics and trials of an agent's networks on fixed transitions, each with a period; none with 0."""

    def __init__(self, session: Session[Train], agent: Agent, envs: Envs) -> None:
        self.s, self.every = session.settings, int(session.settings.measure_every_updates)
        inputs: Inputs = {}
        losses: Callable[[], Losses] = dict
        if self.every or self.s.diagnose_every_updates:
            batch, noise = frozen_transitions(session.plan.seeds, self.s.device, agent, envs)
            inputs, losses = agent.inputs(batch), partial(agent.example_losses, batch, noise)
        super().__init__(session, agent.learners, inputs, losses, measures=self.every > 0)

    def measure_and_try(self) -> None:
        """Measure and try the networks, and log both, each unless it is off."""
        self.measure()
        self.diagnose()

    def after_update(self) -> None:
        """Measure and try the networks, each if it is due."""
        if self.every and self.session.progress.updates % self.every == 0:
            self.measure()
        super().after_update()

    def after_step(self) -> None:
        """Measure right before heavy priming; `after_update` measures after updates."""
        if self.s.prime_updates and self.session.progress.step == self.s.prime_after_env_steps - 1:
            self.measure_and_try()


class AgentUpdates(Updates[Any]):
    """An agent's updates on transitions of the replay buffer, including those of heavy priming.

    Args:
        some: makes the agent of some of the runs.
    """

    def __init__(
        self,
        session: Session[Train],
        agent: Agent,
        buffer: ReplayBuffer,
        probing: AgentProbing,
        some: Callable[[slice], Agent],
    ) -> None:
        self.s = s = session.settings
        periods = probing.every, probing.diagnose_every
        super().__init__(session, agent, agent.learners, agent.losses, session.plan.interventions, some, *periods)
        self.buffer, self.probing = buffer, probing
        quickly = partial(fastest, device=s.device, compiles=bool(s.compile), say=session.say)
        self._updates = self.shares.updates(type(agent).update, quickly)
        self._actor_every = getattr(agent, "actor_every_updates", 1)
        if self._actor_every > 1:
            self._updates_between = self.shares.updates(type(agent).update_critic, quickly)  # type: ignore[attr-defined]

        self._drawn: tuple[Tensor, list[Tensor]] | None = None

    def draw_ahead(self, step: int) -> None:
        """Draw what the updates of this env step take, while the environments step: its transition may be among it."""
        if number := self._due(step):
            self._drawn = self._draw(number, min(self.buffer.size + 1, self.buffer.capacity))

    def make_due(self, step: int) -> None:
        """Make the updates that are due at this env step, on the transitions that the buffer has now."""
        self._make(self._due(step))

    def _due(self, step: int) -> int:
        return updates_by(self.s, step) - updates_by(self.s, step - 1)

    def _draw(self, number: int, among: int) -> tuple[Tensor, list[Tensor]]:
        """The transitions ``[number, runs, batch]`` of updates among so many, and each share's noise."""
        size = self.s.batch_size
        chosen = self.trained.streams.integers(among, number, size).movedim(1, 0).contiguous()
        return chosen, [share.noise(number, size).contiguous() for share in self.shares.modules]

    def _make(self, number: int, is_logged: bool = True) -> Mapping[str, Tensor]:
        """Make this number of updates; return the metrics of the last one."""
        metrics: Mapping[str, Tensor] = {}
        if not number:
            return metrics
        session, agent = self.session, self.trained
        session.clock.start_updates()
        chosen, noises = self._drawn or self._draw(number, self.buffer.size)
        self._drawn = None
        # Each update's batch is one stretch of memory, which `Captured` copies in one operation.
        batches = self.buffer.sample(chosen, getattr(agent, "num_steps", 1))

        def batch_of(i: int, runs: slice = slice(None)) -> Batch:
            return Batch(*(x[i, runs] for x in batches))

        def inputs_of(i: int) -> Inputs:
            return agent.inputs(batch_of(i))  # type: ignore[no-any-return]

        def update(several: list[int], share: int) -> Mapping[str, Tensor]:
            runs, noise = self.shares.slices[share], noises[share]
            done: Mapping[str, Tensor] = {}
            for count, i in enumerate(several, session.progress.updates + 1):
                each = self._updates_between if count % self._actor_every else self._updates
                done = each[share](batch_of(i, runs), noise[i])
            return done

        for several in self.stretches(range(number)):
            metrics = self.shares.each(partial(update, several))
            self.count(len(several), partial(inputs_of, several[-1]))
            # Before and after heavy priming, what it logs is the one row of an env step.
            beside = bool(self.s.prime_updates) and self.s.prime_after_env_steps - session.progress.step in (0, 1)
            if is_logged and not beside:
                self.log_if_due(metrics)
                self.probing.after_update()
            session.call("on_update")
        session.clock.end_updates(number)
        return metrics

    @property
    def are_to_prime(self) -> bool:
        """Whether it is the env step of heavy priming, and some of its updates are left."""
        at = self.session.progress
        return at.step == self.s.prime_after_env_steps and unprimed(self.s, at) > 0

    def prime(self) -> None:
        """Make some of the updates of heavy priming. All come at one env step, so only the last one is logged."""
        left = unprimed(self.s, self.session.progress)
        now = min(left, PRIMED_AT_ONCE)
        metrics = self._make(now, is_logged=False)
        self.session.clock.latest = (
            f"primed with {self.s.prime_updates - left + now} of {counted(self.s.prime_updates, 'update')}"
        )
        if now == left:
            self.log(metrics)
            self.probing.measure_and_try()
            self.session.save()
        self.session.show()


class Evaluations:
    """Evaluations of an agent in training, and its changes of task."""

    def __init__(
        self, session: Session[Train], agent: Agent, updates: AgentUpdates, envs: Envs, at: EnvStepCounts
    ) -> None:
        self.session, self.agent, self.updates, self.envs, self.at = session, agent, updates, envs, at
        self.s = session.settings

    def begin(self) -> None:
        """Evaluate before anything of a task is learned, if tasks change."""
        if self.s.env.switch_every_env_steps and self.s.eval_episodes:
            self.at.first_return = torch.from_numpy(self._play(task_of(self.s, self.at.step + 1))[0])
            self.at.task_area = torch.zeros_like(self.at.task_area)

    def change_task(self) -> None:
        """If the task changes after this env step: evaluate, intervene, and forget transitions if so chosen."""
        s, buffer = self.s, self.updates.buffer
        if not ends_task(s, self.at.step):
            return
        self.begin()
        task = task_of(s, self.at.step + 1)

        def inputs() -> Inputs:
            newest = torch.arange(max(0, buffer.size - s.batch_size), buffer.size, device=s.device)
            return self.agent.inputs(buffer.sample(newest.expand(buffer.runs, -1)))

        self.updates.intervene(lambda intervention: intervention.due_at_task(task), inputs)
        if s.on_change != "keep":
            buffer.clear()
        if s.on_change == "restart" and (again := getattr(self.agent, "explore_again_", None)) is not None:
            again()
        self.session.call("on_task")

    def after_step(self) -> None:
        """Evaluate if it is due, and log the results of a task at its end."""
        s, at = self.s, self.at
        if not is_evaluated(s, at.step):
            return
        if not s.eval_episodes:
            at.evaluated_at = at.step
            return self.session.tell()
        returns, overestimation = self._play(task_of(s, at.step))
        summary = f"last return {returns.mean():.1f}"
        if len({name.group for name in self.session.plan.names}) > 1:
            summary += f", mean of all {len(returns)} runs"
        self.session.evaluated({"eval/return": returns, "q_overestimation": overestimation}, summary)
        at.task_area += torch.from_numpy(returns) * (at.step - at.evaluated_at)
        at.evaluated_at = at.step
        if ends_task(s, at.step):
            area = at.task_area / s.env.switch_every_env_steps
            index = np.full(len(returns), task_of(s, at.step))
            of_task = {"task/first_return": at.first_return, "task/return": returns, "task/area": area}
            self.session.log({**of_task, "task/index": index})
            self.session.results.flush()

    def _play(self, task: int) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """Returns and overestimation of the agents at a task, each ``[runs]``; the agents do not change."""
        self.envs.change = task
        show = partial(self.session.evaluating, episodes=self.s.eval_episodes)
        first, together = first_episode(self.at.step), rows_together(self.s)
        return evaluate(self.agent, self.envs, self.s.eval_episodes, first, together, show)


def choose_act(agent: Agent, obs: Tensor, spaces: Spaces, at_random: bool) -> Tensor:
    """The actions ``[runs, act_dim]`` of an env step of training: uniformly random ones, or the policy's.

    An agent with running statistics of the observations updates them first.
    """
    if (observe := getattr(agent, "observe_", None)) is not None:
        observe(obs)
    if at_random:
        return random_act(agent.streams.uniform(spaces.act_dim), spaces)
    return agent.act(obs.unsqueeze(1), agent.streams.normal(1, spaces.act_dim)).squeeze(1)


def observe_reward(agent: Agent, step: Step) -> None:
    """Show the agent the rewards of an env step of training, if it keeps statistics of them."""
    if (observe := getattr(agent, "observe_reward_", None)) is not None:
        observe(torch.from_numpy(step.reward), torch.from_numpy(step.ended))


def random_act(uniform: Tensor, spaces: Spaces) -> Tensor:
    """Actions from numbers that are uniform in [0, 1), all equally probable."""
    return uniform * 2 - 1 if spaces.num_actions is None else (uniform * spaces.num_actions).floor()


def on_host(act: Tensor, step: int) -> NDArray[np.float32]:
    """Actions as an array on the host, for the environments.

    Raises:
        FaultyRun: one is not finite.
    """
    actions: NDArray[np.float32] = act.cpu().numpy()
    if not np.isfinite(actions).all():
        raise FaultyRun(f"an action is not finite at env step {step}")
    return actions


def count_step(session: Session[Train], at: EnvStepCounts, step: Step) -> None:
    """Count an env step, and log the returns of training episodes that it ended."""
    at.step += 1
    at.episode_return += torch.from_numpy(step.reward)
    if step.ended.any():
        session.log({"train/return": at.episode_return}, where=step.ended)
        at.episode_return[torch.from_numpy(step.ended)] = 0


def frozen_transitions(seeds: Sequence[int], device: str, agent: Agent, envs: Envs) -> tuple[Batch, Tensor]:
    """Transitions of uniformly random actions, and noise, on which the networks are measured.

    They depend on the seeds alone: every fourth of the first env steps of episode 0 of the first task. Of several
    environments of a run, which all do the same, the first one's are taken.
    """
    beside = envs.runs // len(seeds)
    streams = RunStreams(derived(seeds, PROBE))
    obs = envs.seek(0)
    rows = []
    for _ in range(PROBE_SIZE):
        for act in random_act(streams.uniform(4, envs.act_dim), envs.spaces).unbind(1):
            acts = act.numpy().repeat(beside, 0)
            step = envs.step(acts)
            row = (obs, acts, step.reward, step.next_obs, agent.discount * ~step.terminated)
            rows.append([x[::beside] for x in row])
            obs = step.obs
    columns = (torch.from_numpy(np.stack(x[::4], 1)).float() for x in zip(*rows, strict=True))
    training, agent.streams = agent.streams, streams
    noise = agent.noise(1, PROBE_SIZE)[0]  # its shape is the agent's own
    agent.streams = training
    return Batch(*(x.to(device) for x in columns)), noise.to(device)


def like_transitions(agent: Agent, envs: Envs, device: str) -> Batch:
    """Zeros in the shapes of `frozen_transitions`."""
    obs = torch.zeros(envs.runs, PROBE_SIZE, envs.obs_dim, device=device)
    act, reward = obs.new_zeros(envs.runs, PROBE_SIZE, envs.act_dim), obs.new_zeros(envs.runs, PROBE_SIZE)
    return Batch(obs, act, reward, obs, reward + agent.discount)


def is_evaluated(s: Train, step: int) -> bool:
    """Whether the agents are evaluated after this env step."""
    return step > 0 and (step % s.eval_every_env_steps == 0 or step == s.total_env_steps or ends_task(s, step))


def ends_task(s: Train, step: int) -> bool:
    """Whether the task changes after this env step."""
    return task_of(s, step) < task_of(s, step + 1)


def is_random(s: Train, step: int) -> bool:
    """Whether the action after this env step is random."""
    return step % (restart_every(s) or step + 1) < s.random_env_steps


def unprimed(s: Train, at: Progress) -> int:
    """Number of updates of heavy priming that are left, at the env step after which they are made."""
    return s.prime_updates - (at.updates - updates_by(s, at.step))
