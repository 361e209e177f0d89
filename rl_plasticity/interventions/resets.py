"""Interventions that give networks, heads or all parameters new values, and the decay of the learning rate."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from rl_plasticity.interventions.base import Change, EveryTasks, EveryUpdates, Intervention, Part, Target, gradient_of
from rl_plasticity.learning.optimizers import orthogonalized
from rl_plasticity.learning.torch_state import TorchState
from rl_plasticity.settings import Setting, checked
from rl_plasticity.structure import Example, Structure, read
from rl_plasticity.structure.layer import COMPUTED, Layer, lookup, wide

MAPS = ("linear", "conv")


class PeriodicReset(Intervention):
    """Periodic reset: all networks, targets, temperature, optimizers and regularizers start over with new weights.

    The new weights differ each time. The replay buffer stays, so a reset run equals a fresh agent on the old buffer.

    Source: Nikishin et al. (2022); D'Oro et al. (2023) reset every 2.56 million updates.
    """

    @checked
    def __init__(self, every_updates: EveryUpdates = 2_560_000, every_tasks: EveryTasks = None) -> None:
        super().__init__(every_updates, every_tasks)

    def _apply_(self, target: Target, runs: Tensor | None) -> None:
        target.restart_(runs)


class HeadReset(Intervention):
    """Head reset: gives the last layers new weights and zeroes their optimizer moments; targets' heads are reset too.

    The optimizer's step count stays. The head of a target is set to the new head, because the old one would teach the
    new one what it has just forgotten.

    Source: Nikishin et al. (2022), section 4 (last layers). The default choice of layers follows Oh et al. (2024),
    Appendix D.2 ("we reinitialized the fully connected layers", of an MLP "the final layer" only).

    Args:
        num_layers: number of linear or convolution layers to reset, counted from the output, with the norm layers
            between them. By default the classifier: the fully connected layers of a network with convolutions, else
            the last layer.
    """

    targets = "alike"

    @checked
    def __init__(
        self,
        every_updates: EveryUpdates = 100_000,
        every_tasks: EveryTasks = None,
        num_layers: Annotated[
            int | None,
            Setting(
                "number of last layers to reset; null: a CNN's fully connected layers, else only the last", least=1
            ),
        ] = None,
    ) -> None:
        super().__init__(every_updates, every_tasks)
        self.num_layers = num_layers

    def change(self, part: Part, runs: Tensor | None) -> Change:
        names = self._last_names(part.learner.net, part.example)
        if not names:
            raise ValueError(
                "a head reset has nothing to act on: the network has no output layer with a weight of its own (a "
                "language model's may be its embedding's)"
            )
        fresh = part.fresh(runs, names)
        return Change({name: lookup(fresh, name).detach() for name in names}, dict.fromkeys(names), fresh)

    def _last_names(self, net: nn.Module, example: Example | None) -> set[str]:
        structure = read(net, example)
        structure.require_heads("a head reset", takes_heads=False)
        chosen, trained = self._last_maps(structure), {*structure.trained}
        if made := [structure.layers[i].name for i in sorted(chosen) if structure.layers[i].kind == COMPUTED]:
            raise ValueError(
                f"a head reset cannot renew {', '.join(made[:3])}: the forward computes its weight. "
                "Use shrink_perturb, or reset the tensors that it is computed from yourself"
            )
        names = {name for layer in _with_what_lies_between(structure, chosen) for name in layer.parameter_names}
        if names and (tied := sorted(structure.of_heads & trained - names)):
            raise ValueError(
                f"a head reset cannot renew {tied[0]}: an output layer shares it with another layer. Use "
                "shrink_perturb, or reset what you want to renew yourself"
            )
        modules = dict(net.named_modules())
        for layer in (structure.layers[i] for i in chosen):
            if layer.weight_name and layer.name in modules:
                # Its module's other parameters: the length of its rows, an ensemble's signs, a second bias.
                own = [name for name, _ in modules[layer.name].named_parameters()]
                own = [name for name in own if "." not in name or name.startswith("parametrizations.")]
                names |= {f"{layer.name}.{name}".lstrip(".") for name in own} & trained - structure.shared
        return names

    def _last_maps(self, structure: Structure) -> set[int]:
        """The positions of the last linear and convolution layers."""
        if self.num_layers is None:
            return {*structure.classifier}
        layers = structure.layers
        chosen = frontier = {i for i, layer in enumerate(layers) if layer.head}
        for _ in range(self.num_layers - 1):
            waiting, frontier = [source for i in frontier for source in layers[i].inputs], set()
            while waiting:
                i = waiting.pop()
                if layers[i].role in MAPS:
                    frontier.add(i)
                else:
                    waiting += layers[i].inputs
            chosen = chosen | frontier
        return chosen


def _with_what_lies_between(structure: Structure, chosen: set[int]) -> Iterator[Layer]:
    """The layers at these positions, and those of another kind on a way between two of them."""
    layers, behind, ahead = structure.layers, {*chosen}, {*chosen}
    for i, layer in enumerate(layers):
        if layer.role not in MAPS and behind & {*layer.inputs}:
            behind.add(i)
    for i in reversed(range(len(layers))):
        if i in ahead:
            ahead.update(source for source in layers[i].inputs if layers[source].role not in MAPS)
    return (layers[i] for i in behind & ahead)


class OptimizerReset(Intervention):
    """Optimizer reset: the state of the optimizers starts over; weights, targets and regularizers stay.

    The moments m, v and the step count t become 0, as in a new optimizer; the learning rate stays.

    Source: Asadi, Fakoor and Sabach (2023), "Resetting the Optimizer in Deep RL: An Empirical Study", arXiv 2306.17833.
    Deviations:

    - They reset at each copy of the network into its target, which changes the loss. Here the period is a setting; by
      default it is 2000 updates, as Dopamine's Rainbow copies. Targets that average have no period.
    - An agent's learners are reset, but not the temperature, which is one number with a loss of its own.

    Raises:
        ValueError: a plain network was given no optimizer.
    """

    forgets = False
    restarts_optimizer = True

    @checked
    def __init__(self, every_updates: EveryUpdates = 2_000, every_tasks: EveryTasks = None) -> None:
        super().__init__(every_updates, every_tasks)

    def change(self, part: Part, runs: Tensor | None) -> Change:
        state = part.learner.optimizer
        if isinstance(state, TorchState) and not state.optimizers:
            raise ValueError("an optimizer reset has nothing to act on: pass the network's optimizers, not ()")
        return Change({})


class ShrinkAndPerturb(Intervention):
    """Shrink and perturb: p <- (1 - coef) p + coef * p_init, in targets too; optimizers and frozen parameters stay.

    Source: Ash and Adams (2020), in the one-parameter form of Oh et al. (2024), Appendix D.2.

    Args:
        coef: share of the initial values; the SWR paper's grid is 0.2 to 0.8.
        init: "saved", the run's own initial weights (as in the SWR paper), which only a `Learner` knows; or "fresh",
            new ones each time.
    """

    targets = "alike"

    @checked
    def __init__(
        self,
        every_updates: EveryUpdates = 100_000,
        every_tasks: EveryTasks = None,
        coef: Annotated[float, Setting("share of the initial weights in the new ones", least=0, most=1)] = 0.2,
        init: Annotated[
            Literal["saved", "fresh"], Setting("initial weights: saved (the run's own) or fresh")
        ] = "saved",
    ) -> None:
        super().__init__(every_updates, every_tasks)
        self.coef, self.init = coef, init

    def change(self, part: Part, runs: Tensor | None) -> Change:
        names = {name for name, p in part.learner.net.named_parameters() if p.requires_grad}
        source = part.learner.initial() if self.init == "saved" else part.fresh(runs, names)
        initial = dict(source.named_parameters())
        return Change({name: partial(torch.lerp, end=initial[name], weight=self.coef) for name in names})


class Fire(Intervention):
    """FIRE: replaces every weight by the nearest orthogonal matrix, and resets the optimizer.

    W = U S V^T becomes sqrt(out / in) U V^T. A linear layer's matrix is out x in. A convolution's kernel is treated at
    each position separately and divided by the number of positions. Heads are included; biases and norm layers stay.

    U V^T is approximated by `iterations` Newton-Schulz steps X <- 1.5 X - 0.5 X X^T X from X = W / |W|_F. A singular
    value below 1.5^-iterations of |W|_F does not reach its target in them and stays smaller. Targets become copies of
    the changed network. No regularizer's reference changes.

    Source: Han et al. (2026), "FIRE: Frobenius-Isometry Reinitialization for Balancing the Stability-Plasticity
    Tradeoff", arXiv 2602.08040, as in their code (github.com/isaac7778/FIRE, vision/interventions/fire.py and
    rl/sac/scale_rl/agents/simba/projection.py). Deviations:

    - There, in SAC, the temperature is reset too.
    - In a vision transformer they change only queries and keys.
    - In a language model they change packed queries, keys and values separately; here these are one matrix, as stored.
    - In DQN all linear layers return to their initial values there instead, and Adam's moments stay.

    Args:
        iterations: 10 in their code, 5 for a language model.

    Raises:
        ValueError: the network has no linear or convolution layer; it has one whose weight is computed; it has factors
            of low-rank adapters; or it has bare parameters and cannot be traced, and no example was given.
    """

    targets, restarts_optimizer = "copy", True

    @checked
    def __init__(
        self,
        every_updates: EveryUpdates = 100_000,
        every_tasks: EveryTasks = None,
        iterations: Annotated[int, Setting("Newton-Schulz steps", least=1, most=100)] = 10,
    ) -> None:
        super().__init__(every_updates, every_tasks)
        self.iterations = iterations

    def change(self, part: Part, runs: Tensor | None) -> Change:
        net = part.learner.net
        found = _linear_maps(net, part.example, "fire")
        return Change({layer.key: self._orthogonal(layer, lookup(net, layer.key).detach()) for layer in found})

    def _orthogonal(self, layer: Layer, weight: Tensor) -> Tensor:
        """The new value of `weight` ``[*runs, a, b, *positions]``, float32 or wider; a and b are out and in."""
        if layer.role != "conv":
            matrix = layer.matrix_of(wide(weight))
            near = orthogonalized(matrix, self.iterations, (1.5, -0.5, 0.0))
            return layer.of_matrix(near, weight.shape) * math.sqrt(matrix.shape[-2] / matrix.shape[-1])
        k, positions = len(layer.runs), weight[(0,) * (len(layer.runs) + 2)].numel()
        # [*runs, groups, *positions, a / groups, b]; transposing a matrix transposes its polar factor
        split = torch.unflatten(wide(weight), k, (layer.groups, -1))
        matrices = split.movedim((k + 1, k + 2), (-2, -1))
        near = orthogonalized(matrices, self.iterations, (1.5, -0.5, 0.0)).movedim((-2, -1), (k + 1, k + 2))
        out, fan_in = matrices.shape[-2:][:: -1 if layer.transposed else 1]
        return near.flatten(k, k + 1) * (math.sqrt(out / fan_in) / positions)


class Dash(Intervention):
    """DASH, direction-aware shrinking: weights shrink unless they point along the negative gradient.

    w <- max(lambda, cos(w, -g)) w, with g the gradient of the same entries; the cosine of a zero vector is 0. A vector
    w is a unit's incoming weights in a linear layer, the kernel between one input and one output channel in a
    convolution, and a layer's whole bias. Heads are included; norm layers and the optimizer's moments stay. Targets
    shrink by the same factors. No regularizer's reference changes.

    Source: Shin et al. (2024), "DASH: Warm-Starting Neural Network Training in Stationary Settings without Loss of
    Plasticity", arXiv 2410.23495, as in the code of Han et al. (github.com/isaac7778/FIRE,
    vision/interventions/dash.py). Deviations:

    - There g is a running mean over a pass through the new data with fixed weights; the latest batch's share is 0.1 or
      0.3. Here it is the optimizer's running mean (or sum) of the gradients of the last updates; with Adam the share is
      0.1. For a plain network it is what the last backward passes left.
    - There training goes on with a new optimizer.

    Args:
        least: lambda, 0.05 to 0.3 in the experiments of Han et al.

    Raises:
        SettingsError: no gradient is kept.
        ValueError: as `Fire`.
    """

    targets = "alike"

    @checked
    def __init__(
        self,
        every_updates: EveryUpdates = 100_000,
        every_tasks: EveryTasks = None,
        least: Annotated[
            float, Setting("smallest factor that a weight is multiplied by (lambda)", least=0, most=1)
        ] = 0.05,
    ) -> None:
        super().__init__(every_updates, every_tasks)
        self.least = least

    def change(self, part: Part, runs: Tensor | None) -> Change:
        net, new = part.learner.net, {}
        for layer in _linear_maps(net, part.example, "dash"):
            for name in layer.parameter_names:
                axes = self._axes(layer, name, lookup(net, name).ndim)
                w, g = wide(lookup(net, name)), gradient_of(part.learner, name, "dash")
                cosine = -(_unit(w, axes) * _unit(g, axes)).sum(axes, keepdim=True)
                new[name] = partial(torch.mul, other=cosine.clamp(self.least, 1))
        return Change(new)

    def _axes(self, layer: Layer, name: str, ndim: int) -> tuple[int, ...]:
        """The axes along which the vectors of the layer's parameter called `name` lie."""
        if name == layer.bias_name:
            return (-1,)
        if layer.role == "conv":
            return (*range(len(layer.runs) + 2, ndim),)
        return (-2,) if layer.transposed else (*range(len(layer.runs) + 1, ndim),)


