"""The cost of runs before they are made: their number of updates, and the CPU seconds of one on this machine."""

import json
import math
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from papers.study import Study
from rl_plasticity import AGENTS, OPTIMIZERS, TASKS, Batch, FaultyRun, Learner, make_regularizer
from rl_plasticity.configs.written import nested
from rl_plasticity.envs import make_env
from rl_plasticity.networks import make_network
from rl_plasticity.tasks import Data, sizes

Settings = Mapping[str, Any]  # the settings of a run, as saved in its folder
TIMED_S, TIMED = 0.5, 20  # CPU seconds or updates after which a measurement ends
IMAGES = 8  # in a timed batch of a network without a runs axis, whose time per update grows with the images


def updates(s: Settings) -> float:
    """The number of updates that a process makes, counted over all of its runs.

    Only the published size of a data set is needed for it.
    """
    if "env" in s:
        every = s["env"]["switch_every_env_steps"] if s["on_change"] == "restart" else None
        starts, rest = divmod(s["total_env_steps"], every) if every else (0, s["total_env_steps"])
        steps = starts * max(0, (every or 0) - s["random_env_steps"]) + max(0, rest - s["random_env_steps"])
        return float(s["seeds"] * (s["prime_updates"] + math.floor(steps * s["replay_ratio"] + 1e-6)))
    images, _, classes = sizes(s["data"]["name"])
    images = min(images, s["data"]["train_size"] or images)
    of_an_epoch = _batches(images, classes, json.dumps(s["task"]), s["num_tasks"], s["batch_size"])
    return float(s["seeds"] * s["epochs_per_task"] * of_an_epoch)


def seconds_per_update(s: Settings) -> float:
    """CPU seconds of one update of one run, measured now on one thread, with random images or transitions.

    Another process on the machine can stretch the seconds of the clock a hundredfold, but hardly those of the CPU. The
    update is a plain one with this network and batch: without environments, evaluations, measurements and regularizer,
    and not compiled.
    """
    seeds = range(min(s["seeds"], 5))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        update, share = _of_agent(s, seeds) if "env" in s else _of_network(s, seeds)
        update()
        start, number = time.process_time(), 0
        while number < TIMED and time.process_time() - start < TIMED_S:
            update()
            number += 1
        return (time.process_time() - start) / number / len(seeds) / share
    finally:
        torch.set_num_threads(threads)


def key(s: Settings) -> str:
    """A key that is equal for settings whose updates take about as long, for example with any regularizer."""
    if "env" in s:
        what = [s["env"]["name"], s["agent"]]
    else:
        what = [sizes(s["data"]["name"])[1:], s["net"], s["optimizer"]["name"]]
    return json.dumps([*what, s["batch_size"], min(s["seeds"], 5)])


class Rates:
    """CPU seconds per update, measured once on each machine and kept in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.all: dict[str, dict[str, Any]] = {}
        with suppress(OSError, ValueError):
            self.all = json.loads(path.read_text())
        self.machine = f"{platform.node()} {platform.machine()} torch {torch.__version__}"
        self.here = self.all.setdefault(self.machine, {})

    def of(self, study: Study) -> tuple[float, float]:
        """The run-updates of a study, and their CPU hours.

        Raises:
            FaultyRun: the study's script fails.
        """
        if study.is_script:
            return self._of_script(study)
        total = seconds = 0.0
        for run in (run for of_method in study.runs(Path("nowhere")).values() for run in of_method):
            settings = nested(run.settings.flat)
            number = updates(settings)
            total += number
            seconds += number * self._kept(key(settings), partial(seconds_per_update, settings))
        return total, seconds / 3600

    def _of_script(self, study: Study) -> tuple[float, float]:
        needed = [part for name in study.needs for part in (f"--{name}", ".")]
        arguments = [*study.settings, *needed, "--cost"]

        def said() -> list[float]:
            alone = {**os.environ, "OMP_NUM_THREADS": "1"}
            call = [sys.executable, str(study.script), *arguments]
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
            self.path.write_text(json.dumps(self.all, indent=1))
        return self.here[what]


# ------------------------------------------------------------------------------------------------------------------


@cache  # methods and seeds of a study share their tasks, and creating 50 of them takes seconds
def _batches(images: int, classes: int, task: str, num_tasks: int, batch_size: int) -> float:
    """The number of batches in one epoch of each task, summed over tasks."""
    group = json.loads(task)
    blank, y = torch.zeros(images, 1, 1, 1, dtype=torch.uint8), torch.arange(images) % classes
    data = Data.of("blank", (blank, y), (blank[: 2 * classes], y[: 2 * classes]), classes)
    sequence = TASKS[group["name"]](data, [0], num_tasks, **_arguments_of(group))
    # A sequence's tasks are equally large, or grow evenly from the first to the last.
    each = [math.ceil(sequence.task(i).rows.shape[-1] / batch_size) for i in (0, sequence.num_tasks - 1)]
    return sequence.num_tasks * sum(each) / 2


def _of_agent(s: Settings, seeds: Sequence[int]) -> tuple[Callable[[], object], float]:
    with closing(make_env(s["env"]["name"], 0)) as env:
        spaces = env.spaces
    is_discrete = spaces.num_actions is not None
    given = (spaces.obs_shape, spaces.num_actions) if is_discrete else (spaces.obs_dim, spaces.act_dim)
    arguments = _arguments_of(s["agent"])
    if arguments.get("lr_decay_updates") == "auto":
        arguments["lr_decay_updates"] = 1  # an update takes as long at any learning rate
    agent = AGENTS[s["agent"]["name"]](*given, seeds, partial(make_regularizer, "none"), **arguments)
    rows = len(seeds), s["batch_size"]  # zeros are actions of both kinds
    obs, next_obs = torch.rand(2, *rows, spaces.obs_dim)
    batch = Batch(obs, torch.zeros(*rows, spaces.act_dim), torch.rand(rows), next_obs, torch.rand(rows))
    return lambda: agent.update(batch, agent.noise(1, s["batch_size"])[0]), 1.0


def _of_network(s: Settings, seeds: Sequence[int]) -> tuple[Callable[[], object], float]:
    """A function that makes one update, and the share of a whole batch that the update uses."""
    _, shape, classes = sizes(s["data"]["name"])

    def make(seeds: Sequence[int]) -> nn.Module:
        return make_network(s["net"]["name"], shape, classes, seeds, **_arguments_of(s["net"]))

    def optimize(net: nn.Module) -> Any:
        return OPTIMIZERS[s["optimizer"]["name"]](net, lr=s["lr"], **_arguments_of(s["optimizer"]))

    learner = Learner(make, seeds, optimize=optimize)
    batch = s["batch_size"] if learner.runs else min(s["batch_size"], IMAGES)
    x = torch.randn(*learner.runs, batch, *shape)

    def update() -> dict[str, Tensor]:
        return learner.minimize(-learner.net(x).log_softmax(-1)[..., 0].mean(-1), x)

    return update, batch / s["batch_size"]


def _arguments_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Constructor arguments of a chosen group: its settings without the name of the choice."""
    return {name: value for name, value in group.items() if name != "name"}
