"""Weights computed from the trained tensors: weight standardization and bounded weight normalization.

Both are ``torch.nn.utils.parametrize`` parametrizations of the linear and convolution layers of a network, with or
without a runs axis. What is trained is the layer's ``parametrizations.weight.original``; that tensor is what
interventions change. Penalties of a weight (`spectral`) are of the computed one, those of all parameters (`l2`) of what
is trained; projections, which the computation would undo, refuse.
"""

from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

Kind = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d


class WeightStandardization(nn.Module):
    """W_i <- (W_i - mean(W_i)) / sqrt(var(W_i) + eps), mean and variance over the fan-in of unit i."""

    def __init__(self, dims: tuple[int, ...], eps: float) -> None:
        super().__init__()
        self.dims, self.eps = dims, eps

    def forward(self, weight: Tensor) -> Tensor:
        variance, mean = torch.var_mean(weight, self.dims, correction=0, keepdim=True)
        return (weight - mean) * (variance + self.eps).rsqrt()


class BoundedWeightNorm(nn.Module):
    """W_i <- rho * V_i / ||V_i||, with rho = ||V||_F / sqrt(out) of the weights at the start, one for each run."""

    rho: Tensor

    def __init__(self, dims: tuple[int, ...], weight: Tensor) -> None:
        super().__init__()
        self.dims = dims
        layer = (dims[0] - 1, *dims)  # the output units too
        units = weight.shape[layer[0]]
        self.register_buffer("rho", torch.linalg.vector_norm(weight.detach(), dim=layer, keepdim=True) / units**0.5)

    def forward(self, weight: Tensor) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(weight, dim=self.dims, keepdim=True)
        return self.rho * weight / length


def standardize_weights_(net: nn.Module, skip: Collection[str] = (), eps: float = 1e-5) -> None:
    """Weight standardization of every linear and convolution layer of `net`, in place.

    Source: Qiao et al. (2019), arXiv 1903.10520. The paper has it for convolutions, each with a norm layer behind; for
    that, name the linear layers in `skip`. A row of the result has length sqrt(fan_in), so the head is better skipped.

    Args:
        skip: names of layers to leave as they are.

    Raises:
        ValueError: no layer, a name in `skip` that is none, or a layer that is parametrized already.
    """
    _parametrize_(net, skip, lambda weight, dims: WeightStandardization(dims, eps))


def bound_weight_norms_(net: nn.Module, skip: Collection[str] = ()) -> None:
    """Bounded weight normalization of every linear and convolution layer of `net`, in place.

    Source: Hoffer et al. (2018), "Norm matters", arXiv 1803.01814: weight normalization with a fixed length.
    The network still has its initial weights: rho is taken now, and is a buffer of the network.

    Args:
        skip: names of layers to leave as they are.

    Raises:
        ValueError: no layer, a name in `skip` that is none, or a layer that is parametrized already.
    """
    _parametrize_(net, skip, lambda weight, dims: BoundedWeightNorm(dims, weight))


def _parametrize_(net: nn.Module, skip: Collection[str], make: Callable[[Tensor, tuple[int, ...]], nn.Module]) -> None:
    layers = {n: m for n, m in net.named_modules() if isinstance(m, Kind)}
    if unknown := set(skip) - set(layers):
        raise ValueError(f"skip must name linear or convolution layers ({', '.join(layers)}), got {sorted(unknown)}")
    chosen = {n: m for n, m in layers.items() if n not in skip}
    if not chosen:
        raise ValueError("there is no linear or convolution layer to parametrize")
    if taken := [n for n, m in chosen.items() if parametrize.is_parametrized(m, "weight")]:
        raise ValueError(f"the weights of {', '.join(taken)} are parametrized already")
    for layer in chosen.values():
        fan_in = 1 if isinstance(layer, nn.Linear) else 1 + len(layer.kernel_size)  # trailing axes of a weight
        dims = tuple(range(-fan_in, 0))
        parametrize.register_parametrization(layer, "weight", make(layer.weight, dims))
