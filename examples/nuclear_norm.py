"""A regularizer as a plug: ``cd examples; python -m rl_plasticity.train plugins=[nuclear_norm] reg=nuclear_norm``."""

from typing import Annotated

import torch
from torch import Tensor, nn

from rl_plasticity import REGULARIZERS, Regularizer, Setting
from rl_plasticity.settings import checked


class NuclearNorm(Regularizer):
    """coef * sum over layers of the nuclear norm (the sum of singular values) of the weight matrix.

    Args:
        head: whether the output layer counts.
    """

    @checked  # refuses what is of another type or out of range
    def __init__(
        self,
        net: nn.Module,
        coef: Annotated[float | Tensor, Setting("strength", least=0)] = 1e-4,
        head: Annotated[bool, Setting("the output layer too")] = True,
    ) -> None:
        super().__init__(net, coef)  # finds self.layers and self.runs, makes self.coef a tensor
        self.matrices = [y for y in self.layers if y.matrix(net) is not None and (head or not y.head)]
        self._require(self.matrices, "weight matrix")  # nothing to act on is an error

    def penalty(self, net: nn.Module) -> Tensor:  # [*runs]
        norms = [torch.linalg.matrix_norm(layer.matrix(net), ord="nuc") for layer in self.matrices]
        return self.coef * torch.stack(norms).sum(0)


REGULARIZERS["nuclear_norm"] = NuclearNorm
