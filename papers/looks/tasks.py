"""How far hidden activations move from one task's start to the next's: see `closer_look.TaskStarts`."""

from papers.closer_look import TaskStarts
from rl_plasticity import CALLBACKS

CALLBACKS["task_starts"] = TaskStarts
