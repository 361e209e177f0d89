"""Train an agent on a control task: ``python -m rl_plasticity.train env=cheetah-run reg=spectral``."""

if __name__ == "__main__":
    from rl_plasticity import terminal

    terminal.prepare()
    from rl_plasticity import command_line

    command_line.at_once("train")

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rl_plasticity import command_line
from rl_plasticity.agents import Agent, Batch, ReplayBuffer
from rl_plasticity.agents.rollout import evaluate, first_episode
from rl_plasticity.compiling.compiled import compiled
from rl_plasticity.configs.commands import Train, updates_after
from rl_plasticity.diagnosis.probe import PROBE_SIZE, Probe, size_of
from rl_plasticity.envs import Envs
from rl_plasticity.envs.vector import say_what_is_missing
from rl_plasticity.errors import FaultyRun, SettingsError
from rl_plasticity.runs import memory
from rl_plasticity.runs.command import Command
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.plan import (
    Plan,
    say_what_is_never_logged,
    say_what_never_acts,
    say_what_never_begins,
    say_what_never_comes,
)
from rl_plasticity.runs.progress import Progress
from rl_plasticity.runs.session import Interrupted, Session
from rl_plasticity.runs.trained import CHANGES, ENV, EVALUATION, PROBE, evaluation_envs, make_agent, task_of
from rl_plasticity.seeding import RunStreams, derive

PRIMED_AT_ONCE = 16  # updates whose transitions are drawn together; between them a signal is heeded


def run(
    *,
    on_step: Callable[[Session[Train]], object] | None = None,
    on_update: Callable[[Session[Train]], object] | None = None,
    on_evaluation: Callable[[Session[Train]], object] | None = None,
    **settings: Any,
) -> RunFolder:
    """Train from Python: ``run(env="cheetah-run", reg="spectral", total_env_steps=20_000, out="results/mine")``.

    Args:
        on_step, on_update, on_evaluation: called with the session after each, which can be read
            (``session.parts["agent"]``, ``session.latest``) and ended (``session.end_early()``).
        settings: all that the command line takes, ``reg={"name": "spectral", "coef": 1e-3}`` for a group with settings.

    Raises:
        SettingsError: bad input; nothing was written.
        FaultyRun: the run could not go on.
    """
    return command.run(settings, {"on_step": on_step, "on_update": on_update, "on_evaluation": on_evaluation})


@dataclass
class Parts:
    """What the settings choose, for all runs. The loop opens `envs`, whose workers are processes."""

    agent: Agent
    eval_envs: Envs
    buffer: ReplayBuffer
    envs: Envs | None = None
    is_stacked: bool = True
    callbacks: dict[str, object] = field(default_factory=dict)

    def open(self, s: Train, plan: Plan) -> Envs:
        """The environments to train in; with worker processes, those to evaluate in are moved into such too."""
        change_seeds = [derive(n, CHANGES) for n in plan.seeds]
        envs = self.envs = Envs(seeds=[derive(n, ENV) for n in plan.seeds], change_seeds=change_seeds, **s.env)
        if s.env["workers"]:
            self.eval_envs.close()
            evaluation_seeds = [derive(n, EVALUATION) for n in plan.seeds]
            self.eval_envs = evaluation_envs(s, evaluation_seeds, plan.seeds, workers=s.env["workers"])
        return envs

    def close(self) -> None:
        if self.envs:
            self.envs.close()
        self.eval_envs.close()


