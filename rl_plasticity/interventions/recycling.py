"""Interventions that reinitialize single hidden units or weights."""

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from rl_plasticity.errors import SettingsError, in_short, warn
from rl_plasticity.interventions.base import Change, EveryTasks, EveryUpdates, Intervention, Part, gradient_of
from rl_plasticity.interventions.plain import PlainNet
from rl_plasticity.settings import Setting, checked
from rl_plasticity.structure import Example, HiddenLayer, activations_of, hidden_units, read, recycled, shared_with
from rl_plasticity.structure.layer import lookup, wide


class ReDo(Intervention):
    """ReDo: recycles dormant hidden units, with new incoming weights, zero outgoing weights and zero optimizer moments.

    A unit's score is its mean absolute activation over a batch, after the non-linearity, divided by the mean of that
    over the layer's units. A unit is dormant where score <= threshold. A norm layer between the weights and the
    non-linearity also gets its initial gain and shift at the unit. Moments are matched by parameter name, and the
    optimizer's step count stays. Targets are not changed; they follow by averaging, or at the next copy.

    Source: Sokar et al. (2023), "The Dormant Neuron Phenomenon in Deep Reinforcement Learning", Definition 3.1 and
    Algorithm 1.

    Args:
        threshold: tau, 0 to 0.1 in the paper.

    Raises:
        ValueError: no `inputs` were given, or the network has no chain of (linear or conv), activation module, (linear
            or conv).
    """

    forgets = False  # the other units keep what they learned

    @checked
    def __init__(
        self,
        every_updates: EveryUpdates = 1_000,
        every_tasks: EveryTasks = None,
        threshold: Annotated[float, Setting("largest score of a unit that is recycled", least=0)] = 0.025,
    ) -> None:
        super().__init__(every_updates, every_tasks)
        self.threshold = threshold

    def change(self, part: Part, runs: Tensor | None) -> Change:
        found = [(unit, _small(size, self.threshold)) for unit, size in self.sizes(part)]
        fresh = part.fresh(runs, {n for u, _ in found for y in (u.incoming, *u.norms) for n in y.parameter_names})
        new = recycled(part.learner.net, found, lambda _, name: lookup(fresh, name))
        masks = {name: where for name, (where, _) in new.items()}
        units = torch.stack([small.sum(-1).cpu() for _, small in found]).sum(0)
        values = {name: value for name, (_, value) in new.items()}
        return Change(values, masks, None, units, zeroed=[*_read_by_others(part, found, type(self).__name__)])

    def sizes(self, part: Part) -> list[tuple[HiddenLayer, Tensor]]:
        """What is compared with the layer's mean, ``[*runs, units]``, for each group of hidden units."""
        net, example = part.learner.net, part.example
        if example is None:
            how = "example=x" if isinstance(part.learner, PlainNet) else f"inputs={{{part.name!r}: x}}"
            raise ValueError(
                f"ReDo finds dormant units by their activations: pass {how}, with a batch x of the network's inputs"
            )
        units = _hidden_units(net, example, "ReDo")
        seen = zip(units, activations_of(net, units, example), strict=True)
        return [(u, u.by_unit(a).abs().mean(-1)) for u, a in seen]


class ReGraMa(ReDo):
    """ReGraMa: recycles the hidden units that hardly get a gradient, in the same way as `ReDo`.

    A unit's score is the mean absolute gradient of its incoming weights, divided by the mean of that over the layer's
    units. A unit is recycled where score <= threshold.

    Source: Liu et al. (2025), "Measure gradients, not activations! Enhancing neuronal activity in deep reinforcement
    learning", arXiv 2505.24061, as in a copy of their code (github.com/rippl-svg/grad-based-plasticity-metrics,
    utils/ReDo.py, GradientReDo). Deviations:

    - There the gradient is the last batch's. Here it is so for a plain network; for a `Learner` or an agent, it is the
      optimizer's running mean (or sum) of the gradient.
    - There outgoing weights stay, and so does the function's dependence on the unit. Output units and the gains of norm
      layers have scores of their own there; here outputs stay, and a gain goes with its unit.
    - Their default threshold is 0. Adam's mean of a unit that died takes hundreds of updates to become exactly 0.

    Args:
        threshold: tau.

    Raises:
        SettingsError: no gradient is kept.
        ValueError: the network has no chain of (linear or conv), activation module, (linear or conv), or it cannot be
            traced and no `inputs` were given.
    """

    def sizes(self, part: Part) -> list[tuple[HiddenLayer, Tensor]]:
        sizes = []
        for unit in _hidden_units(part.learner.net, part.example, "ReGraMa"):
            assert unit.incoming.weight_name is not None  # of a linear or convolution layer
            gradient = gradient_of(part.learner, unit.incoming.weight_name, "regrama")
            sizes.append((unit, unit.incoming.matrix_of(gradient).abs().mean(-1)))
        return sizes


