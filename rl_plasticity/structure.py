"""What feeds what in a network: read from its forward, traced symbolically or watched in a real call.

``torch.fx`` traces most networks without being given anything. Where it cannot (control flow that depends on data, a
library's policy or language model), one real call on an `example` shows the same: `read` says which of the two was
done, and why neither was, so that a method which needs to know the order can refuse.
"""

import copy
import inspect
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from rl_plasticity.errors import SettingsError, nearest
from rl_plasticity.layers import BareRole, Layer, Role, lookup, parts_of, role_of, runs_of, unwrapped

Example = Tensor | Sequence[Any] | Mapping[str, Any]
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)
RAW = -1  # stands for the network's own inputs among the inputs of a node

# --- what operations do, by torch's names; those of modules without parameters are their classes' -------------------

_VIEWS = {
    "unsqueeze", "squeeze", "view", "reshape", "expand", "expand_as", "contiguous", "to", "type", "type_as", "float",
    "double", "half", "bfloat16", "clone", "detach", "data", "flatten", "alias", "cuda", "cpu", "requires_grad",
}  # fmt: skip
_FLIPS = {"t", "T", "mT", "adjoint", "transpose", "swapaxes"}  # of a matrix
_PRODUCTS = {"linear", "matmul", "mm", "bmm", "mv", "addmm", "baddbmm", "addmv", "einsum", "bilinear"}
_CONVOLUTIONS = {f"conv{t}{n}d" for t in ("", "_transpose") for n in (1, 2, 3)}
_NORMS = {"layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm", "normalize"}
_SUMS = {"add", "radd", "iadd", "sub", "rsub", "isub"}
_SCALINGS = {"mul", "rmul", "imul", "div", "truediv", "itruediv"}
_JOINS = {"cat", "concat", "concatenate", "stack", "hstack", "vstack", "where", "setitem"}
_ACTIVATIONS = {
    "relu", "relu6", "gelu", "tanh", "sigmoid", "silu", "elu", "selu", "celu", "leaky_relu", "softplus", "mish",
    "hardswish", "hardtanh", "hardsigmoid", "softsign", "logsigmoid", "threshold", "rrelu",
}  # fmt: skip
_NO_TENSOR = {"shape", "size", "dim", "ndim", "numel", "dtype", "device", "len", "is_cuda", "requires_grad", "getattr"}
# f(a x) = a f(x) for a > 0
_RELUS = {"relu", "leaky_relu", "ReLU", "LeakyReLU", "PReLU"}
_MOVES = {"Flatten", "Unflatten", "getitem", "select", "narrow", "chunk", "split", "unbind", "permute", "movedim"}
_MOVES |= {"index_select", "gather", "repeat", "repeat_interleave", "roll", "flip", "pad", "pixel_shuffle", "unfold"}
_POOLS = {f"{kind}{n}d" for kind in ("MaxPool", "AvgPool", "AdaptiveAvgPool", "AdaptiveMaxPool") for n in (1, 2, 3)}
_POOLS |= {f"{kind}_pool{n}d" for kind in ("max", "avg", "adaptive_avg", "adaptive_max") for n in (1, 2, 3)}
_POOLS |= {"mean", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "dropout", "Identity", "amax", "max"}
_HOMOGENEOUS = _VIEWS | _FLIPS | _SUMS | _SCALINGS | _JOINS | _RELUS | _MOVES | _POOLS
_HOMOGENEOUS |= {"sum", "neg", "interpolate", "Upsample", "PixelShuffle", "ZeroPad2d", "masked_fill", "index_add"}
# What may lie between hidden units and the layer that reads them in order.
_KEEPS_UNITS = _POOLS | {"flatten", "Flatten", "view", "reshape", "contiguous", "to", "float", "clone"}


def _operation(module: nn.Module) -> str | None:
    """The name of what a module without parameters does, if it is (derived from) one of torch's that is known here."""
    if role_of(module) is not None:
        return None
    names = [kind.__name__ for kind in type(module).__mro__ if kind.__module__.startswith("torch.nn.modules")]
    return next((name for name in names if name in _HOMOGENEOUS), None)


@dataclass(frozen=True)
class HiddenUnits:
    """The hidden units of one layer: what feeds them, the non-linearity they come out of, and what they feed.

    Attributes:
        activation: the activation module's name, or ``relu()`` for a function.
        call: which call of that module or function it is.
    """

    incoming: Layer
    norms: tuple[Layer, ...]
    activation: str
    call: int
    outgoing: tuple[Layer, ...]


