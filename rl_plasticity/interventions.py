"""Interventions: rare, discrete changes of the networks. Eager, in place, on all runs or on chosen ones."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from rl_plasticity.learner import Learner, copy_runs_
from rl_plasticity.regularizers.base import nearest
from rl_plasticity.regularizers.layers import HiddenUnits, Layer, hidden_units, layers, lookup


class Agent(Protocol):
    """What an intervention needs of an agent: its learners, the nets that follow them, and how it starts afresh."""

    @property
    def learners(self) -> Mapping[str, Learner]: ...
    @property
    def followers(self) -> Mapping[str, nn.Module]: ...
    def restart_(self, runs: Tensor | None = None) -> None: ...


Inputs = Mapping[str, Sequence[Tensor]]


class Intervention:
    """Changes an agent's networks, or one learner's, every so many updates or at every so many changes of task.

    Args:
        every_updates: the period in updates; None: not by updates.
        every_tasks: the period in tasks; None: not by tasks.
        at_updates: numbers of updates at which to intervene besides.

    Raises:
        ValueError: a period below 1, or none at all.
    """

    def __init__(
        self, every_updates: int | None = None, every_tasks: int | None = None, at_updates: Sequence[int] = ()
    ) -> None:
        for name, period in (("every_updates", every_updates), ("every_tasks", every_tasks)):
            if period is not None and period < 1:
                raise ValueError(f"{name} must be at least 1, got {period}")
        if every_updates is None and every_tasks is None and not at_updates:
            raise ValueError("an intervention needs every_updates or every_tasks")
        self.every_updates, self.every_tasks, self.at_updates = every_updates, every_tasks, set(at_updates)

    def due(self, updates: int) -> bool:
        """Whether to intervene after this many updates."""
        if updates in self.at_updates:
            return True
        return self.every_updates is not None and updates > 0 and updates % self.every_updates == 0

    def due_at_task(self, task: int) -> bool:
        """Whether to intervene before the task of this index (0 is the first, where nothing is due)."""
        return self.every_tasks is not None and task > 0 and task % self.every_tasks == 0

    def apply_(
        self,
        agent_or_learner: Agent | Learner,
        runs: Tensor | Sequence[int] | None = None,
        inputs: Inputs | None = None,
    ) -> None:
        """Intervene now.

        Args:
            agent_or_learner: what to change.
            runs: indices of the runs to change, or a mask of them ``[runs]`` (bool); all by default.
            inputs: for methods that look at activations: a batch of each learner's inputs, by the learner's
                name ("net" for a single learner).
        """
        chosen = None if runs is None else torch.as_tensor(runs)
        for learner, _ in _learners(agent_or_learner).values():
            chosen = _indices(chosen, learner.runs)
        self._apply_(agent_or_learner, chosen, inputs)

    def _apply_(self, target: Agent | Learner, runs: Tensor | None, inputs: Inputs | None) -> None:
        raise TypeError(f"{type(self).__name__} is not an intervention: it changes nothing")


def _learners(target: Agent | Learner) -> dict[str, tuple[Learner, list[nn.Module]]]:
    """Each learner with the networks that follow it (a target network)."""
    if isinstance(target, Learner):
        return {"net": (target, [])}
    follow = target.followers
    return {n: (y, [follow[n]] if n in follow else []) for n, y in target.learners.items()}


def _indices(runs: Tensor | None, axes: tuple[int, ...]) -> Tensor | None:
    """`runs` as indices below the number of runs."""
    if runs is None:
        return None
    if len(axes) != 1:
        raise ValueError("runs were chosen, but the network has no runs axis")
    if runs.dtype == torch.bool and runs.shape == axes:
        runs = runs.nonzero().flatten()
    if runs.dtype.is_floating_point or runs.dtype == torch.bool or not ((runs >= 0) & (runs < axes[0])).all():
        raise ValueError(
            f"runs must be indices from 0 to {axes[0] - 1} or a mask of length {axes[0]}, got {runs.tolist()}"
        )
    return runs.to(torch.int64)


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


def _names(layer: Layer) -> list[str]:
    return [n for n in (layer.weight_name, layer.bias_name) if n is not None]


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

    def __init__(
        self, every_updates: int | None = 1_000, every_tasks: int | None = None, threshold: float = 0.025
    ) -> None:
        super().__init__(every_updates, every_tasks)
        if not threshold >= 0:
            raise ValueError(f"threshold must be non-negative, got {threshold}")
        self.threshold = threshold

    @torch.no_grad()
    def _apply_(self, target: Agent | Learner, runs: Tensor | None, inputs: Inputs | None) -> None:
        for name, (learner, _) in _learners(target).items():
            if inputs is None or name not in inputs:
                raise ValueError(f"ReDo looks at activations: it needs inputs for {name!r}")
            units = hidden_units(learner.net)
            if not units:
                raise ValueError("ReDo has nothing to act on: the network has no hidden activation module")
            with eval_mode(learner.net):
                activations = activations_of(learner.net, units, inputs[name])
            k = len(learner.runs)
            chosen = torch.ones(learner.runs, dtype=torch.bool, device=activations[0].device)
            if runs is not None:
                chosen[:] = False
                chosen[runs] = True
            dormant = []  # of each layer, [*runs, units]
            for unit, activation in zip(units, activations, strict=True):
                axis = k + 1 if unit.incoming.role == "conv" else -1
                dormant.append((self._score(activation.movedim(axis, k), k) <= self.threshold) & chosen.unsqueeze(-1))

            fresh = learner.fresh(runs)
            for unit, mask in zip(units, dormant, strict=True):
                for layer in (unit.incoming, *unit.norms):
                    for parameter in _names(layer):
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
        where = mask.reshape(shape)
        for moment in learner.optimizer.moments(name):
            moment.masked_fill_(where, 0)
        replacement = torch.zeros_like(parameter) if value is None else value
        parameter.copy_(torch.where(where, replacement, parameter))


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


@contextmanager
def eval_mode(net: nn.Module) -> Any:
    """Evaluation mode inside, each module's own mode afterwards: looking must not move BatchNorm's statistics."""
    modes = {module: module.training for module in net.modules()}
    net.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def activations_of(net: nn.Module, units: Sequence[HiddenUnits], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The output of each activation module in `units` when `net` is called on `inputs`."""
    outputs: dict[str, list[Tensor]] = {unit.activation: [] for unit in units}
    keep: Callable[[str], Any] = lambda name: lambda _m, _i, out: outputs[name].append(out.clone())  # noqa: E731
    hooks = [net.get_submodule(n).register_forward_hook(keep(n)) for n in outputs]
    try:
        net(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return [outputs[unit.activation][unit.call] for unit in units]


INTERVENTIONS: dict[str, type[Intervention]] = {
    "periodic": PeriodicReset,
    "head": HeadReset,
    "shrink_perturb": ShrinkAndPerturb,
    "redo": ReDo,
}


def make_intervention(name: str, **settings: Any) -> Intervention:
    """The intervention called `name`.

    Raises:
        ValueError: an unknown name or setting (the nearest valid one is named), or a setting out of range.
    """
    kind = INTERVENTIONS.get(name)
    if kind is None:
        raise ValueError(f"unknown intervention {name!r}{nearest(name, INTERVENTIONS)}")
    parameters = inspect.signature(kind.__init__).parameters
    valid = {n: p.default for n, p in parameters.items() if n != "self"}
    for key in settings:
        if key not in valid:
            raise ValueError(f"unknown setting {key!r} of intervention {name!r}{nearest(key, valid)}")
    return kind(**settings)


__all__ = [
    "INTERVENTIONS",
    "HeadReset",
    "Intervention",
    "LearningRateDecay",
    "PeriodicReset",
    "ReDo",
    "ShrinkAndPerturb",
    "copy_runs_",
    "make_intervention",
]
