"""Returns of a trained policy: ``python -m rl_plasticity.evaluate RUN``."""

if __name__ == "__main__":  # help and misspelt settings do not wait for torch
    from rl_plasticity import command_line

    command_line.at_once("evaluate")

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from rl_plasticity import command_line
from rl_plasticity.configs.commands import Evaluate
from rl_plasticity.errors import SettingsError, counted
from rl_plasticity.runs.files import require_new, write_text
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.trained import Trained


def evaluate(folder: RunFolder, e: Evaluate) -> NDArray[np.float64]:
    """Print each run's mean return ± standard error, minimum and maximum over its episodes, and write `out` if given.

    Returns:
        The returns, ``[runs, episodes]``.
    """
    trained = Trained.of(folder, e.device, e.checkpoint)
    env, names, runs = trained.settings.env.name, trained.plan.names, trained.plan.chosen(e.seed, e.run)
    if e.out is not None:
        require_new(Path(e.out), ".csv")
    try:
        envs = trained.envs(runs, e.evaluation_seed)
    except (ValueError, ImportError) as error:
        raise SettingsError(f"cannot make {env}: {error}") from error
    agent = trained.agent(envs)
    with tqdm(unit=" env steps", mininterval=1) as bar:
        returns = trained.play(agent, envs, runs, e.episodes, e.evaluation_seed, e.deterministic, bar.update)
    envs.close()

    kind = "deterministic" if e.deterministic else "sampled"
    print(
        f"{env}, checkpoint of env step {trained.step}, {kind} actions, {counted(returns.shape[1], 'episode')} per run"
    )
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


if __name__ == "__main__":
    command_line.look_at(Evaluate, evaluate)
