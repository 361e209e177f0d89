"""Environments."""

from rl_plasticity.envs.control import Control, make_env, task_names
from rl_plasticity.envs.vector import EnvFault, Envs, say_what_is_missing

__all__ = ["Control", "EnvFault", "Envs", "make_env", "say_what_is_missing", "task_names"]
