"""Weights computed from the trained tensors: weight standardization and bounded weight normalization.

Both are ``torch.nn.utils.parametrize`` parametrizations of linear and convolution layers, with or without a runs axis.
The dataflow decides which layers. The trained tensor is the layer's ``parametrizations.weight.original``, and
interventions change it. Penalties of a weight (`spectral`) act on the computed weight, penalties of all parameters
(`l2`) on the trained tensor. Projections refuse such layers, because the computation would undo them.
"""

from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from rl_plasticity import SettingsError
from rl_plasticity.networks import Injectable
from rl_plasticity.structure import Structure, read

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


def standardize_weights_(net: nn.Module, only: Collection[str] | None = None, eps: float = 1e-5) -> None:
    """Weight standardization, in place, of the convolutions of `net` that a norm layer follows.

    Source: Qiao et al. (2019), arXiv 1903.10520, who have it for convolutions, each with a norm layer behind. A row of
    the result has length sqrt(fan_in), which only a norm layer takes out again: elsewhere each layer would multiply the
    scale by that much. A convolution whose output is added to something before it is normalized is left alone.

    Args:
        only: names of the layers to standardize instead, linear ones too.

    Raises:
        SettingsError: there is no such layer, or there is room for an injection.
        ValueError: it is not known which layers a norm layer follows, a name in `only` that is none, or a layer that is
            parametrized already.
    """
    if only is None:
        only = [layer.name for layer in _known(net).before_norms if layer.role == "conv"]
    what = "weight standardization is for convolutions that a norm layer follows"
    _parametrize_(net, only, lambda weight, dims: WeightStandardization(dims, eps), what)


def bound_weight_norms_(net: nn.Module, only: Collection[str] | None = None) -> None:
    """Bounded weight normalization, in place, of the linear and convolution layers of `net` but the output layers.

    Source: Hoffer et al. (2018), "Norm matters", arXiv 1803.01814: weight normalization with a fixed length. Their
    networks, as the ResNet18-variant of Liu et al. (2021), Fig. 6b, have one linear layer, the last, and it stays as it
    is; hidden linear layers too are ours. rho is taken now, and is a buffer of the network: lengths stay about what
    they are at the start, with or without a norm layer behind.

    Args:
        only: names of the layers instead.

    Raises:
        SettingsError: there is no such layer, or there is room for an injection.
        ValueError: it is not known which are the output layers, a name in `only` that is none, or a layer that is
            parametrized already.
    """
    if only is None:
        hidden = [y for y in _known(net).layers if not y.head]
        modules = dict(net.named_modules())  # a bare parameter is a layer too
        only = [y.name for y in hidden if isinstance(modules.get(y.name), Kind)]
    what = "bounded weight normalization is for hidden layers"
    _parametrize_(net, only, lambda weight, dims: BoundedWeightNorm(dims, weight), what)


def _known(net: nn.Module) -> Structure:
    structure = read(net)
    if structure.unknown is not None:
        raise ValueError(f"which layers are meant is not known ({structure.unknown}): name them in only=[...]")
    return structure


def _parametrize_(
    net: nn.Module, only: Collection[str], make: Callable[[Tensor, tuple[int, ...]], nn.Module], what: str
) -> None:
    if not only:
        raise SettingsError(f"{what}, and the network has none")
    if any(isinstance(module, Injectable) for module in net.modules()):
        raise SettingsError(
            "parametrization and injected_layers do not go together: the copies of an injection hold plain weights"
        )
    layers = {name: module for name, module in net.named_modules() if isinstance(module, Kind)}
    if unknown := set(only) - set(layers):
        raise ValueError(f"only must name linear or convolution layers ({', '.join(layers)}), got {sorted(unknown)}")
    chosen = {n: m for n, m in layers.items() if n in only}
    if taken := [n for n, m in chosen.items() if parametrize.is_parametrized(m, "weight")]:
        raise ValueError(f"the weights of {', '.join(taken)} are parametrized already")
    for layer in chosen.values():
        fan_in = 1 if isinstance(layer, nn.Linear) else 1 + len(layer.kernel_size)  # trailing axes of a weight
        dims = tuple(range(-fan_in, 0))
        parametrize.register_parametrization(layer, "weight", make(layer.weight, dims))
