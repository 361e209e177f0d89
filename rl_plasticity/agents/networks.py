"""The networks of an agent's actor and critics, by name in `AGENT_NETWORKS`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from rl_plasticity.agents.base import AGENTS
from rl_plasticity.errors import SettingsError, choose
from rl_plasticity.networks import MLP
from rl_plasticity.networks.activations import Activation
from rl_plasticity.networks.cnn import OneConvolution
from rl_plasticity.networks.mlp import Init, InjectedLayers, LayerNormFlag
from rl_plasticity.plugins import Choices
from rl_plasticity.settings import Setting, check

Role = Literal["actor", "critic"]
SERVED = {"takes_training": "must be told when it trains", "normalizes_obs": "needs normalized observations"}


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
`inputs`; the observations are flat all the same.

A network with BatchNorm or dropout says ``takes_training = True``, as its modules with them do, and is called with
``training=True`` where it learns. One may say ``normalizes_obs = True``: its observations must be normalized. Agents
that do not do so (`Agent`, ``serves``) refuse it.
"""


def maker(network: str, settings: Mapping[str, Any], agent: type) -> Callable[..., nn.Module]:
    """The one of `AGENT_NETWORKS` called `network` with its settings filled in.

    Args:
        agent: the class that calls it.

    Raises:
        SettingsError: an unknown name or setting; from a call: the network needs what the agent does not do.
    """
    make = choose(AGENT_NETWORKS, network, settings, "network", agent)
    check(AGENT_NETWORKS[network], settings)
    serves = getattr(agent, "serves", ())

    def made(*args: Any) -> nn.Module:
        net = make(*args)
        for module, needed in _needs(net):
            if needed not in serves:
                able = [f"agent={name}" for name, kind in AGENTS.items() if needed in getattr(kind, "serves", ())]
                if getattr(agent, "takes_discrete_actions", False):  # as no agent in `able` does
                    able = ["network=mlp", "bro", "cnn"]
                raise SettingsError(
                    f"network={network}: its {type(module).__name__} {SERVED[needed]}: take {' or '.join(able)}"
                )
            if not (getattr(net, needed, False) and getattr(module, needed, False)):
                raise SettingsError(f"network={network} and its {type(module).__name__} must say {needed} = True")
        return net

    return made


def _needs(net: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """The modules of a network that need something of an agent, with that; torch's own have modes."""
    for module in net.modules():
        if getattr(module, "normalizes_obs", False):
            yield module, "normalizes_obs"
        if getattr(module, "takes_training", False) or isinstance(module, _BatchNorm | _DropoutNd):
            yield module, "takes_training"
