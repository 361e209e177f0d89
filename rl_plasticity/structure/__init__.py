"""What feeds what in a network: traced symbolically, or watched in a real call."""

from rl_plasticity.structure.calling import Arguments, Example, arguments_of, aside, shadow, tensors_in, with_tensors
from rl_plasticity.structure.checking import moved_by, outputs, recyclable
from rl_plasticity.structure.reading import hidden_units, layers, read
from rl_plasticity.structure.structure import Structure, not_homogeneous
from rl_plasticity.structure.units import HiddenLayer, activations_of, recycled, shared_with

__all__ = [
    "Arguments",
    "Example",
    "HiddenLayer",
    "Structure",
    "activations_of",
    "arguments_of",
    "aside",
    "hidden_units",
    "layers",
    "moved_by",
    "not_homogeneous",
    "outputs",
    "read",
    "recyclable",
    "recycled",
    "shadow",
    "shared_with",
    "tensors_in",
    "with_tensors",
]


def __getattr__(name: str) -> None:
    now = {"HiddenUnits": "HiddenLayer", "untouched": "shadow", "renewed": "recycled", "some": "errors.in_short"}
    if name in now:
        raise ImportError(f"rl_plasticity.structure.{name} is {now[name]} since 0.3")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
