"""Norms that torch does not have: of many runs at once, mean-only, of observations, of rewards; and dropout."""


import torch
from torch import Tensor, nn


class MeanOnlyBatchNorm2d(nn.Module):
    """y = x - mean(x) + shift: ``[batch, n, h, w] -> [batch, n, h, w]``, each channel's mean over batch and pixels.

    In evaluation mode the running mean, as in ``nn.BatchNorm2d``. It has no gain and lets the scale through, so to
    regularizers it is no norm layer but a shift: SWR scales it as a bias, `spectral` draws it to zero, and what
    rescales single units before it, as WRS, changes the function.

    Source: Salimans and Kingma (2016), arXiv 1602.07868, section 4; with bounded weight normalization in Hoffer et al.
    (2018) and in Liu et al. (2021), Fig. 6b.
    """

    layer_role = "shift"
    running_mean: Tensor

    def __init__(self, features: int, momentum: float = 0.1) -> None:
        super().__init__()
        self.momentum = momentum
        self.bias = nn.Parameter(torch.empty(features))
        self.register_buffer("running_mean", torch.empty(features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Shift and running mean are zero."""
        nn.init.zeros_(self.bias)
        self.running_mean.zero_()

    def forward(self, input: Tensor) -> Tensor:
        mean = self.running_mean
        if self.training:
            mean = input.mean((0, 2, 3))
            self.running_mean.lerp_(mean.detach(), self.momentum)
        return input - (mean - self.bias)[:, None, None]
