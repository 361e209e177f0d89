"""The networks of an agent's actor and critics, by name in `AGENT_NETWORKS`."""

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

from torch import nn

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


AGENT_NETWORKS: Choices[Callable[..., nn.Module]] = Choices("AGENT_NETWORKS", {"mlp": mlp, "cnn": OneConvolution})
"""Choices of ``agent.network=``, each called as ``make(inputs, outputs, seeds, role, **settings)``.

The network maps ``[runs, batch, inputs]`` to ``[runs, batch, outputs]``; `role` is "actor" or "critic". Its settings
are the agent's: ``agent.hidden=[64,64]``. A kind with ``takes_images = True`` gets the shape of an observation as
`inputs`; the observations are flat all the same. `SAC` refuses one with ``needs = "agent=..."``.
"""
