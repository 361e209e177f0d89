"""Supervised continual learning: data sets, and sequences of tasks made of them."""

from rl_plasticity.tasks.augment import augment
from rl_plasticity.tasks.continual import TASKS, Task, TaskSequence, batch
from rl_plasticity.tasks.data import DATA_SETS, Data, load
from rl_plasticity.tasks.formats import DataError

__all__ = ["DATA_SETS", "TASKS", "Data", "DataError", "Task", "TaskSequence", "augment", "batch", "load"]
