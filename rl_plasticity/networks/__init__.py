"""Networks by name. `mlp`, `cnn` and `kumar_cnn` train many runs at once: every tensor has a leading runs axis."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, Literal

import torch
from torch import nn

from rl_plasticity.errors import Choices, SettingsError, choose, nearest
from rl_plasticity.networks.activations import Activation, CReLU, DeepFourier, Rational, SmoothLeaky
from rl_plasticity.networks.cnn import CNN, StackedBatchNorm2d, StackedConv2d, kumar_cnn
from rl_plasticity.networks.injection import Injectable
from rl_plasticity.networks.mlp import MLP, Init, InjectedLayers, LayerNormFlag, StackedLayerNorm, StackedLinear
from rl_plasticity.networks.norms import MeanOnlyBatchNorm2d
from rl_plasticity.networks.parametrizations import bound_weight_norms_, standardize_weights_
from rl_plasticity.networks.resnet import Norm, resnet18, wrn28_10
from rl_plasticity.networks.vgg import vgg16
from rl_plasticity.networks.vit import vit_tiny
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


def _vgg16(
    shape: Sequence[int],
    num_classes: int,
    seeds: Sequence[int],
    batch_norm: bool,
    hidden_layers: Annotated[
        int, Setting("fully connected layers of 4096 units before the head; 0 for the WRS paper's", least=0, most=2)
    ] = 2,
    activation: Activation = "relu",
) -> nn.Module:
    with _one_run("vgg16", seeds):
        return vgg16(num_classes, _side(shape), batch_norm, shape[0], hidden_layers, activation)


def _resnet18(
    shape: Sequence[int],
    num_classes: int,
    seeds: Sequence[int],
    small_images: Annotated[bool, Setting("a 3x3 stem without pooling")] = True,
    norm: Annotated[Norm, Setting("BatchNorm; mean_only subtracts the mean and does not divide")] = "batch",
    activation: Activation = "relu",
) -> nn.Module:
    with _one_run("resnet18", seeds):
        return resnet18(num_classes, small_images, shape[0], norm, activation)


def _wrn28_10(
    shape: Sequence[int],
    num_classes: int,
    seeds: Sequence[int],
    norm_after_every_conv: Annotated[
        bool, Setting("BatchNorm behind the convolutions too whose output is added (the WRS paper's Table I)")
    ] = False,
    activation: Activation = "relu",
) -> nn.Module:
    with _one_run("wrn28_10", seeds):
        return wrn28_10(num_classes, shape[0], norm_after_every_conv, activation)


def _vit_tiny(
    shape: Sequence[int],
    num_classes: int,
    seeds: Sequence[int],
    patch: Annotated[int, Setting("side of a square patch in pixels", least=1)] = 4,
    activation: Activation = "gelu",
) -> nn.Module:
    with _one_run("vit_tiny", seeds):
        return vit_tiny(num_classes, _side(shape), patch, shape[0], activation)


@contextmanager
def _one_run(name: str, seeds: Sequence[int]) -> Iterator[None]:
    """Draw from the only seed inside, and restore the global random state at the end."""
    if len(seeds) != 1:
        raise SettingsError(f"{name} has no runs axis: train one run per process (seeds=1), got {len(seeds)} seeds")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seeds[0])
        yield


def _side(shape: Sequence[int]) -> int:
    if len(shape) != 3 or shape[1] != shape[2]:
        raise SettingsError(f"shape must be (channels, side, side), got {tuple(shape)}")
    return shape[1]


NETWORKS: dict[str, Callable[..., nn.Module]] = Choices(
    {
        "mlp": _mlp,
        "cnn": partial(CNN, batch_norm=False),
        "cnn_bn": partial(CNN, batch_norm=True),
        "kumar_cnn": kumar_cnn,
        "vgg16": partial(_vgg16, batch_norm=False),
        "vgg16_bn": partial(_vgg16, batch_norm=True),
        "resnet18": _resnet18,
        "wrn28_10": _wrn28_10,
        "vit_tiny": _vit_tiny,
    }
)
"""Choices of ``net=``, each called as ``make(shape of one input, num_classes, seeds, **settings)``.

Networks without a runs axis take one seed.
"""

PARAMETRIZATIONS: dict[str, Callable[..., None]] = {
    "weight_standardization": standardize_weights_,
    "bounded_weight_norm": bound_weight_norms_,
}
"""Choices of ``net.parametrization=``, each called with a network, whose weights it parametrizes in place."""


def make_network(
    name: str,
    shape: Sequence[int],
    num_classes: int,
    seeds: Sequence[int],
    parametrization: Annotated[
        Literal["none", "weight_standardization", "bounded_weight_norm"],
        Setting(
            "form of the weights of convolutions before a norm layer; bounded_weight_norm: of all layers but the heads"
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
        SettingsError: an unknown name or setting (the message has the nearest valid one), a setting out of range, a
            network without a layer for the parametrization, or a parametrization with room for an injection.
    """
    if parametrization not in (valid := ("none", *PARAMETRIZATIONS)):
        raise SettingsError(f"unknown parametrization {parametrization!r}{nearest(parametrization, valid)}")
    make = choose(NETWORKS, name, settings, "network")
    check(NETWORKS[name], settings)
    net = make(shape, num_classes, seeds)
    if parametrization != "none" and any(isinstance(module, Injectable) for module in net.modules()):
        raise SettingsError(
            f"parametrization={parametrization} and injected_layers do not go together: the copies of an injection "
            "hold plain weights"
        )
    if parametrization != "none":
        PARAMETRIZATIONS[parametrization](net)
    return net


__all__ = [
    "CNN",
    "MLP",
    "NETWORKS",
    "PARAMETRIZATIONS",
    "CReLU",
    "DeepFourier",
    "Injectable",
    "MeanOnlyBatchNorm2d",
    "Rational",
    "SmoothLeaky",
    "StackedBatchNorm2d",
    "StackedConv2d",
    "StackedLayerNorm",
    "StackedLinear",
    "bound_weight_norms_",
    "kumar_cnn",
    "make_network",
    "resnet18",
    "standardize_weights_",
    "vgg16",
    "vit_tiny",
    "wrn28_10",
]
