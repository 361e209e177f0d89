"""Each layer's applied step over its weight: see `closer_look.EffectiveSteps`."""

from papers.closer_look import EffectiveSteps
from rl_plasticity import CALLBACKS

CALLBACKS["effective_steps"] = EffectiveSteps