@dataclass(frozen=True)
class Structure:
    """What was read of a network.

    Attributes:
        nodes: layers and activations in forward order, with their inputs.
        unknown: why the order is not known; None where it is.
        unreached: names of the layers that the forward did not reach.
        has_heads: whether it is known which layers are heads.
        undecided: bare parameters of which it cannot be told what they are.
        trained: the names of all parameters that are trained.
    """

    nodes: tuple[Layer, ...]
    unknown: str | None = None
    unreached: tuple[str, ...] = ()
    has_heads: bool = True
    undecided: tuple[str, ...] = ()
    trained: tuple[str, ...] = ()

    @property
    def layers(self) -> list[Layer]:
        """The layers in forward order, their inputs and what lies between past activations."""
        numbers = [i for i, node in enumerate(self.nodes) if node.role != "activation"]
        position = {number: place for place, number in enumerate(numbers)}
        ordered = []
        for i in numbers:
            sources, through = set(), set(self.nodes[i].through)
            waiting = [*self.nodes[i].inputs]
            while waiting:
                j = waiting.pop()
                if j in position or j == RAW:
                    sources.add(j)
                else:
                    through |= {self.nodes[j].kind, *self.nodes[j].through}
                    waiting += self.nodes[j].inputs
            inputs = tuple(sorted(position[k] for k in sources - {RAW}))
            through = through if inputs else set()  # what is done to the network's own input changes with no weight
            ordered.append(
                replace(self.nodes[i], inputs=inputs, joins_branches=len(sources) > 1, through=tuple(sorted(through)))
            )
        return ordered

    def require_heads(self, method: str) -> None:
        """Raises ValueError if it is not known which layers are heads, and says what to pass."""
        if not self.has_heads:
            raise ValueError(
                f"{method} must know the output layers, and {self.unknown}: pass example=(a real input, ...), or "
                "heads=[names of the output layers]"
            )
        self._require_all(method)

    def require_order(self, method: str) -> None:
        """Raises ValueError if it is not known which layer feeds which, and says what to pass."""
        if self.unknown is not None:
            raise ValueError(
                f"{method} must know which layer feeds which, and {self.unknown}: pass example=(a real input, ...)"
            )
        self._require_all(method)

    def _require_all(self, method: str) -> None:
        if self.unreached:
            raise ValueError(
                f"{method} must know the place of every layer, and a call does not reach "
                f"{', '.join(self.unreached[:3])}{' and others' if len(self.unreached) > 3 else ''}: pass the part of "
                "the network that is trained, or an example that reaches them"
            )

    def hidden_units(self, net: nn.Module) -> list[HiddenUnits]:
        """Every chain (linear or conv) -> norm layers -> activation -> (linear or conv) of `net`.

        Nothing else reads the chain before the activation: recycled units must not change what a skip connection
        carries. And the layer behind it reads nothing else, so that its columns are the units' in order.
        """
        nodes = self.nodes
        readers = Counter(i for node in nodes for i in node.inputs)

        def source(node: Layer) -> Layer | None:
            """What alone feeds `node` and feeds nothing else."""
            alone = len(node.inputs) == 1 and node.inputs[0] != RAW and readers[node.inputs[0]] == 1
            return nodes[node.inputs[0]] if alone and set(node.through) <= _POOLS else None

        chains = []
        for i, activation in enumerate(nodes):
            if activation.role != "activation":
                continue
            norms, incoming = [], source(activation)
            while incoming is not None and incoming.role == "norm":
                norms.append(incoming)
                incoming = source(incoming)
            outgoing = tuple(node for node in nodes if i in node.inputs)
            if incoming is None or not incoming.is_linear_map or not outgoing:
                continue
            if all(_reads_only(i, node, incoming, net) for node in outgoing):
                chains.append(HiddenUnits(incoming, tuple(norms), activation.name, activation.call, outgoing))
        return chains


def _reads_only(i: int, layer: Layer, incoming: Layer, net: nn.Module) -> bool:
    """Whether the columns of `layer` are the units of `incoming`, which node `i` brings, in order."""
    if not layer.is_linear_map or layer.inputs != (i,) or layer.groups > 1 or not set(layer.through) <= _KEEPS_UNITS:
        return False
    if layer.part is not None or incoming.part is not None:
        return False
    matrix, weight = incoming.matrix(net), layer.weight(net)
    assert matrix is not None
    assert weight is not None
    k = len(layer.runs)
    units, columns = matrix.shape[-2], weight.shape[k if layer.transposed else k + 1]
    flattened = incoming.role == "conv" and layer.role == "linear"
    return columns % units == 0 if flattened else columns == units


def not_homogeneous(layer: Layer) -> list[str]:
    """The operations between a layer's inputs and itself for which f(a x) = a f(x) does not hold."""
    return [name for name in layer.through if name not in _HOMOGENEOUS]


# --- reading ----------------------------------------------------------------------------------------------------------


def layers(net: nn.Module) -> list[Layer]:
    """The layers of `net` in forward order. Parameters that do not require gradients are left out.

    Raises:
        ValueError: if the layers of a stacked network disagree about the runs axes.
    """
    return read(net).layers


