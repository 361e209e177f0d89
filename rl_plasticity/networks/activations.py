"""The non-linearities of the networks, by name."""

import math
from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from rl_plasticity.settings import Setting

Activation = Annotated[
    Literal["relu", "leaky_relu", "gelu", "silu", "elu", "tanh", "crelu"],
    Setting("the non-linearity of the hidden layers"),
]

# 1 / sqrt(E f(z)^2), z standard normal: with this gain a layer's outputs are as large as those of the layer before it.
# The others have ReLU's, sqrt(2). In a concatenation each part has ReLU's mean square of 1/2.
GAINS = {
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

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return torch.cat((input, -input), self.dim).relu()


def make_activation(name: str, dim: int = -1, runs: int | None = None) -> tuple[nn.Module, int]:
    """The activation module, and the number of features that it makes of each one on axis `dim`.

    Args:
        runs: number of runs of the network; None: it has no runs axis.
    """
    makers: dict[str, Callable[[], nn.Module]] = {
        "relu": nn.ReLU,
        "leaky_relu": nn.LeakyReLU,
        "gelu": nn.GELU,
        "silu": nn.SiLU,
        "elu": nn.ELU,
        "tanh": nn.Tanh,
        "crelu": partial(CReLU, dim),
    }
    return makers[name](), 2 if name == "crelu" else 1
