"""Walking through a network, operation by operation: which layers there are, and what feeds each."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from rl_plasticity.structure import operations as ops
from rl_plasticity.structure.layer import COMPUTED, Layer, Role, kind_of, lookup, parts_of, role_of, runs_of

RAW = -1  # stands for the network's own inputs among the inputs of a node


@dataclass(frozen=True)
class Weight:
    """A parameter, or a view of it: flipped, [in, out]."""

    name: str
    flipped: bool = False


@dataclass(frozen=True)
class Value:
    """Where a tensor comes from.

    Attributes:
        sources: the nodes that it was computed from.
        through: the operations since these nodes.
        weight: the parameter, if it is one or a view of one.
        parameters: the bare parameters that it was computed from, without any data.
        number: whether it is a shape or a type and not a tensor.
        biased: whether a bare bias was added to a layer's output.
    """

    sources: frozenset[int] = frozenset()
    through: frozenset[str] = frozenset()
    weight: Weight | None = None
    parameters: frozenset[str] = frozenset()
    number: bool = False
    biased: bool = False

    @property
    def has_layers(self) -> bool:
        """Whether scaling a layer may scale it."""
        return bool(self.sources - {RAW})

    def after(self, operation: str) -> "Value":
        """The value behind an operation."""
        return replace(self, through=self.through | {operation})


def joined(values: Iterable[Value]) -> Value:
    """The sources, operations and parameters of all."""
    values = list(values)
    return Value(
        frozenset().union(*(v.sources for v in values)),
        frozenset().union(*(v.through for v in values)),
        parameters=frozenset().union(*(v.parameters | ({v.weight.name} if v.weight else set()) for v in values)),
        biased=any(v.biased for v in values),
    )


def said_of(name: str, roles: Mapping[str, str]) -> str | None:
    """The role of the first pattern that the parameter's name matches."""
    return next((role for pattern, role in roles.items() if fnmatchcase(name, pattern)), None)


