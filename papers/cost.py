"""The number of updates of runs before they are made."""

import json
import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from rl_plasticity import TASKS
from rl_plasticity.tasks import Data, sizes

Settings = Mapping[str, Any]  # the settings of a run, as saved in its folder


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


@cache  # methods and seeds of a study share their tasks, and creating 50 of them takes seconds
def _batches(images: int, classes: int, task: str, num_tasks: int, batch_size: int) -> float:
    """The number of batches in one epoch of each task, summed over tasks."""
    group = json.loads(task)
    blank, y = torch.zeros(images, 1, 1, 1, dtype=torch.uint8), torch.arange(images) % classes
    data = Data.of("blank", (blank, y), (blank[: 2 * classes], y[: 2 * classes]), classes)
    sequence = TASKS[group["name"]](data, [0], num_tasks, **{n: v for n, v in group.items() if n != "name"})
    # A sequence's tasks are equally large, or grow evenly from the first to the last.
    each = [math.ceil(sequence.task(i).rows.shape[-1] / batch_size) for i in (0, sequence.num_tasks - 1)]
    return sequence.num_tasks * sum(each) / 2
