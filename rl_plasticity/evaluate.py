"""Returns of a trained policy: ``python -m rl_plasticity.evaluate RUN``."""

if __name__ == "__main__":
    from rl_plasticity.errors import end_quietly_when_interrupted

    end_quietly_when_interrupted()

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from rl_plasticity import command_line
from rl_plasticity.agents import Agent, rollout
from rl_plasticity.configs.schema import Evaluate
from rl_plasticity.envs import Envs
from rl_plasticity.errors import SettingsError
from rl_plasticity.runs.folder import RunFolder, write_text
from rl_plasticity.runs.trained import Trained
from rl_plasticity.seeding import RunStreams, derive


def evaluate(folder: RunFolder, e: Evaluate) -> NDArray[np.float64]:
    """Print each run's mean return ± standard error over its episodes, least and greatest; write `out` if wanted.

    Returns:
        The returns, ``[runs, episodes]``.
    """
    trained = Trained.of(folder, e.device, e.checkpoint)
    env, names, runs = trained.settings.env["name"], trained.plan.names, trained.runs(e.seed, e.run)
    if e.out is not None:
        require_new(Path(e.out), ".csv")
    try:
        envs = trained.envs([trained.env_seed(run, e.evaluation_seed) for run in runs])
    except (ValueError, ImportError, gym.error.Error) as error:
        raise SettingsError(f"cannot make {env}: {error}") from error
    agent = trained.agent(envs)
    with tqdm(total=planned_steps(trained, e, envs), unit=" env steps", mininterval=1) as bar:
        returns = play(trained, e, agent, envs, runs, bar.update)
    envs.close()

    kind = "deterministic" if e.deterministic else "sampled"
    print(f"{env}, checkpoint of env step {trained.step}, {kind} actions, episodes a run: {returns.shape[1]}")
    for run, of_run in zip(runs, returns, strict=True):
        spread = f" ± {of_run.std(ddof=1) / math.sqrt(len(of_run)):.1f}" if len(of_run) > 1 else ""
        summary = f"return {of_run.mean():.1f}{spread}, min {of_run.min():.1f}, max {of_run.max():.1f}"
        print(f"{names[run].in_words}: {summary}")
    if e.out is not None:
        rows = [
            f"{names[run]},{trained.step},{number},{float(value)!r}\n"
            for run, of_run in zip(runs, returns, strict=True)
            for number, value in enumerate(of_run, start=1)
        ]
        write_text(Path(e.out), "run,step,episode,return\n" + "".join(rows))
        print(f"wrote {e.out}")
    return returns


def play(
    trained: Trained,
    e: Evaluate,
    agent: Agent,
    envs: Envs,
    runs: Sequence[int],
    before_step: Callable[[], object] = lambda: None,
) -> NDArray[np.float64]:
    """Returns ``[len(runs), episodes]`` of the policies in the checkpoint, without discount.

    The episodes' start states depend on nothing but a run's seed and

    - the checkpoint's env step, without an ``evaluation_seed``. They are those of training's own evaluation at that
      step, so the mean over ``eval_episodes`` episodes is the ``eval/return`` logged there, bit for bit (same device,
      versions and number of threads);
    - else the ``evaluation_seed``, so that checkpoints are compared from the same start states.

    They are never those of training episodes. Noise of sampled actions is a function of the same.

    Args:
        agent: of all runs of the folder.
        envs: of the chosen runs, with the seeds of `Trained.env_seed`.
        runs: positions of the chosen runs in the stack.
        before_step: called before each step of `envs`; of one run, as often as its episodes have env steps.
    """
    first = rollout.first_episode(trained.step) if e.evaluation_seed is None else 1
    every = range(len(trained.plan.seeds))
    seeds = [derive(trained.env_seed(run, e.evaluation_seed), first, 1) for run in every]
    noise = None if e.deterministic else RunStreams(seeds)
    episodes = episodes_of(trained, e)
    return rollout.play(agent, envs, episodes, first, runs=runs, noise=noise, before_step=before_step)


def episodes_of(trained: Trained, e: Evaluate) -> int:
    """How many episodes each run plays."""
    return trained.settings.eval_episodes if e.episodes is None else e.episodes


def planned_steps(trained: Trained, e: Evaluate, envs: Envs) -> int | None:
    """Steps of `envs` if no episode ends early; None for a task without a limit."""
    (env, *_) = envs.vector.get_attr("env")
    limit = (env.spec and env.spec.max_episode_steps) or getattr(env.unwrapped, "_step_limit", math.inf)  # dm_control's
    if limit == math.inf:
        return None
    steps: int = math.ceil(limit / trained.settings.env["action_repeat"])
    return episodes_of(trained, e) * steps


def require_new(path: Path, suffix: str) -> None:
    """Raises SettingsError unless a file that ends in `suffix` can be made there."""
    if path.suffix != suffix:
        raise SettingsError(f"out must end in {suffix}, got {path}")
    if path.exists():
        raise SettingsError(f"{path} exists; choose another out=")
    if not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise SettingsError(f"cannot write to the folder {path.parent}")


if __name__ == "__main__":
    command_line.look_at(Evaluate, evaluate)
