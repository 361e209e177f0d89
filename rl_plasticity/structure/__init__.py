"""What feeds what in a network: traced symbolically, or watched in a real call."""

from rl_plasticity.structure.checking import outputs, recyclable
from rl_plasticity.structure.reading import Structure, hidden_units, layers, not_homogeneous, read, some
from rl_plasticity.structure.units import HiddenUnits, activations_of, renewed
from rl_plasticity.structure.watch import (
    Arguments,
    Example,
    arguments_of,
    shadow,
    tensors_in,
    with_tensors,
)

__all__ = [
    "Arguments",
    "Example",
    "HiddenUnits",
    "Structure",
    "activations_of",
    "arguments_of",
    "hidden_units",
    "layers",
    "not_homogeneous",
    "outputs",
    "read",
    "recyclable",
    "renewed",
    "shadow",
    "some",
    "tensors_in",
    "with_tensors",
]