class Walk:
    """Collects the layers and activations of a network in the order in which it is walked through.

    Args:
        roles: the roles of bare parameters, by a pattern of their names.
        only: ids of the parameters to act on; None: all that require gradients.
    """

    def __init__(self, net: nn.Module, roles: Mapping[str, str], only: set[int] | None) -> None:
        self.net, self.roles, self.only = net, roles, only
        self.runs = runs_of(net)
        self.modules = dict(net.named_modules())
        self.name_of = {id(p): n for n, p in net.named_parameters()}  # tied parameters count once, by first name
        self.nodes: list[Layer] = []
        self.seen: set[str] = set()  # the parameters that have a node
        self.returned: list[Value] = []
        self.uses: Counter[str] = Counter()  # how many nodes read a parameter
        self.weights: dict[int, str] = {}  # of nodes, their own or another's
        self._reads: Counter[int] = Counter()  # how many operations read a node's output as it is
        self._biases: dict[int, str] = {}  # bare parameters that were added right behind a node
        self._joined: dict[str, int] = {}  # bare parameters that were joined to something, and their nodes

    def trained(self, parameter: Tensor) -> bool:
        """Whether a parameter is to be acted on."""
        return parameter.requires_grad and (self.only is None or id(parameter) in self.only)

    def node(self, name: str, role: Any, data: Value, **more: Any) -> Value:
        """Append a node that reads `data`, and return its output."""
        call = sum(node.name == name for node in self.nodes)
        tensors = {"weight_name": None, "bias_name": None, "runs": self.runs}
        inputs, through = tuple(sorted(data.sources)), tuple(sorted(data.through))
        self.nodes.append(Layer(name, role, **{**tensors, "inputs": inputs, "call": call, "through": through, **more}))
        return Value(frozenset({len(self.nodes) - 1}))

    # --- modules --------------------------------------------------------------------------------------------------

    def module(self, prefix: str, data: Value) -> Value:
        """Append the nodes of a module that reads `data`, and of the modules in it; returns the module's output."""
        self._read([data])
        for name in sorted(data.parameters):  # given to a module among its inputs
            self._decide(name, "undecided")
            data = data.after(_bare(name))
        module = self.modules[prefix]
        kind = type(module).__name__
        if isinstance(module, nn.Bilinear):
            data = data.after(kind)
        out: Value | None = None
        for part in parts_of(module, self.trained):
            if part.role == "parameter" and part.weight is not None:
                # The shape of an activation is neither a gain nor a bias. Attention has biases and additional tokens.
                role = "ignore" if role_of(module) == "activation" else "undecided"
                name = self._full_name(module, part.weight)
                self._decide(name, "parameter" if isinstance(module, nn.MultiheadAttention) else role)
            elif part.parallel and out is not None:
                out = joined([out, self._part(prefix, part.role, part.weight, part.bias, data)])
            else:
                data = data if out is None else out.after(kind)
                out = self._part(prefix, part.role, part.weight, part.bias, data)
        if out is not None and isinstance(module, nn.RNNBase | nn.RNNCellBase):
            out = out.after(kind)
        if role_of(module) is not None and prefix:
            for name in [n for n in self.modules if n.startswith(f"{prefix}.")]:
                before = len(self.nodes)
                inner = self.module(name, data if out is None else out.after(kind))
                out = inner if len(self.nodes) > before and self.nodes[-1].role != "parameter" else out
        return data if out is None else out

    def _part(self, prefix: str, role: Role, weight: str | None, bias: str | None, data: Value) -> Value:
        module = self.modules[prefix]
        names = [None if key is None else self._full_name(module, key) for key in (weight, bias)]
        # A tied layer or a second call is a node too, for what is the head and what feeds what, but its tensors
        # belong to the first.
        weight_name, bias_name = (None if name in self.seen else name for name in names)
        more: dict[str, Any] = {"transposed": type(module).__name__ == "Conv1D"}
        if role == "conv":
            more = {"transposed": module.transposed, "groups": module.groups}
        elif role == "activation":
            more = {"kind": type(module).__name__}
        if role in ("linear", "conv", "embedding") and weight is None and "weight" in vars(module):
            more["kind"] = COMPUTED  # no parameter: a hook makes it before each call, as torch's pruning does
        if names[0] is not None:
            self.weights[len(self.nodes)] = names[0]
        out = self.node(prefix, role, data, weight_name=weight_name, bias_name=bias_name, **more)
        used = [name for name in names if name is not None]
        self.seen.update(used)
        self.uses.update(used)
        if weight is not None and weight.startswith("parametrizations."):  # all that this weight is computed from
            chain = f"{prefix}.{weight.rpartition('.')[0]}.".lstrip(".")
            self.seen.update(n for n in self.name_of.values() if n.startswith(chain))
        return out

    def unread(self) -> None:
        """Append the nodes of modules that have parameters without a node."""
        for name, module in self.modules.items():
            keys = [key for part in parts_of(module, self.trained) for key in (part.weight, part.bias)]
            names = [self._full_name(module, key) for key in keys if key is not None]
            missed = [n for n in names if n not in self.seen]
            if missed == [f"{name}.bias"] and f"{name}.weight" in names:  # the forward used its weight alone
                self._decide(missed[0], "undecided")
            elif missed:
                self.module(name, Value())

    def settle(self) -> None:
        """Correct what later operations have shown to be wrong."""
        self._read(self.returned)
        for i, name in self._biases.items():
            if self._reads[i] > 1:  # something reads the layer's output without it
                self.nodes[i] = replace(self.nodes[i], bias_name=None)
                self.seen.discard(name)
                self._decide(name, "undecided")
                for k, node in enumerate(self.nodes):
                    if i in node.inputs:
                        self.nodes[k] = replace(node, through=tuple(sorted({*node.through, _bare(name)})))
                self.returned = [v.after(_bare(name)) if i in v.sources else v for v in self.returned]
        for name, i in self._joined.items():
            if not any(_bare(name) in node.through for node in self.nodes):  # no layer reads it: a log_std, say
                self.nodes[i] = replace(self.nodes[i], role="undecided")

    def _read(self, values: Iterable[Value]) -> None:
        raw = [v for v in values if len(v.sources) == 1 and not v.through and not v.biased]
        self._reads.update(i for v in raw for i in v.sources)

    def find_norm(self, prefix: str, module: nn.Module, inputs: Sequence[Any], output: Any, data: Value) -> None:
        """Make the bare gain of a module a norm layer if the output does not change with the size of the input."""
        mine = [i for i, n in enumerate(self.nodes) if n.role == "gain" and n.name.rpartition(".")[0] == prefix]
        if not mine or not isinstance(output, Tensor) or not inputs[0].is_floating_point():
            return
        try:
            with torch.no_grad():
                again = module.forward(2 * inputs[0], *inputs[1:])
        except Exception:  # whatever a foreign module raises: then it stays a gain
            return
        if isinstance(again, Tensor) and again.shape == output.shape:
            size = output.detach().float().norm()
            if bool((again - output).detach().float().norm() < 0.02 * size):
                for i in mine:
                    self.nodes[i] = replace(self.nodes[i], role="norm", through=tuple(sorted(data.through)))

    # --- operations -----------------------------------------------------------------------------------------------

    def call(self, op: str, arguments: Sequence[Value], others: Sequence[Any] = ()) -> Value:
        """The output of an operation on values; `others` are its arguments that are no tensors."""
        if op in ops.NO_TENSOR or (arguments and all(a.number for a in arguments)):
            return Value(number=True)
        arguments = [a for a in arguments if not a.number]
        if op in ops.MAKERS:
            return Value()
        if op in ops.SHAPED:
            arguments = arguments[:1]
        self._read(arguments)
        weights = [a.weight for a in arguments if a.weight is not None]
        values = [a for a in arguments if a.weight is None]
        if weights and not values:
            return self._of_parameters(op, weights, others)
        data = joined(values)
        nothing = op in ops.SCALINGS and 0 in [n for n in others if isinstance(n, int | float)]
        if not weights and (nothing or not (data.sources or data.parameters)):
            return Value()
        if op in ops.SUMS | ops.SCALINGS | ops.PRODUCTS:
            for name in sorted(data.parameters):
                self._decide(name, "undecided")  # computed from a bare parameter in ways of its own
        made = sorted(n for a in values if not a.sources for n in a.parameters)
        is_weight = not weights or any(len(self._core(Weight(n))) > 1 for n in made)  # and no bias
        if op in ops.LAYERS and data.sources and made and is_weight:
            return self._computed(op, made, weights, data)
        if weights:
            return self._with_weights(op, arguments, weights, data, others)
        if op in ops.NORMS:
            return self.node(f"{op}()", "norm", data)
        if op in ops.ACTIVATIONS and data.has_layers and not data.through & ops.JOINS:
            return self.node(f"{op}()", "activation", data, kind=op)
        if data.parameters and data.sources:
            return Value(data.sources, data.through | {"a computed parameter"})
        return data.after(self._between(op, values, others, sum(a.has_layers for a in values) > 1))

    @staticmethod
    def _between(op: str, values: Sequence[Value], others: Sequence[Any], several: bool) -> str:
        """The name of an operation between layers; if its operands make it inhomogeneous, a name that says so."""
        numbers = [n for n in others if isinstance(n, int | float)]
        constants = sum(not a.sources for a in values)
        if op == "pad":  # the sizes come in pairs, the value behind them
            return "the addition of a constant" if len(numbers) % 2 and numbers[-1] else op
        if op in ops.PRODUCTS | ops.SCALINGS:
            if several:
                return "a product of two activations"
            if "div" in op and not values[0].has_layers and any(v.has_layers for v in values):
                return "rtruediv"
            return "the addition of a constant" if op in ops.PRODUCTS - {"einsum"} and constants > 1 else "mul"
        if any(isinstance(n, torch.dtype) and not n.is_floating_point for n in others):
            return "a cast to whole numbers"
        if constants > ops.PLACES.get(op, 0) or (op in ops.SUMS | ops.FILLS and any(numbers)):
            return "the addition of a constant" if op in ops.HOMOGENEOUS else op
        return op

    def _of_parameters(self, op: str, weights: Sequence[Weight], others: Sequence[Any]) -> Value:
        """A view of a parameter; or something computed from parameters alone."""
        weight, core = weights[0], self._core(weights[0])
        if len(weights) == 1:
            if op in ops.VIEWS and not (op in ops.RESHAPES and len(self._axes(weight.name)) > 1):
                return Value(weight=weight)
            if op in ops.FLIPS and (not others or set(others) <= {-1, -2} or len(core) == 2):
                return Value(weight=replace(weight, flipped=not weight.flipped))
            if op in ops.CUTS and not (len(core) > 2 and any(isinstance(n, int) for n in others)):
                return Value(weight=weight)
        return Value(parameters=frozenset(w.name for w in weights))

    def _with_weights(
        self, op: str, arguments: Sequence[Value], weights: Sequence[Weight], data: Value, others: Sequence[Any]
    ) -> Value:
        """An operation on data and parameters: a layer, a gain, a bias, a token, or something that cannot be told."""
        if not data.sources and op != "embedding":  # only constants: a parameter times fixed noise, say
            return Value(parameters=data.parameters.union(w.name for w in weights))
        owner = weights[0].name.rpartition(".")[0]
        typed = role_of(self.modules.get(owner, nn.Identity()))
        matrices = [w for w in weights if len(self._core(w) if op in ops.LAYERS else self._axes(w.name)) > 1]
        vectors = [w for w in weights if w not in matrices]
        (first, *more) = weights
        if op in ops.ADDENDS and first in matrices and arguments[0].weight == first and not others:
            return self.call("add", [self.call(ops.ADDENDS[op], arguments[1:]), arguments[0]])
        if op in ops.PRODUCTS | ops.CONVOLUTIONS | {"embedding"} and len(matrices) == 1 and len(vectors) < 2:
            out = self._layer(op, matrices[0], vectors, arguments, data, others)
            added = any(a.weight is None and not a.sources for a in arguments) and op not in ("einsum", "embedding")
            return out.after("the addition of a constant") if added else out
        is_bias = op in ops.SUMS and not more and first in vectors
        if typed is not None and not is_bias:  # a module's weights used in another way than its own
            return self.module(owner, data.after(op))
        if op in ops.NORMS and not data.parameters:
            names = [self._take(w.name) for w in weights]
            return self.node(first.name, "norm", data, weight_name=names[0], bias_name=(*names, None)[1])
        if op in ops.SCALINGS and not more and first in vectors and self._may_be_gain(first.name):
            role = self._role_of(first.name, "gain")
            if role in ("gain", "norm") and first.name not in self.seen:
                return self.node(first.name, role, data, weight_name=self._take(first.name))
        if op in ops.SUMS and not more:
            return self._added(first, data)
        if op in ops.LAYERS:
            return self._computed(op, [], weights, data)
        for weight in weights:
            before = len(self.nodes)
            self._decide(weight.name, "parameter" if op in ops.JOINS else "undecided")
            if op in ops.JOINS and len(self.nodes) == before + 1 and self.nodes[-1].role == "parameter":
                self._joined[weight.name] = before
            data = data.after(_bare(weight.name))
        return data

    def _computed(self, op: str, names: Sequence[str], weights: Sequence[Weight], data: Value) -> Value:
        """A layer without tensors: its weight is computed from these parameters, or used in an unusual way.

        It is a node because the layers before it are no heads.
        """
        names = [*names, *(w.name for w in weights)]
        for name in names:
            self._decide(name, "undecided")
        owners = {name.rpartition(".")[0] for name in names}
        name = owners.pop() if len(owners) == 1 and owners != {""} else names[0]
        data = replace(data, parameters=frozenset())
        role = "conv" if op in ops.CONVOLUTIONS else "linear"
        return self.node(name, role, data, kind=COMPUTED).after("a computed parameter")

    def _added(self, weight: Weight, data: Value) -> Value:
        """A parameter that is added: the bias of the layer before if that has none, else a table or a token."""
        if len(self._core(weight)) > 1 and any(self.nodes[i].kind == COMPUTED for i in data.sources - {RAW}):
            self._decide(weight.name, "undecided")  # the biases of several layers, or a table
            return data.after("the addition of a bare parameter")
        if len(data.sources) == 1 and not data.through and data.has_layers and len(self._core(weight)) == 1:
            (i,) = data.sources
            node = self.nodes[i]
            stored = None if node.weight_name is None else self.net.get_parameter(node.weight_name)
            units = None if stored is None else stored.shape[len(self.runs) + node.transposed]
            free = node.bias_name is None and weight.name not in self.seen
            if free and self._core(weight) == [units] and self._role_of(weight.name, "bias") == "bias":
                self.nodes[i] = replace(node, bias_name=self._take(weight.name))
                self._biases[i] = weight.name
                return replace(data, biased=True)
        self._decide(weight.name, "parameter")
        return data.after("the addition of a bare parameter")

    def _layer(
        self, op: str, weight: Weight, biases: Sequence[Weight], arguments: Sequence[Value], data: Value,
        others: Sequence[Any],
    ) -> Value:  # fmt: skip
        """A linear layer, convolution or embedding made of bare parameters, or of a module's parameters."""
        owner = weight.name.rpartition(".")[0]
        typed = role_of(self.modules[owner])
        role: Role = "conv" if op in ops.CONVOLUTIONS else "embedding" if op == "embedding" else "linear"
        module = self.modules[owner]
        if typed == role and type(module).__name__ != "Conv1D":
            bias = module._parameters.get("bias")
            bias_read = bias is None or self.name_of[id(bias)] in [b.name for b in biases]
            if weight.name != f"{owner}.weight" or (bias_read and not weight.flipped):
                return self.module(owner, data)
        said, core = self._role_of(weight.name, "linear"), self._core(weight)
        transposed = _is_transposed(op, weight, arguments, others)
        known = said in ("linear", "matrix", "parameter") and transposed is not None
        if not known or (role == "linear" and len(core) > 2):
            self._decide(weight.name, "undecided" if said == "linear" else said)
            return self._computed(op, [], [weight, *biases], data)
        bias_name = None
        for bias in biases:
            bias_name = self._take(bias.name)
        self.uses[weight.name] += 1
        of_module = typed is not None or (kind_of(self.modules[owner]) and weight.name == f"{owner}.weight")
        free = self._is_trained(weight.name) and weight.name not in self.seen
        more: dict[str, Any] = {"groups": module.groups} if role == "conv" and of_module else {}
        self.weights[len(self.nodes)] = weight.name
        self.seen.add(weight.name)
        return self.node(
            owner if of_module else weight.name,
            role,
            data,
            weight_name=weight.name if free else None,
            bias_name=bias_name,
            transposed=transposed,
            **more,
        )

    # --- bare parameters ------------------------------------------------------------------------------------------

    def _full_name(self, module: nn.Module, key: str) -> str:
        return self.name_of[id(lookup(module, key))]

    def _core(self, weight: Weight) -> list[int]:
        return [*self.net.get_parameter(weight.name).shape[len(self.runs) :]]

    def _axes(self, name: str) -> list[int]:
        """The lengths of a parameter's axes that are longer than one."""
        return [n for n in self._core(Weight(name)) if n != 1]

    def _is_trained(self, name: str) -> bool:
        return self.trained(self.net.get_parameter(name))

    def _take(self, name: str) -> str | None:
        """The name, for the node that takes the parameter; None if another node has it or it is frozen."""
        free = name not in self.seen and self._is_trained(name)
        self.seen.add(name)
        self.uses[name] += 1
        return name if free else None

    def _decide(self, name: str, seen: str) -> None:
        """Append the nodes of a bare parameter that has none yet, given what it was seen to do."""
        if name in self.seen or not self._is_trained(name):
            return
        role = self._role_of(name, seen)
        self.seen.add(name)
        if role != "ignore":
            as_node = {"matrix": "parameter", "bias": "parameter"}.get(role, role)
            self.node(name, as_node, Value(), weight_name=name)

    def _may_be_gain(self, name: str) -> bool:
        """Whether it was said to be one, or starts at all ones, several of them."""
        parameter = self.net.get_parameter(name)
        several = math.prod(self._core(Weight(name))) > 1
        return said_of(name, self.roles) is not None or (
            several and not parameter.is_meta and bool((parameter == 1).all())
        )

    def _role_of(self, name: str, seen: str) -> str:
        """What the user says that a bare parameter is, else what it was seen to do. Its shape tells nothing."""
        if said := said_of(name, self.roles):
            return said
        owner = self.modules[name.rpartition(".")[0]]
        if getattr(type(owner), "layer_role", None) == "ignore":  # a module of ours says so
            return "ignore"
        return seen


def _bare(name: str) -> str:
    """The name of an operation on a bare parameter whose role cannot be told."""
    return f"a bare parameter, {name}"


def _is_transposed(op: str, weight: Weight, arguments: Sequence[Value], others: Sequence[Any]) -> bool | None:
    """Whether the stored matrix is [in, out]; None if that cannot be told."""
    if op in ("linear", "embedding", "bilinear"):
        return weight.flipped
    if op in ops.CONVOLUTIONS:
        return "transpose" in op
    if op == "einsum":
        return None
    operands = arguments[1:] if op in ("addmm", "baddbmm", "addmv") else arguments
    left = bool(operands) and operands[0].weight is not None and operands[0].weight.name == weight.name
    return left == weight.flipped
