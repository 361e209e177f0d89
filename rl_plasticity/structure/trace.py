"""A walk along the graph that ``torch.fx`` traces of a forward, without a call on real inputs."""

import inspect
import warnings
from collections.abc import Sequence
from typing import Any

from torch import fx, nn

from rl_plasticity.errors import reason
from rl_plasticity.seeding import random_states_kept
from rl_plasticity.structure.calling import flat, shadow
from rl_plasticity.structure.layer import role_of, without_forward
from rl_plasticity.structure.operations import NO_TENSOR, operation_of, plain
from rl_plasticity.structure.walk import INPUT, Value, Walk, Weight, joined


def trace(net: nn.Module, walk: Walk) -> str | None:
    """Walk along the dataflow graph of `net`, or return why there is none. Net and random states do not change."""
    if why := without_forward(net):
        return why
    with random_states_kept(net.parameters()):
        try:
            graph = _graph(net)
        except Exception as error:  # anything a forward may raise on symbolic inputs
            return f"{type(net).__name__}.forward cannot be traced ({reason(error)})"
    parameters = dict(net.named_parameters(remove_duplicate=False))
    weights = {name: Weight(walk.name_of[id(p)]) for name, p in parameters.items()}
    values: dict[fx.Node, Value] = {}  # of tensors, not of shapes and types
    for node in graph.nodes:
        given = flat([node.args, node.kwargs])
        nodes, others = ([a for a in given if isinstance(a, fx.Node) == is_node] for is_node in (True, False))
        inputs = [values[a] for a in nodes if a in values]
        if node.op == "output":
            walk.returned = inputs
        elif node.op == "get_attr":
            values[node] = Value(weight=weights.get(str(node.target)))
        elif (inputs or not nodes or node.op == "call_module") and (
            value := _follow(walk, node, inputs, others)
        ) is not None:
            values[node] = value
            target = str(getattr(node.target, "__name__", node.target))
            in_place = target.endswith("_") and not target.endswith("__")  # add_, not __add__
            if in_place and node.args and isinstance(node.args[0], fx.Node):
                values[node.args[0]] = value
    return None


def _graph(net: nn.Module) -> fx.Graph:
    arguments = inspect.signature(net.forward).parameters.values()
    defaults = {a.name: a.default for a in arguments if a.default is not a.empty}
    copied = shadow(net)
    for module in copied.modules():  # a user's own hooks do not expect symbols
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _Tracer().trace(copied, defaults or None)


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True  # a forward that writes to a buffer must not write to the real one

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if role_of(m) is not None or operation_of(m):
            return True
        return super().is_leaf_module(m, module_qualified_name) and not any(True for _ in m.parameters())


def _follow(walk: Walk, node: fx.Node, inputs: Sequence[Value], others: Sequence[Any]) -> Value | None:
    """The value of one node of the graph; None of a shape or a type."""
    if node.op == "placeholder":
        return Value(frozenset({INPUT}))
    if node.op == "call_module":
        module = walk.modules[str(node.target)]
        if role_of(module) is None:
            return walk.call(operation_of(module) or type(module).__name__, inputs)
        return walk.module(str(node.target), joined(inputs))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    op = str(node.args[1]) if name == "getattr" else plain(name, not isinstance(node.args[0], fx.Node))
    return None if op in NO_TENSOR else walk.call(op, inputs, others)
