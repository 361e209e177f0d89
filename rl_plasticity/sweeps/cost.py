"""What runs cost before any is made: their updates, and the CPU seconds that this machine takes for one."""

import json
import math
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rl_plasticity.agents import AGENTS, Batch
from rl_plasticity.configs.commands import Supervised, Train, updates_after
from rl_plasticity.configs.schema import arguments_of
from rl_plasticity.envs import make_env
from rl_plasticity.errors import FaultyRun
from rl_plasticity.learning.learner import Learner
from rl_plasticity.learning.optimizers import OPTIMIZERS
from rl_plasticity.networks import make_network
from rl_plasticity.runs import memory
from rl_plasticity.runs.folder import processor, write_text
from rl_plasticity.runs.plan import Plan
from rl_plasticity.sweeps.studies import Study
from rl_plasticity.tasks import TASKS, Data, sizes

TIMED_S, TIMED = 0.5, 20  # seconds, or updates, after which a measurement ends
IMAGES = 8  # in a timed batch of a network that trains one run at a time, whose updates take time by the image


def updates(s: Train | Supervised) -> float:
    """How many updates a process makes, each run's counted; of a data set only the published size is needed."""
    runs = len(Plan.of(s).seeds)
    if isinstance(s, Train):
        return runs * (s.prime_updates + updates_after(s.total_env_steps - s.random_env_steps, s.replay_ratio))
    images, _, classes = sizes(s.data["name"])
    images = min(images, s.data["train_size"] or images)
    return runs * s.epochs_per_task * _batches(images, classes, json.dumps(s.task), s.num_tasks, s.batch_size)


def seconds_per_update(s: Train | Supervised) -> float:
    """CPU seconds of one update of one run, measured now on one thread, on images or transitions of noise.

    Another process on the machine can stretch the clock's seconds a hundredfold, CPU seconds hardly. The update is a
    plain one with this network and batch: no environments, evaluations and measurements, no regularizer, not compiled.
    """
    plan = Plan.of(replace(s, seeds=min(s.seeds, 5), reg={"name": "none"}, reset={"name": "none"}))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        update, share = _of_agent(s, plan) if isinstance(s, Train) else _of_network(s, plan)
        update()
        start, number = time.process_time(), 0
        while number < TIMED and time.process_time() - start < TIMED_S:
            update()
            number += 1
        return (time.process_time() - start) / number / len(plan.seeds) / share
    finally:
        torch.set_num_threads(threads)


def key(s: Train | Supervised) -> str:
    """Equal for settings whose updates take about as long: the networks' sizes count, what else they have does not."""
    if isinstance(s, Train):
        what = [s.env["name"], memory.sizes(s.agent, "agent")]
    else:
        _, shape, classes = sizes(s.data["name"])
        what = ["x".join(map(str, (*shape, classes))), memory.sizes(s.net, "net")]
    return " ".join([*what, f"batch_size={s.batch_size}", f"seeds={min(s.seeds, 5)}"]).replace(", ", ",")


class Rates:
    """CPU seconds of updates, measured once on each machine and kept in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.all: dict[str, dict[str, Any]] = {}
        with suppress(OSError, ValueError):
            self.all = json.loads(path.read_text())
        self.machine = f"{platform.node()} {processor()} torch {torch.__version__}"
        self.here = self.all.setdefault(self.machine, {})

    def of(self, study: Study) -> tuple[float, float]:
        """Run-updates of a study, and their CPU hours.

        Raises:
            SettingsError: its script is not here.
            FaultyRun: its script fails.
        """
        if study.is_script:
            return self._of_script(study)
        total = seconds = 0.0
        for run in (run for of_method in study.runs(Path("nowhere")).values() for run in of_method):
            number = updates(run.settings)
            total += number
            seconds += number * self._kept(key(run.settings), partial(seconds_per_update, run.settings))
        return total, seconds / 3600

    def _of_script(self, study: Study) -> tuple[float, float]:
        script = study.script
        needed = [part for name in study.needs for part in (f"--{name}", ".")]
        arguments = [*study.settings, *needed, "--cost"]

        def said() -> list[float]:
            alone = {**os.environ, "OMP_NUM_THREADS": "1"}
            call = [sys.executable, str(script), *arguments]
            run = subprocess.run(call, capture_output=True, text=True, env=alone)
            if run.returncode:
                raise FaultyRun(f"{study.command}: {(run.stderr.splitlines() or ['it failed'])[-1]}")
            words = run.stdout.split()  # "200 run-updates of 0.36 CPU seconds"
            return [float(words[0]), float(words[3])]

        number, seconds = self._kept(shlex.join([study.command, *arguments]), said)
        return number, number * seconds / 3600

    def _kept(self, what: str, measure: Callable[[], Any]) -> Any:
        if what not in self.here:
            self.here[what] = measure()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.path, json.dumps(self.all, indent=1))
        return self.here[what]


# ------------------------------------------------------------------------------------------------------------------


@cache  # methods and seeds of a study have the same tasks, and to lay out 50 of them takes seconds
def _batches(images: int, classes: int, task: str, num_tasks: int, batch_size: int) -> float:
    """Of one epoch of each task."""
    group = json.loads(task)
    blank, y = torch.zeros(images, 1, 1, 1, dtype=torch.uint8), torch.arange(images) % classes
    data = Data.of("blank", (blank, y), (blank[: 2 * classes], y[: 2 * classes]), classes)
    sequence = TASKS[group["name"]](data, [0], num_tasks, **arguments_of(group))
    # A sequence's tasks are equally large, or grow evenly from the first to the last.
    each = [math.ceil(sequence.task(i).rows.shape[-1] / batch_size) for i in (0, sequence.num_tasks - 1)]
    return sequence.num_tasks * sum(each) / 2


def _of_agent(s: Train, plan: Plan) -> tuple[Callable[[], object], float]:
    env = make_env(s.env["name"], 0)
    (obs_dim,), (act_dim,) = env.observation_space.shape or (), env.action_space.shape or ()
    env.close()
    agent = AGENTS[s.agent["name"]](obs_dim, act_dim, plan.seeds, plan.regularize, **arguments_of(s.agent))
    each = ((obs_dim,), (act_dim,), (), (obs_dim,), ())
    batch = Batch(*(torch.rand(len(plan.seeds), s.batch_size, *shape) for shape in each))
    return lambda: agent.update(batch, agent.noise(1, s.batch_size)[0]), 1.0


def _of_network(s: Supervised, plan: Plan) -> tuple[Callable[[], object], float]:
    """An update, and which share of a whole batch it has."""
    _, shape, classes = sizes(s.data["name"])

    def make(seeds: Sequence[int]) -> nn.Module:
        return make_network(s.net["name"], shape, classes, seeds, **arguments_of(s.net))

    def optimize(net: nn.Module) -> Any:
        return OPTIMIZERS[s.optimizer["name"]](net, lr=s.lr, **arguments_of(s.optimizer))

    learner = Learner(make, plan.seeds, plan.regularize, optimize)
    batch = s.batch_size if learner.runs else min(s.batch_size, IMAGES)
    x = torch.randn(*learner.runs, batch, *shape)

    def update() -> dict[str, Tensor]:
        return learner.minimize(-learner.net(x).log_softmax(-1)[..., 0].mean(-1), x)

    return update, batch / s.batch_size
