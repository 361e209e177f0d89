"""Networks by name. `mlp`, `cnn` and `kumar_cnn` train many runs at once: every tensor has a leading runs axis."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

from torch import nn

from rl_plasticity.errors import choose
from rl_plasticity.networks.activations import ACTIVATIONS, Activation, CReLU, gain_of, make_activation
from rl_plasticity.networks.cnn import CNN, OneConvolution, StackedBatchNorm2d, StackedConv2d, kumar_cnn
from rl_plasticity.networks.injection import Injectable
from rl_plasticity.networks.mlp import MLP, Init, InjectedLayers, LayerNormFlag, StackedLayerNorm, StackedLinear
from rl_plasticity.plugins import Choices
from rl_plasticity.settings import Setting, check


def _mlp(
    shape: Sequence[int],
    num_classes: int,
    seeds: Sequence[int],
    widths: Annotated[Sequence[int], Setting("widths of the hidden layers", least=1)] = (100, 100),
    layer_norm: LayerNormFlag = False,
    activation: Activation = "relu",
    init: Init = "orthogonal",
    injected_layers: InjectedLayers = 0,
) -> MLP:
    """By default the MLP of Oh et al. (2024), Appendix D.1."""
    sizes = (math.prod(shape), *widths, num_classes)
    return MLP(sizes, seeds, layer_norm, activation=activation, init=init, injected_layers=injected_layers)


NETWORKS: Choices[Callable[..., nn.Module]] = Choices(
    "NETWORKS",
    {
        "mlp": _mlp,
        "cnn": partial(CNN, batch_norm=False),
        "cnn_bn": partial(CNN, batch_norm=True),
        "kumar_cnn": kumar_cnn,
    },
)
"""Choices of ``net=``, each called as ``make(shape of one input, num_classes, seeds, **settings)``.

Networks without a runs axis take one seed.
"""

PARAMETRIZATIONS: Choices[Callable[[nn.Module], None]] = Choices("PARAMETRIZATIONS", {"none": lambda net: None})
"""Choices of ``net.parametrization=``, each called with a network, whose weights it parametrizes in place."""


def make_network(
    name: str,
    shape: Sequence[int],
    num_classes: int,
    seeds: Sequence[int],
    parametrization: Annotated[
        str,
        PARAMETRIZATIONS,
        Setting(
            "parametrization of the convolutions before norm layers (bounded_weight_norm: of all layers but the heads)"
        ),
    ] = "none",
    **settings: Any,
) -> nn.Module:
    """The network called `name` in `NETWORKS`.

    Args:
        shape: shape of one input.
        num_classes: number of outputs.
        seeds: one seed for each run, for its initial weights.
        settings: settings of this network.

    Raises:
        SettingsError: an unknown name or setting (the message has the nearest valid one), a setting out of range, or a
            network that the parametrization is not for.
    """
    parametrize = choose(PARAMETRIZATIONS, parametrization, {}, "parametrization")
    make = choose(NETWORKS, name, settings, "network")
    check(NETWORKS[name], settings)
    net = make(shape, num_classes, seeds)
    parametrize(net)
    return net


__all__ = [
    "ACTIVATIONS",
    "CNN",
    "MLP",
    "NETWORKS",
    "PARAMETRIZATIONS",
    "Activation",
    "CReLU",
    "Init",
    "Injectable",
    "LayerNormFlag",
    "OneConvolution",
    "StackedBatchNorm2d",
    "StackedConv2d",
    "StackedLayerNorm",
    "StackedLinear",
    "gain_of",
    "kumar_cnn",
    "make_activation",
    "make_network",
]