def hidden_units(net: nn.Module, example: Example | None = None) -> list[HiddenUnits]:
    """The hidden units of `net`; none where it cannot be read without an example."""
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
    """What feeds what in `net`.

    The network is not changed: its modes, buffers, gradients and all random states are as before.

    Args:
        net: wrappers (``torch.compile``, ``DataParallel``, ...) are looked through.
        example: real inputs for one call: a tensor, a tuple of arguments or a mapping of named ones. Without, the
            forward is traced symbolically.
        heads: the names of the output layers, where they are not those that no other layer follows.
        roles: what bare parameters are, by a pattern of their names: ``{"*.norm.weight": "norm"}``. See `BareRole`.
        only: the parameters that are trained; all that require gradients by default.

    Raises:
        SettingsError: unknown names or roles.
        ValueError: parameters that no method can act on (complex, sparse, quantized, not yet made, distributed), or the
            example does not fit.
    """
    net = unwrapped(net)
    _refuse_what_is_not_supported(net)
    for pattern, role in (roles or {}).items():
        if role not in get_args(BareRole):
            raise SettingsError(f"roles: unknown role {role!r} of {pattern!r}{nearest(role, get_args(BareRole))}")
        if not any(fnmatchcase(name, pattern) for name, _ in net.named_parameters()):
            known = [name for name, _ in net.named_parameters()]
            raise SettingsError(f"roles: no parameter matches {pattern!r}{nearest(pattern, known)}")
    walk = _Walk(net, roles or {}, None if only is None else {id(p) for p in only})
    unknown = _watch(net, walk, example) if example is not None else _trace(net, walk)
    if unknown is not None:
        walk = _Walk(net, roles or {}, walk.only)
    reached = len(walk.nodes)
    walk.add_unread()
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
    )


def _with_heads(nodes: list[Layer], reached: int) -> list[Layer]:
    """The nodes, those marked as heads that no linear or convolution layer follows on any path."""
    followed: set[int] = set()
    for i, node in reversed(list(enumerate(nodes))):
        if node.role in ("linear", "conv") or i in followed:
            followed.update(node.inputs)
    linear = ("linear", "conv")
    return [replace(n, head=n.role in linear and i not in followed and i < reached) for i, n in enumerate(nodes)]


def _refuse_what_is_not_supported(net: nn.Module) -> None:
    for name, p in (*net.named_parameters(), *net.named_buffers()):
        kind = None
        if isinstance(p, nn.UninitializedParameter | nn.UninitializedBuffer):
            raise ValueError(f"{name} has no shape yet: call the network once on real inputs, then make this")
        if type(p).__name__ == "DTensor":
            kind = "a distributed tensor (FSDP)"
        elif p.is_complex() and isinstance(p, nn.Parameter):
            kind = "complex"
        elif p.is_quantized:
            kind = "quantized"
        elif p.layout != torch.strided:
            kind = "sparse"
        if kind:
            raise ValueError(f"{name} is {kind}, which is not supported: pass the part of the network without it")
    for name, module in net.named_modules():
        if "quantized" in type(module).__module__.split("."):
            raise ValueError(f"{name or type(module).__name__} is quantized, which is not supported")
        for hook in module._forward_pre_hooks.values():
            if type(hook).__name__ in ("WeightNorm", "SpectralNorm"):
                raise ValueError(
                    f"{name or 'the network'} computes its weight in a hook ({type(hook).__name__}): use "
                    "torch.nn.utils.parametrizations instead"
                )


# --- values ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Weight:
    """A parameter, or a view of it."""

    name: str
    flipped: bool = False
    part: int | None = None


@dataclass(frozen=True)
class _Value:
    """Where a tensor comes from: the nodes it was computed from, and what was done since."""

    sources: frozenset[int] = frozenset()
    through: frozenset[str] = frozenset()
    weight: _Weight | None = None  # where it is a parameter
    parameters: frozenset[str] = frozenset()  # bare ones that it was computed from, and nothing else
    number: bool = False  # a shape or a type, no tensor

    @property
    def has_layers(self) -> bool:
        return bool(self.sources - {RAW})


