"""Interventions that give networks, heads or all parameters new values; and the decay of the learning rate."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from rl_plasticity.interventions.base import Agent, Inputs, Intervention, _learners, _names
from rl_plasticity.layers import Layer, layers, lookup
from rl_plasticity.learner import Learner


class PeriodicReset(Intervention):
    """All networks, targets, temperature, optimizers and regularizers start afresh, with new weights each time.

    The replay buffer stays: a reset run equals a fresh agent on the old buffer. Source: Nikishin et al. (2022); D'Oro
    et al. (2023) reset every 2.56 million updates.
    """

    def __init__(self, every_updates: int | None = 2_560_000, every_tasks: int | None = None) -> None:
        super().__init__(every_updates, every_tasks)

    def _apply_(self, target: Agent | Learner, runs: Tensor | None, inputs: Inputs | None) -> None:
        target.restart_(runs)


class HeadReset(Intervention):
    """The last layers get new weights; their optimizer moments are zeroed, the step count stays. Targets' heads too.

    Source: Nikishin et al. (2022), section 4 (last layers); the target's head is set to the new head, since the old
    one would teach the new one what it has just forgotten.

    Args:
        num_layers: how many linear or convolution layers, counted from the output, with the norm layers after them.
    """

    def __init__(
        self, every_updates: int | None = 100_000, every_tasks: int | None = None, num_layers: int = 1
    ) -> None:
        super().__init__(every_updates, every_tasks)
        if num_layers < 1:
            raise ValueError(f"num_layers must be at least 1, got {num_layers}")
        self.num_layers = num_layers

    def _apply_(self, target: Agent | Learner, runs: Tensor | None, inputs: Inputs | None) -> None:
        for learner, followers in _learners(target).values():
            names = self._names(learner.net)
            if not names:
                raise ValueError("HeadReset has nothing to act on: the network has no output layer")
            fresh = learner.fresh(runs)
            chosen = slice(None) if runs is None else runs
            with torch.no_grad():
                for net in (learner.net, *followers):
                    for name in names:
                        lookup(net, name)[chosen] = lookup(fresh, name)[chosen]
                for name in names:
                    for moment in learner.optimizer.moments(name):
                        moment[chosen] = 0
            learner.regularizer.recapture_(learner.regularize(fresh), runs, only=names)

    def _names(self, net: nn.Module) -> set[str]:
        found = layers(net)
        names: set[str] = set()
        frontier = {i for i, y in enumerate(found) if y.head}
        for depth in range(self.num_layers):
            before: set[int] = set()
            for i in frontier:
                names.update(_names(found[i]))
                before.update(found[i].inputs)
            passed: list[Layer] = []
            frontier = set()
            while before:
                i = before.pop()
                if found[i].role in ("linear", "conv"):
                    frontier.add(i)
                else:
                    passed.append(found[i])
                    before.update(found[i].inputs)
            if depth < self.num_layers - 1:  # norm layers between two layers that start afresh
                names.update(n for y in passed for n in _names(y))
        return names


class ShrinkAndPerturb(Intervention):
    """p <- (1 - coef) p + coef * p_init for every parameter; targets alike; optimizers are left alone.

    Source: Ash and Adams (2020), in the one-parameter form of Oh et al. (2024), Appendix D.2.

    Args:
        coef: in [0, 1]; the SWR paper's grid is 0.2 to 0.8.
        init: "saved", the values the weights started from (as the SWR paper), or "fresh", new ones each time.
    """

    def __init__(
        self,
        every_updates: int | None = 100_000,
        every_tasks: int | None = None,
        coef: float = 0.2,
        init: Literal["saved", "fresh"] = "saved",
    ) -> None:
        super().__init__(every_updates, every_tasks)
        if not 0 <= coef <= 1:
            raise ValueError(f"coef must be in [0, 1], got {coef}")
        if init not in ("saved", "fresh"):
            raise ValueError(f"init must be saved or fresh, got {init!r}")
        self.coef, self.init = coef, init

    @torch.no_grad()
    def _apply_(self, target: Agent | Learner, runs: Tensor | None, inputs: Inputs | None) -> None:
        for learner, followers in _learners(target).values():
            source = learner.initial() if self.init == "saved" else learner.fresh(runs)
            wanted = dict(source.named_parameters())
            for net in (learner.net, *followers):
                for name, parameter in net.named_parameters():
                    mixed = parameter.lerp(wanted[name], self.coef)
                    if runs is None:
                        parameter.copy_(mixed)
                    else:
                        parameter[runs] = mixed[runs]


class LearningRateDecay(Intervention):
    """lr <- factor * lr, and SWR takes the current norms as its new initial ones ("SWR + re-init").

    Source: Oh et al. (2024), Appendix E: the learning rate is divided by 10 at epochs 100 and 150.

    Args:
        at_updates: when.
        factor: above 0.
        rebase: whether regularizers take the current weights as their new reference; only SWR does anything then.
    """

    def __init__(self, at_updates: Sequence[int], factor: float = 0.1, rebase: bool = True) -> None:
        super().__init__(at_updates=at_updates)
        if not factor > 0:
            raise ValueError(f"factor must be positive, got {factor}")
        self.factor, self.rebase = factor, rebase

    def _apply_(self, target: Agent | Learner, runs: Tensor | None, inputs: Inputs | None) -> None:
        if runs is not None:
            raise ValueError("a learning rate is shared by all runs; it cannot decay for some")
        for learner, _ in _learners(target).values():
            learner.optimizer.lr.mul_(self.factor)
            if self.rebase:
                learner.regularizer.rebase_(learner.net)
