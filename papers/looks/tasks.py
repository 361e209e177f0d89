"""Plugin that logs how far hidden activations move between the starts of tasks: see `closer_look.TaskStarts`."""

from papers.closer_look import TaskStarts
from rl_plasticity import CALLBACKS

CALLBACKS["task_starts"] = TaskStarts
