"""A network as regularizers see it: its layers, each with its role, found by the modules' types.

What feeds what, and which layer is a head, is read in `rl_plasticity.structure`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.optim.swa_utils import AveragedModel

# A gain multiplies each unit and does not normalize; a shift is added to each unit and may centre it, but the unit's
# size passes through; what an undecided bare parameter does cannot be told.
Role = Literal["linear", "conv", "norm", "gain", "shift", "embedding", "parameter", "undecided", "activation"]
# What a user may say that a bare parameter is: the gain of a norm layer or of none, added, a matrix [out, in], or
# nothing that a method should act on.
BareRole = Literal["norm", "gain", "bias", "matrix", "ignore"]

COMPUTED = "computed"  # a layer's weight is computed in the forward, or before it in a hook
_NORMS = (
    nn.LayerNorm,
    nn.RMSNorm,
    nn.GroupNorm,
    nn.modules.batchnorm._NormBase,  # BatchNorm1d/2d/3d, SyncBatchNorm, InstanceNorm1d/2d/3d
)
_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel, AveragedModel)
# Where torch keeps activations but each output depends on several inputs: no hidden units come out of them.
_NOT_ELEMENTWISE = (nn.MultiheadAttention, nn.GLU, nn.Softmax, nn.Softmax2d, nn.LogSoftmax, nn.Softmin)


@dataclass(frozen=True)
class Layer:
    """One layer: the names of its tensors, which its methods look up in the network that they are given.

    So a penalty sees the parameters that ``torch.func.functional_call`` substitutes.

    Attributes:
        name: the module's name in the net ("" is the net itself); a bare parameter's own name.
        role: linear, conv, norm, gain, shift, embedding, parameter (a bare ``nn.Parameter`` that is added or joined
            to something) or undecided.
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
    transposed: bool = False  # ConvTranspose stores [in, out / groups, ...], some linear layers [in, out]
    call: int = 0  # activation modules may be called several times: which call this is
    through: tuple[str, ...] = ()  # the operations between the inputs and this one
    kind: str = ""  # of an activation: its class or function; `COMPUTED` of a layer without a weight to act on

    @property
    def is_linear_map(self) -> bool:
        """Whether it is a linear or convolution layer with a trainable weight of its own."""
        return self.role in ("linear", "conv") and self.weight_name is not None

    @property
    def key(self) -> str:
        """The weight's name, where it has one."""
        assert self.weight_name is not None
        return self.weight_name

    @property
    def is_computed(self) -> bool:
        """Whether the weight is computed from what is trained (``torch.nn.utils.parametrize``)."""
        return self.weight_name is not None and ".parametrizations." in f".{self.weight_name}"

    def trained(self, net: nn.Module) -> "Layer":
        """This layer without those of its tensors that are frozen now."""
        weight, bias = (n if n is None or is_trained(net, n) else None for n in (self.weight_name, self.bias_name))
        if (weight, bias) == (self.weight_name, self.bias_name):
            return self
        return replace(self, weight_name=weight, bias_name=bias)

    @property
    def parameter_names(self) -> list[str]:
        """The names of its weight and bias, where it has them."""
        return [name for name in (self.weight_name, self.bias_name) if name is not None]

    def tensors(self, net: nn.Module) -> list[Tensor]:
        """Its weight and bias, where it has them."""
        return [tensor for tensor in (self.weight(net), self.bias(net)) if tensor is not None]

    def weight(self, net: nn.Module) -> Tensor | None:
        """The weight (a norm layer's gain) as stored, or None; a parametrized one as it is computed."""
        if self.weight_name is None:
            return None
        if self.is_computed:
            owner, _, rest = f".{self.weight_name}".partition(".parametrizations.")
            # As in evaluation: in training mode, a spectral norm takes a step of its power iteration at each reading.
            with eval_mode(innermost(net).get_submodule(f"{owner}.parametrizations".lstrip("."))):
                return lookup(net, f"{owner}.{rest.partition('.')[0]}".lstrip("."))
        return lookup(net, self.weight_name)

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
        if weight is None or self.role in ("norm", "gain", "shift", "undecided"):
            return None
        if self.role == "parameter":
            core = [n for n in weight.shape[k:] if n != 1]
            return None if len(core) < 2 else weight.reshape(*self.runs, core[0], -1)
        return self.matrix_of(weight)

    def full_matrix(self, net: nn.Module) -> Tensor:
        """The `matrix` of a linear or convolution layer."""
        matrix = self.matrix(net)
        assert matrix is not None
        return matrix

    def matrix_of(self, weight: Tensor) -> Tensor:
        """A tensor like the `weight` of a linear or convolution layer as its `matrix`."""
        k = len(self.runs)
        if self.transposed and self.role == "linear":
            return weight.mT
        if self.transposed:
            split = weight.reshape(*self.runs, self.groups, -1, *weight.shape[k + 1 :])
            return split.movedim(k + 2, k + 1).flatten(k + 2).flatten(k, k + 1)
        return weight.flatten(k + 1)

    def of_matrix(self, matrix: Tensor, shape: torch.Size) -> Tensor:
        """``[*runs, out, fan_in]`` as a weight of this `shape` is stored: undoes `matrix_of`."""
        k = len(self.runs)
        if self.transposed and self.role == "linear":
            return matrix.mT
        if self.transposed:
            split = matrix.reshape(*self.runs, self.groups, -1, shape[k] // self.groups, *shape[k + 2 :])
            return split.movedim(k + 2, k + 1).reshape(shape)
        return matrix.reshape(shape)

    def rows_of(self, net: nn.Module, units: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Its parameters, and which entries of each make its units in the mask ``[*runs, out]``."""
        for name in self.parameter_names:
            matrix = self.matrix(net) if name == self.weight_name else None
            if matrix is None:
                yield name, units
            else:
                yield name, self.of_matrix(units.unsqueeze(-1).expand_as(matrix), lookup(net, name).shape)

    def columns_of(self, net: nn.Module, units: Tensor) -> tuple[str, Tensor]:
        """The name of its weight, and which entries read the units in the mask ``[*runs, units]``.

        A linear layer behind a flattened feature map reads each unit, a channel, from several columns.
        """
        matrix = self.full_matrix(net)
        each = units.repeat_interleave(matrix.shape[-1] // units.shape[-1], dim=-1)
        where = self.of_matrix(each.unsqueeze(-2).expand_as(matrix), lookup(net, self.key).shape)
        return self.key, where

    def by_group(self, matrix: Tensor) -> Tensor:
        """Its `matrix` as one for each group of a convolution, ``[*runs, groups, out / groups, fan_in]``.

        Groups read different inputs. Where there is only one, the matrix as it is.
        """
        return matrix if self.groups == 1 else matrix.unflatten(len(self.runs), (self.groups, -1))  # type: ignore[no-untyped-call]

    def vectors(self, net: nn.Module) -> Iterator[Tensor]:
        """The parameters that are added, each ``[*runs, n]``: bias, shift, a bare vector or token."""
        bias, weight = self.bias(net), self.weight(net)
        if bias is not None:
            yield bias.flatten(len(self.runs))
        if self.role == "parameter" and weight is not None and self.matrix(net) is None:
            yield weight.reshape(*self.runs, -1)

    def gain(self, net: nn.Module) -> Tensor | None:
        """A norm layer's gain, or one without a norm layer, ``[*runs, n]``; or None."""
        weight = self.weight(net)
        return None if self.role not in ("norm", "gain") or weight is None else weight.flatten(len(self.runs))

    def scale_rows_(self, net: nn.Module, factor: Tensor) -> None:
        """Multiply row i of the weight matrix by ``factor[..., i]`` (``[*runs, out]``), in place."""
        weight = self.weight(net)
        assert weight is not None
        each = factor.unsqueeze(-1).expand(*factor.shape, weight.numel() // factor.numel())
        weight.mul_(self.of_matrix(each, weight.shape))


class SomeRuns(nn.Module):
    """Consecutive runs of a stacked network. `lookup` finds views of the network's tensors in it.

    Args:
        net: stacked along one runs axis.
        start, stop: the runs.
    """

    net: nn.Module

    def __init__(self, net: nn.Module, start: int, stop: int) -> None:
        super().__init__()
        self.start, self.stop = start, stop
        vars(self)["net"] = net  # its parameters are not this module's


class Widened(nn.Module):
    """A network with some tensors replaced by others of the same shape, which `lookup` finds in it."""

    net: nn.Module

    def __init__(self, net: nn.Module, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        self.tensors = tensors
        vars(self)["net"] = net  # its parameters are not this module's


def lookup(net: nn.Module, name: str) -> Tensor:
    """The tensor called `name` in `net`; unlike ``get_parameter`` it accepts substituted tensors."""
    if isinstance(net, SomeRuns):
        return lookup(net.net, name)[net.start : net.stop]
    if isinstance(net, Widened):
        return net.tensors[name] if name in net.tensors else lookup(net.net, name)
    if (tensor := _stored(net, name)) is not None:
        return tensor
    value: object = unwrapped(net)
    for key in name.split("."):
        value = getattr(value, key)
    assert isinstance(value, Tensor)
    return value


def _stored(net: nn.Module, name: str) -> Tensor | None:
    """What stands in the place of the parameter called `name`; None if there is no such place."""
    *path, last = name.split(".")
    module: nn.Module | None = net
    for key in path:  # through the dicts, which is several times as fast as getattr: penalties look up dozens
        module = module._modules.get(key) if module is not None and isinstance(module._modules, dict) else None
    return None if module is None else module._parameters.get(last)


def is_parameter(net: nn.Module, name: str) -> bool:
    """Whether `name` is one of a parameter of `net`, whatever tensor is in its place now."""
    return _stored(innermost(net), name) is not None


def is_trained(net: nn.Module, name: str) -> bool:
    """Whether the tensor called `name` is not a frozen parameter; substituted tensors are trained."""
    value = lookup(innermost(net), name)
    return value.requires_grad or not isinstance(value, nn.Parameter)


def unwrapped(net: nn.Module) -> nn.Module:
    """`net` without wrappers: compiled, data parallel in one or several processes, averaged, or Lightning Fabric's."""
    while True:
        if "_orig_mod" in net._modules:  # torch.compile's wrapper, whose type only the compiler's import brings
            inner = net._modules["_orig_mod"]
        elif "_forward_module" in net._modules:  # Fabric's
            inner = net._modules["_forward_module"]
        elif isinstance(net, _WRAPPERS):
            inner = net.module
        else:
            return net
        assert inner is not None
        net = inner


def without_forward(net: nn.Module) -> str:
    """Says that a network cannot be called and what to take instead; empty for a network that can."""
    if type(net).forward is not nn.Module.forward or "forward" in vars(net):
        return ""
    parts = [name for name, part in net.named_children() if any(True for _ in part.parameters())]
    return f"{type(net).__name__} has no forward: take its parts, one by one ({', '.join(parts[:3])})"


def innermost(net: nn.Module) -> nn.Module:
    """The network's own module, without views of it and without wrappers of torch."""
    while isinstance(net, (SomeRuns, Widened)):  # a union would be made at each of many calls
        net = net.net
    return unwrapped(net)


def per_run(value: Tensor, like: Tensor) -> Tensor:
    """`value` ``[*runs]`` with trailing axes of length one, to broadcast against `like` ``[*runs, ...]``."""
    return value.reshape(*value.shape, *(1,) * (like.ndim - value.ndim)) if value.ndim else value


def wide(tensor: Tensor) -> Tensor:
    """float32 or wider: half precision has too few digits for sums and small factors."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def runs_of(net: nn.Module) -> tuple[int, ...]:
    """The leading runs axes of `net`'s tensors: the axes that its layers have beyond an ordinary layer's.

    A module of bare parameters has them in an attribute ``runs``, a tuple.
    """
    net = unwrapped(net)
    declared = getattr(net, "runs", None)
    if isinstance(declared, tuple):
        return declared
    shapes = {}
    for name, module in net.named_modules():
        for one in sublayers(module, kind_of(module), lambda _: True):
            key = one.weight or one.bias
            if one.role != "parameter" and key is not None:
                axes = _core_ndim(module, one.role) if one.weight else 1
                shapes[f"{name}.{key}"] = lookup(module, key).shape[:-axes]
    if len(set(shapes.values())) > 1:
        raise ValueError(f"the layers disagree about the leading runs axes: {shapes}")
    return next(iter(shapes.values()), ())


# --- how the layers are found -------------------------------------------------------------------------------------


class Sublayer(NamedTuple):
    """One layer of a module that may be several: a weight and a bias, by their names in it."""

    role: Role
    weight: str | None
    bias: str | None = None
    parallel: bool = False  # reads what the module reads, not what the one before it gives


def is_plain(module: nn.Module) -> bool:
    """Whether the module computes what its class in torch computes, without a forward or call of its own."""
    kind = type(module)
    methods = [getattr(kind, name) for name in ("forward", "_conv_forward") if hasattr(kind, name)]
    ours = all(f"{m.__module__}.".startswith(("torch.nn.modules.", "rl_plasticity.")) for m in methods)
    return ours and kind.__call__ is nn.Module.__call__ and "forward" not in vars(module)


def role_of(module: nn.Module) -> Role | None:
    """The layer that the module is; None if it is none, or if it has its own forward, which must then be read."""
    kind = kind_of(module)
    return kind if is_plain(module) or _is_conv1d(module) or hasattr(type(module), "layer_role") else None


def _is_conv1d(module: nn.Module) -> bool:
    """Whether it is transformers' Conv1D: a linear layer with the weight [in, out]."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def kind_of(module: nn.Module) -> Role | None:
    """The layer that the module's class stands for. A class of this package may have it as ``layer_role``."""
    if (declared := getattr(type(module), "layer_role", None)) in get_args(Role):
        return declared
    if isinstance(module, nn.Linear | nn.Bilinear | nn.RNNBase | nn.RNNCellBase | nn.MultiheadAttention):
        return "linear"
    if _is_conv1d(module):
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
    if isinstance(module, nn.Bilinear):
        return 3
    return len(getattr(module, "normalized_shape", (1,))) if role == "norm" else 2


def sublayers(module: nn.Module, role: Role | None, wanted: Callable[[Tensor], bool]) -> list[Sublayer]:
    """The layers that a module of this role is, with its own parameters that are `wanted`, in order of use."""
    if isinstance(module, torch.jit.ScriptModule):
        kind = getattr(module, "original_name", type(module).__name__)
        raise ValueError(
            f"{kind} is scripted or traced (torch.jit), which is not supported: pass the network that it was made of"
        )
    stored = {name: name for name, p in module._parameters.items() if p is not None}
    if parametrize.is_parametrized(module):
        for name, chain in module.parametrizations.items():  # type: ignore[union-attr, operator]
            largest = max(chain._parameters, key=lambda key: chain._parameters[key].numel())
            stored |= {name: f"parametrizations.{name}.{largest}"}
    # Frozen layers have their place, but no tensors.
    left = {name: path if wanted(lookup(module, path)) else None for name, path in stored.items()}
    found: list[Sublayer] = []
    if role is not None and isinstance(module, nn.MultiheadAttention):
        found += [Sublayer("linear", left.pop(n), None, True) for n in _ATTENTION if n in left]
        if "in_proj_weight" in left:
            found.append(Sublayer("linear", left.pop("in_proj_weight"), left.pop("in_proj_bias", None)))
    elif role is not None and isinstance(module, nn.RNNBase | nn.RNNCellBase):
        for name in [n for n in left if n.startswith("weight")]:
            bias = left.pop(name.replace("weight", "bias"), None)
            # The state's matrix is added to the input's: both read what the layer reads.
            found.append(Sublayer("linear", left.pop(name), bias, name.startswith("weight_hh")))
    elif role is not None:
        weight, bias = (None, None) if role == "activation" else (left.pop("weight", None), left.pop("bias", None))
        found.append(Sublayer(role, weight, bias))
    return found + [Sublayer("parameter", path) for path in left.values() if path is not None]


@contextmanager
def eval_mode(net: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, each module's own mode afterwards. So BatchNorm's statistics do not change."""
    modes = {module: module.training for module in net.modules()}
    net.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


_ATTENTION = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
