"""A regularizer as a plugin: ``cd examples; python -m rl_plasticity.train plugins=[nuclear_norm] reg=nuclear_norm``."""

from typing import Annotated

import torch
from torch import Tensor, nn

from rl_plasticity import REGULARIZERS, Regularizer, Setting
from rl_plasticity.settings import checked
from rl_plasticity.structure.layer import Layer


class NuclearNorm(Regularizer):
    """Nuclear norm penalty: coef * sum over layers of the sum of the singular values of the weight matrix.

    Args:
        head: whether to include the output layer.
    """

    @checked  # rejects values of a wrong type or out of range
    def __init__(
        self,
        net: nn.Module,
        coef: Annotated[float | Tensor, Setting("strength", least=0)] = 1e-4,
        head: Annotated[bool, Setting("whether to include the output layer")] = True,
    ) -> None:
        super().__init__(net, coef)  # sets self.layers, self.runs and the tensor self.coef
        matrices = [y for y in self.layers if y.matrix(net) is not None and (head or not y.head)]
        self._act_on(net, matrices, "weight matrix")  # raises ValueError if there is none

    def term(self, layer: Layer, net: nn.Module) -> Tensor | None:  # [*runs]
        matrix = layer.matrix(net)  # [*runs, out, fan_in], None while it is frozen
        return None if matrix is None else torch.linalg.matrix_norm(matrix, ord="nuc")


REGULARIZERS["nuclear_norm"] = NuclearNorm
