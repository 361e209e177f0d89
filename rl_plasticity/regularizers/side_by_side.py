"""Several regularizers in one stacked network, each on runs of its own."""

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter

import torch
from torch import Tensor, nn

from rl_plasticity.regularizers.base import Regularizer, term_of
from rl_plasticity.structure import Arguments, Example, arguments_of, with_tensors
from rl_plasticity.structure.layer import SomeRuns, lookup


class SideBySide(Regularizer):
    """Several regularizers in one stacked network, each on runs of its own, as if those trained apart.

    Args:
        net: stacked along one runs axis.
        parts: for each regularizer the number of its runs, which follow each other, and what makes it from a network.

    Raises:
        ValueError: the network has no runs axis, or the parts do not add up to it.
    """

    def __init__(self, net: nn.Module, *parts: tuple[int, Callable[[nn.Module], Regularizer]]) -> None:
        super().__init__(net)
        total = sum(number for number, _ in parts)
        if self.runs != (total,):
            raise ValueError(f"the parts have {total} runs together, the network has the runs axes {list(self.runs)}")
        ends = list(itertools.accumulate(number for number, _ in parts))
        self.slices = [(end - number, end) for end, (number, _) in zip(ends, parts, strict=True)]
        makers = [make for _, make in parts]
        self.parts = nn.ModuleList(make(_cut(net, *ends)) for make, ends in zip(makers, self.slices, strict=True))
        self.looks_at_data = any(part.looks_at_data for part in self.parts)

    def _each(self, net: nn.Module) -> Iterator[tuple[Regularizer, nn.Module]]:
        for part, (start, stop) in zip(self.parts, self.slices, strict=True):
            assert isinstance(part, Regularizer)
            yield part, SomeRuns(net, start, stop)

    @property
    def counts(self) -> dict[str, Tensor]:
        of_parts: list[Mapping[str, Tensor]] = [part.counts for part in self.parts]  # type: ignore[misc]
        zeros = [self.coef.new_zeros(stop - start, dtype=torch.int64) for start, stop in self.slices]
        both = [*zip(of_parts, zeros, strict=True)]
        names = dict.fromkeys(name for counts in of_parts for name in counts)
        return {name: torch.cat([counts.get(name, none) for counts, none in both]) for name in names}

    def first_update(self, batch_size: int) -> Tensor:
        return torch.cat([part.first_update(batch_size) for part in self.parts])  # type: ignore[operator]

    def penalty(self, net: nn.Module) -> Tensor:
        return torch.cat([term_of(part, "penalty", view) for part, view in self._each(net)])

    def data_penalty(self, net: nn.Module, inputs: Example) -> Tensor:
        call = arguments_of(inputs)
        terms = []
        for (part, view), ends in zip(self._each(net), self.slices, strict=True):
            mine = with_tensors(call, itemgetter(slice(*ends)))
            terms.append(term_of(part, "data_penalty", view, Arguments(*mine)))
        return torch.cat(terms)

    def observe_(self, net: nn.Module, gradients: Mapping[str, Tensor]) -> None:
        for (part, view), (start, stop) in zip(self._each(net), self.slices, strict=True):
            part.observe_(view, {name: g[start:stop] for name, g in gradients.items()})

    def project_(self, net: nn.Module) -> Mapping[str, Tensor] | None:
        of_parts = [part.project_(view) or {} for part, view in self._each(net)]
        anew = {}
        for name in dict.fromkeys(name for mine in of_parts for name in mine):
            views = [lookup(view, name) for _, view in self._each(net)]
            nowhere = (torch.zeros_like(tensor, dtype=torch.bool) for tensor in views)
            anew[name] = torch.cat([mine.get(name, none) for mine, none in zip(of_parts, nowhere, strict=True)])
        return anew

    def rebase_(self, net: nn.Module, runs: Tensor | None = None) -> None:
        for (part, view), its_runs in zip(self._each(net), self._split(runs), strict=True):
            part.rebase_(view, its_runs)

    def follow_(self, lr: float | Mapping[str, float], initial_lr: float | Mapping[str, float] | None = None) -> None:
        for part in self.parts:
            part.follow_(lr, initial_lr)  # type: ignore[operator]

    def recapture_(self, fresh: Regularizer, runs: Tensor | None = None, only: set[str] | None = None) -> None:
        assert isinstance(fresh, SideBySide)
        for mine, theirs, its_runs in zip(self.parts, fresh.parts, self._split(runs), strict=True):
            mine.recapture_(theirs, its_runs, only)  # type: ignore[operator]

    def _split(self, runs: Tensor | None) -> list[Tensor | None]:
        """Those of `runs` that belong to each part, counted from its first."""
        if runs is None:
            return [None] * len(self.slices)
        return [runs[(runs >= start) & (runs < stop)] - start for start, stop in self.slices]


def _cut(net: nn.Module, start: int, stop: int) -> nn.Module:
    """A copy of `net` with the parameters of some runs only: to make regularizers of, not to be called."""
    copied = copy.deepcopy(net)
    for module in copied.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                some = parameter.detach()[start:stop].clone()
                module._parameters[name] = nn.Parameter(some, requires_grad=parameter.requires_grad)
    return copied
