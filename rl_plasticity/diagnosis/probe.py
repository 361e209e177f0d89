"""Plasticity metrics of a network on inputs that never change, so that they are comparable over time."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from rl_plasticity.errors import first_line, nearest, warn
from rl_plasticity.learning.learner import Learner
from rl_plasticity.metrics import (
    METRICS,
    OfFeatures,
    OfGradients,
    OfWeights,
    distance,
    effective_learning_rate,
    feature_matrix,
    gradient_dormant_fraction,
    gradient_spectrum,
    largest_sigma1,
    moved_fraction,
    representation_change,
    saturated_fraction,
    singular_values,
    weight_norm,
)
from rl_plasticity.metrics.measured import Metric
from rl_plasticity.networks.injection import Injectable
from rl_plasticity.structure import (
    Arguments,
    Example,
    HiddenLayer,
    Structure,
    activations_of,
    arguments_of,
    aside,
    read,
    tensors_in,
    with_tensors,
)
from rl_plasticity.structure import operations as ops
from rl_plasticity.structure.layer import Layer, runs_of, unwrapped, wide

PROBE_SIZE = 256  # examples whose activations are measured
GRADIENTS = 32  # how many of them have their single gradients taken
GRADIENT_DORMANT = 0.025  # of the mean gradient of the layer
LARGEST = 4_000_000  # weights of the largest layer whose single gradients are taken: 16 MB for one example


def measure(
    net: nn.Module,
    example: Example,
    loss: Callable[..., Tensor] | None = None,
    targets: Tensor | Sequence[Tensor] = (),
) -> "Measured":
    """Every plasticity metric of any network, each ``[*runs]`` (a plain number for an ordinary network), by name::

        measure(net, x)["dormant"]
        measure(net, x, nn.functional.cross_entropy, labels)["gradient_rank"]

    The names are those that the training commands log: NAME for the mean over layers, NAME/LAYER for each layer, and
    weight_norm and sigma1 for the network. The network's modes, buffers, gradients and random states do not change.
    A `Probe` measures what is relative to an earlier time (distance, representation_change).

    ``left_out`` names each metric that is missing, with the reason, and the KeyError of its name says the same. If
    metrics of hidden units are missing, a warning says so too: an LSTM's dormant units are unknown, which does not mean
    that there are none.

    Args:
        net: any network. A `Learner` stands for its network.
        example: a batch of inputs: a tensor, a tuple (``net(*example)``) or a dict (``net(**example)``). The first
            axis behind the runs axes holds the examples.
        loss, targets: see `Probe.gradients`. Without a loss there are no metrics of gradients.

    Raises:
        ValueError: a network without layers, or a loss or targets that do not fit single examples.
    """
    probe = Probe(net.net if isinstance(net, Learner) else net, example)
    values, relative = probe.measure(loss, targets), ("distance", "moved", "representation_change")
    left_out = probe.left_out(values, loss is not None)
    left_out |= dict.fromkeys(relative, "it is relative to an earlier time: use a Probe, which remembers that")
    if reason := left_out.get("dormant") or probe.not_looked_into:
        warn(f"measure has no metrics of all hidden units: {reason}")
    return Measured({name: value for name, value in values.items() if name not in relative}, left_out)


class Measured(dict[str, Tensor]):
    """Metrics by name, as `measure` returns them.

    Args:
        left_out: names of the missing metrics, each with the reason.
    """

    def __init__(self, values: Mapping[str, Tensor], left_out: Mapping[str, str]) -> None:
        super().__init__(values)
        self.left_out = dict(left_out)

    def __missing__(self, name: str) -> Tensor:
        if name in self.left_out:
            raise KeyError(f"{name} was not measured: {self.left_out[name]}")
        raise KeyError(f"no metric is called {name!r}{nearest(name, [*self, *self.left_out])}")


class Probe(nn.Module):
    """Measures a network's weights, features and gradients. It changes nothing that training uses.

    ``state_dict`` holds the features of the last measurement, and a plain network's first parameters. So a resumed run
    continues to measure as if it had never stopped.

    Args:
        target: a learner, whose network is measured, or a network. Calls are in evaluation mode, so BatchNorm's
            statistics do not change. The distance of a plain network starts from its present parameters.
        example: the inputs of every call, each tensor ``[*runs, n, ...]``: a tensor, a tuple (``net(*example)``) or a
            dict (``net(**example)``).

    Raises:
        ValueError: a plain network without layers, or an example that is not made of tensors.
    """

    before: Tensor

    def __init__(self, target: Learner | nn.Module, example: Example) -> None:
        super().__init__()
        net = target.net if isinstance(target, Learner) else unwrapped(target)
        # In tuples: not submodules of this one.
        self._net, self._learner = (net,), ((target,) if isinstance(target, Learner) else ())
        self.runs = runs_of(net)
        positional, named = arguments_of(example)
        if others := [type(x).__name__ for x in (*positional, *named.values()) if not isinstance(x, Tensor)]:
            raise ValueError(f"example must be made of tensors, got {others[0]}")
        self._inputs: Arguments = with_tensors(Arguments(positional, named), lambda x: x.detach().clone())
        self._find(read(net, None if self._learner else example))
        if not self._learner:
            if not self.layers:
                raise ValueError("nothing to measure: the network has no layer with a trainable weight")
            for i, parameter in enumerate(net.parameters()):
                self.register_buffer(f"initial_{i}", parameter.detach().clone())
        last = [torch.zeros(0), *self._features().values()][-1]
        self.register_buffer("before", last.clone())

    def _find(self, structure: Structure) -> None:
        """Find layers with matrices and their names, and layers of hidden units that were not moved to another axis."""
        net = self.net
        layers = [layer for layer in structure.layers if layer.matrix(net) is not None]
        several = Counter(layer.name for layer in layers)  # a recurrent layer or attention has several matrices
        self.layers = {layer.name if several[layer.name] == 1 else layer.key: layer for layer in layers}
        constant = _copies(net)
        found = [u for u in structure.activations() if not u.activation.startswith(constant)]
        moved = [] if self.runs else [u for u in found if not _between(u, structure) <= KEEP_AXES]
        self.units: list[HiddenLayer] = [] if structure.unknown else [u for u in found if u not in moved]
        recurrent = [n for n, m in net.named_modules() if isinstance(m, nn.RNNBase | nn.RNNCellBase)]
        names = ", ".join(map(repr, [*recurrent, *(unit.incoming.name for unit in moved)]))
        left = f"units inside of {names}, or moved to another axis behind it, are not measured"
        unknown = f"its call cannot be followed: {structure.unknown}"
        self.not_looked_into = unknown if structure.unknown else left if names else ""  # a clause
        kinds = {(node.name, node.call): node.kind.lower() for node in structure.nodes if node.role == "activation"}
        self._bounds = {u.name: bounds for u in self.units if (bounds := ops.BOUNDS.get(kinds[u.activation, u.call]))}

    @property
    def net(self) -> nn.Module:
        """The network that is measured."""
        return self._net[0]

    def left_out(self, values: Collection[str], with_loss: bool) -> dict[str, str]:
        """Names of the metrics that other networks have and that are not in `values`, each with the reason."""
        of_units = self.not_looked_into or "no layer with an activation behind it was found"
        large = f"weights of more than {LARGEST:,} elements have no gradients of single examples"
        of_kind = {OfFeatures: of_units, OfGradients: large if with_loss else "it needs a loss", OfWeights: ""}
        reasons = {name: of_kind[type(metric)] for name, metric in METRICS.items()}
        reasons["saturated"] = of_units if not self.units else "no tanh, sigmoid, softsign or hardsigmoid was found"
        reasons["gradient_dormant"] = of_units if with_loss else "it needs a loss"
        return {name: reason for name, reason in reasons.items() if reason and name not in values}

    @torch.no_grad()
    def measure(
        self, loss: Callable[..., Tensor] | None = None, targets: Tensor | Sequence[Tensor] = ()
    ) -> dict[str, Tensor]:
        """Every metric ``[*runs]`` by name: NAME for the mean over layers, NAME/LAYER for each layer.

        Args:
            loss, targets: see `gradients`. Without a loss there are no metrics of gradients.
        """
        values = {} if self._learner else _sizes(self.net, self.layers.values(), self.runs)
        features = self._features()
        values |= self.weights() | self._of_features(features)
        if loss is not None:
            values |= self.gradients(loss, targets)
        elif isinstance(targets, Tensor) or targets:
            raise ValueError("targets need a loss, and none was given")
        if features:
            *_, after = features.values()
            values["representation_change"] = representation_change(self.before, after)
            self.before.copy_(after)
        return values

    def weights(self) -> dict[str, Tensor]:
        """Metrics of the weight matrices, and the distance of all parameters from their initial values."""
        matrices = {name: wide(layer.full_matrix(self.net).detach()) for name, layer in self.layers.items()}
        values = _measured(OfWeights, {name: (m, singular_values(m)) for name, m in matrices.items()})
        if "sigma1" in values:  # this name is taken by the largest one of all layers, see `size_of`
            values["mean_sigma1"] = values.pop("sigma1")
        initial = [*self._initial()]
        values["distance"] = distance(map(wide, self.net.parameters()), map(wide, initial), self.runs)
        values["moved"] = moved_fraction(self.net.parameters(), initial, self.runs)
        return values

    def _of_features(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Metrics of the activations of the hidden units, after the non-linearity."""
        values = _measured(OfFeatures, {name: (a, singular_values(a)) for name, a in features.items()})
        saturated = {name: saturated_fraction(features[name], *bounds) for name, bounds in self._bounds.items()}
        return values | by_layer("saturated", saturated)

    def gradients(self, loss: Callable[..., Tensor], targets: Tensor | Sequence[Tensor] = ()) -> dict[str, Tensor]:
        """Effective gradient diversity, from the matrix of single examples' gradients of each weight.

        Also the units that hardly get a gradient of the mean loss over all examples.

        Args:
            loss: called as ``loss(output, *targets)`` with the network's output for a batch of one example, and its
                targets. So the training loss, a mean over the batch, fits. Several numbers are summed.
            targets: one or several tensors ``[*runs, n, ...]``, with as many examples as the inputs.

        Raises:
            ValueError: the number of targets is not that of the inputs; loss or network cannot be differentiated for
                one example at a time, for example because it writes to a buffer or draws noise.
        """
        k = len(self.runs)
        names = {layer.weight_name: name for name, layer in self.layers.items() if layer.weight_name is not None}
        small = [n for n in names if self.net.get_parameter(n).numel() <= LARGEST * max(1, *self.runs, 1)]
        if not small:
            return {}
        wanted = (targets,) if isinstance(targets, Tensor) else tuple(targets)
        shapes = [[*x.shape] for x in tensors_in([self._inputs, wanted])]
        if len({shape[k] if len(shape) > k else None for shape in shapes}) > 1:
            got = ", ".join(map(str, shapes))
            raise ValueError(f"example and targets must have equally many examples, in axis {k}: got {got}")
        first = with_tensors([self._inputs, wanted], lambda x: x.narrow(k, 0, min(GRADIENTS, x.shape[k])))
        (positional, named), some_targets = first
        try:
            with aside(self.net) as net, torch.enable_grad():
                spectra = gradient_spectrum(net, small, loss, positional, some_targets, self.runs, named=named)
        except (RuntimeError, AttributeError, TypeError) as error:
            raise ValueError(
                f"network and loss cannot be differentiated for one example at a time: {first_line(error)}"
            ) from error
        values = _measured(OfGradients, {names[name]: (wide(s),) for name, s in spectra.items()})
        of_units = self._unit_gradients(loss, wanted)
        dormant = {unit: gradient_dormant_fraction(g, GRADIENT_DORMANT) for unit, g in of_units.items()}
        return values | by_layer("gradient_dormant", dormant)

    def _unit_gradients(self, loss: Callable[..., Tensor], targets: Sequence[Tensor]) -> dict[str, Tensor]:
        """The gradient ``[*runs, units, fan_in]`` of each layer of hidden units with plain incoming weights."""
        of_units: dict[str, nn.Parameter] = {}
        for unit in self.units:
            matrix, name = unit.incoming.matrix(self.net), unit.incoming.weight_name
            if matrix is None or name is None:
                continue
            weight = self.net.get_parameter(name)
            rows = weight.reshape(*self.runs, matrix.shape[-2], -1)
            if weight.requires_grad and torch.equal(rows, matrix):
                of_units[unit.name] = weight
        if not of_units:
            return {}
        positional, named = self._inputs
        with aside(self.net) as net, torch.enable_grad():
            try:
                value = loss(net(*positional, **named), *targets).sum()
            except (RuntimeError, ValueError):
                return {}  # a loss of one example need not be one of several
            found = torch.autograd.grad(value, [*of_units.values()], allow_unused=True)
        sized = zip(of_units, found, strict=True)
        return {name: wide(g.flatten(len(self.runs) + 1)) for name, g in sized if g is not None}

    def _initial(self) -> Iterable[Tensor]:
        if self._learner:
            return self._learner[0].initial().parameters()
        return [self.get_buffer(f"initial_{i}") for i, _ in enumerate(self.net.parameters())]

    def _features(self) -> dict[str, Tensor]:
        """Activations of each layer of hidden units ``[*runs, examples, units]``, by name."""
        found = activations_of(self.net, self.units, self._inputs) if self.units else ()
        return {unit.name: rows_of_units(unit, a, self.runs) for unit, a in zip(self.units, found, strict=True)}


