"""Measures of weights, ``[*runs, ...] -> [*runs]``."""

from collections.abc import Iterable

import torch
from torch import Tensor


def weight_norm(parameters: Iterable[Tensor], runs: tuple[int, ...] = ()) -> Tensor:
    """The Euclidean norm of all parameters of each run together, sqrt(sum p^2), ``[*runs]``."""
    squares = [p.detach().reshape(*runs, -1).square().sum(-1) for p in parameters]
    return torch.stack(squares).sum(0).sqrt()


def largest_sigma1(matrices: Iterable[Tensor]) -> Tensor:
    """The largest singular value of any of the matrices ``[*runs, out, fan_in]``, ``[*runs]``."""
    return torch.stack([torch.linalg.matrix_norm(m.detach(), ord=2) for m in matrices]).amax(0)
