"""Measures of weights for figures of the papers, ``[*runs, ...] -> [*runs]``.

A layer's weight is a matrix ``[*runs, out, fan_in]``; a convolution kernel is flattened to out x (in * kh * kw).
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor


@torch.no_grad()
def lpq_norm(matrix: Tensor, p: float = 2.0, q: float = 2.0) -> Tensor:
    """(sum_i (sum_j |W_ij|^p)^(q/p))^(1/q), first within a unit's row: ``[*runs, out, fan_in] -> [*runs]``.

    Source: Neyshabur et al. (2015); Oh et al. (2024), equation 16. p = q is the entry-wise l_p norm. Not the mixed
    "L_{p,q} norm" of some texts, which sums within columns first.
    """
    rows = torch.linalg.vector_norm(matrix, ord=p, dim=-1)
    norm: Tensor = torch.linalg.vector_norm(rows, ord=q, dim=-1)
    return norm


@torch.no_grad()
def balancedness(weights: Sequence[Tensor], p: float = 2.0, q: float = 2.0, updates: int = 200) -> Tensor:
    """The network's l_{p,q} norm over the smallest one among rescalings with the same function, ``[*runs]``, >= 1.

    ||W||_{p,q} = (sum_l sum_i (sum_j |W_l,ij|^p)^(q/p))^(1/q) over all layers l and units i. 1 is balanced. Source:
    Oh et al. (2024), Appendix C.1; Saul (2023), "Weight-balancing fixes and flows for deep learning", Algorithm 1.
    Variants: the inverse ratio. Arguments, limits and errors as for `rebalanced`.
    """

    def norm(layers: Sequence[Tensor]) -> Tensor:
        total: Tensor = torch.linalg.vector_norm(torch.stack([lpq_norm(w, p, q) for w in layers]), ord=q, dim=0)
        return total

    smallest = norm(rebalanced(weights, p=p, q=q, updates=updates)[0])
    current = norm(weights)
    return torch.where(smallest > 0, current / smallest, torch.ones_like(current))


@torch.no_grad()
def rebalanced(
    weights: Sequence[Tensor], biases: Sequence[Tensor] = (), p: float = 2.0, q: float = 2.0, updates: int = 200
) -> tuple[list[Tensor], list[Tensor]]:
    """The weights and biases of the same function with the smallest l_{p,q} norm of the weights.

    In a network whose activations are positively homogeneous (ReLU, leaky ReLU, max-pooling, linear) hidden unit i's
    incoming weights and bias can be multiplied by a_i > 0 and its outgoing weights divided by it. The norm is convex
    in log a. Each update multiplies every a_i at once by (out_i / in_i)^(1 / (4 max(p, q))), where in_i is the unit's
    own term of the norm to the q-th power and out_i the share of the next layer's terms that its outgoing weights
    have; both are equal at the minimum. Each update lowers the norm. Source: Saul (2023), Algorithm 1.

    Deviations: biases are rescaled but do not count in the norm; a fixed number of updates (200 bring networks with
    three hidden layers of 256 to 1e-6 of the minimum; much deeper ones need more); a unit without any incoming or any
    outgoing weight keeps its a_i (the infimum would remove it). Not for networks with norm layers: their symmetries
    are others.

    Args:
        weights: ``[*runs, out, fan_in]`` of consecutive layers. fan_in may be a multiple of the units before (a
            convolution, or a linear layer behind flattened maps): neighbouring columns belong to one unit.
        biases: ``[*runs, out]`` of the same layers, or none.

    Raises:
        ValueError: p or q not positive and finite; layers that do not follow each other.
    """
    if not (0 < p < math.inf and 0 < q < math.inf):
        raise ValueError(f"p and q must be positive and finite, got p={p}, q={q}")
    for lower, upper in pairwise(weights):
        if upper.shape[-1] % lower.shape[-2]:
            raise ValueError(
                f"a layer of {lower.shape[-2]} units cannot be followed by one of {upper.shape[-1]} inputs"
            )
    powers = [w.abs().pow(p) for w in weights]
    # log a of the inputs, of each hidden layer, of the outputs; those of inputs and outputs stay zero.
    logs = [torch.zeros_like(weights[0][..., 0, :]), *(torch.zeros_like(w[..., 0]) for w in weights)]

    def columns(log: Tensor, layer: Tensor) -> Tensor:  # one value for each column of the layer that the units feed
        return log.repeat_interleave(layer.shape[-1] // log.shape[-1], dim=-1)

    for _ in range(updates):
        incoming, outgoing = [], []
        for layer, before, after in zip(powers, logs[:-1], logs[1:], strict=True):
            shrink = (-p * columns(before, layer)).exp()
            rows = (p * after).exp() * (layer @ shrink.unsqueeze(-1)).squeeze(-1)  # sum_j |a_i W_ij / a_j|^p
            slope = torch.where(rows > 0, rows.pow(q / p - 1), torch.zeros_like(rows)) * (p * after).exp()
            share = shrink * (layer.mT @ slope.unsqueeze(-1)).squeeze(-1)
            incoming.append(rows.pow(q / p))
            outgoing.append(torch.unflatten(share, -1, (before.shape[-1], -1)).sum(-1))
        for i, (into, out) in enumerate(zip(incoming[:-1], outgoing[1:], strict=True), start=1):
            step = (out / into).log() / (4 * max(p, q))
            logs[i] = logs[i] + torch.where((into > 0) & (out > 0), step, torch.zeros_like(step))
    scaled = [
        w * (after.unsqueeze(-1) - columns(before, w).unsqueeze(-2)).exp()
        for w, before, after in zip(weights, logs[:-1], logs[1:], strict=True)
    ]
    return scaled, [b * log.exp() for b, log in zip(biases, logs[1:], strict=bool(biases))]


@torch.no_grad()
def generalized_gaussian_shape(values: Tensor, skip_zeros: bool = False) -> Tensor:
    """The shape beta of a generalized Gaussian around 0 fitted to ``[*runs, n]``, ``[*runs]``, between 0.1 and 20.

    Density proportional to exp(-|x / alpha|^beta): 2 is a Gaussian, 1 a Laplacian, less has heavier tails (sparser
    weights), more approaches a uniform distribution. Source: Liu et al. (2021), section V-A and Figures 4 and 5.

    By moment matching (Mallat 1989; Sharifi and Leon-Garcia 1995): beta solves
    (mean |x|)^2 / mean x^2 = Gamma(2/beta)^2 / (Gamma(1/beta) Gamma(3/beta)), which grows with beta; 40 bisections
    of log beta. WRS does not say how it fits; maximum likelihood (scipy.stats.gennorm) is the other usual choice and
    differs by its sampling error. The mean is taken to be zero, not estimated. All zeros: 0.1, the sparsest.

    Args:
        skip_zeros: leave out values that are exactly 0, as `project_to_input_span` puts outside the span.
    """
    size = values.abs()
    size = size / size.amax(-1, keepdim=True).clamp(
        min=torch.finfo(size.dtype).tiny
    )  # squares neither over- nor underflow
    count = (size > 0).sum(-1).clamp(min=1) if skip_zeros else size.shape[-1]
    first, second = size.sum(-1) / count, size.square().sum(-1) / count
    ratio = torch.where(second > 0, first.square() / second, torch.zeros_like(first))
    low, high = torch.full_like(ratio, math.log(0.1)), torch.full_like(ratio, math.log(20.0))
    for _ in range(40):
        middle = (low + high) / 2
        inverse = (-middle).exp()
        at_middle = (2 * torch.lgamma(2 * inverse) - torch.lgamma(inverse) - torch.lgamma(3 * inverse)).exp()
        low, high = torch.where(at_middle < ratio, middle, low), torch.where(at_middle < ratio, high, middle)
    return ((low + high) / 2).exp()


@torch.no_grad()
def project_to_input_span(matrix: Tensor, inputs: Tensor, rtol: float = 1e-5) -> Tensor:
    """`project_to_span` of the covariance of a layer's inputs.

    Args:
        matrix: ``[*runs, out, fan_in]``.
        inputs: of this layer, ``[*runs, n, fan_in]``; for a convolution its patches (``torch.nn.functional.unfold``).
    """
    centred = inputs - inputs.mean(-2, keepdim=True)
    return project_to_span(matrix, centred.mT @ centred / inputs.shape[-2], rtol)


@torch.no_grad()
def project_to_span(matrix: Tensor, covariance: Tensor, rtol: float = 1e-5) -> Tensor:
    """W U, the weights in the eigenbasis of their inputs' covariance, strongest direction first: same shape as W.

    The columns of U are the eigenvectors of Sigma = mean h h^T - mean h (mean h)^T (Liu et al. 2021, equation 12).
    Coordinates in directions that the inputs do not span (eigenvalue at most `rtol` of the largest) are zero: there
    the basis, and so the coordinates, would be arbitrary. The paper does not say what it does with them.

    Args:
        matrix: ``[*runs, out, fan_in]``.
        covariance: of this layer's inputs, ``[*runs, fan_in, fan_in]``.
    """
    # In float64: float32's decomposition does not converge where inputs span little of a large space.
    eigenvalues, directions = torch.linalg.eigh(covariance.double())  # ascending
    spanned = eigenvalues > rtol * eigenvalues[..., -1:]
    coordinates: Tensor = matrix @ directions.to(matrix.dtype) * spanned.unsqueeze(-2)
    return coordinates.flip(-1)
