"""Train soft actor-critic on a control task: ``python -m rl_plasticity.train env=cheetah-run reg=spectral``."""

import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import cast

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rl_plasticity.agents import SAC, Batch, ReplayBuffer
from rl_plasticity.compiled import compiled
from rl_plasticity.configs.schema import Train
from rl_plasticity.envs import EnvFault, Envs, make_env
from rl_plasticity.errors import FaultyRun
from rl_plasticity.metrics import discounted_returns, q_overestimation
from rl_plasticity.networks import MLP
from rl_plasticity.probe import PROBE_SIZE, Probe, size_of
from rl_plasticity.runs import checkpoint
from rl_plasticity.runs import plan as grid
from rl_plasticity.runs.folder import RunFolder, RunName
from rl_plasticity.runs.results import Results
from rl_plasticity.runs.session import (
    Clock,
    Command,
    Saved,
    StopSignal,
    close_all,
    last_checkpoint,
    require_finite_loss,
    require_finite_weights,
)
from rl_plasticity.seeding import RunStreams, derive

# Keys of the random streams derived from a run's seed.
AGENT, ENV, EVALUATION, PROBE = range(4)


def check(s: Train) -> None:
    """Make what the settings choose, small or once, to see that it can be made.

    Raises:
        ValueError, ImportError: it cannot.
    """
    try:
        env = make_env(s.env.name, 0, s.env.action_repeat)
    except gym.error.Error as error:  # the simulator is not installed, say
        raise ValueError(str(error)) from error
    try:
        env.reset()
    except Exception as error:  # whatever the task's author raises
        raise ValueError(f"{s.env.name} cannot be reset: {type(error).__name__}: {error}") from error
    env.close()
    grid.regularizer_for(s)(MLP((2, 2, 2), grid.seeds(s)))
    for intervention, _ in grid.interventions_for(s):
        if (intervention.every_updates or 0) > planned_updates(s):
            print(
                f"no reset will come: reset.every_updates={intervention.every_updates} exceeds the "
                f"{planned_updates(s):.0f} updates of the run",
                file=sys.stderr,
            )
    if s.total_env_steps <= s.random_env_steps:
        print("no update will be made: total_env_steps does not exceed random_env_steps", file=sys.stderr)


def planned_updates(s: Train) -> float:
    """How many updates a run makes."""
    return max(0, s.total_env_steps - s.random_env_steps) * s.replay_ratio


command = Command(Train, check, planned_updates, faults=(EnvFault,))


def make_agent(s: Train, obs_dim: int, act_dim: int) -> SAC:
    """The agents of all runs, untrained, for environments of these sizes."""
    return SAC(
        obs_dim,
        act_dim,
        [derive(n, AGENT) for n in grid.seeds(s)],
        grid.regularizer_for(s),
        hidden=s.agent.hidden,
        layer_norm=s.agent.layer_norm,
        num_critics=s.agent.num_critics,
        lr=s.agent.lr,
        tau=s.agent.tau,
        init_alpha=s.agent.init_alpha,
        target_entropy=s.agent.target_entropy,
        device=s.device,
    )