class SelectiveReinit(Intervention):
    """Selective weight reinitialization: gives the individual weights of least utility new initial values.

    The utility of a weight w is |g w| (first order), with g its gradient. Weights are chosen within each tensor,
    including biases, gains and heads. With "threshold", they are those whose utility is at most `factor` times the
    tensor's mean. With "share", they are the share `factor` of lowest utility, and more where several are equal. The
    optimizer's moments stay. Targets are not changed; they follow by averaging, or at the next copy.

    Source: Hernandez-Garcia et al. (2025), "Reinitializing weights vs units for maintaining plasticity in neural
    networks", arXiv 2508.00212, as in their code (github.com/JFernando4/collas_2025_swr_paper,
    src/swr_functions/selective_weight_reinitialization.py). The paper also calls it SWR; that name means soft weight
    rescaling here. Deviations:

    - There g is the last batch's gradient. Here it is so for a plain network; for a `Learner` or an agent, g is the
      optimizer's running mean (or sum) of the gradient.
    - They also try |w| as the utility, which did not keep plasticity.
    - A share that is not a whole number of weights is rounded down here; in theirs the number is drawn.
    - New values are those of a new network here; in theirs they come from distributions specified for each network.

    As in theirs, with a threshold a tensor whose weights all have zero utility, for example because all gradients are
    0, is reinitialized as a whole.

    Args:
        choose: "threshold" or "share".
        factor: 1e-5 in most of their experiments, with a threshold.

    Raises:
        SettingsError: no gradient is kept.
    """

    forgets = False  # the other weights keep what they learned

    @checked
    def __init__(
        self,
        every_updates: EveryUpdates = 2_048,
        every_tasks: EveryTasks = None,
        choose: Annotated[
            Literal["threshold", "share"],
            Setting("weights to reinitialize: those of low utility (threshold), or a fixed share"),
        ] = "threshold",
        factor: Annotated[
            float, Setting("multiple of a tensor's mean utility (threshold) or share of its weights (share)", least=0)
        ] = 1e-5,
    ) -> None:
        super().__init__(every_updates, every_tasks)
        if choose == "share" and factor > 1:
            raise SettingsError(f"factor must be at most 1 with choose=share, got {factor}")
        self.choose, self.factor = choose, factor

    def change(self, part: Part, runs: Tensor | None) -> Change:
        learner = part.learner
        trained = [(name, p) for name, p in learner.net.named_parameters() if p.requires_grad]
        use = {name: (gradient_of(learner, name, "selective_reinit") * wide(p)).abs() for name, p in trained}
        least = {name: self._least(use[name], len(learner.runs)) for name in use}
        fresh = part.fresh(runs, {*least})
        return Change({name: torch.where(least[name], lookup(fresh, name), p) for name, p in trained})

    def _least(self, use: Tensor, k: int) -> Tensor:
        """A mask of the entries of ``[*runs, ...]`` with the lowest utility, within each run."""
        flat = use.flatten(k) if use.ndim > k else use.unsqueeze(-1)
        if self.choose == "threshold":
            limit = self.factor * flat.mean(-1, keepdim=True)
        else:
            number = math.floor(self.factor * flat.shape[-1] + 1e-9)  # 0.29 * 100 is a little less than 29
            limit = flat.kthvalue(number, dim=-1, keepdim=True).values if number else torch.tensor(-1.0)
        return (flat <= limit).reshape(use.shape)


def _read_by_others(
    part: Part, found: Sequence[tuple[HiddenLayer, Tensor]], method: str
) -> Iterator[tuple[Tensor, Tensor]]:
    """The weights of other networks that read these units of a plain network, and which entries do.

    Raises:
        ValueError: how a reader reads them cannot be found out.
    """
    if not isinstance(part.learner, PlainNet):
        return
    net, readers = part.learner.net, part.learner.readers
    if not readers and (shared := shared_with(net)):
        warn(
            f"{method} changes units of a {shared} that another module holds too: pass readers=, the networks that "
            "read these units, or their outputs change"
        )
    for reader in readers:
        its = {lookup(reader, u.incoming.key): u for u in hidden_units(reader) or hidden_units(reader, part.example)}
        parameters = {*reader.parameters()}
        for unit, small in found:
            if (weight := lookup(net, unit.incoming.key)) in its:
                read_by = (layer.columns_of(reader, small) for layer in its[weight].outgoing)
                # The network's own weights are zero already, and stay so.
                yield from ((lookup(reader, name), where) for name, where in read_by)
            elif weight in parameters:
                raise ValueError(
                    f"readers=: how {type(reader).__name__} reads the units of {unit.incoming.name!r} is not known"
                )


def _small(size: Tensor, threshold: float) -> Tensor:
    """A mask ``[*runs, units]`` of the units whose share of the mean size is at most `threshold`.

    Where no example reached a layer, as in an expert that gets none of the batch, the size is NaN and no unit is small.
    """
    mean = size.mean(-1, keepdim=True)
    return torch.where(mean == 0, 0, size / mean) <= threshold


def _hidden_units(net: nn.Module, example: Example | None, method: str) -> list[HiddenLayer]:
    """The hidden units of `net`, layer by layer."""
    structure = read(net, example)
    structure.require_order(method)
    # Columns of a weight that is computed from trained tensors cannot be set to zero.
    units = [unit for unit in structure.hidden_units(net) if not any(y.is_computed for y in unit.layers)]
    left = structure.not_among(units)
    why = "its units are joined, shared, moved, made by computed weights or read by something that is not a layer"
    if not units:
        behind = f" but behind {in_short(left)}, where {why}" if left else ""
        raise ValueError(f"{method} has nothing to act on: the network has no hidden activation{behind}")
    if left:
        warn(f"{method} leaves alone what is behind {in_short(left)}: {why}")
    return units
