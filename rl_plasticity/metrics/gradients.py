"""Measures of gradients, ``-> [*runs]``, and the spectrum of per-example gradients, ``-> [*runs, n]``."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

from rl_plasticity.errors import nearest
from rl_plasticity.metrics.features import dormant_fraction


def effective_learning_rate(gradient_norm: Tensor, weight_norm: Tensor) -> Tensor:
    """||g|| / ||w||, ``[*runs]``: how far, relative to its size, a step of learning rate 1 moves a weight; 0 / 0 is 0.

    Source: Liu et al. (2021), section III-B and Figure 2a, "effective gradient norm", of one layer. With Adam they
    take for g the gradient normalized by the second moment, as Adam applies it, not the raw one: the caller chooses.
    Variants: times the learning rate; lr / ||w||^2 for weights before a norm layer (van Laarhoven 2017).
    """
    return torch.where(gradient_norm > 0, gradient_norm / weight_norm, 0)


def gradient_dormant_fraction(gradient: Tensor, threshold: float = 0.0) -> Tensor:
    """The fraction of hidden units that hardly get a gradient, ``[*runs, units, fan_in] -> [*runs]``.

    These have score_i <= threshold, with score_i = mean_j |g_ij| / (mean over the layer of that), where g_ij is the
    gradient of the loss with respect to the unit's incoming weight j. In a layer without any gradient all units count.
    A dead ReLU unit gets no gradient. Neither does a unit that nothing reads, and which need not be dormant.

    Source: GraMa of Liu et al. (2025), "Measure gradients, not activations!", arXiv 2505.24061, as in a copy of their
    code (github.com/rippl-svg/grad-based-plasticity-metrics, utils/ReDo.py), which counts output units too.
    """
    return dormant_fraction(gradient.mT, threshold)


@torch.no_grad()  # no graph of the other parameters is kept; torch.func.grad works inside nevertheless
def gradient_spectrum(
    net: nn.Module,
    names: Sequence[str],
    loss: Callable[..., Tensor],
    inputs: tuple[Tensor, ...],
    targets: tuple[Tensor, ...],
    runs: tuple[int, ...] = (),
    named: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Singular values of the per-example gradients G = [g_1, ..., g_n] of each parameter, name -> ``[*runs, n]``.

    In descending order; `condition_number` and `effective_rank` of them are the effective gradient diversity of
    Lewandowski et al. (2024), section 3.3. One parameter at a time: a layer's weight and bias are two matrices (the
    paper does not say whether it joins them). Variant: gradient diversity as sum ||g_i||^2 / ||sum g_i||^2 (Yin et al.
    2018).

    The values are square roots of the eigenvalues of the n x n Gram matrix of the gradients. All gradients are held at
    once, runs * n * elements numbers. Products are in float64, because a Gram matrix squares the condition number.
    Values below 1e-7 of the largest are rounding and are set to zero, among them all beyond the number of the
    parameter's elements (then the condition number is infinite).

    The network is used in evaluation mode, as a copy: neither BatchNorm's statistics nor any gradient change.

    Args:
        net: called as ``net(*inputs, **named)``.
        names: of parameters, as in ``net.named_parameters()``.
        loss: called as ``loss(output, *targets)`` with what `net` returns for a batch of one example
            ``[*runs, 1, ...]``, and its targets; returns ``[*runs]``. So the training loss, a mean over the batch, can
            be given as it is.
        inputs, targets, named: tensors ``[*runs, n, ...]``.
        runs: the leading axes of inputs, targets and parameters; ``()`` for an ordinary network.

    Raises:
        ValueError: a name that no parameter has (the nearest one is named).
    """
    parameters = {name: p.detach() for name, p in net.named_parameters(remove_duplicate=False)}
    for name in names:
        if name not in parameters:
            raise ValueError(f"no parameter is called {name!r}{nearest(name, parameters)}")
    copied, k = copy.deepcopy(net).eval(), len(runs)

    def total(chosen: dict[str, Tensor], *example: Any) -> Tensor:
        x, by_name, y = tree_map(lambda t: t.unsqueeze(k), example)
        output: Any = functional_call(copied, chosen, x, by_name)
        return loss(output, *y).sum()  # runs share nothing: the gradient of the sum is that of each run

    examples = tree_map(Tensor.detach, (inputs, dict(named or {}), targets))
    with sdpa_kernel(SDPBackend.MATH):  # vmap has no rule for the fused attention kernels
        gradients = vmap(grad(total), in_dims=(None, k, k, k))({name: parameters[name] for name in names}, *examples)
    spectra = {}
    for name, gradient in gradients.items():  # [n, *runs, ...]
        rows = gradient.movedim(0, k).reshape(*runs, len(gradient), -1).double()
        spectra[name] = _roots(rows @ rows.mT).to(gradient.dtype)
    return spectra


def _roots(gram: Tensor) -> Tensor:
    """Singular values of G from G G^T ``[*runs, n, n]``, descending, rounding noise set to zero."""
    eigenvalues = torch.linalg.eigvalsh(gram).flip(-1)
    noise = 1e-14 * eigenvalues[..., :1].clamp(min=0)
    return torch.where(eigenvalues > noise, eigenvalues, 0).sqrt()
