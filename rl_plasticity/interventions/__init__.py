"""Interventions: rare, discrete changes of the networks, listed by name in `INTERVENTIONS`."""

from typing import Any

from rl_plasticity.errors import choose
from rl_plasticity.interventions.base import Change, Intervention, Part, Restartable, Target
from rl_plasticity.interventions.injection import PlasticityInjection
from rl_plasticity.interventions.plain import PlainNet
from rl_plasticity.interventions.recycling import ReDo, ReGraMa, SelectiveReinit
from rl_plasticity.interventions.resets import (
    Dash,
    Fire,
    HeadReset,
    LearningRateDecay,
    OptimizerReset,
    PeriodicReset,
    ShrinkAndPerturb,
)
from rl_plasticity.plugins import Choices

INTERVENTIONS: Choices[type[Intervention]] = Choices(
    "INTERVENTIONS",
    {
        "periodic": PeriodicReset,
        "head": HeadReset,
        "optimizer": OptimizerReset,
        "shrink_perturb": ShrinkAndPerturb,
        "redo": ReDo,
        "regrama": ReGraMa,
        "selective_reinit": SelectiveReinit,
        "fire": Fire,
        "dash": Dash,
        "plasticity_injection": PlasticityInjection,
    },
)
"""Intervention classes by the name that ``reset=`` takes; each is called as ``kind(**settings)``."""


def make_intervention(name: str, **settings: Any) -> Intervention:
    """Create the intervention called `name`, with its settings by keyword.

    Raises:
        SettingsError: a name or setting is unknown (the nearest valid one is named), or a setting is out of range.
    """
    return choose(INTERVENTIONS, name, settings, "intervention")()


__all__ = [
    "INTERVENTIONS",
    "Change",
    "Dash",
    "Fire",
    "HeadReset",
    "Intervention",
    "LearningRateDecay",
    "OptimizerReset",
    "Part",
    "PeriodicReset",
    "PlainNet",
    "PlasticityInjection",
    "ReDo",
    "ReGraMa",
    "Restartable",
    "SelectiveReinit",
    "ShrinkAndPerturb",
    "Target",
    "make_intervention",
]
