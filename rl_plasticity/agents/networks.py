"""The networks of an agent's actor and critics, by name in `AGENT_NETWORKS`."""

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

from torch import nn

from rl_plasticity.errors import SettingsError
from rl_plasticity.networks import MLP
from rl_plasticity.networks.activations import Activation
from rl_plasticity.networks.cnn import OneConvolution
from rl_plasticity.networks.mlp import Init, InjectedLayers, LayerNormFlag
from rl_plasticity.plugins import Choices
from rl_plasticity.settings import Setting

Role = Literal["actor", "critic"]


def mlp(
    inputs: int,
    outputs: int,
    seeds: Sequence[int],
    role: Role,
    *,
    hidden: Annotated[Sequence[int], Setting("widths of the hidden layers of actor and critic", least=1)] = (256, 256),
    layer_norm: LayerNormFlag = True,
    activation: Activation = "relu",
    init: Init = "orthogonal",
    injected_layers: InjectedLayers = 0,
) -> nn.Module:
    """Linear layers, the same in actor and critic."""
    widths = (inputs, *hidden, outputs)
    return MLP(widths, seeds, layer_norm, activation=activation, init=init, injected_layers=injected_layers)


def cnn(
    inputs: int | Sequence[int],
    outputs: int,
    seeds: Sequence[int],
    role: Role,
    *,
    channels: Annotated[int, Setting("channels of the convolution", least=1)] = 16,
    kernel_size: Annotated[int, Setting("side of the convolution's kernel", least=1)] = 3,
    hidden: Annotated[Sequence[int], Setting("widths of the hidden linear layers", least=1)] = (128,),
    layer_norm: Annotated[bool, Setting("LayerNorm between each layer and its activation")] = False,
    activation: Activation = "relu",
    init: Init = "orthogonal",
) -> nn.Module:
    """A convolution and linear layers, for small images."""
    if isinstance(inputs, int) or len(inputs) != 3:
        raise SettingsError(
            f"network=cnn needs agent=dqn and images [channels, height, width], not observations of shape {inputs}; "
            "choose network=mlp"
        )
    return OneConvolution(inputs, outputs, seeds, channels, kernel_size, hidden, layer_norm, activation, init)


cnn.takes_images = True  # type: ignore[attr-defined]

AGENT_NETWORKS: Choices[Callable[..., nn.Module]] = Choices("AGENT_NETWORKS", {"mlp": mlp, "cnn": cnn})
"""Choices of ``agent.network=``, each called as ``make(inputs, outputs, seeds, role, **settings)``.

The network maps ``[runs, batch, inputs]`` to ``[runs, batch, outputs]``; `role` is "actor" or "critic". Its settings
are the agent's: ``agent.hidden=[64,64]``. A function with ``takes_images = True`` gets the shape of an observation as
`inputs`; the observations are flat all the same. `SAC` refuses one with ``needs = "agent=..."``.
"""
