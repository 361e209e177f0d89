"""A walk through a network, operation by operation: which layers there are, and what feeds each.

`Walk.module` and `Walk.call` are told, in forward order, of each module that is a layer and of each operation between
them. Both take what `Value` says of their inputs and return what it says of their output. What is a layer, also one of
bare parameters, becomes a node.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from rl_plasticity.structure import operations as ops
from rl_plasticity.structure.calling import aside
from rl_plasticity.structure.layer import COMPUTED, Layer, Role, Sublayer, kind_of, lookup, role_of, runs_of, sublayers

INPUT = -1  # stands for the network's own inputs among the inputs of a node


@dataclass(frozen=True)
class Weight:
    """A parameter, or a view of it: flipped, [in, out]."""

    name: str
    flipped: bool = False

    @property
    def owner(self) -> str:
        """The name of the module that has it."""
        return self.name.rpartition(".")[0]


@dataclass(frozen=True)
class Value:
    """Where a tensor comes from.

    Attributes:
        sources: the nodes that it was computed from.
        through: the operations since these nodes.
        weight: the parameter, if it is one or a view of one.
        parameters: the bare parameters that it was computed from, without any data.
    """

    sources: frozenset[int] = frozenset()
    through: frozenset[str] = frozenset()
    weight: Weight | None = None
    parameters: frozenset[str] = frozenset()

    @property
    def has_layers(self) -> bool:
        """Whether scaling a layer may scale it."""
        return bool(self.sources - {INPUT})

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
    )


@dataclass(frozen=True)
class Operation:
    """An operation between layers.

    Attributes:
        name: torch's, as `operations.plain` has it.
        operands: its arguments that are tensors.
        others: its arguments that are none.
    """

    name: str
    operands: Sequence[Value]
    others: Sequence[Any]

    @cached_property
    def weights(self) -> list[Weight]:
        """The operands that are parameters."""
        return [a.weight for a in self.operands if a.weight is not None]

    @cached_property
    def values(self) -> list[Value]:
        """The operands that are not parameters."""
        return [a for a in self.operands if a.weight is None]

    @cached_property
    def data(self) -> Value:
        """Where these come from."""
        return joined(self.values)

    @cached_property
    def made_of(self) -> list[str]:
        """The bare parameters from which those of them without data were computed."""
        return sorted(name for a in self.values if not a.sources for name in a.parameters)

    @property
    def constants(self) -> int:
        """How many of them come from no layer and no input."""
        return sum(not a.sources for a in self.values)

    @property
    def is_constant(self) -> bool:
        """Whether the outcome depends on neither data nor parameters."""
        is_zero = self.name in ops.SCALINGS and 0 in self.numbers
        return not self.weights and (is_zero or not (self.data.sources or self.data.parameters))

    @property
    def numbers(self) -> list[float]:
        """The numbers among the other arguments."""
        return [n for n in self.others if isinstance(n, int | float)]

    @property
    def between(self) -> str:
        """Its name between two layers; if its operands make it inhomogeneous, a name that says so."""
        name, numbers, layered = self.name, self.numbers, [a.has_layers for a in self.values]
        if name == "pad":  # the sizes come in pairs, the value behind them
            return ops.PLUS_CONSTANT if len(numbers) % 2 and numbers[-1] else name
        if name in ops.PRODUCTS | ops.SCALINGS:
            if sum(layered) > 1:
                return ops.OF_BRANCHES
            if "div" in name and any(layered) and not layered[0]:
                return "rtruediv"
            return ops.PLUS_CONSTANT if name in ops.PRODUCTS - {"einsum"} and self.constants > 1 else "mul"
        if any(isinstance(n, torch.dtype) and not n.is_floating_point for n in self.others):
            return "a cast to whole numbers"
        added = self.constants > ops.PLACES.get(name, 0) or (name in ops.SUMS | ops.FILLS and any(numbers))
        return ops.PLUS_CONSTANT if added and name in ops.HOMOGENEOUS else name

    def takes_transposed(self, weight: Weight) -> bool | None:
        """Whether it takes the stored matrix as [in, out]; None if that cannot be told."""
        if self.name == "einsum":
            return None
        if self.name in ops.CONVOLUTIONS:
            return "transpose" in self.name
        if self.name in ("linear", "embedding", "bilinear"):
            return weight.flipped
        operands = self.operands[1:] if self.name in ops.ADDING else self.operands
        is_left = bool(operands) and operands[0].weight is not None and operands[0].weight.name == weight.name
        return is_left == weight.flipped


def given_role(name: str, roles: Mapping[str, str]) -> str | None:
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
        self.returned: list[Value] = []
        self.uses: Counter[str] = Counter()  # how many nodes read a parameter
        self.weight_of: dict[int, str] = {}  # what a node reads, its own or another's
        self._placed: set[str] = set()  # the parameters that have a node
        self._joined: dict[str, int] = {}  # bare parameters that were joined to something, and their nodes

    def trained(self, parameter: Tensor) -> bool:
        """Whether a parameter is to be acted on."""
        return parameter.requires_grad and (self.only is None or id(parameter) in self.only)

    def node(self, name: str, role: Any, data: Value, **more: Any) -> Value:
        """Append a node that reads `data`, and return its output."""
        inputs, through = tuple(sorted(data.sources)), tuple(sorted(data.through))
        call = sum(node.name == name for node in self.nodes)
        self.nodes.append(replace(Layer(name, role, None, None, self.runs, inputs, call=call, through=through), **more))
        return Value(frozenset({len(self.nodes) - 1}))

    # --- modules --------------------------------------------------------------------------------------------------

    def module(self, prefix: str, data: Value) -> Value:
        """Append the nodes of a module that reads `data`, and of the modules in it; returns the module's output."""
        for name in sorted(data.parameters):  # given to a module among its inputs
            self._place(name, "undecided")
            data = data.after(_bare(name))
        module = self.modules[prefix]
        kind = type(module).__name__
        if isinstance(module, nn.Bilinear):
            data = data.after(kind)
        out: Value | None = None
        for one in sublayers(module, role_of(module), self.trained):
            if one.role == "parameter" and one.weight is not None:
                # The shape of an activation is neither a gain nor a bias. Attention has biases and additional tokens.
                use = "ignore" if role_of(module) == "activation" else "undecided"
                name = self._full_name(module, one.weight)
                self._place(name, "parameter" if isinstance(module, nn.MultiheadAttention) else use)
            elif one.parallel and out is not None:
                out = joined([out, self._sublayer(prefix, one, data)])
            else:
                data = data if out is None else out.after(kind)
                out = self._sublayer(prefix, one, data)
        if out is not None and isinstance(module, nn.RNNBase | nn.RNNCellBase):
            out = out.after(kind)
        if role_of(module) is not None and prefix:
            for name in [n for n in self.modules if n.startswith(f"{prefix}.")]:
                before = len(self.nodes)
                inner = self.module(name, data if out is None else out.after(kind))
                out = inner if len(self.nodes) > before and self.nodes[-1].role != "parameter" else out
        return data if out is None else out

    def _sublayer(self, prefix: str, one: Sublayer, data: Value) -> Value:
        module, role = self.modules[prefix], one.role
        kind, is_conv = type(module).__name__, role == "conv"
        weight, bias = (None if key is None else self._full_name(module, key) for key in (one.weight, one.bias))
        # Without a parameter a hook may make the weight before each call, as torch's pruning does.
        by_hook = weight is None and role in ("linear", "conv", "embedding") and "weight" in vars(module)
        if weight is not None:
            self.weight_of[len(self.nodes)] = weight
        out = self.node(
            prefix,
            role,
            data,
            # A tied layer or a second call is a node too, for what is the head and what feeds what, but its tensors
            # belong to the first.
            weight_name=weight and self._claim(weight),
            bias_name=bias and self._claim(bias),
            transposed=module.transposed if is_conv else kind == "Conv1D",
            groups=module.groups if is_conv else 1,
            kind=COMPUTED if by_hook else kind if role == "activation" else "",
        )
        if one.weight is not None and one.weight.startswith("parametrizations."):  # all that it is computed from
            chain = f"{prefix}.{one.weight.rpartition('.')[0]}.".lstrip(".")
            self._placed.update(n for n in self.name_of.values() if n.startswith(chain))
        return out

    # --- at the end -----------------------------------------------------------------------------------------------

    def correct(self) -> None:
        """Correct what later operations have shown to be wrong."""
        for name, i in self._joined.items():
            if not any(_bare(name) in node.through for node in self.nodes):  # no layer reads it: a log_std, say
                self.nodes[i] = replace(self.nodes[i], role="undecided")

    def append_unreached(self) -> None:
        """Append the nodes of modules that have parameters without a node."""
        for name, module in self.modules.items():
            keys = [key for one in sublayers(module, role_of(module), self.trained) for key in (one.weight, one.bias)]
            names = [self._full_name(module, key) for key in keys if key is not None]
            missed = [n for n in names if n not in self._placed]
            if missed == [f"{name}.bias"] and f"{name}.weight" in names:  # the forward used its weight alone
                self._place(missed[0], "undecided")
            elif missed:
                self.module(name, Value())

    # --- operations -----------------------------------------------------------------------------------------------

    def call(self, name: str, operands: Sequence[Value], others: Sequence[Any] = ()) -> Value:
        """The output of an operation on tensors; `others` are its arguments that are none."""
        if name in ops.MAKERS:
            return Value()
        op = Operation(name, operands[:1] if name in ops.SHAPED else operands, others)
        if op.weights and not op.values:
            return self._of_parameters(op)
        if op.is_constant:
            return Value()
        if name in ops.SUMS | ops.SCALINGS | ops.PRODUCTS:
            for parameter in sorted(op.data.parameters):  # used in ways of its own
                self._place(parameter, "undecided")
        is_bias = op.weights and all(len(self._shape(made)) < 2 for made in op.made_of)
        if name in ops.LAYERS and op.data.sources and op.made_of and not is_bias:
            return self._computed(op, [*op.made_of, *(w.name for w in op.weights)])
        return self._with_weights(op) if op.weights else self._without_weights(op)

    def _of_parameters(self, op: Operation) -> Value:
        """A view of a parameter; or something computed from parameters alone."""
        weight, shape = op.weights[0], self._shape(op.weights[0].name)
        if len(op.weights) == 1:
            if op.name in ops.VIEWS and not (op.name in ops.RESHAPES and len(self._axes(weight.name)) > 1):
                return Value(weight=weight)
            if op.name in ops.FLIPS and (not op.others or set(op.others) <= {-1, -2} or len(shape) == 2):
                return Value(weight=replace(weight, flipped=not weight.flipped))
            if op.name in ops.CUTS and not (len(shape) > 2 and any(isinstance(n, int) for n in op.others)):
                return Value(weight=weight)
        return Value(parameters=frozenset(w.name for w in op.weights))

    def _without_weights(self, op: Operation) -> Value:
        """An operation on data alone: a norm without gain, an activation, or something between layers."""
        if op.name in ops.NORMS:
            return self.node(f"{op.name}()", "norm", op.data)
        if op.name in ops.ACTIVATIONS and op.data.has_layers and not op.data.through & ops.JOINS:
            return self.node(f"{op.name}()", "activation", op.data, kind=op.name)
        if op.data.parameters and op.data.sources:
            return Value(op.data.sources, op.data.through | {ops.BY_COMPUTED})
        return op.data.after(op.between)

    def _with_weights(self, op: Operation) -> Value:
        """An operation on data and parameters: the first of these that it can be."""
        kinds = (self._noise, self._layer, self._own_module, self._norm, self._gain, self._addition)
        found = (kind(op) for kind in kinds)
        return next((value for value in found if value is not None), None) or self._undecided(op)

    def _noise(self, op: Operation) -> Value | None:
        """An operation without data, such as a parameter times fixed noise."""
        if op.data.sources or op.name == "embedding":
            return None
        return Value(parameters=op.data.parameters.union(w.name for w in op.weights))

    def _split(self, op: Operation) -> tuple[list[Weight], list[Weight]]:
        """The parameters among its operands that are matrices (a layer's may be [1, n]), and the others."""
        axes = self._shape if op.name in ops.LAYERS else self._axes
        matrices = [w for w in op.weights if len(axes(w.name)) > 1]
        return matrices, [w for w in op.weights if w not in matrices]

    def _layer(self, op: Operation) -> Value | None:
        """A linear layer, convolution or embedding, of bare parameters or of a module's."""
        matrices, biases = self._split(op)
        is_layer = op.name in ops.PRODUCTS | ops.CONVOLUTIONS | {"embedding"}
        if not is_layer or len(matrices) != 1 or len(biases) > 1:
            return None
        (weight,) = matrices
        role: Role = "conv" if op.name in ops.CONVOLUTIONS else "embedding" if op.name == "embedding" else "linear"
        given = self._role_of(weight.name, "linear")
        transposed = op.takes_transposed(weight)
        if self._is_its_module_s(weight, biases, role):
            out = self.module(weight.owner, op.data)
        elif (
            given not in ("linear", "matrix", "parameter")
            or transposed is None
            or (role == "linear" and len(self._shape(weight.name)) > 2)  # several matrices
        ):
            self._place(weight.name, "undecided" if given == "linear" else given)
            out = self._computed(op, [w.name for w in (weight, *biases)])
        else:
            out = self._bare_layer(op, weight, biases, role, transposed)
        return out.after(ops.PLUS_CONSTANT) if op.constants and op.name not in ("einsum", "embedding") else out

    def _is_its_module_s(self, weight: Weight, biases: Sequence[Weight], role: Role) -> bool:
        """Whether the layer is the one that the weight's module is by its class."""
        module = self.modules[weight.owner]
        if role_of(module) != role or type(module).__name__ == "Conv1D":
            return False
        bias = module._parameters.get("bias")
        bias_is_read = bias is None or self.name_of[id(bias)] in [b.name for b in biases]
        return weight.name != f"{weight.owner}.weight" or (bias_is_read and not weight.flipped)

    def _bare_layer(
        self, op: Operation, weight: Weight, biases: Sequence[Weight], role: Role, transposed: bool
    ) -> Value:
        module = self.modules[weight.owner]
        of_module = role_of(module) or (kind_of(module) and weight.name == f"{weight.owner}.weight")
        bias_names = [self._claim(bias.name) for bias in biases]
        self.weight_of[len(self.nodes)] = weight.name
        return self.node(
            weight.owner if of_module else weight.name,
            role,
            op.data,
            weight_name=self._claim(weight.name),
            bias_name=(*bias_names, None)[0],
            transposed=transposed,
            groups=module.groups if role == "conv" and of_module else 1,
        )

    def _own_module(self, op: Operation) -> Value | None:
        """A module whose weights are used in another way than its own; the addition of a bias is not one."""
        is_bias = op.name in ops.SUMS and len(op.weights) == 1 and not self._split(op)[0]
        owner = op.weights[0].owner
        return None if is_bias or role_of(self.modules[owner]) is None else self.module(owner, op.data.after(op.name))

    def _norm(self, op: Operation) -> Value | None:
        if op.name not in ops.NORMS or op.data.parameters:
            return None
        names = [self._claim(w.name) for w in op.weights]
        return self.node(op.weights[0].name, "norm", op.data, weight_name=names[0], bias_name=(*names, None)[1])

    def _gain(self, op: Operation) -> Value | None:
        (weight, *more), role = op.weights, self._role_of(op.weights[0].name, "gain")
        if more or op.name not in ops.SCALINGS or self._split(op)[0] or not self._may_be_gain(weight.name):
            return None
        if role not in ("gain", "norm") or weight.name in self._placed:
            return None
        return self.node(weight.name, role, op.data, weight_name=self._claim(weight.name))

    def _addition(self, op: Operation) -> Value | None:
        """A parameter that is added: the bias of the layer before if that has none, else a table or a token."""
        if op.name not in ops.SUMS or len(op.weights) > 1:
            return None
        (weight,), data, shape = op.weights, op.data, self._shape(op.weights[0].name)
        nodes = [self.nodes[i] for i in data.sources - {INPUT}]
        if len(shape) > 1 and any(node.kind == COMPUTED for node in nodes):
            self._place(weight.name, "undecided")  # the biases of several layers, or a table
        elif len(shape) == 1 and len(nodes) == len(data.sources) == 1 and self._is_bias_of(nodes[0], weight, data):
            (i,) = data.sources
            self.nodes[i] = replace(nodes[0], bias_name=self._claim(weight.name))
            return data
        self._place(weight.name, "parameter")
        return data.after("the addition of a bare parameter")

    def _is_bias_of(self, node: Layer, weight: Weight, data: Value) -> bool:
        """Whether a vector that is added to `data` is a bias of the node that gives it."""
        if data.through or node.weight_name is None or node.bias_name is not None or weight.name in self._placed:
            return False
        units = self.net.get_parameter(node.weight_name).shape[len(self.runs) + node.transposed]
        return self._shape(weight.name) == [units] and self._role_of(weight.name, "bias") == "bias"

    def _computed(self, op: Operation, names: Sequence[str]) -> Value:
        """A layer without tensors: its weight is computed from these parameters, or used in an unusual way.

        It is a node because the layers before it are no heads.
        """
        for name in names:
            self._place(name, "undecided")
        owners = {Weight(name).owner for name in names}
        name = owners.pop() if len(owners) == 1 and owners != {""} else names[0]
        role = "conv" if op.name in ops.CONVOLUTIONS else "linear"
        return self.node(name, role, replace(op.data, parameters=frozenset()), kind=COMPUTED).after(ops.BY_COMPUTED)

    def _undecided(self, op: Operation) -> Value:
        """What cannot be told: a token where it is joined to something."""
        if op.name in ops.LAYERS:
            return self._computed(op, [w.name for w in op.weights])
        data = op.data
        for weight in op.weights:
            before = len(self.nodes)
            self._place(weight.name, "parameter" if op.name in ops.JOINS else "undecided")
            if op.name in ops.JOINS and len(self.nodes) == before + 1 and self.nodes[-1].role == "parameter":
                self._joined[weight.name] = before
            data = data.after(_bare(weight.name))
        return data

    # --- bare parameters ------------------------------------------------------------------------------------------

    def _full_name(self, module: nn.Module, key: str) -> str:
        return self.name_of[id(lookup(module, key))]

    def _shape(self, name: str) -> list[int]:
        """A parameter's, without the runs axes."""
        return [*self.net.get_parameter(name).shape[len(self.runs) :]]

    def _axes(self, name: str) -> list[int]:
        """The lengths of its axes that are longer than one."""
        return [n for n in self._shape(name) if n != 1]

    def _claim(self, name: str) -> str | None:
        """A parameter's name for the node that has it; None if another node has it or it is frozen."""
        free = name not in self._placed and self.trained(self.net.get_parameter(name))
        self._placed.add(name)
        self.uses[name] += 1
        return name if free else None

    def _place(self, name: str, use: str) -> None:
        """Append the node of a bare parameter that has none yet, given what it is used for."""
        if name in self._placed or not self.trained(self.net.get_parameter(name)):
            return
        role = self._role_of(name, use)
        self._placed.add(name)
        if role != "ignore":
            self.node(name, "parameter" if role in ("matrix", "bias") else role, Value(), weight_name=name)

    def _role_of(self, name: str, use: str) -> str:
        """What the user says that a bare parameter is, else what it is used for. Its shape tells nothing."""
        ignored = getattr(type(self.modules[Weight(name).owner]), "layer_role", None) == "ignore"  # ours say so
        return given_role(name, self.roles) or ("ignore" if ignored else use)

    def _may_be_gain(self, name: str) -> bool:
        """Whether it was said to be one, or starts at all ones, several of them."""
        parameter, several = self.net.get_parameter(name), math.prod(self._shape(name)) > 1
        starts_at_ones = several and not parameter.is_meta and bool((parameter == 1).all())
        return starts_at_ones or given_role(name, self.roles) is not None

    def find_norms(self) -> None:
        """Make norm layers of the bare gains of modules whose output does not change with the size of random inputs."""
        for i, node in enumerate(self.nodes):
            owner = self.modules.get(Weight(node.name).owner)
            if node.role != "gain" or self.runs or owner is None or owner._modules:
                continue
            like = self.net.get_parameter(node.name)
            generator = torch.Generator().manual_seed(0)
            x = torch.randn(3, like.shape[-1], generator=generator, device="cpu").to(like)
            try:
                with aside(owner) as called, torch.no_grad():
                    once, twice = called(x), called(2 * x)
                is_norm = bool((twice - once).float().norm() < 0.02 * once.float().norm())
            except Exception:  # whatever a foreign module raises or returns: then it stays a gain
                continue
            if is_norm:
                self.nodes[i] = replace(node, role="norm", through=())


def _bare(name: str) -> str:
    """The name of an operation on a bare parameter whose role cannot be told."""
    return f"a bare parameter, {name}"