# What may lie between a layer and an activation without moving the units to another axis.
KEEP_AXES = ops.NORMS | ops.SUMS | ops.SCALINGS | ops.POOLS - {"mean", "amax", "max"} | ops.ACTIVATIONS
KEEP_AXES |= {"contiguous", "to", "float", "double", "type_as", "clone", "detach", "the addition of a constant"}


def _copies(net: nn.Module) -> tuple[str, ...]:
    """The beginnings of the names of the frozen copies in each `Injectable`; they are 0 until an injection."""
    heads = [f"{name}." for name, module in net.named_modules() if isinstance(module, Injectable)]
    return tuple(head + copied for head in heads for copied in ("frozen.", "offset."))


def _between(unit: HiddenLayer, structure: Structure) -> set[str]:
    """The operations on all paths from a layer to its units' activation."""
    waiting = [node for node in structure.nodes if (node.name, node.call) == (unit.activation, unit.call)]
    found: set[str] = set()
    while waiting:
        node = waiting.pop()
        found |= {*node.through}
        sources = [structure.nodes[i] for i in node.inputs if i >= 0]
        waiting += [source for source in sources if source.role in ("norm", "gain", "shift", "activation")]
    return found


def rows_of_units(unit: HiddenLayer, activation: Tensor, runs: tuple[int, ...]) -> Tensor:
    """The activation as a matrix: a row for each example (and position), a column for each unit.

    Raises:
        ValueError: the activation has no batch axis.
    """
    k = len(runs)
    if unit.incoming.role == "conv":
        return wide(feature_matrix(activation, runs))
    if activation.ndim < k + 2:
        raise ValueError(f"example must be a batch: {unit.activation!r} gives {[*activation.shape]}")
    return wide(activation.flatten(k, -2))


