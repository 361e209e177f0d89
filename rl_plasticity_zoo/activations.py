"""Activations: deep Fourier features, smooth leaky ReLU, rational functions."""

import torch
from torch import Tensor, nn

from rl_plasticity.networks import CReLU
from rl_plasticity.structure.layer import per_run


class DeepFourier(CReLU):
    """Deep Fourier features, (sin x, cos x) along axis `dim`, which becomes twice as long.

    Where one of the two is flat the other is steep, so no unit stops learning. As with `CReLU`, each unit makes two
    outputs, and ``regularizers.hidden_units`` does not count it as an activation.

    Source: Lewandowski et al. (2024), "Plastic Learning with Deep Fourier Features", arXiv 2410.20634, abstract. The
    width of their layers and their initial weights are unchecked.
    """

    def forward(self, input: Tensor) -> Tensor:
        return torch.cat((input.sin(), input.cos()), self.dim)


class SmoothLeaky(nn.Module):
    """Smooth leaky ReLU: slope * x + (1 - slope) * x * sigmoid(5 x / 3), slope 0.1.

    Source: Lillo and Cheney (2025), "Activation Function Design Sustains Plasticity in Continual Learning", arXiv
    2509.22562, equation 1, as others quote it with the numbers of its Figure 5. Their text and their code could not be
    read, so what they tuned for each task is unchecked.
    """

    layer_role = "activation"
    gain = 1.5078786

    def __init__(self, slope: float = 0.1) -> None:
        super().__init__()
        self.slope = slope

    def forward(self, input: Tensor) -> Tensor:
        return self.slope * input + (1 - self.slope) * input * (input * (5 / 3)).sigmoid()


class Rational(nn.Module):
    """A learned quotient of polynomials that all units of a layer share and that starts near leaky ReLU::

        R(x) = (a_0 + a_1 x + ... + a_5 x^5) / (1 + |b_1 x| + ... + |b_4 x^4|)

    It starts within 0.04 of leaky ReLU between -3 and 3, and beyond 3 bends away from it. To regularizers, a and b are
    neither gain nor bias: methods of "all" parameters act on them, others leave them alone.

    Source: Molina et al. (2020), "Pade Activation Units", safe version ("A" in their code, whose table has these
    starting values, to five digits); in reinforcement learning Delfosse et al. (2021), arXiv 2102.09407.

    Args:
        runs: number of runs of the network; None: no runs axis.
    """

    layer_role = "activation"
    NUMERATOR = (0.02979, 0.61837, 2.32331, 3.05194, 1.48542, 0.25102)
    DENOMINATOR = (-1.14195, 4.39316, 0.87147, 0.34720)

    def __init__(self, runs: int | None = None) -> None:
        super().__init__()
        a, b = torch.tensor(self.NUMERATOR), torch.tensor(self.DENOMINATOR)
        self.numerator = nn.Parameter(a if runs is None else a.repeat(runs, 1))
        self.denominator = nn.Parameter(b if runs is None else b.repeat(runs, 1))

    def forward(self, input: Tensor) -> Tensor:
        above = _polynomial(self.numerator, input)
        below = input.abs() * _polynomial(self.denominator.abs(), input.abs())
        return above / (1 + below)


def _polynomial(coefficients: Tensor, x: Tensor) -> Tensor:
    """The sum of c_k x^k, c ``[*runs, n]``, by Horner's rule."""
    *lower, highest = (per_run(c, x) for c in coefficients.unbind(-1))
    total = highest.expand_as(x)
    for c in reversed(lower):
        total = torch.addcmul(c, total, x)
    return total
