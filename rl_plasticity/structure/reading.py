"""What feeds what in a network: read from its forward, traced symbolically or watched in a real call.

``torch.fx`` traces most networks without any input. Where it cannot (control flow that depends on data, a library's
policy or language model), one real call on an `example` shows the same. If neither works, `Structure.unknown` has the
reason, so that a method which must know the order can refuse.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import get_args

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from rl_plasticity.errors import SettingsError, nearest
from rl_plasticity.structure import operations as ops
from rl_plasticity.structure.checking import recyclable
from rl_plasticity.structure.layer import BareRole, Layer, lookup, role_of, unwrapped
from rl_plasticity.structure.trace import trace
from rl_plasticity.structure.units import HiddenUnits
from rl_plasticity.structure.walk import RAW, Walk, said_of
from rl_plasticity.structure.watch import Example, watch, with_tensors


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
        example: the inputs of the call that was watched, if one was.
        watched: whether there was an example, also one that could not be followed.
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
    watched: bool = field(default=False, compare=False)

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
            inputs = tuple(sorted(position[i] for i in sources - {RAW}))
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
        returned = {i for sources, _ in self.returned for i in sources}
        found, others = [], set()
        for i, node in enumerate(self.nodes):
            if node.role in ("linear", "conv"):
                readers = [other for other in self.nodes if i in other.inputs]
                by_itself = all(r.inputs == (i,) and set(r.through) <= ops.KEEP_UNITS for r in readers)
                if readers and by_itself and all(r.role == "norm" for r in readers) and i not in returned:
                    found.append(node)
                else:
                    others.add(node.name)  # one call of a layer that is called twice may be
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
            if layer.joins_branches and (ops.SUMS | {"a product of two activations"}) & {*layer.through}:
                continue
            for i in layer.inputs:
                if ordered[i].role not in ("conv", "embedding") and i not in found:
                    waiting.append(i)
                    found.add(i)
        return sorted(i for i in found if ordered[i].role in ("linear", "conv"))

    def _past_activations(self, nodes: Iterable[int]) -> tuple[set[int], set[str]]:
        """The layers, and `RAW`, that these nodes are or come from, and the operations on the way."""
        sources: set[int] = set()
        through: set[str] = set()
        waiting = [*nodes]
        while waiting:
            i = waiting.pop()
            if i == RAW or self.nodes[i].role != "activation":
                sources.add(i)
            else:
                through |= {self.nodes[i].kind, *self.nodes[i].through}
                waiting += self.nodes[i].inputs
        return sources, through

    def require_heads(self, method: str, takes_heads: bool = True) -> None:
        """Raises ValueError if it is not known which layers are heads, and says what to pass."""
        if not self.has_heads:
            raise ValueError(
                f"{method} must know the output layers, and {self.unknown}: "
                + self._what_helps("heads=[names of the output layers]" if takes_heads else None)
            )
        self._require_all(method)

    def require_order(self, method: str) -> None:
        """Raises ValueError if it is not known which layer feeds which, and says what to pass."""
        if self.unknown is not None:
            raise ValueError(f"{method} must know which layer feeds which, and {self.unknown}: {self._what_helps()}")
        self._require_all(method)

    def _require_all(self, method: str) -> None:
        if self.unreached:
            raise ValueError(
                f"{method} must know the place of every layer, and a call does not reach "
                f"{some(self.unreached)}: pass the part of "
                "the network that is trained, or an example that reaches them"
            )

    def require_whole(self, method: str, layers: Iterable[Layer]) -> None:
        """Raises ValueError if one of these layers is a factor of a low-rank adapter, and says what to pass."""
        found = [layer.name for layer in layers if layer.weight_name in self.factors]
        if found:
            raise ValueError(
                f"{method} acts on whole matrices, and {some(found)} may be factors of a low-rank adapter of a frozen "
                "layer: pass only=[the parameters to act on] without them, merge the adapters, or take a method of "
                "single parameters (l2, l2_init, weight_decay)"
            )

    def require_seen(self, method: str, names: Sequence[str]) -> None:
        """Raises ValueError if there are such bare parameters and their use was not seen, and says what to pass."""
        if names and self.unknown is not None:
            raise ValueError(
                f"{method} must know what the bare parameters {some(names)} do, and {self.unknown}: "
                + self._what_helps("roles={name: role}, 'ignore' for those to leave alone")
            )

    def _what_helps(self, other: str | None = None) -> str:
        """What to pass if something is unknown: an example, unless the given one could not be followed."""
        given = [*([] if self.watched else ["example=(a real input, ...)"]), *([other] if other else [])]
        return f"pass {', or '.join(given)}" if given else "the example does not show it, so take another method"

    def left_alone(self, method: str, net: nn.Module, least_axes: int) -> str:
        """A warning about the undecided bare parameters with at least `least_axes` axes; "" if there are none.

        Raises:
            ValueError: as `require_seen`.
        """
        axes = {node.weight_name: len(node.runs) for node in self.nodes}
        names = [name for name in self.undecided if lookup(net, name).ndim - axes[name] >= least_axes]
        self.require_seen(method, names)
        return (
            f"{method} leaves alone what cannot be told to be a gain or a matrix: {', '.join(names)}; "
            "roles={name: role} says what it is, 'ignore' that this is meant; example=(a real input, ...) may show"
            if names
            else ""
        )

    def hidden_units(self, net: nn.Module) -> list[HiddenUnits]:
        """Every chain (linear or conv) -> norm layers -> activation -> (linear or conv) of `net`.

        Nothing else reads the chain before the activation, because recycled units must not change a skip connection.
        The layer behind the chain reads nothing else, so its columns belong to the units in order. If the network was
        read from an example, `recyclable` checks the chains.
        """
        chains = self.chains(net)
        return chains if self.example is None or not chains else recyclable(net, chains, self.example)

    def chains(self, net: nn.Module) -> list[HiddenUnits]:
        """The chains of `hidden_units` without the check by the example."""
        nodes = self.nodes
        returned = {i for sources, _ in self.returned for i in sources}
        readers = Counter([i for node in nodes for i in node.inputs] + [*returned])

        def source(node: Layer) -> Layer | None:
            """The only input of `node`, if it feeds nothing else."""
            alone = len(node.inputs) == 1 and node.inputs[0] != RAW and readers[node.inputs[0]] == 1
            return nodes[node.inputs[0]] if alone else None

        chains = []
        for i, activation in enumerate(nodes):
            if activation.role != "activation" or i in returned:
                continue
            norms, incoming, through = [], source(activation), {*activation.through}
            while incoming is not None and incoming.role in ("norm", "shift"):
                norms.append(incoming)
                through |= {*incoming.through}
                incoming = source(incoming)
            outgoing = tuple(node for node in nodes if i in node.inputs)
            if incoming is None or not incoming.is_linear_map or not outgoing:
                continue
            # Pools act on the last axes: positions of a feature map, but the units of a linear layer.
            if not through <= (ops.POOLS_OF.get(_positions(incoming, net), set()) | ops.DROPOUTS):
                continue
            if any(
                tensor.shape != (*incoming.runs, *_units(incoming, net)) for n in norms for tensor in n.tensors(net)
            ):
                continue  # each position has its own gain
            if self.shared & {name for layer in (incoming, *norms, *outgoing) for name in layer.parameter_names}:
                continue  # recycled for one use it would change the other
            if all(_reads_only(i, node, incoming, net) for node in outgoing):
                chains.append(HiddenUnits(incoming, tuple(norms), activation.name, activation.call, outgoing))
        return chains

    def not_among(self, units: Sequence[HiddenUnits]) -> list[str]:
        """The names of the activations that do not belong to any of these hidden units."""
        known = {(unit.activation, unit.call) for unit in units}
        return [unit.activation for unit in self.activations() if (unit.activation, unit.call) not in known]

    def activations(self) -> list[HiddenUnits]:
        """Every activation behind a layer, for measuring. `hidden_units` has those whose units can be recycled."""
        found = []
        for node in self.nodes:
            sources = self._past_activations(node.inputs)[0] - {RAW} if node.role == "activation" else set()
            while sources and all(self.nodes[i].role in ("norm", "gain", "shift") for i in sources):
                sources = {k for i in sources for k in self._past_activations(self.nodes[i].inputs)[0]} - {RAW}
            if sources:
                found.append(HiddenUnits(self.nodes[max(sources)], (), node.name, node.call, ()))
        return found


def some(names: Sequence[str]) -> str:
    """The first three names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _reads_only(i: int, layer: Layer, incoming: Layer, net: nn.Module) -> bool:
    """Whether the columns of `layer` belong to the units of `incoming`, in order, through node `i`."""
    if not layer.is_linear_map or layer.inputs != (i,) or layer.groups > 1 or not set(layer.through) <= ops.KEEP_UNITS:
        return False
    weight = layer.weight(net)
    assert weight is not None
    assert layer.weight_name is not None
    if layer.weight_name.rpartition(".")[2].startswith("weight_hh"):  # reads the recurrent layer's own state
        return False
    k = len(layer.runs)
    (units,), columns = _units(incoming, net), weight.shape[k if layer.transposed else k + 1]
    if incoming.role == "conv" and layer.role == "linear":
        return columns % units == 0 and bool(set(layer.through) & ops.FLATTENS)
    return columns == units


