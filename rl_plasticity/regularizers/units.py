"""Methods that observe hidden units at every update and reinitialize single ones."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from rl_plasticity.errors import SettingsError, in_short, warn
from rl_plasticity.regularizers.base import NO_BATCH, Fraction, Regularizer
from rl_plasticity.regularizers.inside import Call, Inside
from rl_plasticity.seeding import key_of, uniform_at
from rl_plasticity.settings import Setting, checked
from rl_plasticity.structure import Example, HiddenLayer, recyclable, recycled
from rl_plasticity.structure.layer import SomeRuns, innermost, is_trained, lookup, per_run, wide


class Recycling(Regularizer):
    """Base class of methods that look at the activations of hidden units and reinitialize some of them.

    Attributes:
        seen: the kinds of the buffers that keep the reduced activations and, if there is a second one, the number of
            examples.
    """

    looks_at_data = True
    missing_call = NO_BATCH
    seen: Sequence[str]

    def __init__(self, net: nn.Module, coef: float | Tensor, every_updates: int) -> None:
        super().__init__(net, coef)
        method = type(self).__name__
        self.structure.require_order(method)
        self._acts_every(every_updates)
        self.units = self.structure.hidden_units(net)
        self._require(self.units, "hidden activation between two linear or convolution layers that are all it joins")
        modules = dict(innermost(net).named_modules())
        for unit in self.units:
            if unit.activation not in modules:
                raise ValueError(
                    f"{method} looks at activations that are modules, and {unit.activation!r} is a function: use a "
                    "module such as nn.ReLU() in the network; torch's own layers take activation=nn.ReLU()"
                )
            self._require_plain([unit.incoming, *unit.outgoing])
        if left := self.structure.not_among(self.units):
            warn(
                f"{method} leaves alone what is behind {in_short(left)}: its units are joined, shared, frozen, moved "
                "or read by something that is not a layer"
            )
        self.reads = [*dict.fromkeys(unit.activation for unit in self.units)]
        self.inside = Inside(net, returning=self.reads)
        self.checked = self.structure.example is not None
        self.renewed = False  # whether `renew_` has run once
        # Draws depend on run, layer and update; the key of a run comes from its initial weights.
        trained = [lookup(net, name) for name in self.structure.trained]
        self.register_buffer("key", key_of(trained, len(self.runs)))
        self._counts("reset_units")
        for unit in self.units:
            matrix = unit.incoming.full_matrix(net)
            bound = math.sqrt(3) * wide(matrix).square().mean((-2, -1)).sqrt()
            self._remember("bound", unit.incoming.key, bound.to(self.coef.dtype))
            for norm in unit.norms:
                for name in norm.parameter_names:
                    self._remember("initial", name, lookup(net, name))

    def reduced(self, activations: Tensor) -> Tensor:
        """What is kept of activations ``[*runs, units, examples and positions]``: ``[*runs, units]``."""
        raise NotImplementedError

    def terms(self, _: Sequence[object], net: nn.Module, inputs: Example) -> Tensor:
        with torch.no_grad():
            for unit, *given in self.read_activations(net, inputs):
                values: list[Any] = given
                for kind, value in zip(self.seen, values, strict=False):
                    self._recall(kind, unit.incoming.key)[...] = value
        return self._zeros()

    def read_activations(self, net: nn.Module, inputs: Example) -> Iterator[tuple[HiddenLayer, Tensor, int]]:
        """Yield each group of units, their reduced activations ``[*runs, units]``, and the number of examples.

        Raises:
            ValueError: the inputs are not a batch; or, where no example was given, the first batch shows that the
                units were misread.
        """
        if not (self.checked or torch.compiler.is_compiling() or isinstance(net, SomeRuns)):
            self._check_units(net, inputs)
        kept = inputs.kept.get(self, {}) if isinstance(inputs, Call) else {}
        of_calls = {name: dict(enumerate(kept.get(name, []))) for name in self.reads}
        if all(of_calls[unit.activation].get(unit.call) is not None for unit in self.units):
            for unit in self.units:
                yield unit, *of_calls[unit.activation][unit.call]
        else:
            seen = self.inside(net, inputs)
            for unit in self.units:
                yield unit, *self._of_unit(unit, seen[unit.activation][unit.call])

    def _check_units(self, net: nn.Module, inputs: Example) -> None:
        """Where no example was given, check on the first batch that the units' columns were read correctly."""
        kept = recyclable(net, self.units, inputs)
        wrong = [unit.activation for unit in self.units if unit not in kept]
        if wrong:
            raise ValueError(
                f"{type(self).__name__} would change the network's outputs by new units behind "
                f"{', '.join(wrong[:3])}: pass example=(a real input, ...), so that they are left alone"
            )
        self.checked = True

    def read(self, name: str, call: int, output: Tensor) -> tuple[Tensor, int] | None:
        """Reduced activations from a loop's own call; None if the inputs are not a batch."""
        found = [unit for unit in self.units if (unit.activation, unit.call) == (name, call)]
        try:
            return self._of_unit(found[0], output) if found else None
        except ValueError:
            return None

    def _of_unit(self, unit: HiddenLayer, activation: Tensor) -> tuple[Tensor, int]:
        return self.reduced(unit.by_unit(activation)), activation.shape[len(self.runs)]

    def units_now(self, net: nn.Module) -> list[HiddenLayer]:
        """The units whose parameters are all trainable now."""
        return [
            unit
            for unit in self.units
            if all(is_trained(net, name) for layer in unit.layers for name in layer.parameter_names)
        ]

    def renew_(self, net: nn.Module, chosen: Sequence[tuple[HiddenLayer, Tensor]]) -> dict[str, Tensor]:
        """Reinitialize at most one unit per layer (mask ``[*runs, units]``); returns masks of the new entries."""
        number = {unit: i for i, (unit, _) in enumerate(chosen)}
        # Nothing is written where no unit is chosen. On a GPU and in a trace it is, as finding out would mean waiting,
        # and the first time, so that an optimizer without moments of single entries is refused at once.
        if not torch.compiler.is_compiling() and self.coef.device.type == "cpu" and self.renewed:
            chosen = [(unit, mask) for unit, mask in chosen if mask.any()]
        self.renewed = True

        def fresh(unit: HiddenLayer, name: str) -> Tensor:
            layer = unit.incoming
            if name == layer.bias_name:
                return torch.zeros_like(lookup(net, name))
            if name != layer.weight_name:
                return self._recall("initial", name)
            matrix = layer.full_matrix(net)
            drawn = uniform_at(self.get_buffer("key"), matrix.shape[-1], number[unit], self.updates - 1)
            row = (2 * drawn - 1) * self._recall("bound", layer.key).unsqueeze(-1)
            return layer.of_matrix(row.unsqueeze(-2).expand_as(matrix), lookup(net, name).shape)

        new = recycled(net, chosen, fresh)
        for name, (_, value) in new.items():
            lookup(net, name).copy_(value)
        for _, mask in chosen:
            self._add_to_count_("reset_units", mask.sum(-1))
        return {name: where for name, (where, _) in new.items()}


