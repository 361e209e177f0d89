"""Measures of weights, ``[*runs, ...] -> [*runs]``, in the dtype of the input.

A layer's weight is a matrix ``[*runs, out, fan_in]``; a convolution kernel is flattened to out x (in * kh * kw).
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from rl_plasticity.metrics.spectra import singular_values


@torch.no_grad()
def weight_norm(parameters: Iterable[Tensor], runs: tuple[int, ...] = ()) -> Tensor:
    """The Euclidean norm of all parameters, or gradients, of each run together, sqrt(sum p^2), ``[*runs]``."""
    squares = [p.reshape(*runs, -1).square().sum(-1) for p in parameters]
    return torch.stack(squares).sum(0).sqrt()


def distance(parameters: Iterable[Tensor], initial: Iterable[Tensor], runs: tuple[int, ...] = ()) -> Tensor:
    """The Euclidean distance from the initial parameters, sqrt(sum (p - p0)^2), ``[*runs]``.

    Variants: divided by the norm of p0, or by the square root of the number of parameters.

    Raises:
        ValueError: lists of different length.
    """
    return weight_norm([p.detach() - p0.detach() for p, p0 in zip(parameters, initial, strict=True)], runs)


def moved_fraction(parameters: Iterable[Tensor], earlier: Iterable[Tensor], runs: tuple[int, ...] = ()) -> Tensor:
    """The share of all entries of the parameters that differ from their earlier values, ``[*runs]``.

    An entry that does not differ was frozen, got no gradient, or took steps that its number format rounds away.

    Raises:
        ValueError: lists of different length.
    """
    moved = [(p != p0).reshape(*runs, -1) for p, p0 in zip(parameters, earlier, strict=True)]
    return torch.cat(moved, -1).float().mean(-1)


@torch.no_grad()
def largest_sigma1(matrices: Iterable[Tensor]) -> Tensor:
    """The largest singular value of any of the matrices ``[*runs, out, fan_in]``, ``[*runs]``."""
    return torch.stack([sigma1(m) for m in matrices]).amax(0)


@torch.no_grad()
def sigma1(matrix: Tensor) -> Tensor:
    """The largest singular value (spectral norm) of ``[*runs, out, fan_in]``, ``[*runs]``; by decomposition."""
    return singular_values(matrix)[..., 0]


@torch.no_grad()
def frobenius_norm(matrix: Tensor) -> Tensor:
    """sqrt(sum of squares) of ``[*runs, out, fan_in]``, ``[*runs]``."""
    norm: Tensor = torch.linalg.matrix_norm(matrix)
    return norm