def train(s: Train, folder: Path, saved: Saved, stop: StopSignal) -> bool:
    """Train until the last env step or a stop signal, writing into `folder`; from the checkpoint `saved` if given.

    Returns:
        Whether the last env step was reached.
    """
    if isinstance(s.threads, int):
        torch.set_num_threads(s.threads)
    seeds = grid.seeds(s)
    envs = Envs(
        s.env.name, [derive(n, ENV) for n in seeds], s.env.action_repeat, s.env.workers, timeout=s.env.timeout_seconds
    )
    eval_envs = Envs(s.env.name, [derive(n, EVALUATION) for n in seeds], s.env.action_repeat)
    agent = make_agent(s, envs.obs_dim, envs.act_dim)
    capacity = min(s.buffer_size, s.total_env_steps)
    buffer = ReplayBuffer(len(seeds), capacity, envs.obs_dim, envs.act_dim, s.agent.discount, s.device)
    interventions = grid.interventions_for(s)
    probe_batch, probe_noise = frozen_transitions(
        eval_envs, [derive(n, PROBE) for n in seeds], s.agent.discount, s.device
    )
    probes = nn.ModuleDict({n: Probe(y, agent.inputs(probe_batch)[n]) for n, y in agent.learners.items()})
    update = compiled(agent.update, s.device) if s.compile else agent.update

    run_folder, names = RunFolder(folder), [RunName.parse(name) for name in grid.names(s)]
    run_folder.add_start(s.device)
    if saved is None:
        step = updates = 0
        episode_return = np.zeros(len(seeds))
        obs = torch.from_numpy(envs.reset()).to(s.device)
        buffer.start(obs)
        results = Results(run_folder, names, logger=s.logger)
    else:
        step, updates = saved["step"], saved["updates"]
        episode_return = saved["episode_return"].numpy()
        agent.load_state_dict(saved["agent"])
        buffer.load_state_dict(saved["buffer"] | saved.get("table", {}))
        try:
            obs = torch.from_numpy(envs.load_state_dict(saved["envs"])).to(s.device)
        except ValueError as error:
            raise FaultyRun(f"cannot resume: {error}") from error
        probes.load_state_dict(saved["probes"])
        results = Results(run_folder, names, saved["sizes"], step, s.logger)

    def measure() -> None:
        for name, (loss, targets) in agent.example_losses(probe_batch, probe_noise).items():
            found = cast(Probe, probes[name]).measure(loss, targets)
            results.write(step, {f"{name}/{key}": value.cpu() for key, value in found.items()})

    checkpoints = checkpoint.Checkpoints(folder / "checkpoints", saved)
    last_saved = step

    def save() -> None:
        nonlocal last_saved
        require_finite_weights(agent, f"at env step {step}", folder)
        state = {
            "step": step,
            "updates": updates,
            "episode_return": episode_return,
            "agent": agent.state_dict(),
            "buffer": buffer.position(),
            "envs": envs.state_dict(),
            "probes": probes.state_dict(),
            "sizes": results.sync(),
            "settings": asdict(s),
        }
        checkpoints.save(step, state, buffer)
        last_saved = step

    clock = Clock(s, "env steps", s.total_env_steps, step, s.replay_ratio)
    try:
        if saved is None:
            if s.measure_every_updates:
                measure()
            save()  # a run killed at any moment can be resumed
        while step < s.total_env_steps and not stop.received:
            if step < s.random_env_steps:
                act = agent.streams.uniform(envs.act_dim) * 2 - 1
            else:
                act = agent.act(obs.unsqueeze(1), agent.streams.normal(1, envs.act_dim)).squeeze(1)
            act_on_host = act.cpu().numpy()
            if not np.isfinite(act_on_host).all():
                raise FaultyRun(f"an action is not finite at env step {step}; {last_checkpoint(folder)}")
            out = envs.step(act_on_host)
            ended = out.terminated | out.truncated
            next_obs, reward, last_obs = (torch.from_numpy(a).to(s.device) for a in (out.obs, out.reward, out.last_obs))
            terminated, truncated = torch.from_numpy(out.terminated), torch.from_numpy(out.truncated)
            buffer.add(act, reward, next_obs, terminated, truncated, last_obs)
            obs = next_obs
            step += 1
            episode_return += out.reward
            if ended.any():
                results.write(step, {"train/return": episode_return}, where=ended)
                episode_return[ended] = 0

            due = updates_due(step - s.random_env_steps, s.replay_ratio)
            if due:
                clock.start_updates()
                batches = buffer.sample(agent.streams.integers(buffer.size, due * s.batch_size))
                noise = agent.noise(due, s.batch_size)
                for i in range(due):
                    batch = Batch(*(x[:, i * s.batch_size : (i + 1) * s.batch_size] for x in batches))
                    metrics = update(batch, noise[i])
                    updates += 1
                    for intervention, which in interventions:
                        if intervention.due(updates):
                            intervention.apply_(agent, which, agent.inputs(batch))
                    if updates % s.log_every_updates == 0:
                        log_update(results, step, agent, metrics, folder)
                    if s.measure_every_updates and updates % s.measure_every_updates == 0:
                        measure()
                clock.end_updates(due)

            if step % s.eval_every_env_steps == 0 or step == s.total_env_steps:
                returns, overestimation = evaluate(agent, eval_envs, s.eval_episodes, step << 20, s.agent.discount)
                results.write(step, {"eval/return": returns, "q_overestimation": overestimation})
                results.write_timing(step, clock.rates(step))
                clock.said = f"last return {returns.mean():.1f}"
            if step % s.checkpoint_every_env_steps == 0:
                save()
            clock.show(step)
        if last_saved != step:
            save()
    finally:
        close_all(clock.close, results.close, envs.close, eval_envs.close)
    return step >= s.total_env_steps