def _unit(tensor: Tensor, axes: tuple[int, ...]) -> Tensor:
    size = torch.linalg.vector_norm(tensor, dim=axes, keepdim=True)
    return torch.where(size > 0, tensor / size, 0)


def _linear_maps(net: nn.Module, example: Example | None, method: str) -> list[Layer]:
    """The linear and convolution layers of `net`, for a method that changes their weights in place.

    Raises:
        ValueError: there is none, a weight is computed, or one is a factor of an adapter.
    """
    structure = read(net, example)
    found = [layer for layer in structure.layers if layer.is_linear_map]
    structure.check_bare(method, net, found, least_axes=2)
    if not found:
        raise ValueError(
            f"{method} has nothing to act on: the network has no linear or convolution layer{structure.beside}"
        )
    if computed := [layer.name for layer in found if layer.is_computed]:
        raise ValueError(
            f"{method} changes weights in place, which the parametrization of {computed[0]!r} undoes: remove it "
            "(torch.nn.utils.parametrize.remove_parametrizations), or use shrink_perturb"
        )
    return found


class LearningRateDecay(Intervention):
    """Learning-rate decay: lr <- factor * lr, and SWR takes the current norms as its initial ones ("SWR + re-init").

    Source: Oh et al. (2024), Appendix E: the learning rate is divided by 10 at epochs 100 and 150.

    Args:
        at_updates: numbers of updates after which to decay.
        factor: ratio of the new learning rate to the old.
        rebase: whether regularizers take the current weights as their new reference; this affects only SWR.
    """

    counted = False

    @checked
    def __init__(
        self,
        at_updates: Sequence[int],
        factor: Annotated[float, Setting("factor that multiplies the learning rate", above=0)] = 0.1,
        rebase: Annotated[bool, Setting("whether SWR takes the current norms as its new reference")] = True,
    ) -> None:
        super().__init__(at_updates=tuple(at_updates))
        self.factor, self.rebase = factor, rebase

    def _apply_(self, target: Target, runs: Tensor | None) -> None:
        if runs is not None:
            raise ValueError("all runs share a learning rate: it cannot decay for only some of them")
        for part in target.parts.values():
            part.learner.scale_lr_(self.factor, self.rebase)
