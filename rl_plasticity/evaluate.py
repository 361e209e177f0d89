"""Returns of a trained policy: ``python -m rl_plasticity.evaluate RUN``."""

import difflib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from rl_plasticity.agents import SAC
from rl_plasticity.configs import schema
from rl_plasticity.configs.schema import Evaluate, Supervised, Train
from rl_plasticity.envs import Envs
from rl_plasticity.errors import SettingsError, nearest
from rl_plasticity.runs import checkpoint
from rl_plasticity.runs import plan as grid
from rl_plasticity.runs.folder import write_text
from rl_plasticity.runs.session import main_on_folder
from rl_plasticity.seeding import RunStreams, derive
from rl_plasticity.train import EVALUATION, make_agent


def evaluate(folder: Path, e: Evaluate) -> None:
    """Print each run's mean return ± standard error over its episodes, least and greatest; write `out` if wanted."""
    s = open_run(folder, e.device)
    saved = load_checkpoint(folder, e.checkpoint)
    names, runs = grid.names(s), runs_of(s, e)
    if e.out is not None:
        require_new(Path(e.out), ".csv")
    try:
        envs = Envs(s.env.name, [env_seed(s, run, e.evaluation_seed) for run in runs], s.env.action_repeat)
    except (ValueError, ImportError, gym.error.Error) as error:
        raise SettingsError(f"cannot make {s.env.name}: {error}") from error
    agent = load_agent(s, saved, envs)
    with tqdm(total=planned_steps(s, e, envs), unit=" env steps", mininterval=1) as bar:
        returns = play(s, e, agent, saved["step"], envs, runs, bar.update)
    envs.close()

    kind = "deterministic" if e.deterministic else "sampled"
    print(f"{s.env.name}, checkpoint of env step {saved['step']}, {kind} actions, episodes a run: {returns.shape[1]}")
    for run, own in zip(runs, returns, strict=True):
        spread = f" ± {own.std(ddof=1) / math.sqrt(len(own)):.1f}" if len(own) > 1 else ""
        which = names[run] if "=" in names[run] else f"seed {names[run]}"
        print(f"{which}: return {own.mean():.1f}{spread}, min {own.min():.1f}, max {own.max():.1f}")
    if e.out is not None:
        rows = [
            f"{names[run]},{saved['step']},{number},{float(value)!r}\n"
            for run, own in zip(runs, returns, strict=True)
            for number, value in enumerate(own, start=1)
        ]
        write_text(Path(e.out), "run,step,episode,return\n" + "".join(rows))
        print(f"wrote {e.out}")


def play(
    s: Train,
    e: Evaluate,
    agent: SAC,
    step: int,
    envs: Envs,
    runs: Sequence[int],
    before_step: Callable[[], object] = lambda: None,
) -> NDArray[np.float64]:
    """Returns ``[len(runs), episodes]`` of the policies in the checkpoint of env step `step`, without discount.

    The episodes' start states depend on nothing but a run's seed and

    - the checkpoint's env step, without an ``evaluation_seed``. They are those of training's own evaluation at that
      step, so the mean over ``eval_episodes`` episodes is the ``eval/return`` logged there, bit for bit (same device,
      versions and number of threads);
    - else the ``evaluation_seed``, so that checkpoints are compared from the same start states.

    They are never those of training episodes. Noise of sampled actions is a function of the same.

    Args:
        agent: of all runs of the folder, see `load_agent`.
        runs: positions of the chosen runs in the stack.
        envs: of the chosen runs, with the seeds of `env_seed`.
        before_step: called before each step of `envs`; of one run, as often as its episodes have env steps.
    """
    first_episode = step << 20 if e.evaluation_seed is None else 1
    seeds = [derive(env_seed(s, run, e.evaluation_seed), first_episode, 1) for run in range(len(grid.seeds(s)))]
    noise = None if e.deterministic else RunStreams(seeds)

    episodes = episodes_of(s, e)
    returns: list[list[float]] = [[] for _ in runs]
    total = np.zeros(len(runs))
    obs = envs.seek(first_episode)
    # The policies of all runs are one stack, and all of it acts, as in training; of the others nothing is used.
    everyone = torch.zeros(len(grid.seeds(s)), 1, envs.obs_dim, device=s.device)
    while min(len(r) for r in returns) < episodes:
        before_step()
        everyone[list(runs), 0] = torch.from_numpy(obs).to(s.device)
        act = agent.act(everyone, None if noise is None else noise.normal(1, envs.act_dim).to(s.device))
        out = envs.step(act[list(runs), 0].cpu().numpy())
        total += out.reward
        for i in np.flatnonzero(out.terminated | out.truncated):
            returns[i].append(float(total[i]))
            total[i] = 0
        obs = out.obs
    return np.array([r[:episodes] for r in returns])


