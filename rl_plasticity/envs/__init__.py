"""Environments."""

from rl_plasticity.envs.control import Control, make_env, task_names
from rl_plasticity.envs.vector import EnvFault, Envs

__all__ = ["Control", "EnvFault", "Envs", "make_env", "task_names"]
