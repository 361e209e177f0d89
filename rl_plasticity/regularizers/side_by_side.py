"""Several regularizers in one stacked network, each acting on its own runs."""

import copy
import itertools
from collections.abc import Callable, Sequence
from operator import itemgetter

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from rl_plasticity.errors import counted
from rl_plasticity.regularizers.base import Regularizer, RunSlice, penalty_of, view_of
from rl_plasticity.structure import Arguments, Example, arguments_of, with_tensors
from rl_plasticity.structure.layer import runs_of


class SideBySide(Regularizer):
    """Several regularizers in one stacked network, each acting on its own runs as if they trained separately.

    Args:
        net: a network stacked along one runs axis.
        parts: for each regularizer, the number of its consecutive runs, and a function that makes it from a network.

    Raises:
        ValueError: the network has no runs axis, or the numbers of runs do not add up to it.
    """

    def __init__(self, net: nn.Module, *parts: tuple[int, Callable[[nn.Module], Regularizer]]) -> None:
        super().__init__(net)
        total = sum(number for number, _ in parts)
        if self.runs != (total,):
            raise ValueError(
                f"the parts have {counted(total, 'run')} together, the network has the runs axes {list(self.runs)}"
            )
        ends = itertools.accumulate(number for number, _ in parts)
        self.slices = [slice(end - number, end) for end, (number, _) in zip(ends, parts, strict=True)]
        self._consist_of(make(_cut(net, runs)) for (_, make), runs in zip(parts, self.slices, strict=True))

    def made_of(self) -> Sequence[tuple[Regularizer, RunSlice]]:
        return [*zip(self.parts, self.slices, strict=True)]  # type: ignore[list-item]

    def penalty(self, net: nn.Module, inputs: Example | None = None) -> Tensor:
        call = None if inputs is None else arguments_of(inputs)
        terms = []
        for part, runs in self.made_of():
            mine = None if call is None else Arguments(*with_tensors(call, itemgetter(runs)))
            terms.append(penalty_of(part, view_of(net, runs), mine))
        return torch.cat(terms)


def _cut(net: nn.Module, runs: slice) -> nn.Module:
    """A copy of `net` with the parameters of some runs only. Regularizers are made from it; it is never called.

    Buffers from which weights are computed are those of these runs too.
    """
    copied, whole = copy.deepcopy(net), runs_of(net)
    made: dict[nn.Parameter, nn.Parameter] = {}  # shared ones stay shared
    for module in copied.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                some = nn.Parameter(parameter.detach()[runs].clone(), requires_grad=parameter.requires_grad)
                module._parameters[name] = made.setdefault(parameter, some)
    for module in (m for one in copied.modules() if isinstance(one, ParametrizationList) for m in one.modules()):
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.shape[:1] == whole:
                module._buffers[name] = buffer[runs].clone()
    return copied