def episodes_of(s: Train, e: Evaluate) -> int:
    """How many episodes each run plays."""
    return s.eval_episodes if e.episodes is None else e.episodes


def env_seed(s: Train, run: int, evaluation_seed: int | None) -> int:
    """The seed of a run's evaluation environment; see `play`."""
    return derive(grid.seeds(s)[run], EVALUATION, *([] if evaluation_seed is None else [evaluation_seed]))


def planned_steps(s: Train, e: Evaluate, envs: Envs) -> int | None:
    """Steps of `envs` if no episode ends early; None for a task without a limit."""
    (env, *_) = envs.vector.get_attr("env")
    limit = (env.spec and env.spec.max_episode_steps) or getattr(env.unwrapped, "_step_limit", math.inf)  # dm_control's
    return None if limit == math.inf else episodes_of(s, e) * math.ceil(limit / s.env.action_repeat)


# --- from a folder --------------------------------------------------------------------------------------------------


def open_run(folder: Path, device: str) -> Train:
    """The settings of the run in `folder`, with the device to play on.

    Raises:
        SettingsError: there is no run of `rl_plasticity.train`; the device is not there.
    """
    if not folder.is_dir():
        known = [p.name for p in folder.parent.iterdir() if p.is_dir()] if folder.parent.is_dir() else []
        close = difflib.get_close_matches(folder.name, known, n=1)
        raise SettingsError(
            f"no folder {folder}, which comes first" + (f"; did you mean {folder.parent / close[0]}?" if close else "")
        )
    try:
        s = schema.load_saved(Train, folder / "config.yaml")
    except SettingsError as error:
        try:
            schema.load_saved(Supervised, folder / "config.yaml")
        except SettingsError:
            raise error from None
        raise SettingsError(
            f"{folder} is of rl_plasticity.supervised; a run of rl_plasticity.train is needed"
        ) from None
    cuda = torch.cuda.is_available()
    if device == "cuda" and not cuda:
        raise SettingsError("device=cuda, but torch finds no GPU here; use device=cpu or auto")
    if device == "auto":
        device = s.device if cuda else "cpu"
    if isinstance(s.threads, int):
        torch.set_num_threads(s.threads)
    return replace(s, device=device)


def load_checkpoint(folder: Path, step: int | None) -> dict[str, Any]:
    """The checkpoint of this step, or the newest.

    Raises:
        SettingsError: there is none, or it cannot be read.
    """
    try:
        return checkpoint.load(folder / "checkpoints", step)
    except (FileNotFoundError, ValueError) as error:
        raise SettingsError(str(error)) from error


def load_agent(s: Train, saved: dict[str, Any], envs: Envs) -> SAC:
    """The agents of all runs as the checkpoint `saved` holds them.

    Raises:
        SettingsError: the checkpoint does not fit the settings or the environment.
    """
    agent = make_agent(s, envs.obs_dim, envs.act_dim)
    # Training's random streams play no part here, and those of a GPU cannot be loaded elsewhere.
    state = saved["agent"] | {"streams._extra_state": agent.streams.get_extra_state()}
    try:
        agent.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).splitlines()[:2])
        raise SettingsError(f"the checkpoint does not fit config.yaml and the environment: {reason}") from error
    return agent


def runs_of(s: Train, e: Evaluate) -> list[int]:
    """The positions of the runs that are asked for: by seed (one for each setting side by side), by position, or all.

    Raises:
        SettingsError: there is none.
    """
    seeds = grid.seeds(s)
    if e.run is not None and e.run >= len(seeds):
        raise SettingsError(f"no run={e.run}: the folder has {len(seeds)}, counted from 0")
    found = [run for run, seed in enumerate(seeds) if e.seed in (None, seed) and e.run in (None, run)]
    if not found:
        raise SettingsError(f"no run with seed={e.seed}{nearest(e.seed, map(str, sorted(set(seeds))))}")
    return found


def require_new(path: Path, suffix: str) -> None:
    """Raises SettingsError unless a file that ends in `suffix` can be made there."""
    if path.suffix != suffix:
        raise SettingsError(f"out must end in {suffix}, got {path}")
    if path.exists():
        raise SettingsError(f"{path} exists; choose another out=")
    if not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise SettingsError(f"cannot write to the folder {path.parent}")


if __name__ == "__main__":
    main_on_folder(Evaluate, evaluate)
