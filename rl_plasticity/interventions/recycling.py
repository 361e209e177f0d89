"""Interventions that recycle single units, and looking at their activations."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import torch
from torch import Tensor, nn

from rl_plasticity.interventions.base import EveryTasks, EveryUpdates, Inputs, Intervention, Restartable, learners_of
from rl_plasticity.layers import lookup
from rl_plasticity.learner import Learner
from rl_plasticity.settings import Setting, checked
from rl_plasticity.structure import activations_of, hidden_units


class ReDo(Intervention):
    """Dormant hidden units are recycled: fresh incoming weights, zero outgoing weights, zero optimizer moments there.

    A unit's score is its mean absolute activation over a batch, after the non-linearity, divided by the mean of that
    over the layer's units; it is dormant where score <= threshold. A norm layer between the weights and the
    non-linearity gets its initial gain and shift at the unit too. Moments are matched by parameter name; the
    step count stays. Targets are left to follow by averaging.

    Source: Sokar et al. (2023), "The Dormant Neuron Phenomenon in Deep Reinforcement Learning", Definition 3.1 and
    Algorithm 1.

    Args:
        threshold: tau, 0 to 0.1 in the paper.

    Raises:
        ValueError: no `inputs` were given, or the network has no chain of (linear or conv), activation module, (linear
            or conv).
    """

    @checked
    def __init__(
        self,
        every_updates: EveryUpdates = 1_000,
        every_tasks: EveryTasks = None,
        threshold: Annotated[float, Setting("a unit whose score is no higher is dormant", least=0)] = 0.025,
    ) -> None:
        super().__init__(every_updates, every_tasks)
        self.threshold = threshold

    @torch.no_grad()
    def _apply_(self, target: Restartable | Learner, runs: Tensor | None, inputs: Inputs | None) -> None:
        for name, (learner, _) in learners_of(target).items():
            if inputs is None or name not in inputs:
                raise ValueError(f"ReDo looks at activations: it needs inputs for {name!r}")
            units = hidden_units(learner.net)
            if not units:
                raise ValueError("ReDo has nothing to act on: the network has no hidden activation module")
            with eval_mode(learner.net):
                activations = activations_of(learner.net, units, inputs[name])
            k = len(learner.runs)
            chosen = torch.zeros(learner.runs, dtype=torch.bool, device=activations[0].device)
            chosen[... if runs is None else runs] = True
            dormant = []  # of each layer, [*runs, units]
            for unit, activation in zip(units, activations, strict=True):
                axis = k + 1 if unit.incoming.role == "conv" else -1
                dormant.append((self._score(activation.movedim(axis, k), k) <= self.threshold) & chosen.unsqueeze(-1))

            fresh = learner.fresh(runs)
            for unit, mask in zip(units, dormant, strict=True):
                for layer in (unit.incoming, *unit.norms):
                    for parameter in layer.parameter_names:
                        axis = k + 1 if layer.transposed and parameter == layer.weight_name else k
                        self._change_(learner, parameter, mask, axis, lookup(fresh, parameter))
            # Outgoing weights last: what leads from one recycled unit to another is zero.
            for unit, mask in zip(units, dormant, strict=True):
                for layer in unit.outgoing:
                    assert layer.weight_name is not None  # hidden_units takes no others
                    axis = k if layer.transposed else k + 1
                    columns = lookup(learner.net, layer.weight_name).shape[axis]
                    # A linear layer behind a flattened feature map reads each unit (channel) from several columns.
                    each = mask.repeat_interleave(columns // mask.shape[-1], dim=-1)
                    self._change_(learner, layer.weight_name, each, axis, None)

    @staticmethod
    def _score(activation: Tensor, k: int) -> Tensor:
        """Normalized mean activation ``[*runs, units]`` of ``[*runs, units, ...]`` with `k` runs axes."""
        size = activation.abs().flatten(k + 1).mean(-1)
        mean = size.mean(-1, keepdim=True)
        return torch.where(mean > 0, size / mean, torch.zeros_like(size))

    @staticmethod
    def _change_(learner: Learner, name: str, mask: Tensor, axis: int, value: Tensor | None) -> None:
        """Where `mask` ``[*runs, n]`` along `axis`: the parameter takes `value` (None: 0), its moments 0."""
        parameter = lookup(learner.net, name)
        shape = [*mask.shape[:-1], *(1,) * (parameter.ndim - mask.ndim + 1)]
        shape[axis] = mask.shape[-1]
        entries = mask.reshape(shape)
        for moment in learner.optimizer.moments(name):
            moment.masked_fill_(entries, 0)
        replacement = torch.zeros_like(parameter) if value is None else value
        parameter.copy_(torch.where(entries, replacement, parameter))


@contextmanager
def eval_mode(net: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, each module's own mode afterwards: looking must not move BatchNorm's statistics."""
    modes = {module: module.training for module in net.modules()}
    net.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
