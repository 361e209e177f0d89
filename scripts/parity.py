"""Whether the agent learns as fast as Stable-Baselines3's SAC: ``python scripts/parity.py FOLDER``.

Needs ``pip install .[bench]``. Trains Stable-Baselines3's SAC and this package's with the same settings (two critics,
no LayerNorm, target entropy -act_dim, replay ratio 1, as many random env steps), on environments with the same seeds,
and this package's again with one thing changed at a time. All are evaluated by one function: the deterministic action,
the same start states. Then a table and a figure of the learning curves, FOLDER/parity.png.

What is finished in FOLDER is not trained again, and a run that was killed goes on: ours from its checkpoint, theirs
with the seed that was cut off. ``--only`` chooses methods, so that two processes can share the work, and ``--table``
trains nothing. On one core a seed of 30 000 env steps takes 12 minutes with theirs, five of ours together 25.
"""

import argparse
import csv
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from rl_plasticity import train
from rl_plasticity.agents.rollout import first_episode, play
from rl_plasticity.envs import Envs, make_env
from rl_plasticity.metrics.statistics import (
    area_under_curve,
    paired_differences,
    probability_of_improvement,
    student_interval,
)
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.trained import ENV, EVALUATION
from rl_plasticity.seeding import derive

TASKS = {"walker-walk": (30_000, 2_500), "cartpole-swingup": (10_000, 2_000)}  # env steps, between evaluations
RANDOM_ENV_STEPS, EPISODES, SEEDS, HIDDEN = 1_000, 5, 5, [256, 256]
THEIRS = "sb3"
# What differs from the shared settings.
OURS: dict[str, dict[str, Any]] = {
    "ours": {},
    "log_alpha": {"temperature_loss": "log_alpha"},
    "torch": {"init": "torch"},
    "small_heads": {"init": "small_heads"},
    "torch+log_alpha": {"init": "torch", "temperature_loss": "log_alpha"},
}
Curves = Mapping[int, tuple[np.ndarray, np.ndarray]]  # seed -> steps, returns


# --- theirs ---------------------------------------------------------------------------------------------------------


def train_theirs(task: str, seed: int, out: Path) -> None:
    """One seed, its evaluations written as they come into ``seed_0.partial.csv``, which then loses its ``partial``."""
    import gymnasium as gym
    from stable_baselines3 import SAC

    class OwnSeeds(gym.Wrapper):  # type: ignore[type-arg]
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            return self.env.reset(options=options)  # episodes have seeds of their own, as ours

    steps, every = TASKS[task]
    env = OwnSeeds(make_env(task, derive(seed, ENV)))
    model = SAC(
        "MlpPolicy", env, learning_starts=RANDOM_ENV_STEPS, buffer_size=steps, seed=seed, device="cpu",
        policy_kwargs={"net_arch": HIDDEN},
    )  # fmt: skip
    eval_envs = Envs(task, [derive(seed, EVALUATION)])

    def act(obs: torch.Tensor, noise: None) -> torch.Tensor:
        return model.actor(obs[0], deterministic=True).unsqueeze(0)

    policy: Any = SimpleNamespace(act=act, parameters=model.actor.parameters, streams=SimpleNamespace(generators=[0]))
    out.mkdir(parents=True, exist_ok=True)
    partial = out / f"seed_{seed}.partial.csv"
    with partial.open("w") as file:
        print("step,return", file=file)
        for step in range(every, steps + 1, every):
            model.learn(every, reset_num_timesteps=False)  # goes on where it was; the evaluation sees its last update
            returns = play(policy, eval_envs, EPISODES, first_episode(step))
            print(f"{step},{returns.mean()}", file=file, flush=True)
            print(f"{task} {THEIRS} seed {seed} step {step}: {returns.mean():.1f}", flush=True)
    partial.rename(out / f"seed_{seed}.csv")


def theirs(out: Path) -> Curves:
    """The seeds that are finished."""
    curves = {}
    for path in sorted(out.glob("seed_?.csv")):
        with path.open() as file:
            rows = [(int(row["step"]), float(row["return"])) for row in csv.DictReader(file)]
        curves[int(path.stem.removeprefix("seed_"))] = tuple(np.array(column) for column in zip(*rows, strict=True))
    return curves


# --- ours -----------------------------------------------------------------------------------------------------------


def train_ours(task: str, changed: Mapping[str, Any], out: Path) -> None:
    """All seeds in one process."""
    if RunFolder(out).is_run():
        train.run(resume=str(out))
        return
    act_dim = make_env(task, 0).action_space.shape[0]
    agent = {"hidden": HIDDEN, "num_critics": 2, "layer_norm": False, "target_entropy": -float(act_dim)} | changed
    steps, every = TASKS[task]
    train.run(
        env=task, agent=agent, seeds=SEEDS, total_env_steps=steps, replay_ratio=1,
        random_env_steps=RANDOM_ENV_STEPS, eval_every_env_steps=every, eval_episodes=EPISODES,
        checkpoint_every_env_steps=2 * every, log_every_updates=1000, measure_every_updates=0,
        device="cpu", threads=1, compile=True, out=str(out),
    )  # fmt: skip