@dataclass
class Counts(Progress):
    """Where a run is, and of each run ``[runs]`` what has added up so far.

    Args:
        episode_return: of the training episode.
        first_return: of the evaluation before anything of the present task was learned.
        task_area: of the evaluations of the present task, each times the env steps since the one before it.
        evaluated_at: the env step of the last evaluation. Where one is due and it is another step, a signal came then.
    """

    episode_return: Tensor = field(default_factory=lambda: torch.zeros(0))
    first_return: Tensor = field(default_factory=lambda: torch.zeros(0))
    task_area: Tensor = field(default_factory=lambda: torch.zeros(0))
    evaluated_at: int = 0

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; earlier versions ended no evaluation."""
        new = {"first_return": self.first_return, "task_area": self.task_area, "evaluated_at": state.get("step", 0)}
        super().load_state_dict({**new, **state})


def build(s: Train, plan: Plan) -> Parts:
    """Make what the settings choose, and reset the environments once to see that they can be.

    Raises:
        ValueError, ImportError: something cannot be made.
    """
    eval_envs = make_evaluation_envs(s, plan.seeds[:1])  # the sizes of the rest depend on it
    with ExitStack() as otherwise:
        otherwise.callback(eval_envs.close)
        memory.require(len(plan.seeds), of_each_run(s, eval_envs.obs_dim, eval_envs.act_dim), s.device)
        otherwise.pop_all()
    if len(plan.seeds) > 1:
        eval_envs.close()
        eval_envs = make_evaluation_envs(s, plan.seeds)
    agent = make_agent(s, plan, eval_envs.obs_dim, eval_envs.act_dim)
    capacity = min(s.buffer_size, s.total_env_steps)
    buffer = ReplayBuffer(len(plan.seeds), capacity, eval_envs.obs_dim, eval_envs.act_dim, agent.discount, s.device)
    if (s.env["switch_every_env_steps"] is None) is bool(s.env["sequence"] or s.env["changes"]):
        raise SettingsError("env.switch_every_env_steps, and env.sequence or env.changes, need each other")
    tasks = task_of(s, s.total_env_steps) + 1
    if tasks == 1 and s.env["switch_every_env_steps"]:
        every = f"env.switch_every_env_steps={s.env['switch_every_env_steps']}"
        print(f"no change will come: {every}, and total_env_steps={s.total_env_steps}", file=sys.stderr)
    if tasks == 1 and s.on_change != "keep":
        print(f"on_change={s.on_change} does nothing: no task changes", file=sys.stderr)
    say_what_never_comes(plan.interventions, planned_updates(s), tasks)
    say_what_never_begins(s, "update", planned_updates(s))
    say_what_is_never_logged(s, planned_updates(s))
    regularizers = {name: learner.regularizer for name, learner in agent.learners.items()}
    say_what_never_acts(regularizers, planned_updates(s), s.batch_size)
    if s.prime_updates and s.prime_after_env_steps >= s.total_env_steps:
        raise SettingsError(
            f"prime_after_env_steps={s.prime_after_env_steps} must be below total_env_steps={s.total_env_steps}"
        )
    kept = s.buffer_size
    if s.on_change == "clear":
        kept = min(kept, s.env["switch_every_env_steps"] or kept)
    if s.prime_updates and s.prime_after_env_steps > kept:
        raise SettingsError(f"prime_after_env_steps={s.prime_after_env_steps}, but only {kept} transitions are kept")
    if s.total_env_steps <= s.random_env_steps and not s.prime_updates:
        fewer = int(float(f"{s.total_env_steps / 4:.0e}"))
        print(
            f"no update will be made: total_env_steps={s.total_env_steps} does not exceed random_env_steps="
            f"{s.random_env_steps}; choose fewer random ones, random_env_steps={fewer} say",
            file=sys.stderr,
        )
    return Parts(agent, eval_envs, buffer)


def make_evaluation_envs(s: Train, seeds: Sequence[int]) -> Envs:
    """The environments that the policies of these seeds are evaluated in.

    Raises:
        ValueError: they cannot be made, or reset.
    """
    try:
        envs = evaluation_envs(s, [derive(n, EVALUATION) for n in seeds], seeds)
        envs.seek(0)
        with torch.random.fork_rng(devices=[]):
            for name in s.env["sequence"] or (s.env["name"],):
                say_what_is_missing(name)
    except gym.error.Error as error:  # the simulator is not installed, say
        raise ValueError(str(error)) from error
    except FaultyRun as error:
        raise ValueError(f"{s.env['name']}: {error}") from error
    return envs


def of_each_run(s: Train, obs_dim: int, act_dim: int) -> dict[str, float]:
    """The least bytes of memory of one run, by what they are for, see `memory.require`."""
    capacity = min(s.buffer_size, s.total_env_steps)
    full = "buffer_size" if s.buffer_size <= s.total_env_steps else "total_env_steps"
    updates = max(math.ceil(s.replay_ratio), min(PRIMED_AT_ONCE, s.prime_updates))
    at_once = updates * s.batch_size if planned_updates(s) else 0  # drawn together
    batches = f"batches, batch_size={s.batch_size} replay_ratio={s.replay_ratio:g}"
    return {
        f"the replay buffer, {full}={capacity}": 4.0 * (capacity + 1) * (obs_dim + act_dim + 2),
        batches: 4.0 * at_once * (2 * obs_dim + 3 * act_dim + 4),  # transitions, their numbers, noise
        **memory.of_layers("agent", s.agent, s.batch_size),
    }


def planned_updates(s: Train, _: Parts | None = None) -> float:
    """How many updates a run makes."""
    return s.prime_updates + max(0, s.total_env_steps - s.random_env_steps) * s.replay_ratio


def length(s: Train, _: Parts) -> tuple[float, str]:
    """How many updates a run makes, and in what."""
    return planned_updates(s), f"{s.total_env_steps} env steps"


def train(session: Session[Train], parts: Parts) -> bool:
    """Train until the last env step, or until the session ends; from its checkpoint if it has one.

    Returns:
        Whether the last env step was reached.
    """
    s, plan = session.settings, session.plan
    agent, buffer = parts.agent, parts.buffer
    envs = parts.open(s, plan)
    eval_envs = parts.eval_envs
    log_every, measure_every = int(s.log_every_updates), int(s.measure_every_updates)
    zeros = torch.zeros(len(plan.seeds), dtype=torch.float64)
    at = Counts(episode_return=zeros.clone(), first_return=zeros.clone(), task_area=zeros.clone())
    probes = nn.ModuleDict()
    if measure_every:
        batch, noise = frozen_transitions(session, agent, eval_envs)
        examples, losses = agent.inputs(batch), partial(agent.example_losses, batch, noise)
        probes.update({name: Probe(learner, examples[name]) for name, learner in agent.learners.items()})
    shares = session.divided(agent, lambda runs: make_agent(s, plan.some(runs), envs.obs_dim, envs.act_dim))
    updates = shares.updates(type(agent).update, partial(compiled, device=s.device) if s.compile else None)

    def measure() -> None:
        for network, (loss, targets) in losses().items():
            measures = cast(Probe, probes[network]).measure(loss, targets)
            session.log({f"{network}/{name}": value for name, value in measures.items()})
        session.call("on_measurement")

    def is_watched(updates: int) -> bool:
        return session.is_watched(updates, plan.interventions, log_every, measure_every)

    def learn(due: int, is_logged: bool = True) -> Mapping[str, Tensor]:
        """So many updates; the metrics of the last one."""
        metrics: Mapping[str, Tensor] = {}
        if not due:
            return metrics
        session.clock.start_updates()
        batches = buffer.sample(agent.streams.integers(buffer.size, due * s.batch_size))
        noises = [share.noise(due, s.batch_size) for share in shares.modules]
        made = 0

        def batch_of(i: int, runs: slice) -> Batch:
            return Batch(*(x[runs, i * s.batch_size : (i + 1) * s.batch_size] for x in batches))

        while made < due:
            until = next(n for n in range(made + 1, due + 1) if n == due or is_watched(at.updates + n - made))

            def updates_of(share: int, made: int = made, until: int = until) -> Mapping[str, Tensor]:
                runs, noise, update = shares.runs[share], noises[share], updates[share]
                done: list[Mapping[str, Tensor]] = [update(batch_of(i, runs), noise[i]) for i in range(made, until)]
                return done[-1]

            metrics = shares.each(updates_of)
            at.updates, made = at.updates + until - made, until
            for intervention, runs in plan.interventions:
                if intervention.due(at.updates):
                    inputs = agent.inputs(batch_of(made - 1, slice(None)))
                    intervention.apply_(agent, runs=runs, inputs=inputs)
            if is_logged and at.updates % log_every == 0:
                log_update(session, agent, metrics)
            if is_logged and measure_every and at.updates % measure_every == 0:
                measure()
            session.call("on_update")
        session.clock.end_updates(due)
        return metrics

    def prime(left: int) -> None:
        """Some of the updates of heavy priming that are left. All are at one env step: only the last one is logged."""
        now = min(left, PRIMED_AT_ONCE)
        metrics = learn(now, is_logged=False)
        session.clock.latest = f"primed with {s.prime_updates - left + now} of {s.prime_updates} updates"
        if now == left:
            log_update(session, agent, metrics)
            if measure_every:
                measure()
            session.save()

    def play(task: int) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """Returns and overestimation of the agents at a task, each ``[runs]``. It changes nothing."""
        eval_envs.change = task
        show = partial(session.evaluating, episodes=s.eval_episodes)
        return evaluate(agent, eval_envs, s.eval_episodes, first_episode(at.step), show)

    def first_return() -> Tensor:
        """What the agents can do of the task that comes, ``[runs]``."""
        return torch.from_numpy(play(task_of(s, at.step + 1))[0])

    def end_step() -> None:
        """Evaluate and save where that is due."""
        if is_evaluated(s, at.step):
            returns, overestimation = play(task_of(s, at.step))
            ended = ends_task(s, at.step)
            following = first_return() if ended and at.step < s.total_env_steps else at.first_return
            # Only now, as a signal may have come until here.
            evaluation: dict[str, Any] = {"eval/return": returns, "q_overestimation": overestimation}
            session.evaluated(evaluation, f"last return {returns.mean():.1f}")
            at.task_area += torch.from_numpy(returns) * (at.step - at.evaluated_at)
            at.evaluated_at = at.step
            if ended:
                area = at.task_area / s.env["switch_every_env_steps"]
                index = np.full(len(plan.seeds), task_of(s, at.step))
                of_task = {"first_return": at.first_return, "return": returns, "area": area, "index": index}
                session.log({f"task/{name}": value for name, value in of_task.items()})
                session.results.flush()
                if at.step < s.total_env_steps:
                    at.first_return, at.task_area = following, torch.zeros_like(area)
        session.call("on_step")
        if at.step % s.checkpoint_every_env_steps == 0:
            session.save()
        session.show()

    observe = getattr(agent, "observe_", None)
    is_new = session.begin(
        {"agent": agent, "buffer": buffer, "envs": envs, "probes": probes}, at,
        unit="env steps", total=s.total_env_steps, updates_per_step=s.replay_ratio,
    )  # fmt: skip
    try:
        if is_new:
            buffer.start(torch.from_numpy(envs.reset()).to(s.device))
            if measure_every:
                measure()
            if s.env["switch_every_env_steps"]:
                at.first_return = first_return()
            session.save()  # a run killed at any moment can be resumed
        elif is_evaluated(s, at.step) and at.evaluated_at < at.step:
            end_step()
        while session.goes_on():
            if at.step == s.prime_after_env_steps and (left := unprimed(s, at)):
                prime(left)
                session.show()
                continue
            if ends_task(s, at.step):  # only now: a checkpoint holds the agent that was evaluated
                next_task(session, agent, buffer)
                session.call("on_task")
            if observe is not None:
                observe(buffer.newest_obs)
            if at.step < s.random_env_steps:
                act = agent.streams.uniform(envs.act_dim) * 2 - 1
            else:
                act = agent.act(buffer.newest_obs.unsqueeze(1), agent.streams.normal(1, envs.act_dim)).squeeze(1)
            act_on_host = act.cpu().numpy()
            if not np.isfinite(act_on_host).all():
                raise FaultyRun(f"an action is not finite at env step {at.step}")
            envs.begin_step(act_on_host)
            beside = s.overlap and buffer.size > 0
            if beside:  # while the environments step in other processes, or while a GPU is at the updates
                learn(updates_due(s, at.step + 1))
            step = envs.end_step()
            buffer.add(act, step)
            at.step += 1
            at.episode_return += torch.from_numpy(step.reward)
            if step.ended.any():
                session.log({"train/return": at.episode_return}, where=step.ended)
                at.episode_return[torch.from_numpy(step.ended)] = 0

            if not beside:
                learn(updates_due(s, at.step))
            if s.prime_updates and measure_every and at.step == s.prime_after_env_steps - 1:
                measure()

            end_step()
        session.save()
    except Interrupted:
        if at.step:  # as of before the evaluation; before the first step the run begins again
            session.save()
        return False
    finally:
        session.close()
    return bool(at.step >= s.total_env_steps)


def frozen_transitions(session: Session[Train], agent: Agent, envs: Envs) -> tuple[Batch, Tensor]:
    """Transitions of uniformly random actions and noise to look at the networks with, a function of the seeds alone.

    Every fourth of the first env steps of episode 0, of the first task.
    """
    device = session.settings.device
    streams = RunStreams([derive(seed, PROBE) for seed in session.plan.seeds])
    obs = envs.seek(0)
    rows = []
    for _ in range(PROBE_SIZE):
        for act in streams.uniform(4, envs.act_dim).mul(2).sub(1).unbind(1):
            step = envs.step(act.numpy())
            rows.append((obs, act.numpy(), step.reward, step.next_obs, agent.discount * ~step.terminated))
            obs = step.obs
    columns = (torch.from_numpy(np.stack(x[::4], 1)).float() for x in zip(*rows, strict=True))
    training, agent.streams = agent.streams, streams
    noise = agent.noise(1, PROBE_SIZE)[0]  # its shape is the agent's own
    agent.streams = training
    return Batch(*(x.to(device) for x in columns)), noise.to(device)


def is_evaluated(s: Train, step: int) -> bool:
    """Whether the agents are evaluated after this env step."""
    return step > 0 and (step % s.eval_every_env_steps == 0 or step == s.total_env_steps or ends_task(s, step))


def ends_task(s: Train, step: int) -> bool:
    """Whether the task changes after this env step."""
    return task_of(s, step) < task_of(s, step + 1)


def next_task(session: Session[Train], agent: Agent, buffer: ReplayBuffer) -> None:
    """The task has changed: intervene, and forget transitions if so chosen."""
    s = session.settings
    for intervention, runs in session.plan.interventions:
        if intervention.due_at_task(task_of(s, session.progress.step + 1)):
            newest = torch.arange(max(0, buffer.size - s.batch_size), buffer.size, device=s.device)
            batch = buffer.sample(newest.expand(buffer.runs, -1))
            intervention.apply_(agent, runs=runs, inputs=agent.inputs(batch))
    if s.on_change == "clear":
        buffer.clear()


def updates_due(s: Train, step: int) -> int:
    """Updates to make after this env step, for ``replay_ratio`` updates per env step of learning."""
    learning = step - s.random_env_steps
    return updates_after(learning, s.replay_ratio) - updates_after(learning - 1, s.replay_ratio)


def unprimed(s: Train, at: Progress) -> int:
    """How many of the updates of heavy priming are left at the env step after which they are made."""
    return s.prime_updates - (at.updates - updates_after(at.step - s.random_env_steps, s.replay_ratio))


@torch.no_grad()
def log_update(session: Session[Any], agent: Agent, metrics: Mapping[str, Tensor]) -> None:
    """Write the latest update's metrics and the state of the weights.

    Raises:
        FaultyRun: a loss or a weight is not finite.
    """
    session.require_finite_losses({name: metrics[name] for name in agent.losses})
    session.require_finite_weights(cast(nn.Module, agent))
    sizes: dict[str, Tensor] = {}
    for network, learner in agent.learners.items():
        size = size_of(learner, metrics[f"{network}/gradient_norm"])
        sizes |= {f"{network}/{name}": value for name, value in size.items()}
    session.log({**metrics, **sizes})
    session.results.flush()


command = Command(Train, build, train, planned_updates, length)

if __name__ == "__main__":
    command_line.train(command)
