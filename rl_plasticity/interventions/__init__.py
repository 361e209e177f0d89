"""Interventions: rare, discrete changes of the networks, found by name in `INTERVENTIONS`."""

import inspect
from typing import Any

from rl_plasticity.interventions.base import Agent, Inputs, Intervention
from rl_plasticity.interventions.recycling import ReDo, activations_of, eval_mode
from rl_plasticity.interventions.resets import HeadReset, LearningRateDecay, PeriodicReset, ShrinkAndPerturb
from rl_plasticity.regularizers.base import nearest

INTERVENTIONS: dict[str, type[Intervention]] = {
    "periodic": PeriodicReset,
    "head": HeadReset,
    "shrink_perturb": ShrinkAndPerturb,
    "redo": ReDo,
}


def make_intervention(name: str, **settings: Any) -> Intervention:
    """The intervention called `name`.

    Raises:
        ValueError: an unknown name or setting (the nearest valid one is named), or a setting out of range.
    """
    kind = INTERVENTIONS.get(name)
    if kind is None:
        raise ValueError(f"unknown intervention {name!r}{nearest(name, INTERVENTIONS)}")
    parameters = inspect.signature(kind.__init__).parameters
    valid = {n: p.default for n, p in parameters.items() if n != "self"}
    for key in settings:
        if key not in valid:
            raise ValueError(f"unknown setting {key!r} of intervention {name!r}{nearest(key, valid)}")
    return kind(**settings)


__all__ = [
    "INTERVENTIONS",
    "Agent",
    "HeadReset",
    "Inputs",
    "Intervention",
    "LearningRateDecay",
    "PeriodicReset",
    "ReDo",
    "ShrinkAndPerturb",
    "activations_of",
    "eval_mode",
    "make_intervention",
]
