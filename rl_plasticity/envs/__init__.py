"""Environments."""

from rl_plasticity.envs.control import Control, Envs, make_env, task_names

__all__ = ["Control", "Envs", "make_env", "task_names"]