def by_layer(name: str, of_layers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A metric by its names in the log: NAME for the mean over layers, and NAME/LAYER for each of several layers.

    None where there is no layer.
    """
    if not of_layers:
        return {}
    values = {name: torch.stack(list(of_layers.values())).mean(0)}
    if len(of_layers) > 1:
        values |= {f"{name}/{layer}": value for layer, value in of_layers.items()}
    return values


@torch.no_grad()
def size_of(learner: Learner, gradient_norm: Tensor) -> dict[str, Tensor]:
    """Metrics that are cheap enough to log often: weight norm, sigma1, effective learning rate, and counts."""
    values = _sizes(learner.net, learner.regularizer.layers, learner.runs)
    norm = values["weight_norm"]
    rate = effective_learning_rate(gradient_norm, norm)
    return {"weight_norm": norm, "effective_lr": rate} | values | learner.counts


def _sizes(net: nn.Module, ordered: Iterable[Layer], runs: tuple[int, ...]) -> dict[str, Tensor]:
    """The norm of all parameters, and the largest singular value in these layers, if they have matrices."""
    matrices = [wide(m) for layer in ordered if (m := layer.matrix(net)) is not None]
    norm = weight_norm(map(wide, net.parameters()), runs)
    return {"weight_norm": norm} | ({"sigma1": largest_sigma1(matrices)} if matrices else {})


def _measured(kind: type[Metric], tensors: Mapping[str, tuple[Tensor, ...]]) -> dict[str, Tensor]:
    """Every metric of this kind for each layer's tensors: NAME for the mean over layers, NAME/LAYER for each layer.

    One that raises, or does not return one number for each run, is NaN, with a warning.
    """
    values: dict[str, Tensor] = {}
    for name, metric in METRICS.items():
        if not isinstance(metric, kind):
            continue
        of_layers = {}
        for layer, arguments in tensors.items():
            s = arguments[-1]
            try:
                value = metric.measure(*arguments)
                if value.shape != s.shape[:-1]:
                    raise ValueError(f"it must be of shape {[*s.shape[:-1]]}, got {[*value.shape]}")
            except Exception as error:  # whatever a metric may do: the others are measured all the same
                warn(f"{name} of {layer!r} is NaN, it cannot be computed: {first_line(error)}")
                value = s.new_full(s.shape[:-1], torch.nan)
            of_layers[layer] = value.to(s.dtype)
        values |= by_layer(name, of_layers)
    return values