def _positions(layer: Layer, net: nn.Module) -> int:
    """The number of position axes in a convolution's output; 0 for a linear layer."""
    weight = layer.weight(net)
    assert weight is not None
    return weight.ndim - len(layer.runs) - 2 if layer.role == "conv" else 0


def _units(layer: Layer, net: nn.Module) -> tuple[int]:
    """The number of units of a linear or convolution layer, as the shape of its bias."""
    matrix = layer.matrix(net)
    assert matrix is not None
    return (matrix.shape[-2],)


def not_homogeneous(operations: Iterable[str]) -> list[str]:
    """The operations for which f(a x) = a f(x) does not hold."""
    return [name for name in operations if name not in ops.HOMOGENEOUS]


# --- reading --------------------------------------------------------------------------------------------------------


def layers(net: nn.Module) -> list[Layer]:
    """The layers of `net` in forward order, without parameters that do not require gradients.

    Raises:
        ValueError: the layers of a stacked network disagree about the runs axes.
    """
    return read(net).layers


def hidden_units(net: nn.Module, example: Example | None = None) -> list[HiddenUnits]:
    """The hidden units of `net`; an empty list if it cannot be read."""
    structure = read(net, example)
    return [] if structure.unknown else structure.hidden_units(net)


def read(
    net: nn.Module,
    example: Example | None = None,
    *,
    heads: Sequence[str] | None = None,
    roles: Mapping[str, str] | None = None,
    only: Iterable[Tensor] | None = None,
) -> Structure:
    """Find out which layers `net` has and which layer feeds which.

    The network's modes, buffers and gradients and all random states do not change.

    Args:
        net: the network. Wrappers (``torch.compile``, ``DataParallel``, ...) are taken off.
        example: real inputs for one call: a tensor, a tuple of arguments or a mapping of named ones. Without it the
            forward is traced symbolically.
        heads: names of the output layers, if they are not the layers that no other layer follows.
        roles: roles of bare parameters, by a pattern of their names: ``{"*.norm.weight": "norm"}``. See `BareRole`.
            "ignore" leaves alone parameters of torch's modules too: ``{"table.weight": "ignore"}``.
        only: the parameters to act on; by default all that require gradients.

    Raises:
        SettingsError: unknown names or roles; `only` has something else than parameters, or none of the network's.
        ValueError: parameters that no method can act on (complex, sparse, quantized, not yet made, distributed), or the
            example does not fit.
    """
    net = unwrapped(net)
    _refuse_what_is_not_supported(net)
    roles = roles or {}
    _check_roles(net, roles)
    ignored = {id(p) for name, p in net.named_parameters() if said_of(name, roles) == "ignore"}
    acted_on = (net.parameters() if ignored else None) if only is None else _checked_only(net, only)
    walk = Walk(net, roles, None if acted_on is None else {id(p) for p in acted_on} - ignored)
    with _distributions_unchecked():
        unknown = watch(net, walk, example) if example is not None else trace(net, walk)
    if unknown is not None:
        walk = Walk(net, roles, walk.only)
    reached = len(walk.nodes)
    walk.settle()
    walk.unread()
    nodes = _with_heads(walk.nodes, reached)
    if heads is not None:
        names = [node.name for node in nodes if node.role in ("linear", "conv")]
        for name in heads:
            if name not in names:
                raise SettingsError(f"heads: no linear or convolution layer is called {name!r}{nearest(name, names)}")
        nodes = [replace(node, head=node.name in heads) for node in nodes]
    late = [node.name for node in nodes[reached:] if node.role not in ("parameter", "activation", "undecided")]
    undecided = [node.weight_name for node in nodes if node.role == "undecided" and node.weight_name]
    trained = [name for name, p in net.named_parameters() if walk.trained(p)]
    return Structure(
        nodes=tuple(nodes),
        unknown=unknown,
        unreached=() if unknown else tuple(late),
        has_heads=unknown is None or heads is not None,
        undecided=tuple(undecided),
        trained=tuple(trained),
        example=None if example is None or unknown else with_tensors(example, Tensor.detach),
        watched=example is not None,
        returned=tuple((tuple(sorted(v.sources)), tuple(sorted(v.through))) for v in walk.returned),
        shared=frozenset(name for name, uses in walk.uses.items() if uses > 1),
        of_heads=frozenset(walk.weights[i] for i, node in enumerate(nodes) if node.head and i in walk.weights),
        factors=frozenset(_possible_factors(net, walk)),
    )


