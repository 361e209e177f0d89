"""A network as regularizers see it: its layers in forward order, each with its role.

Layers are found by module type. Forward order, the head and which layer feeds which are read from the dataflow
graph that ``torch.fx`` traces from ``net.forward``; where a network cannot be traced (data-dependent control flow),
the order in which its modules were registered stands in for it, as one chain.
"""

import copy
import inspect
import random
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.optim.swa_utils import AveragedModel

Role = Literal["linear", "conv", "norm", "embedding", "parameter", "activation"]

_NORMS = (
    nn.LayerNorm,
    nn.RMSNorm,
    nn.GroupNorm,
    nn.modules.batchnorm._NormBase,  # BatchNorm1d/2d/3d, SyncBatchNorm, InstanceNorm1d/2d/3d
)
# Where torch keeps activations but each output depends on several inputs: no hidden units come out of them.
_NOT_ELEMENTWISE = (nn.MultiheadAttention, nn.GLU, nn.Softmax, nn.Softmax2d, nn.LogSoftmax, nn.Softmin)

RAW = -1  # stands for the network's own inputs among the inputs of a node


@dataclass(frozen=True)
class Layer:
    """One layer: where its tensors are, not the tensors (they are looked up in the net that is passed).

    That indirection is what lets a penalty see the parameters that ``torch.func.functional_call`` substitutes.

    Attributes:
        name: the module's name in the net ("" is the net itself); a bare parameter's own name.
        role: linear, conv, norm, embedding, or parameter (a bare ``nn.Parameter``).
        weight_name, bias_name: full parameter names, None where there is none. A norm layer's gain and shift are here.
            A parametrized weight's is that of the tensor it is computed from, ``...parametrizations.weight.original``.
        runs: the leading axes of every tensor, ``()`` for an ordinary network.
        inputs: positions in ``layers(net)`` of the layers whose output reaches this one with no layer in between.
        head: True where no linear or convolution layer follows on any path (an output layer).
        joins_branches: True where several layers, or a layer and the network's own input, feed this one.
    """

    name: str
    role: Role
    weight_name: str | None
    bias_name: str | None
    runs: tuple[int, ...]
    inputs: tuple[int, ...] = ()
    head: bool = False
    joins_branches: bool = False
    groups: int = 1
    transposed: bool = False  # ConvTranspose stores [in, out / groups, ...]
    call: int = 0  # activation modules may be called several times: which call this is

    @property
    def is_linear_map(self) -> bool:
        """Whether it is a linear or convolution layer with a trainable weight of its own."""
        return self.role in ("linear", "conv") and self.weight_name is not None

    @property
    def parameter_names(self) -> list[str]:
        """Of its weight and bias, where it has them."""
        return [name for name in (self.weight_name, self.bias_name) if name is not None]

    def weight(self, net: nn.Module) -> Tensor | None:
        """The weight (a norm layer's gain) as stored, or None."""
        return None if self.weight_name is None else lookup(net, self.weight_name)

    def bias(self, net: nn.Module) -> Tensor | None:
        """The bias (a norm layer's shift) ``[*runs, n]``, or None."""
        return None if self.bias_name is None else lookup(net, self.bias_name)

    def matrix(self, net: nn.Module) -> Tensor | None:
        """The weight as ``[*runs, out, fan_in]``; None for norm layers and for bare vectors.

        A view of the parameter, except for kernels whose memory order forbids one (channels_last, transposed): change
        the `weight` itself or `scale_rows_`. A bare parameter loses its axes of length one first, so a
        position table ``[1, n, d]`` is a matrix and a token ``[1, 1, d]`` a vector.
        """
        weight, k = self.weight(net), len(self.runs)
        if weight is None or self.role == "norm":
            return None
        if self.role == "parameter":
            core = [n for n in weight.shape[k:] if n != 1]
            return None if len(core) < 2 else weight.reshape(*self.runs, core[0], -1)
        if self.transposed:
            split = weight.reshape(*self.runs, self.groups, -1, *weight.shape[k + 1 :])
            return split.movedim(k + 2, k + 1).flatten(k + 2).flatten(k, k + 1)
        return weight.flatten(k + 1)

    def vectors(self, net: nn.Module) -> Iterator[Tensor]:
        """What is added rather than multiplied, each ``[*runs, n]``: bias, shift, a bare vector or token."""
        bias, weight = self.bias(net), self.weight(net)
        if bias is not None:
            yield bias.flatten(len(self.runs))
        if self.role == "parameter" and weight is not None and self.matrix(net) is None:
            yield weight.reshape(*self.runs, -1)

    def gain(self, net: nn.Module) -> Tensor | None:
        """A norm layer's gain ``[*runs, n]``, or None."""
        weight = self.weight(net)
        return None if self.role != "norm" or weight is None else weight.flatten(len(self.runs))

    def shift(self, net: nn.Module) -> Tensor | None:
        """A norm layer's shift ``[*runs, n]``, or None."""
        bias = self.bias(net)
        return None if self.role != "norm" or bias is None else bias.flatten(len(self.runs))

    def scale_rows_(self, net: nn.Module, factor: Tensor) -> None:
        """Multiply row i of the weight matrix by ``factor[..., i]`` (``[*runs, out]``), in place."""
        weight, k = self.weight(net), len(self.runs)
        assert weight is not None
        if self.transposed:
            groups = factor.reshape(*self.runs, self.groups, 1, -1)
            split = groups.expand(*self.runs, self.groups, weight.shape[k] // self.groups, -1)
            factor = split.reshape(weight.shape[: k + 2])
        weight.mul_(factor.reshape(*factor.shape, *(1,) * (weight.ndim - factor.ndim)))


class SomeRuns(nn.Module):
    """Consecutive runs of a stacked network: what `lookup` finds in it are views of the network's tensors.

    Args:
        net: stacked along one runs axis.
        start, stop: the runs.
    """

    def __init__(self, net: nn.Module, start: int, stop: int) -> None:
        super().__init__()
        self._net, self.start, self.stop = (net,), start, stop  # in a tuple: its parameters are not this module's


def lookup(net: nn.Module, name: str) -> Tensor:
    """The tensor called `name` in `net`; unlike ``get_parameter`` it accepts substituted tensors."""
    if isinstance(net, SomeRuns):
        return lookup(net._net[0], name)[net.start : net.stop]
    value: object = net
    for part in name.split("."):
        value = getattr(value, part)
    assert isinstance(value, Tensor)
    return value


def unwrapped(net: nn.Module) -> nn.Module:
    """`net` without what torch wraps around a network: compiled, data parallel in one process or several, averaged."""
    while True:
        if "_orig_mod" in net._modules:  # torch.compile's wrapper, whose type only the compiler's import brings
            inner = net._modules["_orig_mod"]
        elif isinstance(net, nn.DataParallel | nn.parallel.DistributedDataParallel | AveragedModel):
            inner = net.module
        else:
            return net
        assert inner is not None
        net = inner


def per_run(value: Tensor, like: Tensor) -> Tensor:
    """`value` ``[*runs]`` with trailing axes of length one, to broadcast against `like` ``[*runs, ...]``."""
    return value.reshape(*value.shape, *(1,) * (like.ndim - value.ndim)) if value.ndim else value


def layers(net: nn.Module) -> list[Layer]:
    """The layers of `net` in forward order. Parameters that do not require gradients are left out.

    Raises:
        ValueError: if the layers of a stacked network disagree about the runs axes.
    """
    nodes = _nodes(net)
    numbers = [i for i, node in enumerate(nodes) if node.role != "activation"]
    position = {number: place for place, number in enumerate(numbers)}

    def past_activations(i: int) -> set[int]:
        return {i} if i in position or i == RAW else {k for j in nodes[i].inputs for k in past_activations(j)}

    ordered = []
    for i in numbers:
        sources = {k for j in nodes[i].inputs for k in past_activations(j)}
        inputs = tuple(sorted(position[k] for k in sources - {RAW}))
        ordered.append(replace(nodes[i], inputs=inputs, joins_branches=len(sources) > 1))
    return ordered


@dataclass(frozen=True)
class HiddenUnits:
    """The hidden units of one layer: what feeds them, the non-linearity they come out of, and what they feed."""

    incoming: Layer
    norms: tuple[Layer, ...]
    activation: str  # the activation module's name
    call: int
    outgoing: tuple[Layer, ...]


def hidden_units(net: nn.Module) -> list[HiddenUnits]:
    """Every chain (linear or conv) -> norm layers -> activation module -> (linear or conv) of `net`.

    Nothing else reads the chain before the activation: recycled units must not change what a skip connection carries.
    And the layer behind it reads nothing else, so that its columns are the units' in order.
    """
    nodes = _nodes(net)
    readers = Counter(i for node in nodes for i in node.inputs)

    def source(node: Layer) -> Layer | None:
        """What alone feeds `node` and feeds nothing else."""
        alone = len(node.inputs) == 1 and node.inputs[0] != RAW and readers[node.inputs[0]] == 1
        return nodes[node.inputs[0]] if alone else None

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
    if not layer.is_linear_map or layer.inputs != (i,) or layer.groups > 1:
        return False
    matrix, weight = incoming.matrix(net), layer.weight(net)
    assert matrix is not None
    assert weight is not None
    k = len(layer.runs)
    units, columns = matrix.shape[-2], weight.shape[k if layer.transposed else k + 1]
    flattened = incoming.role == "conv" and layer.role == "linear"
    return columns % units == 0 if flattened else columns == units


def runs_of(net: nn.Module) -> tuple[int, ...]:
    """The leading runs axes of `net`'s tensors: what its typed layers have beyond an ordinary layer's axes.

    A module of bare parameters says so itself, in an attribute ``runs`` that is a tuple.
    """
    declared = getattr(net, "runs", None)
    if isinstance(declared, tuple):
        return declared
    shapes = {}
    for name, module in net.named_modules():
        for role, weight_name, bias_name in _parts(module, frozen=True):
            key = weight_name or bias_name
            if role != "parameter" and key is not None:
                axes = _core_ndim(module, role) if weight_name else 1
                shapes[f"{name}.{key}"] = lookup(module, key).shape[:-axes]
    if len(set(shapes.values())) > 1:
        raise ValueError(f"the layers disagree about the leading runs axes: {shapes}")
    return next(iter(shapes.values()), ())


# --- how the layers are found -------------------------------------------------------------------------------------


def _role(module: nn.Module) -> Role | None:
    if isinstance(module, nn.Linear):
        return "linear"
    if isinstance(module, nn.modules.conv._ConvNd):
        return "conv"
    if isinstance(module, _NORMS):
        return "norm"
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return "embedding"
    if type(module).__module__ == "torch.nn.modules.activation" and not isinstance(module, _NOT_ELEMENTWISE):
        return "activation"
    return None


def _core_ndim(module: nn.Module, role: Role) -> int:
    """The number of axes of this module's weight in an ordinary network."""
    if role == "conv":
        return 2 + len(module.kernel_size)  # type: ignore[arg-type]
    return len(getattr(module, "normalized_shape", (1,))) if role == "norm" else 2


def _parts(module: nn.Module, frozen: bool = False) -> list[tuple[Role, str | None, str | None]]:
    """(role, weight, bias) of what the module holds itself, in order of use; with `frozen` parameters or not."""
    stored = {name: name for name, p in module._parameters.items() if p is not None}
    computed = module._modules.get("parametrizations")
    if isinstance(computed, nn.ModuleDict):
        # What is computed from several tensors, as by torch's weight_norm, has no one original: bare parameters.
        single = [name for name, tensors in computed.items() if "original" in tensors._parameters]
        stored |= {name: f"parametrizations.{name}.original" for name in single}
    trainable = {name: path for name, path in stored.items() if frozen or lookup(module, path).requires_grad}
    parts: list[tuple[Role, str | None, str | None]] = []
    role = _role(module)
    if isinstance(module, nn.MultiheadAttention) and "in_proj_weight" in trainable:
        parts.append(("linear", trainable.pop("in_proj_weight"), trainable.pop("in_proj_bias", None)))
    elif role == "activation":
        parts.append((role, None, None))
    # A norm layer without gain still restarts SWR's product; other layers count only with parameters.
    elif role == "norm" or (role and trainable.keys() & {"weight", "bias"}):
        parts.append((role, trainable.pop("weight", None), trainable.pop("bias", None)))
    return parts + [("parameter", path, None) for path in trainable.values()]


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True  # a forward that writes to a buffer must not write to the real one

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return _role(m) is not None or super().is_leaf_module(m, module_qualified_name)


def _trace(net: nn.Module) -> fx.Graph | None:
    """The dataflow graph of `net`, or None where it cannot be traced. Leaves the net and all random states alone."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        shared: dict[int, object] = {id(t): t for t in (*net.parameters(), *net.buffers())}
        arguments = inspect.signature(net.forward).parameters.values()
        defaults = {a.name: a.default for a in arguments if a.default is not a.empty}
        return _Tracer().trace(copy.deepcopy(net, shared), defaults or None)
    except Exception as error:  # anything a forward may raise on symbolic inputs
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        warnings.warn(
            f"{type(net).__name__}.forward cannot be traced ({reason}), so its modules are taken to be called in the "
            "order in which they were registered",
            stacklevel=2,
        )
        return None
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        random.setstate(states[2])


def _nodes(net: nn.Module) -> list[Layer]:
    """All layers and activations with their inputs, the parameters a forward never reaches last."""
    walk = _Walk(net)
    graph = _trace(net)
    if graph is None:
        chain: set[int] = set()
        for name in walk.modules:
            chain = walk.add(name, chain)
    else:
        walk.follow(graph)
    reached = len(walk.nodes)
    walk.add_unread()

    followed: set[int] = set()  # has a linear or convolution layer downstream
    nodes = list(enumerate(walk.nodes))
    for i, node in reversed(nodes):
        if node.role in ("linear", "conv") or i in followed:
            followed.update(node.inputs)
    return [replace(n, head=n.role in ("linear", "conv") and i not in followed and i < reached) for i, n in nodes]


class _Walk:
    """Collects the layers and activations of a network in the order in which it is walked through."""

    def __init__(self, net: nn.Module) -> None:
        self.runs = runs_of(net)
        self.modules = dict(net.named_modules())
        self.name_of = {id(p): n for n, p in net.named_parameters()}  # tied parameters count once, by first name
        self.nodes: list[Layer] = []
        self.read: set[str] = set()  # the parameters of the nodes

    def add(self, prefix: str, inputs: set[int]) -> set[int]:
        """Append the nodes of one module as a chain that reads `inputs`; returns the nodes its output comes from."""
        module = self.modules[prefix]
        for role, *keys in _parts(module):
            weight, bias = (None if key is None else self.name_of[id(lookup(module, key))] for key in keys)
            if role == "parameter" and weight in self.read:
                continue
            name = prefix if role != "parameter" else f"{prefix}.{keys[0]}".lstrip(".")
            self.nodes.append(
                Layer(
                    name,
                    role,
                    # A tied layer or a second call is a node too, for what is the head and what feeds what, but its
                    # tensors belong to the first.
                    None if weight in self.read else weight,
                    None if bias in self.read else bias,
                    self.runs,
                    () if role == "parameter" else tuple(sorted(inputs)),
                    groups=getattr(module, "groups", 1) if role == "conv" else 1,
                    transposed=role == "conv" and getattr(module, "transposed", False),
                    call=sum(node.name == name for node in self.nodes),
                )
            )
            self.read.update(key for key in (weight, bias) if key is not None)
            if role != "parameter":  # a bare parameter is added somewhere, the chain goes past it
                inputs = {len(self.nodes) - 1}
        return inputs

    def follow(self, graph: fx.Graph) -> None:
        """Append the nodes of every module that the traced forward calls or whose parameters it reads."""
        sources: dict[fx.Node, set[int]] = {}
        read: dict[str, set[int]] = {}
        for node in graph.nodes:
            upstream = {i for n in node.all_input_nodes for i in sources[n]}
            if node.op == "placeholder":
                upstream.add(RAW)
            elif node.op == "call_module":
                target = str(node.target)
                for name in [n for n in self.modules if n == target or n.startswith(f"{target}.")]:
                    upstream = self.add(name, upstream)
            elif node.op == "get_attr":  # once for each module: its weight and its bias come one by one
                module = str(node.target).rpartition(".")[0]
                if module not in read:
                    read[module] = self.add(module, set())
                upstream = read[module]
            sources[node] = upstream

    def add_unread(self) -> None:
        """Append the nodes of the modules with parameters that no node has."""
        for name, module in self.modules.items():
            keys = [key for _, *keys in _parts(module) for key in keys if key is not None]
            if any(self.name_of[id(lookup(module, key))] not in self.read for key in keys):
                self.add(name, set())
