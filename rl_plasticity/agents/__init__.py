"""Agents, found by name in `AGENTS`, what they learn from, and the episodes that they play."""

from collections.abc import Callable

from rl_plasticity.agents.base import Agent
from rl_plasticity.agents.dqn import DQN
from rl_plasticity.agents.networks import AGENT_NETWORKS
from rl_plasticity.agents.replay_buffer import Batch, ReplayBuffer
from rl_plasticity.agents.sac import SAC
from rl_plasticity.plugins import Choices
from rl_plasticity.step import Step

AGENTS: Choices[Callable[..., Agent]] = Choices("AGENTS", {"sac": SAC, "dqn": DQN})
"""What ``agent=`` chooses from: ``kind(obs_dim, act_dim, seeds, make_regularizer, device=..., **settings)``.

A kind with ``takes_discrete_actions = True`` is called with obs_shape and num_actions in place of the first two.
"""

__all__ = ["AGENTS", "AGENT_NETWORKS", "DQN", "SAC", "Agent", "Batch", "ReplayBuffer", "Step"]