class _Walk:
    """Collects the layers and activations of a network in the order in which it is walked through."""

    def __init__(self, net: nn.Module, roles: Mapping[str, str], only: set[int] | None) -> None:
        self.net, self.roles, self.only = net, roles, only
        self.runs = runs_of(net)
        self.modules = dict(net.named_modules())
        self.name_of = {id(p): n for n, p in net.named_parameters()}  # tied parameters count once, by first name
        self.nodes: list[Layer] = []
        self.read: set[str] = set()  # the parameters of the nodes
        self.bare_role: dict[str, str] = {}

    def trained(self, parameter: Tensor) -> bool:
        return parameter.requires_grad and (self.only is None or id(parameter) in self.only)

    def add(self, prefix: str, inputs: Iterable[int], through: Iterable[str] = ()) -> _Value:
        """Append the nodes of one module that reads `inputs`, and of the modules in it; returns what comes out."""
        module = self.modules[prefix]
        kind = type(module).__name__
        before, through, ends = frozenset(inputs), frozenset(through), frozenset[int]()
        if isinstance(module, nn.Bilinear):
            through |= {kind}
        for part in parts_of(module, self.trained):
            if part.role == "parameter":
                self._add_bare(prefix, part.weight)
                continue
            if ends and not part.parallel:
                before, ends, through = ends, frozenset(), frozenset({kind})
            self._append(prefix, part.role, part.weight, part.bias, before, through, module)
            ends |= {len(self.nodes) - 1}
        came = _Value(ends, frozenset({kind}) if isinstance(module, _RECURRENT) else frozenset()) if ends else None
        if role_of(module) is not None:
            for name in [n for n in self.modules if n.startswith(f"{prefix}.")] if prefix else []:
                inner = self.add(name, ends or before, {kind} if ends else through)
                if inner.sources != (ends or before):
                    ends, came = inner.sources, inner
        return came or _Value(before, through)

    def _append(
        self, prefix: str, role: Any, weight: str | None, bias: str | None, inputs: Iterable[int],
        through: Iterable[str], module: nn.Module, **more: Any,
    ) -> None:  # fmt: skip
        names = [None if key is None else self.full_name(module, key) for key in (weight, bias)]
        # A tied layer or a second call is a node too, for what is the head and what feeds what, but its tensors
        # belong to the first.
        weight_name, bias_name = (None if name in self.read else name for name in names)
        conv = role == "conv"
        settings: dict[str, Any] = {
            "groups": getattr(module, "groups", 1) if conv else 1,
            "transposed": getattr(module, "transposed", False) if conv else type(module).__name__ == "Conv1D",
        } | more
        self.nodes.append(
            Layer(
                prefix,
                role,
                weight_name,
                bias_name,
                self.runs,
                tuple(sorted(inputs)),
                call=sum(node.name == prefix for node in self.nodes),
                through=tuple(sorted(through)),
                kind=type(module).__name__ if role == "activation" else "",
                **settings,
            )
        )
        self.read.update(name for name in names if name is not None)
        if weight is not None and weight.startswith("parametrizations."):  # all that this weight is computed from
            chain = weight.rpartition(".")[0]
            self.read.update(n for n in self.name_of.values() if n.startswith(f"{prefix}.{chain}.".lstrip(".")))

    def full_name(self, module: nn.Module, key: str) -> str:
        return self.name_of[id(lookup(module, key))]

    def _add_bare(self, prefix: str, key: str | None) -> None:
        """A bare parameter of which no use was seen, or one that is added or joined to something."""
        assert key is not None
        name = self.full_name(self.modules[prefix], key)
        if name not in self.read:
            added = isinstance(self.modules[prefix], nn.MultiheadAttention)  # its biases and its additional tokens
            self._append_bare(name, self._role_of_bare(name, "parameter" if added else None))

    def _append_bare(self, name: str, role: str) -> None:
        self.read.add(name)
        if role == "ignore":
            return
        parameter = self.net.get_parameter(name)
        shape = parameter.shape[len(self.runs) :]
        if role == "matrices":
            for part in range(shape[0]):
                self.nodes.append(Layer(f"{name}.{part}", "linear", name, None, self.runs, part=part))
            return
        given = {"norm": "norm", "gain": "gain", "matrix": "parameter", "bias": "parameter"}
        self.nodes.append(Layer(name, given.get(role, role), name, None, self.runs))  # type: ignore[arg-type]

    def _role_of_bare(self, name: str, seen: str | None) -> str:
        """What the user says it is, else what it was seen to do, else what its shape tells."""
        for pattern, role in self.roles.items():
            if fnmatchcase(name, pattern):
                return role
        if seen is not None:
            return seen
        shape = self.net.get_parameter(name).shape[len(self.runs) :]
        core = [n for n in shape if n != 1]
        # [out, in], a table [1, n, d], a token [1, 1, d]; what has one axis, or several matrices, cannot be told.
        told = len(core) == 2 or (len(shape) > 1 and len(core) < 2)
        return "parameter" if told else "undecided"

    # --- one operation --------------------------------------------------------------------------------------------

    def called(self, op: str, arguments: Sequence[_Value], others: Sequence[Any]) -> _Value:
        """What an operation makes of values; `others` are its arguments that are no tensors."""
        if op in _NO_TENSOR or (arguments and all(a.number for a in arguments)):
            return _Value(number=True)
        arguments = [a for a in arguments if not a.number]
        weights = [a.weight for a in arguments if a.weight is not None]
        data = [a for a in arguments if a.weight is None]
        if not arguments:
            return _Value()
        if weights and not data:
            return self._of_parameters(op, weights, others)
        sources = frozenset().union(*(a.sources for a in data))
        through = frozenset().union(*(a.through for a in data))
        if op in _SUMS | _SCALINGS | _PRODUCTS:
            for name in sorted(frozenset().union(*(a.parameters for a in data))):
                self._decide(name, "undecided")  # computed from a bare parameter in ways of its own
        if weights:
            return self._with_weights(op, arguments, weights, sources, through, others)
        if op in _NORMS:
            return self._node(f"{op}()", "norm", sources, through)
        if op in _ACTIVATIONS and sources - {RAW} and not through & _JOINS:
            return self._node(f"{op}()", "activation", sources, through, kind=op)
        several = sum(a.has_layers for a in data) > 1
        constant = any(isinstance(n, int | float) and n for n in others) or any(not a.sources for a in data)
        if op in _PRODUCTS or (op in _SCALINGS and several):
            op = "a product of two activations" if several else "mul"
        elif op in _SUMS and constant:
            op = "the addition of a constant"
        return _Value(sources, through | {op}, parameters=frozenset().union(*(a.parameters for a in data)))

    def _node(self, name: str, role: Any, sources: Iterable[int], through: Iterable[str], kind: str = "") -> _Value:
        call = sum(node.name == name for node in self.nodes)
        inputs = tuple(sorted(sources))
        self.nodes.append(
            Layer(name, role, None, None, self.runs, inputs, call=call, through=tuple(sorted(through)), kind=kind)
        )
        return _Value(frozenset({len(self.nodes) - 1}))

    def _of_parameters(self, op: str, weights: Sequence[_Weight], others: Sequence[Any]) -> _Value:
        """A view of a parameter; or something computed from parameters alone."""
        weight = weights[0]
        if len(weights) == 1:
            if op in _VIEWS:
                return _Value(weight=weight)
            last_two = not others or set(others) <= {-1, -2} or len(self._core(weight)) == 2
            if op in _FLIPS and last_two:
                return _Value(weight=replace(weight, flipped=not weight.flipped))
            if op in ("getitem", "select") and weight.part is None and len(self._core(weight)) == 3:
                index = [n for n in others if isinstance(n, int)]
                return _Value(weight=replace(weight, part=index[-1] if index else 0))
            if op in ("getitem", "chunk", "split", "narrow", "unbind"):
                return _Value(weight=weight)
        return _Value(parameters=frozenset(w.name for w in weights))

    def _core(self, weight: _Weight) -> list[int]:
        return [*self.net.get_parameter(weight.name).shape[len(self.runs) :]]

    def _decide(self, name: str, role: str) -> None:
        if name not in self.read and self.trained(self.net.get_parameter(name)):
            self._append_bare(name, self._role_of_bare(name, role))

    def _with_weights(
        self, op: str, arguments: Sequence[_Value], weights: Sequence[_Weight], sources: frozenset[int],
        through: frozenset[str], others: Sequence[Any],
    ) -> _Value:  # fmt: skip
        """Data meets parameters: a layer, a gain, a bias, a token, or something that cannot be told."""
        if not sources and op != "embedding":  # only constants: a parameter times fixed noise, say
            return _Value(parameters=frozenset(w.name for w in weights).union(*(a.parameters for a in arguments)))
        owner = weights[0].name.rpartition(".")[0]
        typed = role_of(self.modules.get(owner, nn.Identity()))
        matrices = [w for w in weights if len([n for n in self._core(w) if n != 1]) > 1]
        vectors = [w for w in weights if w not in matrices]
        if op in _PRODUCTS | _CONVOLUTIONS | {"embedding"} and len(matrices) == 1 and len(vectors) < 2:
            (weight,) = matrices
            return self._layer(op, weight, vectors[0] if vectors else None, arguments, sources, through, others)
        if op in _NORMS and typed is None:
            return self._bare_norm(weights, sources, through)
        if typed is not None:  # a module's weights used in another way than its own
            return self.add(owner, sources, through | {op})
        (first, *more) = weights
        if op in _SCALINGS and not more and first in vectors and self._may_be_gain(first.name):
            role = self._role_of_bare(first.name, "gain")
            if role in ("gain", "norm") and first.name not in self.read:
                self.read.add(first.name)
                trained = self.trained(self.net.get_parameter(first.name))
                value = self._node(first.name, role, sources, through)
                self.nodes[-1] = replace(self.nodes[-1], weight_name=first.name if trained else None)
                return value
        if op in _SUMS and not more:
            return self._added(first, sources, through)
        for weight in weights:
            self._decide(weight.name, "parameter" if op in _JOINS else "undecided")
        return _Value(sources, through | {"a bare parameter"})

    def _may_be_gain(self, name: str) -> bool:
        """Whether it was said to be one, or starts at all ones."""
        parameter = self.net.get_parameter(name)
        said = any(fnmatchcase(name, pattern) for pattern in self.roles)
        return said or (not parameter.is_meta and bool((parameter == 1).all()))

    def _bare_norm(self, weights: Sequence[_Weight], sources: frozenset[int], through: frozenset[str]) -> _Value:
        value = self._node(weights[0].name, "norm", sources, through)
        names = [w.name if self.trained(self.net.get_parameter(w.name)) else None for w in weights]
        self.nodes[-1] = replace(self.nodes[-1], weight_name=names[0], bias_name=(*names, None)[1])
        self.read.update(w.name for w in weights)
        return value

    def _added(self, weight: _Weight, sources: frozenset[int], through: frozenset[str]) -> _Value:
        """The bias of the layer before, if that has none; else a table or a token."""
        size = self.net.get_parameter(weight.name).numel()
        if len(sources) == 1 and not through and RAW not in sources and len(self._core(weight)) == 1:
            (i,) = sources
            node = self.nodes[i]
            stored = None if node.weight_name is None else self.net.get_parameter(node.weight_name)
            fits = stored is not None and size == stored.shape[len(self.runs) + (1 if node.transposed else 0)]
            free = node.bias_name is None and node.part is None and weight.name not in self.read
            if free and fits and self._role_of_bare(weight.name, "bias") == "bias":
                self.read.add(weight.name)
                if self.trained(self.net.get_parameter(weight.name)):
                    self.nodes[i] = replace(node, bias_name=weight.name)
                return _Value(sources)
        self._decide(weight.name, "parameter")
        return _Value(sources, through | {"the addition of a bare parameter"})

    def _layer(
        self, op: str, weight: _Weight, bias: _Weight | None, arguments: Sequence[_Value], sources: frozenset[int],
        through: frozenset[str], others: Sequence[Any],
    ) -> _Value:  # fmt: skip
        """A linear layer, convolution or embedding made of bare parameters, or of a module's."""
        owner = weight.name.rpartition(".")[0]
        module = self.modules[owner]
        typed = role_of(module)
        role: Role = "linear"
        if op in _CONVOLUTIONS:
            role = "conv"
        elif op == "embedding":
            role = "embedding"
        if typed == role and weight.part is None and not (type(module).__name__ == "Conv1D" and weight.flipped):
            return self.add(owner, sources, through)
        said = self._role_of_bare(weight.name, "linear")
        if said not in ("linear", "matrix", "matrices", "parameter"):
            self._decide(weight.name, said)
            return _Value(sources, through | {op})
        transposed = self._is_transposed(op, weight, arguments, others)
        core = self._core(weight)
        parts: list[int | None] = [weight.part]
        if role == "linear" and weight.part is None and len(core) == 3:  # seen in a batched product: several matrices
            parts = [*range(core[0])]
        if transposed is None or (len(core) > 3 and role == "linear"):
            self._decide(weight.name, "undecided")
            return _Value(sources, through | {op})
        inputs = tuple(sorted(sources))
        trained = self.trained(self.net.get_parameter(weight.name))
        ends = []
        for part in parts:
            key = weight.name if part is None else f"{weight.name}.{part}"
            taken = key in self.read or not trained
            name = weight.name if typed is None else owner
            bias_name = None if bias is None or bias.name in self.read or part is not None else bias.name
            self.nodes.append(
                Layer(
                    name if part is None else key,
                    role,
                    None if taken else weight.name,
                    bias_name,
                    self.runs,
                    inputs,
                    transposed=transposed,
                    part=part,
                    through=tuple(sorted(through)),
                    call=sum(node.name == name for node in self.nodes),
                )
            )
            ends.append(len(self.nodes) - 1)
            self.read.update((key, weight.name))
        if bias is not None:
            if bias.name not in self.read and bias.part is None and len(self._core(bias)) > 1:
                self._decide(bias.name, "undecided")
            self.read.add(bias.name)
        return _Value(frozenset(ends))

    def _is_transposed(
        self, op: str, weight: _Weight, arguments: Sequence[_Value], others: Sequence[Any]
    ) -> bool | None:
        """Whether the stored matrix is [in, out]; None if that cannot be told."""
        if op in ("linear", "embedding", "bilinear"):
            return weight.flipped
        if op in _CONVOLUTIONS:
            return "transpose" in op
        if op == "einsum":
            return _transposed_in(next((o for o in others if isinstance(o, str)), ""), arguments)
        operands = arguments[1:] if op in ("addmm", "baddbmm", "addmv") else arguments
        left = bool(operands) and operands[0].weight is not None and operands[0].weight.name == weight.name
        return left == weight.flipped

    def find_norm(
        self, name: str, module: nn.Module, inputs: Sequence[Any], output: Any, before: Iterable[str]
    ) -> None:
        """Make a norm layer of the gain of a module whose output does not change with the size of its input."""
        mine = [i for i, n in enumerate(self.nodes) if n.role == "gain" and n.name.rpartition(".")[0] == name]
        if not mine or not isinstance(output, Tensor) or not inputs[0].is_floating_point():
            return
        try:
            with torch.no_grad():
                again = module.forward(2 * inputs[0], *inputs[1:])
        except Exception:  # whatever a foreign module raises on it: then it stays a gain
            return
        if isinstance(again, Tensor) and again.shape == output.shape:
            size = output.detach().float().norm()
            if bool((again - output).detach().float().norm() < 0.02 * size):
                for i in mine:
                    self.nodes[i] = replace(self.nodes[i], role="norm", through=tuple(sorted(before)))

    def add_unread(self) -> None:
        """Append the nodes of the modules with parameters that no node has."""
        for name, module in self.modules.items():
            keys = [
                key for part in parts_of(module, self.trained) for key in (part.weight, part.bias) if key is not None
            ]
            if any(self.full_name(module, key) not in self.read for key in keys):
                self.add(name, ())


