"""Plugin that logs the norm of each layer's applied step over its weight's: see `closer_look.EffectiveSteps`."""

from papers.closer_look import EffectiveSteps
from rl_plasticity import CALLBACKS

CALLBACKS["effective_steps"] = EffectiveSteps