class ContinualBackprop(Recycling):
    """Continual backpropagation: steadily reinitializes a small share of the mature hidden units, least useful first.

    For each layer of hidden units, at each update, with h the activations on the loss's batch before the step and w_out
    the outgoing weights after it::

        age <- age + 1
        u   <- decay * u + (1 - decay) * mean |h| * mean |w_out|         utility: u / (1 - decay^age)
        c   <- c + coef * (number of mature units: age > maturity)       number of units due, a fraction
        if c >= 1: reinitialize the mature unit of least utility; c <- c - 1

    A reinitialized unit gets new incoming weights, bias 0, outgoing weights 0, the initial gain and shift of a norm
    layer in between, age 0 and utility 0. The optimizer's moments of these entries become 0 where the optimizer is
    known (in a `Learner`, or with `attach`); its step count stays. New weights are uniform in +- sqrt(3) times the root
    mean square of the layer's initial weights. This equals torch's own initialization, or Kaiming's, where the initial
    weights came from it. Output layers stay.

    Source: Dohare et al. (2024), "Loss of plasticity in deep continual learning", Algorithm 1 with the contribution
    utility, as in their code (github.com/shibhansh/loss-of-plasticity, lop/algos/gnt.py and convGnT.py). Deviations:

    - There several units may be reinitialized in one update; here those due beyond the first wait for the next update.
    - There, in fully connected networks, c is by default drawn rather than added up.
    - For a unit read through a flattened feature map they take |h| |w_out| position by position; here it is the product
      of the means.
    - There moments become 0 only with their own Adam.
    - There the biases of the next layer are meant to take over a unit's average output, but in their code this has no
      effect; it is left out here.

    The running statistics of BatchNorm adapt to a new unit by themselves.

    Args:
        coef: rho, the replacement rate; 1e-4 in their reinforcement learning.
        maturity: age in updates beyond which a unit may be replaced; 100 in most of their supervised experiments,
            10 000 in reinforcement learning.
        decay: eta, the decay of the running mean of the utility.

    Raises:
        ValueError: the network has no chain of (linear or conv), activation module, (linear or conv).
        RuntimeError: from `project_`, if `penalty` was not called since the last `project_`.
    """

    seen = ("size",)

    @checked
    def __init__(
        self,
        net: nn.Module,
        coef: Fraction = 1e-4,
        maturity: Annotated[int, Setting("updates that a new unit is protected for", least=0)] = 100,
        decay: Annotated[float, Setting("decay of the running mean of a unit's utility", least=0, most=0.9999)] = 0.99,
    ) -> None:
        super().__init__(net, coef, every_updates=1)
        self.maturity, self.decay = maturity, decay
        for unit in self.units:
            zero = self.coef.new_zeros(*self.runs, unit.width)
            for kind in ("size", "use", "age"):
                self._remember(kind, unit.incoming.key, zero)
            self._remember("due", unit.incoming.key, zero[..., 0])

    def reduced(self, activations: Tensor) -> Tensor:
        return activations.abs().mean(-1)

    def project_all(self, _: Sequence[object], net: nn.Module, due: Tensor) -> Mapping[str, Tensor]:
        chosen = []
        for unit in self.units_now(net):
            size, use, age, pending = (self._recall(kind, unit.incoming.key) for kind in ("size", "use", "age", "due"))
            age += size.isfinite()  # not finite for an expert that received no example of the batch
            now = use.lerp(size * _reach(unit, net), 1 - self.decay)
            use.copy_(torch.where(now.isfinite(), now, use))
            mature = age > self.maturity
            pending += self.coef * mature.sum(-1)
            utility = torch.where(mature, use / (1 - self.decay**age), math.inf)
            worst = first_of(utility) & ((pending >= 1) & mature.any(-1)).unsqueeze(-1)
            pending -= worst.sum(-1)
            use.masked_fill_(worst, 0)
            age.masked_fill_(worst, 0)
            chosen.append((unit, worst))
        return self.renew_(net, chosen)