def _transposed_in(equation: str, arguments: Sequence[_Value]) -> bool | None:
    """Whether an einsum's matrix has its contracted letter first."""
    left, arrow, out = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    at = [i for i, a in enumerate(arguments) if a.weight is not None]
    if not arrow or len(at) != 1 or len(terms) != len(arguments):
        return None
    mine, theirs = terms[at[0]], "".join(t for i, t in enumerate(terms) if i != at[0])
    contracted = [i for i, letter in enumerate(mine) if letter in theirs and letter not in out]
    made = [i for i, letter in enumerate(mine) if letter in out and letter not in theirs]
    return contracted[0] < made[0] if len(contracted) == len(made) == 1 else None


# --- tracing ----------------------------------------------------------------------------------------------------------


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True  # a forward that writes to a buffer must not write to the real one

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if role_of(m) is not None or _operation(m):
            return True
        return super().is_leaf_module(m, module_qualified_name) and not any(True for _ in m.parameters())


@contextmanager
def _untouched_random_states() -> Iterator[None]:
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        random.setstate(states[2])
        if on_gpus:
            torch.cuda.set_rng_state_all(on_gpus)


def _reason(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _trace(net: nn.Module, walk: _Walk) -> str | None:
    """Walk along the dataflow graph that ``torch.fx`` traces; returns why there is none."""
    with _untouched_random_states():
        try:
            shared: dict[int, object] = {id(t): t for t in (*net.parameters(), *net.buffers())}
            arguments = inspect.signature(net.forward).parameters.values()
            defaults = {a.name: a.default for a in arguments if a.default is not a.empty}
            copied = copy.deepcopy(net, shared)
            for module in copied.modules():  # a user's own hooks do not expect symbols
                module._forward_hooks.clear()
                module._forward_pre_hooks.clear()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                graph = _Tracer().trace(copied, defaults or None)
        except Exception as error:  # anything a forward may raise on symbolic inputs
            return f"{type(net).__name__}.forward cannot be traced ({_reason(error)})"
    values: dict[fx.Node, _Value] = {}
    for node in graph.nodes:
        given = _split([node.args, node.kwargs])[1]
        inputs = [values[a] for a in given if isinstance(a, fx.Node)]
        others = [a for a in given if not isinstance(a, fx.Node)]
        values[node] = _follow(walk, node, inputs, others)
    for gain in [n for n in walk.nodes if n.role == "gain"]:
        _try_norm(walk, gain)
    return None


def _try_norm(walk: _Walk, gain: Layer) -> None:
    """Call a copy of the module of a bare gain on numbers, to see whether it normalizes."""
    prefix = gain.name.rpartition(".")[0]
    module = walk.modules[prefix]
    units = walk.net.get_parameter(gain.name).shape[-1]
    if any(True for _ in module.children()) or walk.runs:
        return
    try:
        copied = copy.deepcopy(module).eval()
        x = torch.randn(3, units, generator=torch.Generator().manual_seed(0)).to(walk.net.get_parameter(gain.name))
        with torch.no_grad():
            output = copied.forward(x)
    except Exception:  # it takes something else
        return
    walk.find_norm(prefix, copied, (x,), output, ())


def _follow(walk: _Walk, node: fx.Node, inputs: Sequence[_Value], others: Sequence[Any]) -> _Value:
    """The value of one node of the graph."""
    if node.op == "placeholder":
        return _Value(frozenset({RAW}))
    if node.op == "get_attr":
        name = str(node.target)
        parameter = dict(walk.net.named_parameters(remove_duplicate=False)).get(name)
        if parameter is None:
            return _Value()
        return _Value(weight=_Weight(walk.name_of[id(parameter)]))
    if node.op == "call_module":
        target = str(node.target)
        sources = frozenset().union(*(v.sources for v in inputs))
        through = frozenset().union(*(v.through for v in inputs))
        if role_of(module := walk.modules[target]) is None:
            return walk.called(_operation(module) or type(module).__name__, inputs, ())
        return walk.add(target, sources, through)
    if node.op == "output":
        return _Value()
    op = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    if op == "getattr":
        op = str(node.args[1])
    if op == "getitem" and inputs and inputs[0].number:
        return _Value(number=True)
    return walk.called(_plain(op), inputs, others)


def _plain(op: str) -> str:
    """``__radd__``, ``add_`` and ``add`` are one operation."""
    return op.strip("_")


# --- watching ---------------------------------------------------------------------------------------------------------


class _Lost(Exception):
    """A tensor that depends on parameters came from where nothing was seen."""


class Watch(TorchFunctionMode):
    """Sees every operation of one call, outside of the modules that are layers."""

    def __init__(self, walk: _Walk) -> None:
        super().__init__()
        self.walk = walk
        self.values: dict[int, _Value] = {}
        self.kept: list[Any] = []  # so that no address is used twice
        self.inside = 0  # how many layers are being called
        self.outputs: dict[tuple[str, int], Tensor] = {}  # of activations, by name and call
        self.calls: Counter[str] = Counter()
        for name, parameter in walk.net.named_parameters(remove_duplicate=False):
            self.values[id(parameter)] = _Value(weight=_Weight(walk.name_of.get(id(parameter), name)))

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.inside:
            return result
        name = getattr(func, "__name__", "")
        if name in ("__get__", "__set__"):
            name = getattr(getattr(func, "__self__", None), "__name__", name)
        op = _plain(name)
        tensors, others = _split([*args, *kwargs.values()])
        if not tensors or op in ("set_", "backward", "register_hook", "grad_fn", "grad", "requires_grad"):
            return result
        made = _split([args[0] if op == "setitem" else result])[0]
        if made and not all(id(t) in self.values and op in _VIEWS and t is tensors[0] for t in made):
            before = len(self.walk.nodes)
            value = self.walk.called(op, [self.value(t) for t in tensors], others)
            self.give(made, value)
            if len(self.walk.nodes) > before and self.walk.nodes[-1].role == "activation":
                self.keep(self.walk.nodes[-1], made[0])
        return result

    def value(self, tensor: Tensor) -> _Value:
        if id(tensor) not in self.values:
            if tensor.requires_grad:
                raise _Lost(f"an operation could not be followed ({type(tensor.grad_fn).__name__})")
            return _Value()
        return self.values[id(tensor)]

    def give(self, tensors: Sequence[Tensor], value: _Value) -> None:
        for tensor in tensors:
            self.values[id(tensor)] = value
            self.kept.append(tensor)

    def keep(self, node: Layer, output: Tensor) -> None:
        self.outputs[node.name, node.call] = output.detach().clone()

    def enter(self, *_: Any) -> None:
        """Before a layer's forward."""
        self.inside += 1

    def leave(self, name: str, inputs: Any, output: Any) -> None:
        """After it."""
        self.inside -= 1
        if self.inside:
            return
        values = [self.value(t) for t in _split(inputs)[0]]
        sources = frozenset().union(*(v.sources for v in values))
        through = frozenset().union(*(v.through for v in values))
        if operation := _operation(self.walk.modules[name]):
            value = self.walk.called(operation, values, ())
        else:
            value = self.walk.add(name, sources, through)
        made = _split([output])[0]
        self.give(made, value)
        if made and self.walk.nodes and self.walk.nodes[-1].role == "activation":
            self.keep(self.walk.nodes[-1], made[0])

    def check_norm(self, name: str, module: nn.Module, inputs: Sequence[Any], output: Any) -> None:
        """After a module of bare parameters: whether it is a norm layer."""
        if self.inside or not inputs or not isinstance(inputs[0], Tensor):
            return
        before = frozenset[str]() if id(inputs[0]) not in self.values else self.values[id(inputs[0])].through
        self.inside += 1
        self.walk.find_norm(name, module, inputs, output, before)
        self.inside -= 1


def _split(values: Any) -> tuple[list[Tensor], list[Any]]:
    """The tensors in nested arguments, and what is none."""
    tensors: list[Tensor] = []
    others: list[Any] = []
    waiting = [values]
    while waiting:
        value = waiting.pop(0)
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, Mapping):
            waiting = [*value.values(), *waiting]
        elif isinstance(value, list | tuple | set):
            waiting = [*value, *waiting]
        elif hasattr(value, "__dataclass_fields__"):
            waiting = [*vars(value).values(), *waiting]
        else:
            others.append(value)
    return tensors, others