@contextmanager
def _distributions_unchecked() -> Iterator[None]:
    """Turn off the checks of torch's distributions inside, because they cannot be traced.

    ``torch.compile`` turns them off for good at its first call. Reading must not depend on whether there was one.
    """
    checks = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(checks)


def _check_roles(net: nn.Module, roles: Mapping[str, str]) -> None:
    names = [name for name, _ in net.named_parameters()]
    for pattern, role in roles.items():
        if role not in get_args(BareRole):
            raise SettingsError(f"roles: unknown role {role!r} of {pattern!r}{nearest(role, get_args(BareRole))}")
        found = [name for name in names if fnmatchcase(name, pattern)]
        if not found:
            raise SettingsError(f"roles: no parameter matches {pattern!r}{nearest(pattern, names)}")
        owners = [net.get_submodule(name.rpartition(".")[0]) for name in found]
        if role != "ignore" and all(role_of(owner) is not None for owner in owners):
            raise SettingsError(
                f"roles: {found[0]!r} is a parameter of {type(owners[0]).__name__}, which tells its role; of such only "
                f"'ignore' can be said, got {role!r}"
            )


def _checked_only(net: nn.Module, only: Iterable[Tensor]) -> list[Tensor]:
    given = [*only]
    if names := [p for p in given if not isinstance(p, Tensor)]:
        raise SettingsError(f"only takes parameters, got {names[0]!r}: only=[net.get_parameter(name), ...]")
    if not {id(p) for p in given} & {id(p) for p in net.parameters()}:
        raise SettingsError("only: none of these is a parameter of the network")
    return given


