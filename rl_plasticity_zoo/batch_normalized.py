"""Networks with BatchNorm and weights of unit length, many runs at once: those of XQC and FlashSAC."""

from collections.abc import Sequence

from torch import Tensor, nn

from rl_plasticity.seeding import derived
from rl_plasticity_zoo.norms import StackedBatchNorm, StackedRMSNorm, TrainedSequential
from rl_plasticity_zoo.residual import EXPANSION, UnitLinear


class XQC(TrainedSequential):
    """BatchNorm, then blocks of linear, BatchNorm and ReLU, and a linear head: ``[runs, batch, in]`` to ``[.., out]``.

    The linear layers have no biases but the head's, and their rows start with unit length. It is meant to be trained
    with the regularizer `hypersphere`, which keeps them so.

    Source: Palenicek et al. (2026), XQC, as in their code (github.com/danielpalenicek/xqc, xqc/networks/mlp.py). As
    there, BatchNorm has eps 1e-3 and momentum 0.01. We could not read the text.

    Args:
        seeds: one for each run.
        width, blocks: theirs are 256 and 4 for an actor, 512 and 4 for a critic.
    """

    has_batch_norm = True

    def __init__(self, inputs: int, outputs: int, seeds: Sequence[int], width: int, blocks: int) -> None:
        runs, modules = len(seeds), []
        for i, fan_in in enumerate([inputs] + [width] * (blocks - 1)):
            linear = UnitLinear(fan_in, width, derived(seeds, i))
            modules += [linear, StackedBatchNorm(width, runs, eps=1e-3), nn.ReLU()]
        head = UnitLinear(width, outputs, derived(seeds, blocks), bias=True)
        super().__init__(StackedBatchNorm(inputs, runs, eps=1e-3), *modules, head)


class FlashSACBlock(nn.Module):
    """x + relu(norm(contract(relu(norm(expand(x)))))), four times as wide inside; the norms are BatchNorm."""

    takes_training = True

    def __init__(self, width: int, seeds: Sequence[int]) -> None:
        super().__init__()
        inside, runs = EXPANSION * width, len(seeds)
        self.inside = TrainedSequential(
            UnitLinear(width, inside, derived(seeds, 0)),
            StackedBatchNorm(inside, runs),
            nn.ReLU(),
            UnitLinear(inside, width, derived(seeds, 1)),
            StackedBatchNorm(width, runs),
            nn.ReLU(),
        )

    def forward(self, input: Tensor, training: bool = False) -> Tensor:
        output: Tensor = input + self.inside(input, training)
        return output


class FlashSAC(TrainedSequential):
    """BatchNorm, a linear layer, residual blocks (`FlashSACBlock`), RMSNorm and a linear head.

    ``[runs, batch, in] -> [runs, batch, out]``. The linear layers have no biases but the head's, and rows of unit
    length. It is meant to be trained with ``reg=hypersphere reg.norms=scale``, which keeps the rows, and the gains and
    shifts of each norm layer, at their lengths.

    Source: FlashSAC's code (github.com/Holiday-Robot/FlashSAC, flash_rl/agents/flashSAC/layer.py, network.py); we could
    not read a text. Deviation: their running variance is unbiased.

    Args:
        seeds: one for each run.
        width, blocks: theirs are 128 and 2 for an actor, 256 and 2 for a critic.
    """

    has_batch_norm = True

    def __init__(self, inputs: int, outputs: int, seeds: Sequence[int], width: int, blocks: int) -> None:
        runs = len(seeds)
        super().__init__(
            StackedBatchNorm(inputs, runs),
            UnitLinear(inputs, width, derived(seeds, 0)),
            *(FlashSACBlock(width, derived(seeds, 1 + i)) for i in range(blocks)),
            StackedRMSNorm(width, runs),
            UnitLinear(width, outputs, derived(seeds, 1 + blocks), bias=True),
        )
