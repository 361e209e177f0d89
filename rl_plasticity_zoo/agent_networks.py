"""The networks of later papers' actors and critics, for ``agent.network=``."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Annotated

from torch import nn

from rl_plasticity import MLP, Setting
from rl_plasticity.networks import Activation, Init, LayerNormFlag
from rl_plasticity.seeding import derived
from rl_plasticity_zoo.batch_normalized import XQC, FlashSAC
from rl_plasticity_zoo.norms import StackedDropout, TrainedSequential
from rl_plasticity_zoo.residual import Bro, Hypersphere, Simba

ActorWidth = Annotated[int, Setting("width of the actor's blocks", least=1)]
ActorBlocks = Annotated[int, Setting("number of the actor's blocks", least=1)]
CriticWidth = Annotated[int, Setting("width of each critic's blocks", least=1)]
CriticBlocks = Annotated[int, Setting("number of each critic's blocks", least=1)]


def dropout_mlp(
    inputs: int,
    outputs: int,
    seeds: Sequence[int],
    role: str,
    *,
    hidden: Annotated[Sequence[int], Setting("widths of the hidden layers of actor and critic", least=1)] = (256, 256),
    layer_norm: LayerNormFlag = True,
    activation: Activation = "relu",
    init: Init = "orthogonal",
    dropout: Annotated[
        float, Setting("share of the critics' hidden units that an update drops (DroQ)", least=0, below=1)
    ] = 0.01,
) -> nn.Module:
    """Linear layers, the same in actor and critic, but for dropout, which critics alone have (Hiraoka et al. 2022)."""
    net = MLP((inputs, *hidden, outputs), seeds, layer_norm, activation=activation, init=init)
    if role == "actor" or not dropout:
        return net
    modules: list[nn.Module] = []
    depths = count()
    for module in net:
        modules.append(module)
        if isinstance(module, nn.Linear) and module is not net[-1]:
            modules.append(StackedDropout(dropout, derived(seeds, next(depths), 0)))
    return TrainedSequential(*modules)


def simba(
    inputs: int,
    outputs: int,
    seeds: Sequence[int],
    role: str,
    *,
    actor_width: ActorWidth = 128,
    actor_blocks: ActorBlocks = 1,
    critic_width: CriticWidth = 512,
    critic_blocks: CriticBlocks = 2,
    activation: Activation = "relu",
) -> nn.Module:
    """SimBa's residual blocks, with different sizes in actor and critic."""
    size = (actor_width, actor_blocks) if role == "actor" else (critic_width, critic_blocks)
    return Simba(inputs, outputs, seeds, *size, activation)


def _sized(
    make: Callable[..., nn.Module], actor: tuple[int, int] = (128, 1), critic: tuple[int, int] = (512, 2)
) -> Callable[..., nn.Module]:
    """A network of blocks, with different sizes in actor and critic."""

    def sized(
        inputs: int,
        outputs: int,
        seeds: Sequence[int],
        role: str,
        *,
        actor_width: ActorWidth = actor[0],
        actor_blocks: ActorBlocks = actor[1],
        critic_width: CriticWidth = critic[0],
        critic_blocks: CriticBlocks = critic[1],
    ) -> nn.Module:
        size = (actor_width, actor_blocks) if role == "actor" else (critic_width, critic_blocks)
        return make(inputs, outputs, seeds, *size)

    return sized


hypersphere = _sized(Hypersphere)
bro = _sized(Bro, (256, 1))
xqc = _sized(XQC, (256, 4), (512, 4))
flash_sac = _sized(FlashSAC, (128, 2), (256, 2))
