"""Supervised continual learning: data sets, and sequences of tasks made of them."""

from rl_plasticity.tasks.continual import TASKS, Task, TaskSequence, batch
from rl_plasticity.tasks.data import DATA, Data, DataError, Source, load, sizes

__all__ = ["DATA", "TASKS", "Data", "DataError", "Source", "Task", "TaskSequence", "batch", "load", "sizes"]
