"""The non-linearities of the networks, by name."""

import inspect
import math
from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor, nn

from rl_plasticity.plugins import Choices
from rl_plasticity.settings import Setting

_GAINS = {
    "leaky_relu": math.sqrt(2 / (1 + 0.01**2)),
    "gelu": 1.5335304,
    "silu": 1.6765325,
    "elu": 1.2451983,
    "tanh": 1.5925374,
}


class CReLU(nn.Module):
    """Concatenated ReLU, (relu(x), relu(-x)) along axis `dim`, which becomes twice as long.

    Each unit makes two outputs. So ``regularizers.hidden_units`` does not count it as an activation: ReDo would match
    half of the outputs to the wrong units.

    Source: Shang et al. (2016), Definition 2.1; against plasticity loss in Abbas et al. (2023).
    """

    outputs_per_unit = 2

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return torch.cat((input, -input), self.dim).relu()


ACTIVATIONS: Choices[Callable[..., nn.Module]] = Choices(
    "ACTIVATIONS",
    {
        "relu": nn.ReLU,
        "leaky_relu": nn.LeakyReLU,
        "gelu": nn.GELU,
        "silu": nn.SiLU,
        "elu": nn.ELU,
        "tanh": nn.Tanh,
        "crelu": CReLU,
    },
)
"""Choices of ``activation=``: classes of modules, called with those of `dim` and `runs` that they take.

One whose output is longer on axis `dim` says how many times in ``outputs_per_unit``, and one with another gain than
ReLU's in ``gain``.
"""

Activation = Annotated[str, ACTIVATIONS, Setting("activation function of the hidden layers")]
"""The type of a network's setting ``activation``: a name in `ACTIVATIONS`."""


def gain_of(name: str) -> float:
    """1 / sqrt(E f(z)^2), z standard normal: with this gain a layer's outputs are as large as those of the one before.

    Without a number of its own, an activation has ReLU's, sqrt(2). In a concatenation each part has ReLU's mean square
    of 1/2.
    """
    gain: float = getattr(ACTIVATIONS[name], "gain", _GAINS.get(name, math.sqrt(2)))
    return gain


def make_activation(name: str, dim: int = -1, runs: int | None = None) -> tuple[nn.Module, int]:
    """The activation module, and the number of features that it makes of each one on axis `dim`.

    Args:
        runs: number of runs of the network; None: it has no runs axis.
    """
    make = ACTIVATIONS[name]
    takes = inspect.signature(make).parameters
    made = make(**{name: value for name, value in (("dim", dim), ("runs", runs)) if name in takes})
    return made, getattr(made, "outputs_per_unit", 1)
