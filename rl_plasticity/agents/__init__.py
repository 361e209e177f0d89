"""Agents and what they learn from."""

from rl_plasticity.agents.replay_buffer import Batch, ReplayBuffer
from rl_plasticity.agents.sac import SAC

__all__ = ["SAC", "Batch", "ReplayBuffer"]
