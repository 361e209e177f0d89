"""A learner's network looked at on frozen inputs, so that what is measured is comparable over time."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from rl_plasticity.interventions import activations_of, eval_mode
from rl_plasticity.layers import HiddenUnits, Layer, hidden_units, layers
from rl_plasticity.learner import Learner
from rl_plasticity.metrics import (
    balancedness,
    condition_number,
    dead_units,
    distance,
    dormant_fraction,
    effective_learning_rate,
    effective_rank,
    feature_matrix,
    feature_norm,
    frobenius_norm,
    generalized_gaussian_shape,
    gradient_spectrum,
    largest_sigma1,
    representation_change,
    singular_values,
    srank,
    stable_rank,
    weight_norm,
)

PROBE_SIZE = 256  # examples whose activations are looked at
GRADIENTS = 32  # of them, those whose own gradients are taken
LARGEST = 4_000_000  # weights of a layer whose gradients are taken: one example's then are 16 MB


class Probe(nn.Module):
    """Measures a network's weights, features and gradients. Nothing that training uses is changed.

    The features of the last measurement are saved, so a resumed run goes on measuring as it would have.

    Args:
        learner: whose network is looked at; always in evaluation mode, so BatchNorm's statistics stay.
        inputs: what the network reads, each ``[*runs, n, ...]``; kept for good.
    """

    before: Tensor

    def __init__(self, learner: Learner, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self._learner = [learner]  # in a list: not a submodule of this one
        self.layers: list[Layer] = [y for y in layers(learner.net) if y.matrix(learner.net) is not None]
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
        """Every measure ``[*runs]`` by name: the mean over layers as NAME, each layer's own as NAME/LAYER.

        Args:
            loss: of the network's output and `targets`, for one example, ``[*runs]``.
            targets: each ``[*runs, n, ...]``, as many as inputs.
        """
        found = self.weights() | self.features() | self.gradients(loss, targets)
        if not self.before.numel():
            return found
        after = self._features()[-1]
        found["representation_change"] = representation_change(self.before, after)
        self.before.copy_(after)
        return found

    def weights(self) -> dict[str, Tensor]:
        """Of the weight matrices, and the distance of all parameters from their initial values."""
        (learner,) = self._learner
        each: dict[str, dict[str, Tensor]] = {}
        for layer in self.layers:
            matrix = layer.matrix(learner.net)
            assert matrix is not None
            s = singular_values(matrix.detach())
            each[layer.name] = {
                "frobenius_norm": frobenius_norm(matrix.detach()),
                "sigma1": s[..., 0],
                "condition_number": condition_number(s),
                "stable_rank": stable_rank(s),
                "effective_rank": effective_rank(s),
                "weight_shape": generalized_gaussian_shape(matrix.detach().flatten(-2)),
            }
        found = _averaged(each)
        found["mean_sigma1"] = found.pop("sigma1")  # sigma1 is the largest of any layer, see `size_of`
        current, initial = learner.net.parameters(), learner.initial().parameters()
        found["distance"] = distance(current, initial, learner.runs)
        chain = self._chain()
        if chain:
            found["balancedness"] = balancedness(chain, updates=50)
        return found

    def features(self) -> dict[str, Tensor]:
        """Of the activations of the hidden units, after the non-linearity."""
        each = {}
        for unit, activation in zip(self.units, self._features(), strict=True):
            s = singular_values(activation)
            name = unit.activation + (f".{unit.call}" if unit.call else "")
            each[name] = {
                "dormant": dormant_fraction(activation, 0.025),
                "dead": dead_units(activation),
                "feature_srank": srank(s).to(activation.dtype),
                "feature_rank": effective_rank(s),
                "feature_norm": feature_norm(activation),
            }
        return _averaged(each)

    def gradients(self, loss: Callable[..., Tensor], targets: Sequence[Tensor]) -> dict[str, Tensor]:
        """Effective gradient diversity: of the matrix of single examples' gradients of each weight."""
        (learner,) = self._learner
        k = len(learner.runs)
        names = [y.weight_name for y in self.layers if y.weight_name is not None]
        small = [n for n in names if learner.net.get_parameter(n).numel() <= LARGEST * max(1, *learner.runs, 1)]
        if not small:
            return {}
        first = [x.narrow(k, 0, min(GRADIENTS, x.shape[k])) for x in (*self.inputs, *targets)]
        inputs, wanted = tuple(first[: len(self._names)]), tuple(first[len(self._names) :])
        with eval_mode(learner.net), torch.enable_grad():
            spectra = gradient_spectrum(learner.net, small, loss, inputs, wanted, learner.runs)
        layer = {y.weight_name: y.name for y in self.layers}
        return _averaged(
            {
                layer[name]: {"gradient_condition": condition_number(s), "gradient_rank": effective_rank(s)}
                for name, s in spectra.items()
            }
        )

    def _features(self) -> list[Tensor]:
        """Activations of each layer of hidden units ``[*runs, examples, units]``."""
        (learner,) = self._learner
        if not self.units:
            return []
        with torch.no_grad(), eval_mode(learner.net):
            found = activations_of(learner.net, self.units, self.inputs)
        return [feature_matrix(a, learner.runs) for a in found]

    def _chain(self) -> list[Tensor]:
        """The weights of a network of linear layers with nothing but ReLUs between; empty if it is none.

        Only there does scaling a unit's incoming weights and unscaling its outgoing ones keep the function.
        """
        (learner,) = self._learner
        net = learner.net
        plain = all(
            y.role == "linear" and not y.joins_branches and (i == 0 or y.inputs == (i - 1,))
            for i, y in enumerate(layers(net))
        )
        relu = all(isinstance(net.get_submodule(u.activation), nn.ReLU) for u in self.units)
        if not plain or not relu or len(self.units) != len(self.layers) - 1:
            return []
        return [m.detach() for y in self.layers if (m := y.matrix(net)) is not None]


@torch.no_grad()
def size_of(learner: Learner, gradient_norm: Tensor) -> dict[str, Tensor]:
    """What is cheap enough to look at often: the norm and largest singular value of the weights, the effective rate."""
    matrices = [m for y in learner.regularizer.layers if (m := y.matrix(learner.net)) is not None]
    norm = weight_norm(learner.net.parameters(), learner.runs)
    found = {"weight_norm": norm, "effective_lr": effective_learning_rate(gradient_norm, norm)}
    return found | ({"sigma1": largest_sigma1(matrices)} if matrices else {})


def _averaged(each: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
    """``{layer: {name: value}}`` as the mean over layers under NAME and each layer's under NAME/LAYER."""
    found: dict[str, Tensor] = {}
    for name in next(iter(each.values()), {}):
        values = {layer: of_layer[name] for layer, of_layer in each.items()}
        found[name] = torch.stack(list(values.values())).mean(0)
        if len(values) > 1:
            found |= {f"{name}/{layer}": value for layer, value in values.items()}
    return found
