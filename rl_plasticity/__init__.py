"""High replay-ratio soft actor-critic with interchangeable network regularizers against plasticity loss."""

from importlib import metadata

from rl_plasticity.agents import SAC, Batch, ReplayBuffer
from rl_plasticity.interventions import INTERVENTIONS, Intervention, make_intervention
from rl_plasticity.learner import Learner
from rl_plasticity.networks import MLP
from rl_plasticity.regularizers import REGULARIZERS, Chain, Regularizer, layers, make_regularizer

__version__ = metadata.version("rl_plasticity")

__all__ = [
    "INTERVENTIONS",
    "MLP",
    "REGULARIZERS",
    "SAC",
    "Batch",
    "Chain",
    "Intervention",
    "Learner",
    "Regularizer",
    "ReplayBuffer",
    "layers",
    "make_intervention",
    "make_regularizer",
]
