"""The non-linearities of `mlp` and `cnn`, by name."""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

Activation = Literal["relu", "leaky_relu", "crelu"]


class CReLU(nn.Module):
    """Concatenated ReLU, (relu(x), relu(-x)) along axis `dim`, which becomes twice as long.

    Each unit makes two outputs, so it is deliberately no activation module to ``regularizers.hidden_units``: ReDo would
    match half of the outputs to the wrong units.

    Source: Shang et al. (2016), Definition 2.1; against plasticity loss in Abbas et al. (2023).
    """

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return torch.cat((input, -input), self.dim).relu()


def make_activation(name: Activation, dim: int = -1) -> tuple[nn.Module, int]:
    """The activation module and how many features it makes of each one on axis `dim`.

    Raises:
        ValueError: an unknown name.
    """
    if name not in get_args(Activation):
        raise ValueError(f"activation must be one of {', '.join(get_args(Activation))}, got {name!r}")
    if name == "crelu":
        return CReLU(dim), 2
    return (nn.ReLU() if name == "relu" else nn.LeakyReLU()), 1