def _watch(net: nn.Module, walk: _Walk, example: Example) -> str | None:
    """Walk along one real call; returns what could not be followed."""
    try:
        watched_call(net, walk, example)
    except _Lost as error:
        return str(error)
    return None


def watched_call(net: nn.Module, walk: _Walk, example: Example) -> Watch:
    """Call the network once and see what feeds what. Modes, buffers and random states are restored.

    Raises:
        ValueError: the network cannot be called so.
    """
    watch = Watch(walk)
    args, kwargs = arguments_of(example)
    watch.give(_split([args, kwargs])[0], _Value(frozenset({RAW})))
    modes = {module: module.training for module in net.modules()}
    buffers = [(b, b.detach().clone()) for b in net.buffers()]
    handles: list[Any] = []
    inner: set[str] = set()
    for name, module in walk.modules.items():
        if any(name.startswith(f"{outer}.") for outer in inner if outer):
            continue
        if role_of(module) is not None or _operation(module):
            inner.add(name)
            handles.append(module.register_forward_pre_hook(watch.enter))
            leave: Any = lambda m, a, k, out, name=name: watch.leave(name, (a, k), out)  # noqa: E731
            handles.append(module.register_forward_hook(leave, with_kwargs=True))
        elif any(p.ndim - len(walk.runs) <= 1 for p in module._parameters.values() if p is not None):
            check: Any = lambda m, a, out, name=name: watch.check_norm(name, m, a, out)  # noqa: E731
            handles.append(module.register_forward_hook(check))
    try:
        net.eval()
        # With gradients: without them some modules of torch take a short cut past their own layers.
        with _untouched_random_states(), torch.enable_grad(), watch:
            net(*args, **kwargs)
    except _Lost:
        raise
    except Exception as error:
        raise ValueError(f"example: {type(net).__name__} cannot be called on it: {_reason(error)}") from error
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes.items():
            module.training = mode
        with torch.no_grad():
            for buffer, before in buffers:
                if buffer.shape == before.shape:
                    buffer.copy_(before)
    return watch


