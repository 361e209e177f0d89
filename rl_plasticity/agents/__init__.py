"""Agents, found by name in `AGENTS`, what they learn from, and the episodes that they play."""

from rl_plasticity.agents.base import AGENTS, Agent
from rl_plasticity.agents.dqn import DQN
from rl_plasticity.agents.networks import AGENT_NETWORKS
from rl_plasticity.agents.replay_buffer import Batch, ReplayBuffer
from rl_plasticity.agents.sac import SAC
from rl_plasticity.step import Step

AGENTS.build_in({"sac": SAC, "dqn": DQN})

__all__ = ["AGENTS", "AGENT_NETWORKS", "DQN", "SAC", "Agent", "Batch", "ReplayBuffer", "Step"]
