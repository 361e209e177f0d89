"""The networks of an agent's actor and critics, by name in `AGENT_NETWORKS`."""

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

from torch import nn

from rl_plasticity.errors import Choices, SettingsError
from rl_plasticity.networks import MLP, XQC, Bro, FlashSAC, Hypersphere, Simba
from rl_plasticity.networks.activations import Activation
from rl_plasticity.networks.cnn import OneConvolution
from rl_plasticity.networks.mlp import Init, InjectedLayers
from rl_plasticity.settings import Setting

Role = Literal["actor", "critic"]
ActorWidth = Annotated[int, Setting("width of the blocks in the actor", least=1)]
ActorBlocks = Annotated[int, Setting("number of blocks in the actor", least=1)]
CriticWidth = Annotated[int, Setting("width of the blocks in a critic", least=1)]
CriticBlocks = Annotated[int, Setting("number of blocks in a critic", least=1)]


def mlp(
    inputs: int,
    outputs: int,
    seeds: Sequence[int],
    role: Role,
    *,
    hidden: Annotated[Sequence[int], Setting("widths of the hidden layers of actor and critic", least=1)] = (256, 256),
    layer_norm: Annotated[bool, Setting("LayerNorm between linear layer and activation")] = True,
    activation: Activation = "relu",
    init: Init = "orthogonal",
    injected_layers: InjectedLayers = 0,
    dropout: Annotated[
        float, Setting("share of the critics' hidden linear outputs that an update sets to 0 (DroQ)", least=0, below=1)
    ] = 0.0,
) -> nn.Module:
    """Linear layers, the same in actor and critic, but for dropout, which critics alone have (Hiraoka et al. 2022)."""
    widths, rate = (inputs, *hidden, outputs), dropout if role == "critic" else 0.0
    return MLP(
        widths, seeds, layer_norm, activation=activation, init=init, dropout=rate, injected_layers=injected_layers
    )


def simba(
    inputs: int,
    outputs: int,
    seeds: Sequence[int],
    role: Role,
    *,
    actor_width: ActorWidth = 128,
    actor_blocks: ActorBlocks = 1,
    critic_width: CriticWidth = 512,
    critic_blocks: CriticBlocks = 2,
    activation: Activation = "relu",
) -> nn.Module:
    """SimBa's residual blocks, with different sizes in actor and critic."""
    size = _size(role, actor_width, actor_blocks, critic_width, critic_blocks)
    return Simba(inputs, outputs, seeds, *size, activation)


def hypersphere(
    inputs: int,
    outputs: int,
    seeds: Sequence[int],
    role: Role,
    *,
    actor_width: ActorWidth = 128,
    actor_blocks: ActorBlocks = 1,
    critic_width: CriticWidth = 512,
    critic_blocks: CriticBlocks = 2,
) -> nn.Module:
    """SimbaV2's residual blocks, with different sizes in actor and critic."""
    return Hypersphere(inputs, outputs, seeds, *_size(role, actor_width, actor_blocks, critic_width, critic_blocks))


def bro(
    inputs: int,
    outputs: int,
    seeds: Sequence[int],
    role: Role,
    *,
    actor_width: ActorWidth = 256,
    actor_blocks: ActorBlocks = 1,
    critic_width: CriticWidth = 512,
    critic_blocks: CriticBlocks = 2,
) -> nn.Module:
    """BRO's residual blocks, with different sizes in actor and critic."""
    return Bro(inputs, outputs, seeds, *_size(role, actor_width, actor_blocks, critic_width, critic_blocks))


def xqc(
    inputs: int,
    outputs: int,
    seeds: Sequence[int],
    role: Role,
    *,
    actor_width: ActorWidth = 256,
    actor_blocks: ActorBlocks = 4,
    critic_width: CriticWidth = 512,
    critic_blocks: CriticBlocks = 4,
) -> nn.Module:
    """XQC's blocks of linear layer, BatchNorm and ReLU, with different sizes in actor and critic."""
    return XQC(inputs, outputs, seeds, *_size(role, actor_width, actor_blocks, critic_width, critic_blocks))


def flash_sac(
    inputs: int,
    outputs: int,
    seeds: Sequence[int],
    role: Role,
    *,
    actor_width: ActorWidth = 128,
    actor_blocks: ActorBlocks = 2,
    critic_width: CriticWidth = 256,
    critic_blocks: CriticBlocks = 2,
) -> nn.Module:
    """FlashSAC's residual blocks with BatchNorm, with different sizes in actor and critic."""
    return FlashSAC(inputs, outputs, seeds, *_size(role, actor_width, actor_blocks, critic_width, critic_blocks))


def _size(role: Role, *sizes: int) -> tuple[int, int]:
    """Width and number of blocks, of which the first two numbers are the actor's."""
    return sizes[:2] if role == "actor" else sizes[2:]  # type: ignore[return-value]


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
        shape = inputs if isinstance(inputs, int) else tuple(inputs)
        raise SettingsError(
            f"network=cnn needs agent=dqn and images [channels, height, width], not observations of shape {shape}; "
            "choose network=mlp"
        )
    return OneConvolution(inputs, outputs, seeds, channels, kernel_size, hidden, layer_norm, activation, init)


cnn.takes_images = True  # type: ignore[attr-defined]

AGENT_NETWORKS: dict[str, Callable[..., nn.Module]] = Choices(
    {
        "mlp": mlp,
        "simba": simba,
        "hypersphere": hypersphere,
        "bro": bro,
        "xqc": xqc,
        "flash_sac": flash_sac,
        "cnn": cnn,
    }
)
"""Choices of ``agent.network=``, each called as ``make(inputs, outputs, seeds, role, **settings)``.

The network maps ``[runs, batch, inputs]`` to ``[runs, batch, outputs]``; `role` is "actor" or "critic". Its settings
are the agent's: ``agent.hidden=[64,64]``. Soft actor-critic normalizes observations if its class has
``normalizes_obs = True``, unless ``agent.normalize_obs`` says otherwise; `DQN` never does. Likewise
``squashes_log_std = True`` makes ``agent.log_std=tanh`` the default. A function with ``takes_images = True`` gets the
shape of an observation as `inputs`; the observations are flat all the same.

A network with ``takes_training = True`` is called by soft actor-critic with ``training=True`` where it learns. If it
has ``has_batch_norm = True`` too, critics see a batch's observations and next observations as one batch (CrossQ), and
the actor's loss reads their running statistics.
"""
