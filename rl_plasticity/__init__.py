"""High replay-ratio soft actor-critic with interchangeable network regularizers against plasticity loss."""

import itertools
import sys
from importlib import metadata

# python -m rl_plasticity.NAME imports for seconds: Ctrl-C then, or where a command does not listen, needs no traceback.
if any(a == "-m" and b.startswith("rl_plasticity.") for a, b in itertools.pairwise(sys.orig_argv)):
    sys.excepthook = lambda kind, *what: None if kind is KeyboardInterrupt else sys.__excepthook__(kind, *what)

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
