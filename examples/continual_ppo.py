"""PPO of Stable-Baselines3 on a task that changes: ``python examples/continual_ppo.py [seeds=5] [tasks=12]``.

The order of CartPole's four observations is drawn again every 6144 env steps. The methods differ in one callback, and
``new agent`` starts each task with a new agent. ``continual_ppo.csv`` has a line for each task: the return of the best
actions at its end, and metrics of the policy's network. After the last task, `diagnose` compares that network with new
ones. The figure is ``continual_ppo.png``. A run takes about a minute of CPU time. Finished runs are not repeated.
"""

import csv
import sys
from pathlib import Path

import numpy as np
import torch
from matplotlib import rc_context
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from torch import nn

from rl_plasticity import diagnose, measure
from rl_plasticity.comparison import plotting
from rl_plasticity.envs import Changing
from rl_plasticity.integrations.stable_baselines3 import Regularize
from rl_plasticity.metrics.statistics import mean_curve

METHODS = {"none": {}, "l2_init": {"coef": 1e-3}, "new agent": {}}
ENVS, STEPS = 8, 768  # environments, and the env steps of each in a task; a multiple of PPO's n_steps
PPO_SETTINGS = {
    "n_steps": 32, "batch_size": 256, "n_epochs": 20, "learning_rate": 3e-3, "gamma": 0.98, "gae_lambda": 0.8,
    "policy_kwargs": {"activation_fn": nn.ReLU, "net_arch": [64, 64]}, "device": "cpu",
}  # fmt: skip
METRICS = ("dormant", "feature_rank", "weight_norm")


class Plasticity(BaseCallback):
    """Logs metrics of the policy's network at the end of each `learn`, on the observations of the last rollout."""

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        obs = self.model.rollout_buffer.observations
        self.obs = torch.as_tensor(obs).reshape(-1, obs.shape[-1])
        self.measured = measure(actor(self.model), self.obs)
        for name in METRICS:
            self.logger.record(f"plasticity/{name}", float(self.measured[name]))


def actor(model: PPO) -> nn.Module:
    return nn.Sequential(model.policy.mlp_extractor.policy_net, model.policy.action_net)


def run(method: str, seed: int, tasks: int, steps: int = STEPS) -> list[list[str]]:
    """Train on one task after another; returns a line of the csv for each."""

    def envs(**switch: int) -> Changing:
        changes = {"changes": ["observation_permutation"], "seed": seed, **switch}
        return make_vec_env("CartPole-v1", ENVS, seed, wrapper_class=Changing, wrapper_kwargs=changes)

    def agent(seed: int | None) -> PPO:
        return PPO("MlpPolicy", training, seed=seed, **PPO_SETTINGS)

    training, evaluation = envs(switch_every_env_steps=steps), envs()
    model, plasticity, lines = agent(seed), Plasticity(), []
    callbacks = [plasticity] + ([Regularize(method, **METHODS[method])] if METHODS[method] else [])
    for task in range(tasks):
        if task and method == "new agent":
            model = agent(1000 * seed + task)
        model.learn(ENVS * steps, callbacks, reset_num_timesteps=False)
        evaluation.env_method("change_to", task)
        numbers = evaluate_policy(model, evaluation, ENVS)[0], *(float(plasticity.measured[name]) for name in METRICS)
        lines.append([method, str(seed), str(task + 1), *(f"{number:.4g}" for number in numbers)])
    report = diagnose(actor(model), plasticity.obs, make=lambda: actor(agent(None)), remedies=False)
    print(method, seed, [round(float(line[3])) for line in lines], report.verdict, flush=True)
    return [[*line, report.verdict, f"{report.evidence['your network'].mean:.4g}"] for line in lines]


def draw(rows: list[list[str]], tasks: int) -> None:
    """Draw means with Student's 95 % intervals over seeds."""
    with rc_context(plotting.STYLE):
        figure, grid = plotting.panels(2, 2, height=2.2)
        labels = {3: "return at the task's end", 4: "dormant units of the policy"}
        for axes, (column, label) in zip(grid, labels.items(), strict=True):
            for method, look in plotting.looks([*METHODS]).items():
                values = np.array([float(row[column]) for row in rows if row[0] == method]).reshape(-1, tasks)
                mean, *band = mean_curve(values)
                plotting.line(axes, np.arange(1, tasks + 1), mean, band, **look)
            axes.set(xlabel="task", ylabel=label, ylim=(0, None))
        names = ["no method" if method == "none" else method for method in METHODS]
        plotting.legend(figure, dict(zip(names, axes.lines, strict=True)))
        figure.savefig("continual_ppo.png", dpi=150)


def main(seeds: int = 5, tasks: int = 12, steps: int = STEPS, first_seed: int = 1) -> list[list[str]]:
    torch.set_num_threads(1)
    path, header = Path("continual_ppo.csv"), ("method", "seed", "task", "return", *METRICS, "verdict", "learned")
    rows = [*csv.reader(path.read_text().splitlines())][1:] if path.exists() else []
    for seed in range(first_seed, first_seed + seeds):
        for method in METHODS:
            if [method, str(seed)] not in [row[:2] for row in rows]:
                rows += run(method, seed, tasks, steps)
                with path.open("w") as file:
                    csv.writer(file, lineterminator="\n").writerows([header, *rows])
    draw(rows, tasks)
    return rows


if __name__ == "__main__":
    main(**{name: int(value) for name, value in (argument.split("=") for argument in sys.argv[1:])})
