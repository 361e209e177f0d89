"""What was read of a network: its layers in forward order, what feeds each, and what a method may ask of them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from rl_plasticity.errors import in_short, warn
from rl_plasticity.structure import operations as ops
from rl_plasticity.structure.calling import Example
from rl_plasticity.structure.checking import recyclable
from rl_plasticity.structure.layer import Layer, lookup, unwrapped
from rl_plasticity.structure.units import HiddenLayer
from rl_plasticity.structure.walk import INPUT


@dataclass(frozen=True)
class Structure:
    """The layers of a network and how they are connected.

    Attributes:
        nodes: layers and activations in forward order, with their inputs.
        unknown: why the order is not known; None where it is known.
        unreached: names of the layers that the forward did not reach.
        has_heads: whether it is known which layers are heads.
        undecided: names of the bare parameters whose role cannot be told.
        trained: names of all parameters that are trained.
        returned: for each tensor that the network returns, the nodes that it comes from, by position, and the
            operations since.
        shared: names of the parameters that are used more than once.
        of_heads: names of the output layers' weights, also those that other layers share.
        example: the inputs of the call that was watched, if one was, also one that could not be followed.
        asked: the heads, the roles and the names of the parameters to act on, where `read` was given them.
        factors: names of the layers whose shapes allow that they are factors of a low-rank adapter of a frozen layer.
    """

    nodes: tuple[Layer, ...]
    unknown: str | None = None
    unreached: tuple[str, ...] = ()
    has_heads: bool = True
    undecided: tuple[str, ...] = ()
    trained: tuple[str, ...] = ()
    returned: tuple[tuple[tuple[int, ...], tuple[str, ...]], ...] = ()
    shared: frozenset[str] = frozenset()
    of_heads: frozenset[str] = frozenset()
    factors: frozenset[str] = frozenset()
    example: Example | None = field(default=None, compare=False, repr=False)
    asked: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def asked_by_name(self, net: nn.Module) -> dict[str, Any]:
        """What `read` was asked for, with parameters of `net` as ``only``."""
        there, only = dict(unwrapped(net).named_parameters()), self.asked.get("only")
        return {**self.asked, **({} if only is None else {"only": [there[name] for name in only if name in there]})}

    @property
    def layers(self) -> list[Layer]:
        """The layers in forward order. Their inputs and operations skip activations."""
        found = [node for node in self.nodes if node.role != "activation"]
        reached = self._from_layers([(node.inputs, node.through) for node in found])
        return [
            replace(node, inputs=inputs, through=through, joins_branches=joins)
            for node, (inputs, through, joins) in zip(found, reached, strict=True)
        ]

    @property
    def ends(self) -> list[tuple[tuple[int, ...], tuple[str, ...], bool]]:
        """For each returned tensor: the layers it comes from, by position, the operations since, whether they join."""
        return self._from_layers(self.returned)

    def _from_layers(
        self, values: Iterable[tuple[tuple[int, ...], tuple[str, ...]]]
    ) -> list[tuple[tuple[int, ...], tuple[str, ...], bool]]:
        """The same for values that come from these nodes with these operations since."""
        numbers = [i for i, node in enumerate(self.nodes) if node.role != "activation"]
        position = {number: place for place, number in enumerate(numbers)}
        found = []
        for nodes, since in values:
            sources, through = self._past_activations(nodes)
            inputs = tuple(sorted(position[i] for i in sources - {INPUT}))
            # What is done to the network's own input scales with no layer.
            kept = tuple(sorted(through | {*since})) if inputs else ()
            found.append((inputs, kept, len(sources) > 1))
        return found

    @property
    def before_norms(self) -> list[Layer]:
        """The linear and convolution layers whose output goes into norm layers only, and on its own.

        A norm layer takes out their scale. A layer whose output is first added to something, or goes through an
        activation, does not count.
        """
        found, others = [], set()  # one call of a layer that is called twice may be
        for i, node in enumerate(self.nodes):
            readers = [other for other in self.nodes if i in other.inputs]
            on_its_own = all(
                r.role == "norm" and r.inputs == (i,) and set(r.through) <= ops.KEEP_UNITS for r in readers
            )
            if node.role in ("linear", "conv") and readers and on_its_own and i not in self._returned_nodes:
                found.append(node)
            else:
                others.add(node.name)
        return [node for node in found if node.name not in others]

    @property
    def classifier(self) -> list[int]:
        """Positions in `layers` of the output layers, and in a convolutional network of the linear layers before them.

        They are "the fully connected layers" of a convolutional network, and the last layer of any other. A sum or
        product of branches ends them: a vision transformer's blocks and squeeze-excite's gates do not belong to them.
        """
        ordered = self.layers
        found = {i for i, layer in enumerate(ordered) if layer.head}
        waiting = [*found] if any(layer.role == "conv" for layer in ordered) else []
        while waiting:
            layer = ordered[waiting.pop()]
            if layer.joins_branches and (ops.SUMS | {ops.OF_BRANCHES}) & {*layer.through}:
                continue
            for i in layer.inputs:
                if ordered[i].role not in ("conv", "embedding") and i not in found:
                    waiting.append(i)
                    found.add(i)
        return sorted(i for i in found if ordered[i].role in ("linear", "conv"))

    def _past_activations(self, nodes: Iterable[int]) -> tuple[set[int], set[str]]:
        """The layers, and `INPUT`, that these nodes are or come from, and the operations on the way."""
        sources: set[int] = set()
        through: set[str] = set()
        waiting = [*nodes]
        while waiting:
            i = waiting.pop()
            if i == INPUT or self.nodes[i].role != "activation":
                sources.add(i)
            else:
                through |= {self.nodes[i].kind, *self.nodes[i].through}
                waiting += self.nodes[i].inputs
        return sources, through

    def require_heads(self, method: str, takes_heads: bool = True) -> None:
        """Raises ValueError if it is not known which layers are heads, and says what to pass."""
        if not self.has_heads:
            raise ValueError(
                f"{method} must know the output layers, and "
                + self._why("heads=[names of the output layers]" if takes_heads else None)
            )
        self._require_all(method)

    def require_order(self, method: str) -> None:
        """Raises ValueError if it is not known which layer feeds which, and says what to pass."""
        if self.unknown is not None:
            raise ValueError(f"{method} must know which layer feeds which, and {self._why()}")
        self._require_all(method)

    def _require_all(self, method: str) -> None:
        if self.unreached:
            raise ValueError(
                f"{method} must know the place of every layer, and a call does not reach "
                f"{in_short(self.unreached)}: pass the part of "
                "the network that is trained, or an example that reaches them"
            )

    def require_uses(self, method: str, names: Sequence[str]) -> None:
        """Raises ValueError if there are such bare parameters and their use was not seen, and says what to pass."""
        if names and self.unknown is not None:
            raise ValueError(
                f"{method} must know what the bare parameters {in_short(names)} do, and "
                + self._why("roles={name: role}, 'ignore' for those to leave alone")
            )

    def _why(self, other: str | None = None) -> str:
        """Why the order is unknown and what helps: an example, unless the given one could not be followed."""
        if "has no forward" in str(self.unknown):
            return f"{self.unknown}, or pass {other}" if other else str(self.unknown)
        given = [*([] if self.example is not None else ["example=(a real input, ...)"]), *([other] if other else [])]
        helps = f"pass {', or '.join(given)}" if given else "the example does not show it, so take another method"
        return f"{self.unknown}: {helps}"

    @property
    def beside(self) -> str:
        """For a method that finds nothing to act on: the bare parameters that it does not understand."""
        if not self.undecided:
            return ""
        return (
            f" that can be told; {in_short(self.undecided)} may be: make each matrix a parameter of its own, or pass "
            "roles={name: role}"
        )

    def check_bare(self, method: str, net: nn.Module, layers: Iterable[Layer], least_axes: int) -> None:
        """Warn about the undecided bare parameters with at least `least_axes` axes, which `method` leaves alone.

        Raises:
            ValueError: as `require_uses`; or `layers`, which the method acts on, include factors of a low-rank adapter.
        """
        if found := [layer.name for layer in layers if layer.weight_name in self.factors]:
            other = "only=[the parameters to act on] without them"
            helps = f": pass {other}" if self.unknown is None else f", and {self._why(other)}"
            raise ValueError(
                f"{method} acts on whole matrices; {in_short(found)} may be factors of a low-rank adapter of a frozen "
                f"layer{helps}, merge the adapters, or take a method of single parameters (l2, l2_init, weight_decay)"
            )
        axes = {node.weight_name: len(node.runs) for node in self.nodes}
        names = [name for name in self.undecided if lookup(net, name).ndim - axes[name] >= least_axes]
        self.require_uses(method, names)
        if names:
            warn(
                f"{method} leaves alone parameters that may be gains or matrices: {', '.join(names)}; "
                "say which with roles={name: role} ('ignore' accepts this), or pass example=(a real input, ...)"
            )

    def hidden_units(self, net: nn.Module) -> list[HiddenLayer]:
        """Every chain (linear or conv) -> norm layers -> activation -> (linear or conv) of `net`.

        Nothing else reads the chain before the activation, because recycled units must not change a skip connection.
        The layer behind the chain reads nothing else, so its columns belong to the units in order. If the network was
        read from an example, `recyclable` checks the chains.
        """
        readers = Counter(i for node in self.nodes for i in node.inputs)
        readers.update(self._returned_nodes)
        found = [self._chain(i, net, readers) for i in range(len(self.nodes))]
        chains = [chain for chain in found if chain is not None]
        return chains if self.example is None or not chains else recyclable(net, chains, self.example)

    def _chain(self, i: int, net: nn.Module, readers: Counter[int]) -> HiddenLayer | None:
        """The chain whose activation is node `i`."""
        activation, outgoing = self.nodes[i], tuple(node for node in self.nodes if i in node.inputs)
        if activation.role != "activation" or not outgoing or i in self._returned_nodes:
            return None
        before, through = self._behind(activation, readers), {*activation.through}
        norms: list[Layer] = []
        while before is not None and before.role in ("norm", "shift"):
            norms.append(before)
            through |= {*before.through}
            before = self._behind(before, readers)
        if before is None or not before.is_linear_map:
            return None
        # Pools act on the last axes: positions of a feature map, but the units of a linear layer.
        axes = lookup(net, before.key).ndim - len(before.runs) - 2 if before.role == "conv" else 0
        if not through <= ops.POOLS_OF.get(axes, set()) | ops.DROPOUTS:
            return None
        width = before.full_matrix(net).shape[-2]
        shape = (*before.runs, width)
        if any(tensor.shape != shape for norm in norms for tensor in norm.tensors(net)):
            return None  # each position has its own gain
        chain = HiddenLayer(before, tuple(norms), activation.name, activation.call, outgoing, width)
        if self.shared & {name for layer in chain.layers for name in layer.parameter_names}:
            return None  # recycled for one use it would change the other
        return chain if all(_reads_only(i, node, chain, net) for node in outgoing) else None

    def _behind(self, node: Layer, readers: Counter[int]) -> Layer | None:
        """The only input of `node`, if it feeds nothing else."""
        alone = len(node.inputs) == 1 and node.inputs[0] != INPUT and readers[node.inputs[0]] == 1
        return self.nodes[node.inputs[0]] if alone else None

    @property
    def _returned_nodes(self) -> set[int]:
        return {i for nodes, _ in self.returned for i in nodes}

    def not_among(self, units: Sequence[HiddenLayer]) -> list[str]:
        """The names of the activations that do not belong to any of these hidden units."""
        known = {(unit.activation, unit.call) for unit in units}
        return [unit.activation for unit in self.activations() if (unit.activation, unit.call) not in known]

    def activations(self) -> list[HiddenLayer]:
        """Every activation behind a layer, for measuring. `hidden_units` has those whose units can be recycled.

        A bounded one that no layer reads is that of an output: an actor's tanh.
        """
        found, read = [], set[int]()  # by a layer
        for i, node in reversed([*enumerate(self.nodes)]):
            if node.role != "activation" or i in read:
                read.update(node.inputs)
        for i, node in enumerate(self.nodes):
            is_hidden = node.role == "activation" and (i in read or node.kind.lower() not in ops.BOUNDS)
            sources = self._past_activations(node.inputs)[0] - {INPUT} if is_hidden else set()
            norms: list[Layer] = []  # the last one first
            while sources and all(self.nodes[i].role in ("norm", "gain", "shift") for i in sources):
                norms += [self.nodes[i] for i in sources if self.nodes[i].role == "norm"]
                sources = {k for i in sources for k in self._past_activations(self.nodes[i].inputs)[0]} - {INPUT}
            if sources:
                found.append(HiddenLayer(self.nodes[max(sources)], tuple(norms), node.name, node.call, ()))
        return found


def _reads_only(i: int, layer: Layer, units: HiddenLayer, net: nn.Module) -> bool:
    """Whether the columns of `layer` belong to the `units`, in order, through node `i`."""
    if not layer.is_linear_map or layer.inputs != (i,) or layer.groups > 1 or not set(layer.through) <= ops.KEEP_UNITS:
        return False
    weight = layer.weight(net)
    assert weight is not None
    if layer.key.rpartition(".")[2].startswith("weight_hh"):  # reads the recurrent layer's own state
        return False
    k = len(layer.runs)
    columns = weight.shape[k if layer.transposed else k + 1]
    if units.incoming.role == "conv" and layer.role == "linear":
        return columns % units.width == 0 and bool(set(layer.through) & ops.FLATTENS)
    return columns == units.width


def not_homogeneous(operations: Iterable[str]) -> list[str]:
    """The operations for which f(a x) = a f(x) does not hold."""
    return [name for name in operations if name not in ops.HOMOGENEOUS]
