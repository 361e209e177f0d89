"""Environments."""

from rl_plasticity.envs.continual import Changing
from rl_plasticity.envs.control import Control, make_env, task_names
from rl_plasticity.envs.vector import EnvFault, Envs

__all__ = ["Changing", "Control", "EnvFault", "Envs", "make_env", "task_names"]