def ours(out: Path) -> Curves:
    """The seeds, as far as they are."""
    folder = RunFolder(out)
    if not folder.is_run():
        return {}
    curves = {
        name.seed: metrics["eval/return"] for name, metrics in folder.metrics().items() if "eval/return" in metrics
    }
    return {seed: (curve.steps, curve.values) for seed, curve in curves.items()}


# --- what came of it ------------------------------------------------------------------------------------------------


def last_step(curves: Curves) -> int:
    """The last that all seeds were evaluated at; 0 without any."""
    return int(min((steps[-1] for steps, _ in curves.values()), default=0))


def score(curve: tuple[np.ndarray, np.ndarray]) -> float:
    """The mean of the last three evaluations: one is of few episodes, and a policy's return jumps between them."""
    return float(curve[1][-3:].mean())


def with_interval(values: np.ndarray, sign: str) -> str:
    """The mean and, of several, its interval."""
    mean = f"{values.mean():{sign}z.0f}"
    if len(values) < 2:
        return mean
    low, high = student_interval([values])
    return f"{mean} [{low:z.0f}, {high:z.0f}]"


def report(found: Mapping[str, Curves], task: str) -> None:
    """Every method's seeds, their mean, and how far it is above ours; intervals are Student's at 95 %.

    The gap is the mean of the differences seed by seed: a seed has the same environments with all methods, and the same
    initial weights and noise with all of ours whose initialization is the same.
    """
    until = min(map(last_step, found.values()), default=0)  # where a method has not finished, all are compared there
    print(f"\n{task}, {until} env steps\n")
    print("| method | seeds, from 0 | their mean | above ours | P(above ours) | mean of the whole curve | above ours |")
    print("|---|---|---|---|---|---|---|")

    def until_then(curves: Curves) -> list[dict[int, float]]:
        cut = {seed: (steps[steps <= until], returns[steps <= until]) for seed, (steps, returns) in curves.items()}
        ends = {seed: score(curve) for seed, curve in cut.items()}
        return [ends, {seed: area_under_curve(*curve) for seed, curve in cut.items()}]

    base = until_then(found.get("ours", {}))
    for name, curves in found.items():
        both = until_then(curves)
        cells = [" ".join(f"{x:.0f}" for x in both[0].values())]
        for values, ours in zip(both, base, strict=True):
            cells.append(with_interval(np.array(list(values.values())), ""))
            gap = paired_differences(values, ours)
            other = name != "ours" and len(gap) > 0
            cells.append(with_interval(gap, "+") if other else "")
            if values is both[0]:
                strata = [[np.array(list(x.values()))] for x in (values, ours)]
                cells.append(f"{probability_of_improvement(*strata):.2f}" if other else "")
        print(f"| `{name}` | " + " | ".join(cells) + " |")


def draw(found: Mapping[str, Mapping[str, Curves]], path: Path) -> None:
    """A panel for each task: the mean over seeds, and each seed as a thin line."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(found), figsize=(4.5 * len(found), 4.5), squeeze=False, layout="tight")
    for axis, (task, methods) in zip(axes[0], found.items(), strict=True):
        for i, (name, curves) in enumerate(methods.items()):
            colour = "black" if name == THEIRS else f"C{list(OURS).index(name)}"
            for steps, returns in curves.values():
                axis.plot(steps, returns, color=colour, linewidth=0.6, alpha=0.4)
            n = min(len(steps) for steps, _ in curves.values())
            mean = np.mean([returns[:n] for _, returns in curves.values()], axis=0)
            label = f"{name} ({len(curves)} seeds)"
            axis.plot(next(iter(curves.values()))[0][:n], mean, color=colour, linewidth=2, label=label, zorder=10 - i)
        axis.set(title=task, xlabel="env steps")
        axis.legend(fontsize=10, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("return")
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--only", default=",".join([THEIRS, *OURS]))
    parser.add_argument("--table", action="store_true", help="train nothing")
    parser.add_argument("--hidden", help="other widths, as 64,64; in a FOLDER of their own")
    options = parser.parse_args()
    if options.hidden:
        HIDDEN[:] = map(int, options.hidden.split(","))
    torch.set_num_threads(1)
    tasks, methods = options.tasks.split(","), options.only.split(",")
    for task in tasks if not options.table else []:
        for name in methods:
            out = options.folder / task / name
            if name == THEIRS:
                for seed in range(SEEDS):
                    if seed not in theirs(out):
                        train_theirs(task, seed, out)
            elif last_step(ours(out)) < TASKS[task][0]:
                train_ours(task, OURS[name], out)
    found = {}
    for task in tasks:
        of_task = {name: options.folder / task / name for name in methods}
        curves = {name: theirs(out) if name == THEIRS else ours(out) for name, out in of_task.items()}
        found[task] = {name: of_method for name, of_method in curves.items() if of_method}
        report(found[task], task)
    draw(found, options.folder / "parity.png")


if __name__ == "__main__":
    main()
