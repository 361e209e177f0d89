"""Networks. `mlp` and `cnn` train many runs at once: every tensor has a leading runs axis."""

from rl_plasticity.networks.activations import CReLU
from rl_plasticity.networks.cnn import CNN, StackedBatchNorm2d, StackedConv2d
from rl_plasticity.networks.mlp import MLP, StackedLayerNorm, StackedLinear
from rl_plasticity.networks.parametrizations import bound_weight_norms_, standardize_weights_
from rl_plasticity.networks.resnet import resnet18, wrn28_10
from rl_plasticity.networks.vgg import vgg16
from rl_plasticity.networks.vit import vit_tiny

__all__ = [
    "CNN",
    "MLP",
    "CReLU",
    "StackedBatchNorm2d",
    "StackedConv2d",
    "StackedLayerNorm",
    "StackedLinear",
    "bound_weight_norms_",
    "resnet18",
    "standardize_weights_",
    "vgg16",
    "vit_tiny",
    "wrn28_10",
]