def frozen_transitions(envs: Envs, seeds: Sequence[int], discount: float, device: str) -> tuple[Batch, Tensor]:
    """Transitions of uniformly random actions and noise to look at the networks with, a function of the seeds alone.

    Every fourth of the first env steps of episode 0, which no evaluation uses.
    """
    streams = RunStreams(seeds)
    obs = envs.seek(0)
    found = []
    for _ in range(PROBE_SIZE):
        for act in streams.uniform(4, envs.act_dim).mul(2).sub(1).unbind(1):
            out = envs.step(act.numpy())
            found.append((obs, act.numpy(), out.reward, out.last_obs, discount * ~out.terminated))
            obs = out.obs
    kept = (torch.from_numpy(np.stack(x[::4], 1)).float() for x in zip(*found, strict=True))
    noise = streams.normal(2, PROBE_SIZE, envs.act_dim).movedim(0, 1)
    return Batch(*(x.to(device) for x in kept)), noise.to(device)


def updates_due(steps: int, replay_ratio: float) -> int:
    """Updates to make after env step number `steps` of learning, for `replay_ratio` updates per env step."""
    if steps < 1:
        return 0
    so_far, before = (math.floor(n * replay_ratio + 1e-6) for n in (steps, steps - 1))  # 1300 * 0.7 is 910
    return so_far - before


@torch.no_grad()
def evaluate(
    agent: SAC, envs: Envs, episodes: int, first_episode: int, discount: float
) -> tuple[np.ndarray, np.ndarray]:
    """The deterministic policy over each run's next `episodes` episodes.

    Returns:
        Mean return, and mean overestimation: Q(s, a) less the discounted return that followed, over every
        env step of those episodes. Where an episode was truncated, or has not ended, the critic's own value stands for
        the rest. Q also counts the policy's entropy, which the return does not. Each ``[runs]``.
    """
    obs = envs.seek(first_episode)
    device = next(agent.parameters()).device
    total = np.zeros(envs.runs)
    returns: list[list[float]] = [[] for _ in range(envs.runs)]
    history: dict[str, list[Tensor]] = {n: [] for n in ("q", "reward", "terminated", "truncated", "rest", "counts")}

    def value(obs: np.ndarray) -> tuple[Tensor, Tensor]:
        x = torch.from_numpy(obs).to(device).unsqueeze(1)
        act = agent.act(x)
        return act.squeeze(1), agent.critic.net(x, act).amin(1).squeeze(-1)

    while min(len(r) for r in returns) < episodes:
        act, q = value(obs)
        out = envs.step(act.cpu().numpy())
        counts = torch.tensor([len(r) < episodes for r in returns])
        ended = out.terminated | out.truncated
        rest = value(out.last_obs)[1] if (out.truncated & ~out.terminated).any() else torch.zeros_like(q)
        now = (q, torch.from_numpy(out.reward), torch.from_numpy(out.terminated), torch.from_numpy(ended), rest, counts)
        for values, one in zip(history.values(), now, strict=True):
            values.append(one.cpu())
        total += out.reward
        for run in np.flatnonzero(ended):
            returns[run].append(float(total[run]))
            total[run] = 0
        obs = out.obs
    qs, reward, terminated, ends, rests, kept = (torch.stack(v) for v in history.values())
    later = discounted_returns(reward.to(qs.dtype), discount, terminated, ends, rests)
    error = [q_overestimation(qs[kept[:, i], i], later[kept[:, i], i]) for i in range(envs.runs)]
    return np.array([np.mean(r[:episodes]) for r in returns]), torch.stack(error).numpy()


@torch.no_grad()
def log_update(results: Results, step: int, agent: SAC, metrics: dict[str, Tensor], folder: Path) -> None:
    """Write the latest update's metrics and the state of the weights.

    Raises:
        FaultyRun: a loss is not finite.
    """
    for name in ("critic/loss", "actor/loss"):
        require_finite_loss(name, metrics[name], results.names, f"at env step {step}", folder)
    require_finite_weights(agent, f"at env step {step}", folder)
    for name, learner in agent.learners.items():
        size = size_of(learner, metrics[f"{name}/gradient_norm"])
        metrics |= {f"{name}/{key}": value for key, value in size.items()}
    results.write(step, {name: value.cpu() for name, value in metrics.items()})
    results.flush()


if __name__ == "__main__":
    command.main(train)
