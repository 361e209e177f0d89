"""A learner's network looked at on frozen inputs, so that what is measured is comparable over time."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from rl_plasticity.interventions import eval_mode
from rl_plasticity.layers import Layer
from rl_plasticity.learner import Learner
from rl_plasticity.metrics import (
    METRICS,
    OfFeatures,
    OfGradients,
    OfWeights,
    balancedness,
    distance,
    effective_learning_rate,
    feature_matrix,
    gradient_spectrum,
    largest_sigma1,
    representation_change,
    singular_values,
    weight_norm,
)
from rl_plasticity.structure import HiddenUnits, activations_of, hidden_units, layers

PROBE_SIZE = 256  # examples whose activations are looked at
GRADIENTS = 32  # of them, those of which each one's gradient is taken
LARGEST = 4_000_000  # weights of a layer whose gradients are taken: one example's then are 16 MB


class Probe(nn.Module):
    """Measures a network's weights, features and gradients. Nothing that training uses is changed.

    The features of the last measurement are saved, so a resumed run goes on measuring as it would have.

    Args:
        learner: whose network is looked at; always in evaluation mode, so BatchNorm's statistics stay.
        inputs: what the network reads, each ``[*runs, n, ...]``; always the same.
    """

    before: Tensor

    def __init__(self, learner: Learner, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self._learner = [learner]  # in a list: not a submodule of this one
        self.layers: list[Layer] = [layer for layer in layers(learner.net) if layer.matrix(learner.net) is not None]
        self.units: list[HiddenUnits] = hidden_units(learner.net)
        self._names = []
        for i, x in enumerate(inputs):
            self.register_buffer(f"input_{i}", x.detach().clone(), persistent=False)
            self._names.append(f"input_{i}")
        features = self._features()
        self.register_buffer("before", features[-1].clone() if features else torch.zeros(0))

    @property
    def inputs(self) -> list[Tensor]:
        """What the network is called on."""
        return [self.get_buffer(name) for name in self._names]

    @torch.no_grad()
    def measure(self, loss: Callable[..., Tensor], targets: Sequence[Tensor]) -> dict[str, Tensor]:
        """Every measure ``[*runs]`` by name: the mean over layers as NAME, that of each layer as NAME/LAYER.

        Args:
            loss: of the network's output and `targets`, for one example, ``[*runs]``.
            targets: each ``[*runs, n, ...]``, as many as inputs.
        """
        values = self.weights() | self.features() | self.gradients(loss, targets)
        if self.before.numel():
            after = self._features()[-1]
            values["representation_change"] = representation_change(self.before, after)
            self.before.copy_(after)
        return values

    def weights(self) -> dict[str, Tensor]:
        """Of the weight matrices, and the distance of all parameters from their initial values."""
        (learner,) = self._learner
        matrices = {layer.name: layer.matrix(learner.net) for layer in self.layers}
        tensors = {name: (m.detach(), singular_values(m.detach())) for name, m in matrices.items() if m is not None}
        values = _measured(OfWeights, tensors)
        if "sigma1" in values:  # that name is the largest of any layer, see `size_of`
            values["mean_sigma1"] = values.pop("sigma1")
        current, initial = learner.net.parameters(), learner.initial().parameters()
        values["distance"] = distance(current, initial, learner.runs)
        chain = self._chain()
        if chain:
            values["balancedness"] = balancedness(chain, updates=50)
        return values

    def features(self) -> dict[str, Tensor]:
        """Of the activations of the hidden units, after the non-linearity."""
        names = [unit.activation + (f".{unit.call}" if unit.call else "") for unit in self.units]
        return _measured(OfFeatures, {n: (a, singular_values(a)) for n, a in zip(names, self._features(), strict=True)})

    def gradients(self, loss: Callable[..., Tensor], targets: Sequence[Tensor]) -> dict[str, Tensor]:
        """Effective gradient diversity: of the matrix of single examples' gradients of each weight."""
        (learner,) = self._learner
        k = len(learner.runs)
        names = {layer.weight_name: layer.name for layer in self.layers if layer.weight_name is not None}
        small = [n for n in names if learner.net.get_parameter(n).numel() <= LARGEST * max(1, *learner.runs, 1)]
        if not small:
            return {}
        first = [x.narrow(k, 0, min(GRADIENTS, x.shape[k])) for x in (*self.inputs, *targets)]
        inputs, wanted = tuple(first[: len(self._names)]), tuple(first[len(self._names) :])
        with eval_mode(learner.net), torch.enable_grad():
            spectra = gradient_spectrum(learner.net, small, loss, inputs, wanted, learner.runs)
        return _measured(OfGradients, {names[name]: (s,) for name, s in spectra.items()})

    def _features(self) -> list[Tensor]:
        """Activations of each layer of hidden units ``[*runs, examples, units]``."""
        (learner,) = self._learner
        if not self.units:
            return []
        with torch.no_grad(), eval_mode(learner.net):
            activations = activations_of(learner.net, self.units, self.inputs)
        return [feature_matrix(a, learner.runs) for a in activations]

    def _chain(self) -> list[Tensor]:
        """The weights of a network of linear layers with nothing but ReLUs between; empty if it is none.

        Only there does scaling a unit's incoming weights and unscaling its outgoing ones keep the function.
        """
        (learner,) = self._learner
        net = learner.net
        plain = all(
            layer.role == "linear" and not layer.joins_branches and (i == 0 or layer.inputs == (i - 1,))
            for i, layer in enumerate(layers(net))
        )
        relu = all(isinstance(net.get_submodule(u.activation), nn.ReLU) for u in self.units)
        if not plain or not relu or len(self.units) != len(self.layers) - 1:
            return []
        return [m.detach() for layer in self.layers if (m := layer.matrix(net)) is not None]


@torch.no_grad()
def size_of(learner: Learner, gradient_norm: Tensor) -> dict[str, Tensor]:
    """What is cheap enough to look at often: the norm and largest singular value of the weights, the effective rate."""
    matrices = [m for layer in learner.regularizer.layers if (m := layer.matrix(learner.net)) is not None]
    norm = weight_norm(learner.net.parameters(), learner.runs)
    values = {"weight_norm": norm, "effective_lr": effective_learning_rate(gradient_norm, norm)}
    if matrices:
        values["sigma1"] = largest_sigma1(matrices)
    return values


def _measured(
    kind: type[OfWeights | OfFeatures | OfGradients], tensors: Mapping[str, tuple[Tensor, ...]]
) -> dict[str, Tensor]:
    """Every metric of this kind, of each layer's tensors: the mean over layers as NAME, each layer's as NAME/LAYER.

    Raises:
        ValueError: a metric that does not give one number for each run.
    """
    values: dict[str, Tensor] = {}
    for name, metric in METRICS.items():
        if not isinstance(metric, kind) or not tensors:
            continue
        of_layers = {}
        for layer, arguments in tensors.items():
            value, s = metric.measure(*arguments), arguments[-1]
            if value.shape != s.shape[:-1]:
                raise ValueError(f"metric {name!r}: expected the shape {[*s.shape[:-1]]}, got {[*value.shape]}")
            of_layers[layer] = value.to(s.dtype)
        values[name] = torch.stack(list(of_layers.values())).mean(0)
        if len(of_layers) > 1:
            values |= {f"{name}/{layer}": value for layer, value in of_layers.items()}
    return values