class SelfNormalizedResets(Recycling):
    """Self-normalized resets: reinitializes a hidden unit that is silent for longer than almost ever before.

    A unit fires on a batch if it is above 0 for at least one example. Its age is the number of examples since it last
    fired or was reinitialized. Of the units in a layer whose age reaches their threshold, the one furthest beyond is
    reinitialized as in `ContinualBackprop`: incoming and outgoing weights, bias and moments.

    A unit's threshold comes from its silences: how long it was silent before it fired or was reinitialized. q is the
    quantile `quantile` of the silences since the thresholds were last set. Every `every_updates` updates::

        threshold <- q if q < threshold else 2 * threshold,   within least and most; least where there was no silence

    The first threshold is `most`. Silences are counted in bins, two per octave, so where q is below the threshold, it
    may be too small by a factor of up to 1.4.

    Source: Farias and Jozefiak (2025), "Self-Normalized Resets for Plasticity in Continual Learning", arXiv 2410.20098,
    as in their code (github.com/ajozefiak/SelfNormalizedResets, src/algorithms/snr.py). We could read only the abstract
    of the paper. Deviations: there thresholds are set at every 16th change of task, from exact counts, and all units
    beyond their threshold are reinitialized at once. Where the non-linearity is not ReLU, its output decides whether a
    unit is above 0.

    Args:
        quantile: 1 minus their eta.
        every_updates: the number of updates between settings of the thresholds.
        least, most: bounds of a threshold, in examples.

    Raises:
        ValueError: as for `ContinualBackprop`, or `least` is above `most`.
        RuntimeError: as for `ContinualBackprop`.
    """

    seen = ("fires", "batch")
    BINS, AN_OCTAVE = 48, 2  # up to 2^24 examples

    @checked
    def __init__(
        self,
        net: nn.Module,
        quantile: Annotated[
            float, Setting("quantile of a unit's silent stretches that becomes its threshold", least=0, most=1)
        ] = 0.99,
        every_updates: Annotated[int, Setting("updates between adjustments of the thresholds", least=1)] = 1_000,
        least: Annotated[int, Setting("smallest threshold, in examples", least=1)] = 100,
        most: Annotated[int, Setting("largest threshold, in examples, and the initial one", least=1)] = 100_000,
    ) -> None:
        super().__init__(net, 0.0, every_updates)
        if least > most:
            raise SettingsError(f"least must be at most most={most}, got {least}")
        self.quantile, self.least, self.most = quantile, least, most
        for unit in self.units:
            key, zero = unit.incoming.key, self.coef.new_zeros(*self.runs, unit.width)
            self._remember("fires", key, zero.bool())
            self._remember("batch", key, zero[..., :1])  # number of examples
            self._remember("age", key, zero)
            self._remember("threshold", key, zero + most)
            self._remember("silences", key, zero.unsqueeze(-1).expand(*zero.shape, self.BINS))

    def reduced(self, activations: Tensor) -> Tensor:
        return (activations > 0).any(-1)

    def project_all(self, _: Sequence[object], net: nn.Module, due: Tensor) -> Mapping[str, Tensor]:
        chosen = []
        for unit in self.units_now(net):
            kinds = ("fires", "batch", "age", "threshold", "silences")
            fires, batch, age, threshold, silences = (self._recall(kind, unit.incoming.key) for kind in kinds)
            silent = age + batch
            worst = first_of(torch.where(fires, math.inf, threshold - silent)) & ~fires & (silent >= threshold)
            ends = fires | worst
            took = torch.where(fires, age, silent)  # length of the silence that ends
            bins = (took.clamp(min=1).log2() * self.AN_OCTAVE + 1e-3).long()
            # A silence as long as the threshold goes into a bin not below it, or q would seem to be shorter.
            enough = (threshold.log2() * self.AN_OCTAVE).ceil().long()
            bins = torch.where(took >= threshold, bins.maximum(enough), bins).clamp(max=self.BINS - 1)
            counts = (ends & (took > 0)).to(silences.dtype)
            silences.scatter_add_(-1, bins.unsqueeze(-1), counts.unsqueeze(-1))
            age.copy_(torch.where(ends, 0, silent))
            self._set_(threshold, silences, due)
            chosen.append((unit, worst))
        return self.renew_(net, chosen)

    def _set_(self, threshold: Tensor, silences: Tensor, due: Tensor) -> None:
        """In the runs that are `due`, set thresholds ``[*runs, units]`` from the silences, and clear the silences."""
        due = per_run(due, threshold)
        counts = silences.cumsum(-1)
        total = counts[..., -1:]
        bins = (counts < self.quantile * total).sum(-1).clamp(max=self.BINS - 1)
        q = (2.0 ** (bins / self.AN_OCTAVE) - 1e-3).ceil()
        q = torch.where(total.squeeze(-1) > 0, torch.where(q < threshold, q, 2 * threshold), self.least)
        threshold.copy_(torch.where(due, q.clamp(self.least, self.most), threshold))
        silences.masked_fill_(due.unsqueeze(-1), 0)


def first_of(score: Tensor) -> Tensor:
    """A mask of the lowest score ``[*runs, units]``; of equal scores, the first."""
    return torch.arange(score.shape[-1], device=score.device) == score.argmin(-1, keepdim=True)


def _reach(unit: HiddenLayer, net: nn.Module) -> Tensor:
    """The mean absolute weight with which the next layers read each unit, ``[*runs, units]``."""
    each = []
    for layer in unit.outgoing:
        # A unit may be read from several columns: behind a flattened feature map, or by a kernel, one per position.
        means = wide(layer.full_matrix(net)).abs().mean(-2)  # [*runs, columns]
        each.append(means.reshape(*means.shape[:-1], unit.width, -1).mean(-1))
    return reduce(torch.add, each)
