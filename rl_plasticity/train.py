"""Train soft actor-critic on a control task: ``python -m rl_plasticity.train env=cheetah-run reg=spectral``."""

import math
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rl_plasticity import checkpoint
from rl_plasticity.agents import SAC, Batch, ReplayBuffer
from rl_plasticity.command import (
    Clock,
    Command,
    FaultyRun,
    Saved,
    StopSignal,
    compiled,
    intervention_for,
    last_checkpoint,
    regularizer_for,
    require_finite_loss,
    require_finite_weights,
)
from rl_plasticity.configs.schema import Train
from rl_plasticity.envs import Envs, make_env
from rl_plasticity.metrics import largest_sigma1, weight_norm
from rl_plasticity.networks import MLP
from rl_plasticity.results import Results, write_provenance
from rl_plasticity.seeding import derive

# Keys of the random streams derived from a run's seed.
AGENT, ENV, EVALUATION = range(3)


def check(s: Train) -> None:
    """Make what the settings choose, small or once, to see that it can be made.

    Raises:
        ValueError, ImportError: it cannot.
    """
    try:
        env = make_env(s.env.name, 0, s.env.action_repeat)
    except gym.error.Error as error:  # the simulator is not installed, say
        raise ValueError(str(error)) from error
    env.reset()
    env.close()
    regularizer_for(s)(MLP((2, 2, 2), [0] * s.seeds))
    intervention_for(s)
    if s.total_env_steps <= s.random_env_steps:
        print("no update will be made: total_env_steps does not exceed random_env_steps", file=sys.stderr)


def planned_updates(s: Train) -> float:
    """How many updates a run makes."""
    return max(0, s.total_env_steps - s.random_env_steps) * s.replay_ratio


command = Command(Train, check, planned_updates)


def train(s: Train, folder: Path, saved: Saved, stop: StopSignal) -> bool:
    """Train until the last env step or a stop signal, writing into `folder`; from the checkpoint `saved` if given.

    Returns:
        Whether the last env step was reached.
    """
    if isinstance(s.threads, int):
        torch.set_num_threads(s.threads)
    seeds = range(s.seed, s.seed + s.seeds)
    envs = Envs(s.env.name, [derive(n, ENV) for n in seeds], s.env.action_repeat, s.env.workers)
    eval_envs = Envs(s.env.name, [derive(n, EVALUATION) for n in seeds], s.env.action_repeat)
    agent = SAC(
        envs.obs_dim,
        envs.act_dim,
        [derive(n, AGENT) for n in seeds],
        regularizer_for(s),
        hidden=s.agent.hidden,
        layer_norm=s.agent.layer_norm,
        num_critics=s.agent.num_critics,
        lr=s.agent.lr,
        tau=s.agent.tau,
        init_alpha=s.agent.init_alpha,
        target_entropy=s.agent.target_entropy,
        device=s.device,
    )
    capacity = min(s.buffer_size, s.total_env_steps)
    buffer = ReplayBuffer(s.seeds, capacity, envs.obs_dim, envs.act_dim, s.agent.discount, s.device)
    intervention = intervention_for(s)
    update = compiled(agent.update) if s.compile else agent.update

    write_provenance(folder / "provenance.json", s.device)
    if saved is None:
        step = updates = 0
        episode_return = np.zeros(s.seeds)
        obs = torch.from_numpy(envs.reset()).to(s.device)
        buffer.start(obs)
        results = Results(folder, seeds)
    else:
        step, updates = saved["step"], saved["updates"]
        episode_return = saved["episode_return"].numpy()
        agent.load_state_dict(saved["agent"])
        buffer.load_state_dict(saved["buffer"])
        try:
            obs = torch.from_numpy(envs.load_state_dict(saved["envs"])).to(s.device)
        except ValueError as error:
            raise FaultyRun(f"cannot resume: {error}") from error
        results = Results(folder, seeds, saved["sizes"], step)

    last_saved = step

    def save() -> None:
        nonlocal last_saved
        require_finite_weights(agent, f"at env step {step}", folder)
        state = {
            "step": step,
            "updates": updates,
            "episode_return": episode_return,
            "agent": agent.state_dict(),
            "buffer": buffer.state_dict(),
            "envs": envs.state_dict(),
            "sizes": results.sync(),
        }
        checkpoint.save(folder / "checkpoints", step, state)
        last_saved = step

    if saved is None:
        save()  # a run killed at any moment can be resumed
    clock = Clock(s, "env steps", s.total_env_steps, step, s.replay_ratio)
    try:
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
                results.log(step, {"train/return": episode_return}, where=ended)
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
                    if intervention is not None and intervention.due(updates):
                        intervention.apply_(agent, inputs=agent.inputs(batch))
                    if updates % s.log_every_updates == 0:
                        log_update(results, step, agent, metrics, folder)
                clock.end_updates(due)

            if step % s.eval_every_env_steps == 0 or step == s.total_env_steps:
                returns = evaluate(agent, eval_envs, s.eval_episodes, first_episode=step << 20)
                results.log(step, {"eval/return": returns})
                results.time(step, clock.rates(step))
                clock.said = f"last return {returns.mean():.1f}"
            if step % s.checkpoint_every_env_steps == 0:
                save()
            clock.show(step)
        if last_saved != step:
            save()
    finally:
        clock.close()
        results.close()
        envs.close()
        eval_envs.close()
    return step >= s.total_env_steps


def updates_due(steps: int, replay_ratio: float) -> int:
    """Updates to make after env step number `steps` of learning, for `replay_ratio` updates per env step."""
    if steps < 1:
        return 0
    so_far, before = (math.floor(n * replay_ratio + 1e-6) for n in (steps, steps - 1))  # 1300 * 0.7 is 910
    return so_far - before


def evaluate(agent: SAC, envs: Envs, episodes: int, first_episode: int) -> np.ndarray:
    """Mean return ``[runs]`` of the deterministic policy over each run's next `episodes` episodes."""
    obs = envs.seek(first_episode)
    total = np.zeros(envs.runs)
    returns: list[list[float]] = [[] for _ in range(envs.runs)]
    device = next(agent.parameters()).device
    while min(len(r) for r in returns) < episodes:
        act = agent.act(torch.from_numpy(obs).to(device).unsqueeze(1)).squeeze(1)
        out = envs.step(act.cpu().numpy())
        total += out.reward
        for run in np.flatnonzero(out.terminated | out.truncated):
            returns[run].append(float(total[run]))
            total[run] = 0
        obs = out.obs
    return np.array([np.mean(r[:episodes]) for r in returns])


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
        matrices = [m for y in learner.regularizer.layers if (m := y.matrix(learner.net)) is not None]
        metrics[f"{name}/weight_norm"] = weight_norm(learner.net.parameters(), learner.runs)
        metrics[f"{name}/sigma1"] = largest_sigma1(matrices)
    results.log(step, {name: value.cpu() for name, value in metrics.items()})
    results.flush()


if __name__ == "__main__":
    command.main(train)
