"""Networks. `mlp` and `cnn` train many runs at once: every tensor has a leading runs axis."""

from rl_plasticity.networks.activations import CReLU
from rl_plasticity.networks.cnn import CNN, StackedBatchNorm2d, StackedConv2d
from rl_plasticity.networks.mlp import MLP, StackedLayerNorm, StackedLinear

__all__ = ["CNN", "MLP", "CReLU", "StackedBatchNorm2d", "StackedConv2d", "StackedLayerNorm", "StackedLinear"]