def _with_heads(nodes: list[Layer], reached: int) -> list[Layer]:
    """The nodes, with a mark on the heads: no linear or convolution layer follows them on any path."""
    followed: set[int] = set()
    for i, node in reversed(list(enumerate(nodes))):
        if node.role in ("linear", "conv") or i in followed:
            followed.update(node.inputs)
    linear = ("linear", "conv")
    return [replace(n, head=n.role in linear and i not in followed and i < reached) for i, n in enumerate(nodes)]


def _possible_factors(net: nn.Module, walk: Walk) -> Iterator[str]:
    """The weights whose shapes allow that they are an adapter's factors for a frozen weight in the same module."""
    k = len(walk.runs)
    named = [(name, p, p.shape[k : k + 2]) for name, p in net.named_parameters() if p.ndim - k > 1]
    trained = [(name, shape) for name, p, shape in named if walk.trained(p)]
    frozen = [(name, {shape, shape[::-1]}) for name, p, shape in named if not p.requires_grad]
    for owner, shapes in ((name.rpartition(".")[0], shapes) for name, shapes in frozen):
        beside = [(name, shape) for name, shape in trained if name.startswith(_around(owner))]
        for a, (rank, inputs) in beside:
            for b, (outputs, inner) in beside:
                if a != b and inner == rank < min(inputs, outputs) and (outputs, inputs) in shapes:
                    yield from (a, b)


def _around(owner: str) -> str:
    """The beginning of the names of the parameters in the module around a layer."""
    around = owner.rpartition(".")[0]
    return f"{around}." if around else ""


def _refuse_what_is_not_supported(net: nn.Module) -> None:
    for name, p in (*net.named_parameters(), *net.named_buffers()):
        if isinstance(p, nn.UninitializedParameter | nn.UninitializedBuffer):
            raise ValueError(f"{name} has no shape yet: call the network once on real inputs, then make this")
        kinds = {
            "a distributed tensor (FSDP)": type(p).__name__ == "DTensor",
            "complex": p.is_complex() and isinstance(p, nn.Parameter),
            "quantized": p.is_quantized,
            "sparse": p.layout != torch.strided,
        }
        if found := [kind for kind, is_so in kinds.items() if is_so]:
            raise ValueError(f"{name} is {found[0]}, which is not supported: pass the part of the network without it")
    for name, module in net.named_modules():
        if type(module).__name__ == "TensorDictParams":
            raise ValueError(
                f"{name or 'this'} holds the parameters of a TorchRL loss, stacked and without a forward: use "
                "rl_plasticity.integrations.torchrl"
            )
        if "quantized" in type(module).__module__.split("."):
            raise ValueError(f"{name or type(module).__name__} is quantized, which is not supported")
        for hook in module._forward_pre_hooks.values():
            if type(hook).__name__ in ("WeightNorm", "SpectralNorm"):
                raise ValueError(
                    f"{name or 'the network'} computes its weight in a hook ({type(hook).__name__}): use "
                    "torch.nn.utils.parametrizations instead"
                )
