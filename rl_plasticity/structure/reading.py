"""What feeds what in a network: read from its forward, traced symbolically or watched in a real call.

``torch.fx`` traces most networks without any input. Where it cannot (control flow that depends on data, a library's
policy or language model), one real call on an `example` shows the same. If neither works, `Structure.unknown` has the
reason, so that a method which must know the order can refuse.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import permutations
from typing import get_args

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from rl_plasticity.errors import SettingsError, nearest
from rl_plasticity.structure.calling import Example, with_tensors
from rl_plasticity.structure.layer import BareRole, Layer, lookup, role_of, runs_of, unwrapped
from rl_plasticity.structure.structure import Structure
from rl_plasticity.structure.trace import trace
from rl_plasticity.structure.units import HiddenLayer
from rl_plasticity.structure.walk import INPUT, Walk, given_role
from rl_plasticity.structure.watch import watch


def layers(net: nn.Module) -> list[Layer]:
    """The layers of `net` in forward order, without parameters that do not require gradients.

    Raises:
        ValueError: the layers of a stacked network disagree about the runs axes.
    """
    return read(net).layers


def hidden_units(net: nn.Module, example: Example | None = None) -> list[HiddenLayer]:
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
    require_supported(net)
    ids = None if only is None else {*map(id, only)}
    names = None if ids is None else [name for name, p in net.named_parameters() if id(p) in ids]
    asked = {"heads": heads, "roles": roles, "only": names}
    roles = roles or {}
    _check_roles(net, roles)
    walk = Walk(net, roles, _ids_of(net, roles, ids))
    with _distributions_unchecked():
        unknown = trace(net, walk) if example is None else watch(net, walk, example)
    if unknown is not None:
        walk = Walk(net, roles, walk.only)
    reached = len(walk.nodes)
    walk.find_norms()
    walk.correct()
    walk.append_unreached()
    nodes = _with_heads(walk.nodes, reached, heads)
    late = [node.name for node in nodes[reached:] if node.role not in ("parameter", "activation", "undecided")]
    return Structure(
        nodes=tuple(nodes),
        unknown=unknown,
        unreached=() if unknown else tuple(late),
        has_heads=unknown is None or heads is not None,
        undecided=tuple(node.weight_name for node in nodes if node.role == "undecided" and node.weight_name),
        trained=tuple(name for name, p in net.named_parameters() if walk.trained(p)),
        example=None if example is None else with_tensors(example, Tensor.detach),
        returned=tuple((tuple(sorted(v.sources)), tuple(sorted(v.through))) for v in walk.returned),
        shared=frozenset(name for name, uses in walk.uses.items() if uses > 1),
        of_heads=frozenset(walk.weight_of[i] for i, node in enumerate(nodes) if node.head and i in walk.weight_of),
        factors=frozenset(_possible_factors(net, walk, unknown is not None)),
        asked=asked,
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
        shape, owner = lookup(net, found[0]).shape, net.get_submodule(found[0].rpartition(".")[0])
        wrong = ""
        if role == "matrix" and sum(n > 1 for n in shape[len(runs_of(net)) :]) > 2:
            wrong = f"not a matrix, its shape is {[*shape]}: make each matrix a parameter of its own, or say 'ignore'"
        if role != "ignore" and role_of(owner) is not None:
            wrong = f"a parameter of {type(owner).__name__}, which tells its role: say 'ignore', not {role!r}"
        if wrong:
            raise SettingsError(f"roles: {found[0]!r} is {wrong}")


def _ids_of(net: nn.Module, roles: Mapping[str, str], given: set[int] | None) -> set[int] | None:
    """The parameters to act on, by their ids; None for all."""
    own = {id(p) for p in net.parameters()}
    ignored = {id(p) for name, p in net.named_parameters() if given_role(name, roles) == "ignore"}
    if given is None:
        return own - ignored if ignored else None
    if not own & given:
        raise SettingsError(
            "only: none of these is a parameter of the network; write only=[net.get_parameter(name), ...]"
        )
    return given - ignored


def _with_heads(nodes: list[Layer], reached: int, heads: Sequence[str] | None) -> list[Layer]:
    """The nodes, with a mark on the heads: those that are named, or those with none of their kind on any path behind.

    Raises:
        SettingsError: a name is none of a linear or convolution layer.
    """
    linear = [node.role in ("linear", "conv") for node in nodes]
    if heads is not None:
        names = [node.name for node, is_linear in zip(nodes, linear, strict=True) if is_linear]
        for name in heads:
            if name not in names:
                raise SettingsError(f"heads: no linear or convolution layer is called {name!r}{nearest(name, names)}")
        return [replace(node, head=node.name in heads) for node in nodes]
    followed: set[int] = set()
    for i, node in reversed(list(enumerate(nodes))):
        if linear[i] or i in followed:
            followed.update(node.inputs)
    return [replace(n, head=linear[i] and i not in followed and i < reached) for i, n in enumerate(nodes)]


def _possible_factors(net: nn.Module, walk: Walk, unknown: bool) -> Iterator[str]:
    """The weights whose shapes allow that they are an adapter's factors for a frozen weight.

    Where the order is known, one also feeds the other with no activation between them.
    """
    nodes, k = walk.nodes, len(walk.runs)
    feeds = {(nodes[i].weight_name, node.weight_name) for node in nodes for i in node.inputs if i != INPUT}
    shapes = {name: p.shape[k : k + 2] for name, p in net.named_parameters() if p.ndim - k > 1}
    trained = [name for name in shapes if walk.trained(net.get_parameter(name))]
    frozen = {shapes[name] for name in shapes if not net.get_parameter(name).requires_grad}
    for a, b in permutations(trained if frozen else (), 2):
        (rank, inputs), (outputs, inner) = shapes[a], shapes[b]
        fits = inner == rank < min(inputs, outputs) and {(outputs, inputs), (inputs, outputs)} & frozen
        if fits and (unknown or (a, b) in feeds):
            yield from (a, b)


def require_supported(net: nn.Module) -> None:
    """Raises SettingsError if the network has parameters that no method can act on."""
    for name, p in net.named_parameters():
        kinds = {
            "without a shape before the network's first call": isinstance(p, nn.UninitializedParameter),
            "a distributed tensor (DTensor)": type(p).__name__ == "DTensor",
            "complex": p.is_complex(),
            "sparse": p.layout != torch.strided,
        }
        if found := [kind for kind, is_so in kinds.items() if is_so]:
            raise SettingsError(
                f"{name!r} is {found[0]}, which is not supported: pass the part of the network without it"
            )
    modules = {type(module).__name__ for module in net.modules()}
    if "FullyShardedDataParallel" in modules:
        raise SettingsError("sharded parameters (FullyShardedDataParallel) are not supported: methods see whole layers")
    if "TensorDictParams" in modules:
        raise SettingsError(
            f"{type(net).__name__} holds the parameters of a TorchRL loss, stacked and without a forward: use "
            "rl_plasticity.integrations.torchrl"
        )