def arguments_of(example: Example) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments of a call."""
    if isinstance(example, Mapping):
        return (), {str(name): value for name, value in example.items()}
    return (example,) if isinstance(example, Tensor) else tuple(example), {}


def activations_of(net: nn.Module, units: Sequence[HiddenUnits], inputs: Example) -> list[Tensor]:
    """The output of each activation in `units`, modules and functions, when `net` is called on `inputs`."""
    net = unwrapped(net)
    modules = dict(net.named_modules())
    if all(unit.activation in modules for unit in units):
        return _outputs_of_modules(net, units, inputs)
    watch = watched_call(net, _Walk(net, {}, None), inputs)
    return [watch.outputs[unit.activation, unit.call] for unit in units]


def _outputs_of_modules(net: nn.Module, units: Sequence[HiddenUnits], inputs: Example) -> list[Tensor]:
    outputs: dict[str, list[Tensor]] = {unit.activation: [] for unit in units}
    keep: Callable[[str], Any] = lambda name: lambda _m, _i, out: outputs[name].append(out.clone())  # noqa: E731
    hooks = [net.get_submodule(name).register_forward_hook(keep(name)) for name in outputs]
    args, kwargs = arguments_of(inputs)
    try:
        net(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    return [outputs[unit.activation][unit.call] for unit in units]
