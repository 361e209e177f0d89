"""Measures of a spectrum: of singular values ``[*runs, k]``, so that one decomposition serves all, ``-> [*runs]``.

The matrix may be a layer's weight, a batch of features, or per-example gradients. Results have the dtype of the input;
singular values below about 1e-7 of the largest are rounding noise.
"""

import torch
from torch import Tensor


@torch.no_grad()
def singular_values(matrix: Tensor) -> Tensor:
    """The singular values of ``[*runs, out, fan_in]`` in descending order, ``[*runs, min(out, fan_in)]``.

    In float32 they are square roots of the eigenvalues of the smaller Gram matrix in float64: more exact than a
    float32 decomposition, and for a wide matrix several times as fast. Float64 is decomposed.
    """
    s: Tensor
    if matrix.dtype == torch.float64:
        s = torch.linalg.svdvals(matrix)
        return s
    exact = matrix.double()
    gram = exact @ exact.mT if matrix.shape[-2] <= matrix.shape[-1] else exact.mT @ exact
    s = torch.linalg.eigvalsh(gram).flip(-1).clamp(min=0).sqrt()
    return s.to(matrix.dtype)


def condition_number(s: Tensor) -> Tensor:
    """sigma_1 / sigma_k, of the largest and the smallest singular value; infinite where the smallest is only rounding.

    A matrix of zeros counts as singular: infinite. Source: Lewandowski et al. (2024), section 3.3. Variant: over the
    smallest singular value above a tolerance, which is always finite and jumps with the tolerance.
    """
    largest, smallest = s[..., 0], s[..., -1]
    return torch.where(smallest > torch.finfo(s.dtype).eps * largest, largest / smallest, torch.inf)


def stable_rank(s: Tensor) -> Tensor:
    """||A||_F^2 / ||A||_2^2 = sum_i sigma_i^2 / sigma_1^2, between 1 and the rank; 0 for a matrix of zeros.

    Source: Rudelson and Vershynin (2007). Some codebases call `srank` or the nuclear variant sum_i sigma_i / sigma_1
    "stable rank".
    """
    relative = s / s[..., :1]  # before squaring, which would underflow
    return torch.where(s[..., 0] > 0, relative.square().sum(-1), 0)


def effective_rank(s: Tensor) -> Tensor:
    """exp(-sum_i p_i log p_i) with p_i = sigma_i / sum_j sigma_j, between 1 and the rank; 0 for a matrix of zeros.

    Source: Roy and Vetterli (2007), which Lewandowski et al. (2024), section 3.3, refer to; their printed formula
    lacks the sign and the exponential. Variants: the entropy without exp; p_i from sigma_i^2; `srank` is called
    effective rank too.
    """
    total = s.sum(-1)
    p = s / total.unsqueeze(-1)
    return torch.where(total > 0, torch.special.entr(p).sum(-1).exp(), 0)


def srank(s: Tensor, delta: float = 0.01) -> Tensor:
    """The smallest k with sum_{i<=k} sigma_i / sum_i sigma_i >= 1 - delta; 0 for a matrix of zeros.

    A whole number in the dtype of `s`, so that it can be averaged. Source: Kumar et al. (2021), "Implicit
    Under-Parameterization Inhibits Data-Efficient Deep Reinforcement Learning", on the features of a batch. Variants:
    codebases that count the k for which the sum stays below 1 - delta are lower by one; others square sigma_i (PCA).

    Raises:
        ValueError: delta outside [0, 1).
    """
    if not 0 <= delta < 1:
        raise ValueError(f"delta must be in [0, 1), got {delta}")
    sums = s.cumsum(-1)
    total = sums[..., -1:]
    k = (sums < (1 - delta) * total).sum(-1) + 1
    return torch.where(total.squeeze(-1) > 0, k, 0).to(s.dtype)
