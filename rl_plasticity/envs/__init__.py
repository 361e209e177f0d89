"""Environments."""

from rl_plasticity.envs.control import Control, EnvFault, Envs, make_env, task_names

__all__ = ["Control", "EnvFault", "Envs", "make_env", "task_names"]
